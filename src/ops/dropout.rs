//! Dropout.

use super::reduce::wide;
use super::*;
use crate::error::{bail, err};
use crate::kernel::{Binary, Expr, ExprId, Program, View};
use crate::tensor::{DType, Tensor};

pub(super) const OPERATORS: &[Entry] = operators! { "";
    "Dropout" [7, 10, 12, 13, 22] d => |s| Ok(Dropout {
        training: s.since() >= 12,
        float_mask: s.since() < 10,
        seed: if s.since() >= 12 { s.int_opt("seed")? } else { s.float("ratio", 0.5)?; None },
    }),
};

pub(super) const MS_OPERATORS: &[Entry] = operators! { MS; "DropoutGrad" [1] - => |_| Ok(DropoutGrad) };

/// The ratio of operators that are not given one.
const RATIO: f64 = 0.5;

/// `x / (1 - ratio)` with probability `1 - ratio`, else 0, and a mask of what was kept; `x` itself
/// unless `training_mode` is true.
///
/// A ratio of 1 gives zeros. The random numbers are those of the run; nodes of one `seed` draw the
/// same ones, nodes without it have a stream each.
#[derive(Debug)]
struct Dropout {
    /// Has it a training mode (opset 12)? Before, it is the identity.
    training: bool,
    /// Is the mask of the dtype of `x` instead of bool?
    float_mask: bool,
    seed: Option<i64>,
}

/// How a node runs, as far as it is known while planning.
enum Mode {
    Identity,
    /// Always training, or as a scalar of type bool says.
    Training(Option<View>),
}

/// `training_mode` (input `i`; `absent` if it is left out).
fn mode(cx: &mut LowerCx<'_>, i: usize, absent: bool) -> Result<Mode> {
    if !cx.has(i) {
        return Ok(if absent { Mode::Training(None) } else { Mode::Identity });
    }
    match cx.constant(i).map(|t| t.to_f64s().first().is_some_and(|&flag| flag != 0.0)) {
        Some(true) => Ok(Mode::Training(None)),
        Some(false) => Ok(Mode::Identity),
        None => {
            let flag = cx.input(i)?;
            Ok(Mode::Training(Some(cx.reshape(flag, &[]))))
        }
    }
}

/// The ratio (input `i`) in a program: a constant, or the program's next read.
fn ratio(cx: &mut LowerCx<'_>, i: usize, dtype: DType, p: &mut Program, reads: &mut Vec<View>) -> Result<ExprId> {
    if !cx.has(i) {
        return Ok(p.constant(RATIO, dtype));
    }
    if let Some(value) = cx.constant(i).and_then(|t| t.to_f64s().first().copied()) {
        if !(0.0..=1.0).contains(&value) {
            return Err(err!(Shape, "the ratio of Dropout").expected("0 to 1").found(value));
        }
        return Ok(p.constant(value, dtype));
    }
    let view = cx.input(i)?;
    let read = next(p, reads, cx.reshape(view, &[]));
    Ok(p.cast(read, dtype))
}

/// Adds a read.
fn next(p: &mut Program, reads: &mut Vec<View>, view: View) -> ExprId {
    reads.push(view.clone());
    p.input(reads.len() - 1, view.dtype)
}

/// `x / (1 - ratio)` where `kept`, else 0.
fn scaled(p: &mut Program, x: ExprId, ratio: ExprId, kept: ExprId) -> ExprId {
    let one = p.constant_like(1.0, ratio);
    let rest = p.sub(one, ratio);
    let x = p.cast(x, p.dtype(ratio));
    let y = p.div(x, rest);
    let zero = p.constant_like(0.0, y);
    p.select(kept, y, zero)
}

impl Dropout {
    fn mask_dtype(&self, x: DType) -> DType {
        if self.float_mask { x } else { DType::Bool }
    }

