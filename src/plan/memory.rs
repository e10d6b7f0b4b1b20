//! Placing temporary buffers in arenas: those that never live at the same time share bytes.

use super::{Arena, Layout};
use crate::error::{Result, err};
use crate::kernel::{BufferId, Kernel, Step};
use crate::ops::{Lowering, Origin};
use crate::tensor::show_dims;

const ALIGN: usize = 64;

/// Where a buffer lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) arena: usize,
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

/// A group of buffers that share one place, because each takes over from the one before in place.
struct Group {
    bytes: usize,
    first: usize,
    last: usize,
    kind: usize,
}

/// Places of the temporary buffers (`None` for others), and the arenas.
pub(super) fn place(
    lowering: &Lowering,
    kept: &[BufferId],
    layout: &Layout,
) -> Result<(Vec<Option<Place>>, Vec<Arena>)> {
    let lives = lifetimes(lowering, kept);
    let group_of = share_in_place(lowering, &lives, layout);
    let mut groups: Vec<Option<Group>> = (0..lives.len()).map(|_| None).collect();
    let mut sizes = vec![0; lives.len()];
    for (b, life) in lives.iter().enumerate() {
        let Some((first, last)) = *life else { continue };
        let info = &lowering.buffers[b];
        sizes[b] = layout
            .bytes(info.dtype, info.len)
            .filter(|&n| n <= layout.piece)
            .ok_or_else(|| too_large(lowering, BufferId(b as u32), layout))?;
        let kind = layout.kind(info.dtype);
        let group = groups[group_of[b]].get_or_insert(Group { bytes: sizes[b], first, last, kind });
        group.bytes = group.bytes.max(sizes[b]);
        group.first = group.first.min(first);
        group.last = group.last.max(last);
    }
    let mut places = vec![None; groups.len()];
    let mut arenas = Vec::new();
    for kind in 0..layout.kinds() {
        pack(&groups, kind, layout, &mut places, &mut arenas)?;
    }
    let place = |b: usize| lives[b].and_then(|_| places[group_of[b]]).map(|p: Place| Place { bytes: sizes[b], ..p });
    Ok(((0..lives.len()).map(place).collect(), arenas))
}

/// The error for a tensor that no piece of memory holds, at the step that makes it.
fn too_large(lowering: &Lowering, id: BufferId, layout: &Layout) -> crate::error::Error {
    let makes = |step: &&Step| step.writes.iter().any(|w| w.buffer == id);
    let step = lowering.steps.iter().find(makes);
    let view = step.and_then(|s| s.writes.iter().find(|w| w.buffer == id));
    let what = view.map_or("a tensor".into(), |v| format!("a {} tensor of {}", v.dtype, show_dims(&v.shape)));
    let error = err!(Plan, "{what} does not fit one piece of the device's memory")
        .expected(format!("at most {} bytes", layout.piece));
    match step {
        Some(step) => error.at(&*step.from),
        None => error,
    }
}

/// First and last step that touch each temporary buffer; outputs live to the end.
fn lifetimes(lowering: &Lowering, kept: &[BufferId]) -> Vec<Option<(usize, usize)>> {
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; lowering.buffers.len()];
    for (i, step) in lowering.steps.iter().enumerate() {
        for view in step.reads.iter().chain(&step.writes) {
            let life = lives[view.buffer.index()].get_or_insert((i, i));
            life.1 = i;
        }
    }
    for id in kept {
        if let Some(life) = &mut lives[id.index()] {
            life.1 = usize::MAX;
        }
    }
    for (life, info) in lives.iter_mut().zip(&lowering.buffers) {
        if !matches!(info.origin, Origin::Temp) {
            *life = None;
        }
    }
    lives
}

