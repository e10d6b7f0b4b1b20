//! Instructions: nodes in the order they run, values in registers.

use super::nodes::{Class, Graph, NONE, Node, Op};
use super::space::{Tiling, Walk};
use crate::kernel::ReduceOp;

/// Pointers that a running kernel may hold.
pub(crate) const MAX_SLOTS: usize = 160;
/// Operands of a kernel in memory.
pub(crate) const MAX_ACCESSES: usize = 64;
/// Tiles that are kept from one tile to the next.
pub(crate) const MAX_KEPT: usize = 16;
/// Row reductions per pass.
pub(crate) const MAX_REDUCTIONS: usize = 16;
/// Bytes of registers.
pub(crate) const SCRATCH: usize = 128 << 10;
/// Every instruction works in blocks of so many elements; numbers are held that many times.
pub(crate) const BLOCK: usize = 32;

/// How many elements an instruction computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Len {
    Block,
    Rows,
    Tile,
}

/// An operand: which pointer, and how far it moves from block to block (0 or [`BLOCK`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arg {
    pub(crate) slot: u16,
    pub(crate) step: u16,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ins {
    pub(crate) op: Op,
    pub(crate) class: Class,
    pub(crate) len: Len,
    pub(crate) dst: u16,
    pub(crate) args: [Arg; 6],
}

/// A read or write as a tile sees it.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) walk: Walk,
    /// 0: one number, 1: one per row, 2: one per element.
    pub(crate) level: u8,
    /// The stride along the cut axis, then sizes and strides of the axes after it.
    pub(crate) step: isize,
    pub(crate) dims: Vec<(usize, isize)>,
    pub(crate) dense: bool,
    /// Slot that points at this operand's part of the tile.
    pub(crate) slot: Option<u16>,
    /// Do tiles that run one after the other often see the same elements?
    pub(crate) repeats: bool,
    /// The number of a tile that is gathered again only if another place is read.
    pub(crate) kept: Option<u8>,
}

/// What a slot points to while a task runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Slot {
    /// That many bytes into the scratch memory.
    Register(usize),
    /// An entry of the table of constants.
    Constant(usize),
    /// The current tile of an access.
    Access,
}

/// One walk over a row: `row` runs before its tiles, `tile` on each of them, then the reductions
/// are finished.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pass {
    pub(crate) row: Vec<Ins>,
    pub(crate) tile: Vec<Ins>,
    pub(crate) reductions: Vec<Reduction>,
}

/// A reduction over a long row: state in accumulator `i` of the pass, the result to a register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    pub(crate) op: ReduceOp,
    pub(crate) class: Class,
    pub(crate) dst: u16,
}

/// The compiled program.
#[derive(Debug, Default)]
pub(crate) struct Code {
    /// Bytes of registers.
    pub(crate) scratch: usize,
    pub(crate) slots: Vec<Slot>,
    /// Constants, [`BLOCK`] times each.
    pub(crate) constants: Vec<[u64; BLOCK]>,
    /// Once per task.
    pub(crate) prologue: Vec<Ins>,
    /// One pass for short rows; for long ones one per depth of reduction and one for the outputs.
    pub(crate) passes: Vec<Pass>,
    /// After each row (short rows: each tile).
    pub(crate) stores: Vec<Ins>,
}

