//! Bytes → [`CheckpointState`].

use super::schema::{self, Checkpoint};
use super::{CheckpointState, OptimizerState, Parameter, ParameterState, Property};
use crate::error::{Error, Kind, Result, bail, err};
use crate::tensor::{DType, Tensor};
use flatbuffers::{ForwardsUOffset as Ref, Vector};
use std::collections::{BTreeMap, BTreeSet};

type Tensors<'a> = Vector<'a, Ref<schema::Tensor<'a>>>;

/// Where the bytes of tensors lie that are not in the checkpoint itself.
pub(super) trait ExternalData {
    /// A tensor whose bytes begin at `offset`. Allocates no more than there is.
    fn tensor(&self, dtype: DType, shape: &[usize], offset: u64) -> Result<Tensor>;
}

/// Reads a checkpoint; `external` holds the data file's tensors, if there is one.
pub(super) fn read(bytes: &[u8], external: Option<&dyn ExternalData>) -> Result<CheckpointState> {
    let root = Checkpoint::parse(bytes)?;
    let version = root.version().unwrap_or(0);
    if !(1..=schema::VERSION).contains(&version) {
        let expected = format!("1 or {}", schema::VERSION);
        return Err(err!(Unsupported, "checkpoint version").expected(expected).found(version));
    }
    let outside = root.module_state().and_then(|m| m.has_external_data()).unwrap_or(false);
    if outside && external.is_none() {
        bail!(
            Unsupported,
            "this checkpoint keeps its tensors in a separate .data file, which bytes alone do not reach: load it by its path"
        );
    }
    let external = external.filter(|_| outside);
    let mut state = CheckpointState::default();
    if let Some(module) = root.module_state() {
        state.parameters = parameters(module, external)?;
    }
    if let Some(groups) = root.optimizer_groups() {
        if groups.len() > 1 {
            return Err(err!(Unsupported, "several optimizer groups in one checkpoint")
                .expected(1)
                .found(groups.len()));
        }
        state.optimizer = groups.iter().next().map(|group| optimizer(group, external)).transpose()?;
    }
    if let Some(bag) = root.property_bag() {
        state.properties = properties(bag)?;
    }
    Ok(state)
}

fn parameters(module: schema::ModuleState, external: Option<&dyn ExternalData>) -> Result<Vec<Parameter>> {
    let (Some(trainable), Some(frozen)) = (module.requires_grad_params(), module.frozen_params()) else {
        bail!(Checkpoint, "the checkpoint lacks the list of trainable or of frozen parameters");
    };
    let nominal = module.is_nominal_state().unwrap_or(false);
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for (tensors, requires_grad) in [(trainable, true), (frozen, false)] {
        for tensor in tensors {
            let name = name_of("parameter", tensor.name())?;
            let place = format!("parameter \"{name}\"");
            if !seen.insert(name.clone()) {
                return Err(err!(Checkpoint, "the name is in the checkpoint twice").at(place));
            }
            let dtype = dtype_of(tensor).map_err(|e| e.at(&place))?;
            let value = match nominal {
                true => no_data(tensor).map(|()| None),
                false => tensor_of(tensor, dtype, external).map(Some),
            };
            let value = value.map_err(|e| e.at(place))?;
            all.push(Parameter { name, dtype, value, requires_grad });
        }
    }
    Ok(all)
}

fn no_data(tensor: schema::Tensor) -> Result<()> {
    if tensor.raw_data().is_some_and(|data| !data.is_empty()) {
        bail!(Checkpoint, "a nominal checkpoint names parameters without data, but this one has some");
    }
    Ok(())
}

