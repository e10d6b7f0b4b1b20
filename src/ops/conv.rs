//! Convolution and its gradient.

use super::window::{Slide, Window};
use super::*;
use crate::error::bail;
use crate::graph::Attribute;
use crate::kernel::{Conv as ConvKernel, Direction, Kernel, Program, Reduce, ReduceOp};
use crate::tensor::{Dim, show_dims};

pub(super) const OPERATORS: &[Entry] = operators! { "";
    "Conv" [1, 11, 22] d => Conv::parse,
};

pub(super) const MS_OPERATORS: &[Entry] = operators! { MS;
    "ConvGrad" [1] - => |spec| Ok(ConvGrad(Conv::parse(spec)?)),
};

/// `Y = X ⋆ W + B`: X `[N, C, spatial…]`, W `[M, C / group, kernel…]`, B `[M]` or left out,
/// Y `[N, M, spatial…]`.
#[derive(Debug)]
struct Conv {
    window: Window,
    group: usize,
}

impl Conv {
    fn parse(spec: &Spec<'_>) -> Result<Self> {
        let group = spec.int("group", 1)?;
        match usize::try_from(group) {
            Ok(group) if group > 0 => Ok(Self { window: Window::parse(spec, true, false)?, group }),
            _ => Err(err!(Graph, "attribute group").expected("at least 1").found(group)),
        }
    }

    /// Fails unless X and W fit together.
    fn check(&self, x: &[Dim], w: &[Dim]) -> Result<()> {
        if x.len() < 3 || w.len() != x.len() {
            let error = err!(Shape, "the ranks of X and W do not fit").expected("X and W of one rank, at least 3");
            return Err(error.found(format!("{} and {}", show_dims(x), show_dims(w))));
        }
        if let (Some(channels), Some(per_group)) = (x[1].known(), w[1].known())
            && per_group.checked_mul(self.group) != Some(channels)
        {
            let error = err!(Shape, "the channels of X and W do not fit");
            return Err(error.expected(format!("W with {channels} / {} channels", self.group)).found(show_dims(w)));
        }
        if let Some(m) = w[0].known()
            && m % self.group != 0
        {
            bail!(Shape, "{m} output channels do not divide into {} groups", self.group);
        }
        Ok(())
    }

    /// The window for the kernel sizes of W, or, where W's are unknown, for attribute `kernel_shape`.
    /// `None` if neither tells.
    fn slide(&self, w: &[Dim]) -> Result<Option<Slide>> {
        let kernel: Option<Vec<usize>> = crate::tensor::known_shape(&w[2..]);
        match (kernel, self.window.kernel_shape()) {
            (Some(kernel), Some(attribute)) if kernel != attribute => {
                let error = err!(Shape, "attribute kernel_shape is not the shape of W");
                Err(error.expected(show_dims(&kernel)).found(show_dims(attribute)))
            }
            (None, None) => Ok(None),
            (kernel, attribute) => {
                self.window.slide(&kernel.unwrap_or_else(|| attribute.unwrap_or(&[]).to_vec())).map(Some)
            }
        }
    }

    /// The kernel of one direction, for concrete shapes of X and W.
    fn kernel(&self, direction: Direction, x: &[usize], w: &[usize]) -> Result<Kernel> {
        let slide = self.window.slide(&w[2..])?;
        let pads_begin = slide.extent(&x[2..])?.begin;
        let Slide { strides, dilations, .. } = slide;
        Ok(Kernel::Conv(ConvKernel { direction, groups: self.group, strides, dilations, pads_begin }))
    }
}

