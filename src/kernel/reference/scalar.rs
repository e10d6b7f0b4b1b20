//! Fused kernels of one element, without the heap: optimizers compute their coefficients in one at every
//! step, and a step allocates nothing. The same functions as [`expr`](super::expr), one number at a time.

use super::super::{
    Binary, Buffers, Expr, ExprId, Fused, Program, ReduceOp, RunContext, Scalar, Step, Unary, View, philox,
};
use super::expr::{
    as_binary, float_binary, float_compare, float_identity, float_unary, int_binary, int_identity, int_unary, undefined,
};
use super::values::{int_to_float, round, truncate, wrap};
use super::{inside, mixed_operands};
use crate::error::{Result, err};
use crate::tensor::DType;
use half::{bf16, f16};

/// Programs of more expressions take the general way.
const MOST: usize = 64;

#[derive(Clone, Copy)]
enum Number {
    Float(f64),
    /// `u64` by its bits.
    Int(i64),
}

/// Does [`fused`] take this kernel?
pub(super) fn takes(k: &Fused) -> bool {
    k.shape.iter().all(|&n| n == 1) && k.program.exprs.len() <= MOST
}

/// Runs a kernel that [`takes`] has taken. All values are computed before any is written.
pub(super) fn fused(k: &Fused, step: &Step, buffers: &mut dyn Buffers, cx: &RunContext) -> Result<()> {
    let program = &k.program;
    let mut used = 0u64;
    for id in &program.outputs {
        used |= 1 << id.0;
    }
    for (at, typed) in program.exprs.iter().enumerate().rev() {
        if used >> at & 1 == 1 {
            Program::operands(typed.expr).for_each(|id| used |= 1 << id.0);
        }
    }
    let mut values = [Number::Int(0); MOST];
    for (at, typed) in program.exprs.iter().enumerate() {
        if used >> at & 1 == 1 {
            values[at] = compute(program, ExprId(at as u32), &values, step, buffers, cx)?;
            debug_assert!(matches!(values[at], Number::Float(_)) == typed.dtype.is_float());
        }
    }
    for (id, view) in program.outputs.iter().zip(&step.writes) {
        store(buffers, view, values[id.index()])?;
    }
    Ok(())
}

fn compute(
    program: &Program,
    id: ExprId,
    values: &[Number; MOST],
    step: &Step,
    buffers: &dyn Buffers,
    cx: &RunContext,
) -> Result<Number> {
    let of = |id: ExprId| values[id.index()];
    let dtype = program.dtype(id);
    Ok(match program.exprs[id.index()].expr {
        Expr::Input(k) => load(buffers, &step.reads[k])?,
        Expr::Const(scalar) => constant(scalar, dtype),
        Expr::Unary(op, a) => unary(op, of(a), dtype)?,
        Expr::Binary(op, a, b) => binary(op, of(a), of(b), program.dtype(a))?,
        Expr::Select(c, a, b) => match of(c) {
            Number::Int(c) => of(if c != 0 { a } else { b }),
            Number::Float(_) => return Err(mixed_operands("Select")),
        },
        Expr::Cast(a) => cast(of(a), program.dtype(a), dtype),
        Expr::RowReduce(op, a) => reduce(op, of(a), dtype)?,
        Expr::Coordinate(_) => Number::Int(0),
        Expr::Random(stream) => Number::Float(philox::uniform(cx, stream, 0) as f64),
    })
}

fn constant(scalar: Scalar, dtype: DType) -> Number {
    match scalar {
        s if dtype.is_float() => Number::Float(round(s.as_f64(), dtype)),
        Scalar::Float(x) => Number::Int(truncate(x, dtype)),
        Scalar::Int(x) => Number::Int(wrap(x, dtype)),
    }
}

fn unary(op: Unary, a: Number, dtype: DType) -> Result<Number> {
    let none = || undefined(op, dtype);
    Ok(match a {
        Number::Float(a) => Number::Float(float_unary(op).ok_or_else(none)?(a)),
        Number::Int(a) => Number::Int(wrap(int_unary(op, dtype).ok_or_else(none)?(a), dtype)),
    })
}

