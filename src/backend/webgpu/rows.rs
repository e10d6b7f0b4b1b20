//! A program over rows, as one shader: what Fused and Reduce kernels are made of.
//!
//! The axes of a kernel are outer axes, each combination of which is a row, and row axes. A kernel that reduces nothing is one
//! long row. What is the same along a row is computed once. Reductions take passes over the row, each of which computes all of
//! them whose operands are known by then; a last pass computes what is stored along the row. A row is walked by one invocation,
//! or by a workgroup that then adds its results up in a tree.

use super::expr::{Scope, combined, identity};
use super::facts::Facts;
use super::layout::{Places, Slot};
use super::shader::{Dispatch, Shader, value_type};
use super::walks::{At, Layout, Walks};
use crate::error::{Result, bail};
use crate::kernel::{Expr, ExprId, Program, ReduceOp, View};
use crate::tensor::DType;

/// Terms that are added up by themselves before they are added to a long sum, so that its error stays small.
const BLOCK: usize = 64;
/// Longer programs are printed for one element at a time.
const MOST: usize = 64;
/// Reductions that share the steps of a tree: workgroup memory is 16 KiB.
const TREE: usize = 4;

/// A program, its operands and the axes that it runs over.
pub(super) struct Rows<'a> {
    pub(super) program: &'a Program,
    /// All axes.
    pub(super) shape: &'a [usize],
    /// Views of `shape`.
    pub(super) reads: &'a [View],
    /// Views of `shape`, or of size 1 on the row axes.
    pub(super) writes: &'a [View],
    /// The outer axes, in the order in which rows are numbered.
    pub(super) outer: Vec<usize>,
    /// The row axes, in the order in which the elements of a row are numbered.
    pub(super) row: Vec<usize>,
}

/// Who computes what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Form {
    /// Invocations that walk a row (or a part of one) together: 1, or a workgroup.
    pub(super) lanes: usize,
    /// Into how many parts a row is cut; each takes every so many-th element. What is stored along the row each part stores of
    /// its own; more than one part is not for kernels that store one value for a row.
    pub(super) parts: usize,
    /// Do neighbouring invocations take neighbouring rows (rather than parts of one)?
    pub(super) columns: bool,
    /// How many neighbours along a row an invocation takes at a time: 1, or the 4 of [`Rows::width`].
    pub(super) width: usize,
}

impl Rows<'_> {
    /// Number of rows.
    pub(super) fn count(&self) -> usize {
        self.outer.iter().map(|&a| self.shape[a]).product()
    }

    /// Elements of a row.
    pub(super) fn len(&self) -> usize {
        self.row.iter().map(|&a| self.shape[a]).product()
    }

    /// Is a write one value for each row?
    pub(super) fn is_narrow(&self, write: &View) -> bool {
        write.shape != self.shape
    }

    fn facts(&self) -> Facts<'_> {
        Facts::new(self.program, self.reads, self.shape, &self.row)
    }

    /// How many neighbours along a row an invocation should compute at a time: 1 or 4.
    pub(super) fn width(&self, places: &Places) -> usize {
        // A text of 4 times as many expressions must not be too long.
        match self.program.exprs.len() {
            0..=MOST => Layout::new(self, &self.facts(), places).width(self, places),
            _ => 1,
        }
    }

    /// The kernel as a shader.
    pub(super) fn lower(&self, form: Form, s: Shader<'_>) -> Result<Dispatch> {
        let mut printer = Printer::new(self, form, s)?;
        for level in 1..=printer.facts.levels {
            printer.reduce(level)?;
        }
        printer.store()?;
        Ok(printer.launch())
    }

    /// A shader that leaves partial results of the one reduction, which is the program's output, in `partial`: one for each part
    /// of each row, in columns the first part of every row first. (The writes of the kernel are not written.)
    pub(super) fn lower_partial(&self, form: Form, partial: &View, s: Shader<'_>) -> Result<Dispatch> {
        debug_assert!(self.writes.is_empty());
        let mut printer = Printer::new(self, form, s)?;
        printer.reduce(1)?;
        let s = &mut printer.s;
        let operand = s.writes(partial);
        let unit = if form.lanes == 1 { "i" } else { "g" };
        let result = printer.scope.name(self.program.outputs[0])?;
        let store = operand.store(&format!("{} + {unit}", operand.offset), result);
        s.line(if form.lanes == 1 { store } else { format!("if (lane == 0u) {{ {store} }}") });
        Ok(printer.launch())
    }
}

