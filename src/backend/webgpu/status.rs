//! Checks that run on the device: their texts, and what each is, so that its failure can be said in words.
//!
//! The first failure of a device is kept in its four status words (`Slot::STATUS`) until the host has read them: word 0 is the
//! number of the check. For a value out of range, word 1 is its row-major position in the view and words 2 and 3 are the value as
//! int64. For a loss that is not finite, words 1 and 3 are the step and word 2 is the loss as float32.

use super::axes::Axes;
use super::layout::Slot;
use super::lower::Lower;
use super::shader::{Dispatch, Library, Operand, Shader, value_type};
use crate::error::{Error, Result, bail, err};
use crate::kernel::reference::refusal;
use crate::kernel::{Check, View};
use crate::tensor::DType;
use std::sync::Arc;

/// The checks of all programs of a device, by number from 1. Equal ones are one, so that a model that is compiled again and again
/// adds none.
#[derive(Debug, Default)]
pub(super) struct Checks(Vec<Site>);

/// What is checked, and where.
#[derive(Clone, Debug, PartialEq)]
enum Site {
    Values { from: Arc<str>, check: Check, dtype: DType, shape: Vec<usize> },
    Loss,
}

impl Checks {
    /// The number of a check of the values of `view`, which the node `from` wants.
    pub(super) fn add(&mut self, from: &Arc<str>, check: &Check, view: &View) -> u32 {
        let (from, check) = (from.clone(), check.clone());
        self.number(Site::Values { from, check, dtype: view.dtype, shape: view.shape.clone() })
    }

    fn number(&mut self, site: Site) -> u32 {
        let known = self.0.iter().position(|s| *s == site);
        let at = known.unwrap_or_else(|| {
            self.0.push(site);
            self.0.len() - 1
        });
        u32::try_from(at + 1).expect("there are fewer checks than bytes of memory")
    }

    /// The error for the status words of a device, or `None` if no check has failed. A value out of range gives the error that
    /// the reference kernel gives.
    pub(super) fn failure(&self, status: [u32; 4]) -> Option<Error> {
        let [number, second, third, fourth] = status;
        let site = (number as usize).checked_sub(1)?;
        match self.0.get(site) {
            Some(Site::Values { from, check, dtype, shape }) => {
                Some(refusal(check, wide(third, fourth), second as usize, *dtype, shape).at(&**from))
            }
            Some(Site::Loss) => crate::backend::finite(f32::from_bits(third).into(), wide(second, fourth) as u64).err(),
            None => Some(err!(Device, "the GPU reports the failure of a check that there is not").found(number)),
        }
    }
}

fn wide(low: u32, high: u32) -> i64 {
    (u64::from(high) << 32 | u64::from(low)) as i64
}

/// On software, up to so many values are checked by one invocation: barriers cost more than that.
const ALONE: usize = 16 << 10;

/// The dispatch that checks the integers of a view, unless they are none, or checked already.
pub(super) fn values(check: &Check, view: &View, from: &Arc<str>, cx: &mut Lower<'_>) -> Result<Option<Dispatch>> {
    if view.dtype.is_float() {
        bail!(Unsupported, "range check of {} values", view.dtype);
    }
    let known = (view.clone(), check.clone());
    if view.is_empty() || cx.checked.contains(&known) {
        return Ok(None);
    }
    let number = cx.checks.add(from, check, view);
    cx.checked.push(known);

    let axes = Axes::merged(&view.shape, &[&view.strides]);
    let len = axes.len();
    let size = match (cx.places.software, len) {
        (true, ..=ALONE) => 1,
        (false, 257..) => 256,
        _ => 64,
    };
    let mut s = Shader::new(cx.places);
    let operand = s.reads(view);
    let status = s.bind(Slot::STATUS, true);
    s.uses(Library::Wide);
    let bounds = bounds(&mut s, check, view.dtype);
    let (lines, coordinates) = axes.coordinates(&mut s, "n", "c");
    let at = axes.position(&mut s, 0, &operand.offset, &coordinates);
    let load = format!("{lines}let at = {at}; let v = {};", widened(&operand, "at"));
    // What is kept of a bad value is the complement of its position: the largest is the first of all, and 0 is none.
    s.line("var worst = 0u;");
    let count = s.param(len);
    let first = if size == 1 { "0u" } else { "lane" };
    s.line(format!("for (var n = {first}; n < {count}; n += {size}u) {{"));
    s.line(&load);
    s.line(format!("worst = max(worst, select(0u, ~n, {bounds}));"));
    s.line("}");
    if size > 1 {
        s.declare("var<workgroup> found: atomic<u32>;");
        s.line("if (lane == 0u) { atomicStore(&found, 0u); }");
        s.line("workgroupBarrier();");
        s.line("if (worst != 0u) { atomicMax(&found, worst); }");
        s.line("workgroupBarrier();");
        s.line("if (lane != 0u) { return; }");
        s.line("worst = atomicLoad(&found);");
    }
    s.line(format!("if (worst == 0u || m{status}[0] != 0u) {{ return; }}"));
    s.line("let n = ~worst;");
    s.line(&load);
    let number = s.param(number as usize);
    s.line(format!("m{status}[1] = n; m{status}[2] = v.x; m{status}[3] = v.y; m{status}[0] = {number};"));
    Ok(Some(s.launch_groups(size, 1)))
}

