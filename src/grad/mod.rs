//! Reverse-mode differentiation, graph to graph: walks the nodes backwards, lets each operator's
//! own rule write the gradient of its inputs, and adds up where a value is used more than once.
//! What no requested value needs is never built.

mod check;

pub use check::{Check, check_gradients};

use crate::error::{Error, Result, bail, err};
use crate::graph::{Graph, ValueId, ValueType};
use crate::ops::{Builder, Facts, GradCx, resolve};
use crate::tensor::{Tensor, known_shape, show_dims};

/// Adds to `graph` the nodes that compute the gradient of the scalar `loss` by each of `wrt`
/// (initializers, graph inputs or any other values) and gives the gradients in that order, named
/// `{name}_grad`. `facts` are those of `infer_graph`.
///
/// Errors (`Gradient`): `loss` is not a floating scalar; a value of `wrt` is not floating, or the loss does
/// not depend on it, or only through an operator that has no gradient.
pub fn differentiate(graph: &mut Graph, facts: &mut Facts, loss: ValueId, wrt: &[ValueId]) -> Result<Vec<ValueId>> {
    check_loss(graph, facts, loss)?;
    let forward = graph.nodes.len();
    let depends = dependents(graph, facts, wrt);
    let mut walk = Walk { partials: vec![Vec::new(); graph.value_count()] };
    let seed = seed(graph, facts, loss)?;
    walk.partials[loss.index()].push(seed);
    let mut stopped: Vec<String> = Vec::new();
    for index in (0..forward).rev() {
        let node = &graph.nodes[index];
        let reached = node.outputs.iter().flatten().any(|id| walk.has(*id));
        let needs: Vec<bool> = node.inputs.iter().map(|id| id.is_some_and(|id| depends[id.index()])).collect();
        if !reached || !needs.contains(&true) {
            continue;
        }
        let outputs = node.outputs.clone();
        let inputs = node.inputs.clone();
        let path = node.path(graph);
        let stem = match &node.name {
            name if name.is_empty() => format!("{}/backward", node.op_type),
            name => format!("{name}/backward"),
        };
        let op = resolve(graph, node)?;
        let mut dys = Vec::with_capacity(outputs.len());
        for id in outputs {
            dys.push(match id {
                Some(id) => walk.total(graph, facts, id)?,
                None => None,
            });
        }
        let mut cx = GradCx::new(Builder { graph, facts, stem }, index, dys, needs.clone());
        op.gradient(&mut cx).map_err(|e| e.at(&path))?;
        let dxs = cx.finish();
        for ((id, dx), need) in inputs.into_iter().zip(dxs).zip(needs) {
            match (id, dx) {
                (Some(id), Some(dx)) if need => walk.add(id, dx),
                (Some(_), None) if need => stopped.push(path.clone()),
                _ => {}
            }
        }
    }
    let mut gradients = Vec::with_capacity(wrt.len());
    for &id in wrt {
        if !walk.has(id) {
            return Err(unreached(graph, facts, loss, id, forward, stopped));
        }
        gradients.push(walk.finish(graph, facts, id)?);
    }
    Ok(gradients)
}

/// Why `id` has no gradient: nodes on its paths to the loss give integers, or pass none (`stopped`).
fn unreached(
    graph: &Graph,
    facts: &Facts,
    loss: ValueId,
    id: ValueId,
    forward: usize,
    mut stopped: Vec<String>,
) -> Error {
    let depends = dependents(graph, facts, &[id]);
    let mut needed = vec![false; graph.value_count()];
    needed[loss.index()] = true;
    for node in graph.nodes[..forward].iter().rev() {
        if node.outputs.iter().flatten().any(|id| needed[id.index()]) {
            node.inputs.iter().flatten().for_each(|id| needed[id.index()] = true);
        }
    }
    for node in &graph.nodes[..forward] {
        let ends = |id: &&ValueId| needed[id.index()] && !depends[id.index()];
        if node.inputs.iter().flatten().any(|id| depends[id.index()])
            && let Some(ty) = node.outputs.iter().flatten().find(ends).and_then(|id| facts.ty(*id))
        {
            stopped.push(format!("{}, which gives {}", node.path(graph), ty.dtype));
        }
    }
    let error = err!(Gradient, "the loss \"{}\" does not depend on \"{}\"", graph.name_of(loss), graph.name_of(id));
    match stopped.as_slice() {
        [] => error,
        _ => error.found(format!("paths that no gradient passes: {}", stopped.join("; "))),
    }
}

