//! The iteration space of a kernel: axes merged, cut into tiles.

use crate::kernel::{BufferId, View};
use crate::tensor::DType;

/// The most axes a merged space may have.
pub(crate) const MAX_AXES: usize = 8;

/// How an operand walks through the space.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    pub(crate) buffer: BufferId,
    pub(crate) dtype: DType,
    /// Bytes from the start of the buffer to the element at coordinate 0.
    pub(crate) offset: usize,
    /// In elements, per axis of the space.
    pub(crate) strides: Vec<isize>,
}

impl Walk {
    pub(crate) fn new(view: &View) -> Self {
        let View { buffer, dtype, offset, .. } = *view;
        Self { buffer, dtype, offset: offset * dtype.size(), strides: view.strides.clone() }
    }
}

/// Drops axes of size 1 and merges neighbours of one group that all walks cross in one stride.
/// The row-major order of the space stays as it is.
pub(crate) fn merge<G: Copy + PartialEq>(
    shape: &[usize],
    groups: &[G],
    walks: &mut [&mut Walk],
) -> (Vec<usize>, Vec<G>) {
    let old: Vec<Vec<isize>> = walks.iter_mut().map(|w| std::mem::take(&mut w.strides)).collect();
    let (mut sizes, mut kept): (Vec<usize>, Vec<G>) = (Vec::new(), Vec::new());
    for axis in 0..shape.len() {
        let size = shape[axis];
        if size == 1 {
            continue;
        }
        let same_walk = |(w, s): (&&mut Walk, &Vec<isize>)| w.strides.last() == Some(&(s[axis] * size as isize));
        if kept.last() == Some(&groups[axis]) && walks.iter().zip(&old).all(same_walk) {
            *sizes.last_mut().expect("as long as `kept`") *= size;
            for (w, s) in walks.iter_mut().zip(&old) {
                *w.strides.last_mut().expect("as long as `kept`") = s[axis];
            }
        } else {
            sizes.push(size);
            kept.push(groups[axis]);
            for (w, s) in walks.iter_mut().zip(&old) {
                w.strides.push(s[axis]);
            }
        }
    }
    (sizes, kept)
}

/// A space `outer axes ++ row axes`, cut into tiles of a few whole rows (short rows), or of a
/// part of one row (long rows). A tile is `chunk` (at the edge fewer) steps along `axis` times all
/// of the axes after it; it is one run in the row-major order of the space.
#[derive(Clone, Debug)]
pub(crate) struct Tiling {
    pub(crate) shape: Vec<usize>,
    /// The first row axis. There is at least one outer and one row axis.
    pub(crate) split: usize,
    pub(crate) axis: usize,
    pub(crate) chunk: usize,
    /// Are tiles parts of rows?
    pub(crate) long: bool,
}

/// Where a tile lies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// Coordinates on the axes up to and including the cut one.
    pub(crate) coords: [usize; MAX_AXES],
    /// Steps along the cut axis.
    pub(crate) extent: usize,
    /// Row-major position of its first element.
    pub(crate) linear: usize,
}

impl Tiling {
    /// Cuts `shape` into tiles of at most about `tile` elements. Rows of up to `longest` elements
    /// are kept whole.
    pub(crate) fn new(shape: Vec<usize>, split: usize, tile: usize, longest: usize) -> Self {
        let row: usize = shape[split..].iter().product();
        let long = row > longest;
        let (mut axis, mut inner, stop) = if long { (shape.len() - 1, 1, split) } else { (split - 1, row, 0) };
        // Rows that fill a tile well stand alone: what is the same along a row is then a constant.
        if long || row < 256 {
            while axis > stop && inner * shape[axis] <= tile {
                inner *= shape[axis];
                axis -= 1;
            }
        }
        let most = if !long && row >= 256 { 1 } else { (tile / inner).clamp(1, shape[axis]) };
        // Even pieces rather than a small last one.
        let mut chunk = shape[axis].div_ceil(shape[axis].div_ceil(most));
        if inner == 1 {
            chunk = chunk.next_multiple_of(32).min(most);
        }
        Self { shape, split, axis, chunk, long }
    }

    /// Elements after the cut axis.
    pub(crate) fn inner(&self) -> usize {
        self.shape[self.axis + 1..].iter().product()
    }

    /// Elements of a whole tile.
    pub(crate) fn tile_len(&self) -> usize {
        self.chunk * self.inner()
    }

