//! What the tests of these kernels share.

use super::super::memory::Memory;
use super::super::threads::set_threads;
use super::FusedOp;
use crate::kernel::reference::{self, HostBuffers};
use crate::kernel::{BufferId, Buffers, ExprId, Fused, Kernel, Program, RunContext, Step, View, philox};
use crate::tensor::{DType, DType::*, Tensor};

/// Deterministic numbers in 0..1.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn unit(&mut self) -> f64 {
        self.0 += 1;
        philox::uniform(&RunContext::new(99, 0), 0, self.0) as f64
    }
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
    pub(crate) fn tensor(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        let len = shape.iter().product();
        let scale = if dtype.is_float() { 4.0 } else { 7.0 };
        let values: Vec<f64> = (0..len).map(|_| (self.unit() - 0.4) * scale).collect();
        Tensor::from_f64s(dtype, shape, &values).unwrap()
    }
}

/// A memory table over host buffers.
pub(crate) fn memory(buffers: &mut HostBuffers) -> Memory {
    let mut memory = Memory::new(buffers.0.len());
    for i in 0..buffers.0.len() {
        let id = BufferId(i as u32);
        let bytes = buffers.bytes_mut(id);
        // Safety: the buffers outlive the table in these tests.
        unsafe { memory.bind(id, bytes.as_mut_ptr(), bytes.len()) };
    }
    memory
}

/// Are two results equal up to `tolerance`, relative and absolute?
pub(crate) fn close(got: &Tensor, want: &Tensor, tolerance: f64) -> Result<(), String> {
    for (i, (g, w)) in got.to_f64s().into_iter().zip(want.to_f64s()).enumerate() {
        let same = g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= tolerance * (1.0 + w.abs());
        if !same {
            return Err(format!("element {i} is {g}, not {w}"));
        }
    }
    Ok(())
}

pub(super) const CX: RunContext = RunContext::new(11, 3);

fn tolerance(dtype: DType) -> f64 {
    match dtype {
        F16 => 2e-3,
        BF16 => 2e-2,
        F32 => 2e-5,
        _ => 0.0,
    }
}

/// Runs a step fast, with one thread and two, and plainly; compares every buffer. False if there
/// is no fast path.
pub(super) fn check(fused: Fused, buffers: &HostBuffers, reads: Vec<View>, writes: Vec<View>) -> bool {
    let Some(op) = FusedOp::compile(&fused, &reads, &writes) else { return false };
    let run = |threads: usize| {
        let mut mine = buffers.clone();
        let memory = memory(&mut mine);
        reads.iter().chain(&writes).for_each(|v| memory.check(v).unwrap());
        set_threads(threads);
        // Safety: every view was checked.
        unsafe { op.run(&memory, &CX) };
        set_threads(0);
        mine
    };
    let (one, two) = (run(1), run(2));
    let mut want = buffers.clone();
    let step =
        Step { kernel: Kernel::Fused(fused.clone()), reads: reads.clone(), writes: writes.clone(), from: "n".into() };
    reference::run(&step, &mut want, &CX).unwrap();
    for (i, buffer) in one.0.iter().enumerate() {
        assert!(buffer.as_bytes() == two.0[i].as_bytes(), "one and two threads differ in buffer {i}: {step:?}");
        let dtype = writes.iter().find(|w| w.buffer.index() == i).map_or(U8, |w| w.dtype);
        let whole = View::contiguous(BufferId(i as u32), dtype, &[buffer.as_bytes().len() / dtype.size()]);
        let (got, want) = (one.read(&whole).unwrap(), want.read(&whole).unwrap());
        if let Err(e) = close(&got, &want, tolerance(dtype)) {
            panic!("buffer {i}: {e}\n{:?}\nreads {reads:?}\nwrites {writes:?}\n{op:#?}", fused);
        }
    }
    true
}

/// One kernel under construction: tensors with views, a program.
pub(super) struct Case {
    pub(super) shape: Vec<usize>,
    pub(super) row_axes: usize,
    pub(super) buffers: HostBuffers,
    pub(super) reads: Vec<View>,
    pub(super) program: Program,
    pub(super) rng: Rng,
}

impl Case {
    pub(super) fn new(shape: &[usize], row_axes: usize) -> Self {
        let (buffers, program) = (HostBuffers::new(), Program::new());
        Self {
            shape: shape.to_vec(),
            row_axes,
            buffers,
            reads: Vec::new(),
            program,
            rng: Rng(shape.len() as u64 * 1000),
        }
    }

    /// A contiguous read that stands still along the axes in `still`.
    pub(super) fn read(&mut self, dtype: DType, still: &[usize]) -> ExprId {
        let shape: Vec<usize> =
            (0..self.shape.len()).map(|a| if still.contains(&a) { 1 } else { self.shape[a] }).collect();
        let tensor = self.rng.tensor(dtype, &shape);
        self.view(&tensor, |v| v)
    }

    pub(super) fn view(&mut self, tensor: &Tensor, bend: impl Fn(View) -> View) -> ExprId {
        let id = self.buffers.add(tensor);
        let view = bend(View::contiguous(id, tensor.dtype(), tensor.shape()));
        self.reads.push(view.broadcast_to(&self.shape));
        self.program.input(self.reads.len() - 1, tensor.dtype())
    }

    pub(super) fn write(&mut self, dtype: DType, per_row: bool) -> View {
        let mut shape = self.shape.clone();
        if per_row {
            let first = shape.len() - self.row_axes;
            shape[first..].fill(1);
        }
        let id = self.buffers.add_zeros(dtype, &shape).unwrap();
        self.buffers.bytes_mut(id).fill(77);
        View::contiguous(id, dtype, &shape)
    }

    pub(super) fn fused(&self) -> Fused {
        Fused { shape: self.shape.clone(), row_axes: self.row_axes, program: self.program.clone() }
    }

    /// Writes every output to a new buffer, then again in place of reads of the same shape.
    pub(super) fn finish(mut self, per_row: &[bool]) {
        let outputs = self.program.outputs.clone();
        let writes: Vec<View> =
            outputs.iter().zip(per_row).map(|(o, &p)| self.write(self.program.dtype(*o), p)).collect();
        assert!(
            check(self.fused(), &self.buffers, self.reads.clone(), writes.clone()),
            "no fast path: {:?}",
            self.program
        );
        let mut taken: Vec<usize> = Vec::new();
        let mut in_place = writes.clone();
        for write in &mut in_place {
            let fits = |r: &View| {
                r.dtype == write.dtype
                    && (0..r.rank()).all(|a| {
                        if write.shape[a] == 1 { r.shape[a] == 1 || r.strides[a] == 0 } else { r.strides[a] != 0 }
                    })
            };
            if let Some(k) = (0..self.reads.len()).find(|&k| !taken.contains(&k) && fits(&self.reads[k])) {
                taken.push(k);
                *write = View { shape: write.shape.clone(), ..self.reads[k].clone() };
            }
        }
        if !taken.is_empty() {
            assert!(check(self.fused(), &self.buffers, self.reads.clone(), in_place));
        }
    }
}
