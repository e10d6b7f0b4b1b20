//! One table of kernels, sizes, strides and dtypes, each run on every device as a plan of one step and
//! compared with the reference kernels. Whole buffers are compared, so that a write outside its view shows.

use crate::support::{Random, devices, turn};
use ontrain::backend::{Any, Backend, now};
use ontrain::error::Result;
use ontrain::kernel::reference::{self, HostBuffers};
use ontrain::kernel::{
    Binary, Buffers, Expr, ExprId, Fused, Kernel, Program, Reduce, ReduceOp, RunContext, Step, Unary, View,
};
use ontrain::plan::{Input, Placement, Plan};
use ontrain::tensor::{DType, Tensor};

const CX: RunContext = RunContext::new(9, 4);

/// A kernel and the memory that it runs on.
pub(crate) struct Case {
    what: String,
    host: HostBuffers,
    dtypes: Vec<DType>,
    pub(crate) random: Random,
    reads: Vec<View>,
    writes: Vec<View>,
    relative: bool,
}

impl Case {
    pub(crate) fn new(what: String) -> Self {
        let random = Random::new(what.bytes().fold(1, |h: u64, b| h.wrapping_mul(131).wrapping_add(b.into())));
        Self {
            what,
            host: HostBuffers::new(),
            dtypes: Vec::new(),
            random,
            reads: Vec::new(),
            writes: Vec::new(),
            relative: false,
        }
    }

    /// A buffer that holds `tensor`, seen whole.
    pub(crate) fn buffer(&mut self, tensor: &Tensor) -> View {
        self.dtypes.push(tensor.dtype());
        View::contiguous(self.host.add(tensor), tensor.dtype(), tensor.shape())
    }

    /// A buffer of numbers between -4 and 4 (0 and 1 for bool), seen whole.
    pub(crate) fn numbers(&mut self, dtype: DType, shape: &[usize]) -> View {
        let len = shape.iter().product();
        let values: Vec<f64> = (0..len).map(|_| self.random.unit() * 4.0).collect();
        let unsigned = matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64);
        let value = |v: &f64| match dtype {
            DType::Bool => (*v > 0.0) as u8 as f64,
            _ if unsigned => v.abs(),
            _ => *v,
        };
        let values: Vec<f64> = values.iter().map(value).collect();
        let tensor = Tensor::from_f64s(dtype, shape, &values).unwrap();
        self.buffer(&tensor)
    }

    /// A buffer of `shape` whose axes lie in memory in the order `axes`, with gaps if `step` > 1, backwards if < 0.
    pub(crate) fn strided(&mut self, dtype: DType, shape: &[usize], axes: &[usize], step: isize) -> View {
        let gap = step.unsigned_abs();
        let mut sizes: Vec<usize> = axes.iter().map(|&a| shape[a]).collect();
        if let Some(last) = sizes.last_mut() {
            *last *= gap;
        }
        let mut view = self.numbers(dtype, &sizes);
        if let Some(&size) = axes.last().map(|&a| &shape[a]) {
            let start = if step < 0 { size.saturating_sub(1) * gap } else { 0 };
            view = view.sliced(axes.len() - 1, start, step, size);
        }
        // Where is axis a of the wanted view?
        let back: Vec<usize> = (0..axes.len()).map(|a| axes.iter().position(|&x| x == a).unwrap()).collect();
        view.permuted(&back)
    }

    pub(crate) fn read(mut self, view: View) -> Self {
        self.reads.push(view);
        self
    }

    pub(crate) fn write(mut self, view: View) -> Self {
        self.writes.push(view);
        self
    }

    /// Each number is compared by its own size, not by that of the largest.
    pub(crate) fn relative(mut self) -> Self {
        self.relative = true;
        self
    }

    /// Runs the kernel by the reference and on every device of this machine; floats may differ by `tolerance` of the largest
    /// value.
    pub(crate) fn check(self, kernel: Kernel, tolerance: f64) {
        let step = Step { kernel, reads: self.reads.clone(), writes: self.writes.clone(), from: "the case".into() };
        let mut expected = self.host.clone();
        let wanted = reference::run(&step, &mut expected, &CX);
        let _turn = turn();
        for (device, name) in devices() {
            self.check_on(device, name, &step, &wanted, &expected, tolerance);
        }
    }

    fn check_on(
        &self,
        device: &Any,
        name: &str,
        step: &Step,
        wanted: &Result<()>,
        expected: &HostBuffers,
        tolerance: f64,
    ) {
        let Self { host, dtypes, .. } = self;
        let what = format!("{} on {name}", self.what);
        let buffers: Vec<_> = host
            .0
            .iter()
            .zip(dtypes)
            .map(|(bytes, dtype)| {
                let buffer = device.alloc(*dtype, bytes.as_bytes().len() / dtype.size()).unwrap();
                device.upload(&buffer, bytes.as_bytes()).unwrap();
                buffer
            })
            .collect();
        let input = |i: usize| {
            let shape = vec![host.0[i].as_bytes().len() / dtypes[i].size()];
            Input { name: format!("b{i}"), dtype: dtypes[i], shape, pinned: false }
        };
        let plan = Plan {
            steps: vec![step.clone()],
            buffers: (0..buffers.len()).map(Placement::Input).collect(),
            inputs: (0..buffers.len()).map(input).collect(),
            outputs: Vec::new(),
            arenas: Vec::new(),
            flops: 0,
        };
        let mut program = match now(device.compile(&plan, &buffers)) {
            Ok(program) => program,
            Err(e) => match wanted {
                // A device may refuse an operation before it runs.
                Err(wanted) if wanted.kind() == e.kind() => return,
                _ => panic!("{what}: {e:?}, the reference says {wanted:?}"),
            },
        };
        // Twice: a kernel may not depend on what its scratch held.
        for run in 0..2 {
            if run == 1 {
                for (buffer, bytes) in buffers.iter().zip(&host.0) {
                    device.upload(buffer, bytes.as_bytes()).unwrap();
                }
            }
            let run = now(device.run(&mut program, &CX));
            let got = run.and_then(|()| now(device.read(&program, &[], &mut [])));
            match (&got, wanted) {
                (Ok(()), Ok(())) => {}
                (Err(a), Err(b)) if a == b => return,
                _ => panic!("{what}: {got:?}, the reference says {wanted:?}"),
            }
            for (i, buffer) in buffers.iter().enumerate() {
                let mut bytes = vec![0; host.0[i].as_bytes().len()];
                now(device.download(buffer, &mut bytes)).unwrap();
                let want = expected.bytes(ontrain::kernel::BufferId(i as u32));
                compare(
                    &format!("{what}, buffer {i}: {:?}", step.kernel),
                    dtypes[i],
                    &bytes,
                    want,
                    (tolerance, self.relative),
                );
            }
        }
    }
}

