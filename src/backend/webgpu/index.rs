//! Kernels that look at indices: Gather, Scatter, Check.
//!
//! Indices are checked by a dispatch of their own before they are used; whatever they are, loads and stores stay inside the data.
//! Scatter adds updates of the same index in their order, in a register: no atomics, one rounding, the same result on each run.

use super::axes::{Axes, Runs};
use super::expr::{combined, identity, rounding};
use super::layout::Slot;
use super::lower::Lower;
use super::shader::{Dispatch, Library, Shader};
use super::status::{self, widened};
use crate::error::{Result, bail};
use crate::kernel::reference::index_check;
use crate::kernel::{Check, Gather, ReduceOp, Scatter, Step, View};
use crate::tensor::DType;

pub(super) fn check(kernel: &Check, step: &Step, cx: &mut Lower<'_>) -> Result<Vec<Dispatch>> {
    let dispatch = status::values(kernel, &step.reads[0], &step.from, cx)?;
    Ok(dispatch.into_iter().collect())
}

pub(super) fn gather(kernel: &Gather, step: &Step, cx: &mut Lower<'_>) -> Result<Vec<Dispatch>> {
    let (data, indices, out) = (&step.reads[0], &step.reads[1], &step.writes[0]);
    let size = data.shape[kernel.axis];
    let check = status::values(&index_check(size), indices, &step.from, cx)?;
    let mut dispatches: Vec<_> = check.into_iter().collect();
    // Where there are no data, no index is in range.
    if out.is_empty() || data.is_empty() {
        return Ok(dispatches);
    }
    let (before, after) = (&data.strides[..kernel.axis], &data.strides[kernel.axis + 1..]);
    let along = |n: usize| vec![0; n];
    let data_strides = [before, &along(indices.rank()), after].concat();
    let index_strides = [&along(before.len()), &indices.strides[..], &along(after.len())].concat();
    let axes = Axes::merged(&out.shape, &[&out.strides, &data_strides, &index_strides]);

    let mut s = Shader::new(cx.places);
    let (from, index, to) = (s.reads(data), s.reads(indices), s.writes(out));
    let runs = Runs::new(&axes, cx.places.software && axes.strides[2].last() == Some(&0));
    let mut at = runs.begin(&mut s);
    let index_at = axes.position(&mut s, 2, &index.offset, &at);
    s.line(format!("let index_at = {index_at};"));
    let size = s.param(size);
    let stride = s.stride(data.strides[kernel.axis]);
    declare_slice(&mut s);
    s.line(format!("let skip = slice({}, {size}) * {stride};", widened(&index, "index_at")));
    runs.each(&mut s, &mut at);
    let to_at = axes.position(&mut s, 0, &to.offset, &at);
    let from_at = axes.position(&mut s, 1, &from.offset, &at);
    s.line(to.moves(&to_at, &from, &format!("{from_at} + skip")));
    runs.end(&mut s);
    dispatches.push(s.launch_threads(runs.threads()));
    Ok(dispatches)
}

/// The number from the start of the slice that an index picks; inside the axis even if the index is not.
fn declare_slice(s: &mut Shader<'_>) {
    s.declare(
        "fn slice(index: vec2<u32>, size: u32) -> u32 {
  return min(index.x + select(0u, size, (index.y >> 31u) != 0u), size - 1u);
}",
    );
}

pub(super) fn scatter(kernel: &Scatter, step: &Step, cx: &mut Lower<'_>) -> Result<Vec<Dispatch>> {
    let (indices, updates, data) = (&step.reads[0], &step.reads[1], &step.writes[0]);
    if data.dtype == DType::F64 {
        bail!(Unsupported, "scattering float64 on a GPU");
    }
    let size = data.shape[kernel.axis];
    let check = status::values(&index_check(size), indices, &step.from, cx)?;
    let mut dispatches: Vec<_> = check.into_iter().collect();
    if data.is_empty() {
        return Ok(dispatches);
    }
    let s = Scattering::new(kernel.axis, indices, updates, data);
    if s.counts_little(cx) {
        dispatches.push(s.each(cx)?);
    } else {
        cx.scratch = cx.scratch.max(s.count + s.size);
        let links = if cx.places.software || s.count > ALONE { s.links_alone(cx) } else { s.links(cx) };
        dispatches.extend([links, s.sums(cx)?]);
    }
    Ok(dispatches)
}

/// From so many indices on, their chains are made by one invocation: comparing all with all would take longer.
const ALONE: usize = 1 << 18;

