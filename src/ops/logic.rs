//! Comparisons, logic and selection; bounds; conversion between dtypes.

use super::*;
use crate::error::bail;
use crate::graph::ValueId;
use crate::kernel::{Binary, Unary};
use crate::tensor::DType;

pub(super) const OPERATORS: &[Entry] = operators! { "";
    "Equal" [7, 11, 13, 19] - => |_| Ok(Relation::Equal),
    "Less" [7, 9, 13] - => |_| Ok(Relation::Less),
    "LessOrEqual" [12, 16] - => |_| Ok(Relation::LessOrEqual),
    "Greater" [7, 9, 13] - => |_| Ok(Relation::Greater),
    "GreaterOrEqual" [12, 16] - => |_| Ok(Relation::GreaterOrEqual),
    "And" [7] - => |_| Ok(Relation::And),
    "Or" [7] - => |_| Ok(Relation::Or),
    "Xor" [7] - => |_| Ok(Relation::Xor),
    "Not" [1] - => |_| Ok(Not),
    "Where" [9, 16] d => |_| Ok(Where),
    "Min" [6, 8, 12, 13] d => |_| Ok(Extreme(Binary::Min)),
    "Max" [6, 8, 12, 13] d => |_| Ok(Extreme(Binary::Max)),
    "Clip" [6, 11, 12, 13] d => Clip::parse,
    "Cast" [6, 9, 13, 19, 21, 23, 24, 25] d => Cast::parse,
    "CastLike" [15, 19, 21, 23, 24, 25] d => |spec| {
        ignore_narrow_float_attributes(spec);
        Ok(Cast { to: None })
    },
    "Identity" [1, 13, 14, 16, 19, 21, 23, 24, 25] d => |_| Ok(Identity),
};

/// A function of two operands that gives bool.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Relation {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    And,
    Or,
    Xor,
}

impl Operator for Relation {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let dtype = cx.same_dtype(0, 1)?;
        if matches!(self, Relation::And | Relation::Or | Relation::Xor) && dtype != DType::Bool {
            return Err(err!(Shape, "the operands must be bool").expected(DType::Bool).found(dtype));
        }
        let shape = cx.broadcast(&[0, 1])?;
        cx.set(0, DType::Bool, shape);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        cx.elementwise(&[0, 1], |p, x| match self {
            Relation::Equal => p.binary(Binary::Equal, x[0], x[1]),
            Relation::Less => p.binary(Binary::Less, x[0], x[1]),
            Relation::LessOrEqual => p.binary(Binary::LessOrEqual, x[0], x[1]),
            Relation::Greater => p.binary(Binary::Less, x[1], x[0]),
            Relation::GreaterOrEqual => p.binary(Binary::LessOrEqual, x[1], x[0]),
            Relation::And => p.binary(Binary::And, x[0], x[1]),
            Relation::Or => p.binary(Binary::Or, x[0], x[1]),
            Relation::Xor => {
                let same = p.binary(Binary::Equal, x[0], x[1]);
                p.unary(Unary::Not, same)
            }
        })
    }
}

/// Logical not.
#[derive(Debug)]
struct Not;

impl Operator for Not {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let dtype = cx.dtype(0)?;
        if dtype != DType::Bool {
            return Err(err!(Shape, "the operand must be bool").expected(DType::Bool).found(dtype));
        }
        let shape = cx.shape(0)?;
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        cx.elementwise(&[0], |p, x| p.unary(Unary::Not, x[0]))
    }
}

/// `condition ? x : y`, all three broadcast.
#[derive(Debug)]
struct Where;

