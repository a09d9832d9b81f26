//! `--profile torch`: libtorch's trace of the model's operations, begun and ended by an operator's order.
//!
//! The trace belongs to the thread that runs the model, so that thread begins and ends it between two steps; the loop
//! only asks, and looks whether it has been done. Both orders may be given twice. What a trace holds grows with every
//! operation, so it ends by itself after [`STEPS_MAX`] steps, and when the engine leaves.

use crate::engine::Engine;
use pinion_config::{Config, Profiler};
use pinion_model::op_trace;
use pinion_protocol::Peer;
use pinion_protocol::control::AdminOutcome;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::Duration;

/// Steps in one trace; GPT-2 takes about 300 events a step.
const STEPS_MAX: u64 = 512;
/// Files of one engine in one folder.
const FILES_MAX: u32 = 10_000;
/// How long an engine that leaves waits for its trace to be written.
const LEAVE_DEADLINE: Duration = Duration::from_secs(30);

/// A start or a stop on its way to the model's thread and back.
#[derive(Debug)]
struct Pending {
    /// The command to answer; a stop of our own has none.
    number: Option<u64>,
    starts: bool,
    outcome: Receiver<AdminOutcome>,
}

/// The trace of one engine.
#[derive(Debug)]
pub(crate) struct OpProfile {
    folder: PathBuf,
    on_gpu: bool,
    /// The engine's step with which the trace began.
    began: Option<u64>,
    /// Where the trace goes that is under way.
    path: PathBuf,
    pending: Option<Pending>,
}

impl OpProfile {
    /// What the config asks for, if it does.
    pub(crate) fn of(config: &Config, me: Peer) -> Option<OpProfile> {
        config.observe.profiler.filter(|profiler| *profiler == Profiler::Torch)?;
        Some(OpProfile {
            folder: config.observe.profile_folder(config.backend, me)?,
            on_gpu: config.cuda.is_some(),
            began: None,
            path: PathBuf::new(),
            pending: None,
        })
    }

    /// Whether something is in flight whose end rings no doorbell.
    pub(crate) fn waits(&self) -> bool {
        self.pending.is_some()
    }

    /// An operator wants a trace to begin or to end. The outcome, unless it is not known yet.
    pub(crate) fn order(&mut self, engine: &mut Engine, number: u64, starts: bool) -> Option<AdminOutcome> {
        if self.pending.is_some() {
            return Some(Err("a start or stop of the trace is under way".to_owned()));
        }
        if self.began.is_some() == starts {
            return Some(Ok(()));
        }
        if starts {
            match free_path(&self.folder) {
                Ok(path) => self.path = path,
                Err(reason) => return Some(Err(reason)),
            }
        }
        self.ask(engine, Some(number), starts).err().map(Err)
    }

    fn ask(&mut self, engine: &mut Engine, number: Option<u64>, starts: bool) -> Result<(), String> {
        let (sender, outcome) = sync_channel(1);
        let (on_gpu, path) = (self.on_gpu, self.path.clone());
        let task = move || {
            let done = if starts { op_trace::start(on_gpu) } else { op_trace::stop(&path) };
            // An engine that has left does not want to know.
            _ = sender.send(done);
        };
        engine.pipeline.between_steps(Box::new(task)).map_err(|gone| gone.to_string())?;
        self.pending = Some(Pending { number, starts, outcome });
        Ok(())
    }

    /// Looks at what is under way, and ends a trace that has become long. Gives an order's number with its outcome once
    /// that is known.
    pub(crate) fn look(&mut self, engine: &mut Engine) -> Option<(u64, AdminOutcome)> {
        let Some(pending) = &self.pending else {
            let long = self.began.is_some_and(|began| engine.step >= began + STEPS_MAX);
            if long && let Err(error) = self.ask(engine, None, false) {
                tracing::error!(%error, "cannot end the trace of operations");
            }
            return None;
        };
        let outcome = match pending.outcome.try_recv() {
            Ok(outcome) => outcome,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err("the model's thread has ended".to_owned()),
        };
        let Pending { number, starts, .. } = self.pending.take()?;
        self.began = (starts && outcome.is_ok()).then_some(engine.step);
        self.tell(starts, number.is_none(), &outcome);
        Some((number?, outcome))
    }

    fn tell(&self, starts: bool, by_itself: bool, outcome: &AdminOutcome) {
        let path = self.path.display();
        match outcome {
            Ok(()) if starts => tracing::info!(%path, "tracing operations, {STEPS_MAX} steps at most"),
            Ok(()) => tracing::info!(%path, by_itself, "the trace of operations is written"),
            Err(error) => tracing::error!(%path, %error, "the trace of operations failed"),
        }
    }

    /// Ends the trace that is under way, if one is: the engine leaves.
    pub(crate) fn finish(mut self, engine: &mut Engine) {
        while self.pending.is_some() || (self.began.is_some() && self.ask(engine, None, false).is_ok()) {
            let Some(Pending { starts, outcome, .. }) = self.pending.take() else { return };
            match outcome.recv_timeout(LEAVE_DEADLINE) {
                Ok(outcome) => {
                    self.tell(starts, true, &outcome);
                    self.began = (starts && outcome.is_ok()).then_some(engine.step);
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    tracing::error!(path = %self.path.display(), "the trace of operations is lost");
                    return;
                }
            }
        }
    }
}

/// `trace.json`, or the next of `trace-2.json` and so on that is not there: no trace takes another's place.
fn free_path(folder: &Path) -> Result<PathBuf, String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let name = |number| if number == 1 { "trace.json".to_owned() } else { format!("trace-{number}.json") };
    let free = (1..=FILES_MAX).map(|number| folder.join(name(number))).find(|path| !path.exists());
    free.ok_or_else(|| format!("{}: {FILES_MAX} traces are there", folder.display()))
}
