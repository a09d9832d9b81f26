//! [`Team`]: a crew with its threads.

use crate::crew::{Crew, Job, Work};
use crate::spin::{Spin, look};
use std::ffi::c_void;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// What kernels may keep on a thread's stack, with room to spare.
const STACK_BYTES: usize = 2 << 20;

/// How a team works.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TeamOptions {
    /// Threads, the caller among them; at least 1.
    pub threads: u32,
    /// How long a thread looks for work before it sleeps.
    pub spin: Duration,
    /// A CPU for each thread. Helpers stay on theirs; the caller's is left to it, and a caller is not pinned. Empty:
    /// helpers may run wherever the thread that makes the team may.
    pub cpus: Vec<usize>,
}

/// Threads that help the caller of [`Team::run`]. They end with it.
pub struct Team {
    crew: Arc<Crew>,
    options: TeamOptions,
    /// Held by the caller during a run.
    calling: Mutex<()>,
    helpers: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Team {
    /// Starts `options.threads - 1` helpers.
    ///
    /// # Errors
    /// When the system refuses a thread; those before it have ended.
    pub fn new(options: TeamOptions) -> io::Result<Team> {
        let crew = Arc::new(Crew::new(options.threads));
        let mut team = Team { crew, calling: Mutex::default(), helpers: Vec::new(), options };
        for worker in 1..team.crew.threads() {
            let (crew, spin) = (Arc::clone(&team.crew), team.options.spin);
            let cpu = team.options.cpus.get(worker as usize).copied();
            let helper = std::thread::Builder::new()
                .name(format!("kernels-{worker}"))
                .stack_size(STACK_BYTES)
                .spawn(move || help(&crew, worker, cpu, spin))?;
            team.helpers.push(helper);
        }
        Ok(team)
    }

    /// What the team was made with.
    pub fn options(&self) -> &TeamOptions {
        &self.options
    }

    /// Calls `work(context, worker, begin, end)` for chunks of `chunk` items that together are all of `items`, each
    /// once, on the calling thread and at most `threads - 1` helpers. All calls have returned when this returns. With
    /// one thread, while another caller has the team, and inside of `work`, one call on the calling thread, as worker
    /// 0, has all items. No allocation.
    ///
    /// # Safety
    /// `work` may be called with `context` from several threads at once, and does not unwind.
    pub unsafe fn run(&self, work: Work, context: *mut c_void, items: u64, chunk: u64, threads: u32) {
        let workers = threads.clamp(1, self.crew.threads());
        let calling = if workers > 1 { self.calling.try_lock().ok() } else { None };
        if calling.is_none() {
            // SAFETY: by contract; worker 0 is the calling thread.
            unsafe { work(context, 0, 0, items) };
            return;
        }
        let job = Job { work, context, items, chunk: chunk.clamp(1, items.max(1)), workers };
        // SAFETY: the lock makes this the only caller; the rest is this function's own contract.
        unsafe { self.crew.run(job, |left| look(self.options.spin, left)) };
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.crew.end();
        for helper in self.helpers.drain(..) {
            // A helper does not panic: its work may not unwind.
            let _ = helper.join();
        }
    }
}

/// A helper's life.
fn help(crew: &Crew, worker: u32, cpu: Option<usize>, spin: Duration) {
    if let Some(id) = cpu {
        // Refused only where the set of the process has changed since the plan; the thread then runs anywhere in it.
        core_affinity::set_for_current(core_affinity::CoreId { id });
    }
    let mut spin = Spin::new(spin);
    let mut seen = 0;
    loop {
        if spin.until(&|| crew.has_newer(seen)) || spin.asleep(|| crew.sleep(seen)) {
            seen = crew.help(worker);
        } else {
            return;
        }
    }
}