/// A Scatter, taken apart.
///
/// Where there are many indices, those of each slice of the data are chained first, in scratch: word `p` is the number of the next
/// index after `p` of the same slice, or their count; word `count + slice` is the first index of a slice. A slice without any has
/// an arbitrary word there, which does not lead to an index of that slice.
struct Scattering<'a> {
    indices: &'a View,
    updates: &'a View,
    data: &'a View,
    /// Size of the axis.
    size: usize,
    /// Number of indices.
    count: usize,
    /// The data's axes; operands are data and updates (with stride 0 along the indexed axis).
    space: Axes,
    /// Which of them is the indexed one.
    axis: usize,
    /// The axes of the indices; operands are indices and updates.
    list: Axes,
}

impl<'a> Scattering<'a> {
    fn new(axis: usize, indices: &'a View, updates: &'a View, data: &'a View) -> Self {
        let after = axis + indices.rank();
        let (size, shape) = (data.shape[axis], &data.shape);
        let mut space = Axes::merged(&shape[..axis], &[&data.strides[..axis], &updates.strides[..axis]]);
        let inner = Axes::merged(&shape[axis + 1..], &[&data.strides[axis + 1..], &updates.strides[after..]]);
        let list = Axes::merged(&indices.shape, &[&indices.strides, &updates.strides[axis..after]]);
        let axis_in_space = space.sizes.len();
        space.sizes.push(size);
        space.sizes.extend(inner.sizes);
        for (k, (strides, inner)) in space.strides.iter_mut().zip(inner.strides).enumerate() {
            strides.push(if k == 0 { data.strides[axis] } else { 0 });
            strides.extend(inner);
        }
        Self { indices, updates, data, size, count: list.len(), space, axis: axis_in_space, list }
    }

    /// Is it best to look at all indices for each element of the data? Loads of the indices do not wait for each other, as those
    /// along a chain do, so that a GPU rather looks at many than walks long chains of few slices.
    fn counts_little(&self, cx: &Lower<'_>) -> bool {
        let work = self.space.len().saturating_mul(self.count);
        if cx.places.software { work <= 1 << 14 } else { self.count <= 32 || self.size <= 16 || work <= 1 << 18 }
    }

    /// Binds the indices, and declares `slice_of(p)`, the slice of the data that index `p` picks.
    fn declare_slice_of(&self, s: &mut Shader<'_>) {
        let index = s.reads(self.indices);
        declare_slice(s);
        let (lines, names) = self.list.coordinates(s, "p", "c");
        let at = self.list.position(s, 0, &index.offset, &names);
        let size = s.param(self.size);
        let value = widened(&index, "at");
        s.declare(format!("fn slice_of(p: u32) -> u32 {{\n{lines}let at = {at}; return slice({value}, {size});\n}}"));
    }

    /// Each element of the data looks for its slice among all indices.
    fn each(&self, cx: &Lower<'_>) -> Result<Dispatch> {
        let mut s = Shader::new(cx.places);
        self.declare_slice_of(&mut s);
        let (lines, at) = self.space.coordinates(&mut s, "i", "c");
        s.line(lines);
        let count = s.param(self.count);
        let walk = format!("for (var p = 0u; p < {count}; p++) {{ if (slice_of(p) == {})", at[self.axis]);
        self.sum(&mut s, &at, &walk)?;
        Ok(s.launch_threads(self.space.len()))
    }

    /// How updates are added. Of bools, a sum says whether any holds.
    fn op(&self) -> ReduceOp {
        if self.data.dtype == DType::Bool { ReduceOp::Max } else { ReduceOp::Sum }
    }

    /// The sum of no updates, to be stored.
    fn nothing(&self, s: &mut Shader<'_>) -> String {
        if rounding(self.data.dtype) {
            s.uses(Library::Math);
        }
        identity(self.op(), self.data.dtype, s)
    }

    /// Adds the updates to which `walk` leads `p` (the beginning of a loop, open), and stores the sum.
    fn sum(&self, s: &mut Shader<'_>, at: &[String], walk: &str) -> Result<()> {
        let dtype = self.data.dtype;
        let (updates, data) = (s.reads(self.updates), s.writes(self.data));
        let start = self.space.position(s, 1, &updates.offset, at);
        let nothing = self.nothing(s);
        s.line(format!("let start = {start}; var sum = {nothing};"));
        let sum = combined(self.op(), dtype, "sum", "update", s)?;
        let (lines, of_index) = self.list.coordinates(s, "p", "u");
        let from = self.list.position(s, 1, "start", &of_index);
        let update = updates.load("at");
        s.line(format!("{walk} {{\n{lines}let at = {from}; let update = {update}; sum = {sum}; }} }}"));
        let to = self.space.position(s, 0, &data.offset, at);
        s.line(data.store(&to, "sum"));
        Ok(())
    }