impl Operator for Conv {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let dtype = cx.same_dtype(0, 1)?;
        let (x, w) = (cx.shape(0)?, cx.shape(1)?);
        self.check(&x, &w)?;
        if cx.has(2) {
            cx.same_dtype(0, 2)?;
            let bias = cx.shape(2)?;
            let fits = matches!(&bias[..], [m] if m == &w[0] || m.known().is_none() || w[0].known().is_none());
            if !fits {
                let error = err!(Shape, "the bias has the wrong shape");
                return Err(error.expected(show_dims(&w[..1])).found(show_dims(&bias)));
            }
        }
        let mut shape = vec![x[0].clone(), w[0].clone()];
        match self.slide(&w)? {
            Some(slide) => shape.extend(slide.dims(cx, &x[2..])?),
            None => shape.extend((2..x.len()).map(|axis| cx.unknown(0, axis))),
        }
        cx.set(0, dtype, shape);
        Ok(())
    }

    /// dX, dW, dB = ConvGrad(dY, X, W), each where it is wanted. Pads are written out: ONNX Runtime's
    /// ConvGrad is wrong under auto_pad. Where sizes are unknown SAME has to stay, which is right here
    /// but not there.
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (x, w, dy) = (cx.input(0)?, cx.input(1)?, cx.dy(0)?);
        let (x_dims, w_dims) = (cx.dims(x)?, cx.dims(w)?);
        let Some(slide) = self.slide(&w_dims)? else {
            return Err(cx.error("the kernel sizes of W are not known"));
        };
        let mut attributes = slide.attributes(&x_dims[2..])?;
        attributes.push(("group", Attribute::Int(self.group as i64)));
        let mut outputs = Vec::new();
        for i in 0..3 {
            let name = format!("{}/ConvGrad", cx.stem);
            outputs.push(cx.needs(i).then(|| cx.graph.fresh_value(&name, None)));
        }
        while let Some(None) = outputs.last() {
            outputs.pop();
        }
        let node = Node {
            name: format!("{}/ConvGrad", cx.stem),
            domain: MS.into(),
            op_type: "ConvGrad".into(),
            inputs: vec![Some(dy), Some(x), Some(w)],
            outputs: outputs.clone(),
            attributes: attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        };
        cx.add(node)?;
        for (i, output) in outputs.into_iter().enumerate() {
            if let Some(d) = output {
                cx.set(i, d);
            }
        }
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let mut reads = Vec::new();
        for i in 0..3 {
            if let Some(view) = cx.input_opt(i)? {
                reads.push(cx.contiguous(view));
            }
        }
        let kernel = self.kernel(Direction::Forward, &cx.shape(0)?, &cx.shape(1)?)?;
        let y = cx.output(0)?;
        cx.push(kernel, reads, vec![y]);
        Ok(())
    }
}

/// The gradient of [`Conv`]: reads dY, X, W; writes dX, dW and dB, each only if it is wanted. As ONNX
/// Runtime's com.microsoft.ConvGrad, but right under auto_pad too.
#[derive(Debug)]
struct ConvGrad(Conv);

