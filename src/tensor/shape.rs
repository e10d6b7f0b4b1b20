//! Shapes: symbolic in graphs, concrete in plans; strides.

use std::fmt;
use std::sync::Arc;

/// One dimension of a shape in a graph.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dim {
    /// A size known while building.
    Known(usize),
    /// A named unknown (`batch`); equal names mean equal sizes.
    Symbol(Arc<str>),
}

impl Dim {
    /// A symbol of that name.
    pub fn symbol(name: impl AsRef<str>) -> Self {
        Dim::Symbol(name.as_ref().into())
    }

    /// The size, if known.
    pub fn known(&self) -> Option<usize> {
        match self {
            Dim::Known(n) => Some(*n),
            Dim::Symbol(_) => None,
        }
    }

    /// Is it the number `n`?
    pub fn is(&self, n: usize) -> bool {
        *self == Dim::Known(n)
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Self {
        Dim::Known(n)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Known(n) => write!(f, "{n}"),
            Dim::Symbol(s) => f.write_str(s),
        }
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// All sizes, if every dimension is known.
pub fn known_shape(dims: &[Dim]) -> Option<Vec<usize>> {
    dims.iter().map(Dim::known).collect()
}

/// `[2,batch,3]`, for messages.
pub fn show_dims<D: fmt::Display>(dims: &[D]) -> String {
    let parts: Vec<String> = dims.iter().map(D::to_string).collect();
    format!("[{}]", parts.join(","))
}

/// Row-major strides in elements.
pub fn contiguous_strides(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![0; shape.len()];
    let mut step = 1;
    for (stride, &size) in strides.iter_mut().zip(shape).rev() {
        *stride = step as isize;
        step *= size.max(1);
    }
    strides
}

/// Number of elements, or `None` if it does not fit `isize` (no buffer can hold it).
pub fn checked_len(shape: &[usize]) -> Option<usize> {
    let product = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    (product <= isize::MAX as usize / 16).then_some(product)
}