    /// Chains, by an invocation for each index.
    fn links(&self, cx: &Lower<'_>) -> Dispatch {
        let mut s = Shader::new(cx.places);
        self.declare_slice_of(&mut s);
        let scratch = s.bind(Slot::SCRATCH, true);
        let count = s.param(self.count);
        s.line("let own = slice_of(i);");
        s.line("var next = i + 1u;");
        s.line(format!("while (next < {count} && slice_of(next) != own) {{ next++; }}"));
        s.line(format!("m{scratch}[i] = next;"));
        s.line("var earlier = 0u;");
        s.line("while (earlier < i && slice_of(earlier) != own) { earlier++; }");
        s.line(format!("if (earlier == i) {{ m{scratch}[{count} + own] = i; }}"));
        s.launch_threads(self.count)
    }

    /// Chains, by one invocation from the last index to the first. What a slice's word holds from another run is not taken for a
    /// later index of this slice: had there been one, it would have overwritten the word.
    fn links_alone(&self, cx: &Lower<'_>) -> Dispatch {
        let mut s = Shader::new(cx.places);
        self.declare_slice_of(&mut s);
        let m = s.bind(Slot::SCRATCH, true);
        let count = s.param(self.count);
        s.line(format!("for (var rest = {count}; rest > 0u; rest--) {{"));
        s.line("let p = rest - 1u;");
        s.line("let own = slice_of(p);");
        s.line(format!("let first = m{m}[{count} + own];"));
        s.line(format!("m{m}[p] = {count};"));
        s.line(format!("if (first > p && first < {count}) {{ if (slice_of(first) == own) {{ m{m}[p] = first; }} }}"));
        s.line(format!("m{m}[{count} + own] = p;"));
        s.line("}");
        s.launch_groups(1, 1)
    }

