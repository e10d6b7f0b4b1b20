//! The tables of ORT's checkpoint flatbuffer: field names, slots and types, once, for the reader
//! and the writer.
//!
//! A table's n-th field of ORT's schema lives in vtable slot `4 + 2 * n`. Every field may be
//! absent. A table can only be had from [`Checkpoint::parse`], which verifies all of it first.

use crate::error::{Error, Kind, Result, err};
use flatbuffers::{
    Follow, ForwardsUOffset as Ref, InvalidFlatbuffer, Table, VOffsetT, Vector, Verifiable, Verifier, VerifierOptions,
};
use std::marker::PhantomData;

/// The four bytes at offset 4 of every checkpoint file.
pub(super) const IDENTIFIER: &str = "ODTC";

/// The version that is written; 1 has the same layout without the nominal flag.
pub(super) const VERSION: i32 = 2;

macro_rules! tables {
    ($a:lifetime: $($(#[$doc:meta])* $table:ident { $($field:ident $slot_name:ident = $slot:literal: $t:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $table<$a>(Table<$a>);

        impl<$a> $table<$a> {
            $(
                #[allow(dead_code, reason = "some fields are only read")]
                pub(super) const $slot_name: VOffsetT = $slot;

                pub(super) fn $field(&self) -> Option<<$t as Follow<$a>>::Inner> {
                    // Safety: `Checkpoint::parse` verified this field as a `$t` before any table
                    // was handed out.
                    unsafe { self.0.get::<$t>($slot, None) }
                }
            )*
        }

        impl<$a> Follow<$a> for $table<$a> {
            type Inner = Self;

            unsafe fn follow(buffer: &$a [u8], at: usize) -> Self {
                // Safety: the caller's promise, that a table is at `at`, is the one asked for.
                Self(unsafe { Table::new(buffer, at) })
            }
        }

        impl<$a> Verifiable for $table<$a> {
            fn run_verifier(v: &mut Verifier, at: usize) -> Result<(), InvalidFlatbuffer> {
                v.visit_table(at)?$(.visit_field::<$t>(stringify!($field), $slot, false)?)*.finish();
                Ok(())
            }
        }
    )*};
}

tables! { 'a:
    /// A named tensor. `data_type` is ONNX's number; `external_data_offset` is -1 (its default)
    /// unless the bytes are in the data file.
    Tensor {
        name NAME = 4: Ref<&'a str>,
        dims DIMS = 8: Ref<Dims<'a>>,
        data_type DATA_TYPE = 10: i32,
        raw_data RAW_DATA = 12: Ref<Vector<'a, u8>>,
        external_data_offset EXTERNAL_DATA_OFFSET = 16: i64,
    }
    /// The parameters, trainable ones apart from frozen ones.
    ModuleState {
        requires_grad_params REQUIRES_GRAD_PARAMS = 4: Ref<Vector<'a, Ref<Tensor<'a>>>>,
        frozen_params FROZEN_PARAMS = 6: Ref<Vector<'a, Ref<Tensor<'a>>>>,
        is_nominal_state IS_NOMINAL_STATE = 8: bool,
        has_external_data HAS_EXTERNAL_DATA = 10: bool,
    }
    /// What the optimizer remembers of one parameter.
    ParameterOptimizerState {
        param_name PARAM_NAME = 4: Ref<&'a str>,
        momentums MOMENTUMS = 6: Ref<Vector<'a, Ref<Tensor<'a>>>>,
    }
    /// One optimizer.
    OptimizerGroup {
        group_name GROUP_NAME = 4: Ref<&'a str>,
        step STEP = 6: i64,
        initial_learning_rate INITIAL_LEARNING_RATE = 8: f32,
        optimizer_states OPTIMIZER_STATES = 10: Ref<Vector<'a, Ref<ParameterOptimizerState<'a>>>>,
    }
    /// A property of the user.
    IntProperty {
        name NAME = 4: Ref<&'a str>,
        value VALUE = 6: i64,
    }
    /// A property of the user.
    FloatProperty {
        name NAME = 4: Ref<&'a str>,
        value VALUE = 6: f32,
    }
    /// A property of the user.
    StringProperty {
        name NAME = 4: Ref<&'a str>,
        value VALUE = 6: Ref<&'a str>,
    }
    /// The user's properties by type.
    PropertyBag {
        ints INTS = 4: Ref<Vector<'a, Ref<IntProperty<'a>>>>,
        floats FLOATS = 6: Ref<Vector<'a, Ref<FloatProperty<'a>>>>,
        strings STRINGS = 8: Ref<Vector<'a, Ref<StringProperty<'a>>>>,
    }
    /// The root.
    Checkpoint {
        version VERSION_SLOT = 4: i32,
        module_state MODULE_STATE = 6: Ref<ModuleState<'a>>,
        optimizer_groups OPTIMIZER_GROUPS = 8: Ref<Vector<'a, Ref<OptimizerGroup<'a>>>>,
        property_bag PROPERTY_BAG = 10: Ref<PropertyBag<'a>>,
    }
}

/// A vector of `int64` that, when empty, need not be aligned: the builder of ORT leaves it so.
pub(super) struct Dims<'a>(PhantomData<&'a [i64]>);

impl<'a> Follow<'a> for Dims<'a> {
    type Inner = Vector<'a, i64>;

    unsafe fn follow(buffer: &'a [u8], at: usize) -> Self::Inner {
        // Safety: the caller's promise, that such a vector is at `at`; no element is read from an
        // empty one.
        unsafe { Vector::follow(buffer, at) }
    }
}

impl Verifiable for Dims<'_> {
    fn run_verifier(v: &mut Verifier, at: usize) -> Result<(), InvalidFlatbuffer> {
        if v.get_uoffset(at)? == 0 { Ok(()) } else { Vector::<i64>::run_verifier(v, at) }
    }
}

impl<'a> Checkpoint<'a> {
    /// The root table of `bytes`, with everything that hangs on it verified: offsets, lengths,
    /// alignment, UTF-8.
    ///
    /// No writer shares parts between tables other than vtables, which are smaller than their
    /// tables; so what can be reached is at most twice the file. Hostile bytes that point at one
    /// part many times are refused by that limit: what the reader allocates stays near the size
    /// of the file.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self> {
        if bytes.get(4..8) != Some(IDENTIFIER.as_bytes()) {
            let found = match bytes.get(4..8) {
                Some(id) => format!("\"{}\"", id.escape_ascii()),
                None => format!("{} bytes", bytes.len()),
            };
            let expected = format!("the identifier \"{IDENTIFIER}\" at offset 4");
            return Err(err!(Load, "not a checkpoint file").expected(expected).found(found));
        }
        let max_apparent_size = bytes.len().saturating_mul(2).saturating_add(1024).min(usize::MAX / 2);
        let options = VerifierOptions { max_depth: 8, max_apparent_size, ..VerifierOptions::default() };
        flatbuffers::root_with_opts::<Checkpoint<'a>>(&options, bytes)
            .map_err(|e| Error::new(Kind::Checkpoint, "the checkpoint is damaged").found(first_line(&e.to_string())))
    }
}

/// The verifier adds a multi-line trace; its first line says what is wrong.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim_end_matches('.').to_string()
}