/// The text that is true if the 64-bit value `v` is not allowed.
fn bounds(s: &mut Shader<'_>, check: &Check, dtype: DType) -> String {
    // A `u64` with the highest bit set is out of any range.
    let lowest = if dtype == DType::U64 { 0 } else { i64::MIN };
    let mut number = |x: i64| {
        let (low, high) = (s.param(x as u32 as usize), s.param((x >> 32) as u32 as usize));
        format!("vec2<u32>({low}, {high})")
    };
    let range = format!("(wide_less(v, {}) || !wide_less(v, {}))", number(check.low.max(lowest)), number(check.high));
    match check.ignore.filter(|&ignore| ignore >= lowest) {
        Some(ignore) => format!("{range} && any(v != {})", number(ignore)),
        None => range,
    }
}

/// The text of an integer element as int64 (of uint64: its bits).
pub(super) fn widened(operand: &Operand, at: &str) -> String {
    let value = operand.load(at);
    match value_type(operand.dtype()) {
        "bool" => format!("vec2<u32>(select(0u, 1u, {value}), 0u)"),
        "u32" => format!("vec2<u32>({value}, 0u)"),
        "i32" => format!("bitcast<vec2<u32>>(vec2<i32>({value}, {value} >> 31u))"),
        _ => value,
    }
}

