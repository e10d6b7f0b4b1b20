//! From operators to kernels: the context in which an operator writes its kernels, and the list
//! of kernels and buffers that comes out. Constants are folded on the way.

use super::{Facts, Operator};
use crate::error::{Error, Kind, Result, bail};
use crate::graph::{Graph, Node, ValueId};
use crate::kernel::{BufferId, ExprId, Fused, Kernel, Program, RunContext, Step, View, reference};
use crate::tensor::{DType, Tensor, checked_len, known_shape, show_dims};
use std::collections::HashMap;
use std::sync::Arc;

/// Where a buffer comes from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// Written and read inside one run.
    Temp,
    /// A graph input, bound anew at each run.
    Input(ValueId),
    /// The same at every run.
    Constant(Arc<Tensor>),
}

/// A buffer of a lowering.
#[derive(Clone, Debug)]
pub struct BufferInfo {
    /// Element type.
    pub dtype: DType,
    /// Elements.
    pub len: usize,
    /// Where it comes from.
    pub origin: Origin,
}

/// Kernels in order, their buffers, and where each value of the graph lies.
#[derive(Clone, Debug, Default)]
pub struct Lowering {
    /// The kernels.
    pub steps: Vec<Step>,
    /// The buffers they work on.
    pub buffers: Vec<BufferInfo>,
    views: HashMap<ValueId, View>,
    streams: u32,
}

/// Constants larger than this many elements are computed at every run rather than kept.
const FOLD_LIMIT: usize = 1 << 22;

impl Lowering {
    /// A new buffer.
    pub fn buffer(&mut self, dtype: DType, len: usize, origin: Origin) -> BufferId {
        self.buffers.push(BufferInfo { dtype, len, origin });
        BufferId(self.buffers.len() as u32 - 1)
    }

    /// Where a value lies. Constants get their buffer when they are first asked for.
    pub fn view(&mut self, facts: &Facts, id: ValueId) -> Option<View> {
        if let Some(view) = self.views.get(&id) {
            return Some(view.clone());
        }
        let tensor = facts.constant(id)?.clone();
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        let buffer = self.buffer(dtype, tensor.len(), Origin::Constant(tensor));
        let view = View::contiguous(buffer, dtype, &shape);
        self.views.insert(id, view.clone());
        Some(view)
    }

    /// Declares a graph input of a known type.
    pub fn add_input(&mut self, id: ValueId, dtype: DType, shape: &[usize]) {
        let len = shape.iter().product();
        let buffer = self.buffer(dtype, len, Origin::Input(id));
        self.views.insert(id, View::contiguous(buffer, dtype, shape));
    }
}

/// What an operator sees while it lowers.
pub struct LowerCx<'a> {
    graph: &'a Graph,
    node: &'a Node,
    facts: &'a Facts,
    out: &'a mut Lowering,
    from: Arc<str>,
    /// Results that are plain constants.
    constants: Vec<(ValueId, Tensor)>,
    /// Something here differs from run to run, or is kept: nothing may be folded.
    stateful: bool,
}

