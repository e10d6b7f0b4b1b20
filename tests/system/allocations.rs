//! A training step allocates nothing once its plan exists.

use crate::support::{CASES, case, with_threads};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counting on threads that ask for it.
struct Counting;

thread_local! {
    /// Allocations of this thread since counting began, and the first of their sizes; `None` while nobody counts.
    static COUNT: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
}

fn note(layout: Layout) {
    let _ = COUNT.try_with(|count| {
        let Some((n, first)) = count.get() else { return };
        count.set(Some((n + 1, if n == 0 { layout.size() } else { first })));
        if n == 0 && std::env::var_os("ONTRAIN_SHOW_ALLOCATION").is_some() {
            count.set(None);
            eprintln!("{} bytes:\n{}", layout.size(), std::backtrace::Backtrace::force_capture());
            count.set(Some((1, layout.size())));
        }
    });
}

// Safety: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout);
        // Safety: the caller's promises, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout);
        // Safety: the caller's promises, handed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(layout);
        // Safety: the caller's promises, handed on.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // Safety: the caller's promises, handed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How many allocations `f` makes on this thread, and the size of the first.
fn allocations(f: impl FnOnce()) -> (usize, usize) {
    COUNT.with(|count| count.set(Some((0, 0))));
    f();
    COUNT.with(|count| count.take()).unwrap_or_default()
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(Vec::<u64>::with_capacity(3))), (1, 24));
    assert_eq!(allocations(|| ()), (0, 0));
}

#[test]
fn a_step_allocates_nothing() {
    let mut wrong = Vec::new();
    for name in CASES {
        let case = case(name);
        let (mut module, mut optimizer) = case.start();
        let inputs = case.inputs();
        with_threads(1, || {
            for _ in 0..2 {
                module.train_step(&inputs).unwrap();
                optimizer.step(&mut module).unwrap();
                module.lazy_reset_grad();
                module.eval_step(&inputs).unwrap();
            }
            let mut see = |what: &str, (count, first): (usize, usize)| {
                if count > 0 {
                    wrong.push(format!("{name}, {what}: {count} allocations, the first of {first} bytes"));
                }
            };
            see("train step", allocations(|| _ = module.train_step(&inputs).unwrap()));
            see("optimizer step", allocations(|| optimizer.step(&mut module).unwrap()));
            see("reset", allocations(|| module.lazy_reset_grad()));
            see("second train step", allocations(|| _ = module.train_step(&inputs).unwrap()));
            see("eval step", allocations(|| _ = module.eval_step(&inputs).unwrap()));
        });
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