/// Translates `graph`; `accesses` are the reads, then the writes. `None` if it needs more
/// registers than there are.
pub(crate) fn generate(graph: &mut Graph, tiling: &Tiling, accesses: &mut [Access], reads: usize) -> Option<Code> {
    let single = tiling.long || tiling.rows_per_tile() == 1;
    if !single {
        expand(graph);
    }
    copy_direct(graph, accesses, reads, single);
    let depth = graph.nodes.iter().map(|n| n.depth).max().unwrap_or(0);
    let count = graph.nodes.len();
    let mut kept = 0;
    for node in &mut graph.nodes {
        if let Op::Coordinate { kept: number, .. } = &mut node.op {
            *number = kept as u8;
            kept += 1;
        }
    }
    (kept <= MAX_KEPT).then_some(())?;
    let mut maker = Maker {
        graph,
        tiling,
        accesses,
        reads,
        single,
        code: Code::default(),
        live: vec![false; count],
        kept,
        pinned: vec![None; count],
        local: vec![None; count],
        free: [Vec::new(), Vec::new(), Vec::new()],
        top: 0,
        top_max: 0,
        uses: vec![0; count],
    };
    let roots: Vec<u32> = maker.graph.outputs.iter().copied().chain(maker.graph.sink).collect();
    maker.order(&roots, |_| true).into_iter().for_each(|i| maker.live[i as usize] = true);
    maker.pin();
    let passes = if tiling.long { depth as usize + 1 } else { 1 };
    for pass in 0..passes {
        maker.pass(pass, pass + 1 == passes)?;
    }
    maker.row_stores()?;
    let Maker { mut code, top_max, .. } = maker;
    code.scratch = top_max;
    (top_max <= SCRATCH && code.slots.len() <= MAX_SLOTS).then_some(code)
}

/// Short rows, several to a tile: row values become tiles before elements meet them.
fn expand(graph: &mut Graph) {
    let mut expanded = vec![NONE; graph.nodes.len()];
    let old = graph.nodes.len();
    for i in 0..old {
        let node = graph.nodes[i];
        // A reduction's operands are elements too.
        let whole = node.level == 2 || matches!(node.op, Op::Reduce(_) | Op::ReduceDot);
        if !whole {
            continue;
        }
        for k in 0..6 {
            let a = node.args[k];
            if a == NONE || graph.nodes[a as usize].level != 1 {
                continue;
            }
            if expanded[a as usize] == NONE {
                let class = graph.nodes[a as usize].class;
                let new = graph.push(Op::Expand, class, &[a]);
                graph.nodes[new as usize].level = 2;
                expanded[a as usize] = new;
            }
            graph.nodes[i].args[k] = expanded[a as usize];
        }
    }
}

/// Results that are reads, or that several writes take, or that must first be brought to the
/// level of their write, get nodes of their own, so that writes never disturb each other.
fn copy_direct(graph: &mut Graph, accesses: &[Access], reads: usize, single: bool) {
    for k in 0..graph.outputs.len() {
        let id = graph.outputs[k];
        let Node { op, class, level, .. } = graph.nodes[id as usize];
        let want = accesses[reads + k].level;
        if want == 2 && level == 1 && !single {
            let new = graph.push(Op::Expand, class, &[id]);
            graph.nodes[new as usize].level = 2;
            graph.outputs[k] = new;
        } else if level == want && matches!(op, Op::Load(_)) && graph.outputs.len() > 1 {
            graph.outputs[k] = graph.push(Op::Copy, class, &[id]);
        }
    }
}

struct Maker<'a> {
    graph: &'a Graph,
    tiling: &'a Tiling,
    accesses: &'a mut [Access],
    reads: usize,
    /// One row at a time: row values are numbers.
    single: bool,
    code: Code,
    /// Is a node's value needed at all?
    live: Vec<bool>,
    /// Tiles kept so far.
    kept: usize,
    /// Slots of values that live as long as the task.
    pinned: Vec<Option<u16>>,
    /// Slots of values within one pass.
    local: Vec<Option<u16>>,
    free: [Vec<u16>; 3],
    top: usize,
    top_max: usize,
    /// Uses still to come within a pass.
    uses: Vec<u32>,
}

