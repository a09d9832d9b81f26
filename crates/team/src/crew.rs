//! [`Crew`]: how a caller and its helpers come together at a job and part again. No threads of its own, so that the
//! model checker can run every interleaving of it (`tests/loom.rs`).
//!
//! One word says everything: the number of the newest job, whether it is open, and how many helpers are in it. A
//! helper enters by raising that number, which fails once the job is closed; the caller closes the job when it finds
//! no chunk left and waits for the helpers that are still in. So a helper that sleeps, or that the kernel keeps from
//! its core, is waited for only if it had entered, and for no more than the chunk that it holds.

use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, UnsafeCell};
use std::ffi::c_void;

/// Does the items from `begin` to `end` as `worker`. Calls at the same time have different workers. May not unwind.
pub type Work = unsafe extern "C" fn(context: *mut c_void, worker: u64, begin: u64, end: u64);

/// What is shared out: `items` in equal parts among `workers`, each in chunks of `chunk` (its last may be shorter).
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// What to do.
    pub work: Work,
    /// Its first argument.
    pub context: *mut c_void,
    /// Number of items.
    pub items: u64,
    /// Items that are taken at once, at least 1.
    pub chunk: u64,
    /// Threads that may take part, the caller among them: at least 1, at most those of the crew.
    pub workers: u32,
}

/// A job is open: helpers may enter.
const OPEN: u64 = 1 << 31;
/// Helpers in the job.
const HELPERS: u64 = OPEN - 1;
const NUMBER_SHIFT: u32 = 32;

/// The next item of one worker's part that is not taken yet, on a cache line of its own.
#[repr(align(128))]
struct Cursor(AtomicU64);

/// Where a caller and its helpers meet.
pub struct Crew {
    state: AtomicU64,
    /// Written by the caller while the newest job is closed and no helper is in it.
    job: UnsafeCell<Option<Job>>,
    cursors: Box<[Cursor]>,
    gate: Mutex<Gate>,
    /// Rung for helpers: there is a job, or the end.
    work: Condvar,
    /// Rung for the caller: the last helper has left.
    left: Condvar,
}

#[derive(Default)]
struct Gate {
    sleeping: u32,
    caller_sleeps: bool,
    ended: bool,
}

// SAFETY: `job` is written only between jobs, by the one caller (`Crew::run`'s contract), and read by helpers that have
// entered; the state word orders both. What it points to may be used by several threads: again `run`'s contract.
unsafe impl Sync for Crew {}
// SAFETY: as above; nothing belongs to the thread that made it.
unsafe impl Send for Crew {}

impl Crew {
    /// For a caller and `threads - 1` helpers.
    pub fn new(threads: u32) -> Crew {
        Crew {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            cursors: (0..threads.max(1)).map(|_| Cursor(AtomicU64::new(0))).collect(),
            gate: Mutex::default(),
            work: Condvar::new(),
            left: Condvar::new(),
        }
    }

    /// Threads, the caller among them.
    pub fn threads(&self) -> u32 {
        self.cursors.len() as u32
    }

