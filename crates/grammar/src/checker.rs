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

/// Why a grammar was not judged. It depends on the time and on what else the machine does, so none of it is kept: the
/// same grammar is tried again when it comes again.
#[derive(Debug)]
enum Unjudged {
    /// The vocabulary's tables are not there yet.
    NotLoaded,
    /// The compilation had its CPU time.
    TooLong,
    /// It had its wall time, but not its CPU time.
    Starved,
    /// The system gave no thread.
    NoThread(std::io::Error),
}

impl Unjudged {
    /// Only the CPU time is for the grammar's author to mend.
    fn fault(self, name: &str) -> Fault {
        let busy =
            |what: &str| Fault::new(FaultCode::TooManyRequests, format!("{name}: {what}; try again later"));
        match self {
            Unjudged::NotLoaded => busy("the vocabulary is not ready"),
            Unjudged::Starved => busy("the machine is too busy to compile it"),
            Unjudged::NoThread(error) => busy(&format!("cannot be compiled now: no thread: {error}")),
            Unjudged::TooLong => {
                let most = COMPILE_TIME_MAX.as_millis();
                Fault::field(name, format!("{name}: takes longer than {most} ms to compile"))
            }
        }
    }
}

/// What a compilation may take.
#[derive(Debug)]
struct Clock {
    cpu: Duration,
    wall: Duration,
}

