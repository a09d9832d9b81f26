//! Whether a grammar may be used, found out by compiling it under a clock.
//!
//! The library's limits bound what compiling costs for everything that was tried; the clock is for what was not. No
//! thread can be stopped from outside, so each compilation has a thread of its own, and one that takes too long is left
//! to its end. A few of those may be under way; while there are more, grammars wait outside.

use crate::limits::{
    CACHED_MAX, COMPILE_TIME_MAX, COMPILE_WALL_MAX, GIVEN_UP_MAX, LOAD_TIME_MAX, STACK_BYTES,
};
use crate::vocabulary::{Vocabulary, Words};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use pinion_protocol::{Fault, FaultCode, Grammar};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How often the clock of a compilation is looked at when it takes long.
const LOOK: Duration = Duration::from_millis(5);
/// In a clock's number below the complement of a thread's: that thread's CPU time (`CPUCLOCK_PERTHREAD_MASK |
/// CPUCLOCK_SCHED` in the kernel's posix-timers.h). It needs no file, which a confined process could not open.
const THREAD_CPU_CLOCK: i32 = 6;

type Verdict = Result<(), String>;
type Loaded = Result<Arc<Vocabulary>, String>;

/// Judges grammars for the process that has to refuse them.
pub struct Checker {
    loading: Receiver<Loaded>,
    loaded: Option<Loaded>,
    given_up: Vec<Receiver<Verdict>>,
    verdicts: VecDeque<(Grammar, Verdict)>,
}

impl Checker {
    /// Builds the tables in a thread. `words` may be an error: then every grammar is refused with it.
    pub fn start(words: Result<Words, String>) -> Checker {
        let (sender, loading) = sync_channel(1);
        let loaded = match words {
            Ok(words) => {
                let load = move || drop(sender.send(Vocabulary::new(words)));
                let started = Builder::new().name("grammar-load".to_owned()).spawn(load);
                started.err().map(|error| Err(format!("cannot be compiled: no thread: {error}")))
            }
            Err(reason) => Some(Err(reason)),
        };
        Checker { loading, loaded, given_up: Vec::new(), verdicts: VecDeque::with_capacity(CACHED_MAX) }
    }

    /// Compiles a grammar and computes its first mask.
    ///
    /// # Errors
    /// A fault of the grammar's field with the reason, or too many grammars that cannot be compiled in time.
    pub fn check(&mut self, grammar: &Grammar) -> Result<(), Fault> {
        let name = grammar.field.name();
        let told =
            |verdict: Verdict| verdict.map_err(|reason| Fault::field(name, format!("{name}: {reason}")));
        if let Some((_, verdict)) = self.verdicts.iter().find(|(known, _)| known == grammar) {
            return told(verdict.clone());
        }
        let vocabulary = match self.vocabulary() {
            Ok(vocabulary) => vocabulary,
            Err(reason) => return told(Err(reason)),
        };
        self.given_up.retain(|running| matches!(running.try_recv(), Err(TryRecvError::Empty)));
        if self.given_up.len() >= GIVEN_UP_MAX {
            let message = "other grammars are still being compiled; try again later";
            return Err(Fault::new(FaultCode::TooManyRequests, message));
        }
        let verdict = self.compile(vocabulary, grammar);
        if self.verdicts.len() == CACHED_MAX {
            self.verdicts.pop_front();
        }
        self.verdicts.push_back((grammar.clone(), verdict.clone()));
        told(verdict)
    }

    fn vocabulary(&mut self) -> Loaded {
        let loading = &self.loading;
        let loaded = self.loaded.get_or_insert_with(|| {
            let late = |_| "cannot be compiled: the vocabulary is not ready".to_owned();
            loading.recv_timeout(LOAD_TIME_MAX).map_err(late).and_then(|loaded| loaded)
        });
        loaded.clone()
    }

    fn compile(&mut self, vocabulary: Arc<Vocabulary>, grammar: &Grammar) -> Verdict {
        let (sender, verdict) = sync_channel(1);
        let (own_id, thread_id) = sync_channel(1);
        let grammar = grammar.clone();
        let work = move || {
            let _ = own_id.send(nix::unistd::gettid());
            let first = |mut matcher: crate::Matcher| matcher.next(&mut Vec::new()).map(drop);
            let _ = sender.send(vocabulary.compile(&grammar).and_then(first));
        };
        let thread = Builder::new().name("grammar-check".to_owned()).stack_size(STACK_BYTES).spawn(work);
        if let Err(error) = thread {
            return Err(format!("cannot be compiled: no thread: {error}"));
        }
        let began = Instant::now();
        let mut wait = COMPILE_TIME_MAX;
        let mut id = None;
        loop {
            match verdict.recv_timeout(wait) {
                Ok(verdict) => return verdict,
                Err(RecvTimeoutError::Disconnected) => return Err("cannot be compiled".to_owned()),
                Err(RecvTimeoutError::Timeout) => {
                    id = id.or_else(|| thread_id.try_recv().ok());
                    // On a busy machine the thread may not have begun.
                    let used = id.map_or(Duration::ZERO, |id: Pid| {
                        cpu_time(id.as_raw()).unwrap_or_else(|| began.elapsed())
                    });
                    if used >= COMPILE_TIME_MAX || began.elapsed() >= COMPILE_WALL_MAX {
                        if let Ok(verdict) = verdict.try_recv() {
                            return verdict; // It has ended since, and has no clock any more.
                        }
                        self.given_up.push(verdict);
                        return Err(format!(
                            "takes longer than {} ms to compile",
                            COMPILE_TIME_MAX.as_millis()
                        ));
                    }
                    wait = LOOK;
                }
            }
        }
    }
}

/// What a thread of this process has had of a CPU, if the system says it: a busy machine must not refuse a grammar that
/// is cheap.
fn cpu_time(thread: i32) -> Option<Duration> {
    let used = clock_gettime(ClockId::from_raw(!thread << 3 | THREAD_CPU_CLOCK)).ok()?;
    Some(Duration::new(u64::try_from(used.tv_sec()).ok()?, u32::try_from(used.tv_nsec()).ok()?))
}