fn optimizer(group: schema::OptimizerGroup, external: Option<&dyn ExternalData>) -> Result<OptimizerState> {
    let group_name = name_of("optimizer group", group.group_name())?;
    let mut seen = BTreeSet::new();
    let mut states = Vec::new();
    for state in group.optimizer_states().into_iter().flatten() {
        let param_name = name_of("optimizer state", state.param_name())?;
        let place = format!("optimizer state of \"{param_name}\"");
        if !seen.insert(param_name.clone()) {
            return Err(err!(Checkpoint, "the state is in the checkpoint twice").at(place));
        }
        let momentums = momentums(state.momentums(), external).map_err(|e| e.at(place))?;
        states.push(ParameterState { param_name, momentums });
    }
    let initial_learning_rate = group.initial_learning_rate().unwrap_or(0.0);
    Ok(OptimizerState { group_name, step: group.step().unwrap_or(0), initial_learning_rate, states })
}

fn momentums(tensors: Option<Tensors>, external: Option<&dyn ExternalData>) -> Result<Vec<(String, Tensor)>> {
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for tensor in tensors.into_iter().flatten() {
        let name = name_of("momentum", tensor.name())?;
        if !seen.insert(name.clone()) {
            bail!(Checkpoint, "momentum \"{name}\" is there twice");
        }
        let named = |e: Error| Error::new(e.kind(), format!("momentum \"{name}\": {e}"));
        let value = dtype_of(tensor).and_then(|dtype| tensor_of(tensor, dtype, external)).map_err(named)?;
        all.push((name, value));
    }
    Ok(all)
}

fn properties(bag: schema::PropertyBag) -> Result<BTreeMap<String, Property>> {
    let mut all = BTreeMap::new();
    let mut add = |name: Option<&str>, value: Property| {
        let name = name_of("property", name)?;
        if all.contains_key(&name) {
            return Err(err!(Checkpoint, "property \"{name}\" is in the checkpoint twice"));
        }
        all.insert(name, value);
        Ok(())
    };
    for p in bag.ints().into_iter().flatten() {
        add(p.name(), Property::Int(p.value().unwrap_or(0)))?;
    }
    for p in bag.floats().into_iter().flatten() {
        add(p.name(), Property::Float(p.value().unwrap_or(0.0)))?;
    }
    for p in bag.strings().into_iter().flatten() {
        let value = p.value().ok_or_else(|| err!(Checkpoint, "a string property without a value"))?;
        add(p.name(), Property::String(value.to_string()))?;
    }
    Ok(all)
}

/// A name that must be there. A null entry of a list is a table without fields: no name.
fn name_of(what: &str, name: Option<&str>) -> Result<String> {
    match name {
        Some(name) if !name.is_empty() => Ok(name.to_string()),
        _ => Err(err!(Checkpoint, "the checkpoint holds a {what} without a name")),
    }
}

fn dtype_of(tensor: schema::Tensor) -> Result<DType> {
    DType::from_onnx(tensor.data_type().unwrap_or(0)).map_err(|e| match e.kind() {
        Kind::Load => e.with_kind(Kind::Checkpoint),
        _ => e,
    })
}

fn tensor_of(tensor: schema::Tensor, dtype: DType, external: Option<&dyn ExternalData>) -> Result<Tensor> {
    let dims = tensor.dims().into_iter().flatten();
    let shape = dims
        .map(|d| usize::try_from(d).map_err(|_| err!(Checkpoint, "a dimension that is no size").found(d)))
        .collect::<Result<Vec<_>>>()?;
    let offset = tensor.external_data_offset().unwrap_or(-1);
    let read = match (u64::try_from(offset), tensor.raw_data(), external) {
        (Ok(offset), _, Some(external)) => external.tensor(dtype, &shape, offset)?,
        (Ok(_), _, None) => bail!(Checkpoint, "the data is in a .data file, but the checkpoint says that it has none"),
        (Err(_), Some(data), _) => {
            Tensor::from_bytes(dtype, &shape, data.bytes()).map_err(|e| e.with_kind(Kind::Checkpoint))?
        }
        (Err(_), None, _) => bail!(Checkpoint, "no data"),
    };
    // A bool that is neither 0 nor 1 would make kernels disagree about it.
    if dtype == DType::Bool
        && let Some(byte) = read.bytes().iter().find(|&&b| b > 1)
    {
        return Err(err!(Checkpoint, "a bool element").expected("0 or 1").found(byte));
    }
    Ok(read)
}
