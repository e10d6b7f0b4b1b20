//! The text of a compute shader under construction, and what one launch of it needs.
//!
//! Every kernel module turns a [`Step`](crate::kernel::Step) into [`Dispatch`]es with the help of a [`Shader`]: pure data
//! that knows no device, so that each text can be checked by naga in a unit test.
//!
//! Memory is bound as arrays of 32-bit words (`m0`, `m1`, …), or of `f16` where the device has them. Sizes, strides and
//! offsets are not part of the text but parameters in a uniform buffer (`P`), so that kernels that differ in nothing else
//! share a pipeline.

use super::layout::{Places, Slot, Storage, storage};
use crate::kernel::View;
use crate::tensor::DType;
use std::fmt::Write;

/// One launch of a shader.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Dispatch {
    /// The WGSL text: the key of its pipeline. The entry point is `main`.
    pub(super) source: String,
    /// What `P` holds.
    pub(super) params: Vec<u32>,
    /// The memories bound as `m0`, `m1`, …, and whether the shader writes them.
    pub(super) slots: Vec<(Slot, bool)>,
    /// Workgroups, along x and y.
    pub(super) groups: [u32; 2],
}

/// WGSL functions that texts share; a text gets those that it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Library {
    /// NaN, infinities, exact f16 and bf16 rounding, exp, log, tanh, erf, pow: f32.
    Math,
    /// 64-bit integers as `vec2<u32>` (low, high).
    Wide,
    /// Philox, and `uniform_at`. Needs [`Library::Wide`].
    Random,
}

impl Library {
    fn text(self) -> &'static str {
        match self {
            Library::Math => include_str!("math.wgsl"),
            Library::Wide => include_str!("wide.wgsl"),
            Library::Random => include_str!("random.wgsl"),
        }
    }
}

/// A shader under construction.
pub(super) struct Shader<'a> {
    pub(super) places: &'a Places,
    params: Vec<u32>,
    slots: Vec<(Slot, bool)>,
    libraries: Vec<Library>,
    /// Declarations of the kernel's own: functions, workgroup memory.
    head: String,
    /// The statements of `main`.
    body: String,
    guarded: bool,
    /// Memories that are arrays of vectors of 4 elements.
    quads: Vec<usize>,
}

/// A view bound to a shader.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    memory: usize,
    dtype: DType,
    storage: Storage,
    guarded: bool,
    /// Is its memory an array of vectors of 4 elements?
    quads: bool,
    /// Text of the position of the element at coordinate 0.
    pub(super) offset: String,
}

/// The WGSL type in which elements of a dtype are computed. 64-bit ones are pairs of words, low word first; float64 can only
/// be moved.
pub(super) fn value_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => "f32",
        DType::I8 | DType::I16 | DType::I32 => "i32",
        DType::U8 | DType::U16 | DType::U32 => "u32",
        DType::Bool => "bool",
        DType::I64 | DType::U64 | DType::F64 => "vec2<u32>",
    }
}

/// The text that reads parameter `at`.
fn param(at: usize) -> String {
    format!("P[{}u].{}", at / 4, ["x", "y", "z", "w"][at % 4])
}

impl<'a> Shader<'a> {
    pub(super) fn new(places: &'a Places) -> Self {
        Self {
            places,
            params: Vec::new(),
            slots: Vec::new(),
            libraries: Vec::new(),
            head: String::new(),
            body: String::new(),
            guarded: false,
            quads: Vec::new(),
        }
    }

    /// Adds a parameter; gives the text that reads it, of type `u32`.
    pub(super) fn param(&mut self, value: usize) -> String {
        let at = self.params.len();
        self.params.push(u32::try_from(value).expect("the backend has checked that positions fit 32 bits"));
        param(at)
    }

    /// Adds a stride, which may be negative: positions are computed modulo 2^32, where that does not matter.
    pub(super) fn stride(&mut self, value: isize) -> String {
        let at = self.params.len();
        self.params.push(value as i32 as u32);
        param(at)
    }

    /// Adds a float parameter; gives the text that reads it, of type `f32`. (A text with the number in it would be a pipeline
    /// for each number; and WGSL has no constant that is infinite or NaN.)
    pub(super) fn float(&mut self, value: f32) -> String {
        let at = self.params.len();
        self.params.push(value.to_bits());
        format!("bitcast<f32>({})", param(at))
    }

    /// Adds a table of vectors; gives the index in `P` of its first: `P[{index}u + row]` is a row.
    pub(super) fn table(&mut self, rows: &[[u32; 4]]) -> usize {
        self.params.resize(self.params.len().next_multiple_of(4), 0);
        let at = self.params.len() / 4;
        self.params.extend(rows.iter().flatten());
        at
    }

    /// Makes a library's functions known.
    pub(super) fn uses(&mut self, library: Library) {
        if !self.libraries.contains(&library) {
            self.libraries.push(library);
            self.libraries.sort();
        }
    }

    /// Binds a view to be read.
    pub(super) fn reads(&mut self, view: &View) -> Operand {
        self.operand(view, false)
    }