/// Lets a Fused step write over an operand that dies there. Gives each buffer's group.
fn share_in_place(lowering: &Lowering, lives: &[Option<(usize, usize)>], layout: &Layout) -> Vec<usize> {
    let mut group: Vec<usize> = (0..lives.len()).collect();
    for (i, step) in lowering.steps.iter().enumerate() {
        if !matches!(step.kernel, Kernel::Fused(_)) {
            continue;
        }
        let mut taken = Vec::new();
        for write in &step.writes {
            let w = write.buffer.index();
            if lives[w].is_none_or(|(first, _)| first != i) {
                continue;
            }
            if let Some(r) = (0..step.reads.len()).find(|&r| takes_over(lowering, layout, step, lives, i, r, w, &taken))
            {
                let r = step.reads[r].buffer.index();
                taken.push(r);
                group[w] = group[r];
            }
        }
    }
    group
}

/// May the buffer `w`, written at step `i`, take the place of the buffer that read `r` sees?
fn takes_over(
    lowering: &Lowering,
    layout: &Layout,
    step: &Step,
    lives: &[Option<(usize, usize)>],
    i: usize,
    r: usize,
    w: usize,
    taken: &[usize],
) -> bool {
    let read = &step.reads[r];
    let b = read.buffer.index();
    let write = step.writes.iter().find(|v| v.buffer.index() == w).expect("w is written here");
    let same = |v: &crate::kernel::View| {
        v.shape == write.shape && v.strides == write.strides && v.offset == 0 && write.offset == 0
    };
    let dies = lives[b].is_some_and(|(_, last)| last == i);
    let whole = lowering.buffers[b].len == lowering.buffers[w].len
        && write.is_contiguous()
        && write.len() == lowering.buffers[w].len;
    let (from, to) = (lowering.buffers[b].dtype, lowering.buffers[w].dtype);
    let size = (layout.size)(from) == (layout.size)(to) && layout.kind(from) == layout.kind(to);
    let only = step.reads.iter().filter(|v| v.buffer == read.buffer).all(same);
    dies && whole && size && only && !taken.contains(&b)
}

/// Largest first, each at the lowest offset where nothing that lives with it lies, and within one piece.
/// Offsets count through all pieces of a kind.
fn pack(
    groups: &[Option<Group>],
    kind: usize,
    layout: &Layout,
    places: &mut [Option<Place>],
    arenas: &mut Vec<Arena>,
) -> Result<()> {
    let piece = layout.piece / ALIGN * ALIGN;
    let get = |g: usize| groups[g].as_ref().expect("filtered");
    let mut order: Vec<usize> =
        (0..groups.len()).filter(|&g| groups[g].as_ref().is_some_and(|g| g.kind == kind)).collect();
    order.sort_by_key(|&g| (std::cmp::Reverse(get(g).bytes), get(g).first));
    let base = arenas.len();
    let mut placed: Vec<(usize, usize, usize)> = Vec::new(); // offset, end, group; by offset
    for g in order {
        let group = get(g);
        let size = group.bytes.next_multiple_of(ALIGN);
        let within =
            |at: usize| if at / piece == (at + size.max(1) - 1) / piece { at } else { at.next_multiple_of(piece) };
        let mut at = 0usize;
        for &(offset, end, other) in &placed {
            let other = get(other);
            let together = group.first <= other.last && other.first <= group.last;
            if together && at < end && offset < at + group.bytes.max(1) {
                at = within(end);
            }
        }
        let end = at.checked_add(size).filter(|&e| e <= isize::MAX as usize);
        let end = end.ok_or_else(|| err!(Plan, "the plan needs more memory than this machine can address"))?;
        let (arena, offset) = (base + at / piece, at % piece);
        places[g] = Some(Place { arena, offset, bytes: group.bytes });
        while arenas.len() <= arena {
            arenas.push(Arena { bytes: 0, halves: kind == 1 });
        }
        arenas[arena].bytes = arenas[arena].bytes.max(offset + size);
        let position = placed.partition_point(|p| p.0 <= at);
        placed.insert(position, (at, end, g));
    }
    Ok(())
}
