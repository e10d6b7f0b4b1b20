//! Type-and-shape inference: one node, or a whole graph.

use super::{Facts, Operator, resolve};
use crate::error::{Result, bail, err};
use crate::graph::{Graph, Node, TensorType, ValueId, ValueType};
use crate::tensor::{DType, Dim, Tensor, show_dims};
use std::sync::Arc;

/// What an operator sees while it infers: its inputs' types, and constants where they are known.
pub struct InferCx<'a> {
    graph: &'a Graph,
    node: &'a Node,
    facts: &'a Facts,
    names: &'a dyn Fn(usize) -> String,
    outputs: Vec<Option<TensorType>>,
    dims: Vec<Option<Vec<Dim>>>,
    /// An input's rank was asked for and is not known.
    rank_missing: std::cell::Cell<bool>,
}

impl InferCx<'_> {
    /// Number of inputs, left-out ones in the middle included.
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

    fn ty(&self, i: usize) -> Result<&TensorType> {
        let Some(id) = self.node.inputs.get(i).copied().flatten() else {
            bail!(Graph, "input {i} is required and missing");
        };
        match self.facts.ty(id) {
            Some(ty) => Ok(ty),
            None => {
                self.rank_missing.set(true);
                Err(err!(Shape, "the type of input {i} is not known"))
            }
        }
    }

    /// Dtype of input `i`.
    pub fn dtype(&self, i: usize) -> Result<DType> {
        Ok(self.ty(i)?.dtype)
    }

    /// Shape of input `i`. If its rank is unknown the whole inference of the node is put off.
    pub fn shape(&self, i: usize) -> Result<Vec<Dim>> {
        match &self.ty(i)?.shape {
            Some(shape) => Ok(shape.clone()),
            None => {
                self.rank_missing.set(true);
                Err(err!(Shape, "the rank of input {i} is not known"))
            }
        }
    }

    /// The tensor that input `i` is, if it is a constant.
    pub fn constant(&self, i: usize) -> Option<&Arc<Tensor>> {
        self.facts.constant(self.node.inputs.get(i).copied().flatten()?)
    }

    /// The integers that input `i` holds, if it is a constant.
    pub fn ints(&self, i: usize) -> Option<Vec<i64>> {
        self.constant(i)?.to_i64s()
    }

    /// The elements of the integer input `i` as dimensions, some perhaps symbols.
    pub fn dims(&self, i: usize) -> Option<Vec<Dim>> {
        self.facts.dims(self.node.inputs.get(i).copied().flatten()?)
    }

    /// A dimension of output `o` that cannot be told yet.
    pub fn unknown(&self, o: usize, axis: usize) -> Dim {
        Dim::symbol(format!("{}.{axis}", (self.names)(o)))
    }

    /// The shape that the graph declares for output `o`, for an operator whose inputs do not tell it
    /// (the gradients of pooling). Symbols whose size some other value of the graph shows are
    /// replaced by it: equal names mean equal sizes.
    pub fn declared(&self, o: usize) -> Option<Vec<Dim>> {
        let id = self.node.outputs.get(o).copied().flatten()?;
        let shape = self.graph.tensor_type(id)?.shape.as_ref()?;
        Some(shape.iter().map(|dim| self.size_of(dim).map_or_else(|| dim.clone(), Dim::Known)).collect())
    }

    /// The size of a dimension, if it or a value that declares the same symbol is known.
    fn size_of(&self, dim: &Dim) -> Option<usize> {
        dim.known().or_else(|| {
            (0..self.graph.value_count()).map(|i| ValueId(i as u32)).find_map(|id| {
                let axis = self.graph.tensor_type(id)?.shape.as_ref()?.iter().position(|d| d == dim)?;
                self.facts.ty(id)?.shape.as_ref()?.get(axis)?.known()
            })
        })
    }

    /// Sets the type of output `o`. Outputs that are not wanted may be set too.
    pub fn set(&mut self, o: usize, dtype: DType, shape: impl Into<Vec<Dim>>) {
        if o < self.outputs.len() {
            self.outputs[o] = Some(TensorType::new(dtype, shape));
        }
    }

    /// Says what the integer output `o` holds.
    pub fn set_dims(&mut self, o: usize, dims: Vec<Dim>) {
        if o < self.dims.len() {
            self.dims[o] = Some(dims);
        }
    }

    /// Fails unless inputs `a` and `b` have one dtype.
    pub fn same_dtype(&self, a: usize, b: usize) -> Result<DType> {
        let (want, found) = (self.dtype(a)?, self.dtype(b)?);
        if want != found {
            return Err(err!(Shape, "inputs {a} and {b} differ in dtype").expected(want).found(found));
        }
        Ok(want)
    }

    /// Fails unless input `i` is of a floating dtype.
    pub fn float(&self, i: usize) -> Result<DType> {
        let dtype = self.dtype(i)?;
        if !dtype.is_float() {
            return Err(err!(Shape, "input {i} must be floating point").expected("a float dtype").found(dtype));
        }
        Ok(dtype)
    }

    /// Fails unless input `i` is int32 or int64.
    pub fn index(&self, i: usize) -> Result<DType> {
        let dtype = self.dtype(i)?;
        if !matches!(dtype, DType::I32 | DType::I64) {
            return Err(err!(Shape, "input {i} must hold indices").expected("int32 or int64").found(dtype));
        }
        Ok(dtype)
    }

    /// Fails if input `i` cannot be of shape `want` (two different symbols may be equal).
    pub fn expect_shape(&self, i: usize, want: &[Dim]) -> Result<()> {
        let found = self.shape(i)?;
        let differ = |(a, b): (&Dim, &Dim)| matches!((a, b), (Dim::Known(a), Dim::Known(b)) if a != b);
        if found.len() != want.len() || found.iter().zip(want).any(differ) {
            return Err(err!(Shape, "input {i} has the wrong shape")
                .expected(show_dims(want))
                .found(show_dims(&found)));
        }
        Ok(())
    }

    /// Fails unless input `i` is one number (a scalar, or of shape `[1]`, …).
    pub fn one_element(&self, i: usize) -> Result<()> {
        let found = self.shape(i)?;
        if found.iter().any(|d| d.known().is_some_and(|n| n != 1)) {
            return Err(err!(Shape, "input {i} must be one number").expected("one element").found(show_dims(&found)));
        }
        Ok(())
    }

    /// The common shape of the inputs by NumPy's broadcasting.
    pub fn broadcast(&self, inputs: &[usize]) -> Result<Vec<Dim>> {
        let shapes = inputs.iter().map(|&i| self.shape(i)).collect::<Result<Vec<_>>>()?;
        broadcast(&shapes)
    }
}