impl Operator for Where {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let condition = cx.dtype(0)?;
        if condition != DType::Bool {
            return Err(err!(Shape, "input 0, the condition, must be bool").expected(DType::Bool).found(condition));
        }
        let dtype = cx.same_dtype(1, 2)?;
        let shape = cx.broadcast(&[0, 1, 2])?;
        cx.set(0, dtype, shape);
        Ok(())
    }

    /// dx = c ? dy : 0 and dy' = c ? 0 : dy, summed over the axes along which an operand was repeated.
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (condition, dy) = (cx.input(0)?, cx.dy(0)?);
        for i in [1, 2] {
            if cx.needs(i) {
                let zero = cx.scalar_like(dy, 0.0)?;
                let (a, b) = if i == 1 { (dy, zero) } else { (zero, dy) };
                let d = cx.op("Where", &[condition, a, b])?;
                cx.set_unbroadcast(i, d)?;
            }
        }
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        cx.elementwise(&[0, 1, 2], |p, x| p.select(x[0], x[1], x[2]))
    }
}

/// The smallest or largest of any number of operands that broadcast; NaN if any is.
#[derive(Debug)]
struct Extreme(Binary);

impl Operator for Extreme {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        for i in 1..cx.input_count() {
            cx.same_dtype(0, i)?;
        }
        let all: Vec<usize> = (0..cx.input_count()).collect();
        let (dtype, shape) = (cx.dtype(0)?, cx.broadcast(&all)?);
        cx.set(0, dtype, shape);
        Ok(())
    }

    /// dxᵢ = [xᵢ = y] dy / (how many of the operands equal y): ties share evenly, as in ONNX Runtime.
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let dy = cx.dy(0)?;
        if cx.input_count() == 1 {
            cx.set(0, dy);
            return Ok(());
        }
        let y = cx.output(0)?;
        let mut winners = Vec::new();
        for i in 0..cx.input_count() {
            let x = cx.input(i)?;
            let wins = equal(cx, x, y)?;
            winners.push(cx.op_cast(wins, dy)?);
        }
        let ties = cx.op("Sum", &winners)?;
        let share = cx.div(dy, ties)?;
        for (i, wins) in winners.into_iter().enumerate() {
            if cx.needs(i) {
                let d = cx.mul(share, wins)?;
                cx.set_unbroadcast(i, d)?;
            }
        }
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let all: Vec<usize> = (0..cx.input_count()).collect();
        cx.elementwise(&all, |p, x| x[1..].iter().fold(x[0], |best, &b| p.binary(self.0, best, b)))
    }
}

/// `a = b` for floats; before opset 11 Equal took none.
pub(super) fn equal(cx: &mut GradCx<'_>, a: ValueId, b: ValueId) -> Result<ValueId> {
    if cx.opset() >= 11 {
        return cx.op("Equal", &[a, b]);
    }
    let (less, greater) = (cx.op("Less", &[a, b])?, cx.op("Greater", &[a, b])?);
    let differs = cx.op("Or", &[less, greater])?;
    cx.op("Not", &[differs])
}

/// `min(max(x, low), high)`: where the bounds cross, everything is `high`. The bounds are attributes
/// before opset 11 and inputs 1 and 2 from then on.
#[derive(Debug)]
struct Clip {
    low: Option<f32>,
    high: Option<f32>,
}

impl Clip {
    fn parse(spec: &Spec<'_>) -> Result<Self> {
        if spec.since() >= 11 {
            return Ok(Self { low: None, high: None });
        }
        Ok(Self { low: spec.float_opt("min")?, high: spec.float_opt("max")? })
    }

    /// The two bounds as values.
    fn bounds(&self, cx: &mut GradCx<'_>, x: ValueId) -> Result<[Option<ValueId>; 2]> {
        let mut bounds = [cx.input_opt(1), cx.input_opt(2)];
        for (bound, attribute) in bounds.iter_mut().zip([self.low, self.high]) {
            if let Some(value) = attribute {
                *bound = Some(cx.scalar_like(x, value as f64)?);
            }
        }
        Ok(bounds)
    }

    /// `mask ? dy : 0` as a product, which every opset has.
    fn masked(cx: &mut GradCx<'_>, mask: ValueId, dy: ValueId) -> Result<ValueId> {
        let mask = cx.op_cast(mask, dy)?;
        cx.mul(dy, mask)
    }