fn check_loss(graph: &Graph, facts: &Facts, loss: ValueId) -> Result<()> {
    let name = graph.name_of(loss);
    let Some(ty) = facts.ty(loss) else {
        bail!(Gradient, "the type of the loss \"{name}\" is not known");
    };
    if !ty.dtype.is_float() {
        return Err(err!(Gradient, "the loss \"{name}\" is not floating point").found(ty));
    }
    let elements = ty.shape.as_deref().and_then(known_shape).map(|s| s.iter().product::<usize>());
    if elements != Some(1) {
        return Err(err!(Gradient, "the loss \"{name}\" is not a scalar").expected("one element").found(ty));
    }
    Ok(())
}

/// Which values depend on one of `wrt` through floating values.
fn dependents(graph: &Graph, facts: &Facts, wrt: &[ValueId]) -> Vec<bool> {
    let mut depends = vec![false; graph.value_count()];
    for id in wrt {
        depends[id.index()] = true;
    }
    for node in &graph.nodes {
        if node.inputs.iter().flatten().any(|id| depends[id.index()]) {
            for &id in node.outputs.iter().flatten() {
                depends[id.index()] = facts.ty(id).is_none_or(|ty| ty.dtype.is_float());
            }
        }
    }
    depends
}

/// The gradient of the loss by itself: a constant one, named as ONNX Runtime names it.
fn seed(graph: &mut Graph, facts: &mut Facts, loss: ValueId) -> Result<ValueId> {
    let ty = facts.ty(loss).cloned().expect("check_loss saw it");
    let shape = ty.shape.as_deref().and_then(known_shape).unwrap_or_default();
    let one = Tensor::from_f64s(ty.dtype, &shape, &[1.0])?;
    let name = format!("{}_grad", graph.name_of(loss));
    let id = graph.fresh_value(&name, Some(ValueType::Tensor(ty)));
    let one = std::sync::Arc::new(one);
    graph.initializers.push((id, one.clone()));
    facts.set_constant(id, one);
    Ok(id)
}

/// The partial gradients gathered so far, by value.
struct Walk {
    partials: Vec<Vec<ValueId>>,
}

impl Walk {
    fn has(&self, id: ValueId) -> bool {
        self.partials.get(id.index()).is_some_and(|p| !p.is_empty())
    }

    fn add(&mut self, id: ValueId, dx: ValueId) {
        // Rules may make values (hidden outputs) that were not there when the walk began.
        if self.partials.len() <= id.index() {
            self.partials.resize(id.index() + 1, Vec::new());
        }
        self.partials[id.index()].push(dx);
    }

    /// The whole gradient of a value: the sum of its partials.
    fn total(&mut self, graph: &mut Graph, facts: &mut Facts, id: ValueId) -> Result<Option<ValueId>> {
        let Some(partials) = self.partials.get(id.index()) else { return Ok(None) };
        let total = match partials.as_slice() {
            [] => return Ok(None),
            [one] => *one,
            many => {
                let many = many.to_vec();
                let stem = format!("{}_grad/accumulate", graph.name_of(id));
                Builder { graph, facts, stem }.op("Sum", &many)?
            }
        };
        self.partials[id.index()] = vec![total];
        Ok(Some(total))
    }

    /// The gradient that a caller asked for, which [`Self::has`] one, under its name.
    fn finish(&mut self, graph: &mut Graph, facts: &mut Facts, id: ValueId) -> Result<ValueId> {
        let name = graph.name_of(id).to_owned();
        let total = self.total(graph, facts, id)?;
        let total = total.ok_or_else(|| err!(Gradient, "\"{name}\" has no gradient"))?;
        let (dx, x) = (facts.ty(total), facts.ty(id));
        if let (Some(dx), Some(x)) = (dx, x)
            && let (Some(a), Some(b)) =
                (dx.shape.as_deref().and_then(known_shape), x.shape.as_deref().and_then(known_shape))
            && a != b
        {
            return Err(err!(Gradient, "the gradient of \"{name}\" has a wrong shape")
                .expected(show_dims(&b))
                .found(show_dims(&a)));
        }
        let wanted = format!("{name}_grad");
        // A gradient that is a constant or belongs to two values gets a node of its own.
        let shared = graph.nodes.iter().all(|n| !n.outputs.contains(&Some(total)))
            || graph.name_of(total).ends_with("_grad")
            || graph.find(&wanted).is_some();
        let own = if shared { Builder { graph, facts, stem: wanted.clone() }.op("Identity", &[total])? } else { total };
        if graph.find(&wanted).is_none() {
            graph.rename(own, &wanted)?;
        }
        Ok(own)
    }
}
