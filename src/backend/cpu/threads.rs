//! Splitting a kernel's work over the cores.
//!
//! A kernel cuts its work into tasks by the shape of the problem alone; how many workers then draw
//! those tasks never shows in a result. Natively the workers are rayon's, on wasm there is one.

#[cfg(not(target_arch = "wasm32"))]
use core::sync::atomic::{AtomicUsize, Ordering};

/// The most workers one call may use; 0 means as many as there are.
#[cfg(not(target_arch = "wasm32"))]
static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// Limits every later call in this process to `threads` workers; 0 lifts the limit.
///
/// Results are the same bits whatever the limit.
pub fn set_threads(threads: usize) {
    #[cfg(not(target_arch = "wasm32"))]
    LIMIT.store(threads, Ordering::Relaxed);
    #[cfg(target_arch = "wasm32")]
    let _ = threads;
}

/// How many workers a call may use at present; 1 on wasm.
pub fn threads() -> usize {
    #[cfg(not(target_arch = "wasm32"))]
    {
        match LIMIT.load(Ordering::Relaxed) {
            1 => 1,
            0 => rayon::current_num_threads(),
            limit => limit.min(rayon::current_num_threads()),
        }
    }
    #[cfg(target_arch = "wasm32")]
    {
        1
    }
}

/// Runs `f(0)`, `f(1)`, … `f(tasks - 1)`, each once, in any order and on any worker.
///
/// Allocates nothing itself. A panic in a task reaches the caller once the other workers have stopped.
pub fn parallel_for(tasks: usize, f: impl Fn(usize) + Sync) {
    #[cfg(not(target_arch = "wasm32"))]
    {
        let workers = if tasks <= 1 { 1 } else { threads().min(tasks) };
        if workers > 1 {
            let next = AtomicUsize::new(0);
            let draw = || {
                loop {
                    let task = next.fetch_add(1, Ordering::Relaxed);
                    if task >= tasks {
                        break;
                    }
                    f(task);
                }
            };
            return spread(workers, &draw);
        }
    }
    for task in 0..tasks {
        f(task);
    }
}

/// Runs `work` on `workers` threads at once: a tree of joins, which keeps its jobs on the stack.
#[cfg(not(target_arch = "wasm32"))]
fn spread(workers: usize, work: &(impl Fn() + Sync)) {
    if workers == 1 {
        return work();
    }
    let half = workers / 2;
    rayon::join(|| spread(workers - half, work), || spread(half, work));
}

/// Runs `f` on a thread of the pool, so that the calls of [`parallel_for`] inside it need not enter the
/// pool one by one. Worth it around a whole training step.
pub fn in_pool<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    #[cfg(not(target_arch = "wasm32"))]
    if threads() > 1 {
        return rayon::join(f, || ()).0;
    }
    f()
}

/// A pointer that tasks share; each task writes only elements that no other task touches.
pub(crate) struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// Safety: the pointer itself is plain data; whoever dereferences it answers for disjointness.
unsafe impl<T: Send> Send for Shared<T> {}
// Safety: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn new(slice: &mut [T]) -> Self {
        Shared(slice.as_mut_ptr())
    }

    /// From a pointer into memory that stays put.
    pub(crate) fn from_ptr(p: *mut T) -> Self {
        Shared(p)
    }

    /// The same, `n` elements further on.
    pub(crate) fn moved(self, n: usize) -> Self {
        Shared(self.0.wrapping_add(n))
    }

    /// The pointer. A method, so that closures capture the whole wrapper.
    pub(crate) fn get(self) -> *mut T {
        self.0
    }

    /// The `len` elements from `start` on.
    ///
    /// # Safety
    /// They lie inside the slice this was made from, and no other task touches them meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice<'a>(self, start: usize, len: usize) -> &'a mut [T] {
        // Safety: promised by the caller.
        unsafe { core::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for tasks in [0, 1, 2, 3, 17, 1000] {
            let mut seen = vec![0u8; tasks];
            let shared = Shared::new(&mut seen);
            // Safety: each task touches its own element.
            parallel_for(tasks, |t| unsafe { *shared.get().add(t) += 1 });
            assert!(seen.iter().all(|&s| s == 1));
        }
    }

    #[test]
    fn nested_calls_finish() {
        let mut sums = vec![0usize; 64];
        let shared = Shared::new(&mut sums);
        in_pool(|| {
            parallel_for(8, |i| {
                // Safety: every (i, j) has its own element.
                parallel_for(8, |j| unsafe { *shared.get().add(i * 8 + j) = i * 8 + j });
            });
        });
        assert!(sums.iter().enumerate().all(|(i, &s)| s == i));
    }
}
