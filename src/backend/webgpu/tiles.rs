//! Which loop nest computes a product: the table of variants, and the choice by shape.

/// Sizes of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) batch: usize,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
}

impl Shape {
    pub(super) fn outputs(&self) -> usize {
        self.batch * self.m * self.n
    }
}

/// A tile in workgroup memory: `rows` x `cols` outputs, `depth` of k at a time; an invocation computes `tall` x `wide` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) depth: usize,
    pub(super) tall: usize,
    pub(super) wide: usize,
}

impl Tile {
    pub(super) fn invocations(&self) -> usize {
        (self.rows / self.tall) * (self.cols / self.wide)
    }
}

/// The tiles, largest first. `tall` and `wide` are multiples of 4, and both tiles of factors, in vectors of 4, are multiples of
/// the invocations (at most 256); 4 * depth * (rows + cols + 8) bytes fit 16 KiB.
pub(super) const TILES: [Tile; 3] = [
    Tile { rows: 128, cols: 64, depth: 16, tall: 8, wide: 4 },
    Tile { rows: 64, cols: 64, depth: 16, tall: 4, wide: 4 },
    Tile { rows: 32, cols: 32, depth: 16, tall: 4, wide: 4 },
];

/// A block of outputs per invocation: `rows` x `cols`, by a workgroup of `lanes` invocations along the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) lanes: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

/// The loop nests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// One output per invocation: every dtype.
    Plain,
    /// On software, and of thin results.
    Block(Block),
    /// On GPUs.
    Tile(&'static Tile),
}

/// What computes a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) variant: Variant,
    /// Compute the transposed result instead?
    pub(super) transposed: bool,
    /// Parts that the sum is split into.
    pub(super) splits: usize,
}

/// The choice for a shape.
pub(super) fn choose(shape: &Shape, floats: bool, software: bool) -> Choice {
    if !floats {
        return Choice { variant: Variant::Plain, transposed: false, splits: 1 };
    }
    if software { on_software(*shape) } else { on_gpu(shape) }
}

/// Workgroups with tiles that keep a GPU busy, and invocations without.
const GROUPS: usize = 128;
const INVOCATIONS: usize = 8192;
/// Invocations of a workgroup without a tile.
const LANES: usize = 64;
/// Shorter sums are not split into parts.
const PART: usize = 128;
/// Words of scratch that partial sums may take.
const SCRATCH: usize = 4 << 20;

fn on_gpu(shape: &Shape) -> Choice {
    let &Shape { batch, m, n, k } = shape;
    let tiles = |t: &Tile| batch * m.div_ceil(t.rows) * n.div_ceil(t.cols);
    let (thin, long) = (m.min(n), m.max(n));
    if thin < 8 {
        // Neighbouring invocations along the long side, each with the whole of the thin one; or if both are thin, one output.
        let (variant, work) = if long < LANES {
            (Variant::Plain, shape.outputs())
        } else {
            let work = batch * long.next_multiple_of(LANES);
            (Variant::Block(Block { lanes: LANES, rows: thin, cols: 1 }), work)
        };
        return Choice { variant, transposed: n < m, splits: splits(shape, INVOCATIONS, work) };
    }
    // Large tiles load less, but there should be enough of them, and not too empty ones.
    let full = |t: &&Tile| m > t.rows / 2 && n > t.cols / 2;
    let busy = |t: &&Tile| tiles(t) * k.div_ceil(2 * PART) >= GROUPS;
    let t = TILES.iter().filter(full).find(busy).unwrap_or(&TILES[TILES.len() - 1]);
    Choice { variant: Variant::Tile(t), transposed: false, splits: splits(shape, GROUPS, tiles(t)) }
}

/// So many parts that `wanted` of something run, of which one part has `have`.
fn splits(shape: &Shape, wanted: usize, have: usize) -> usize {
    let parts = (wanted / have.max(1)).min(shape.k / PART).min(SCRATCH / shape.outputs().max(1));
    if parts < 2 { 1 } else { parts }
}

/// Products from which a block of 8 x 8 is worth its compilation.
const LARGE: usize = 1 << 23;
/// Products from which sums are split, if there are few blocks: it costs a dispatch more.
const LONG: usize = 1 << 18;
/// Invocations that software runs at a time.
const VECTOR: usize = 4;
/// Blocks that keep the cores of a processor busy.
const BLOCKS: usize = 16;

/// Software runs 4 invocations at a time (SwiftShader) or 8 (lavapipe) as one vector, and workgroups on the processor's cores.
/// Loads are by far the dearest there, so that large blocks are fast: one of 8 x 4 outputs needs 12 loads for 32 products. But
/// large ones also take long to compile. All blocks of a product have one size, as small as can be.
fn on_software(shape: Shape) -> Choice {
    let transposed = shape.n < 4 * VECTOR && shape.m > shape.n;
    let (m, n) = if transposed { (shape.n, shape.m) } else { (shape.m, shape.n) };
    let products = shape.outputs() * shape.k;
    let rows = m.div_ceil(m.div_ceil(8));
    let cols = n.div_ceil(VECTOR).min(if products >= LARGE || rows <= 4 { 8 } else { 4 });
    let vectors = n.div_ceil(VECTOR * cols);
    let across = vectors.div_ceil(4);
    let lanes = VECTOR * vectors.div_ceil(across);
    let cols = n.div_ceil(lanes * across);
    let block = Block { lanes, rows, cols };
    let blocks = shape.batch * m.div_ceil(rows) * across;
    let parts = if blocks < BLOCKS / 2 && products >= LONG { splits(&shape, BLOCKS, blocks) } else { 1 };
    Choice { variant: Variant::Block(block), transposed, splits: parts }
}
