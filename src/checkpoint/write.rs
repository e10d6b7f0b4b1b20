//! [`CheckpointState`] → bytes.
//!
//! Parts are built in the order in which ORT builds them, so that a file that ORT wrote comes out
//! with the same bytes.

use super::schema::{self, Checkpoint, ModuleState, OptimizerGroup, ParameterOptimizerState, PropertyBag};
use super::{CheckpointState, OptimizerState, Parameter, Property};
use crate::error::{Result, bail, err};
use crate::tensor::{DType, Tensor};
use flatbuffers::{FlatBufferBuilder, TableFinishedWIPOffset as Finished, VOffsetT, Vector, WIPOffset};
use std::collections::BTreeSet;

type Builder = FlatBufferBuilder<'static>;
type Offset = WIPOffset<Finished>;
type Offsets = WIPOffset<Vector<'static, flatbuffers::ForwardsUOffset<Finished>>>;

/// What a flatbuffer can hold at most.
const MAX_BYTES: usize = i32::MAX as usize;

/// Writes a checkpoint; see [`CheckpointState::to_bytes`].
pub(super) fn write(state: &CheckpointState, include_optimizer_state: bool) -> Result<Vec<u8>> {
    let optimizer = state.optimizer.as_ref().filter(|_| include_optimizer_state);
    check(state, optimizer)?;
    let Some(capacity) = upper_bound(state, optimizer).filter(|&n| n <= MAX_BYTES) else {
        bail!(Unsupported, "a checkpoint of more than 2 GiB in one file");
    };
    let mut b = Builder::with_capacity(capacity);
    let module = (!state.parameters.is_empty()).then(|| module_state(&mut b, state));
    let group = optimizer.map(|optimizer| optimizer_group(&mut b, optimizer));
    let bag = (!state.properties.is_empty()).then(|| property_bag(&mut b, state));
    // As ORT: no list before training, an empty one if the memory is left out.
    let groups = state.optimizer.as_ref().map(|_| b.create_vector(group.as_slice()));
    let root = table(&mut b, |b| {
        b.push_slot(Checkpoint::VERSION_SLOT, schema::VERSION, 0);
        put(b, Checkpoint::MODULE_STATE, module);
        put(b, Checkpoint::OPTIMIZER_GROUPS, groups);
        put(b, Checkpoint::PROPERTY_BAG, bag);
    });
    b.finish(root, Some(schema::IDENTIFIER));
    let (mut bytes, start) = b.collapse();
    bytes.drain(..start);
    Ok(bytes)
}

/// What may not be written: doubled names, half-filled nominal states.
fn check(state: &CheckpointState, optimizer: Option<&OptimizerState>) -> Result<()> {
    let mut names = BTreeSet::new();
    for p in &state.parameters {
        if !names.insert(&p.name) {
            bail!(Checkpoint, "two parameters are named \"{}\"", p.name);
        }
    }
    let Some(empty) = state.parameters.iter().find(|p| p.value.is_none()) else { return Ok(()) };
    if optimizer.is_some() || state.parameters.iter().any(|p| p.value.is_some()) {
        return Err(err!(State, "a nominal checkpoint cannot be saved before every parameter is filled")
            .at(format!("parameter \"{}\"", empty.name)));
    }
    Ok(())
}

/// Bytes that the file can take at most, or `None` if that overflows: what it holds, and for each
/// part its tables, vtables, lengths, padding.
fn upper_bound(state: &CheckpointState, optimizer: Option<&OptimizerState>) -> Option<usize> {
    const PER_PART: usize = 128;
    let tensor =
        |name: &str, t: Option<&Tensor>| PER_PART + name.len() + t.map_or(0, |t| t.bytes().len() + 8 * t.shape().len());
    let parameters = state.parameters.iter().map(|p| tensor(&p.name, p.value.as_ref()));
    let states = optimizer.into_iter().flat_map(|o| &o.states);
    let momentums = states.flat_map(|s| {
        std::iter::once(PER_PART + s.param_name.len()).chain(s.momentums.iter().map(|(name, t)| tensor(name, Some(t))))
    });
    let properties = state
        .properties
        .iter()
        .map(|(name, p)| PER_PART + name.len() + if let Property::String(text) = p { text.len() } else { 0 });
    let group = optimizer.map_or(0, |o| o.group_name.len());
    parameters.chain(momentums).chain(properties).chain([group]).try_fold(8 * PER_PART, usize::checked_add)
}