    /// The gradient of the bounds: that of the elements that they replaced. `low` replaces nothing
    /// where the bounds cross, since `high` then replaces everything.
    fn bound_gradients(cx: &mut GradCx<'_>, x: ValueId, dy: ValueId, [low, high]: [Option<ValueId>; 2]) -> Result<()> {
        let crossed = match (low, high) {
            (Some(low), Some(high)) => Some(cx.op("Greater", &[low, high])?),
            _ => None,
        };
        if let (true, Some(low)) = (cx.needs(1), low) {
            let mut mask = cx.op("Less", &[x, low])?;
            if let Some(crossed) = crossed {
                let ordered = cx.op("Not", &[crossed])?;
                mask = cx.op("And", &[mask, ordered])?;
            }
            let d = Self::masked(cx, mask, dy)?;
            cx.set_unbroadcast(1, d)?;
        }
        if let (true, Some(high)) = (cx.needs(2), high) {
            let mut mask = cx.op("Greater", &[x, high])?;
            if let Some(crossed) = crossed {
                mask = cx.op("Or", &[mask, crossed])?;
            }
            let d = Self::masked(cx, mask, dy)?;
            cx.set_unbroadcast(2, d)?;
        }
        Ok(())
    }
}

impl Operator for Clip {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        for i in [1, 2] {
            if cx.has(i) {
                cx.same_dtype(0, i)?;
            }
        }
        let (dtype, shape) = (cx.dtype(0)?, cx.shape(0)?);
        cx.set(0, dtype, shape);
        Ok(())
    }

    /// dx = dy where low ≤ x ≤ high (at the bounds too), else 0.
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (x, dy) = (cx.input(0)?, cx.dy(0)?);
        let bounds = self.bounds(cx, x)?;
        if cx.needs(0) {
            let below = bounds[0].map(|low| cx.op("Less", &[x, low])).transpose()?;
            let above = bounds[1].map(|high| cx.op("Greater", &[x, high])).transpose()?;
            let outside = match (below, above) {
                (Some(below), Some(above)) => Some(cx.op("Or", &[below, above])?),
                (one, other) => one.or(other),
            };
            let dx = match outside {
                Some(outside) => {
                    let inside = cx.op("Not", &[outside])?;
                    Self::masked(cx, inside, dy)?
                }
                None => dy,
            };
            cx.set(0, dx);
        }
        Self::bound_gradients(cx, x, dy, bounds)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let mut reads = vec![cx.input(0)?];
        let mut at = [None, None];
        for i in [1, 2] {
            if let Some(bound) = cx.input_opt(i)? {
                if bound.len() != 1 {
                    return Err(err!(Shape, "input {i}, a bound, must be a scalar")
                        .expected("one element")
                        .found(bound.len()));
                }
                at[i - 1] = Some(reads.len());
                reads.push(cx.reshape(bound, &[]));
            }
        }
        let to = cx.output(0)?;
        cx.map(&reads, to, |p, x| {
            let mut y = x[0];
            for (side, (attribute, op)) in [(self.low, Binary::Max), (self.high, Binary::Min)].into_iter().enumerate() {
                let bound = at[side].map(|k| x[k]).or_else(|| Some(p.constant_like(attribute? as f64, y)));
                if let Some(bound) = bound {
                    y = p.binary(op, y, bound);
                }
            }
            y
        });
        Ok(())
    }
}

/// Attributes that matter for float8 targets only, which ontrain does not have.
fn ignore_narrow_float_attributes(spec: &Spec<'_>) {
    if spec.since() >= 19 {
        spec.ignore("saturate");
    }
    if spec.since() >= 24 {
        spec.ignore("round_mode");
    }
}

/// Conversion to a dtype, or to that of input 1 (CastLike).
#[derive(Debug)]
struct Cast {
    to: Option<DType>,
}

