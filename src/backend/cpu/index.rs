//! Kernels that look at indices: Gather, Scatter, Check. A value out of range is reported by the
//! reference kernel, which knows how to say where it stands.

use super::memory::Memory;
use super::threads::parallel_for;
use crate::error::Result;
use crate::kernel::{Check, Kernel, RunContext, Step, View, reference};
use crate::tensor::DType;

/// Bytes moved that make a task worth a thread.
const WORK: usize = 1 << 16;
/// Floats of a slice that one task adds.
const COLUMNS: usize = 256;

/// A contiguous view of int32 or int64.
#[derive(Clone, Debug)]
struct Ints(View);

impl Ints {
    fn new(view: &View) -> Option<Self> {
        (matches!(view.dtype, DType::I32 | DType::I64) && view.is_contiguous()).then(|| Self(view.clone()))
    }

    fn len(&self) -> usize {
        if self.0.is_empty() { 0 } else { self.0.len() }
    }

    /// Safety: the view was checked and `i` lies in it.
    #[inline(always)]
    unsafe fn get(&self, memory: &Memory, i: usize) -> i64 {
        // Safety: the caller's promise.
        unsafe {
            match self.0.dtype {
                DType::I32 => *memory.ptr::<i32>(&self.0).add(i) as i64,
                _ => *memory.ptr::<i64>(&self.0).add(i),
            }
        }
    }

    /// Safety: the view was checked.
    unsafe fn all(&self, memory: &Memory, ok: impl Fn(i64) -> bool) -> bool {
        // Safety: the caller's promise.
        (0..self.len()).all(|i| ok(unsafe { self.get(memory, i) }))
    }
}

/// Are the axes from `first` on one run?
fn run_from(view: &View, first: usize) -> bool {
    let tail = View { shape: view.shape[first..].to_vec(), strides: view.strides[first..].to_vec(), ..view.clone() };
    tail.is_contiguous()
}

/// The error of a step that found a value out of range.
fn refuse(step: &Step, memory: &Memory) -> Result<()> {
    reference::run(step, &mut memory.clone(), &RunContext::default())
}

/// A Gather, ready to run.
#[derive(Debug)]
pub struct GatherOp {
    step: Box<Step>,
    indices: Ints,
    axis: usize,
    /// Slices before the axis, elements along it, bytes of a slice after it.
    outer: usize,
    size: usize,
    inner: usize,
}

impl GatherOp {
    /// Prepares a step whose kernel is Gather. `None` unless indices are int32 or int64, and
    /// indices, result and the axes of the data after the indexed one contiguous.
    pub fn compile(step: &Step) -> Option<Self> {
        let Kernel::Gather(kernel) = &step.kernel else { return None };
        let (data, indices, out) = (step.reads.first()?, Ints::new(step.reads.get(1)?)?, step.writes.first()?);
        if !run_from(data, kernel.axis + 1) || !out.is_contiguous() {
            return None;
        }
        let outer = data.shape[..kernel.axis].iter().product();
        let inner = data.shape[kernel.axis + 1..].iter().product::<usize>() * data.dtype.size();
        Some(Self {
            step: Box::new(step.clone()),
            indices,
            axis: kernel.axis,
            outer,
            size: data.shape[kernel.axis],
            inner,
        })
    }

    /// Runs it. An `Input` error names the step, the index and its position if one is out of range.
    ///
    /// # Safety
    /// [`Memory::check`] must have passed for the step's views.
    pub unsafe fn run(&self, memory: &Memory) -> Result<()> {
        let size = self.size as i64;
        // Safety: the caller's promise, below.
        if !unsafe { self.indices.all(memory, |i| (-size..size).contains(&i)) } {
            return refuse(&self.step, memory);
        }
        let (data, out) = (&self.step.reads[0], &self.step.writes[0]);
        let (slices, inner, element) = (self.indices.len(), self.inner, data.dtype.size());
        let total = self.outer * slices;
        if inner == 0 {
            return Ok(());
        }
        let per_task = (WORK / inner).max(1);
        parallel_for(total.div_ceil(per_task), |task| {
            let to = memory.at(out.buffer, out.offset * element);
            for slice in task * per_task..((task + 1) * per_task).min(total) {
                // Safety: indices were checked; slices of the result are disjoint.
                unsafe {
                    let index = self.indices.get(memory, slice % slices);
                    let index = if index < 0 { index + size } else { index } as isize;
                    let at = self.before(data, slice / slices) + index * data.strides[self.axis];
                    let from = memory.at(data.buffer, data.offset * element).offset(at * element as isize);
                    std::ptr::copy_nonoverlapping(from, to.add(slice * inner), inner);
                }
            }
        });
        Ok(())
    }

    /// Where slice number `outer` before the axis starts.
    fn before(&self, data: &View, mut outer: usize) -> isize {
        let mut at = 0;
        for axis in (0..self.axis).rev() {
            at += (outer % data.shape[axis]) as isize * data.strides[axis];
            outer /= data.shape[axis];
        }
        at
    }
}

