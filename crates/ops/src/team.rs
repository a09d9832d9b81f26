//! The threads of the process's kernels, and work that is no kernel but dealt out over them: the safe side of
//! kernels/include/pinion_team.h.
//!
//! A process has one [`Team`] at most, as it has one libgomp. Before [`start`], libgomp's threads do what a team does;
//! a build without libtorch has no libgomp, and there the calling thread does everything.

use crate::ffi;
use pinion_team::Team;
use pinion_team::crew::Work;
use std::ffi::c_void;
use std::io;
use std::sync::{PoisonError, RwLock};

pub use pinion_team::TeamOptions;

static TEAM: RwLock<Option<Team>> = RwLock::new(None);

/// From now on the kernels of this process share out their work over a team of its own. A team that has as many threads
/// already, and the same other options, stays as it is; any other is replaced by one that has at least its threads.
///
/// # Errors
/// When the system refuses a thread: then the process has no team, and libgomp's threads do the work.
pub fn start(options: TeamOptions) -> io::Result<()> {
    let mut team = TEAM.write().unwrap_or_else(PoisonError::into_inner);
    let threads = options.threads.max(team.as_ref().map_or(0, |team| team.options().threads));
    let options = TeamOptions { threads, ..options };
    if team.as_ref().is_some_and(|team| *team.options() == options) {
        return Ok(());
    }
    // SAFETY: null is always right.
    unsafe { ffi::pinion_use_team(None) };
    // The threads of the one before end first.
    *team = None;
    *team = Some(Team::new(options)?);
    // SAFETY: `share` does what the header asks of a team.
    unsafe { ffi::pinion_use_team(Some(share)) };
    Ok(())
}

/// Ends the team's threads; libgomp's do their work then. Waits for a kernel that has them.
pub fn stop() {
    // SAFETY: null is always right, and a kernel that has read `share` may still call it.
    unsafe { ffi::pinion_use_team(None) };
    let mut team = TEAM.write().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: as above; a `start` may have come between.
    unsafe { ffi::pinion_use_team(None) };
    *team = None;
}

/// What the kernels call. While a team is made or ended the calling thread does everything.
unsafe extern "C" fn share(work: Work, context: *mut c_void, items: u64, chunk: u64, threads: i32) {
    if let Ok(team) = TEAM.try_read()
        && let Some(team) = &*team
    {
        // SAFETY: the kernels' work may be called from several threads at once, and C++ without exceptions and
        // `extern "C"` do not unwind.
        unsafe { team.run(work, context, items, chunk, threads.max(1) as u32) };
        return;
    }
    // SAFETY: as above; the calling thread is worker 0.
    unsafe { work(context, 0, 0, items) };
}

/// What the threads of one [`deal`] share.
struct Dealt<'a, S, T, W> {
    states: *mut S,
    items: *mut T,
    work: &'a W,
}

/// Calls `work` once for each item, on as many threads as there are states: each thread has a state for itself and
/// takes the next item when it is free, so what becomes of an item should not depend on the state. No allocation, and
/// no thread is made where the kernels run on the same number of threads. A panic of `work` ends the process.
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

/// Some items; an unwind ends here, with the process.
extern "C" fn run<S, T, W: Fn(&mut S, &mut T) + Sync>(
    context: *mut c_void,
    worker: u64,
    begin: u64,
    end: u64,
) {
    // SAFETY: the context is the one of the `deal` that waits for this call, which is of these types.
    let dealt = unsafe { &*context.cast_const().cast::<Dealt<'_, S, T, W>>() };
    for item in begin..end {
        // SAFETY: as `deal` says, both indices are within their slices and nothing else refers to either element now.
        let (state, item) =
            unsafe { (&mut *dealt.states.add(worker as usize), &mut *dealt.items.add(item as usize)) };
        (dealt.work)(state, item);
    }
}
