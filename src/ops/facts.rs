//! What is known of a graph's values while types, gradients or kernels are worked out.

use crate::graph::{Graph, TensorType, ValueId, ValueType};
use crate::tensor::{Dim, Tensor};
use std::collections::HashMap;
use std::sync::Arc;

/// Types, constants and integer values (shapes being computed) by value.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    types: Vec<Option<TensorType>>,
    constants: HashMap<ValueId, Arc<Tensor>>,
    dims: HashMap<ValueId, Vec<Dim>>,
}

impl Facts {
    /// What a graph says of itself: declared types and initializers.
    pub fn of(graph: &Graph) -> Self {
        let mut facts = Self::default();
        for i in 0..graph.value_count() {
            let id = ValueId(i as u32);
            if let Some(ValueType::Tensor(ty)) = &graph.value(id).ty {
                facts.set_type(id, ty.clone());
            }
        }
        for (id, tensor) in &graph.initializers {
            if !graph.inputs.contains(id) {
                facts.set_constant(*id, tensor.clone());
            }
        }
        facts
    }

    /// The type of a value, if known.
    pub fn ty(&self, id: ValueId) -> Option<&TensorType> {
        self.types.get(id.index())?.as_ref()
    }

    /// Sets the type of a value.
    pub fn set_type(&mut self, id: ValueId, ty: TensorType) {
        if self.types.len() <= id.index() {
            self.types.resize(id.index() + 1, None);
        }
        self.types[id.index()] = Some(ty);
    }

    /// Forgets the type of a value.
    pub fn clear_type(&mut self, id: ValueId) {
        if let Some(ty) = self.types.get_mut(id.index()) {
            *ty = None;
        }
    }

    /// Forgets that a value is a constant (a graph input whose initializer is only a default).
    pub fn forget(&mut self, id: ValueId) {
        self.constants.remove(&id);
        self.dims.remove(&id);
    }

    /// The constant that a value is, if it is one.
    pub fn constant(&self, id: ValueId) -> Option<&Arc<Tensor>> {
        self.constants.get(&id)
    }

    /// Says that a value is a constant.
    pub fn set_constant(&mut self, id: ValueId, tensor: Arc<Tensor>) {
        self.set_type(id, TensorType::of(&tensor));
        self.constants.insert(id, tensor);
    }

    /// The elements of an integer tensor of rank 0 or 1, as dimensions, if they are known.
    pub fn dims(&self, id: ValueId) -> Option<Vec<Dim>> {
        if let Some(dims) = self.dims.get(&id) {
            return Some(dims.clone());
        }
        let tensor = self.constants.get(&id)?;
        if tensor.shape().len() > 1 || !tensor.dtype().is_int() {
            return None;
        }
        tensor.to_i64s()?.into_iter().map(|n| usize::try_from(n).ok().map(Dim::Known)).collect()
    }

    /// Says what an integer tensor holds.
    pub fn set_dims(&mut self, id: ValueId, dims: Vec<Dim>) {
        self.dims.insert(id, dims);
    }
}

/// What two descriptions of one type say together: known sizes win over symbols.
pub fn unify(declared: &TensorType, inferred: TensorType) -> TensorType {
    let (Some(a), Some(b)) = (&declared.shape, &inferred.shape) else {
        return TensorType { shape: inferred.shape.or_else(|| declared.shape.clone()), ..inferred };
    };
    if a.len() != b.len() {
        return inferred;
    }
    let pick = |(a, b): (&Dim, &Dim)| if b.known().is_some() { b.clone() } else { a.clone() };
    TensorType { dtype: inferred.dtype, shape: Some(a.iter().zip(b).map(pick).collect()) }
}