    /// Binds a view to be written (and perhaps read). What outlives the run is written only while no check has failed.
    pub(super) fn writes(&mut self, view: &View) -> Operand {
        self.operand(view, true)
    }

    fn operand(&mut self, view: &View, written: bool) -> Operand {
        let place = self.places.of(view.buffer);
        let storage = storage(view.dtype, self.places.halves);
        let memory = self.bind(place.slot, written);
        let guarded = written && place.lasting;
        if guarded && !self.guarded {
            self.guarded = true;
            let status = self.bind(Slot::STATUS, false);
            self.body.insert_str(0, &format!("  let sound = m{status}[0] == 0u;\n"));
        }
        let offset = self.param(place.offset / storage.bytes() + view.offset);
        Operand { memory, dtype: view.dtype, storage, guarded, quads: false, offset }
    }

    /// Makes the memory of an operand an array of vectors of 4 elements. All operands in it must be told, and what is written
    /// there is written as such vectors.
    pub(super) fn in_quads(&mut self, operand: &mut Operand) {
        operand.quads = true;
        if !self.quads.contains(&operand.memory) {
            self.quads.push(operand.memory);
        }
    }

    /// Binds a memory; gives its number: the text `m{number}` is its array.
    pub(super) fn bind(&mut self, slot: Slot, written: bool) -> usize {
        if let Some(at) = self.slots.iter().position(|(s, _)| *s == slot) {
            self.slots[at].1 |= written;
            return at;
        }
        self.slots.push((slot, written));
        self.slots.len() - 1
    }

    /// Adds a line of declarations before `main`.
    pub(super) fn declare(&mut self, text: impl AsRef<str>) {
        self.head.push_str(text.as_ref());
        self.head.push('\n');
    }

    /// Adds a line to `main`.
    pub(super) fn line(&mut self, text: impl AsRef<str>) {
        self.body.push_str("  ");
        self.body.push_str(text.as_ref());
        self.body.push('\n');
    }

    /// A launch of `threads` invocations: `main` begins with `let i`, the number of the invocation, and returns where it is
    /// not below `threads`.
    pub(super) fn launch_threads(mut self, threads: usize) -> Dispatch {
        // Software gives workgroups to processor cores: few invocations should not all be in one.
        let size = if self.places.software && threads < 1024 { 8 } else { 64 };
        let count = self.param(threads);
        let begin =
            format!("  let i = (group.y * groups.x + group.x) * {size}u + lane;\n  if (i >= {count}) {{ return; }}\n");
        self.body.insert_str(0, &begin);
        self.finish(size, threads.div_ceil(size))
    }

    /// A launch of `groups` workgroups of `size` invocations each: `main` begins with `let g`, the number of the workgroup, and
    /// `lane`, the number of the invocation in it. A workgroup that is not below `groups` returns as a whole.
    pub(super) fn launch_groups(mut self, size: usize, groups: usize) -> Dispatch {
        let count = self.param(groups);
        let begin = format!("  let g = group.y * groups.x + group.x;\n  if (g >= {count}) {{ return; }}\n");
        self.body.insert_str(0, &begin);
        self.finish(size, groups)
    }

    /// The statements of `main`, with each parameter read once, at the beginning: software reads uniforms as slowly as memory,
    /// and does not find out that they stay the same in a loop.
    fn statements(&self) -> String {
        let (mut reads, mut body) = (String::new(), self.body.clone());
        for at in 0..self.params.len() {
            let (text, name) = (param(at), format!("P{at}"));
            if body.contains(&text) {
                body = body.replace(&text, &name);
                let _ = writeln!(reads, "  let {name} = {text};");
            }
        }
        reads + &body
    }

    fn finish(self, size: usize, groups: usize) -> Dispatch {
        // At most 65535 workgroups along an axis.
        let x = groups.clamp(1, 65535);
        let y = groups.div_ceil(x).max(1);
        let mut source = String::new();
        if self.places.halves && self.slots.iter().any(|(s, _)| s.halves) {
            source.push_str("enable f16;\n");
        }
        let vectors = self.params.len().div_ceil(4).max(1);
        let _ = writeln!(source, "@group(0) @binding(0) var<uniform> P: array<vec4<u32>, {vectors}>;");
        for (i, (slot, written)) in self.slots.iter().enumerate() {
            let access = if *written { "read_write" } else { "read" };
            let element = match (self.quads.contains(&i), slot.halves) {
                (false, false) => "u32",
                (false, true) => "f16",
                (true, false) => "vec4<u32>",
                (true, true) => "vec4<f16>",
            };
            let _ = writeln!(source, "@group(0) @binding({}) var<storage, {access}> m{i}: array<{element}>;", i + 1);
        }
        for library in &self.libraries {
            source.push_str(library.text());
        }
        source.push_str(&self.head);
        let _ = write!(
            source,
            "@compute @workgroup_size({size})\nfn main(@builtin(workgroup_id) group: vec3<u32>, \
             @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{\n{}}}\n",
            self.statements()
        );
        Dispatch { source, params: self.params, slots: self.slots, groups: [x as u32, y as u32] }
    }
}