/// The common shape of several by NumPy's broadcasting. Two different symbols are taken to be the
/// first of them: if they are not equal at run time, planning fails.
pub fn broadcast(shapes: &[Vec<Dim>]) -> Result<Vec<Dim>> {
    let rank = shapes.iter().map(Vec::len).max().unwrap_or(0);
    let mut out = vec![Dim::Known(1); rank];
    for shape in shapes {
        for (o, d) in out[rank - shape.len()..].iter_mut().zip(shape) {
            match (&*o, d) {
                (_, d) if d.is(1) => {}
                (o_, _) if o_.is(1) => *o = d.clone(),
                (Dim::Known(a), Dim::Known(b)) if a != b => {
                    let all: Vec<_> = shapes.iter().map(|s| show_dims(s)).collect();
                    bail!(Shape, "shapes {} do not broadcast: {a} against {b}", all.join(" and "));
                }
                // A known size wins over a symbol: if the symbol turns out to be 1 it repeats.
                (Dim::Symbol(_), Dim::Known(_)) => *o = d.clone(),
                _ => {}
            }
        }
    }
    Ok(out)
}

/// `axis` counted from the front. Fails unless it is in `-rank..rank`.
pub fn normalize_axis(axis: i64, rank: usize) -> Result<usize> {
    let r = rank as i64;
    if !(-r..r).contains(&axis) {
        return Err(err!(Shape, "axis out of range").expected(format!("-{rank}..{rank}")).found(axis));
    }
    Ok(if axis < 0 { axis + r } else { axis } as usize)
}

/// Several axes counted from the front, ascending. Fails if one repeats.
pub fn normalize_axes(axes: &[i64], rank: usize) -> Result<Vec<usize>> {
    let mut out = axes.iter().map(|&a| normalize_axis(a, rank)).collect::<Result<Vec<_>>>()?;
    out.sort_unstable();
    if out.windows(2).any(|w| w[0] == w[1]) {
        bail!(Shape, "axes {axes:?} name one axis twice");
    }
    Ok(out)
}

/// Infers the outputs of one node into `facts`.
pub fn infer_node(graph: &Graph, node: &Node, op: &dyn Operator, facts: &mut Facts) -> Result<()> {
    let names = |o: usize| node.outputs[o].map_or_else(String::new, |id| graph.name_of(id).to_owned());
    let count = node.outputs.len();
    let mut cx = InferCx {
        graph,
        node,
        facts,
        names: &names,
        outputs: vec![None; count],
        dims: vec![None; count],
        rank_missing: false.into(),
    };
    let result = op.infer(&mut cx);
    let (outputs, dims, missing) = (cx.outputs, cx.dims, cx.rank_missing.get());
    match result {
        Err(_) if missing => return Ok(()), // declared types, if any, stand
        Err(e) => return Err(e.at(node.path(graph))),
        Ok(()) => {}
    }
    for ((id, ty), dims) in node.outputs.iter().zip(outputs).zip(dims) {
        if let (Some(id), Some(ty)) = (*id, ty) {
            let ty = match facts.ty(id) {
                Some(declared) => super::unify(declared, ty),
                None => ty,
            };
            facts.set_type(id, ty);
            if let Some(dims) = dims {
                facts.set_dims(id, dims);
            }
        }
    }
    Ok(())
}

/// Infers a whole graph, writes the types into it and gives what else is known. Operators that
/// ontrain does not have are an error here.
pub fn infer_graph(graph: &mut Graph) -> Result<Facts> {
    let mut facts = Facts::of(graph);
    for node in &graph.nodes {
        let op = resolve(graph, node)?;
        infer_node(graph, node, &*op, &mut facts)?;
    }
    for i in 0..graph.value_count() {
        let id = ValueId(i as u32);
        if let Some(ty) = facts.ty(id) {
            graph.value_mut(id).ty = Some(ValueType::Tensor(ty.clone()));
        }
    }
    Ok(facts)
}
