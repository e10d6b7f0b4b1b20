//! The axes that several operands are walked along together.

use super::shader::Shader;
use std::fmt::Write;

/// Sizes of axes, and the strides of each operand along them; neighbours that every operand walks as one axis are merged, so that
/// a text has as few coordinates as can be.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Axes {
    /// Per axis.
    pub(super) sizes: Vec<usize>,
    /// Per operand, per axis.
    pub(super) strides: Vec<Vec<isize>>,
}

impl Axes {
    /// The axes of `shape`, without those of size 1.
    pub(super) fn merged(shape: &[usize], operands: &[&[isize]]) -> Self {
        let mut axes = Self { sizes: Vec::new(), strides: vec![Vec::new(); operands.len()] };
        for (axis, &size) in shape.iter().enumerate() {
            if size != 1 {
                axes.push(size, operands.iter().map(|strides| strides[axis]));
            }
        }
        axes
    }

    fn push(&mut self, size: usize, strides: impl Iterator<Item = isize>) {
        let strides: Vec<isize> = strides.collect();
        let last = self.sizes.len().checked_sub(1);
        let merges = |last: usize| strides.iter().zip(&self.strides).all(|(&s, of)| of[last] == s * size as isize);
        if let Some(last) = last.filter(|&last| merges(last)) {
            self.sizes[last] *= size;
            self.strides.iter_mut().zip(strides).for_each(|(of, s)| of[last] = s);
        } else {
            self.sizes.push(size);
            self.strides.iter_mut().zip(strides).for_each(|(of, s)| of.push(s));
        }
    }

    /// Number of elements.
    pub(super) fn len(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Lines that take the row-major number `number` (a name) apart, and the names of the coordinates, which begin with `prefix`.
    pub(super) fn coordinates(&self, s: &mut Shader<'_>, number: &str, prefix: &str) -> (String, Vec<String>) {
        let mut lines = String::new();
        let mut names = vec![String::new(); self.sizes.len()];
        let mut rest = number.to_owned();
        for axis in (1..self.sizes.len()).rev() {
            let size = s.param(self.sizes[axis]);
            let _ = write!(lines, "let {prefix}r{axis} = {rest} / {size}; ");
            let _ = writeln!(lines, "let {prefix}{axis} = {rest} - {prefix}r{axis} * {size};");
            names[axis] = format!("{prefix}{axis}");
            rest = format!("{prefix}r{axis}");
        }
        if let Some(first) = names.first_mut() {
            *first = rest;
        }
        (lines, names)
    }

    /// The position of an operand's element at these coordinates, counted from `offset`. That a stride is 0 or 1 is in the text.
    pub(super) fn position(&self, s: &mut Shader<'_>, operand: usize, offset: &str, coordinates: &[String]) -> String {
        let mut text = offset.to_owned();
        for (&stride, name) in self.strides[operand].iter().zip(coordinates) {
            match stride {
                0 => {}
                1 => text += &format!(" + {name}"),
                stride => text += &format!(" + {name} * {}", s.stride(stride)),
            }
        }
        text
    }
}

/// How elements are shared out to invocations. On a GPU each computes one, so that neighbours touch neighbouring memory. On
/// software each had better compute several along the last axis, and what these have in common once.
pub(super) struct Runs {
    axes: Axes,
    /// Size of the last axis, and how many of its elements an invocation computes, if it is cut.
    cut: Option<(usize, usize)>,
}

impl Runs {
    /// `several`: shall an invocation compute several elements?
    pub(super) fn new(axes: &Axes, several: bool) -> Self {
        // Enough for a few workgroups, so that all cores have work.
        let length = (axes.len() / 1024).clamp(4, 64);
        let mut axes = axes.clone();
        let last = axes.sizes.last_mut().filter(|size| several && **size > 1);
        let cut = last.map(|size| (std::mem::replace(size, size.div_ceil(length)), length));
        Self { axes, cut }
    }

    /// How many invocations there are.
    pub(super) fn threads(&self) -> usize {
        self.axes.len()
    }

    /// Does each compute several elements?
    pub(super) fn several(&self) -> bool {
        self.cut.is_some()
    }

    /// The coordinates of invocation `i`; the last is that of its run.
    pub(super) fn begin(&self, s: &mut Shader<'_>) -> Vec<String> {
        let (lines, names) = self.axes.coordinates(s, "i", "c");
        s.line(lines);
        names
    }

    /// Begins what is to be done for each element, whose last coordinate is then an element's.
    pub(super) fn each(&self, s: &mut Shader<'_>, coordinates: &mut [String]) {
        if let (Some((size, length)), Some(last)) = (self.cut, coordinates.last_mut()) {
            let (size, length) = (s.param(size), s.param(length));
            s.line(format!("let run = {last} * {length}; let stop = min(run + {length}, {size});"));
            s.line("for (var j = run; j < stop; j++) {");
            "j".clone_into(last);
        }
    }

    pub(super) fn end(&self, s: &mut Shader<'_>) {
        if self.cut.is_some() {
            s.line("}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(sizes: &[usize], strides: &[&[isize]]) -> Axes {
        Axes { sizes: sizes.to_vec(), strides: strides.iter().map(|s| s.to_vec()).collect() }
    }

    #[test]
    fn neighbours_merge_if_all_operands_agree() {
        assert_eq!(Axes::merged(&[2, 3, 4], &[&[12, 4, 1]]), axes(&[24], &[&[1]]));
        assert_eq!(Axes::merged(&[2, 3, 4], &[&[12, 4, 1], &[0, 0, 0]]), axes(&[24], &[&[1], &[0]]));
        assert_eq!(Axes::merged(&[2, 3, 4], &[&[12, 4, 1], &[0, 0, 1]]), axes(&[6, 4], &[&[4, 1], &[0, 1]]));
        assert_eq!(Axes::merged(&[2, 1, 4], &[&[4, 99, 1]]), axes(&[8], &[&[1]]));
        assert_eq!(Axes::merged(&[2, 4], &[&[1, 2]]), axes(&[2, 4], &[&[1, 2]]));
        assert_eq!(Axes::merged(&[3, 4], &[&[-4, -1]]), axes(&[12], &[&[-1]]));
        assert_eq!(Axes::merged(&[], &[&[]]), axes(&[], &[&[]]));
        assert_eq!(Axes::merged(&[1], &[&[7]]), axes(&[], &[&[]]));
    }
}