    /// Each element of the data adds what its slice's chain leads to.
    fn sums(&self, cx: &Lower<'_>) -> Result<Dispatch> {
        let mut s = Shader::new(cx.places);
        self.declare_slice_of(&mut s);
        let m = s.bind(Slot::SCRATCH, false);
        let runs = Runs::new(&self.space, cx.places.software && self.axis + 1 < self.space.sizes.len());
        let mut at = runs.begin(&mut s);
        let (count, own) = (s.param(self.count), at[self.axis].clone());
        s.line(format!("let head = m{m}[{count} + {own}];"));
        s.line(format!("var first = {count};"));
        s.line(format!("if (head < {count}) {{ if (slice_of(head) == {own}) {{ first = head; }} }}"));
        if runs.several() {
            // Most slices have no updates.
            let mut at = at.clone();
            let data = s.writes(self.data);
            s.line(format!("if (first == {count}) {{"));
            runs.each(&mut s, &mut at);
            let to = self.space.position(&mut s, 0, &data.offset, &at);
            let nothing = self.nothing(&mut s);
            s.line(data.store(&to, &nothing));
            runs.end(&mut s);
            s.line("return; }");
        }
        runs.each(&mut s, &mut at);
        let walk = format!("for (var p = first; p < {count}; p = m{m}[p]) {{");
        self.sum(&mut s, &at, &walk)?;
        runs.end(&mut s);
        Ok(s.launch_threads(runs.threads()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::status::Checks;
    use super::super::testing::{places, validate};
    use super::*;
    use crate::error::Kind;
    use crate::kernel::{BufferId, Kernel};

    const INDICES: [DType; 4] = [DType::I64, DType::I32, DType::U8, DType::Bool];

    /// Lowers a step on buffers of `dtypes`, each of 2^20 elements, and validates its texts.
    fn lowered(
        kernel: Kernel,
        reads: Vec<View>,
        writes: Vec<View>,
        halves: bool,
        software: bool,
    ) -> (Vec<Dispatch>, usize) {
        let mut buffers = vec![(DType::F32, 1 << 20); 3];
        for view in reads.iter().chain(&writes) {
            buffers[view.buffer.index()].0 = view.dtype;
        }
        let mut memory = places(&buffers, halves);
        memory.software = software;
        let mut checks = Checks::default();
        let mut cx = Lower::new(&memory, &mut checks);
        let step = Step { kernel, reads, writes, from: "here".into() };
        let dispatches = match &step.kernel {
            Kernel::Gather(k) => gather(k, &step, &mut cx),
            Kernel::Scatter(k) => scatter(k, &step, &mut cx),
            _ => unreachable!("this test is of those two"),
        };
        let dispatches = dispatches.unwrap();
        dispatches.iter().for_each(validate);
        (dispatches, cx.scratch)
    }

    fn view(buffer: u32, dtype: DType, shape: &[usize]) -> View {
        View::contiguous(BufferId(buffer), dtype, shape)
    }

    #[test]
    fn gather_texts_are_valid() {
        for dtype in DType::ALL {
            for index in INDICES {
                for (axis, indices) in [(0, vec![]), (1, vec![7]), (2, vec![2, 3])] {
                    for software in [false, true] {
                        let shape = [4usize, 5, 6];
                        let data = view(0, dtype, &shape);
                        let turned = view(0, dtype, &[6, 4, 5]).permuted(&[1, 2, 0]);
                        let result = [&shape[..axis], &indices, &shape[axis + 1..]].concat();
                        for data in [data, turned] {
                            let out = view(2, dtype, &result);
                            let reads = vec![data, view(1, index, &indices)];
                            let kernel = Kernel::Gather(Gather { axis });
                            let (dispatches, _) = lowered(kernel, reads, vec![out], dtype == DType::F16, software);
                            assert_eq!(dispatches.len(), 2);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn an_embedding_is_gathered_along_two_axes() {
        let reads = vec![view(0, DType::F32, &[1000, 64]), view(1, DType::I64, &[8, 16])];
        let out = view(2, DType::F32, &[8, 16, 64]);
        let (dispatches, _) =
            lowered(Kernel::Gather(Gather { axis: 0 }), reads.clone(), vec![out.clone()], false, false);
        assert_eq!(dispatches[1].groups, [128, 1]);
        assert_eq!(dispatches[1].source.matches(" / ").count(), 1, "{}", dispatches[1].source);
        let (dispatches, _) = lowered(Kernel::Gather(Gather { axis: 0 }), reads, vec![out], false, true);
        assert!(dispatches[1].source.contains("for (var j"));
    }

    #[test]
    fn scatter_texts_are_valid() {
        for dtype in DType::ALL.into_iter().filter(|d| *d != DType::F64) {
            for index in INDICES {
                for (axis, indices) in [(0, vec![]), (1, vec![700]), (2, vec![20, 30]), (0, vec![0])] {
                    for software in [false, true] {
                        let shape = [40usize, 50, 60];
                        let count: usize = indices.iter().product();
                        let result = [&shape[..axis], &indices, &shape[axis + 1..]].concat();
                        let reads = vec![view(0, index, &indices), view(1, dtype, &result)];
                        for data in [view(2, dtype, &shape), view(2, dtype, &[50, 60, 40]).permuted(&[2, 0, 1])] {
                            let kernel = Kernel::Scatter(Scatter { axis });
                            let halves = dtype == DType::F16;
                            let (dispatches, scratch) = lowered(kernel, reads.clone(), vec![data], halves, software);
                            let little = count == 0 || count == 1 && !software;
                            assert_eq!(dispatches.len(), if little { 1 + count } else { 3 });
                            assert_eq!(scratch, if little { 0 } else { count + shape[axis] });
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn form_by_size() {
        let dispatches = |size: usize, count: usize, columns: usize, software: bool| {
            let reads = vec![view(0, DType::I64, &[count]), view(1, DType::F32, &[count, columns])];
            let data = view(2, DType::F32, &[size, columns]);
            let (dispatches, _) = lowered(Kernel::Scatter(Scatter { axis: 0 }), reads, vec![data], false, software);
            dispatches.len() - 1
        };
        assert_eq!(dispatches(5000, 32, 64, false), 1);
        assert_eq!(dispatches(5000, 33, 64, false), 2);
        assert_eq!(dispatches(2, 3000, 64, false), 1);
        assert_eq!(dispatches(2, 3000, 64, true), 2);
        assert_eq!(dispatches(64, 4, 64, true), 1);
        assert_eq!(dispatches(64, 5, 64, true), 2);
    }

    #[test]
    fn float64_is_refused() {
        let memory = places(&[(DType::I64, 2), (DType::F64, 2), (DType::F64, 4)], false);
        let mut checks = Checks::default();
        let mut cx = Lower::new(&memory, &mut checks);
        let kernel = Scatter { axis: 0 };
        let (reads, writes) =
            (vec![view(0, DType::I64, &[2]), view(1, DType::F64, &[2])], vec![view(2, DType::F64, &[4])]);
        let step = Step { kernel: Kernel::Scatter(kernel.clone()), reads, writes, from: "here".into() };
        assert_eq!(scatter(&kernel, &step, &mut cx).unwrap_err().kind(), Kind::Unsupported);
    }
}