    /// Does `job` together with the helpers that come in time. `wait` looks for up to a while whether what it is given
    /// holds; if not, this sleeps until the last helper has left. It may not unwind.
    ///
    /// # Safety
    /// One caller at a time. `job.work` may be called with `job.context` from any thread until this returns.
    ///
    /// # Panics
    /// If the job has no workers or more than the crew, or chunks of no items.
    pub unsafe fn run(&self, job: Job, wait: impl FnOnce(&dyn Fn() -> bool) -> bool) {
        assert!((1..=self.threads()).contains(&job.workers) && job.chunk > 0, "a job fits its crew");
        for worker in 0..job.workers {
            self.cursors[worker as usize].0.store(part(&job, worker).0, Ordering::Relaxed);
        }
        // SAFETY: the job before is closed and empty, so no helper reads the cell.
        self.job.with_mut(|cell| unsafe { *cell = Some(job) });
        let number = (self.state.load(Ordering::Relaxed) >> NUMBER_SHIFT) as u32;
        let sleeping = {
            let gate = self.gate();
            // Release: a helper that enters sees the job and the cursors. Under the gate: a helper that is about to
            // sleep sees it, or is counted.
            self.state.store(u64::from(number.wrapping_add(1)) << NUMBER_SHIFT | OPEN, Ordering::Release);
            gate.sleeping
        };
        if sleeping > 0 {
            self.work.notify_all();
        }
        // SAFETY: the caller vouches for work and context; worker 0 is the caller's alone.
        unsafe { self.take(&job, 0) };
        // Acquire: what helpers did, that have left before.
        let inside = self.state.fetch_and(!OPEN, Ordering::AcqRel) & HELPERS;
        if inside > 0 && !wait(&|| self.is_empty()) {
            let mut gate = self.gate();
            gate.caller_sleeps = true;
            while !self.is_empty() {
                gate = self.left.wait(gate).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
            gate.caller_sleeps = false;
        }
    }

    /// Whether there is a job that a helper with `seen` as its last one has not looked at.
    pub fn has_newer(&self, seen: u32) -> bool {
        (self.state.load(Ordering::Relaxed) >> NUMBER_SHIFT) as u32 != seen
    }

    /// Helper `worker`'s part in the newest job, if it is open. Gives that job's number.
    ///
    /// # Panics
    /// If `worker` is 0, which is the caller's, or not below the number of threads.
    pub fn help(&self, worker: u32) -> u32 {
        assert!((1..self.threads()).contains(&worker), "worker 0 is the caller");
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if state & OPEN == 0 {
                return (state >> NUMBER_SHIFT) as u32;
            }
            // Acquire: the job and its cursors.
            let entered =
                self.state.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed);
            match entered {
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        // SAFETY: this helper is in the job, so the caller does not write the cell until it has left.
        let job = self.job.with(|cell| unsafe { *cell });
        if let Some(job) = job.filter(|job| worker < job.workers) {
            // SAFETY: `run` is still waiting for this helper; no other thread has this worker's number.
            unsafe { self.take(&job, worker) };
        }
        // Release: the caller sees what this helper did.
        let before = self.state.fetch_sub(1, Ordering::Release);
        if before & (OPEN | HELPERS) == 1 {
            // Closed, and this was the last one. Nothing of the job may be touched any more.
            let gate = self.gate();
            if gate.caller_sleeps {
                self.left.notify_one();
            }
        }
        (state >> NUMBER_SHIFT) as u32
    }

    /// Sleeps until there is a newer job than `seen`, or the end. Whether to go on.
    pub fn sleep(&self, seen: u32) -> bool {
        let mut gate = self.gate();
        while !gate.ended && !self.has_newer(seen) {
            gate.sleeping += 1;
            gate = self.work.wait(gate).unwrap_or_else(std::sync::PoisonError::into_inner);
            gate.sleeping -= 1;
        }
        !gate.ended
    }

    /// Lets every helper's next [`Crew::sleep`] say that this is the end.
    pub fn end(&self) {
        self.gate().ended = true;
        self.work.notify_all();
    }

    fn is_empty(&self) -> bool {
        self.state.load(Ordering::Acquire) & HELPERS == 0
    }

    /// Does chunks until none is left: of the worker's own part first, so that each thread reads what lies together,
    /// then of the others'.
    ///
    /// # Safety
    /// As [`Crew::run`]; `worker` is this thread's.
    unsafe fn take(&self, job: &Job, worker: u32) {
        for offset in 0..job.workers {
            let owner = (worker + offset) % job.workers;
            let (cursor, end) = (&self.cursors[owner as usize].0, part(job, owner).1);
            while cursor.load(Ordering::Relaxed) < end {
                let begin = cursor.fetch_add(job.chunk, Ordering::Relaxed);
                if begin >= end {
                    break;
                }
                // SAFETY: by contract; each chunk is given out once.
                unsafe { (job.work)(job.context, worker.into(), begin, end.min(begin + job.chunk)) };
            }
        }
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The items of `worker`'s part, from and to.
fn part(job: &Job, worker: u32) -> (u64, u64) {
    let at = |worker: u32| job.items * u64::from(worker) / u64::from(job.workers);
    (at(worker), at(worker + 1))
}