/// `dtype` is that of the operands.
fn binary(op: Binary, a: Number, b: Number, dtype: DType) -> Result<Number> {
    let none = || undefined(op, dtype);
    Ok(match (a, b) {
        (Number::Float(a), Number::Float(b)) if op.compares() => {
            Number::Int(float_compare(op).ok_or_else(none)?(&a, &b) as i64)
        }
        (Number::Float(a), Number::Float(b)) => Number::Float(float_binary(op).ok_or_else(none)?(a, b)),
        (Number::Int(a), Number::Int(b)) => Number::Int(wrap(int_binary(op, dtype).ok_or_else(none)?(a, b), dtype)),
        _ => return Err(mixed_operands("an elementwise function")),
    })
}

/// A row of one element.
fn reduce(op: ReduceOp, a: Number, dtype: DType) -> Result<Number> {
    let identity = match a {
        Number::Float(_) => Number::Float(float_identity(op)),
        Number::Int(_) => Number::Int(int_identity(op, dtype)),
    };
    binary(as_binary(op), identity, a, dtype)
}

fn cast(x: Number, from: DType, to: DType) -> Number {
    match x {
        Number::Float(x) if to.is_float() => Number::Float(round(round(x, from), to)),
        Number::Float(x) => Number::Int(truncate(round(x, from), to)),
        Number::Int(x) if to.is_float() => Number::Float(int_to_float(x, from, to)),
        Number::Int(x) => Number::Int(wrap(x, to)),
    }
}

/// The bytes of the one element that a view sees.
fn place(view: &View, bytes: usize) -> Result<std::ops::Range<usize>> {
    inside(view, bytes)?;
    let size = view.dtype.size();
    Ok(view.offset * size..(view.offset + 1) * size)
}

fn load(buffers: &dyn Buffers, view: &View) -> Result<Number> {
    let bytes = buffers.bytes(view.buffer);
    let bytes = &bytes[place(view, bytes.len())?];
    macro_rules! read {
        ($t:ty) => {
            <$t>::from_le_bytes(bytes.try_into().map_err(|_| err!(Plan, "an element of another size"))?)
        };
    }
    Ok(match view.dtype {
        DType::F32 => Number::Float(read!(f32) as f64),
        DType::F64 => Number::Float(read!(f64)),
        DType::F16 => Number::Float(read!(f16).to_f64()),
        DType::BF16 => Number::Float(read!(bf16).to_f64()),
        DType::U8 | DType::Bool => Number::Int(read!(u8) as i64),
        DType::I8 => Number::Int(read!(i8) as i64),
        DType::U16 => Number::Int(read!(u16) as i64),
        DType::I16 => Number::Int(read!(i16) as i64),
        DType::U32 => Number::Int(read!(u32) as i64),
        DType::I32 => Number::Int(read!(i32) as i64),
        DType::I64 | DType::U64 => Number::Int(read!(i64)),
    })
}

