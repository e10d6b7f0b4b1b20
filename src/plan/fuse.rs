//! Neighbouring expressions become one kernel: a Fused step moves into the next step that reads its result, so
//! that the value between them stays in registers; it goes to memory only if others read it too.

use crate::kernel::{BufferId, Expr, ExprId, Fused, Kernel, Program, Reduce, Scalar, Step, View};
use crate::ops::{Lowering, Origin};
use crate::tensor::{DType, Tensor};

/// A fused kernel has at most this many reads and expressions: register pressure, and on WebGPU the
/// number of storage buffers.
const MAX_OPERANDS: usize = 8;
const MAX_EXPRS: usize = 48;

/// Fuses, then drops what nobody reads.
pub(super) fn run(lowering: &mut Lowering, kept: &[BufferId]) {
    for i in 0..lowering.steps.len() {
        inline_scalars(lowering, i);
    }
    drop_dead(lowering, kept);
    let mut steps: Vec<Option<Step>> = std::mem::take(&mut lowering.steps).into_iter().map(Some).collect();
    let mut uses = Uses::of(lowering, &steps, kept);
    for consumer in 0..steps.len() {
        while let Some(producer) = candidate(&steps, &uses, consumer) {
            let merged = uses.merge(&steps, producer, consumer).expect("candidate tried it");
            uses.remove(&steps, producer);
            uses.remove(&steps, consumer);
            steps[producer] = None;
            steps[consumer] = Some(merged);
            uses.add(&steps, consumer);
        }
    }
    lowering.steps = steps.into_iter().flatten().collect();
    drop_dead(lowering, kept);
}

/// Who writes and reads each buffer.
struct Uses {
    writers: Vec<Vec<usize>>,
    readers: Vec<Vec<usize>>,
    temp: Vec<bool>,
}

impl Uses {
    fn of(lowering: &Lowering, steps: &[Option<Step>], kept: &[BufferId]) -> Self {
        let count = lowering.buffers.len();
        let temp = lowering.buffers.iter().map(|b| matches!(b.origin, Origin::Temp)).collect();
        let mut uses = Self { writers: vec![Vec::new(); count], readers: vec![Vec::new(); count], temp };
        for id in kept {
            uses.temp[id.index()] = false;
        }
        for i in 0..steps.len() {
            uses.add(steps, i);
        }
        uses
    }

    fn add(&mut self, steps: &[Option<Step>], i: usize) {
        let step = steps[i].as_ref().expect("a live step");
        for (table, views) in [(&mut self.readers, &step.reads), (&mut self.writers, &step.writes)] {
            for view in views {
                let list = &mut table[view.buffer.index()];
                if !list.contains(&i) {
                    list.push(i);
                }
            }
        }
    }

    fn remove(&mut self, steps: &[Option<Step>], i: usize) {
        let step = steps[i].as_ref().expect("a live step");
        for (table, views) in [(&mut self.readers, &step.reads), (&mut self.writers, &step.writes)] {
            for view in views {
                table[view.buffer.index()].retain(|&s| s != i);
            }
        }
    }

    /// `producer` and `consumer` as one step. Results that only the consumer reads are not written.
    fn merge(&self, steps: &[Option<Step>], producer: usize, consumer: usize) -> Option<Step> {
        let (p, c) = (steps[producer].as_ref()?, steps[consumer].as_ref()?);
        let only_here = |w: &View| self.temp[w.buffer.index()] && self.readers[w.buffer.index()] == [consumer];
        merge(p, c, &only_here)
    }
}

/// A producer that may move into `consumer`.
fn candidate(steps: &[Option<Step>], uses: &Uses, consumer: usize) -> Option<usize> {
    let step = steps[consumer].as_ref()?;
    if !matches!(step.kernel, Kernel::Fused(_) | Kernel::Reduce(_)) {
        return None;
    }
    step.reads.iter().find_map(|read| {
        let b = read.buffer.index();
        let &[producer] = uses.writers[b].as_slice() else { return None };
        // Where others read the result too it is still written, but this step need not read it.
        let early = uses.temp[b] && producer < consumer;
        (early && may_move(steps, uses, producer, consumer) && uses.merge(steps, producer, consumer).is_some())
            .then_some(producer)
    })
}

/// Would `producer` compute the same at the place of `consumer`, and would nobody miss it before?
fn may_move(steps: &[Option<Step>], uses: &Uses, producer: usize, consumer: usize) -> bool {
    let Some(step) = &steps[producer] else { return false };
    let between = |list: &Vec<usize>| list.iter().any(|&i| i > producer && i < consumer);
    let reads_stay = step.reads.iter().all(|r| !between(&uses.writers[r.buffer.index()]));
    // Other results of the producer must not be read, or overwritten, on the way.
    let writes_wait = step.writes.iter().all(|w| {
        let b = w.buffer.index();
        !between(&uses.readers[b]) && !between(&uses.writers[b])
    });
    reads_stay && writes_wait
}