fn module_state(b: &mut Builder, state: &CheckpointState) -> Offset {
    let [trainable, frozen] = [true, false].map(|requires_grad| {
        let mut chosen: Vec<&Parameter> =
            state.parameters.iter().filter(|p| p.requires_grad == requires_grad).collect();
        if state.optimizer.is_some() {
            chosen.sort_by(|x, y| x.name.cmp(&y.name));
        }
        chosen.into_iter().map(|p| tensor(b, &p.name, p.dtype, p.value.as_ref())).collect::<Vec<_>>()
    });
    let trainable = b.create_vector(&trainable);
    let frozen = b.create_vector(&frozen);
    table(b, |b| {
        put(b, ModuleState::REQUIRES_GRAD_PARAMS, Some(trainable));
        put(b, ModuleState::FROZEN_PARAMS, Some(frozen));
        b.push_slot(ModuleState::IS_NOMINAL_STATE, state.is_nominal(), false);
    })
}

/// A tensor; without value it has a name and a dtype, no dims, no data.
fn tensor(b: &mut Builder, name: &str, dtype: DType, value: Option<&Tensor>) -> Offset {
    let name = b.create_string(name);
    let dims: Vec<i64> = value.map_or(&[][..], |t| t.shape()).iter().map(|&d| d as i64).collect();
    // ORT's older builder does not align what is empty; nor does this, to write the same bytes.
    let dims = if dims.is_empty() { b.create_vector::<u8>(&[]).value() } else { b.create_vector(&dims).value() };
    let data = b.create_vector(value.map_or(&[][..], |t| t.bytes()));
    table(b, |b| {
        put(b, schema::Tensor::NAME, Some(name));
        put(b, schema::Tensor::DIMS, Some(WIPOffset::<()>::new(dims)));
        b.push_slot(schema::Tensor::DATA_TYPE, dtype.onnx(), 0);
        put(b, schema::Tensor::RAW_DATA, Some(data));
    })
}

fn optimizer_group(b: &mut Builder, optimizer: &OptimizerState) -> Offset {
    let mut states: Vec<_> = optimizer.states.iter().collect();
    states.sort_by(|x, y| x.param_name.cmp(&y.param_name));
    let states: Vec<Offset> = states
        .into_iter()
        .map(|state| {
            let mut momentums: Vec<_> = state.momentums.iter().collect();
            momentums.sort_by(|x, y| x.0.cmp(&y.0));
            let momentums: Vec<Offset> =
                momentums.into_iter().map(|(name, t)| tensor(b, name, t.dtype(), Some(t))).collect();
            let param_name = b.create_string(&state.param_name);
            let momentums = b.create_vector(&momentums);
            table(b, |b| {
                put(b, ParameterOptimizerState::PARAM_NAME, Some(param_name));
                put(b, ParameterOptimizerState::MOMENTUMS, Some(momentums));
            })
        })
        .collect();
    let group_name = b.create_string(&optimizer.group_name);
    let states = b.create_vector(&states);
    table(b, |b| {
        put(b, OptimizerGroup::GROUP_NAME, Some(group_name));
        b.push_slot(OptimizerGroup::INITIAL_LEARNING_RATE, optimizer.initial_learning_rate, 0.0);
        b.push_slot(OptimizerGroup::STEP, optimizer.step, 0);
        put(b, OptimizerGroup::OPTIMIZER_STATES, Some(states));
    })
}

fn property_bag(b: &mut Builder, state: &CheckpointState) -> Offset {
    let (mut ints, mut floats, mut strings) = (Vec::new(), Vec::new(), Vec::new());
    // The three tables have the same two slots.
    const NAME: VOffsetT = schema::IntProperty::NAME;
    const VALUE: VOffsetT = schema::IntProperty::VALUE;
    for (name, property) in &state.properties {
        let name = b.create_string(name);
        match property {
            Property::Int(value) => ints.push(table(b, |b| {
                put(b, NAME, Some(name));
                b.push_slot(VALUE, *value, 0);
            })),
            Property::Float(value) => floats.push(table(b, |b| {
                put(b, NAME, Some(name));
                b.push_slot(VALUE, *value, 0.0);
            })),
            Property::String(value) => {
                let value = b.create_string(value);
                strings.push(table(b, |b| {
                    put(b, NAME, Some(name));
                    put(b, VALUE, Some(value));
                }));
            }
        }
    }
    let [ints, floats, strings]: [Offsets; 3] = [ints, floats, strings].map(|list| b.create_vector(&list));
    table(b, |b| {
        put(b, PropertyBag::INTS, Some(ints));
        put(b, PropertyBag::FLOATS, Some(floats));
        put(b, PropertyBag::STRINGS, Some(strings));
    })
}

fn table(b: &mut Builder, fields: impl FnOnce(&mut Builder)) -> Offset {
    let start = b.start_table();
    fields(b);
    WIPOffset::new(b.end_table(start).value())
}

fn put<T>(b: &mut Builder, slot: VOffsetT, part: Option<WIPOffset<T>>) {
    if let Some(part) = part {
        b.push_slot_always(slot, part);
    }
}