fn compare(what: &str, dtype: DType, got: &[u8], want: &[u8], (tolerance, relative): (f64, bool)) {
    if got == want {
        return;
    }
    let tensor = |bytes: &[u8]| Tensor::from_bytes(dtype, &[bytes.len() / dtype.size()], bytes).unwrap();
    let (got, want) = (tensor(got), tensor(want));
    if let (Some(got), Some(want)) = (got.to_i64s(), want.to_i64s()) {
        let i = (0..got.len()).find(|&i| got[i] != want[i]).unwrap();
        panic!("{what}: element {i} is {}, want {}", got[i], want[i]);
    }
    let (got, want) = (got.to_f64s(), want.to_f64s());
    let largest = want.iter().filter(|w| w.is_finite()).fold(1.0f64, |s, w| s.max(w.abs()));
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        // Devices may take numbers below the least normal one for 0.
        let size = if !relative {
            largest
        } else if w.is_finite() {
            w.abs()
        } else {
            0.0
        };
        let allowed = tolerance * size + if relative { 1.2e-38 } else { 0.0 };
        let close = (g - w).abs() <= allowed || g == w || (g.is_nan() && w.is_nan());
        assert!(close, "{what}: element {i} is {g:e}, want {w:e}");
    }
}

/// Every permutation of `n` axes.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let insert = |rest: Vec<usize>| {
        (0..n).map(move |at| {
            let mut p = rest.clone();
            p.insert(at, n - 1);
            p
        })
    };
    permutations(n - 1).into_iter().flat_map(insert).collect()
}

/// `f` over as many reads as the program has inputs.
pub(crate) fn program(dtype: DType, inputs: usize, make: impl Fn(&mut Program, &[ExprId]) -> Vec<ExprId>) -> Program {
    let mut p = Program::new();
    let x: Vec<ExprId> = (0..inputs).map(|k| p.input(k, dtype)).collect();
    for id in make(&mut p, &x) {
        p.output(id);
    }
    p
}