impl LowerCx<'_> {
    /// An error at this node.
    pub fn error(&self, kind: Kind, message: impl Into<String>) -> Error {
        Error::new(kind, message).at(&*self.from)
    }

    fn input_id(&self, i: usize) -> Result<ValueId> {
        let id = self.node.inputs.get(i).copied().flatten();
        id.ok_or_else(|| self.error(Kind::Graph, format!("input {i} is required and missing")))
    }

    /// Number of inputs.
    pub fn input_count(&self) -> usize {
        self.node.inputs.len()
    }

    /// Number of outputs.
    pub fn output_count(&self) -> usize {
        self.node.outputs.len()
    }

    /// Is input `i` there?
    pub fn has(&self, i: usize) -> bool {
        self.node.inputs.get(i).is_some_and(Option::is_some)
    }

    /// Is output `o` wanted?
    pub fn has_output(&self, o: usize) -> bool {
        self.node.outputs.get(o).is_some_and(Option::is_some)
    }

    /// Where input `i` lies.
    pub fn input(&mut self, i: usize) -> Result<View> {
        let id = self.input_id(i)?;
        let view = self.out.view(self.facts, id);
        view.ok_or_else(|| {
            self.error(Kind::Plan, format!("input {i} (\"{}\") is not computed", self.graph.name_of(id)))
        })
    }

    /// Where input `i` lies, or `None` if it is left out.
    pub fn input_opt(&mut self, i: usize) -> Result<Option<View>> {
        if self.has(i) { self.input(i).map(Some) } else { Ok(None) }
    }

    /// Where input `i` lies, to be written in place: a buffer that outlives the run.
    pub fn input_mut(&mut self, i: usize) -> Result<View> {
        let view = self.input(i)?;
        if !matches!(self.out.buffers[view.buffer.index()].origin, Origin::Input(_)) || !view.is_contiguous() {
            let id = self.input_id(i)?;
            let name = self.graph.name_of(id);
            return Err(
                self.error(Kind::Plan, format!("input {i} (\"{name}\") is updated in place and must be a graph input"))
            );
        }
        self.stateful = true;
        Ok(view)
    }

    /// Shape of input `i`.
    pub fn shape(&self, i: usize) -> Result<Vec<usize>> {
        let id = self.input_id(i)?;
        let shape = self.facts.ty(id).and_then(|ty| known_shape(ty.shape.as_deref()?));
        shape.ok_or_else(|| {
            self.error(Kind::Plan, format!("the shape of input {i} (\"{}\") is not known", self.graph.name_of(id)))
        })
    }

    /// Dtype of input `i`.
    pub fn dtype(&self, i: usize) -> Result<DType> {
        let id = self.input_id(i)?;
        let ty = self.facts.ty(id);
        ty.map(|ty| ty.dtype).ok_or_else(|| self.error(Kind::Plan, format!("the type of input {i} is not known")))
    }

    /// The tensor that input `i` is, if it is known while planning.
    pub fn constant(&self, i: usize) -> Option<&Arc<Tensor>> {
        self.facts.constant(self.node.inputs.get(i).copied().flatten()?)
    }

    /// The tensor that input `i` is. Fails if only a run can tell.
    pub fn require_constant(&self, i: usize) -> Result<Arc<Tensor>> {
        let id = self.input_id(i)?;
        self.facts.constant(id).cloned().ok_or_else(|| {
            self.error(Kind::Plan, format!("input {i} (\"{}\") must be known while planning", self.graph.name_of(id)))
        })
    }

    /// Dtype and shape of output `o` as inference found them.
    pub fn output_type(&self, o: usize) -> Result<(DType, Vec<usize>)> {
        let id = self.node.outputs.get(o).copied().flatten();
        let Some(ty) = id.and_then(|id| self.facts.ty(id)) else {
            return Err(self.error(Kind::Plan, format!("the type of output {o} is not known")));
        };
        let Some(shape) = ty.shape.as_deref().and_then(known_shape) else {
            return Err(self.error(
                Kind::Plan,
                format!("the shape of output {o} depends on values that are known only at run time: {ty}"),
            ));
        };
        if checked_len(&shape).is_none() {
            return Err(self.error(Kind::Plan, format!("output {o} of shape {} is too large", show_dims(&shape))));
        }
        Ok((ty.dtype, shape))
    }

    /// Makes the buffer of output `o` and gives its whole, row-major.
    pub fn output(&mut self, o: usize) -> Result<View> {
        let (dtype, shape) = self.output_type(o)?;
        let view = self.temp(dtype, &shape);
        self.alias(o, view.clone());
        Ok(view)
    }

    /// The buffer of output `o` if the output is wanted, else a buffer that nobody reads.
    pub fn output_or_temp(&mut self, o: usize, dtype: DType, shape: &[usize]) -> Result<View> {
        if self.has_output(o) { self.output(o) } else { Ok(self.temp(dtype, shape)) }
    }

    /// Says that output `o` is a view of what is already there.
    pub fn alias(&mut self, o: usize, view: View) {
        if let Some(id) = self.node.outputs.get(o).copied().flatten() {
            self.out.views.insert(id, view);
        }
    }

    /// Says that output `o` is a constant.
    pub fn set_constant(&mut self, o: usize, tensor: Tensor) {
        if let Some(id) = self.node.outputs.get(o).copied().flatten() {
            self.constants.push((id, tensor));
        }
    }

    /// A row-major buffer for values between this operator's kernels.
    pub fn temp(&mut self, dtype: DType, shape: &[usize]) -> View {
        let buffer = self.out.buffer(dtype, shape.iter().product(), Origin::Temp);
        View::contiguous(buffer, dtype, shape)
    }

    /// A view of a constant that this operator needs.
    pub fn constant_view(&mut self, tensor: Tensor) -> View {
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        let buffer = self.out.buffer(dtype, tensor.len(), Origin::Constant(Arc::new(tensor)));
        View::contiguous(buffer, dtype, &shape)
    }

    /// A stream of random numbers of its own. The same graph always draws the same streams.
    pub fn random_stream(&mut self) -> u32 {
        self.stateful = true;
        self.out.streams += 1;
        self.out.streams
    }

    /// Says that this node must run at every step (a check, a write in place).
    pub fn keep(&mut self) {
        self.stateful = true;
    }

    /// Writes a kernel.
    pub fn push(&mut self, kernel: Kernel, reads: Vec<View>, writes: Vec<View>) {
        if writes.iter().any(View::is_empty) && !matches!(kernel, Kernel::Check(_)) {
            return; // nothing to compute
        }
        self.out.steps.push(Step { kernel, reads, writes, from: self.from.clone() });
    }

    /// The view itself if it is row-major, else a row-major copy.
    pub fn contiguous(&mut self, view: View) -> View {
        if view.is_contiguous() {
            return view;
        }
        let copy = self.temp(view.dtype, &view.shape);
        self.copy(view, copy.clone());
        copy
    }

    /// Copies `from` to `to`, of one shape and dtype.
    pub fn copy(&mut self, from: View, to: View) {
        self.push(Kernel::Copy, vec![from], vec![to]);
    }

    /// Fills a view with one value.
    pub fn fill(&mut self, to: View, value: f64) {
        let mut program = Program::new();
        let c = program.constant(value, to.dtype);
        program.output(c);
        self.fused(to.shape.clone(), 0, program, vec![], vec![to]);
    }

    /// The view under another shape; copied first if strides cannot say it.
    pub fn reshape(&mut self, view: View, shape: &[usize]) -> View {
        match view.reshaped(shape) {
            Some(view) => view,
            None => {
                let copy = self.contiguous(view);
                copy.reshaped(shape).expect("row-major views take any shape")
            }
        }
    }

    /// A Fused kernel: reads are broadcast to `shape`.
    pub fn fused(&mut self, shape: Vec<usize>, row_axes: usize, program: Program, reads: Vec<View>, writes: Vec<View>) {
        let reads = reads.iter().map(|r| r.broadcast_to(&shape)).collect();
        self.push(Kernel::Fused(Fused { shape, row_axes, program }), reads, writes);
    }

    /// An elementwise operator from some inputs to output 0: `write` gets one expression per input.
    pub fn elementwise(
        &mut self,
        inputs: &[usize],
        write: impl FnOnce(&mut Program, &[ExprId]) -> ExprId,
    ) -> Result<()> {
        let reads = inputs.iter().map(|&i| self.input(i)).collect::<Result<Vec<_>>>()?;
        let to = self.output(0)?;
        self.map(&reads, to, write);
        Ok(())
    }

    /// Writes one expression over `reads` (broadcast) to `to`.
    pub fn map(&mut self, reads: &[View], to: View, write: impl FnOnce(&mut Program, &[ExprId]) -> ExprId) {
        let mut program = Program::new();
        let ids: Vec<_> = reads.iter().enumerate().map(|(k, r)| program.input(k, r.dtype)).collect();
        let result = write(&mut program, &ids);
        program.output(result);
        self.fused(to.shape.clone(), 0, program, reads.to_vec(), vec![to]);
    }
}

