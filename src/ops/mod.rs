//! ONNX's operators: one room each. An operator is a struct whose fields are its attributes; its
//! type-and-shape rule, gradient rule and lowering stand together in the file of its family.
//! README.md beside this file says how to add one.

mod attrs;
mod build;
mod facts;
mod gradient;
mod infer;
mod interpret;
mod lower;
#[cfg(test)]
pub(crate) mod testing;

mod activation;
mod batch_norm;
mod conv;
mod dimensions;
mod dropout;
mod index;
mod layer_norm;
mod logic;
mod loss;
mod math;
mod matmul;
mod movement;
mod optimizer;
mod pad;
mod pool;
mod reduce;
mod shape;
mod sizes;
mod slice;
mod softmax;
mod source;
mod window;

pub use attrs::Spec;
pub use build::{Builder, MS};
pub use facts::{Facts, unify};
pub use gradient::GradCx;
pub use infer::{InferCx, broadcast, infer_graph, infer_node, normalize_axes, normalize_axis};
pub use interpret::interpret;
pub use lower::{BufferInfo, LowerCx, Lowering, Origin, lower_node};

use crate::error::{Result, err};
use crate::graph::{Graph, Node};

/// What there is to know about one operator. Attributes are the fields of the implementing struct.
pub trait Operator: std::fmt::Debug {
    /// Sets dtypes and shapes of the outputs, and checks those of the inputs.
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()>;

    /// Writes the nodes that compute the gradient of the inputs from that of the outputs.
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        Err(cx.error("ontrain has no gradient rule for this operator"))
    }

    /// Writes the kernels that compute the outputs. All shapes are known here.
    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()>;
}

/// One line of the operator table.
pub struct Entry {
    /// Operator domain, `""` for ai.onnx.
    pub domain: &'static str,
    /// Operator name.
    pub name: &'static str,
    /// The opset versions that changed it, ascending, from the oldest that is supported on.
    pub since: &'static [i64],
    /// Has it a gradient rule? (For the feature table; the rule itself is the truth.)
    pub gradient: bool,
    /// Reads the attributes.
    pub parse: fn(&Spec<'_>) -> Result<Box<dyn Operator>>,
}

/// `operators! { "" ; "Relu" [6, 13, 14] d => |_| Ok(Relu), … }`: the table of a family. `d` marks
/// an operator with a gradient rule, `-` one without.
macro_rules! operators {
    ($domain:expr; $($name:literal [$($since:literal),+] $d:tt => $parse:expr),+ $(,)?) => {
        &[$($crate::ops::Entry {
            domain: $domain,
            name: $name,
            since: &[$($since),+],
            gradient: $crate::ops::operators!(@ $d),
            parse: |spec| {
                let parse: fn(&$crate::ops::Spec<'_>) -> $crate::error::Result<_> = $parse;
                Ok(Box::new(parse(spec)?))
            },
        }),+]
    };
    (@ d) => { true };
    (@ -) => { false };
}
pub(crate) use operators;

/// The one table, by family.
const FAMILIES: &[&[Entry]] = &[
    activation::OPERATORS,
    activation::MS_OPERATORS,
    conv::OPERATORS,
    conv::MS_OPERATORS,
    logic::OPERATORS,
    math::OPERATORS,
    matmul::OPERATORS,
    matmul::MS_OPERATORS,
    index::OPERATORS,
    index::MS_OPERATORS,
    source::OPERATORS,
    movement::OPERATORS,
    movement::MS_OPERATORS,
    pad::OPERATORS,
    pool::OPERATORS,
    reduce::OPERATORS,
    reduce::MS_OPERATORS,
    dimensions::OPERATORS,
    dimensions::MS_OPERATORS,
    shape::OPERATORS,
    slice::OPERATORS,
    slice::MS_OPERATORS,
    softmax::OPERATORS,
    softmax::MS_OPERATORS,
    batch_norm::OPERATORS,
    batch_norm::MS_OPERATORS,
    optimizer::MS_OPERATORS,
    dropout::OPERATORS,
    layer_norm::OPERATORS,
    layer_norm::MS_OPERATORS,
    dropout::MS_OPERATORS,
    loss::OPERATORS,
    loss::MS_OPERATORS,
];

/// The newest ai.onnx opset whose operators are known here.
pub const NEWEST_OPSET: i64 = 27;

/// All operators, for feature tables.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    FAMILIES.iter().copied().flatten()
}

/// The operator of a node, its attributes read and checked.
pub fn resolve(graph: &Graph, node: &Node) -> Result<Box<dyn Operator>> {
    let opset = graph.opset(&node.domain).max(if node.domain.is_empty() { 0 } else { 1 });
    let unsupported = |why: String| {
        let domain = if node.domain.is_empty() { "ai.onnx" } else { &node.domain };
        Err(err!(Unsupported, "operator {domain}.{} at opset {opset}: {why}", node.op_type).at(node.path(graph)))
    };
    let Some(entry) = entries().find(|e| e.domain == node.domain && e.name == node.op_type) else {
        return unsupported("ontrain does not know this operator".into());
    };
    if opset < entry.since[0] {
        return unsupported(format!("supported from opset {} on", entry.since[0]));
    }
    if node.domain.is_empty() && opset > NEWEST_OPSET {
        return unsupported(format!("supported up to opset {NEWEST_OPSET}"));
    }
    let since = entry.since.iter().copied().rfind(|&v| v <= opset).expect("opset >= since[0]");
    let spec = Spec::new(node, since);
    let operator = (entry.parse)(&spec).and_then(|op| spec.finish().map(|()| op));
    operator.map_err(|e| e.at(node.path(graph)))
}