impl Maker<'_> {
    fn slot(&mut self, slot: Slot) -> u16 {
        self.code.slots.push(slot);
        (self.code.slots.len() - 1).min(u16::MAX as usize) as u16
    }

    fn fresh(&mut self, bytes: usize) -> u16 {
        let at = self.top;
        self.top += bytes.next_multiple_of(64);
        self.top_max = self.top_max.max(self.top);
        self.slot(Slot::Register(at))
    }

    /// Elements that a register of `level` holds.
    fn capacity(&self, level: u8) -> usize {
        let n = match level {
            2 => self.tiling.tile_len(),
            1 if !self.single => self.tiling.rows_per_tile(),
            _ => BLOCK,
        };
        n.next_multiple_of(BLOCK)
    }

    /// Gives slots to constants, numbers, operands that are read in place, and tiles that are kept.
    fn pin(&mut self) {
        for i in 0..self.graph.nodes.len() {
            let node = self.graph.nodes[i];
            if !self.live[i] {
                continue;
            }
            let kept = match node.op {
                Op::Const(bits) => {
                    self.code.constants.push(replicate(bits, node.class));
                    let index = self.code.constants.len() - 1;
                    self.pinned[i] = Some(self.slot(Slot::Constant(index)));
                    continue;
                }
                Op::Load(k) => {
                    let access = &self.accesses[k];
                    let elements = access.level == 2 || (access.level == 1 && !self.single);
                    if elements && access.dense && Class::native(access.walk.dtype) {
                        let slot = self.slot(Slot::Access);
                        self.accesses[k].slot = Some(slot);
                        self.pinned[i] = Some(slot);
                        continue;
                    }
                    // The same place is read again by the next tile.
                    if elements && access.repeats && self.kept < MAX_KEPT {
                        self.accesses[k].kept = Some(self.kept as u8);
                        self.kept += 1;
                    }
                    self.accesses[k].kept.is_some()
                }
                Op::Coordinate { .. } | Op::Accumulate(_) | Op::AccumulateDot => true,
                _ => false,
            };
            if kept || node.level == 0 || (node.level == 1 && self.single) {
                self.pinned[i] = Some(self.fresh(self.capacity(node.level) * node.class.size()));
            }
        }
        for i in 0..self.graph.nodes.len() {
            if self.graph.nodes[i].level == 0
                && self.live[i]
                && let Some(ins) = self.instruction(i as u32)
            {
                self.code.prologue.push(ins);
            }
        }
    }

    fn arg(&self, id: u32) -> Arg {
        if id == NONE {
            return Arg { slot: 0, step: 0 };
        }
        let slot = self.pinned[id as usize].or(self.local[id as usize]);
        Arg { slot: slot.expect("operands come first"), step: self.step(id) }
    }

    fn step(&self, id: u32) -> u16 {
        match self.graph.nodes[id as usize].level {
            2 => BLOCK as u16,
            1 if !self.single => BLOCK as u16,
            _ => 0,
        }
    }

    /// The instruction of a node whose slots are known; constants and direct reads have none.
    fn instruction(&self, id: u32) -> Option<Ins> {
        let node = self.graph.nodes[id as usize];
        let dst = self.pinned[id as usize].or(self.local[id as usize])?;
        match node.op {
            Op::Const(_) => return None,
            Op::Load(k) if self.accesses[k].slot.is_some() => return None,
            _ => {}
        }
        let len = match node.level {
            2 => Len::Tile,
            1 if !self.single => Len::Rows,
            _ => Len::Block,
        };
        Some(Ins { op: node.op, class: node.class, len, dst, args: node.args.map(|a| self.arg(a)) })
    }

    /// Nodes that `roots` need, operands first, entering only nodes that `enter` accepts.
    fn order(&self, roots: &[u32], enter: impl Fn(&Node) -> bool) -> Vec<u32> {
        let mut seen = vec![false; self.graph.nodes.len()];
        let mut order = Vec::new();
        let mut stack: Vec<(u32, bool)> = roots.iter().rev().map(|&r| (r, false)).collect();
        while let Some((id, done)) = stack.pop() {
            let node = &self.graph.nodes[id as usize];
            if done {
                order.push(id);
            } else if !seen[id as usize] && enter(node) {
                seen[id as usize] = true;
                stack.push((id, true));
                stack.extend(node.args.iter().rev().filter(|&&a| a != NONE).map(|&a| (a, false)));
            }
        }
        order
    }

    fn pass(&mut self, depth: usize, last: bool) -> Option<()> {
        let reduces = |n: &Node| matches!(n.op, Op::Reduce(_) | Op::ReduceDot);
        // Every node that a write needs.
        let roots: Vec<u32> = self.graph.outputs.iter().copied().chain(self.graph.sink).collect();
        let live = self.order(&roots, |_| true);
        let nodes = &self.graph.nodes;
        let mut roots: Vec<u32> = Vec::new();
        if self.tiling.long {
            roots.extend(
                live.iter().filter(|&&i| reduces(&nodes[i as usize]) && nodes[i as usize].depth as usize == depth + 1),
            );
        }
        let reductions = roots.len();
        if last {
            roots.extend(self.graph.outputs.iter().copied().chain(self.graph.sink));
        }
        let mut pass = Pass::default();
        if self.tiling.long {
            for &i in &live {
                let n = &nodes[i as usize];
                if n.level == 1 && n.depth as usize == depth && !reduces(n) {
                    pass.row.extend(self.instruction(i));
                }
            }
        }
        // Long rows: reductions of this pass and elements; short rows: everything but numbers.
        let long = self.tiling.long;
        let now = |n: &Node| n.level == 2 || (!long && n.level > 0) || (reduces(n) && n.depth as usize == depth + 1);
        let list = self.order(&roots, now);
        self.emit(&list, last, &mut pass)?;
        (reductions <= MAX_REDUCTIONS).then_some(())?;
        self.code.passes.push(pass);
        Some(())
    }

    /// Gives registers to the nodes of `list` and writes their instructions.
    fn emit(&mut self, list: &[u32], last: bool, pass: &mut Pass) -> Option<()> {
        self.local.fill(None);
        self.free = [Vec::new(), Vec::new(), Vec::new()];
        let bottom = self.top;
        self.uses.fill(0);
        for &id in list {
            for &a in self.graph.nodes[id as usize].args.iter().filter(|&&a| a != NONE) {
                self.uses[a as usize] += 1;
            }
        }
        if last {
            for &o in &self.graph.outputs {
                self.uses[o as usize] += 1;
            }
        }
        // Register free lists: per class for tiles; row values of short rows take fresh ones.
        for (at, &id) in list.iter().enumerate() {
            let node = self.graph.nodes[id as usize];
            let reduces = matches!(node.op, Op::Reduce(_) | Op::ReduceDot);
            if self.tiling.long && reduces {
                let index = pass.reductions.len() as u16;
                let op = if let Op::Reduce(op) = node.op { op } else { ReduceOp::Sum };
                let dst = self.pinned[id as usize]?;
                pass.reductions.push(Reduction { op, class: node.class, dst });
                let args = node.args.map(|a| self.arg(a));
                pass.tile.push(Ins { op: node.op, class: node.class, len: Len::Tile, dst: index, args });
            } else {
                if self.pinned[id as usize].is_none() {
                    self.local[id as usize] =
                        Some(match if last { self.in_place(id, &list[at + 1..]) } else { None } {
                            Some(slot) => slot,
                            None => self.register(node),
                        });
                }
                pass.tile.extend(self.instruction(id));
            }
            for &a in node.args.iter().filter(|&&a| a != NONE) {
                self.uses[a as usize] -= 1;
                self.release(a);
            }
        }
        if last {
            self.tile_stores(pass);
        }
        self.top = bottom;
        Some(())
    }

    fn register(&mut self, node: Node) -> u16 {
        if node.level == 2
            && let Some(slot) = self.free[node.class as usize].pop()
        {
            return slot;
        }
        self.fresh(self.capacity(node.level) * node.class.size())
    }

    fn release(&mut self, id: u32) {
        let node = self.graph.nodes[id as usize];
        if self.uses[id as usize] == 0
            && node.level == 2
            && let Some(slot) = self.local[id as usize]
            && matches!(self.code.slots[slot as usize], Slot::Register(_))
        {
            self.free[node.class as usize].push(slot);
        }
    }

    /// The slot of a write that the node may fill as it is computed, if no later instruction
    /// still reads what may lie there.
    fn in_place(&mut self, id: u32, later: &[u32]) -> Option<u16> {
        let node = self.graph.nodes[id as usize];
        let k = (0..self.graph.outputs.len()).find(|&k| self.graph.outputs[k] == id)?;
        let write = &self.accesses[self.reads + k];
        if node.level != 2 || write.level != 2 || !write.dense || !Class::native(write.walk.dtype) {
            return None;
        }
        // The planner may have put a write where a read lies that ends here. If the write shares
        // its buffer with reads, it is those it may disturb; else any dense read.
        let shares = |r: &Access| r.walk.buffer == write.walk.buffer;
        let named = self.accesses[..self.reads].iter().any(shares);
        let disturbs = |&a: &u32| match self.graph.nodes[a as usize].op {
            Op::Load(r) if named => shares(&self.accesses[r]),
            Op::Load(r) => self.accesses[r].level > 0,
            _ => false,
        };
        // Spreading rows out over the very place they are read from would overtake itself.
        if node.op == Op::Expand && matches!(self.graph.nodes[node.args[0] as usize].op, Op::Load(_)) {
            return None;
        }
        let reads_later =
            |&l: &u32| disturbs(&l) || self.graph.nodes[l as usize].args.iter().filter(|a| **a != NONE).any(disturbs);
        // Stores read at the end.
        if later.iter().any(reads_later) || self.graph.outputs.iter().any(disturbs) {
            return None;
        }
        let slot = self.slot(Slot::Access);
        self.accesses[self.reads + k].slot = Some(slot);
        Some(slot)
    }

    fn tile_stores(&mut self, pass: &mut Pass) {
        for k in 0..self.graph.outputs.len() {
            let access = &self.accesses[self.reads + k];
            if access.level == 2 && access.slot.is_none() {
                pass.tile.push(self.store(k, Len::Tile));
            } else if access.level == 1 && !self.tiling.long {
                pass.tile.push(self.store(k, if self.single { Len::Block } else { Len::Rows }));
            }
        }
    }

    fn store(&self, k: usize, len: Len) -> Ins {
        let id = self.graph.outputs[k];
        let class = self.graph.nodes[id as usize].class;
        let arg = self.arg(id);
        Ins { op: Op::Store(self.reads + k), class, len, dst: 0, args: [arg; 6] }
    }

    /// Long rows: what is written per row.
    fn row_stores(&mut self) -> Option<()> {
        for k in 0..self.graph.outputs.len() {
            if self.tiling.long && self.accesses[self.reads + k].level == 1 {
                let ins = self.store(k, Len::Block);
                self.code.stores.push(ins);
            }
        }
        Some(())
    }
}

/// A constant, [`BLOCK`] times, as its class holds it.
fn replicate(bits: u64, class: Class) -> [u64; BLOCK] {
    let mut words = [0u64; BLOCK];
    let bytes = bits.to_ne_bytes();
    let size = class.size();
    // Little- and big-endian machines alike: the value itself, not its low bytes.
    let value: [u8; 8] = match class {
        Class::F => {
            let mut v = [0; 8];
            v[..4].copy_from_slice(&(bits as u32).to_ne_bytes());
            v
        }
        Class::I => bytes,
        Class::B => [bits as u8; 8],
    };
    let out: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    for i in 0..BLOCK {
        out[i * size..(i + 1) * size].copy_from_slice(&value[..size]);
    }
    words
}
