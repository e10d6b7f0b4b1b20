//! Where the sums of a product go: to its result, scaled and with what is added, or to scratch.

use super::access::{Arithmetic, Stride, walk};
use super::contraction::{Contraction, Digit, Phase};
use super::layout::Slot;
use super::shader::{Library, Operand, Shader};
use crate::kernel::View;
use crate::tensor::DType;

/// Where sums go.
pub(super) enum Sink {
    /// Scaled, with what is added, to the result.
    Last(Box<Output>),
    /// To scratch, to be added up later.
    Partial {
        memory: usize,
        /// Sizes of z, m, n.
        sizes: [String; 3],
    },
}

/// The result of a product.
pub(super) struct Output {
    arithmetic: Arithmetic,
    out: Target,
    alpha: Option<String>,
    added: Option<(Option<String>, Target)>,
    limits: Vec<Limit>,
}

/// A tensor with digits of z, m and n.
struct Target {
    /// `o` or `d`.
    tag: char,
    operand: Operand,
    batch: Vec<Stride>,
    rows: Vec<Stride>,
    cols: Vec<Stride>,
}

/// Outputs of a phase that do not exist: `at` must be less than `size`.
struct Limit {
    /// The index whose digit counts.
    index: char,
    digit: usize,
    batch: usize,
    step: String,
    size: String,
}

impl Sink {
    /// Where sums in so many parts go.
    pub(super) fn new(product: &Contraction<'_>, arithmetic: Arithmetic, splits: usize, s: &mut Shader<'_>) -> Self {
        if splits > 1 { Self::partial(product, s) } else { Self::last(product, arithmetic, s) }
    }

    fn partial(product: &Contraction<'_>, s: &mut Shader<'_>) -> Self {
        let memory = s.bind(Slot::SCRATCH, true);
        let mut size = |digits: &[Digit]| s.param(digits.iter().map(|d| d.size).product());
        Sink::Partial { memory, sizes: [size(&product.batch), size(&product.rows), size(&product.cols)] }
    }

    /// To the result.
    pub(super) fn last(product: &Contraction<'_>, arithmetic: Arithmetic, s: &mut Shader<'_>) -> Self {
        if matches!(product.out.dtype, DType::F16 | DType::BF16) {
            s.uses(Library::Math);
        }
        if arithmetic == Arithmetic::Wide {
            s.uses(Library::Wide);
        }
        let operand = s.writes(product.out);
        let out = Target::new('o', operand, product, |d| d.out, s);
        let alpha = (product.alpha != 1.0).then(|| arithmetic.factor(s, product.alpha));
        let added = product.added.map(|(beta, view): (f32, &View)| {
            let beta = (beta != 1.0).then(|| arithmetic.factor(s, beta));
            let operand = s.reads(view);
            (beta, Target::new('d', operand, product, |d| d.added, s))
        });
        let limits = limits(product, s);
        Sink::Last(Box::new(Output { arithmetic, out, alpha, added, limits }))
    }

    /// What depends on `z`, whose digits are known.
    pub(super) fn batch(&self, s: &mut Shader<'_>) {
        match self {
            Sink::Last(output) => output.targets().for_each(|t| t.base(s)),
            Sink::Partial { sizes, .. } => {
                s.line(format!("let ob = (split * {} + z) * {};", sizes[0], sizes[1]));
            }
        }
    }

    /// What depends on the row `y{suffix}`, whose digits are known.
    pub(super) fn row(&self, s: &mut Shader<'_>, suffix: &str) {
        match self {
            Sink::Last(output) => output.targets().for_each(|t| t.row(s, suffix)),
            Sink::Partial { sizes, .. } => s.line(format!("let oy{suffix} = (ob + y{suffix}) * {};", sizes[2])),
        }
    }

    /// What depends on the column `x{suffix}`, whose digits are known.
    pub(super) fn col(&self, s: &mut Shader<'_>, suffix: &str) {
        match self {
            Sink::Last(output) => output.targets().for_each(|t| t.col(s, suffix)),
            Sink::Partial { .. } => s.line(format!("let ox{suffix} = x{suffix};")),
        }
    }

