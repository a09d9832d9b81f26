//! The warm standby (`--spare-engine`): a process that takes over when the running engine dies. Most of what a start
//! of the engine takes is the dynamic loading of libtorch; a standby has done that and nothing else: it has no config,
//! no shared memory, no model, no device. It runs the engine's ordinary program, which gets its first descriptors late.
//!
//! It is no peer before it is promoted: it has no page and no heartbeat, and its death counts for neither health nor
//! the restart limit. One that dies is replaced after a back-off, without a limit.

use crate::host::{Body, Host};
use crate::restart::{RestartPolicy, Verdict};
use pinion_config::{Config, Process, Topology};
use pinion_os::fdpass;
use pinion_protocol::control::Attach;
use pinion_protocol::{Peer, Role};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Delay of a standby's start after the last role has become ready: the start takes CPU, and streams that have just
/// resumed come first.
const SETTLE_NS: u64 = 1_000_000_000;
/// First wait after one that died soon after another.
const BACKOFF_NS: u64 = 100_000_000;

/// The spare of the engine, or the place for one.
pub(crate) struct Spare {
    process: Process,
    waiting: Option<Waiting>,
    policy: RestartPolicy,
    /// When one is to be started; `None` if none shall come any more.
    due_ns: Option<u64>,
}

/// A process that waits for its first set of descriptors.
pub(crate) struct Waiting {
    pub(crate) body: Body,
    pub(crate) socket: OwnedFd,
}

impl Spare {
    /// The place for a standby, if the config asks for one and engines are processes without a profiler, which would
    /// write a report for each standby and record while it waits.
    pub(crate) fn of(config: &Config, host: &Host, topology: &Topology) -> Option<Spare> {
        let Host::Processes { profile: None, .. } = host else { return None };
        let mut engines = topology.processes.iter().filter(|process| process.peer.role == Role::Engine);
        let process = engines.next().filter(|_| config.lifecycle.spare_engine)?.clone();
        Some(Spare { process, waiting: None, policy: RestartPolicy::default(), due_ns: Some(0) })
    }

    /// A role has become ready.
    pub(crate) fn settle(&mut self, now_ns: u64) {
        self.due_ns = self.due_ns.map(|due_ns| due_ns.max(now_ns + SETTLE_NS));
    }

    /// The process that waits to be `peer`, if one does.
    pub(crate) fn take(&mut self, peer: Peer, now_ns: u64) -> Option<Waiting> {
        if peer != self.process.peer {
            return None;
        }
        self.look(now_ns);
        self.waiting.take()
    }

    /// Reaps one that has died and plans another.
    pub(crate) fn look(&mut self, now_ns: u64) {
        let Some(waiting) = &mut self.waiting else { return };
        let pid = waiting.body.pid();
        match waiting.body.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => {
                self.waiting = None;
                if self.due_ns.is_some() {
                    tracing::warn!(pid, %status, "the spare engine died");
                    self.later(now_ns);
                }
            }
            Err(error) => {
                tracing::error!(pid, %error, "cannot watch the spare engine; killing it");
                self.waiting.take().map(|waiting| waiting.body.kill());
                self.later(now_ns);
            }
        }
    }

    /// Starts one if it is due. A start that fails is tried again; the service does not depend on it.
    pub(crate) fn fill(&mut self, now_ns: u64, host: &Host) {
        if self.waiting.is_some() || self.due_ns.is_none_or(|due_ns| now_ns < due_ns) {
            return;
        }
        match start(&self.process, host) {
            Ok(waiting) => {
                tracing::info!(
                    pid = waiting.body.pid(),
                    "spare engine started: it takes the place of one that dies; --no-spare-engine leaves it out"
                );
                self.waiting = Some(waiting);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot start a spare engine");
                self.later(now_ns);
            }
        }
    }

    fn later(&mut self, now_ns: u64) {
        // It is bounded by its back-off alone.
        if let Verdict::RestartAt { ns } = self.policy.died(now_ns, BACKOFF_NS, None) {
            self.due_ns = self.due_ns.map(|due_ns| due_ns.max(ns));
        }
    }

    /// Ends the one that waits; none comes any more. [`Spare::look`] reaps it.
    pub(crate) fn leave(&mut self) {
        self.due_ns = None;
        self.waiting.iter().for_each(|waiting| _ = waiting.body.kill());
    }

    /// Whether a process waits, or has not been reaped.
    pub(crate) fn lives(&self) -> bool {
        self.waiting.is_some()
    }

    /// Readable when it has died.
    pub(crate) fn death_fd(&self) -> Option<BorrowedFd<'_>> {
        self.waiting.as_ref().map(|waiting| waiting.body.fd())
    }
}

fn start(process: &Process, host: &Host) -> io::Result<Waiting> {
    let (socket, theirs) = fdpass::pair()?;
    let body = host.spawn_spare(process, theirs)?;
    let word = bincode::serialize(&Attach::Spare).map_err(io::Error::other)?;
    if let Err(error) = fdpass::send(socket.as_fd(), &word, &[]) {
        tracing::warn!(pid = body.pid(), %error, "cannot speak to a spare engine; killing it");
        body.kill();
    }
    Ok(Waiting { body, socket })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;
    use crate::serve::tests::config;
    use pinion_config::Profiler;
    use std::path::PathBuf;
    use std::process::ExitCode;
    use std::rc::Rc;

    fn no_life(_: Peer, _: OwnedFd) -> ExitCode {
        ExitCode::FAILURE
    }

    #[test]
    fn there_is_a_place_for_a_spare_where_an_engine_is_a_plain_process() {
        for (wanted, profiler, threads, expected) in [
            (true, None, false, true),
            (false, None, false, false),
            (true, None, true, false),
            (true, Some(Profiler::Nsys), false, false),
            (true, Some(Profiler::Perf), false, false),
            (true, Some(Profiler::Torch), false, false),
        ] {
            let mut config = config();
            (config.lifecycle.spare_engine, config.observe.profiler) = (wanted, profiler);
            let host = match threads {
                true => Host::Threads(no_life),
                false => {
                    let profile = Profile::of(&config).map(Rc::new);
                    Host::Processes { folder: PathBuf::from("/nowhere"), profile, confined: true }
                }
            };
            let place = Spare::of(&config, &host, &Topology::new(&config));
            assert_eq!(place.is_some(), expected, "{wanted} {profiler:?} {threads}");
        }
    }

    /// A spare that cannot be started is tried again, later and later, and none when none shall come.
    #[test]
    fn a_spare_is_started_when_it_is_time_and_tried_again_after_a_back_off() {
        let config = config();
        let host = Host::Processes { folder: PathBuf::from("/nowhere"), profile: None, confined: true };
        let mut place = Spare::of(&config, &host, &Topology::new(&config)).unwrap();
        let mut now_ns = 10 * SETTLE_NS;
        place.settle(now_ns);
        assert_eq!(place.due_ns, Some(now_ns + SETTLE_NS));
        place.fill(now_ns, &host);
        assert_eq!(place.due_ns, Some(now_ns + SETTLE_NS), "not yet tried");
        for wait_ns in [0, BACKOFF_NS, 2 * BACKOFF_NS, 4 * BACKOFF_NS] {
            now_ns = place.due_ns.unwrap().max(now_ns);
            place.fill(now_ns, &host);
            assert_eq!(place.due_ns, Some(now_ns + wait_ns));
            assert!(!place.lives());
        }
        place.leave();
        place.settle(now_ns);
        assert_eq!(place.due_ns, None);
    }
}
