//! Placing temporary buffers in one arena: those that never live at the same time share bytes.

use crate::error::{Result, err};
use crate::kernel::{BufferId, Kernel, Step};
use crate::ops::{Lowering, Origin};

const ALIGN: usize = 64;

/// A group of buffers that share one place, because each takes over from the one before in place.
struct Group {
    bytes: usize,
    first: usize,
    last: usize,
}

/// Byte offsets of the temporary buffers (`None` for others) and the size of the arena.
pub(super) fn place(lowering: &Lowering, kept: &[BufferId]) -> Result<(Vec<Option<usize>>, usize)> {
    let lives = lifetimes(lowering, kept);
    let group_of = share_in_place(lowering, &lives);
    let mut groups: Vec<Option<Group>> = (0..lives.len()).map(|_| None).collect();
    for (b, life) in lives.iter().enumerate() {
        let Some((first, last)) = *life else { continue };
        let info = &lowering.buffers[b];
        let bytes = info.len * info.dtype.size();
        let group = groups[group_of[b]].get_or_insert(Group { bytes, first, last });
        group.bytes = group.bytes.max(bytes);
        group.first = group.first.min(first);
        group.last = group.last.max(last);
    }
    let (offsets, size) = pack(&groups)?;
    let offset = |b: usize| lives[b].and_then(|_| offsets[group_of[b]]);
    Ok(((0..lives.len()).map(offset).collect(), size))
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
fn share_in_place(lowering: &Lowering, lives: &[Option<(usize, usize)>]) -> Vec<usize> {
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
            if let Some(r) = (0..step.reads.len()).find(|&r| takes_over(lowering, step, lives, i, r, w, &taken)) {
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
    let size = lowering.buffers[b].dtype.size() == lowering.buffers[w].dtype.size();
    let only = step.reads.iter().filter(|v| v.buffer == read.buffer).all(same);
    dies && whole && size && only && !taken.contains(&b)
}

/// Largest first, each at the lowest offset where nothing that lives with it lies.
fn pack(groups: &[Option<Group>]) -> Result<(Vec<Option<usize>>, usize)> {
    let mut order: Vec<usize> = (0..groups.len()).filter(|&g| groups[g].is_some()).collect();
    let get = |g: usize| groups[g].as_ref().expect("filtered");
    order.sort_by_key(|&g| (std::cmp::Reverse(get(g).bytes), get(g).first));
    let mut offsets: Vec<Option<usize>> = vec![None; groups.len()];
    let mut placed: Vec<(usize, usize, usize)> = Vec::new(); // offset, end, group; by offset
    let mut size = 0usize;
    for g in order {
        let group = get(g);
        let mut at = 0usize;
        for &(offset, end, other) in &placed {
            let other = get(other);
            let together = group.first <= other.last && other.first <= group.last;
            if together && at < end && offset < at + group.bytes.max(1) {
                at = end;
            }
        }
        let end = at.checked_add(group.bytes.next_multiple_of(ALIGN)).filter(|&e| e <= isize::MAX as usize);
        let end = end.ok_or_else(|| err!(Plan, "the plan needs more memory than this machine can address"))?;
        offsets[g] = Some(at);
        size = size.max(end);
        let position = placed.partition_point(|p| p.0 <= at);
        placed.insert(position, (at, end, g));
    }
    Ok((offsets, size))
}