    /// Stores `sum` at the row and column with these suffixes, if `condition` holds.
    pub(super) fn store(&self, s: &mut Shader<'_>, [row, col]: [&str; 2], sum: &str, condition: Option<&str>) {
        let at = |tag: char| format!("{tag}y{row} + {tag}x{col}");
        let mut conditions: Vec<String> = condition.map(Into::into).into_iter().collect();
        let store = match self {
            Sink::Partial { memory, .. } => format!("m{memory}[{}] = bitcast<u32>({sum});", at('o')),
            Sink::Last(output) => {
                conditions.extend(output.limits.iter().map(|limit| limit.holds([row, col])));
                output.store(at, sum)
            }
        };
        match conditions.len() {
            0 => s.line(store),
            _ => s.line(format!("if ({}) {{ {store} }}", conditions.join(" & "))),
        }
    }
}

/// The limits of a product's phases.
fn limits(product: &Contraction<'_>, s: &mut Shader<'_>) -> Vec<Limit> {
    let limit = |(number, phase): (usize, &Phase)| {
        let find = |digits: &[Digit]| digits.iter().position(|d| d.phase == Some(number));
        let batch = find(&product.batch)?;
        let (index, digit) = match find(&product.cols) {
            Some(digit) => ('x', digit),
            None => ('y', find(&product.rows)?),
        };
        Some(Limit { index, digit, batch, step: s.param(phase.step), size: s.param(phase.size) })
    };
    product.phases.iter().enumerate().filter_map(limit).collect()
}

impl Limit {
    fn holds(&self, [row, col]: [&str; 2]) -> String {
        let suffix = if self.index == 'y' { row } else { col };
        let Self { index, digit, batch, step, size } = self;
        format!("(z_{batch} + {index}{suffix}_{digit} * {step} < {size})")
    }
}

impl Output {
    fn targets(&self) -> impl Iterator<Item = &Target> {
        std::iter::once(&self.out).chain(self.added.iter().map(|(_, target)| target))
    }

    fn store(&self, at: impl Fn(char) -> String, sum: &str) -> String {
        let arithmetic = self.arithmetic;
        let mut value = sum.to_owned();
        if let Some(alpha) = &self.alpha {
            value = arithmetic.product(alpha, &value);
        }
        if let Some((beta, target)) = &self.added {
            let mut more = arithmetic.number(&target.operand, &at('d'));
            if let Some(beta) = beta {
                more = arithmetic.product(beta, &more);
            }
            value = arithmetic.sum(&value, &more);
        }
        self.out.operand.store(&at('o'), &arithmetic.element(self.out.operand.dtype(), &value))
    }
}

impl Target {
    fn new(
        tag: char,
        operand: Operand,
        product: &Contraction<'_>,
        stride: impl Fn(&Digit) -> isize,
        s: &mut Shader<'_>,
    ) -> Self {
        let mut strides = |digits: &[Digit]| digits.iter().map(|d| Stride::new(s, stride(d))).collect();
        let (batch, rows, cols) = (strides(&product.batch), strides(&product.rows), strides(&product.cols));
        Self { tag, operand, batch, rows, cols }
    }

    fn base(&self, s: &mut Shader<'_>) {
        s.line(format!("let {}b = {};", self.tag, walk(self.operand.offset.clone(), &self.batch, "z")));
    }

    fn row(&self, s: &mut Shader<'_>, suffix: &str) {
        let tag = self.tag;
        s.line(format!("let {tag}y{suffix} = {};", walk(format!("{tag}b"), &self.rows, &format!("y{suffix}"))));
    }

    fn col(&self, s: &mut Shader<'_>, suffix: &str) {
        let tag = self.tag;
        let position = walk("0u".into(), &self.cols, &format!("x{suffix}"));
        s.line(format!("let {tag}x{suffix} = {};", position.trim_start_matches("0u + ")));
    }
}
