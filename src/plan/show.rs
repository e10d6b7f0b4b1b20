//! A plan as text: one line a step.

use super::{Output, Placement, Plan};
use crate::kernel::{Direction, Kernel, PoolKind, View};
use crate::tensor::show_dims;
use std::fmt;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} steps, {} FLOP, {} bytes peak, {} bytes of constants",
            self.steps.len(),
            self.flops,
            self.peak_bytes(),
            self.constant_bytes()
        )?;
        for input in &self.inputs {
            let pinned = if input.pinned { " (its value is part of the plan)" } else { "" };
            writeln!(f, "input {}: {}{}{pinned}", input.name, input.dtype, show_dims(&input.shape))?;
        }
        for (i, step) in self.steps.iter().enumerate() {
            let views = |views: &[View]| views.iter().map(|v| self.show(v)).collect::<Vec<_>>().join(" ");
            writeln!(
                f,
                "{i:4} {} {} -> {}   # {}",
                name(&step.kernel),
                views(&step.reads),
                views(&step.writes),
                step.from
            )?;
        }
        for (name, output) in &self.outputs {
            match output {
                Output::View(view) => writeln!(f, "output {name} = {}", self.show(view))?,
                Output::Constant(tensor) => writeln!(f, "output {name} = {tensor:?}")?,
            }
        }
        Ok(())
    }
}

impl Plan {
    /// `@4096:float32[32,10]`: place, dtype, shape, and strides where they are not row-major.
    fn show(&self, view: &View) -> String {
        let place = match &self.buffers[view.buffer.index()] {
            Placement::Arena { arena: 0, offset, .. } => format!("@{offset}"),
            Placement::Arena { arena, offset, .. } => format!("@{arena}:{offset}"),
            Placement::Constant(_) => format!("const{}", view.buffer.0),
            Placement::Input(i) => self.inputs[*i].name.clone(),
            Placement::Unused => "unused".into(),
        };
        let strides = if view.is_contiguous() { String::new() } else { format!("/{}", show_dims(&view.strides)) };
        format!("{place}:{}{}{strides}", view.dtype, show_dims(&view.shape))
    }
}

fn name(kernel: &Kernel) -> String {
    match kernel {
        Kernel::Fused(k) if k.row_axes > 0 => format!("Fused/{}row({})", k.row_axes, k.program),
        Kernel::Fused(k) => format!("Fused({})", k.program),
        Kernel::Reduce(k) => format!("Reduce{:?}({})", k.op, k.program),
        Kernel::Gemm(k) if k.beta != 0.0 => format!("Gemm(alpha={}, beta={})", k.alpha, k.beta),
        Kernel::Gemm(k) => format!("Gemm(alpha={})", k.alpha),
        Kernel::Conv(k) => match k.direction {
            Direction::Forward => "Conv".into(),
            Direction::InputGrad => "ConvInputGrad".into(),
            Direction::WeightGrad => "ConvWeightGrad".into(),
        },
        Kernel::Pool(k) => {
            let kind = if k.kind == PoolKind::Max { "Max" } else { "Average" };
            format!("{kind}Pool{}", if k.gradient { "Grad" } else { "" })
        }
        Kernel::Copy => "Copy".into(),
        Kernel::Gather(k) => format!("Gather(axis={})", k.axis),
        Kernel::Scatter(k) => format!("Scatter(axis={})", k.axis),
        Kernel::Check(k) => format!("Check({} in {}..{})", k.what, k.low, k.high),
    }
}
