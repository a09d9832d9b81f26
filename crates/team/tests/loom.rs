//! A crew under the model checker: every interleaving of a caller and its helpers, within a bound of preemptions.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p pinion-team --test loom --release
//! ```
//!
//! Helpers do not look for work here: they sleep whenever they may, and so does the caller. A wait has no deadline, so
//! a caller that is not woken is a deadlock, which loom reports; a helper that is not woken only fails to help
//! (`tests/team.rs`). Each Relaxed in place of a Release or an Acquire of the state word fails here. Items are loom's
//! own cells, which report it if two threads have one at the same time or if a caller reads what it has not waited
//! for.
#![cfg(loom)]
// Unsafe: the contract of `Crew::run`. A failed step of a test is a failed test.
#![allow(unsafe_code, clippy::unwrap_used)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use pinion_team::crew::{Crew, Job};
use std::ffi::c_void;

/// How often each item was done.
struct Items(Vec<UnsafeCell<u32>>);

unsafe extern "C" fn work(context: *mut c_void, _worker: u64, begin: u64, end: u64) {
    // SAFETY: the context is that of `runs`, which waits.
    let items = unsafe { &*context.cast_const().cast::<Items>() };
    for item in begin..end {
        // SAFETY: no other thread has this item, which loom checks.
        items.0[item as usize].with_mut(|times| unsafe { *times += 1 });
    }
}

/// One after the other, jobs of (items, workers), in chunks of one, with `helpers`.
fn runs(helpers: u32, jobs: &'static [(u64, u32)], preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let crew = Arc::new(Crew::new(helpers + 1));
        let threads: Vec<_> = (1..=helpers)
            .map(|worker| {
                let crew = Arc::clone(&crew);
                thread::spawn(move || {
                    let mut seen = 0;
                    while crew.sleep(seen) {
                        seen = crew.help(worker);
                    }
                })
            })
            .collect();
        for &(count, workers) in jobs {
            let items = Items((0..count).map(|_| UnsafeCell::new(0)).collect());
            let context = std::ptr::from_ref(&items).cast_mut().cast();
            let job = Job { work, context, items: count, chunk: 1, workers };
            // SAFETY: this is the only caller, and `work` is written for several threads.
            unsafe { crew.run(job, |_| false) };
            for times in &items.0 {
                // SAFETY: the run is over, so nothing else has an item, which loom checks.
                assert_eq!(times.with(|times| unsafe { *times }), 1);
            }
        }
        crew.end();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_helper_takes_part_in_jobs_or_comes_too_late() {
    runs(1, &[(2, 2), (2, 2)], 4);
}

#[test]
fn two_helpers_and_the_caller_wait_for_each_other() {
    runs(2, &[(3, 3)], 2);
    runs(2, &[(1, 3), (1, 3)], 1);
}

#[test]
fn a_helper_that_a_job_has_no_use_for_leaves_it() {
    runs(2, &[(2, 2)], 2);
}