    /// Elements of a row.
    pub(crate) fn row_len(&self) -> usize {
        self.shape[self.split..].iter().product()
    }

    /// Rows per step along the cut axis; of short rows only.
    pub(crate) fn rows_per_step(&self) -> usize {
        if self.long { 1 } else { self.shape[self.axis + 1..self.split].iter().product() }
    }

    /// Rows of a whole tile; 1 for long rows.
    pub(crate) fn rows_per_tile(&self) -> usize {
        if self.long { 1 } else { self.chunk * self.rows_per_step() }
    }

    fn chunks(&self) -> usize {
        self.shape[self.axis].div_ceil(self.chunk)
    }

    /// Number of tiles.
    pub(crate) fn tiles(&self) -> usize {
        self.shape[..self.axis].iter().product::<usize>() * self.chunks()
    }

    /// Tiles that make up one row; of long rows only.
    pub(crate) fn tiles_per_row(&self) -> usize {
        self.shape[self.split..self.axis].iter().product::<usize>() * self.chunks()
    }

    /// Where tile `t` lies.
    #[inline]
    pub(crate) fn place(&self, t: usize) -> Place {
        let mut place = Place::default();
        let chunks = self.chunks();
        let (mut rest, piece) = if chunks == 1 { (t, 0) } else { (t / chunks, t % chunks) };
        let start = piece * self.chunk;
        place.coords[self.axis] = start;
        place.extent = self.chunk.min(self.shape[self.axis] - start);
        place.linear = (rest * self.shape[self.axis] + start) * self.inner();
        for axis in (0..self.axis).rev() {
            let size = self.shape[axis];
            place.coords[axis] = rest % size;
            rest /= size;
        }
        place
    }

    /// The strides of an operand after the cut axis, within a tile: along rows too if `whole`,
    /// else only from row to row.
    pub(crate) fn inner_dims(&self, walk: &Walk, whole: bool) -> Vec<(usize, isize)> {
        let end = if whole { self.shape.len() } else { self.split.max(self.axis + 1) };
        (self.axis + 1..end).map(|a| (self.shape[a], walk.strides[a])).filter(|d| d.0 != 1).collect()
    }

    /// Does the operand pass through a tile one element after the other?
    pub(crate) fn dense(&self, walk: &Walk, whole: bool) -> bool {
        let mut step = 1;
        for (size, stride) in self.inner_dims(walk, whole).into_iter().rev() {
            if stride != step {
                return false;
            }
            step *= size as isize;
        }
        self.chunk == 1 || walk.strides[self.axis] == step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(strides: &[isize]) -> Walk {
        Walk { buffer: BufferId(0), dtype: DType::F32, offset: 0, strides: strides.to_vec() }
    }

    #[test]
    fn merging() {
        let (mut a, mut b) = (walk(&[60, 20, 5, 7, 1]), walk(&[0, 20, 5, 0, 1]));
        let (shape, groups) = merge(&[2, 3, 4, 1, 5], &[0, 0, 0, 0, 1], &mut [&mut a, &mut b]);
        assert_eq!((shape, groups), (vec![2, 12, 5], vec![0, 0, 1]));
        assert_eq!((a.strides, b.strides), (vec![60, 5, 1], vec![0, 5, 1]));
    }

    /// Tiles cover the space once, in order.
    #[test]
    fn tiles_cover() {
        for (shape, split) in [
            (vec![1, 5000], 1),
            (vec![7, 10], 1),
            (vec![3, 5, 40], 2),
            (vec![2, 3, 30, 50], 2),
            (vec![4, 300], 1),
            (vec![9, 1], 1),
            (vec![3000, 2, 1], 2),
        ] {
            for longest in [64, 1024] {
                let t = Tiling::new(shape.clone(), split, 1024, longest);
                let mut next = 0;
                for i in 0..t.tiles() {
                    let place = t.place(i);
                    assert_eq!(place.linear, next, "{t:?}");
                    assert!(place.extent > 0 && place.extent * t.inner() <= t.tile_len());
                    if t.long {
                        assert_eq!(i / t.tiles_per_row(), next / t.row_len());
                    } else {
                        assert_eq!(place.linear % t.row_len(), 0);
                    }
                    next += place.extent * t.inner();
                }
                assert_eq!(next, shape.iter().product::<usize>(), "{t:?}");
            }
        }
    }
}