impl Cast {
    fn parse(spec: &Spec<'_>) -> Result<Self> {
        ignore_narrow_float_attributes(spec);
        let Some(to) = spec.int_opt("to")? else {
            bail!(Graph, "attribute to is required and missing");
        };
        let number = i32::try_from(to).map_err(|_| err!(Graph, "attribute to is no data type").found(to))?;
        Ok(Self { to: Some(DType::from_onnx(number)?) })
    }
}

impl Operator for Cast {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        cx.dtype(0)?;
        let to = match self.to {
            Some(to) => to,
            None => cx.dtype(1)?,
        };
        let shape = cx.shape(0)?;
        cx.set(0, to, shape);
        if let (true, Some(dims)) = (to.is_int(), cx.dims(0)) {
            cx.set_dims(0, dims);
        }
        Ok(())
    }

    /// dx = dy in the dtype of x.
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (x, dy) = (cx.input(0)?, cx.dy(0)?);
        let dx = cx.op_cast(dy, x)?;
        cx.set(0, dx);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let x = cx.input(0)?;
        let (to, _) = cx.output_type(0)?;
        if x.dtype == to {
            cx.alias(0, x);
            return Ok(());
        }
        cx.elementwise(&[0], |p, x| p.cast(x[0], to))
    }
}

/// The input itself.
#[derive(Debug)]
struct Identity;