/// Judges grammars for the process that has to refuse them.
pub struct Checker {
    loading: Receiver<Loaded>,
    /// When a grammar is no longer kept waiting for the vocabulary.
    load_deadline: Instant,
    loaded: Option<Loaded>,
    clock: Clock,
    given_up: Vec<Receiver<Verdict>>,
    /// Only what follows from the grammar itself.
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
        Checker {
            loading,
            load_deadline: Instant::now() + LOAD_TIME_MAX,
            loaded,
            clock: Clock { cpu: COMPILE_TIME_MAX, wall: COMPILE_WALL_MAX },
            given_up: Vec::new(),
            verdicts: VecDeque::with_capacity(CACHED_MAX),
        }
    }

    /// Compiles a grammar and computes its first mask.
    ///
    /// # Errors
    /// A fault of the grammar's field with the reason; or that it cannot be judged now, because the vocabulary is not
    /// loaded, the machine is too busy, or too many grammars were not compiled in time.
    pub fn check(&mut self, grammar: &Grammar) -> Result<(), Fault> {
        let name = grammar.field.name();
        let told =
            |verdict: Verdict| verdict.map_err(|reason| Fault::field(name, format!("{name}: {reason}")));
        if let Some((_, verdict)) = self.verdicts.iter().find(|(known, _)| known == grammar) {
            return told(verdict.clone());
        }
        let vocabulary = match self.vocabulary().map_err(|unjudged| unjudged.fault(name))? {
            Ok(vocabulary) => vocabulary,
            Err(reason) => return told(Err(reason)),
        };
        self.given_up.retain(|running| matches!(running.try_recv(), Err(TryRecvError::Empty)));
        if self.given_up.len() >= GIVEN_UP_MAX {
            let message = "other grammars are still being compiled; try again later";
            return Err(Fault::new(FaultCode::TooManyRequests, message));
        }
        let verdict = self.compile(vocabulary, grammar).map_err(|unjudged| unjudged.fault(name))?;
        if self.verdicts.len() == CACHED_MAX {
            self.verdicts.pop_front();
        }
        self.verdicts.push_back((grammar.clone(), verdict.clone()));
        told(verdict)
    }

    /// Waits for the tables, but only until [`LOAD_TIME_MAX`] after the start: requests behind the first do not wait
    /// for as long again.
    fn vocabulary(&mut self) -> Result<Loaded, Unjudged> {
        if let Some(loaded) = &self.loaded {
            return Ok(loaded.clone());
        }
        let left = self.load_deadline.saturating_duration_since(Instant::now());
        let loaded = match self.loading.recv_timeout(left) {
            Ok(loaded) => loaded,
            Err(RecvTimeoutError::Disconnected) => {
                Err("cannot be compiled: there is no vocabulary".to_owned())
            }
            Err(RecvTimeoutError::Timeout) => return Err(Unjudged::NotLoaded),
        };
        Ok(self.loaded.insert(loaded).clone())
    }

    fn compile(&mut self, vocabulary: Arc<Vocabulary>, grammar: &Grammar) -> Result<Verdict, Unjudged> {
        let (sender, verdict) = sync_channel(1);
        let (own_id, thread_id) = sync_channel(1);
        let grammar = grammar.clone();
        let work = move || {
            let _ = own_id.send(nix::unistd::gettid());
            let first = |mut matcher: crate::Matcher| matcher.next(&mut Vec::new()).map(drop);
            let _ = sender.send(vocabulary.compile(&grammar).and_then(first));
        };
        let thread = Builder::new().name("grammar-check".to_owned()).stack_size(STACK_BYTES).spawn(work);
        thread.map_err(Unjudged::NoThread)?;
        let began = Instant::now();
        let mut wait = self.clock.cpu.min(self.clock.wall);
        let mut id = None;
        loop {
            match verdict.recv_timeout(wait) {
                Ok(verdict) => return Ok(verdict),
                Err(RecvTimeoutError::Disconnected) => return Ok(Err("cannot be compiled".to_owned())),
                Err(RecvTimeoutError::Timeout) => {
                    id = id.or_else(|| thread_id.try_recv().ok());
                    // On a busy machine the thread may not have begun.
                    let used = id.map_or(Duration::ZERO, |id: Pid| {
                        cpu_time(id.as_raw()).unwrap_or_else(|| began.elapsed())
                    });
                    let is_too_long = used >= self.clock.cpu;
                    if is_too_long || began.elapsed() >= self.clock.wall {
                        if let Ok(verdict) = verdict.try_recv() {
                            return Ok(verdict); // It has ended since, and has no clock any more.
                        }
                        self.given_up.push(verdict);
                        return Err(if is_too_long { Unjudged::TooLong } else { Unjudged::Starved });
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

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_protocol::{GrammarField, GrammarKind, StopIds};

    fn words() -> Words {
        let bytes = (0..=255).map(|byte| vec![byte]).chain([Vec::new()]).collect();
        Words { bytes, stop_ids: StopIds::one(256), marks: None, drops_first_space: false }
    }

    /// One that takes a while, and another for each number.
    fn heavy(number: usize) -> Grammar {
        let alternatives: Vec<String> = (0..500).map(|n| format!("\"alternative {number} {n}\"")).collect();
        let (kind, field) = (GrammarKind::Choice, GrammarField::GuidedChoice);
        Grammar { kind, field, text: format!("[{}]", alternatives.join(",")).into() }
    }

    /// A grammar that is refused under this clock. One whose thread is quicker than this one is passed over.
    fn refused(checker: &mut Checker, clock: Clock) -> (Grammar, Fault) {
        let usual = std::mem::replace(&mut checker.clock, clock);
        let tries = (0..1000).map(heavy);
        let mut found = tries.filter_map(|grammar| Some((grammar.clone(), checker.check(&grammar).err()?)));
        let refused = found.next().expect("a grammar that is not compiled at once");
        checker.clock = usual;
        refused
    }

    fn settled(checker: &mut Checker, grammar: &Grammar) -> Result<(), Fault> {
        // On a machine that runs other tests the usual clock may give a grammar up, too.
        checker.clock = Clock { cpu: Duration::from_secs(60), wall: Duration::from_secs(60) };
        checker.check(grammar)
    }

    #[test]
    fn a_grammar_that_once_took_too_long_is_tried_again() {
        let mut checker = Checker::start(Ok(words()));
        let clock = Clock { cpu: Duration::ZERO, wall: COMPILE_WALL_MAX };
        let (grammar, fault) = refused(&mut checker, clock);
        assert_eq!((fault.code, fault.param.as_deref()), (FaultCode::InvalidValue, Some("guided_choice")));
        assert_eq!(fault.message, "guided_choice: takes longer than 40 ms to compile");
        assert_eq!(settled(&mut checker, &grammar), Ok(()));
    }

    #[test]
    fn a_busy_machine_is_not_the_grammars_fault() {
        let mut checker = Checker::start(Ok(words()));
        let clock = Clock { cpu: Duration::from_secs(60), wall: Duration::ZERO };
        let (grammar, fault) = refused(&mut checker, clock);
        assert_eq!((fault.code, fault.param), (FaultCode::TooManyRequests, None));
        assert_eq!(fault.message, "guided_choice: the machine is too busy to compile it; try again later");
        assert_eq!(settled(&mut checker, &grammar), Ok(()));
    }

    /// What repeated slow grammars can cost: no more threads than these, however often they come.
    #[test]
    fn while_as_many_as_may_be_still_run_none_is_tried() {
        let mut checker = Checker::start(Ok(words()));
        let (running, given_up): (Vec<_>, Vec<_>) = (0..GIVEN_UP_MAX).map(|_| sync_channel(1)).unzip();
        checker.given_up = given_up;
        for _ in 0..3 {
            let fault = settled(&mut checker, &heavy(0)).expect_err("others are under way");
            assert_eq!(fault.code, FaultCode::TooManyRequests);
        }
        drop(running);
        assert_eq!(settled(&mut checker, &heavy(0)), Ok(()));
    }

    #[test]
    fn a_vocabulary_that_is_late_is_there_for_the_next_grammar() {
        let (sender, loading) = sync_channel(1);
        let mut checker =
            Checker { loading, load_deadline: Instant::now(), loaded: None, ..Checker::start(Ok(words())) };
        for _ in 0..2 {
            let fault = checker.check(&heavy(0)).expect_err("there is no vocabulary");
            assert_eq!(fault.code, FaultCode::TooManyRequests);
            assert_eq!(fault.message, "guided_choice: the vocabulary is not ready; try again later");
        }
        sender.send(Vocabulary::new(words())).expect("the checker lives");
        assert_eq!(settled(&mut checker, &heavy(0)), Ok(()));
    }
}