fn store(buffers: &mut dyn Buffers, view: &View, value: Number) -> Result<()> {
    let to = buffers.bytes_mut(view.buffer);
    let at = place(view, to.len())?;
    let to = &mut to[at];
    let dtype = view.dtype;
    match value {
        Number::Float(x) if dtype.is_float() => {
            let x = round(x, dtype);
            match dtype {
                DType::F32 => to.copy_from_slice(&(x as f32).to_le_bytes()),
                DType::F16 => to.copy_from_slice(&f16::from_f64(x).to_le_bytes()),
                DType::BF16 => to.copy_from_slice(&bf16::from_f64(x).to_le_bytes()),
                _ => to.copy_from_slice(&x.to_le_bytes()),
            }
        }
        // Little-endian: the low bytes come first, and cutting the rest off is wrapping.
        Number::Int(x) if !dtype.is_float() => to.copy_from_slice(&wrap(x, dtype).to_le_bytes()[..dtype.size()]),
        Number::Float(_) => return Err(err!(Unsupported, "storing floats as {dtype} without a Cast")),
        Number::Int(_) => return Err(err!(Unsupported, "storing integers as {dtype} without a Cast")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{HostBuffers, expr};
    use super::*;
    use crate::tensor::Tensor;

    /// Every function on every dtype gives, in the same order, what the general way gives: bits or refusal.
    #[test]
    fn agrees_with_the_general_way() {
        use Binary::*;
        let samples = [0.0, -0.0, 1.0, -1.0, 2.5, -3.75, 100.0, f64::NAN, f64::INFINITY, 1e-3];
        let binaries = [Add, Sub, Mul, Div, Pow, Min, Max, And, Or, Equal, Less, LessOrEqual];
        let unaries = [
            Unary::Not,
            Unary::Neg,
            Unary::Abs,
            Unary::Sign,
            Unary::Exp,
            Unary::Log,
            Unary::Sqrt,
            Unary::Reciprocal,
            Unary::Erf,
            Unary::Tanh,
            Unary::Sigmoid,
        ];
        let mut computed = 0;
        for dtype in DType::ALL {
            for (i, &x) in samples.iter().enumerate() {
                let y = samples[(i * 7 + 3) % samples.len()];
                let mut programs = Vec::new();
                let mut program = |make: &dyn Fn(&mut Program, ExprId, ExprId) -> ExprId| {
                    let mut p = Program::new();
                    let (a, b) = (p.input(0, dtype), p.input(1, dtype));
                    let out = make(&mut p, a, b);
                    p.output(out);
                    programs.push(p);
                };
                for op in unaries {
                    program(&|p, a, _| p.unary(op, a));
                }
                for op in binaries {
                    program(&|p, a, b| p.binary(op, a, b));
                }
                for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min] {
                    program(&|p, a, _| p.row(op, a));
                }
                for to in DType::ALL {
                    program(&|p, a, _| p.cast(a, to));
                }
                program(&|p, a, b| {
                    let c = p.binary(Less, a, b);
                    p.select(c, a, b)
                });
                program(&|p, a, _| p.scale(a, 2.3));
                program(&|p, _, _| p.push(Expr::Random(3), DType::F32));
                for program in programs {
                    let out = program.dtype(program.outputs[0]);
                    let k = Fused { shape: vec![1, 1], row_axes: 1, program };
                    assert!(takes(&k));
                    let run = |general: bool| {
                        let mut buffers = HostBuffers::new();
                        let mut view = |t: &Tensor| View {
                            offset: 1,
                            shape: vec![1, 1],
                            strides: vec![0, 0],
                            ..View::contiguous(buffers.add(t), t.dtype(), &[1])
                        };
                        let one = |v: f64| Tensor::from_f64s(dtype, &[2], &[7.0, v]).unwrap();
                        let (a, b) = (view(&one(x)), view(&one(y)));
                        let w = view(&Tensor::zeros(out, &[2]).unwrap());
                        let step = Step {
                            kernel: crate::kernel::Kernel::Copy,
                            reads: vec![a, b],
                            writes: vec![w.clone()],
                            from: "t".into(),
                        };
                        let cx = RunContext::new(4, 2);
                        let done = if general {
                            expr::fused(&k, &step, &mut buffers, &cx)
                        } else {
                            fused(&k, &step, &mut buffers, &cx)
                        };
                        done.map(|()| buffers.bytes(w.buffer).to_vec()).map_err(|e| e.kind())
                    };
                    let (want, got) = (run(true), run(false));
                    let nan = |r: &Result<Vec<u8>, _>| match r {
                        Ok(b) => Tensor::from_bytes(out, &[2], b).unwrap().to_f64s()[1].is_nan(),
                        Err(_) => false,
                    };
                    assert!(got == want || (nan(&got) && nan(&want)), "{} of {dtype} {x} {y}", k.program);
                    computed += got.is_ok() as usize;
                }
            }
        }
        assert!(computed > 3000, "{computed}");
    }
}