impl Operator for Identity {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, shape) = (cx.dtype(0)?, cx.shape(0)?);
        cx.set(0, dtype, shape);
        if let Some(dims) = cx.dims(0) {
            cx.set_dims(0, dims);
        }
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let dy = cx.dy(0)?;
        cx.set(0, dy);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let x = cx.input(0)?;
        cx.alias(0, x);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::Attribute;
    use crate::ops::testing::Case;
    use crate::tensor::{DType, Tensor};

    fn bools(values: &[bool]) -> Tensor {
        Tensor::from_bools(&[values.len()], values).unwrap()
    }

    #[test]
    fn relations() {
        let ints = |op| Case::op(op).indices("a", &[3], &[1, 2, 3]).indices("b", &[1], &[2]);
        ints("Equal").gives(&[3], &[0.0, 1.0, 0.0]);
        ints("Less").gives(&[3], &[1.0, 0.0, 0.0]);
        ints("LessOrEqual").gives(&[3], &[1.0, 1.0, 0.0]);
        ints("Greater").gives(&[3], &[0.0, 0.0, 1.0]);
        ints("GreaterOrEqual").gives(&[3], &[0.0, 1.0, 1.0]);
        let nan = |op| Case::op(op).input("a", &[2], &[f64::NAN, 1.0]).input("b", &[], &[1.0]);
        nan("Equal").gives(&[2], &[0.0, 1.0]);
        nan("Greater").gives(&[2], &[0.0, 0.0]);
        nan("GreaterOrEqual").gives(&[2], &[0.0, 1.0]);
        let logic = |op| {
            let (a, b) = (bools(&[false, false, true, true]), bools(&[false, true, false, true]));
            Case::op(op).tensor("a", a, false).tensor("b", b, false)
        };
        logic("And").gives(&[4], &[0.0, 0.0, 0.0, 1.0]);
        logic("Or").gives(&[4], &[0.0, 1.0, 1.0, 1.0]);
        logic("Xor").gives(&[4], &[0.0, 1.0, 1.0, 0.0]);
        logic("Equal").gives(&[4], &[1.0, 0.0, 0.0, 1.0]);
        Case::op("Not").tensor("a", bools(&[false, true]), false).gives(&[2], &[1.0, 0.0]);
        assert!(ints("And").fails().contains("bool"));
        assert!(Case::op("Not").indices("a", &[1], &[1]).fails().contains("expected bool; found int64"));
        let mixed = Case::op("Less").indices("a", &[1], &[1]).input("b", &[1], &[1.0]);
        assert!(mixed.fails().contains("differ in dtype"));
        assert!(
            Case::op("LessOrEqual")
                .opset(11)
                .input("a", &[], &[1.0])
                .input("b", &[], &[1.0])
                .fails()
                .contains("opset 12")
        );
    }

    #[test]
    fn selection() {
        let case = |x: &[usize], y: &[usize]| {
            let condition = Tensor::from_bools(&[2, 1], &[true, false]).unwrap();
            Case::op("Where").tensor("c", condition, false).random("x", x, -1.0, 1.0).random("y", y, -1.0, 1.0)
        };
        case(&[2, 3], &[2, 3]).check();
        case(&[3], &[]).check();
        case(&[1, 3], &[4, 2, 1]).check();
        let condition = bools(&[true, false]);
        let where_ = Case::op("Where").tensor("c", condition, false);
        where_.input("x", &[1], &[1.0]).input("y", &[2], &[f64::NAN, 4.0]).gives(&[2], &[1.0, 4.0]);
        let wrong = Case::op("Where").indices("c", &[1], &[1]).input("x", &[], &[1.0]).input("y", &[], &[1.0]);
        assert!(wrong.fails().contains("condition"));
    }

    #[test]
    fn extremes() {
        for op in ["Min", "Max"] {
            for opset in [10, 21] {
                let case = |op| Case::op(op).opset(opset);
                case(op).random("a", &[2, 3], -1.0, 1.0).random("b", &[2, 3], -1.0, 1.0).check();
                case(op)
                    .random("a", &[3], -1.0, 1.0)
                    .random("b", &[2, 1], -1.0, 1.0)
                    .random("c", &[], 0.0, 0.1)
                    .check();
                case(op).random("a", &[3], -1.0, 1.0).check();
            }
        }
        Case::op("Max").input("a", &[2], &[1.0, f64::NEG_INFINITY]).input("b", &[], &[0.0]).gives(&[2], &[1.0, 0.0]);
        Case::op("Min").indices("a", &[2], &[1, -7]).indices("b", &[2], &[3, -9]).gives(&[2], &[1.0, -9.0]);
        let nan = Case::op("Min").input("a", &[1], &[f64::NAN]).input("b", &[1], &[0.0]).run();
        assert!(nan[0].to_f64s()[0].is_nan());
        // Ties share evenly: moving both operands by h moves y by h, half of it through each, which is
        // what central differences of the kink see as well.
        Case::op("Max").input("a", &[2], &[1.0, 2.0]).input("b", &[2], &[1.0, 0.0]).check();
    }

    #[test]
    fn clip() {
        let x = |case: Case| case.input("x", &[5], &[-2.0, -0.5, 0.1, 0.7, 3.0]);
        x(Case::op("Clip").opset(8)).check();
        x(Case::op("Clip").opset(7)).gives(&[5], &[-2.0, -0.5, 0.1, 0.7, 3.0]);
        let old = |min: Option<f32>, max: Option<f32>| {
            let mut case = Case::op("Clip").opset(10);
            for (name, value) in [("min", min), ("max", max)] {
                if let Some(value) = value {
                    case = case.attr(name, Attribute::Float(value));
                }
            }
            x(case)
        };
        old(Some(-1.0), Some(0.5)).gives(&[5], &[-1.0, -0.5, 0.1, 0.5, 0.5]);
        old(Some(-1.0), Some(0.5)).check();
        old(None, Some(0.5)).check();
        old(Some(-1.0), None).check();
        let new = |low: f64, high: f64| x(Case::op("Clip")).input("low", &[], &[low]).input("high", &[], &[high]);
        new(-1.0, 0.5).gives(&[5], &[-1.0, -0.5, 0.1, 0.5, 0.5]);
        new(2.0, 0.5).gives(&[5], &[0.5; 5]);
        new(-1.0, 0.5).check();
        new(2.0, 0.5).check();
        x(Case::op("Clip")).none().input("high", &[], &[0.5]).check();
        x(Case::op("Clip")).input("low", &[], &[0.0]).check();
        x(Case::op("Clip")).constant("low", &[1], &[0.0]).gives(&[5], &[0.0, 0.0, 0.1, 0.7, 3.0]);
        let ints = Case::op("Clip").opset(12).indices("x", &[3], &[-5, 0, 9]);
        ints.indices("low", &[], &[-1]).indices("high", &[], &[4]).gives(&[3], &[-1.0, 0.0, 4.0]);
        assert!(x(Case::op("Clip")).constant("low", &[2], &[0.0, 0.0]).fails().contains("scalar"));
        assert!(x(Case::op("Clip")).attr("min", Attribute::Float(0.0)).fails().contains("attribute min"));
    }

    /// The gradient at a bound is 1, as in ONNX Runtime: y moves with x on the inner side.
    #[test]
    fn clip_at_the_bound() {
        use crate::graph::{Graph, Node, TensorType};
        let mut graph = Graph::new("clip", 21);
        let x = graph.add_input("x", TensorType::known(DType::F32, &[1])).unwrap();
        let low = graph.add_initializer("low", Tensor::scalar(0.5f32)).unwrap();
        let loss = graph.add_value("loss", None).unwrap();
        graph.nodes.push(Node {
            name: "clip".into(),
            domain: String::new(),
            op_type: "Clip".into(),
            inputs: vec![Some(x), Some(low)],
            outputs: vec![Some(loss)],
            attributes: Default::default(),
        });
        let mut facts = crate::ops::infer_graph(&mut graph).unwrap();
        graph.outputs = crate::grad::differentiate(&mut graph, &mut facts, loss, &[x]).unwrap();
        let at = Tensor::new(&[1], &[0.5f32]).unwrap();
        let dx = crate::ops::interpret(&graph, &[Some(at)], &Default::default()).unwrap();
        assert_eq!(dx[0].to_f64s(), [1.0]);
    }

    #[test]
    fn casts() {
        let to = |dtype: DType| Case::op("Cast").int("to", dtype.onnx() as i64);
        to(DType::F32).random("x", &[2, 3], -1.0, 1.0).check();
        to(DType::I32).input("x", &[4], &[-1.9, 1.9, 1e20, 0.0]).gives(&[4], &[-1.0, 1.0, 2147483647.0, 0.0]);
        to(DType::Bool).input("x", &[3], &[0.0, 0.5, -2.0]).gives(&[3], &[0.0, 1.0, 1.0]);
        to(DType::F64).tensor("x", bools(&[true, false]), false).gives(&[2], &[1.0, 0.0]);
        let f16 = to(DType::F16).input("x", &[1], &[1.0 + 1.0 / 4096.0]).run();
        assert_eq!((f16[0].dtype(), f16[0].to_f64s()), (DType::F16, vec![1.0]));
        to(DType::F32).int("saturate", 1).indices("x", &[1], &[3]).gives(&[1], &[3.0]);
        for (number, what) in [(17, "float8"), (8, "string"), (22, "4-bit")] {
            let message = Case::op("Cast").int("to", number).indices("x", &[1], &[3]).fails();
            assert!(message.contains("Unsupported") && message.contains(what), "{message}");
        }
        assert!(Case::op("Cast").indices("x", &[1], &[3]).fails().contains("attribute to"));
        let like = Case::op("CastLike").random("x", &[3], -1.0, 1.0);
        like.tensor("like", Tensor::scalar(1.0f32), false).check();
        let like = Case::op("CastLike").input("x", &[1], &[1.5]).indices("like", &[2], &[0, 0]).run();
        assert_eq!(like[0].dtype(), DType::I64);
        Case::op("Identity").random("x", &[3], -1.0, 1.0).check();
        Case::op("Identity").indices("x", &[2], &[7, 8]).gives(&[2], &[7.0, 8.0]);
    }
}