/// A shader while its passes are printed.
struct Printer<'r, 's> {
    rows: &'r Rows<'r>,
    form: Form,
    facts: Facts<'r>,
    walks: Walks<'r>,
    /// Which expressions are the same for neighbours along the last axis of the row.
    still: Vec<bool>,
    /// What is known outside of loops.
    scope: Scope<'r>,
    s: Shader<'s>,
    /// The first element of an invocation.
    start: String,
    /// Workgroup arrays that have been declared.
    shared: Vec<String>,
}

impl<'r, 's> Printer<'r, 's> {
    fn new(rows: &'r Rows<'r>, form: Form, mut s: Shader<'s>) -> Result<Self> {
        let facts = rows.facts();
        let layout = Layout::new(rows, &facts, s.places);
        let still = facts.alike(|expr| layout.is_still(rows, expr));
        let walks = Walks::new(rows, layout, form.width, &mut s);
        let start = print_share(rows, form, &mut s);
        walks.print_bases(&mut s);
        if facts.needed().any(|id| matches!(facts.expr(id), Expr::Random(_))) {
            let m = s.bind(Slot::RUN, false);
            s.line(format!("let run = vec4<u32>(m{m}[0], m{m}[1], m{m}[2], m{m}[3]);"));
        }
        let scope = Scope::new(rows.program);
        let mut printer = Self { rows, form, facts, walks, still, scope, s, start, shared: Vec::new() };
        let constants = |id: &ExprId| matches!(printer.facts.expr(*id), Expr::Const(_));
        let constants: Vec<ExprId> = printer.facts.needed().filter(constants).collect();
        printer.print_once(&constants)?;
        Ok(printer)
    }

    /// From an invocation's elements to its next ones.
    fn step(&self) -> usize {
        self.form.lanes * self.form.parts * self.form.width
    }

    fn dtype(&self, id: ExprId) -> DType {
        self.rows.program.dtype(id)
    }

    /// Prints what is needed of `wanted` once for the row, at its first element.
    fn print_once(&mut self, wanted: &[ExprId]) -> Result<()> {
        let Self { walks, scope, s, .. } = self;
        scope.print(wanted, "", s, |s, id, expr| walks.leaf(s, id, expr, &At::default(), None))
    }

