//! The window that convolution and pooling slide over their input: its attributes, and the sizes
//! and pads that follow from them.

use super::{InferCx, Spec};
use crate::error::{Result, bail, err};
use crate::graph::Attribute;
use crate::tensor::{Dim, known_shape};

/// How pads come about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum AutoPad {
    /// By attribute `pads`, zero where it is missing.
    NotSet,
    /// No pads.
    Valid,
    /// As many as make `ceil(input / stride)` outputs, the odd one at the end.
    SameUpper,
    /// As many as make `ceil(input / stride)` outputs, the odd one at the beginning.
    SameLower,
}

/// The attributes, as a node has them: lists that are left out get their length from the operands.
#[derive(Clone, Debug)]
pub(super) struct Window {
    auto_pad: AutoPad,
    kernel_shape: Option<Vec<usize>>,
    strides: Option<Vec<usize>>,
    dilations: Option<Vec<usize>>,
    pads: Option<Vec<usize>>,
    ceil: bool,
}

/// A window whose lists are complete: one entry per spatial axis.
#[derive(Clone, Debug)]
pub(super) struct Slide {
    pub(super) kernel: Vec<usize>,
    pub(super) strides: Vec<usize>,
    pub(super) dilations: Vec<usize>,
    /// Beginnings, then ends; zeros unless `auto_pad` is `NotSet`.
    pads: Vec<usize>,
    auto_pad: AutoPad,
    /// Are output sizes rounded up?
    pub(super) ceil: bool,
}

/// What a window makes of an input of known size.
pub(super) struct Extent {
    /// Output sizes.
    pub(super) sizes: Vec<usize>,
    /// Padding before the first element.
    pub(super) begin: Vec<usize>,
    /// Padding after the last element.
    pub(super) end: Vec<usize>,
}

/// Attribute values up to here keep all size arithmetic within `i64`.
const LARGEST: i64 = i32::MAX as i64;

fn sizes(spec: &Spec<'_>, name: &'static str, least: i64) -> Result<Option<Vec<usize>>> {
    let Some(values) = spec.ints_opt(name)? else { return Ok(None) };
    if let Some(&wrong) = values.iter().find(|&&v| !(least..=LARGEST).contains(&v)) {
        let range = format!("integers from {least} to {LARGEST}");
        return Err(err!(Unsupported, "attribute {name}").expected(range).found(wrong));
    }
    Ok(Some(values.into_iter().map(|v| v as usize).collect()))
}

impl Window {
    /// Reads `auto_pad`, `kernel_shape`, `strides` and `pads`, and those of `dilations` and `ceil_mode`
    /// that this version of the operator has.
    pub(super) fn parse(spec: &Spec<'_>, has_dilations: bool, has_ceil_mode: bool) -> Result<Self> {
        let auto_pad = spec.choice(
            "auto_pad",
            &[
                ("NOTSET", AutoPad::NotSet),
                ("VALID", AutoPad::Valid),
                ("SAME_UPPER", AutoPad::SameUpper),
                ("SAME_LOWER", AutoPad::SameLower),
            ],
        )?;
        let pads = sizes(spec, "pads", 0)?;
        if auto_pad != AutoPad::NotSet && pads.iter().flatten().any(|&p| p != 0) {
            bail!(Graph, "attributes auto_pad and pads exclude each other, but both are given");
        }
        Ok(Self {
            auto_pad,
            kernel_shape: sizes(spec, "kernel_shape", 1)?,
            strides: sizes(spec, "strides", 1)?,
            dilations: if has_dilations { sizes(spec, "dilations", 1)? } else { None },
            pads: if auto_pad == AutoPad::NotSet { pads } else { None },
            ceil: has_ceil_mode && spec.flag("ceil_mode", false)?,
        })
    }

    /// Attribute `kernel_shape`.
    pub(super) fn kernel_shape(&self) -> Option<&[usize]> {
        self.kernel_shape.as_deref()
    }

    /// The window for this kernel. Fails if a list has another length.
    pub(super) fn slide(&self, kernel: &[usize]) -> Result<Slide> {
        let rank = kernel.len();
        let complete = |name: &str, list: &Option<Vec<usize>>, len: usize, default: usize| match list {
            None => Ok(vec![default; len]),
            Some(list) if list.len() == len => Ok(list.clone()),
            Some(list) => {
                let error = err!(Shape, "attribute {name} has the wrong length for {rank} spatial axes");
                Err(error.expected(len).found(list.len()))
            }
        };
        complete("kernel_shape", &self.kernel_shape, rank, 1)?;
        Ok(Slide {
            kernel: kernel.to_vec(),
            strides: complete("strides", &self.strides, rank, 1)?,
            dilations: complete("dilations", &self.dilations, rank, 1)?,
            pads: complete("pads", &self.pads, 2 * rank, 0)?,
            auto_pad: self.auto_pad,
            ceil: self.ceil,
        })
    }
}

