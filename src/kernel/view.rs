//! How a kernel sees a buffer: dtype, offset, shape and strides.

use crate::tensor::{DType, checked_len, contiguous_strides};

/// A buffer of a lowering or plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

impl BufferId {
    /// As an index into per-buffer tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A strided window on a buffer. Offset and strides count elements of `dtype`; a stride of 0
/// repeats (broadcast), a negative one walks backwards.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The buffer.
    pub buffer: BufferId,
    /// Element type.
    pub dtype: DType,
    /// Position of the element at coordinate 0.
    pub offset: usize,
    /// Sizes.
    pub shape: Vec<usize>,
    /// Distance between neighbours, per axis.
    pub strides: Vec<isize>,
}

impl View {
    /// The whole of a buffer that holds a row-major tensor of `shape`.
    pub fn contiguous(buffer: BufferId, dtype: DType, shape: &[usize]) -> Self {
        Self { buffer, dtype, offset: 0, shape: shape.to_vec(), strides: contiguous_strides(shape) }
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements (those that broadcasting repeats counted each time).
    pub fn len(&self) -> usize {
        checked_len(&self.shape).expect("shapes are checked where views are made")
    }

    /// Has it no elements?
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Are its elements one row-major run?
    pub fn is_contiguous(&self) -> bool {
        let mut step = 1isize;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if size != 1 && stride != step {
                return self.is_empty();
            }
            step *= size as isize;
        }
        true
    }

    /// Axis `i` of the result is axis `axes[i]` of this view.
    pub fn permuted(&self, axes: &[usize]) -> Self {
        let shape = axes.iter().map(|&a| self.shape[a]).collect();
        let strides = axes.iter().map(|&a| self.strides[a]).collect();
        Self { shape, strides, ..self.clone() }
    }

    /// Broadcast to `shape` by NumPy's rule (trailing axes align; size 1 repeats). The caller has
    /// checked that it fits.
    pub fn broadcast_to(&self, shape: &[usize]) -> Self {
        let lead = shape.len() - self.rank();
        let mut strides = vec![0; shape.len()];
        for axis in 0..self.rank() {
            debug_assert!(self.shape[axis] == 1 || self.shape[axis] == shape[lead + axis]);
            if self.shape[axis] != 1 || shape[lead + axis] == 1 {
                strides[lead + axis] = self.strides[axis];
            }
        }
        Self { shape: shape.to_vec(), strides, ..self.clone() }
    }

    /// The part `start, start + step, …` (`size` of them) along `axis`; `step` may be negative.
    pub fn sliced(&self, axis: usize, start: usize, step: isize, size: usize) -> Self {
        let mut part = self.clone();
        if size > 0 {
            part.offset = (part.offset as isize + start as isize * part.strides[axis]) as usize;
        }
        part.shape[axis] = size;
        part.strides[axis] *= step;
        part
    }

    /// With a new axis of size 1 before `axis`.
    pub fn unsqueezed(&self, axis: usize) -> Self {
        let mut view = self.clone();
        view.shape.insert(axis, 1);
        view.strides.insert(axis, 0);
        view
    }

    /// Without `axis`, which has size 1.
    pub fn squeezed(&self, axis: usize) -> Self {
        let mut view = self.clone();
        view.shape.remove(axis);
        view.strides.remove(axis);
        view
    }

    /// The same elements in row-major order under another shape, if strides can say it.
    pub fn reshaped(&self, shape: &[usize]) -> Option<Self> {
        if self.is_empty() || self.is_contiguous() {
            return Some(Self { shape: shape.to_vec(), strides: contiguous_strides(shape), ..self.clone() });
        }
        // Group old and new axes into runs of equal product; inside a run the old axes must be
        // one arithmetic walk.
        let old: Vec<(usize, isize)> =
            self.shape.iter().copied().zip(self.strides.iter().copied()).filter(|&(n, _)| n != 1).collect();
        let mut strides = vec![0isize; shape.len()];
        let (mut i, mut j) = (0, 0);
        while i < old.len() {
            let (i0, j0) = (i, j);
            let (mut a, mut b) = (old[i].0, 1);
            i += 1;
            while a != b {
                if b < a {
                    b *= *shape.get(j)?;
                    j += 1;
                } else {
                    a *= old.get(i)?.0;
                    i += 1;
                }
            }
            for k in i0..i - 1 {
                if old[k].1 != old[k + 1].1 * old[k + 1].0 as isize {
                    return None;
                }
            }
            let mut step = old[i - 1].1;
            for k in (j0..j).rev() {
                strides[k] = step;
                step *= shape[k] as isize;
            }
        }
        Some(Self { shape: shape.to_vec(), strides, ..self.clone() })
    }

    /// Lowest and highest element position that it touches, or `None` if it is empty.
    pub fn span(&self) -> Option<(usize, usize)> {
        if self.is_empty() {
            return None;
        }
        let (mut low, mut high) = (self.offset as isize, self.offset as isize);
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            let reach = (size as isize - 1) * stride;
            if reach < 0 { low += reach } else { high += reach }
        }
        Some((low as usize, high as usize))
    }
}