/// Lowers one node: its kernels are added to `lowering`; if all it reads is constant they are
/// computed here and now, and `facts` knows the results. All input types must be known sizes.
pub fn lower_node(
    graph: &Graph,
    node: &Node,
    op: &dyn Operator,
    facts: &mut Facts,
    lowering: &mut Lowering,
) -> Result<()> {
    let first = lowering.steps.len();
    let mut cx = LowerCx {
        graph,
        node,
        facts,
        from: node.path(graph).into(),
        out: lowering,
        constants: Vec::new(),
        stateful: false,
    };
    op.lower(&mut cx).map_err(|e| e.at(node.path(graph)))?;
    let (constants, stateful) = (cx.constants, cx.stateful);
    for (id, tensor) in constants {
        facts.set_constant(id, Arc::new(tensor));
    }
    let constant = node.inputs.iter().flatten().all(|&id| facts.constant(id).is_some());
    if constant && !stateful {
        fold(node, facts, lowering, first)?;
    }
    Ok(())
}

/// Computes the kernels from `first` on and makes constants of the node's outputs.
fn fold(node: &Node, facts: &mut Facts, lowering: &mut Lowering, first: usize) -> Result<()> {
    let outputs: Vec<ValueId> =
        node.outputs.iter().copied().flatten().filter(|&id| facts.constant(id).is_none()).collect();
    let views: Vec<View> = outputs.iter().filter_map(|id| lowering.views.get(id).cloned()).collect();
    let steps = &lowering.steps[first..];
    let touched = steps.iter().flat_map(|s| &s.writes).chain(&views);
    if views.len() != outputs.len() || touched.map(View::len).any(|n| n > FOLD_LIMIT) {
        return Ok(());
    }
    let mut memory = reference::HostBuffers::default();
    let mut moved: HashMap<BufferId, BufferId> = HashMap::new();
    let mut to_host = |view: &View| -> Result<View> {
        let buffer = match moved.get(&view.buffer) {
            Some(&there) => there,
            None => {
                let info = &lowering.buffers[view.buffer.index()];
                let tensor = match &info.origin {
                    Origin::Constant(tensor) => tensor.clone(),
                    Origin::Temp => Arc::new(Tensor::zeros(info.dtype, &[info.len])?),
                    Origin::Input(_) => bail!(Plan, "a constant depends on a graph input"),
                };
                *moved.entry(view.buffer).or_insert(memory.add(&tensor))
            }
        };
        Ok(View { buffer, ..view.clone() })
    };
    let mut hosted = Vec::new();
    for step in steps {
        let reads = step.reads.iter().map(&mut to_host).collect::<Result<_>>()?;
        let writes = step.writes.iter().map(&mut to_host).collect::<Result<_>>()?;
        hosted.push(Step { kernel: step.kernel.clone(), reads, writes, from: step.from.clone() });
    }
    let views = views.iter().map(&mut to_host).collect::<Result<Vec<_>>>()?;
    for step in &hosted {
        reference::run(step, &mut memory, &RunContext::default())?;
    }
    lowering.steps.truncate(first);
    for (id, view) in outputs.into_iter().zip(views) {
        lowering.views.remove(&id);
        facts.set_constant(id, Arc::new(memory.read(&view)?));
    }
    Ok(())
}