    /// Prints what is needed of `wanted` at an element, or at as many neighbours as the kernel takes at a time, and gives the
    /// names at each of them.
    fn print_at(&mut self, wanted: &[ExprId], at: &At) -> Result<Vec<Scope<'r>>> {
        let alike = self.facts.under(wanted, &self.still);
        let Self { walks, scope, s, form, .. } = self;
        let mut scope = scope.clone();
        if form.width == 1 {
            scope.print(wanted, "", s, |s, id, expr| walks.leaf(s, id, expr, at, None))?;
            return Ok(vec![scope]);
        }
        scope.print(&alike, "", s, |s, id, expr| walks.leaf(s, id, expr, at, None))?;
        let mut each = vec![scope; form.width];
        for (k, scope) in each.iter_mut().enumerate() {
            scope.print(wanted, ["x", "y", "z", "w"][k], s, |s, id, expr| walks.leaf(s, id, expr, at, Some(k)))?;
        }
        Ok(each)
    }

    /// Prints a pass that computes reductions.
    fn reduce(&mut self, level: usize) -> Result<()> {
        let reductions = self.facts.reductions(level);
        let parts = |id: &ExprId| match self.facts.expr(*id) {
            Expr::RowReduce(op, of) => (*id, op, of),
            _ => unreachable!("`reductions` gives these"),
        };
        let reductions: Vec<(ExprId, ReduceOp, ExprId)> = reductions.iter().map(parts).collect();
        let operands: Vec<ExprId> = reductions.iter().map(|r| r.2).collect();
        self.print_once(&self.facts.narrow_under(&operands))?;
        for &(id, op, _) in &reductions {
            let identity = identity(op, self.dtype(id), &mut self.s);
            self.s.line(format!("var r{} = {identity};", id.0));
        }
        // Long sums of floats are added up block by block.
        let sum = |&&(id, op, _): &&(ExprId, ReduceOp, ExprId)| op == ReduceOp::Sum && self.dtype(id).is_float();
        let sums: Vec<ExprId> = reductions.iter().filter(sum).map(|r| r.0).collect();
        self.each(&sums, |printer, at, blocked| {
            let scopes = printer.print_at(&operands, at)?;
            for &(id, op, of) in &reductions {
                let total = if blocked && sums.contains(&id) { format!("t{}", id.0) } else { format!("r{}", id.0) };
                let mut terms =
                    scopes.iter().map(|scope| scope.name(of).map(str::to_owned)).collect::<Result<Vec<_>>>()?;
                while terms.len() > 1 {
                    let pairs = terms.chunks(2).map(|pair| {
                        let both = combined(op, printer.dtype(id), &pair[0], &pair[1], &mut printer.s)?;
                        Ok(format!("({both})"))
                    });
                    terms = pairs.collect::<Result<_>>()?;
                }
                let next = combined(op, printer.dtype(id), &total, &terms[0], &mut printer.s)?;
                printer.s.line(format!("{total} = {next};"));
            }
            Ok(())
        })?;
        if self.form.lanes > 1 {
            for some in reductions.chunks(TREE) {
                self.tree(some)?;
            }
        }
        for (id, ..) in reductions {
            self.scope.set(id, format!("r{}", id.0));
        }
        Ok(())
    }

    /// Prints how the lanes' results become one, which all lanes then have.
    fn tree(&mut self, reductions: &[(ExprId, ReduceOp, ExprId)]) -> Result<()> {
        let lanes = self.form.lanes;
        let mut arrays = Vec::new();
        for (k, &(id, ..)) in reductions.iter().enumerate() {
            let ty = value_type(self.dtype(id));
            let name = format!("shared_{}_{k}", ty.replace(['<', '>'], "_"));
            if !self.shared.contains(&name) {
                self.s.declare(format!("var<workgroup> {name}: array<{ty}, {lanes}>;"));
                self.shared.push(name.clone());
            }
            arrays.push(name);
        }
        // Others may still read what an earlier tree gave.
        self.s.line("workgroupBarrier();");
        for (&(id, ..), array) in reductions.iter().zip(&arrays) {
            self.s.line(format!("{array}[lane] = r{};", id.0));
        }
        self.s.line(format!("for (var half_of = {}u; half_of > 0u; half_of >>= 1u) {{", lanes / 2));
        self.s.line("  workgroupBarrier();");
        self.s.line("  if (lane < half_of) {");
        for (&(id, op, _), array) in reductions.iter().zip(&arrays) {
            self.s.line(format!("    let a{} = {array}[lane];", id.0));
            self.s.line(format!("    let z{} = {array}[lane + half_of];", id.0));
            let both = combined(op, self.dtype(id), &format!("a{}", id.0), &format!("z{}", id.0), &mut self.s)?;
            self.s.line(format!("    {array}[lane] = {both};"));
        }
        self.s.line("  }");
        self.s.line("}");
        self.s.line("workgroupBarrier();");
        for (&(id, ..), array) in reductions.iter().zip(&arrays) {
            self.s.line(format!("r{} = {array}[0];", id.0));
        }
        Ok(())
    }

    /// Prints the last pass: what is stored.
    fn store(&mut self) -> Result<()> {
        let outputs = self.rows.program.outputs.clone();
        let (narrow, wide): (Vec<usize>, Vec<usize>) =
            (0..outputs.len()).partition(|&k| self.rows.is_narrow(&self.rows.writes[k]));
        self.print_once(&self.facts.narrow_under(&outputs))?;
        // Before anything is written: a value for the row that is not seen to be the same along it is that of the first element.
        let first: Vec<ExprId> = narrow.iter().map(|&k| outputs[k]).filter(|&id| !self.facts.is_narrow(id)).collect();
        if !first.is_empty() && self.rows.len() == 0 {
            bail!(Plan, "a value for each row depends on elements of rows that have none");
        }
        let Self { walks, scope, s, .. } = self;
        let mut of_row = scope.clone();
        of_row.print(&first, "", s, |s, id, expr| walks.leaf(s, id, expr, &At::default(), None))?;
        if !wide.is_empty() {
            let ids: Vec<ExprId> = wide.iter().map(|&k| outputs[k]).collect();
            let (moved, width) = (self.moved(), self.form.width);
            self.each(&[], |printer, at, _| {
                if moved {
                    printer.walks.print_move(width, at, &mut printer.s);
                    return Ok(());
                }
                let scopes = printer.print_at(&ids, at)?;
                for (&k, &id) in wide.iter().zip(&ids) {
                    let values = scopes.iter().map(|scope| scope.name(id)).collect::<Result<Vec<_>>>()?;
                    printer.walks.print_store(k, &values, at, &mut printer.s);
                }
                Ok(())
            })?;
        }
        if narrow.is_empty() {
            return Ok(());
        }
        let alone = self.form.lanes == 1;
        if !alone {
            // A write may be the very view of a read, which other lanes must have read by now.
            self.s.line("storageBarrier();");
            self.s.line("workgroupBarrier();");
            self.s.line("if (lane == 0u) {");
        }
        for k in narrow {
            self.walks.print_store(k, &[of_row.name(outputs[k])?], &At::default(), &mut self.s);
        }
        if !alone {
            self.s.line("}");
        }
        Ok(())
    }

    /// Does the kernel only move what it reads, bit for bit?
    fn moved(&self) -> bool {
        let Rows { program, reads, writes, .. } = self.rows;
        let [output] = program.outputs[..] else { return false };
        program.exprs[output.index()].expr == Expr::Input(0) && reads[0].dtype == writes[0].dtype
    }

    /// Prints loops over the invocation's elements of the row around what `body` prints. If the row is long, they are taken in
    /// blocks: `body` is told so, and finds `t{id}` in place of `r{id}` for each of `sums`.
    fn each(&mut self, sums: &[ExprId], body: impl FnOnce(&mut Self, &At, bool) -> Result<()>) -> Result<()> {
        let sizes = self.walks.layout.row.sizes.clone();
        let (len, step) = (self.rows.len(), self.step());
        if step == len && self.form.lanes == 1 {
            // Once is enough.
            self.s.line("{");
            let start = self.start.clone();
            self.s.line(format!("let j = {start};"));
            let at = self.walks.print_place("j", &mut self.s);
            body(self, &at, false)?;
            self.s.line("}");
            return Ok(());
        }
        let inner = sizes.last().copied().unwrap_or(1);
        // Loops within loops need no division, but all lanes should have something to do in the innermost one.
        let nested = sizes.len() > 1 && inner >= 2 * step;
        let count = if nested { inner } else { len };
        let blocked = !sums.is_empty() && len.div_ceil(step) > 2 * BLOCK && count.div_ceil(step) >= 16;
        let mut depth = 0;
        let mut coordinates = Vec::new();
        if nested {
            for (axis, &size) in sizes[..sizes.len() - 1].iter().enumerate() {
                let size = self.s.param(size);
                self.s.line(format!("for (var c{axis} = 0u; c{axis} < {size}; c{axis}++) {{"));
                coordinates.push(format!("c{axis}"));
                depth += 1;
            }
            coordinates.push("j".into());
        }
        self.open(count, step, if blocked { sums } else { &[] }, blocked);
        let at = match nested {
            true => At { number: None, coordinates },
            false => self.walks.print_place("j", &mut self.s),
        };
        body(self, &at, blocked)?;
        self.s.line("}");
        if blocked {
            for id in sums {
                self.s.line(format!("r{0} = r{0} + t{0};", id.0));
            }
            self.s.line("}");
        }
        (0..depth).for_each(|_| self.s.line("}"));
        Ok(())
    }

    /// Opens the loop over `j`, or two of them if it is blocked.
    fn open(&mut self, count: usize, step: usize, sums: &[ExprId], blocked: bool) {
        let start = self.start.clone();
        let end = self.s.param(count);
        let next = |s: &mut Shader<'_>, step: usize| if step == 1 { "1u".to_owned() } else { s.param(step) };
        if !blocked {
            let next = next(&mut self.s, step);
            self.s.line(format!("for (var j = {start}; j < {end}; j += {next}) {{"));
            return;
        }
        let block = self.s.param(step * BLOCK);
        self.s.line(format!("for (var block = {start}; block < {end}; block += {block}) {{"));
        for id in sums {
            self.s.line(format!("var t{} = 0.0;", id.0));
        }
        let next = next(&mut self.s, step);
        self.s.line(format!("let end = min(block + {block}, {end});"));
        self.s.line(format!("for (var j = block; j < end; j += {next}) {{"));
    }

    fn launch(self) -> Dispatch {
        let units = self.rows.count() * self.form.parts;
        match self.form.lanes {
            1 => self.s.launch_threads(units),
            lanes => self.s.launch_groups(lanes, units),
        }
    }
}

/// Prints which row an invocation walks, as `w`; gives the text of its first element.
fn print_share(rows: &Rows<'_>, form: Form, s: &mut Shader<'_>) -> String {
    let unit = if form.lanes == 1 { "i" } else { "g" };
    let part = if form.parts == 1 {
        s.line(format!("let w = {unit};"));
        "0u".to_owned()
    } else if rows.count() == 1 {
        s.line("let w = 0u;");
        unit.to_owned()
    } else if form.columns {
        let count = s.param(rows.count());
        s.line(format!("let part = {unit} / {count};"));
        s.line(format!("let w = {unit} - part * {count};"));
        "part".to_owned()
    } else {
        let parts = s.param(form.parts);
        s.line(format!("let w = {unit} / {parts};"));
        s.line(format!("let part = {unit} - w * {parts};"));
        "part".to_owned()
    };
    let first = match form.lanes {
        1 => part,
        _ if form.parts == 1 => "lane".to_owned(),
        lanes => format!("({part} * {lanes}u + lane)"),
    };
    if form.width == 1 && !first.starts_with('(') {
        return first;
    }
    s.line(format!("let start = {first} * {}u;", form.width));
    "start".to_owned()
}