/// A Scatter of f32, ready to run. Duplicates of an index are added in their order, by one task.
#[derive(Debug)]
pub struct ScatterOp {
    step: Box<Step>,
    indices: Ints,
    outer: usize,
    size: usize,
    inner: usize,
}

impl ScatterOp {
    /// Prepares a step whose kernel is Scatter. `None` unless indices are int32 or int64, data
    /// f32, and all of them contiguous.
    pub fn compile(step: &Step) -> Option<Self> {
        let Kernel::Scatter(kernel) = &step.kernel else { return None };
        let (indices, updates, data) = (Ints::new(step.reads.first()?)?, step.reads.get(1)?, step.writes.first()?);
        let plain = |v: &View| v.dtype == DType::F32 && v.is_contiguous();
        if !plain(updates) || !plain(data) {
            return None;
        }
        let outer = data.shape[..kernel.axis].iter().product();
        let inner = data.shape[kernel.axis + 1..].iter().product();
        Some(Self { step: Box::new(step.clone()), indices, outer, size: data.shape[kernel.axis], inner })
    }

    /// Runs it; errors as [`GatherOp::run`].
    ///
    /// # Safety
    /// [`Memory::check`] must have passed for the step's views.
    pub unsafe fn run(&self, memory: &Memory) -> Result<()> {
        let size = self.size as i64;
        // Safety: the caller's promise, below.
        if !unsafe { self.indices.all(memory, |i| (-size..size).contains(&i)) } {
            return refuse(&self.step, memory);
        }
        let pieces = self.inner.div_ceil(COLUMNS);
        let slices = self.indices.len();
        parallel_for(self.outer * pieces, |task| {
            let (outer, start) = (task / pieces, task % pieces * COLUMNS);
            let n = COLUMNS.min(self.inner - start);
            // Safety: the caller's promise; each task has its own slices and columns of the data.
            unsafe {
                let updates = memory.ptr::<f32>(&self.step.reads[1]).add(outer * slices * self.inner + start);
                let data = memory.ptr::<f32>(&self.step.writes[0]).add(outer * self.size * self.inner + start);
                let line = |base: *mut f32, i: usize| std::slice::from_raw_parts_mut(base.add(i * self.inner), n);
                (0..self.size).for_each(|i| line(data, i).fill(0.0));
                for i in 0..slices {
                    let index = self.indices.get(memory, i);
                    let index = if index < 0 { index + size } else { index } as usize;
                    let update: &[f32] = line(updates, i);
                    line(data, index).iter_mut().zip(update).for_each(|(d, u)| *d += u);
                }
            }
        });
        Ok(())
    }
}

/// A Check, ready to run.
#[derive(Debug)]
pub struct CheckOp {
    step: Box<Step>,
    values: Ints,
    check: Check,
}

impl CheckOp {
    /// Prepares a step whose kernel is Check. `None` unless it reads contiguous int32 or int64.
    pub fn compile(step: &Step) -> Option<Self> {
        let Kernel::Check(check) = &step.kernel else { return None };
        Some(Self { step: Box::new(step.clone()), values: Ints::new(step.reads.first()?)?, check: check.clone() })
    }