#[test]
fn fused_by_size_and_stride() {
    let shapes: [&[usize]; 14] = [
        &[],
        &[1],
        &[7],
        &[8],
        &[9],
        &[1025],
        &[0],
        &[3, 0],
        &[5, 17],
        &[64, 33],
        &[2, 3, 4],
        &[3, 1, 70],
        &[2, 3, 4, 5],
        &[2, 1, 3, 2, 9],
    ];
    for shape in shapes {
        let rank = shape.len();
        for (n, axes) in permutations(rank).into_iter().enumerate().filter(|(n, _)| n % 5 == 0) {
            for broadcast in 0..=rank {
                for step in [1, -1, 2] {
                    let dtype = [DType::F32, DType::I32, DType::F32, DType::I64, DType::F16][(n / 5 + broadcast) % 5];
                    let mut case =
                        Case::new(format!("fused {shape:?} axes {axes:?} broadcast {broadcast} step {step} {dtype}"));
                    let a = case.strided(dtype, shape, &axes, step);
                    let mut narrow = shape.to_vec();
                    if broadcast < rank {
                        narrow[broadcast] = 1;
                    }
                    let b = case.numbers(dtype, &narrow).broadcast_to(shape);
                    let out = case.strided(dtype, shape, &axes, if step == 2 { 2 } else { 1 });
                    let p = program(dtype, 2, |p, x| {
                        let sum = p.add(x[0], x[1]);
                        let product = p.mul(sum, x[0]);
                        vec![p.binary(Binary::Max, product, x[1])]
                    });
                    let kernel = Fused { shape: shape.to_vec(), row_axes: 0, program: p };
                    case.read(a).read(b).write(out).check(Kernel::Fused(kernel), 1e-6);
                }
            }
        }
    }
}

#[test]
fn fused_functions() {
    use Unary::*;
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for op in [Neg, Abs, Sign, Exp, Log, Sqrt, Reciprocal, Erf, Tanh, Sigmoid] {
            let mut case = Case::new(format!("{op:?} of {dtype}"));
            let (a, out) = (case.numbers(dtype, &[3, 37]), case.numbers(dtype, &[3, 37]));
            let p = program(dtype, 1, |p, x| vec![p.unary(op, x[0])]);
            let kernel = Fused { shape: vec![3, 37], row_axes: 0, program: p };
            let tolerance = if dtype.size() == 2 { 1e-2 } else { 2e-6 };
            case.read(a).write(out).check(Kernel::Fused(kernel), tolerance);
        }
    }
    for from in DType::ALL {
        for to in DType::ALL {
            let mut case = Case::new(format!("cast of {from} to {to}"));
            let (a, out) = (case.numbers(from, &[41]), case.numbers(to, &[41]));
            let p = program(from, 1, |p, x| vec![p.cast(x[0], to)]);
            case.read(a).write(out).check(Kernel::Fused(Fused { shape: vec![41], row_axes: 0, program: p }), 0.0);
        }
        use Binary::*;
        for op in [Add, Sub, Mul, Div, Pow, Min, Max, And, Or, Equal, Less, LessOrEqual] {
            let out = if op.compares() { DType::Bool } else { from };
            let mut case = Case::new(format!("{op:?} of {from}"));
            let (a, b) = (case.numbers(from, &[3, 19]), case.numbers(from, &[19]).broadcast_to(&[3, 19]));
            let w = case.numbers(out, &[3, 19]);
            let p = program(from, 2, |p, x| vec![p.binary(op, x[0], x[1])]);
            let kernel = Kernel::Fused(Fused { shape: vec![3, 19], row_axes: 0, program: p });
            case.read(a).read(b).write(w).check(kernel, if from.size() == 2 { 1e-2 } else { 2e-6 });
        }
    }
}

#[test]
fn fused_rows_coordinates_and_random_numbers() {
    for (shape, row_axes) in [
        (vec![4, 10], 1),
        (vec![3, 2, 5], 2),
        (vec![2, 3000], 1),
        (vec![1, 1], 1),
        (vec![3, 9000], 1),
        (vec![37], 1),
        (vec![2, 0], 1),
        (vec![0, 4], 1),
        (vec![6, 1], 1),
        (vec![2, 3, 4, 4], 3),
    ] {
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min] {
            let mut case = Case::new(format!("softmax of {shape:?} rows of {row_axes} {op:?}"));
            let a = case.numbers(DType::F32, &shape);
            let first = shape.len() - row_axes;
            let narrow: Vec<usize> = (0..shape.len()).map(|a| if a < first { shape[a] } else { 1 }).collect();
            let (out, row) = (case.numbers(DType::F32, &shape), case.numbers(DType::F32, &narrow));
            let p = program(DType::F32, 1, |p, x| {
                let most = p.row(op, x[0]);
                let d = p.sub(x[0], most);
                let small = p.scale(d, 0.01);
                let e = p.unary(Unary::Exp, small);
                let sum = p.row(ReduceOp::Sum, e);
                vec![p.div(e, sum), sum]
            });
            let kernel = Fused { shape: shape.clone(), row_axes, program: p };
            case.read(a).write(out).write(row).check(Kernel::Fused(kernel), 2e-5);
        }
    }
    for shape in [vec![5, 7, 3], vec![4100], vec![1]] {
        let mut case = Case::new(format!("coordinates and random numbers of {shape:?}"));
        let a = case.numbers(DType::F32, &shape);
        let (out, at) = (case.numbers(DType::F32, &shape), case.numbers(DType::I64, &shape));
        let axis = shape.len() - 1;
        let p = program(DType::F32, 1, |p, x| {
            let random = p.push(Expr::Random(5), DType::F32);
            let half = p.constant(0.5, DType::F32);
            let keep = p.binary(Binary::Less, random, half);
            let zero = p.constant(0.0, DType::F32);
            let i = p.coordinate(axis);
            vec![p.select(keep, x[0], zero), i]
        });
        let kernel = Fused { shape: shape.clone(), row_axes: 0, program: p };
        case.read(a).write(out).write(at).check(Kernel::Fused(kernel), 0.0);
    }
}