impl Operand {
    /// The text of the element of memory at position `at` (in words, for pairs).
    fn element(&self, at: &str) -> String {
        let m = self.memory;
        if self.quads { format!("m{m}[({at}) >> 2u][({at}) & 3u]") } else { format!("m{m}[{at}]") }
    }

    /// The value that an element of memory holds. Not for pairs.
    fn value(&self, element: &str) -> String {
        match (self.storage, value_type(self.dtype)) {
            (Storage::Half, _) => format!("f32({element})"),
            (_, "u32") => element.to_owned(),
            (_, "bool") => format!("({element} != 0u)"),
            (_, ty) => format!("bitcast<{ty}>({element})"),
        }
    }

    /// The element of memory that holds a value. Not for pairs.
    fn stored(&self, value: &str) -> String {
        match (self.storage, self.dtype, value_type(self.dtype)) {
            (Storage::Half, ..) => format!("f16(round_f16({value}))"),
            (_, DType::F16, _) => format!("bitcast<u32>(round_f16({value}))"),
            (_, DType::BF16, _) => format!("bitcast<u32>(round_bf16({value}))"),
            (_, _, "u32") => value.to_owned(),
            (_, _, "bool") => format!("select(0u, 1u, {value})"),
            _ => format!("bitcast<u32>({value})"),
        }
    }

    fn guard(&self, store: String) -> String {
        if self.guarded { format!("if (sound) {{ {store} }}") } else { store }
    }

    /// The expression that loads the element at position `at` (a `u32` expression, evaluated more than once), of
    /// [`value_type`].
    pub(super) fn load(&self, at: &str) -> String {
        match self.storage {
            Storage::Word | Storage::Half => self.value(&self.element(at)),
            Storage::Pair => {
                let (low, high) = (format!("2u * ({at})"), format!("2u * ({at}) + 1u"));
                format!("vec2<u32>({}, {})", self.element(&low), self.element(&high))
            }
        }
    }

    /// The statement that stores `value`, an expression of [`value_type`], at position `at`. Floats of 16 bits are rounded
    /// here (which needs [`Library::Math`]); integers are in the range of their dtype already.
    pub(super) fn store(&self, at: &str, value: &str) -> String {
        let m = self.memory;
        self.guard(match self.storage {
            Storage::Word | Storage::Half => format!("m{m}[{at}] = {};", self.stored(value)),
            Storage::Pair => {
                format!("{{ let pair = {value}; m{m}[2u * ({at})] = pair.x; m{m}[2u * ({at}) + 1u] = pair.y; }}")
            }
        })
    }

    /// The statement that moves the element at position `at` of `source`, which has the same dtype, to position `to`, bit for
    /// bit.
    pub(super) fn moves(&self, to: &str, source: &Operand, at: &str) -> String {
        let m = self.memory;
        self.guard(match self.storage {
            Storage::Half | Storage::Word => format!("m{m}[{to}] = {};", source.element(at)),
            Storage::Pair => {
                let (low, high) = (source.element("low"), source.element("low + 1u"));
                format!(
                    "{{ let into = 2u * ({to}); let low = 2u * ({at}); m{m}[into] = {low}; m{m}[into + 1u] = {high}; }}"
                )
            }
        })
    }

    /// The expression that loads the 4 elements from position `at` on as memory has them; see [`Self::of_quad`]. Not for pairs.
    pub(super) fn load_quad(&self, at: &str) -> String {
        match self.quads {
            true => format!("m{}[({at}) >> 2u]", self.memory),
            false => self.gather_quad(&std::array::from_fn(|k| format!("{at} + {k}u"))),
        }
    }

    /// The same of elements at any 4 positions.
    pub(super) fn gather_quad(&self, at: &[String; 4]) -> String {
        self.quad(&at.each_ref().map(|at| self.element(at)))
    }

    fn quad(&self, elements: &[String; 4]) -> String {
        let ty = if self.storage == Storage::Half { "f16" } else { "u32" };
        format!("vec4<{ty}>({})", elements.join(", "))
    }

    /// The value of element `k` of a `quad` that was loaded (a name).
    pub(super) fn of_quad(&self, quad: &str, k: usize) -> String {
        self.value(&format!("{quad}.{}", ["x", "y", "z", "w"][k]))
    }

    /// The statement that stores 4 values from position `at` on. Not for pairs.
    pub(super) fn store_quad(&self, at: &str, values: [&str; 4]) -> String {
        self.move_quad(at, &self.quad(&values.map(|value| self.stored(value))))
    }

    /// The statement that stores 4 elements, as they were loaded from an operand of the same dtype, from position `at` on.
    pub(super) fn move_quad(&self, at: &str, quad: &str) -> String {
        let m = self.memory;
        self.guard(match self.quads {
            true => format!("m{m}[({at}) >> 2u] = {quad};"),
            false => format!(
                "{{ let quad = {quad}; m{m}[{at}] = quad.x; m{m}[{at} + 1u] = quad.y; m{m}[{at} + 2u] = quad.z; \
                 m{m}[{at} + 3u] = quad.w; }}"
            ),
        })
    }

    /// The dtype.
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }
}
