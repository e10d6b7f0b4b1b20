//! Where the buffers of a plan lie. Kernels go by raw pointers, because the reads and writes of
//! one step are disjoint, or identical, regions of one arena.

use crate::error::{Result, err};
use crate::kernel::{BufferId, Buffers, View};

/// A table from [`BufferId`] to memory that lives elsewhere. Whoever fills it keeps that memory
/// alive, aligned to at least 8 and to itself for as long as kernels run on it.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    table: Vec<(usize, usize)>,
}

impl Memory {
    /// A table of `buffers` buffers, all of them empty.
    pub fn new(buffers: usize) -> Self {
        Self { table: vec![(0, 0); buffers] }
    }

    /// Says where a buffer lies. Allocates only if the table is too short for `id`.
    ///
    /// # Safety
    /// `len` bytes from `start` on must stay valid for reads and writes while kernels use this
    /// table, and nobody else may touch them meanwhile.
    pub unsafe fn bind(&mut self, id: BufferId, start: *mut u8, len: usize) {
        if self.table.len() <= id.index() {
            self.table.resize(id.index() + 1, (0, 0));
        }
        self.table[id.index()] = (start as usize, len);
    }

    /// Start and length in bytes of a buffer; null and 0 if it is not bound.
    pub fn buffer(&self, id: BufferId) -> (*mut u8, usize) {
        let (start, len) = self.table.get(id.index()).copied().unwrap_or((0, 0));
        (start as *mut u8, len)
    }

    /// Fails unless the view lies inside its buffer and is aligned for its dtype. Called once per
    /// view when a step is prepared; kernels rely on it.
    pub fn check(&self, view: &View) -> Result<()> {
        let Some((low, high)) = view.span() else { return Ok(()) };
        let (start, len) = self.buffer(view.buffer);
        let size = view.dtype.size();
        if low > high || high.checked_add(1).and_then(|n| n.checked_mul(size)).is_none_or(|need| need > len) {
            return Err(err!(Plan, "a view reaches outside buffer {}", view.buffer.0)
                .expected(format!("elements of {} within {len} bytes", view.dtype))
                .found(format!("elements {low}..={high}")));
        }
        if !(start as usize).is_multiple_of(size) {
            return Err(err!(Plan, "buffer {} is not aligned for {}", view.buffer.0, view.dtype));
        }
        Ok(())
    }

    /// The element of `view` at coordinate 0.
    ///
    /// # Safety
    /// [`Memory::check`] must have passed for this view and table.
    pub unsafe fn ptr<T>(&self, view: &View) -> *mut T {
        self.at(view.buffer, view.offset * size_of::<T>()).cast()
    }

    /// The byte at `offset` of a buffer; good to follow if [`Memory::check`] passed for a view with it.
    pub(crate) fn at(&self, id: BufferId, offset: usize) -> *mut u8 {
        // An empty view may name a buffer that is not bound; its pointer is never followed.
        self.buffer(id).0.wrapping_add(offset)
    }
}

impl Buffers for Memory {
    fn bytes(&self, id: BufferId) -> &[u8] {
        let (start, len) = self.buffer(id);
        if len == 0 {
            return &[];
        }
        // Safety: `bind`'s caller keeps the memory valid, and nobody writes through this table
        // while it is borrowed.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    fn bytes_mut(&mut self, id: BufferId) -> &mut [u8] {
        let (start, len) = self.buffer(id);
        if len == 0 {
            return &mut [];
        }
        // Safety: as in `bytes`; the table is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    #[test]
    fn check_finds_what_is_outside() {
        let mut words = [0u64; 4];
        let mut memory = Memory::new(1);
        // Safety: `words` outlives `memory`.
        unsafe { memory.bind(BufferId(0), words.as_mut_ptr().cast(), 32) };
        let view = View::contiguous(BufferId(0), DType::F32, &[8]);
        assert!(memory.check(&view).is_ok());
        assert!(memory.check(&View { offset: 1, ..view.clone() }).is_err());
        assert!(memory.check(&View { strides: vec![-1], ..view.clone() }).is_err());
        assert!(memory.check(&View { offset: 7, strides: vec![-1], ..view.clone() }).is_ok());
        assert!(memory.check(&View { buffer: BufferId(1), ..view.clone() }).is_err());
        assert!(memory.check(&View::contiguous(BufferId(9), DType::F32, &[0, 3])).is_ok());
        // Safety: odd on purpose, to see the alignment refused; never followed.
        unsafe { memory.bind(BufferId(0), words.as_mut_ptr().cast::<u8>().wrapping_add(2), 30) };
        assert!(memory.check(&View::contiguous(BufferId(0), DType::F32, &[2])).is_err());
        assert_eq!(memory.bytes(BufferId(0)).len(), 30);
        assert!(memory.bytes(BufferId(5)).is_empty());
    }
}