    /// Runs it. An `Input` error names the step, the value and its position if one is not allowed.
    ///
    /// # Safety
    /// [`Memory::check`] must have passed for the step's views.
    pub unsafe fn run(&self, memory: &Memory) -> Result<()> {
        let Check { low, high, ignore, .. } = self.check;
        // Safety: the caller's promise.
        if unsafe { self.values.all(memory, |v| (low..high).contains(&v) || ignore == Some(v)) } {
            return Ok(());
        }
        refuse(&self.step, memory)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fused::testing::{Rng, close, memory};
    use super::super::threads::set_threads;
    use super::*;
    use crate::error::Kind;
    use crate::kernel::reference::HostBuffers;
    use crate::kernel::{Gather, Scatter};
    use crate::tensor::Tensor;

    /// Runs a step with `threads`, and by the reference.
    fn both(step: &Step, buffers: &HostBuffers, threads: usize) -> (Result<Tensor>, Result<Tensor>) {
        let (mut mine, mut want) = (buffers.clone(), buffers.clone());
        let table = memory(&mut mine);
        step.reads.iter().chain(&step.writes).for_each(|v| table.check(v).unwrap());
        set_threads(threads);
        // Safety: every view was checked.
        let got = unsafe {
            match &step.kernel {
                Kernel::Gather(_) => GatherOp::compile(step).unwrap().run(&table),
                Kernel::Scatter(_) => ScatterOp::compile(step).unwrap().run(&table),
                _ => CheckOp::compile(step).unwrap().run(&table),
            }
        };
        set_threads(0);
        let plain = reference::run(step, &mut want, &RunContext::default());
        let view = step.writes.first().unwrap_or(&step.reads[0]);
        (got.and_then(|()| mine.read(view)), plain.and_then(|()| want.read(view)))
    }

    fn step(kernel: Kernel, reads: Vec<View>, writes: Vec<View>) -> Step {
        Step { kernel, reads, writes, from: "Gather node \"g\"".into() }
    }

    #[test]
    fn gather_and_scatter() {
        let mut rng = Rng(3);
        for (shape, axis, index_shape) in [
            (vec![5], 0, vec![3]),
            (vec![5, 4], 0, vec![2, 3]),
            (vec![5, 4], 1, vec![]),
            (vec![3, 10, 300], 1, vec![700]),
            (vec![40, 1000], 0, vec![64]),
            (vec![2, 3, 4], 2, vec![0]),
            (vec![2, 3, 0], 1, vec![5]),
        ] {
            for dtype in [DType::F32, DType::U8, DType::I64, DType::F16] {
                for index_dtype in [DType::I64, DType::I32] {
                    let n: usize = index_shape.iter().product();
                    let values: Vec<f64> =
                        (0..n).map(|_| rng.below(2 * shape[axis]) as f64 - shape[axis] as f64).collect();
                    let indices = Tensor::from_f64s(index_dtype, &index_shape, &values).unwrap();
                    let out_shape = [&shape[..axis], &index_shape, &shape[axis + 1..]].concat();
                    let mut buffers = HostBuffers::new();
                    let data = View::contiguous(buffers.add(&rng.tensor(dtype, &shape)), dtype, &shape);
                    let indices = View::contiguous(buffers.add(&indices), index_dtype, &index_shape);
                    let out = View::contiguous(buffers.add(&rng.tensor(dtype, &out_shape)), dtype, &out_shape);
                    let gather =
                        step(Kernel::Gather(Gather { axis }), vec![data.clone(), indices.clone()], vec![out.clone()]);
                    for threads in [1, 2] {
                        let (got, want) = both(&gather, &buffers, threads);
                        assert!(got.unwrap() == want.unwrap(), "{gather:?}");
                    }
                    let scatter = step(Kernel::Scatter(Scatter { axis }), vec![indices, out], vec![data]);
                    if dtype != DType::F32 {
                        assert!(ScatterOp::compile(&scatter).is_none());
                        continue;
                    }
                    let (got, want) = both(&scatter, &buffers, 1);
                    let got = got.unwrap();
                    close(&got, &want.unwrap(), 1e-5).unwrap();
                    assert!(got == both(&scatter, &buffers, 2).0.unwrap());
                }
            }
        }
    }

    #[test]
    fn gather_from_a_bent_view() {
        let mut rng = Rng(4);
        let mut buffers = HostBuffers::new();
        let data = View::contiguous(buffers.add(&rng.tensor(DType::F32, &[6, 5, 4])), DType::F32, &[6, 5, 4])
            .permuted(&[1, 0, 2]);
        let indices = View::contiguous(buffers.add(&Tensor::ints(&[4, -1, 0])), DType::I64, &[3]);
        let out = View::contiguous(buffers.add_zeros(DType::F32, &[5, 3, 4]).unwrap(), DType::F32, &[5, 3, 4]);
        let (got, want) = both(&step(Kernel::Gather(Gather { axis: 1 }), vec![data, indices], vec![out]), &buffers, 2);
        assert!(got.unwrap() == want.unwrap());
    }

    #[test]
    fn out_of_range_is_an_error() {
        let mut buffers = HostBuffers::new();
        let data = View::contiguous(buffers.add_zeros(DType::F32, &[3, 2]).unwrap(), DType::F32, &[3, 2]);
        let out = View::contiguous(buffers.add_zeros(DType::F32, &[2, 2]).unwrap(), DType::F32, &[2, 2]);
        for bad in [3, -4, i64::MIN] {
            let indices = View::contiguous(buffers.add(&Tensor::ints(&[0, bad])), DType::I64, &[2]);
            let gather =
                step(Kernel::Gather(Gather { axis: 0 }), vec![data.clone(), indices.clone()], vec![out.clone()]);
            let scatter = step(Kernel::Scatter(Scatter { axis: 0 }), vec![indices, out.clone()], vec![data.clone()]);
            for step in [gather, scatter] {
                let (got, want) = both(&step, &buffers, 1);
                let error = got.unwrap_err();
                assert_eq!(error, want.unwrap_err());
                assert_eq!((error.kind(), error.place()), (Kind::Input, Some("Gather node \"g\"")));
                assert!(error.to_string().contains(&bad.to_string()), "{error}");
            }
        }
    }

    #[test]
    fn labels() {
        let kernel = Check { what: "label", low: 0, high: 10, ignore: Some(-1) };
        for (values, ok) in [(vec![0, 9, -1], true), (vec![3, 10], false), (vec![-2], false), (vec![], true)] {
            let mut buffers = HostBuffers::new();
            let view = View::contiguous(buffers.add(&Tensor::ints(&values)), DType::I64, &[values.len()]);
            let (got, want) = both(&step(Kernel::Check(kernel.clone()), vec![view], vec![]), &buffers, 1);
            assert_eq!(got.is_ok(), ok);
            assert!(got == want, "{got:?} {want:?}");
        }
    }
}