/// Do two views meet the same elements in the same order?
fn same_walk(a: &View, b: &View) -> bool {
    let strides = || a.strides.iter().zip(&b.strides).zip(&a.shape);
    (a.buffer, a.dtype, a.offset, &a.shape) == (b.buffer, b.dtype, b.offset, &b.shape)
        && strides().all(|((x, y), &size)| size == 1 || x == y)
}

/// One step that does what `producer` and then `consumer` do, if there is one.
fn merge(producer: &Step, consumer: &Step, only_here: &dyn Fn(&View) -> bool) -> Option<Step> {
    let Kernel::Fused(p) = &producer.kernel else { return None };
    let (shape, row_axes, program) = match &consumer.kernel {
        Kernel::Fused(c) => (&c.shape, c.row_axes, &c.program),
        Kernel::Reduce(c) if p.row_axes == 0 => (&c.shape, 0, &c.program),
        _ => return None,
    };
    let row_axes = match (p.row_axes, row_axes) {
        (a, b) if a == b => a,
        (0, b) => b,
        (a, 0) => a,
        _ => return None,
    };
    if p.row_axes != 0 && p.shape != *shape || p.program.exprs.len() + program.exprs.len() > MAX_EXPRS {
        return None;
    }
    let (reads, writes) = reshape_operands(producer, p, consumer, shape)?;
    let mut out = Operands { reads: Vec::new(), program: Program::new() };
    let ids = out.append(&p.program, &reads, &|_| None);
    let inner = |view: &View| {
        let k = writes.iter().position(|w| w.buffer == view.buffer && same_walk(&w.broadcast_to(shape), view))?;
        Some(ids[p.program.outputs[k].index()])
    };
    // Every read of a result must be exactly the element that was written at this coordinate.
    let touches = |view: &View| producer.writes.iter().any(|w| w.buffer == view.buffer);
    if consumer.reads.iter().any(|r| touches(r) && inner(r).is_none()) {
        return None;
    }
    let outer = out.append(program, &consumer.reads, &inner);
    let mut results: Vec<(ExprId, View)> = Vec::new();
    for (k, write) in writes.iter().enumerate() {
        if !only_here(write) {
            results.push((ids[p.program.outputs[k].index()], write.clone()));
        }
    }
    if matches!(consumer.kernel, Kernel::Reduce(_)) && !results.is_empty() {
        return None;
    }
    results.extend(program.outputs.iter().zip(&consumer.writes).map(|(&e, w)| (outer[e.index()], w.clone())));
    // What is read must not be overwritten at another coordinate of the same kernel.
    let clash = |r: &View| results.iter().any(|(_, w)| w.buffer == r.buffer && !same_walk(w, r));
    if out.reads.len() + results.len() > MAX_OPERANDS || out.reads.iter().any(clash) {
        return None;
    }
    let mut program = out.program;
    program.outputs = results.iter().map(|(e, _)| *e).collect();
    let kernel = match &consumer.kernel {
        Kernel::Reduce(c) => Kernel::Reduce(Reduce { program, ..c.clone() }),
        _ => Kernel::Fused(Fused { shape: shape.clone(), row_axes, program }),
    };
    let writes = results.into_iter().map(|(_, w)| w).collect();
    Some(Step { kernel, reads: out.reads, writes, from: consumer.from.clone() })
}

/// The producer's operands as seen under the consumer's shape (a Reshape between them is only
/// another way to count the same elements).
fn reshape_operands(producer: &Step, p: &Fused, consumer: &Step, shape: &[usize]) -> Option<(Vec<View>, Vec<View>)> {
    if p.shape == *shape {
        return Some((producer.reads.clone(), producer.writes.clone()));
    }
    let counts = |e: &crate::kernel::expr::Typed| matches!(e.expr, Expr::Coordinate(_) | Expr::Random(_));
    let same_len = p.shape.iter().product::<usize>() == shape.iter().product::<usize>();
    if !same_len || p.program.exprs.iter().any(counts) || producer.writes.iter().any(|w| w.shape != p.shape) {
        return None;
    }
    // A permuted consumer walks the elements in another order: transpose the producer with it.
    if let Some(axes) = permutation(producer, consumer) {
        let permute = |views: &[View]| views.iter().map(|v| v.permuted(&axes)).collect();
        return Some((permute(&producer.reads), permute(&producer.writes)));
    }
    let reshape = |views: &[View]| views.iter().map(|v| v.reshaped(shape)).collect::<Option<Vec<_>>>();
    Some((reshape(&producer.reads)?, reshape(&producer.writes)?))
}

