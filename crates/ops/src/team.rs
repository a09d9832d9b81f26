//! Work that is no kernel, dealt out over the kernels' own threads: the safe side of kernels/include/pinion_team.h.

use crate::ffi;
use std::ffi::c_void;

/// What the threads of one [`deal`] share.
struct Dealt<'a, S, T, W> {
    states: *mut S,
    items: *mut T,
    work: &'a W,
}

/// Calls `work` once for each item, on as many threads as there are states: each thread has a state for itself and
/// takes the next item when it is free, so what becomes of an item should not depend on the state. Without OpenMP the
/// calling thread does all of it. No allocation, and no thread is made where the kernels run on the same number of
/// threads. A panic of `work` ends the process.
///
/// # Panics
/// If there is no state.
pub fn deal<S: Send, T: Send, W: Fn(&mut S, &mut T) + Sync>(states: &mut [S], items: &mut [T], work: W) {
    assert!(!states.is_empty(), "a team has at least one thread");
    let threads = i32::try_from(states.len()).unwrap_or(i32::MAX);
    let dealt = Dealt { states: states.as_mut_ptr(), items: items.as_mut_ptr(), work: &work };
    let context: *const Dealt<'_, S, T, W> = &dealt;
    // SAFETY: `run` gets this context, which outlives the call, with workers below `states.len()` that differ between
    // calls at the same time and each index below `items.len()` once: no two calls hold the same state or item, and
    // both slices are borrowed mutably until all calls have returned. States and items may go to another thread (Send),
    // and `work` may be called from several (Sync).
    unsafe { ffi::pinion_deal(run::<S, T, W>, context.cast_mut().cast(), items.len() as u64, threads) };
}

/// One item; an unwind ends here, with the process.
extern "C" fn run<S, T, W: Fn(&mut S, &mut T) + Sync>(context: *mut c_void, worker: u64, item: u64) {
    // SAFETY: the context is the one of the `deal` that waits for this call, which is of these types.
    let dealt = unsafe { &*context.cast_const().cast::<Dealt<'_, S, T, W>>() };
    // SAFETY: as `deal` says, both indices are within their slices and nothing else refers to either element now.
    let (state, item) =
        unsafe { (&mut *dealt.states.add(worker as usize), &mut *dealt.items.add(item as usize)) };
    (dealt.work)(state, item);
}
