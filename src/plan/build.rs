//! Making a plan: infer with concrete sizes, lower, fold, fuse, place.

use super::{Input, Layout, Output, Placement, Plan, flops, fuse, memory};
use crate::error::{Kind, Result, bail, err};
use crate::graph::{Graph, TensorType};
use crate::kernel::{BufferId, Kernel, Step, View};
use crate::ops::{Facts, Lowering, Origin, infer_node, lower_node, resolve};
use crate::tensor::{DType, Tensor, checked_len, show_dims};
use std::sync::Arc;

/// What a plan is told of a graph input.
#[derive(Clone, Debug)]
pub struct PlanInput<'a> {
    /// Dtype.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<usize>,
    /// The value, if there is one at hand. It is used only if the plan cannot be made without.
    pub value: Option<&'a Tensor>,
}

/// Inputs with more elements than this never become part of a plan.
const PIN_LIMIT: usize = 64;

/// Makes the plan of `graph` for inputs of these dtypes and sizes, in the order of `graph.inputs`, on memory of this layout.
///
/// If shapes depend on the value of a small input (a Reshape's target, a Slice's bounds), that value
/// becomes part of the plan and the input is marked `pinned`.
pub fn build(graph: &Graph, inputs: &[PlanInput<'_>], layout: &Layout) -> Result<Plan> {
    if inputs.len() != graph.inputs.len() {
        return Err(err!(Plan, "number of inputs").expected(graph.inputs.len()).found(inputs.len()));
    }
    match attempt(graph, inputs, layout, false) {
        Err(e) if e.kind() == Kind::Plan && inputs.iter().any(|i| pinnable(i).is_some()) => {
            attempt(graph, inputs, layout, true).map_err(|_| e)
        }
        result => result,
    }
}

/// The value of an input that may become part of a plan.
fn pinnable<'a>(input: &PlanInput<'a>) -> Option<&'a Tensor> {
    input.value.filter(|t| t.shape().len() <= 1 && t.len() <= PIN_LIMIT)
}

fn attempt(graph: &Graph, inputs: &[PlanInput<'_>], layout: &Layout, pin: bool) -> Result<Plan> {
    let (mut facts, mut lowering) = (Facts::default(), Lowering::default());
    for (id, tensor) in &graph.initializers {
        facts.set_constant(*id, tensor.clone());
    }
    let mut pinned = vec![false; inputs.len()];
    for (i, (&id, input)) in graph.inputs.iter().zip(inputs).enumerate() {
        if checked_len(&input.shape).is_none() {
            bail!(Plan, "input \"{}\" of shape {} is too large", graph.name_of(id), show_dims(&input.shape));
        }
        match pinnable(input) {
            Some(value) if pin => {
                pinned[i] = true;
                facts.set_constant(id, Arc::new(value.clone()));
            }
            _ => {
                facts.forget(id);
                facts.set_type(id, TensorType::known(input.dtype, &input.shape));
                lowering.add_input(id, input.dtype, &input.shape);
            }
        }
    }
    for node in &graph.nodes {
        let op = resolve(graph, node)?;
        infer_node(graph, node, &*op, &mut facts)?;
        lower_node(graph, node, &*op, &mut facts, &mut lowering)?;
    }
    let mut outputs = Vec::new();
    for &id in &graph.outputs {
        let place = match (facts.constant(id), lowering.view(&facts, id)) {
            (Some(tensor), _) => Output::Constant(tensor.clone()),
            (None, Some(view)) => Output::View(view),
            (None, None) => bail!(Plan, "output \"{}\" is not computed", graph.name_of(id)),
        };
        outputs.push((graph.name_of(id).to_owned(), place));
    }
    finish(graph, inputs, layout, &pinned, lowering, outputs)
}

fn finish(
    graph: &Graph,
    inputs: &[PlanInput<'_>],
    layout: &Layout,
    pinned: &[bool],
    mut lowering: Lowering,
    outputs: Vec<(String, Output)>,
) -> Result<Plan> {
    let kept: Vec<BufferId> =
        outputs.iter().filter_map(|(_, o)| if let Output::View(v) = o { Some(v.buffer) } else { None }).collect();
    fuse::run(&mut lowering, &kept);
    checks_first(&mut lowering);
    let (places, arenas) = memory::place(&lowering, &kept, layout)?;
    let place = |(info, place): (&crate::ops::BufferInfo, &Option<memory::Place>)| match (&info.origin, place) {
        (Origin::Temp, Some(p)) => Placement::Arena { arena: p.arena, offset: p.offset, bytes: p.bytes },
        (Origin::Temp, None) => Placement::Unused,
        (Origin::Constant(tensor), _) => Placement::Constant(tensor.clone()),
        (Origin::Input(id), _) => {
            Placement::Input(graph.inputs.iter().position(|i| i == id).expect("inputs are graph inputs"))
        }
    };
    let buffers = lowering.buffers.iter().zip(&places).map(place).collect();
    let input = |((&id, input), &pinned): ((&crate::graph::ValueId, &PlanInput<'_>), &bool)| Input {
        name: graph.name_of(id).to_owned(),
        dtype: input.dtype,
        shape: input.shape.clone(),
        pinned,
    };
    let inputs = graph.inputs.iter().zip(inputs).zip(pinned).map(input).collect();
    let flops = lowering.steps.iter().map(flops::of).sum();
    let mut plan = Plan { steps: lowering.steps, buffers, inputs, outputs, arenas, flops };
    drop_unused_constants(&mut plan);
    Ok(plan)
}

/// Moves checks of graph inputs to the front, each once, so that a run which will fail has not written anything yet.
fn checks_first(lowering: &mut Lowering) {
    let written: Vec<BufferId> = lowering.steps.iter().flat_map(|s| &s.writes).map(|w| w.buffer).collect();
    let of_input = |view: &View| {
        let origin = &lowering.buffers[view.buffer.index()].origin;
        matches!(origin, Origin::Input(_)) && !written.contains(&view.buffer)
    };
    let early = |step: &Step| matches!(step.kernel, Kernel::Check(_)) && step.reads.iter().all(of_input);
    let (mut first, rest): (Vec<Step>, Vec<Step>) = std::mem::take(&mut lowering.steps).into_iter().partition(early);
    let mut seen: Vec<(Kernel, Vec<View>)> = Vec::new();
    first.retain(|step| {
        let check = (step.kernel.clone(), step.reads.clone());
        let known = seen.contains(&check);
        seen.push(check);
        !known
    });
    first.extend(rest);
    lowering.steps = first;
}

/// Constants that nobody reads after fusion need no memory.
fn drop_unused_constants(plan: &mut Plan) {
    let mut used = vec![false; plan.buffers.len()];
    let outputs = plan.outputs.iter().filter_map(|(_, o)| if let Output::View(v) = o { Some(v) } else { None });
    for view in plan.steps.iter().flat_map(|s| s.reads.iter().chain(&s.writes)).chain(outputs) {
        let view: &View = view;
        used[view.buffer.index()] = true;
    }
    for (placement, used) in plan.buffers.iter_mut().zip(used) {
        if !used && matches!(placement, Placement::Constant(_)) {
            *placement = Placement::Unused;
        }
    }
}
