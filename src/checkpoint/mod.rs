//! Checkpoints: named parameters, the optimizer's memory and the user's properties, as the one
//! file that ONNX Runtime's On-Device Training writes and reads.
//!
//! The file is ORT's `ODTC` flatbuffer, version 2 (ORT 1.18 and 1.19). ORT 1.19.2 loads what
//! [`CheckpointState::to_bytes`] writes, and [`CheckpointState::from_bytes`] reads what ORT
//! writes; version 1 (ORT 1.16 and 1.17) is read too. ORT itself refuses float16 and bfloat16
//! tensors in a checkpoint; ontrain keeps them.
//!
//! | file | holds |
//! | --- | --- |
//! | fresh, from artifact generation | parameters in the order given |
//! | nominal | names and dtypes, no shapes, no data |
//! | saved while training | parameters by name, optimizer state, properties |

mod read;
mod schema;
mod write;

#[cfg(not(target_arch = "wasm32"))]
mod file;
#[cfg(test)]
mod tests;

#[cfg(not(target_arch = "wasm32"))]
pub use file::write_atomically;

use crate::error::{Result, err};
use crate::tensor::{DType, Tensor, show_dims};
use std::collections::BTreeMap;

/// A parameter of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name: the graph input of the training model that it feeds.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its value; `None` in a nominal state until it is filled.
    pub value: Option<Tensor>,
    /// Is it trained (`true`) or frozen?
    pub requires_grad: bool,
}

impl Parameter {
    /// A parameter with a value.
    pub fn new(name: impl Into<String>, value: Tensor, requires_grad: bool) -> Self {
        Self { name: name.into(), dtype: value.dtype(), value: Some(value), requires_grad }
    }
}

/// What an optimizer remembers between steps.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerState {
    /// ORT knows one group, [`OptimizerState::GROUP`].
    pub group_name: String,
    /// Optimizer steps taken.
    pub step: i64,
    /// The learning rate that the optimizer was made with.
    pub initial_learning_rate: f32,
    /// One entry per trainable parameter.
    pub states: Vec<ParameterState>,
}

impl OptimizerState {
    /// The name of the only group that ORT's optimizer looks for.
    pub const GROUP: &'static str = "group0";
}

/// What an optimizer remembers of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterState {
    /// The parameter.
    pub param_name: String,
    /// AdamW: `momentum0` and `momentum1`, the first and second moments. SGD: `momentum0`, as
    /// ORT writes it. Shaped as the parameter.
    pub momentums: Vec<(String, Tensor)>,
}

/// A value that the user keeps with a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub enum Property {
    /// A whole number.
    Int(i64),
    /// A number; the file keeps 32 bits.
    Float(f32),
    /// A text.
    String(String),
}

impl From<i64> for Property {
    fn from(value: i64) -> Self {
        Property::Int(value)
    }
}

impl From<f32> for Property {
    fn from(value: f32) -> Self {
        Property::Float(value)
    }
}

impl From<&str> for Property {
    fn from(value: &str) -> Self {
        Property::String(value.into())
    }
}

/// The state of a training: what a checkpoint file holds. Pure data on the host.
///
/// A state with an unfilled parameter is *nominal*: it knows the names and dtypes of a model's
/// parameters and gets the values one by one with [`set_parameter`](Self::set_parameter).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CheckpointState {
    parameters: Vec<Parameter>,
    /// The optimizer's memory; `None` before training.
    pub optimizer: Option<OptimizerState>,
    properties: BTreeMap<String, Property>,
}

impl CheckpointState {
    /// A state of these parameters, in this order. `Checkpoint` error if two share a name.
    pub fn new(parameters: Vec<Parameter>) -> Result<Self> {
        let mut names = std::collections::BTreeSet::new();
        if let Some(p) = parameters.iter().find(|p| !names.insert(p.name.as_str())) {
            return Err(err!(Checkpoint, "two parameters are named \"{}\"", p.name));
        }
        Ok(Self { parameters, ..Self::default() })
    }

    /// Reads a checkpoint file's bytes.
    ///
    /// Errors: `Load` if they are not a checkpoint; `Checkpoint` if it is damaged or contradicts
    /// itself (the parameter is named); `Unsupported` for another version, a dtype that ontrain
    /// lacks, several optimizer groups, or tensors that lie in a `.data` file of their own.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        read::read(bytes, None)
    }

    /// The bytes of the checkpoint file, with or without the optimizer's memory.
    ///
    /// Parameters are written trainable ones first, then frozen ones. A state that an optimizer
    /// has worked on is written by name, as ORT saves it; any other in its own order, as ORT
    /// generates it.
    ///
    /// Errors: `State` if only some parameters of a nominal state are filled; `Unsupported`
    /// beyond 2 GiB.
    pub fn to_bytes(&self, include_optimizer_state: bool) -> Result<Vec<u8>> {
        write::write(self, include_optimizer_state)
    }

    /// The parameters: those of a file in its order, trainable ones first.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The parameter of that name.
    pub fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|p| p.name == name)
    }

    /// The parameter of that name, to change.
    pub fn parameter_mut(&mut self, name: &str) -> Option<&mut Parameter> {
        self.parameters.iter_mut().find(|p| p.name == name)
    }

    /// Replaces a parameter's value, or fills it in a nominal state.
    ///
    /// `Input` error if there is no such parameter, or if dtype or shape differ. An unfilled
    /// parameter has no shape yet; the module checks it.
    pub fn set_parameter(&mut self, name: &str, value: Tensor) -> Result<()> {
        let Some(parameter) = self.parameter_mut(name) else {
            return Err(err!(Input, "the checkpoint has no parameter named \"{name}\""));
        };
        let place = || format!("parameter \"{name}\"");
        if value.dtype() != parameter.dtype {
            return Err(err!(Input, "dtype differs").at(place()).expected(parameter.dtype).found(value.dtype()));
        }
        if let Some(old) = parameter.value.as_ref().filter(|old| old.shape() != value.shape()) {
            let (expected, found) = (show_dims(old.shape()), show_dims(value.shape()));
            return Err(err!(Input, "shape differs").at(place()).expected(expected).found(found));
        }
        parameter.value = Some(value);
        Ok(())
    }

    /// Is some parameter unfilled?
    pub fn is_nominal(&self) -> bool {
        self.parameters.iter().any(|p| p.value.is_none())
    }

    /// The names and dtypes alone: no values, optimizer state or properties.
    pub fn to_nominal(&self) -> Self {
        let parameters = self.parameters.iter().map(|p| Parameter { value: None, name: p.name.clone(), ..*p });
        Self { parameters: parameters.collect(), ..Self::default() }
    }

    /// Adds a property, or replaces the one of that name.
    pub fn add_property(&mut self, name: impl Into<String>, value: impl Into<Property>) {
        self.properties.insert(name.into(), value.into());
    }

    /// The property of that name.
    pub fn property(&self, name: &str) -> Option<&Property> {
        self.properties.get(name)
    }

    /// All properties.
    pub fn properties(&self) -> &BTreeMap<String, Property> {
        &self.properties
    }
}