/// The order of axes in which the consumer reads the producer's only result, if it is a permutation.
fn permutation(producer: &Step, consumer: &Step) -> Option<Vec<usize>> {
    let [write] = producer.writes.as_slice() else { return None };
    let read = consumer.reads.iter().find(|r| r.buffer == write.buffer)?;
    if read.rank() != write.rank() {
        return None;
    }
    let mut axes = Vec::new();
    for (&size, &stride) in read.shape.iter().zip(&read.strides) {
        let axis = (0..write.rank())
            .find(|a| !axes.contains(a) && write.shape[*a] == size && (size == 1 || write.strides[*a] == stride))?;
        axes.push(axis);
    }
    Some(axes)
}

/// A program that grows, and its reads without duplicates.
struct Operands {
    reads: Vec<View>,
    program: Program,
}

impl Operands {
    fn append(&mut self, other: &Program, views: &[View], inner: &dyn Fn(&View) -> Option<ExprId>) -> Vec<ExprId> {
        let reads = &mut self.reads;
        let dtypes: Vec<DType> = views.iter().map(|v| v.dtype).collect();
        self.program.append(other, |program, k| {
            if let Some(id) = inner(&views[k]) {
                return id;
            }
            let at = reads.iter().position(|r| *r == views[k]).unwrap_or_else(|| {
                reads.push(views[k].clone());
                reads.len() - 1
            });
            program.input(at, dtypes[k])
        })
    }
}

/// Reads of constants that are one number become constants of the program.
fn inline_scalars(lowering: &mut Lowering, i: usize) {
    let step = &lowering.steps[i];
    let (Kernel::Fused(Fused { program, .. }) | Kernel::Reduce(Reduce { program, .. })) = &step.kernel else { return };
    let scalar = |view: &View| match &lowering.buffers[view.buffer.index()].origin {
        Origin::Constant(tensor) => uniform(tensor),
        _ => None,
    };
    let scalars: Vec<Option<Scalar>> = step.reads.iter().map(scalar).collect();
    if scalars.iter().all(Option::is_none) {
        return;
    }
    let (mut reads, mut inlined) = (Vec::new(), Program::new());
    let ids = inlined.append(program, |p, k| match scalars[k] {
        Some(value) => p.push(Expr::Const(value), step.reads[k].dtype),
        None => {
            let at = reads.iter().position(|r| *r == step.reads[k]).unwrap_or_else(|| {
                reads.push(step.reads[k].clone());
                reads.len() - 1
            });
            p.input(at, step.reads[k].dtype)
        }
    });
    inlined.outputs = program.outputs.iter().map(|e| ids[e.index()]).collect();
    let step = &mut lowering.steps[i];
    step.reads = reads;
    match &mut step.kernel {
        Kernel::Fused(Fused { program, .. }) | Kernel::Reduce(Reduce { program, .. }) => *program = inlined,
        _ => unreachable!("matched above"),
    }
}

/// The value of a tensor whose elements are all the same.
fn uniform(tensor: &Tensor) -> Option<Scalar> {
    let size = tensor.dtype().size();
    let first = tensor.bytes().get(..size)?;
    if tensor.bytes().chunks_exact(size).any(|c| c != first) {
        return None;
    }
    let one = Tensor::from_bytes(tensor.dtype(), &[], first).ok()?;
    Some(match one.to_i64s() {
        Some(ints) => Scalar::Int(ints[0]),
        None => Scalar::Float(one.to_f64s()[0]),
    })
}

/// Drops results that nobody reads, and steps without results.
fn drop_dead(lowering: &mut Lowering, kept: &[BufferId]) {
    let mut live: Vec<bool> = lowering.buffers.iter().map(|b| !matches!(b.origin, Origin::Temp)).collect();
    for id in kept {
        live[id.index()] = true;
    }
    let mut steps = std::mem::take(&mut lowering.steps);
    for step in steps.iter_mut().rev() {
        let used: Vec<bool> = step.writes.iter().map(|w| live[w.buffer.index()]).collect();
        if matches!(step.kernel, Kernel::Check(_)) {
            // kept: it fails the run
        } else if !used.contains(&true) {
            step.writes.clear();
            step.reads.clear();
            continue;
        } else if let Kernel::Fused(fused) = &mut step.kernel
            && used.contains(&false)
        {
            narrow(fused, &mut step.reads, &mut step.writes, &used);
        }
        for read in &step.reads {
            live[read.buffer.index()] = true;
        }
    }
    steps.retain(|s| matches!(s.kernel, Kernel::Check(_)) || !s.writes.is_empty());
    lowering.steps = steps;
}

/// Keeps only the used results of a kernel, and the expressions and reads that they need.
fn narrow(fused: &mut Fused, reads: &mut Vec<View>, writes: &mut Vec<View>, used: &[bool]) {
    let mut used = used.iter();
    let mut keep = used.clone();
    fused.program.outputs.retain(|_| *keep.next().expect("one flag a write"));
    writes.retain(|_| *used.next().expect("one flag a write"));
    let (program, inputs) = fused.program.pruned();
    fused.program = program;
    *reads = inputs.into_iter().map(|k| reads[k].clone()).collect();
}