    fn identity(&self, cx: &mut LowerCx<'_>, x: View) -> Result<()> {
        if cx.has_output(1) {
            let (dtype, shape) = cx.output_type(1)?;
            let one = Tensor::from_f64s(dtype, &[], &[1.0])?;
            let all = cx.constant_view(one).broadcast_to(&shape);
            cx.alias(1, all);
        }
        cx.alias(0, x);
        Ok(())
    }
}

impl Operator for Dropout {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, shape) = (cx.float(0)?, cx.shape(0)?);
        if !self.training && cx.input_count() > 1 {
            bail!(Graph, "Dropout has one input before opset 12");
        }
        if cx.has(1) {
            cx.float(1)?;
            cx.one_element(1)?;
        }
        if cx.has(2) {
            cx.one_element(2)?;
            if cx.dtype(2)? != DType::Bool {
                return Err(err!(Shape, "training_mode must be bool").expected(DType::Bool).found(cx.dtype(2)?));
            }
        }
        cx.set(1, self.mask_dtype(dtype), shape.clone());
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        if cx.needs(1) {
            return Err(cx.error("the ratio has no gradient"));
        }
        let dy = cx.dy(0)?;
        let mode = cx.input_opt(2);
        let off = mode.is_none_or(|id| cx.facts.constant(id).is_some_and(|t| t.to_f64s().first() == Some(&0.0)));
        let dx = match self.training && !off {
            false => dy,
            true => {
                let inputs = [Some(dy), Some(cx.output(1)?), cx.input_opt(1), mode];
                cx.node(MS, "DropoutGrad", &inputs, &[], 1)?[0]
            }
        };
        cx.set(0, dx);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let x = cx.input(0)?;
        let Mode::Training(flag) = (if self.training { mode(cx, 2, false)? } else { Mode::Identity }) else {
            return self.identity(cx, x);
        };
        let stream = match self.seed {
            // Above all streams that are counted.
            Some(seed) => {
                cx.keep();
                (seed ^ (seed >> 32)) as u32 | 1 << 31
            }
            None => cx.random_stream(),
        };
        let (mut p, mut reads) = (Program::new(), Vec::new());
        let value = next(&mut p, &mut reads, x.clone());
        let work = wide(x.dtype);
        let ratio = ratio(cx, 1, work, &mut p, &mut reads)?;
        let random = p.push(Expr::Random(stream), DType::F32);
        let threshold = p.cast(ratio, DType::F32);
        let mut kept = p.binary(Binary::LessOrEqual, threshold, random);
        let y = match flag {
            None => scaled(&mut p, value, ratio, kept),
            Some(flag) => {
                let flag = next(&mut p, &mut reads, flag);
                let y = scaled(&mut p, value, ratio, kept);
                let off = p.unary(crate::kernel::Unary::Not, flag);
                kept = p.binary(Binary::Or, kept, off);
                let x = p.cast(value, work);
                p.select(flag, y, x)
            }
        };
        let y = p.cast(y, x.dtype);
        p.output(y);
        let mut writes = vec![cx.output(0)?];
        if cx.has_output(1) {
            p.output(kept);
            writes.push(cx.output(1)?);
        }
        cx.fused(x.shape.clone(), 0, p, reads, writes);
        Ok(())
    }
}

/// `dx` from `dy` and the mask (and ratio and training mode as given to Dropout; training if that is
/// left out).
#[derive(Debug)]
struct DropoutGrad;