impl Slide {
    /// From the first to the last element of the window along `axis`, both counted.
    fn reach(&self, axis: usize) -> i64 {
        (self.kernel[axis] as i64 - 1) * self.dilations[axis] as i64 + 1
    }

    /// Output size, and pads at beginning and end, for an input of this size.
    ///
    /// Formulas: ONNX's MaxPool. With explicit pads, `floor((input + pads - reach) / stride) + 1`; with
    /// `ceil_mode` rounded up, less one if the last window would then start in the padding at the end.
    /// (VALID follows the same rule, as ONNX's shape inference and ONNX Runtime have it.)
    fn along(&self, axis: usize, input: usize) -> Result<[usize; 3]> {
        let (size, stride, reach) = (input as i64, self.strides[axis] as i64, self.reach(axis));
        if matches!(self.auto_pad, AutoPad::SameUpper | AutoPad::SameLower) {
            let out = (size + stride - 1) / stride;
            let total = ((out - 1) * stride + reach - size).max(0);
            let begin = if self.auto_pad == AutoPad::SameUpper { total / 2 } else { total - total / 2 };
            return to_sizes([out, begin, total - begin]);
        }
        let (begin, end) = (self.pads[axis] as i64, self.pads[axis + self.kernel.len()] as i64);
        let room = size + begin + end - reach;
        if room < 0 {
            let error = err!(Shape, "the window is larger than the padded input along spatial axis {axis}");
            return Err(error.expected(format!("at most {}", size + begin + end)).found(reach));
        }
        let mut out = if self.ceil { (room + stride - 1) / stride } else { room / stride } + 1;
        if self.ceil && (out - 1) * stride >= size + begin {
            out -= 1;
        }
        to_sizes([out, begin, end])
    }

    /// Output sizes and pads for an input of these spatial sizes.
    pub(super) fn extent(&self, input: &[usize]) -> Result<Extent> {
        let mut extent = Extent { sizes: Vec::new(), begin: Vec::new(), end: Vec::new() };
        for (axis, &size) in input.iter().enumerate() {
            let [out, begin, end] = self.along(axis, size)?;
            extent.sizes.push(out);
            extent.begin.push(begin);
            extent.end.push(end);
        }
        Ok(extent)
    }

    /// The spatial dimensions of output 0 for these of the input. An unknown size stays the same
    /// symbol where the window keeps sizes.
    pub(super) fn dims(&self, cx: &InferCx<'_>, input: &[Dim]) -> Result<Vec<Dim>> {
        let along = |(axis, dim): (usize, &Dim)| match dim.known() {
            Some(size) => Ok(Dim::Known(self.along(axis, size)?[0])),
            None if self.keeps_size(axis) => Ok(dim.clone()),
            None => Ok(cx.unknown(0, axis + 2)),
        };
        input.iter().enumerate().map(along).collect()
    }

    fn keeps_size(&self, axis: usize) -> bool {
        let pads = self.pads[axis] + self.pads[axis + self.kernel.len()];
        self.strides[axis] == 1
            && match self.auto_pad {
                AutoPad::NotSet | AutoPad::Valid => pads as i64 == self.reach(axis) - 1,
                AutoPad::SameUpper | AutoPad::SameLower => true,
            }
    }

    /// The attributes of the node that computes the gradient. Pads are explicit if they can be told,
    /// since ONNX Runtime's gradient kernels take `auto_pad` for no pads.
    pub(super) fn attributes(&self, input: &[Dim]) -> Result<Vec<(&'static str, Attribute)>> {
        let ints = |values: &[usize]| Attribute::Ints(values.iter().map(|&v| v as i64).collect());
        let (word, pads) = match (self.auto_pad, known_shape(input)) {
            (AutoPad::NotSet | AutoPad::Valid, _) => ("NOTSET", Some(self.pads.clone())),
            (_, Some(sizes)) => {
                let Extent { begin, end, .. } = self.extent(&sizes)?;
                ("NOTSET", Some([begin, end].concat()))
            }
            (AutoPad::SameUpper, None) => ("SAME_UPPER", None),
            (AutoPad::SameLower, None) => ("SAME_LOWER", None),
        };
        let mut attributes = vec![
            ("auto_pad", Attribute::String(word.into())),
            ("dilations", ints(&self.dilations)),
            ("kernel_shape", ints(&self.kernel)),
            ("strides", ints(&self.strides)),
        ];
        attributes.extend(pads.map(|pads| ("pads", ints(&pads))));
        Ok(attributes)
    }
}

/// Fails if one does not fit `usize`.
fn to_sizes<const N: usize>(values: [i64; N]) -> Result<[usize; N]> {
    let mut sizes = [0; N];
    for (size, value) in sizes.iter_mut().zip(values) {
        *size = usize::try_from(value).map_err(|_| err!(Shape, "a window makes an impossible size").found(value))?;
    }
    Ok(sizes)
}