/// A write that is the very view of a read.
#[test]
fn fused_in_place() {
    for shape in [vec![1], vec![3000], vec![5, 130]] {
        for dtype in [DType::F32, DType::F64, DType::I32] {
            let mut case = Case::new(format!("in place {shape:?} {dtype}"));
            let a = case.numbers(dtype, &shape);
            let b = case.numbers(dtype, &shape);
            let p = program(dtype, 2, |p, x| {
                let sum = p.add(x[0], x[1]);
                vec![sum, p.mul(sum, x[0])]
            });
            let kernel = Fused { shape: shape.clone(), row_axes: 0, program: p };
            let out = case.numbers(dtype, &shape);
            case.read(a.clone()).read(b).write(a).write(out).check(Kernel::Fused(kernel), 1e-6);
        }
    }
}

#[test]
fn reduce() {
    let shapes: [&[usize]; 7] = [&[6], &[1000], &[4, 37], &[3, 0], &[5, 1, 33], &[2, 9, 4, 5], &[64, 3]];
    for shape in shapes {
        for mask in 0..1usize << shape.len() {
            for (k, op) in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min].into_iter().enumerate() {
                for dtype in [DType::F32, DType::F64, DType::I64, DType::I32] {
                    let reduced: Vec<bool> = (0..shape.len()).map(|a| mask >> a & 1 == 1).collect();
                    let narrow: Vec<usize> = shape.iter().zip(&reduced).map(|(&n, &r)| if r { 1 } else { n }).collect();
                    let mut case = Case::new(format!("reduce {shape:?} {reduced:?} {op:?} {dtype}"));
                    let back: Vec<usize> = (0..shape.len()).rev().collect();
                    let plain: Vec<usize> = (0..shape.len()).collect();
                    let a = case.strided(dtype, shape, if (mask + k) % 2 == 0 { &plain } else { &back }, 1);
                    let b = case.numbers(dtype, &[1]).broadcast_to(shape);
                    let out = case.numbers(dtype, &narrow);
                    let p = program(dtype, 2, |p, x| {
                        let product = p.mul(x[0], x[1]);
                        vec![p.add(product, x[0])]
                    });
                    let scale = if dtype.is_float() && op == ReduceOp::Sum { 0.25 } else { 1.0 };
                    let kernel = Reduce { shape: shape.to_vec(), reduced, program: p, op, scale };
                    case.read(a).read(b).write(out).check(Kernel::Reduce(kernel), 1e-5);
                }
            }
        }
    }
}

#[test]
fn copy() {
    let shapes: [&[usize]; 6] = [&[], &[17], &[6, 9], &[0, 3], &[3, 4, 5], &[2, 3, 4, 9]];
    for shape in shapes {
        for axes in permutations(shape.len()) {
            for dtype in [DType::F32, DType::Bool, DType::F16, DType::I64] {
                for (from, to) in [(1, 1), (-1, 1), (2, 1), (1, 2), (3, -2)] {
                    let mut case = Case::new(format!("copy {shape:?} axes {axes:?} {dtype} steps {from} {to}"));
                    let plain: Vec<usize> = (0..shape.len()).collect();
                    let a = case.strided(dtype, shape, &axes, from);
                    let out = case.strided(dtype, shape, &plain, to);
                    case.read(a).write(out).check(Kernel::Copy, 0.0);
                }
            }
        }
        // The same number everywhere, and a part of something larger.
        let mut case = Case::new(format!("fill and slice {shape:?}"));
        let a = case.numbers(DType::F32, &[]).broadcast_to(shape);
        let larger: Vec<usize> = shape.iter().map(|n| n + 3).collect();
        let mut out = case.numbers(DType::F32, &larger);
        for (axis, &size) in shape.iter().enumerate() {
            out = out.sliced(axis, 2, 1, size);
        }
        case.read(a).write(out).check(Kernel::Copy, 0.0);
    }
}