impl Operator for ConvGrad {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let dtype = cx.same_dtype(0, 1)?;
        cx.same_dtype(0, 2)?;
        let (dy, x, w) = (cx.shape(0)?, cx.shape(1)?, cx.shape(2)?);
        self.0.check(&x, &w)?;
        let mut y = vec![x[0].clone(), w[0].clone()];
        match self.0.slide(&w)? {
            Some(slide) => y.extend(slide.dims(cx, &x[2..])?),
            None => y.extend_from_slice(dy.get(2..).unwrap_or_default()),
        }
        let fits = |(a, b): (&Dim, &Dim)| a == b || a.known().is_none() || b.known().is_none();
        if dy.len() != y.len() || !dy.iter().zip(&y).all(fits) {
            let error = err!(Shape, "dY has not the shape of the convolution of X and W");
            return Err(error.expected(show_dims(&y)).found(show_dims(&dy)));
        }
        let m = w[0].clone();
        cx.set(0, dtype, x);
        cx.set(1, dtype, w);
        cx.set(2, dtype, [m]);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let dy = cx.input(0)?;
        let (x_shape, w_shape) = (cx.shape(1)?, cx.shape(2)?);
        // dB = dY summed over all axes but the channels.
        if cx.has_output(2) {
            let mut program = Program::new();
            let sum = program.input(0, dy.dtype);
            program.output(sum);
            let reduced: Vec<bool> = (0..dy.rank()).map(|axis| axis != 1).collect();
            let kept: Vec<usize> = dy.shape.iter().zip(&reduced).map(|(&n, &gone)| if gone { 1 } else { n }).collect();
            let db = cx.output(2)?;
            let db = cx.reshape(db, &kept);
            let kernel = Reduce { shape: dy.shape.clone(), reduced, program, op: ReduceOp::Sum, scale: 1.0 };
            cx.push(Kernel::Reduce(kernel), vec![dy.clone()], vec![db]);
        }
        let dy = if cx.has_output(0) || cx.has_output(1) { cx.contiguous(dy) } else { dy };
        for (o, direction, other) in [(0, Direction::InputGrad, 2), (1, Direction::WeightGrad, 1)] {
            if cx.has_output(o) {
                let kernel = self.0.kernel(direction, &x_shape, &w_shape)?;
                let other = cx.input(other)?;
                let other = cx.contiguous(other);
                let d = cx.output(o)?;
                cx.push(kernel, vec![dy.clone(), other], vec![d]);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, TensorType};
    use crate::ops::testing::Case;
    use crate::tensor::DType;

    fn case(x: &[usize], w: &[usize]) -> Case {
        Case::op("Conv").random("x", x, -1.0, 1.0).random("w", w, -1.0, 1.0)
    }

    #[test]
    fn gradients() {
        case(&[2, 3, 7], &[4, 3, 3]).check();
        case(&[2, 3, 7], &[4, 3, 3]).random("b", &[4], -1.0, 1.0).ints("pads", &[1, 2]).ints("strides", &[2]).check();
        let two = || case(&[2, 2, 5, 6], &[3, 2, 3, 2]).random("b", &[3], -1.0, 1.0);
        two().check();
        two().ints("kernel_shape", &[3, 2]).ints("strides", &[2, 3]).check();
        two().ints("pads", &[1, 0, 2, 1]).ints("strides", &[2, 1]).check();
        two().ints("dilations", &[2, 3]).ints("pads", &[1, 1, 1, 1]).check();
        case(&[1, 4, 4, 4], &[6, 2, 3, 3]).int("group", 2).ints("pads", &[1, 1, 1, 1]).check();
        case(&[1, 4, 4, 4], &[4, 1, 3, 3]).int("group", 4).ints("strides", &[2, 2]).check();
        case(&[1, 2, 3, 4, 3], &[2, 2, 2, 2, 2]).ints("pads", &[0, 1, 0, 1, 0, 1]).check();
        case(&[2, 3, 4, 4], &[5, 3, 1, 1]).opset(8).check();
        // A stride that never reaches the last elements: their gradient is zero.
        case(&[1, 1, 8], &[1, 1, 2]).ints("strides", &[3]).check();
        for word in ["SAME_UPPER", "SAME_LOWER", "VALID"] {
            let word = || Attribute::String(word.into());
            two().attr("auto_pad", word()).check();
            two().attr("auto_pad", word()).ints("strides", &[2, 2]).check();
            case(&[1, 1, 7], &[1, 1, 2]).attr("auto_pad", word()).ints("strides", &[3]).check();
        }
        // Only some of the inputs.
        let x = || Case::op("Conv").random("x", &[1, 1, 4], -1.0, 1.0).constant("w", &[1, 1, 2], &[1.0, -2.0]);
        x().check();
        x().random("b", &[1], -1.0, 1.0).check();
        Case::op("Conv").constant("x", &[1, 1, 3], &[1.0, 2.0, 3.0]).random("w", &[1, 1, 2], -1.0, 1.0).check();
    }

    #[test]
    fn values() {
        let ones = |x: &[usize], w: &[usize]| {
            let full = |shape: &[usize]| vec![1.0; shape.iter().product()];
            Case::op("Conv").input("x", x, &full(x)).input("w", w, &full(w))
        };
        ones(&[1, 1, 4], &[1, 1, 3]).gives(&[1, 1, 2], &[3.0, 3.0]);
        ones(&[1, 1, 4], &[1, 1, 3]).ints("pads", &[0, 2]).gives(&[1, 1, 4], &[3.0, 3.0, 2.0, 1.0]);
        let same = |word: &str| ones(&[1, 1, 4], &[1, 1, 2]).attr("auto_pad", Attribute::String(word.into()));
        same("SAME_UPPER").gives(&[1, 1, 4], &[2.0, 2.0, 2.0, 1.0]);
        same("SAME_LOWER").gives(&[1, 1, 4], &[1.0, 2.0, 2.0, 2.0]);
        same("VALID").gives(&[1, 1, 3], &[2.0, 2.0, 2.0]);
        ones(&[1, 2, 2], &[2, 1, 2]).int("group", 2).input("b", &[2], &[0.0, 5.0]).gives(&[1, 2, 1], &[2.0, 7.0]);
        ones(&[0, 1, 4], &[1, 1, 3]).gives(&[0, 1, 2], &[]);
    }

    #[test]
    fn errors() {
        assert!(case(&[1, 3, 4], &[2, 2, 3]).fails().contains("channels of X and W"));
        assert!(case(&[1, 4, 4], &[3, 2, 3]).int("group", 2).fails().contains("2 groups"));
        assert!(case(&[1, 4, 4], &[3, 4, 3, 3]).fails().contains("ranks"));
        assert!(case(&[1, 4], &[3, 4]).fails().contains("at least 3"));
        assert!(case(&[1, 1, 2], &[1, 1, 3]).fails().contains("larger than the padded input"));
        assert!(case(&[1, 1, 4], &[1, 1, 3]).ints("kernel_shape", &[2]).fails().contains("expected [3]; found [2]"));
        assert!(case(&[1, 1, 4], &[1, 1, 3]).ints("strides", &[1, 1]).fails().contains("strides"));
        assert!(case(&[1, 1, 4], &[1, 1, 3]).ints("strides", &[0]).fails().contains("found 0"));
        assert!(case(&[1, 1, 4], &[1, 1, 3]).ints("pads", &[1]).fails().contains("expected 2; found 1"));
        assert!(case(&[1, 1, 4], &[1, 1, 3]).ints("pads", &[-1, 0]).fails().contains("Unsupported"));
        assert!(case(&[1, 1, 4], &[1, 1, 3]).ints("dilations", &[i64::MAX]).fails().contains("dilations"));
        assert!(case(&[1, 1, 4], &[1, 1, 3]).int("group", 0).fails().contains("group"));
        assert!(case(&[1, 1, 4], &[1, 1, 3]).random("b", &[2], 0.0, 1.0).fails().contains("bias"));
        let both = case(&[1, 1, 4], &[1, 1, 3]).attr("auto_pad", Attribute::String("SAME_UPPER".into()));
        assert!(both.ints("pads", &[1, 1]).fails().contains("exclude"));
        let odd = case(&[1, 1, 4], &[1, 1, 3]).attr("auto_pad", Attribute::String("SAME".into()));
        assert!(odd.fails().contains("Unsupported"));
    }

    /// Unknown sizes: a padded convolution keeps the symbol, SAME stays on ConvGrad, and outputs that
    /// nobody wants are left out.
    #[test]
    fn symbols() {
        let mut graph = Graph::new("symbols", 17);
        let dims = [Dim::symbol("batch"), 3.into(), Dim::symbol("h"), 8.into()];
        let x = graph.add_input("x", TensorType::new(DType::F32, dims.clone())).unwrap();
        let w = graph.add_input("w", TensorType::known(DType::F32, &[4, 3, 3, 3])).unwrap();
        let y = graph.add_value("y", None).unwrap();
        let same = Attribute::String("SAME_LOWER".into());
        graph.nodes.push(Node {
            name: "conv".into(),
            domain: String::new(),
            op_type: "Conv".into(),
            inputs: vec![Some(x), Some(w)],
            outputs: vec![Some(y)],
            attributes: [("auto_pad".to_owned(), same.clone())].into(),
        });
        let mut facts = infer_graph(&mut graph).unwrap();
        let [batch, _, h, _] = dims.clone();
        assert_eq!(facts.ty(y).unwrap().shape, Some(vec![batch, 4.into(), h, 8.into()]));
        let op = resolve(&graph, &graph.nodes[0]).unwrap();
        let builder = Builder { graph: &mut graph, facts: &mut facts, stem: "grad".into() };
        let mut cx = GradCx::new(builder, 0, vec![Some(y)], vec![false, true]);
        op.gradient(&mut cx).unwrap();
        assert!(matches!(cx.finish()[..], [None, Some(_)]));
        let node = &graph.nodes[1];
        assert!(matches!(node.outputs[..], [None, Some(_)]));
        assert_eq!(node.attributes["auto_pad"], same);
        assert!(!node.attributes.contains_key("pads"));
    }
}
