//! Arithmetic on sizes of which some are symbols: the numbers that flow through Shape → Gather → Concat →
//! Reshape while a graph is inferred.
//!
//! Values of integer tensors are [`Dim`]s: known sizes, symbols, and negative numbers (the -1 of a Reshape's
//! target), which are carried as symbols that no file can name. A product of symbols is the symbol of its
//! factors, `4*batch*seq`, in one order, so that equal products have equal names.

use super::InferCx;
use crate::error::{Result, err};
use crate::tensor::{Dim, Tensor, show_dims};
use std::sync::Arc;

/// The mark of symbols that are negative numbers.
const NUMBER: char = '\u{1}';

/// A number as an element of an integer tensor.
pub(super) fn dim_of(value: i64) -> Dim {
    match usize::try_from(value) {
        Ok(n) => Dim::Known(n),
        Err(_) => Dim::symbol(format!("{NUMBER}{value}")),
    }
}

/// The number that an element is, if it is one.
pub(super) fn number_of(dim: &Dim) -> Option<i64> {
    match dim {
        Dim::Known(n) => i64::try_from(*n).ok(),
        Dim::Symbol(s) => s.strip_prefix(NUMBER)?.parse().ok(),
    }
}

/// The elements of the integer input `i`, of rank 0 or 1, as far as they are known: numbers (negative ones
/// too) and symbols.
pub(super) fn elements(cx: &InferCx<'_>, i: usize) -> Option<Vec<Dim>> {
    if let Some(dims) = cx.dims(i) {
        return Some(dims);
    }
    let tensor = cx.constant(i).filter(|t| t.shape().len() <= 1)?;
    Some(tensor.to_i64s()?.into_iter().map(dim_of).collect())
}

/// The number of elements of the integer input `i`, of rank 0 or 1, if it is known.
pub(super) fn element_count(cx: &InferCx<'_>, i: usize) -> Result<Option<usize>> {
    if let Some(dims) = cx.dims(i) {
        return Ok(Some(dims.len()));
    }
    match cx.shape(i)?.as_slice() {
        [] => Ok(Some(1)),
        [n] => Ok(n.known()),
        more => Err(err!(Shape, "input {i} must be a list of integers").expected("rank 1").found(show_dims(more))),
    }
}

/// The integers that a tensor holds; an error names what it should have been.
pub(super) fn integers(tensor: &Tensor, what: &str) -> Result<Vec<i64>> {
    tensor.to_i64s().ok_or_else(|| err!(Shape, "{what} must be integers").found(tensor.dtype()))
}

/// A product of sizes: a number and symbols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Product {
    number: usize,
    symbols: Vec<Arc<str>>,
}

impl Product {
    /// The product of all sizes; `None` if it overflows or one of them is a negative number.
    pub(super) fn of(dims: &[Dim]) -> Option<Self> {
        let mut product = Self { number: 1, symbols: Vec::new() };
        for dim in dims {
            match dim {
                Dim::Known(n) => product.number = product.number.checked_mul(*n)?,
                Dim::Symbol(s) if s.starts_with(NUMBER) => return None,
                Dim::Symbol(s) => product.times(s)?,
            }
        }
        product.symbols.sort();
        Some(product)
    }

    /// Multiplies by a symbol, which may be a product written out.
    fn times(&mut self, symbol: &Arc<str>) -> Option<()> {
        let plain = |f: &str| !f.is_empty() && f.chars().all(|c| c.is_alphanumeric() || "_.:".contains(c));
        let factors: Vec<&str> = symbol.split('*').collect();
        if factors.len() == 1 || !factors.iter().all(|f| plain(f)) {
            self.symbols.push(symbol.clone());
            return Some(());
        }
        for factor in factors {
            match factor.parse() {
                Ok(n) => self.number = self.number.checked_mul(n)?,
                Err(_) => self.symbols.push(factor.into()),
            }
        }
        Some(())
    }

    /// `self / other`, if it can be told and comes out even.
    pub(super) fn divided(mut self, other: &Self) -> Option<Self> {
        for symbol in &other.symbols {
            let at = self.symbols.iter().position(|s| s == symbol)?;
            self.symbols.remove(at);
        }
        if other.number == 0 || !self.number.is_multiple_of(other.number) {
            return None;
        }
        self.number /= other.number;
        Some(self)
    }

    /// The number, if no symbol is left.
    pub(super) fn known(&self) -> Option<usize> {
        if self.number == 0 || self.symbols.is_empty() { Some(self.number) } else { None }
    }

    /// As one size.
    pub(super) fn dim(&self) -> Dim {
        match (self.known(), self.symbols.as_slice()) {
            (Some(n), _) => Dim::Known(n),
            (None, [one]) if self.number == 1 => Dim::Symbol(one.clone()),
            (None, symbols) => {
                let number = (self.number != 1).then(|| self.number.to_string());
                let factors: Vec<&str> = number.as_deref().into_iter().chain(symbols.iter().map(|s| &**s)).collect();
                Dim::symbol(factors.join("*"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(name: &str) -> Dim {
        Dim::symbol(name)
    }

    #[test]
    fn products() {
        let product = |dims: &[Dim]| Product::of(dims).unwrap();
        assert_eq!(product(&[2.into(), s("seq"), s("batch")]).dim(), s("2*batch*seq"));
        assert_eq!(product(&[s("2*batch*seq"), 3.into()]).dim(), s("6*batch*seq"));
        assert_eq!(product(&[s("batch")]).dim(), s("batch"));
        assert_eq!(product(&[0.into(), s("batch")]).known(), Some(0));
        let all = product(&[s("batch"), 16.into(), 5.into(), 5.into()]);
        assert_eq!(all.clone().divided(&product(&[s("batch")])).unwrap().known(), Some(400));
        assert_eq!(all.clone().divided(&product(&[8.into(), 50.into()])).unwrap().dim(), s("batch"));
        assert_eq!(all.clone().divided(&product(&[s("other")])), None);
        assert_eq!(all.divided(&product(&[7.into()])), None);
        assert_eq!(Product::of(&[usize::MAX.into(), 2.into()]), None);
        // What is not plainly a product of names is one name.
        let odd = product(&[s("a*b//2"), s("a")]);
        assert_eq!(odd.divided(&product(&[s("b//2")])), None);
    }

    #[test]
    fn numbers() {
        assert_eq!(number_of(&dim_of(-1)), Some(-1));
        assert_eq!(number_of(&dim_of(7)), Some(7));
        assert_eq!(number_of(&s("-1")), None);
        assert_eq!(Product::of(&[dim_of(-1)]), None);
    }
}
