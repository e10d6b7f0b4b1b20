//! What the unit tests of kernels share: shader texts checked by naga, and memory laid out by hand.

use super::layout::{Place, Places, Slot, storage};
use super::shader::Dispatch;
use crate::tensor::DType;
use naga::valid::{Capabilities, ValidationFlags, Validator};

/// Panics unless the text of a dispatch is valid WGSL that a device with WebGPU's default limits takes.
pub(super) fn validate(dispatch: &Dispatch) {
    let source = &dispatch.source;
    let numbered = || source.lines().enumerate().map(|(i, l)| format!("{:4} {l}\n", i + 1)).collect::<String>();
    let module =
        naga::front::wgsl::parse_str(source).unwrap_or_else(|e| panic!("{}\n{}", e.emit_to_string(source), numbered()));
    let halves = dispatch.slots.iter().any(|(slot, _)| slot.halves);
    let capabilities = if halves { Capabilities::SHADER_FLOAT16 } else { Capabilities::empty() };
    if let Err(e) = Validator::new(ValidationFlags::all(), capabilities).validate(&module) {
        panic!("{}\n{}", e.emit_to_string(source), numbered());
    }
    let [entry] = module.entry_points.as_slice() else { panic!("one entry point") };
    assert_eq!(entry.name, "main");
    let [x, y, z] = entry.workgroup_size;
    assert!(x * y * z <= 256, "{} invocations in a workgroup", x * y * z);
    let layout = |ty| module.types[ty].inner.size(module.to_ctx());
    let shared = |(_, v): (_, &naga::GlobalVariable)| (v.space == naga::AddressSpace::WorkGroup).then(|| layout(v.ty));
    let bytes: u32 = module.global_variables.iter().filter_map(shared).sum();
    assert!(bytes <= 16 << 10, "{bytes} bytes of workgroup memory");
    assert!(dispatch.groups.iter().all(|n| (1..=65535).contains(n)), "{:?} workgroups", dispatch.groups);
    assert!(dispatch.slots.len() <= 10, "{} storage buffers", dispatch.slots.len());
    let params = dispatch.params.len().div_ceil(4).max(1);
    assert!(source.contains(&format!("array<vec4<u32>, {params}>")), "P does not have {params} vectors\n{source}");
    for (i, (slot, _)) in dispatch.slots.iter().enumerate() {
        let twice = dispatch.slots[..i].iter().any(|(other, _)| other == slot);
        assert!(!twice, "memory {slot:?} is bound twice");
    }
}

/// Places of temporaries, one after the other in the arena (or, for `f16` elements, in that of halves). Buffer `k` holds `len`
/// elements of the `k`-th dtype.
pub(super) fn places(buffers: &[(DType, usize)], halves: bool) -> Places {
    let arena = Slot { index: 3, halves: false };
    let arena_of_halves = Slot { index: 4, halves: true };
    let mut ends = [0usize; 2];
    let place = |&(dtype, len): &(DType, usize)| {
        let half = halves && dtype == DType::F16;
        let end = &mut ends[half as usize];
        let offset = *end;
        *end += (len * storage(dtype, halves).bytes()).next_multiple_of(256);
        Some(Place { slot: if half { arena_of_halves } else { arena }, offset, lasting: false })
    };
    Places { places: buffers.iter().map(place).collect(), halves, software: false }
}
