//! The kernel set as data: what a backend must be able to compute, and nothing about ONNX.
//! [`reference`] computes all of it plainly; it is the oracle of every backend, folds constants
//! while planning, and serves the dtypes for which a backend has no fast path.

pub mod expr;
pub mod philox;
pub mod reference;
mod view;

pub use expr::{Binary, Expr, ExprId, Program, ReduceOp, Scalar, Unary};
pub use view::{BufferId, View};

use std::sync::Arc;

/// One kernel. The sizes come from the views of the [`Step`] that runs it.
#[derive(Clone, Debug, PartialEq)]
pub enum Kernel {
    /// An expression DAG at every coordinate.
    Fused(Fused),
    /// An expression, reduced over axes.
    Reduce(Reduce),
    /// Batched matrix product.
    Gemm(Gemm),
    /// Convolution in one of its three directions.
    Conv(Conv),
    /// Pooling, forward or gradient.
    Pool(Pool),
    /// Reads `[source]`, writes `[destination]` of the same shape and dtype.
    Copy,
    /// Slices by index along an axis.
    Gather(Gather),
    /// Adds or writes slices by index along an axis.
    Scatter(Scatter),
    /// Fails the run unless all values lie in a range.
    Check(Check),
}

/// Computes `program` at every coordinate of `shape`.
///
/// Reads: any number of views of `shape` (broadcast ones have stride 0). The last `row_axes` axes
/// form a *row*, over which `RowReduce` expressions run; 0 if there is none.
/// Writes: one view per output of the program, either of `shape`, or, for a value that is the
/// same along each row, of `shape` with size 1 on the row axes. A write may be the very same
/// view as a read (in place). Over rows of no elements a reduction gives what [`Reduce`] gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Fused {
    /// The iteration space.
    pub shape: Vec<usize>,
    /// How many trailing axes form a row.
    pub row_axes: usize,
    /// What is computed.
    pub program: Program,
}

/// Computes `scale * op over the reduced axes of program(reads)`.
///
/// Reads: views of `shape`. Writes: one view of `shape` with size 1 on the reduced axes. The
/// program has one output and no `RowReduce`. Over no elements `Sum` gives 0, `Max` the lowest and
/// `Min` the highest value of the dtype (infinities for floats).
#[derive(Clone, Debug, PartialEq)]
pub struct Reduce {
    /// The iteration space.
    pub shape: Vec<usize>,
    /// Which axes are reduced.
    pub reduced: Vec<bool>,
    /// What is reduced.
    pub program: Program,
    /// How.
    pub op: ReduceOp,
    /// A factor on the result (floats only; 1 for integers).
    pub scale: f64,
}

/// `out = alpha * a b + beta * c`, matrix by matrix.
///
/// Reads: `a` `[batch…, m, k]`, `b` `[batch…, k, n]`, and, if `beta != 0`, `c` `[batch…, m, n]`
/// (strided or broadcast at will). Writes: `[batch…, m, n]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gemm {
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of `c`; 0 means that `c` is not read.
    pub beta: f32,
}

/// Which of a convolution's three products is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Reads `x` and `w` (and a bias `[channels out]`); writes `y`.
    Forward,
    /// Reads `dy` and `w`; writes `dx`.
    InputGrad,
    /// Reads `dy` and `x`; writes `dw`.
    WeightGrad,
}

/// Cross-correlation of `x` `[N, C, spatial…]` with `w` `[M, C/groups, kernel…]` to `y`
/// `[N, M, spatial…]`, as ONNX's Conv; contiguous views. Pads at the end follow from the sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv {
    /// Which product.
    pub direction: Direction,
    /// Groups of channels.
    pub groups: usize,
    /// Strides, per spatial axis.
    pub strides: Vec<usize>,
    /// Dilations, per spatial axis.
    pub dilations: Vec<usize>,
    /// Zeros before the first element, per spatial axis.
    pub pads_begin: Vec<usize>,
}

/// What a pooling window computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolKind {
    /// Forward reads `x`, writes `y` and optionally the int64 position of each maximum, counted
    /// row-major through the whole of `x` `[N, C, spatial…]`. Gradient reads `dy` and those
    /// positions, writes `dx`. The first maximum wins; NaN is a maximum. A window that lies in the
    /// padding altogether gives the lowest value (of floats -infinity) and position -1, which the
    /// gradient skips.
    Max,
    /// Forward reads `x`, writes `y`; gradient reads `dy`, writes `dx`. Divides by the elements of
    /// the window that lie in the input, or in input and padding together; where there are none the
    /// average is 0. Floats only.
    Average {
        /// Does padding count?
        include_pad: bool,
    },
}

/// Pooling of `x` `[N, C, spatial…]` to `y` `[N, C, spatial…]`; contiguous views.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Maximum or average.
    pub kind: PoolKind,
    /// The gradient instead of the value.
    pub gradient: bool,
    /// Window sizes.
    pub window: Vec<usize>,
    /// Strides.
    pub strides: Vec<usize>,
    /// Dilations.
    pub dilations: Vec<usize>,
    /// Padding before the first element.
    pub pads_begin: Vec<usize>,
    /// Padding after the last element (`include_pad` counts it).
    pub pads_end: Vec<usize>,
}

/// Reads `data` and integer `indices` (negative ones count from the end); writes
/// `data.shape[..axis] + indices.shape + data.shape[axis+1..]`. An index out of range fails the run.
#[derive(Clone, Debug, PartialEq)]
pub struct Gather {
    /// The axis of `data` that is indexed.
    pub axis: usize,
}

/// The transpose of [`Gather`]: reads `indices` and `updates` (shaped like Gather's result); clears
/// `data` and adds each slice of `updates` at its index, in order. Writes `data`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scatter {
    /// The axis of `data` that is indexed.
    pub axis: usize,
}

/// Reads one integer view; fails the run with an `Input` error that names `what`, the value and
/// its position unless every value is `ignore` or in `low..high`.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What the values are, for the error ("label").
    pub what: &'static str,
    /// The lowest value allowed.
    pub low: i64,
    /// One more than the highest value allowed.
    pub high: i64,
    /// A value that is always allowed.
    pub ignore: Option<i64>,
}

/// A kernel with its operands, and the ONNX node it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What is computed.
    pub kernel: Kernel,
    /// Operands.
    pub reads: Vec<View>,
    /// Results.
    pub writes: Vec<View>,
    /// The node, as errors and profiles name it.
    pub from: Arc<str>,
}

/// What a run gives to its kernels beside buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunContext {
    /// The seed of the random numbers.
    pub seed: u64,
    /// Which step this is, so that each step draws other numbers.
    pub step: u64,
    /// Does the run fail if the plan's first output is a floating number that is NaN or infinite?
    pub finite: bool,
}

impl RunContext {
    /// Of these random numbers; any first output will do.
    pub const fn new(seed: u64, step: u64) -> Self {
        Self { seed, step, finite: false }
    }
}

/// The memory that kernels run on, buffer by buffer.
pub trait Buffers {
    /// The bytes of a buffer.
    fn bytes(&self, id: BufferId) -> &[u8];
    /// The bytes of a buffer, to write.
    fn bytes_mut(&mut self, id: BufferId) -> &mut [u8];
}
