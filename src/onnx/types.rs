//! `TypeProto` ⇄ [`ValueType`].

use super::proto::tensor_shape_proto::{Dimension, dimension};
use super::proto::type_proto::{Sequence, Tensor, Value};
use super::proto::{TensorShapeProto, TypeProto, ValueInfoProto};
use crate::error::{Result, bail, err};
use crate::graph::{TensorType, ValueType};
use crate::tensor::{DType, Dim};
use std::collections::HashSet;

/// Reads types; knows the symbols of the model, so that it can make fresh ones.
pub(super) struct TypeReader {
    symbols: HashSet<String>,
    renamed: usize,
}

impl TypeReader {
    /// A reader that will not give a nameless dimension any of the names in `infos`.
    pub(super) fn new<'a>(infos: impl Iterator<Item = &'a ValueInfoProto>) -> Self {
        let mut symbols = HashSet::new();
        for info in infos {
            let dims = tensor_of(info).and_then(|t| t.shape.as_ref()).map_or(&[][..], |shape| &shape.dim);
            for dim in dims {
                if let Some(dimension::Value::DimParam(name)) = &dim.value {
                    symbols.insert(name.clone());
                }
            }
        }
        Self { symbols, renamed: 0 }
    }

    /// The declared type of a value; `None` if nothing is declared.
    pub(super) fn read(&mut self, info: &ValueInfoProto) -> Result<Option<ValueType>> {
        let other = match info.ty() {
            None => return Ok(None),
            Some(Value::TensorType(t)) if t.elem_type == 0 => return Ok(None),
            Some(Value::TensorType(t)) => return Ok(Some(ValueType::Tensor(self.tensor(&info.name, t)?))),
            Some(Value::SequenceType(s)) => match s.elem_type.as_deref().and_then(|t| t.value.as_ref()) {
                Some(Value::TensorType(t)) => return Ok(Some(ValueType::Sequence(DType::from_onnx(t.elem_type)?))),
                _ => "a sequence of something else than tensors",
            },
            Some(Value::MapType(_)) => "a map",
            Some(Value::OptionalType(_)) => "an optional",
            Some(Value::SparseTensorType(_)) => "a sparse tensor",
            Some(Value::OpaqueType(_)) => "an opaque type",
        };
        Err(err!(Unsupported, "values of this type").expected("a tensor or a sequence of tensors").found(other))
    }

    fn tensor(&mut self, name: &str, t: &Tensor) -> Result<TensorType> {
        let dtype = DType::from_onnx(t.elem_type)?;
        let Some(shape) = &t.shape else { return Ok(TensorType { dtype, shape: None }) };
        let dims: Result<Vec<Dim>> = shape.dim.iter().enumerate().map(|(axis, d)| self.dim(name, axis, d)).collect();
        Ok(TensorType::new(dtype, dims?))
    }

    fn dim(&mut self, name: &str, axis: usize, dim: &Dimension) -> Result<Dim> {
        match &dim.value {
            Some(dimension::Value::DimValue(n)) => match usize::try_from(*n) {
                Ok(n) => Ok(Dim::Known(n)),
                Err(_) => bail!(Shape, "dimension {axis} has the impossible size {n}"),
            },
            Some(dimension::Value::DimParam(symbol)) if !symbol.is_empty() => Ok(Dim::symbol(symbol)),
            _ => Ok(Dim::symbol(self.fresh(format!("{name}.{axis}")))),
        }
    }

    /// `stem`, with a number behind it if the model uses that.
    fn fresh(&mut self, stem: String) -> String {
        let mut name = stem.clone();
        while !self.symbols.insert(name.clone()) {
            self.renamed += 1;
            name = format!("{stem}_{}", self.renamed);
        }
        name
    }
}

impl ValueInfoProto {
    fn ty(&self) -> Option<&Value> {
        self.r#type.as_ref()?.value.as_ref()
    }
}

fn tensor_of(info: &ValueInfoProto) -> Option<&Tensor> {
    match info.ty() {
        Some(Value::TensorType(t)) => Some(t),
        _ => None,
    }
}

/// The declaration of a value.
pub(super) fn encode(name: &str, ty: Option<&ValueType>) -> ValueInfoProto {
    let tensor = |dtype: DType, dims: Option<&Vec<Dim>>| {
        let shape = dims.map(|dims| TensorShapeProto { dim: dims.iter().map(encode_dim).collect() });
        Value::TensorType(Tensor { elem_type: dtype.onnx(), shape })
    };
    let value = match ty {
        None => None,
        Some(ValueType::Tensor(t)) => Some(tensor(t.dtype, t.shape.as_ref())),
        Some(ValueType::Sequence(dtype)) => {
            let element = TypeProto { value: Some(tensor(*dtype, None)) };
            Some(Value::SequenceType(Box::new(Sequence { elem_type: Some(Box::new(element)) })))
        }
    };
    ValueInfoProto { name: name.into(), r#type: value.map(|value| TypeProto { value: Some(value) }) }
}

fn encode_dim(dim: &Dim) -> Dimension {
    let value = match dim {
        Dim::Known(n) => dimension::Value::DimValue(*n as i64),
        Dim::Symbol(symbol) => dimension::Value::DimParam(symbol.to_string()),
    };
    Dimension { value: Some(value) }
}