impl Operator for DropoutGrad {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, shape) = (cx.float(0)?, cx.shape(0)?);
        cx.expect_shape(1, &shape)?;
        if cx.dtype(1)? != DType::Bool {
            return Err(err!(Shape, "the mask must be bool").expected(DType::Bool).found(cx.dtype(1)?));
        }
        for i in (2..4).filter(|&i| cx.has(i)) {
            cx.one_element(i)?;
        }
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let (dy, mask) = (cx.input(0)?, cx.input(1)?);
        let Mode::Training(flag) = mode(cx, 3, true)? else {
            cx.alias(0, dy);
            return Ok(());
        };
        let (mut p, mut reads) = (Program::new(), Vec::new());
        let (d, kept) = (next(&mut p, &mut reads, dy.clone()), next(&mut p, &mut reads, mask));
        let work = wide(dy.dtype);
        let ratio = ratio(cx, 2, work, &mut p, &mut reads)?;
        let mut dx = scaled(&mut p, d, ratio, kept);
        if let Some(flag) = flag {
            let flag = next(&mut p, &mut reads, flag);
            let plain = p.cast(d, work);
            dx = p.select(flag, dx, plain);
        }
        let dx = p.cast(dx, dy.dtype);
        p.output(dx);
        let to = cx.output(0)?;
        cx.fused(dy.shape.clone(), 0, p, reads, vec![to]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::Case;
    use crate::tensor::{DType, Tensor};

    fn flag(case: Case, on: bool) -> Case {
        case.tensor("training_mode", Tensor::from_bools(&[], &[on]).unwrap(), false)
    }

    fn ones(ratio: Option<f64>) -> Case {
        let case = Case::op("Dropout").outputs(2).input("x", &[10_000], &[1.0; 10_000]);
        match ratio {
            Some(ratio) => case.constant("ratio", &[], &[ratio]),
            None => case.none(),
        }
    }

    #[test]
    fn keeps_a_share_and_scales_it() {
        for (ratio, want) in [(Some(0.25), 0.25), (None, 0.5), (Some(0.0), 0.0), (Some(1.0), 1.0), (Some(0.999), 0.999)]
        {
            let out = flag(ones(ratio), true).run();
            let (y, mask) = (out[0].to_f64s(), out[1].to_f64s());
            let dropped = mask.iter().filter(|&&m| m == 0.0).count() as f64 / 10_000.0;
            assert!((dropped - want).abs() < 0.015, "{ratio:?}: {dropped}");
            assert!(y.iter().zip(&mask).all(|(&y, &m)| if m == 0.0 {
                y == 0.0
            } else {
                (y - 1.0 / (1.0 - want)).abs() < 1e-9
            }));
        }
    }

    #[test]
    fn is_the_identity_outside_training() {
        for case in [flag(ones(Some(0.3)), false), ones(Some(0.3)), ones(None)] {
            let out = case.run();
            assert!(out[0].to_f64s().iter().chain(&out[1].to_f64s()).all(|&v| v == 1.0));
            assert_eq!(out[1].dtype(), DType::Bool);
        }
        for (opset, dtype) in [(7, DType::F64), (10, DType::Bool)] {
            let case = Case::op("Dropout").opset(opset).outputs(2).input("x", &[2], &[3.0, 4.0]);
            let case = case.attr("ratio", crate::graph::Attribute::Float(0.9));
            let out = case.run();
            assert_eq!((out[0].to_f64s(), out[1].to_f64s()), (vec![3.0, 4.0], vec![1.0, 1.0]));
            assert_eq!(out[1].dtype(), dtype);
        }
    }

    #[test]
    fn seed_chooses_the_numbers() {
        let mask = |seed| flag(ones(None).int("seed", seed), true).run().swap_remove(1);
        assert_eq!(mask(3), mask(3));
        assert_ne!(mask(3), mask(4));
    }

    #[test]
    fn gradients() {
        let x = || Case::op("Dropout").random("x", &[4, 5], -1.0, 1.0);
        flag(x().constant("ratio", &[], &[0.4]), true).check();
        flag(x().none(), true).check();
        flag(x().constant("ratio", &[1], &[0.0]), true).check();
        flag(x().none(), false).check();
        x().check();
        x().opset(10).check();
    }

    #[test]
    fn errors() {
        assert!(flag(ones(Some(1.5)), true).fails().contains("0 to 1"));
        assert!(flag(ones(Some(-0.1)), true).fails().contains("0 to 1"));
        assert!(ones(None).opset(10).constant("training_mode", &[], &[1.0]).fails().contains("one input"));
    }
}