/// The dispatch that fails, if this run asks for that, when the loss (one floating number) is NaN or infinite.
pub(super) fn finite(loss: &View, cx: &mut Lower<'_>) -> Result<Dispatch> {
    if !loss.dtype.is_float() || loss.shape.iter().any(|&size| size != 1) {
        return Err(err!(Graph, "the first output is not a loss").expected("one floating number"));
    }
    let number = cx.checks.number(Site::Loss);
    let mut s = Shader::new(cx.places);
    let operand = s.reads(loss);
    let (run, status) = (s.bind(Slot::RUN, false), s.bind(Slot::STATUS, true));
    let value = operand.load(&operand.offset);
    if loss.dtype == DType::F64 {
        s.line(format!("let v = {value};"));
        s.line("let bad = (v.y & 0x7ff00000u) == 0x7ff00000u;");
        s.line("let nan = ((v.y & 0xfffffu) | v.x) != 0u;");
        s.line("let bits = select((v.y & 0x80000000u) | 0x7f800000u, 0x7fc00000u, nan);");
    } else {
        s.line(format!("let bits = bitcast<u32>({value});"));
        s.line("let bad = (bits & 0x7f800000u) == 0x7f800000u;");
    }
    let number = s.param(number as usize);
    s.line(format!("if (!bad || m{run}[4] != 1u || m{status}[0] != 0u) {{ return; }}"));
    s.line(format!(
        "m{status}[1] = m{run}[2]; m{status}[2] = bits; m{status}[3] = m{run}[3]; m{status}[0] = {number};"
    ));
    Ok(s.launch_groups(1, 1))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{places, validate};
    use super::*;
    use crate::error::Kind;
    use crate::kernel::reference::{self, HostBuffers, index_check};
    use crate::kernel::{BufferId, Gather, Kernel, RunContext, Step};
    use crate::tensor::Tensor;

    /// The status words that a device has after `view`'s value at `at` failed check `number`.
    fn words(number: u32, at: u32, value: i64) -> [u32; 4] {
        [number, at, value as u32, (value >> 32) as u32]
    }

    #[test]
    fn a_failure_reads_as_the_references() {
        let check = |low, high, ignore| Check { what: "label", low, high, ignore };
        for (dtype, value, check) in [
            (DType::I64, i64::MIN, check(0, 5, None)),
            (DType::I32, -7, check(0, 5, Some(-100))),
            (DType::U8, 200, check(3, 5, None)),
            (DType::U64, u64::MAX as i64, check(0, i64::MAX, Some(-1))),
        ] {
            let mut values = [4i64; 6];
            values[4] = value;
            let mut host = HostBuffers::new();
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes().into_iter().take(dtype.size())).collect();
            let view = View::contiguous(host.add(&Tensor::from_bytes(dtype, &[2, 3], &bytes).unwrap()), dtype, &[2, 3]);
            let mut checks = Checks::default();
            let from: Arc<str> = "Loss node \"l\"".into();
            let number = checks.add(&from, &check, &view);
            let kernel = Kernel::Check(check);
            let step = Step { kernel, reads: vec![view], writes: vec![], from };
            let wanted = reference::run(&step, &mut host, &RunContext::default()).unwrap_err();
            assert_eq!(checks.failure(words(number, 4, value)), Some(wanted));
            assert_eq!(checks.failure([0; 4]), None);
            assert_eq!(checks.failure(words(9, 0, 0)).unwrap().kind(), Kind::Device);
        }
    }

    #[test]
    fn an_index_out_of_range_reads_as_the_references() {
        for value in [3, -4] {
            let mut host = HostBuffers::new();
            let data = View::contiguous(host.add_zeros(DType::F32, &[3, 2]).unwrap(), DType::F32, &[3, 2]);
            let indices = View::contiguous(host.add(&Tensor::ints(&[0, value])), DType::I64, &[2]);
            let mut checks = Checks::default();
            let from: Arc<str> = "Gather node \"g\"".into();
            let number = checks.add(&from, &index_check(3), &indices);
            let (kernel, reads) = (Kernel::Gather(Gather { axis: 0 }), vec![data.clone(), indices]);
            let step = Step { kernel, reads, writes: vec![data.sliced(0, 0, 1, 2)], from };
            let wanted = reference::run(&step, &mut host, &RunContext::default()).unwrap_err();
            assert_eq!(checks.failure(words(number, 1, value)), Some(wanted));
        }
    }

    #[test]
    fn equal_checks_are_one() {
        let mut checks = Checks::default();
        let view = View::contiguous(BufferId(0), DType::I64, &[4]);
        let mut add = |from: &str, high: i64, len: usize| {
            let view = View { shape: vec![len], ..view.clone() };
            checks.add(&from.into(), &index_check(high as usize), &view)
        };
        assert_eq!([add("a", 5, 4), add("b", 5, 4), add("a", 6, 4), add("a", 5, 3)], [1, 2, 3, 4]);
        assert_eq!([add("a", 5, 4), add("a", 5, 3)], [1, 4]);
        assert_eq!([checks.number(Site::Loss), checks.number(Site::Loss)], [5, 5]);
    }

    #[test]
    fn a_loss_that_is_not_finite_is_named() {
        let mut checks = Checks::default();
        let number = checks.number(Site::Loss);
        let error = checks.failure([number, 7, f32::NAN.to_bits(), 1]).unwrap();
        assert_eq!(error.kind(), Kind::State);
        let want =
            "the loss is NaN at train step 4294967303; parameters are unchanged and this step's gradients are dropped";
        assert_eq!(error.to_string(), want);
    }

    #[test]
    fn texts_are_valid() {
        for dtype in DType::ALL.into_iter().filter(|d| !d.is_float()) {
            for (shape, software) in [
                (vec![5], false),
                (vec![], true),
                (vec![300], false),
                (vec![20000], true),
                (vec![70, 3], false),
                (vec![9, 4], true),
            ] {
                for turned in [false, true] {
                    for ignore in [None, Some(-1)] {
                        let mut memory = places(&[(dtype, 1 << 16)], false);
                        memory.software = software;
                        let mut view = View::contiguous(BufferId(0), dtype, &shape);
                        view.strides.iter_mut().filter(|_| turned).for_each(|s| *s *= 2);
                        let check = Check { what: "label", low: 0, high: 10, ignore };
                        let mut checks = Checks::default();
                        let mut cx = Lower::new(&memory, &mut checks);
                        let from: Arc<str> = "here".into();
                        validate(&values(&check, &view, &from, &mut cx).unwrap().unwrap());
                        // What is checked stays checked, until it is overwritten.
                        assert_eq!(values(&check, &view, &from, &mut cx).unwrap(), None);
                        assert!(values(&index_check(3), &view, &from, &mut cx).unwrap().is_some());
                        cx.forget(&[view.clone()]);
                        assert!(values(&check, &view, &from, &mut cx).unwrap().is_some());
                    }
                }
            }
        }
        for dtype in DType::ALL.into_iter().filter(|d| d.is_float()) {
            for halves in [false, true] {
                let memory = places(&[(dtype, 4)], halves);
                let mut checks = Checks::default();
                let mut cx = Lower::new(&memory, &mut checks);
                validate(&finite(&View::contiguous(BufferId(0), dtype, &[1]), &mut cx).unwrap());
                assert!(finite(&View::contiguous(BufferId(0), dtype, &[2]), &mut cx).is_err());
            }
        }
        let memory = places(&[(DType::F32, 4)], false);
        let mut checks = Checks::default();
        let mut cx = Lower::new(&memory, &mut checks);
        let floats = View::contiguous(BufferId(0), DType::F32, &[4]);
        let error = values(&index_check(3), &floats, &"here".into(), &mut cx).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
    }
}
