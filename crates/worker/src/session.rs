//! One role process's side of the launcher's arrangement.

use crate::attach::{Builder, open_inbox, open_outbox, open_slots, receive_set};
use crate::corrupt::CorruptEdges;
use crate::edge::Inbox;
use crate::event::{ControlEvent, Pace};
use crate::launcher_link::LauncherLink;
use crate::links::Links;
use crate::recorder::Recorder;
use crate::sandbox;
use crate::sleeper::Sleeper;
use crate::start_error::StartError;
use crate::{memory, memory_limit, telemetry};
use pinion_config::{Config, Topology};
use pinion_os::clock::{self, Clock};
use pinion_os::process;
use pinion_protocol::control::{Admin, AdminOutcome, Attach, FromRole, ToRole};
use pinion_protocol::status::{Gauge, Phase, Reading};
use pinion_protocol::{Peer, Role};
use pinion_shm::page::Page;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

/// What a role is told when it starts. It does not change.
pub(crate) struct Assignment {
    pub(crate) me: Peer,
    pub(crate) clock: Clock,
    pub(crate) epoch: u32,
    pub(crate) config: Config,
    pub(crate) topology: Topology,
}

/// A role that is attached.
pub struct Session {
    assignment: Assignment,
    /// Own status page, indexed by [`Gauge`].
    pub status: Page,
    /// The data edges.
    pub links: Links,
    recorder: Rc<Recorder>,
    model_recorder: Option<Recorder>,
    launcher: LauncherLink,
    sleeper: Sleeper,
    corrupt_edges: CorruptEdges,
}

/// Stores the heartbeat of the role that has this status page.
pub fn beat(status: &Page, now_ns: u64) {
    status.set(Gauge::HeartbeatNs as usize, now_ns);
}

impl Session {
    /// Attaches this process to its launcher: dies with it, takes the descriptors from standard input, pins
    /// itself, installs logging, takes its ends of the control channel and gives up what it does not need. Must be
    /// called first, on the main thread.
    pub fn attach(role: Role) -> Result<Session, StartError> {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)
            .map_err(|e| StartError::attach("parent-death signal", e))?;
        let socket = std::io::stdin().as_fd().try_clone_to_owned();
        let socket = socket.map_err(|e| StartError::attach("descriptor socket", e))?;
        let session = Session::attach_over(role, socket, clock::now_ns)?;
        memory_limit::enter(session.me(), session.config(), &session.status);
        sandbox::confine(session.me(), session.config());
        // Only now, so that the thread that writes the log is confined, too.
        telemetry::start()
            .map_err(|e| StartError::attach("log", format!("{e}{}", process::limit_behind(e))))?;
        Ok(session)
    }

    /// The same for a role that is a thread of the launcher's process: `socket` is its end of the descriptor
    /// socket, and what is pinned is the calling thread with those that it starts later. Its loop reads `clock`.
    pub fn attach_over(role: Role, socket: OwnedFd, clock: Clock) -> Result<Session, StartError> {
        let set = receive_set(socket.as_fd()).map_err(|error| error.unwrap_or(StartError::ByHand(role)))?;
        let mut builder = Builder::new(clock);
        for (message, fds) in set {
            builder.take(message, fds)?;
        }
        let mut session = builder.finish(role, socket)?;
        session.launcher.wake().map_err(|e| StartError::attach("control", e))?;
        session.take_edges(session.links.inboxes.len() + session.links.outboxes.len())?;
        Ok(session)
    }

    pub(crate) fn new(
        assignment: Assignment,
        status: Page,
        links: Links,
        (recorder, model_recorder): (Recorder, Option<Recorder>),
        launcher: LauncherLink,
        sleeper: Sleeper,
    ) -> Session {
        let (recorder, corrupt_edges) = (Rc::new(recorder), CorruptEdges::default());
        Session { assignment, status, links, recorder, model_recorder, launcher, sleeper, corrupt_edges }
    }

    /// The same with rings of other sizes than the config asks for, which is all that a session knows.
    pub fn with_topology(mut self, topology: Topology) -> Session {
        self.assignment.topology = topology;
        self
    }

    /// This process's role and index.
    pub fn me(&self) -> Peer {
        self.assignment.me
    }

    /// What time it is for the role's loop.
    pub fn clock(&self) -> Clock {
        self.assignment.clock
    }

    /// 1 at the first start, one more at each restart.
    pub fn epoch(&self) -> u32 {
        self.assignment.epoch
    }

    /// The resolved config.
    pub fn config(&self) -> &Config {
        &self.assignment.config
    }

    /// The processes and rings that follow from it.
    pub fn topology(&self) -> &Topology {
        &self.assignment.topology
    }

    /// Records what this role's thread does.
    pub fn recorder(&self) -> &Rc<Recorder> {
        &self.recorder
    }

    /// The same for the engine's model, if that gets a thread of its own. It can be taken once.
    pub fn take_model_recorder(&mut self) -> Option<Recorder> {
        self.model_recorder.take()
    }

    /// Tells the launcher that this role can serve: everything that it needs is there. `summary` is one line for the
    /// operator.
    pub fn ready(&mut self, summary: &str) {
        let mut summary = summary.to_owned();
        if self.config().jitter_control {
            summary = format!("{summary}, {}", memory::lock());
        }
        self.set_phase(Phase::Ready);
        self.launcher.send(&FromRole::Ready { summary });
        // A launcher that is gone ends us anyway.
        let _ = self.launcher.wake();
    }

    /// Tells the launcher why this role cannot serve, and gives the process's exit code.
    pub fn fail(self, reason: &str, exit_code: i32) -> ExitCode {
        self.launcher.send(&FromRole::Failed { reason: reason.to_owned(), exit_code });
        ExitCode::from(u8::try_from(exit_code).unwrap_or(1))
    }

    /// Says what of the model's folder this role takes in now: the launcher names it if that ends the process.
    pub fn reads(&self, what: Reading) {
        self.status.set(Gauge::Reading as usize, what as u64);
    }

    /// Marks the role as draining, for health.
    pub fn draining(&self) {
        self.set_phase(Phase::Draining);
    }

    /// Marks the role as stopped; the process's exit code is success.
    pub fn stop(self) -> ExitCode {
        self.set_phase(Phase::Stopped);
        ExitCode::SUCCESS
    }

    fn set_phase(&self, phase: Phase) {
        self.beat();
        self.status.set(Gauge::Phase as usize, phase as u64);
        self.launcher.send(&FromRole::Phase { phase });
    }

    /// Asks the launcher to have an order carried out. Its end comes as [`ControlEvent::AdminDone`] with the same
    /// number, if it comes before the deadline.
    pub fn order(&self, number: u64, deadline_ns: u64, admin: Admin) {
        self.launcher.send(&FromRole::Admin { number, deadline_ns, admin });
    }

    /// Answers a [`ControlEvent::Admin`].
    pub fn admin_done(&self, number: u64, outcome: AdminOutcome) {
        self.launcher.send(&FromRole::AdminDone { number, outcome });
    }

    /// What time it is.
    pub fn now_ns(&self) -> u64 {
        (self.assignment.clock)()
    }

    /// See [`beat`]: one clock read, one store.
    pub fn beat(&self) {
        beat(&self.status, self.now_ns());
    }

    /// The next thing the launcher said. One load when it said nothing. A role asks at the start of each turn of its
    /// loop, so this is where the pause observer sees the turns, and where a role that is never idle beats.
    pub fn control(&mut self) -> Option<ControlEvent> {
        let now_ns = self.now_ns();
        self.status.set(Gauge::HeartbeatNs as usize, now_ns);
        self.sleeper.turn(now_ns, &self.status, &self.recorder);
        self.corrupt_edges.report(&mut self.links, &self.status, &self.launcher);
        if let Some(count) = self.launcher.new_count(&self.status) {
            self.take_control();
            self.status.set(Gauge::ControlSeen as usize, count);
        }
        self.launcher.next_event()
    }

    /// The inbox from `peer` that was replaced and has not been told of yet: what a peer said before it died, for a
    /// role that hears of the death first.
    pub fn take_replaced_inbox(&mut self, peer: Peer) -> Option<Inbox> {
        self.launcher.take_replaced_inbox(peer)
    }

    fn take_control(&mut self) {
        loop {
            match self.launcher.next_message() {
                Ok(Some(message)) => self.take_message(message),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "control channel is broken");
                    self.launcher.push(ControlEvent::Stop);
                    return;
                }
            }
        }
    }

    fn take_message(&mut self, message: ToRole) {
        let event = match message {
            ToRole::Leaving => ControlEvent::Leaving,
            ToRole::Drain { deadline_ns } => ControlEvent::Drain { deadline_ns },
            ToRole::Stop => ControlEvent::Stop,
            ToRole::Open => ControlEvent::Open,
            ToRole::PeerLost { peer, cause } => ControlEvent::PeerLost(peer, cause),
            ToRole::PeerReady { peer } => ControlEvent::PeerReady(peer),
            ToRole::Admin { number, admin } => ControlEvent::Admin { number, admin },
            ToRole::AdminDone { number, outcome } => ControlEvent::AdminDone { number, outcome },
            ToRole::Attached => {
                if let Err(error) = self.take_attachments() {
                    tracing::error!(%error, "cannot take new links");
                    self.launcher.push(ControlEvent::Stop);
                }
                return;
            }
        };
        self.launcher.push(event);
    }

    /// Takes one set of replacement links. The launcher put it on the socket before it said so. A ring that was
    /// overwritten before it could be attached is reported like one that is corrupt later, and the old end stays until
    /// the launcher has replaced it: this role has done nothing wrong, and its death would count as its requests'.
    fn take_attachments(&mut self) -> Result<(), StartError> {
        let set = self.launcher.next_set()?;
        let is_edge =
            |(message, _): &&(Attach, _)| matches!(message, Attach::Inbox { .. } | Attach::Outbox { .. });
        let edge_count = set.iter().filter(is_edge).count();
        let Assignment { me, clock, config, .. } = &self.assignment;
        for (message, mut fds) in set {
            match message {
                Attach::Inbox { from, epoch } => match open_inbox(from, epoch, &mut fds, &self.status) {
                    Ok(inbox) => {
                        if let Some(old) = self.links.replace_inbox(inbox) {
                            self.launcher.push(ControlEvent::InboxReplaced { from, old });
                        }
                    }
                    Err(error) => self.report_unusable((from, epoch), true, error)?,
                },
                Attach::Outbox { to, epoch } => match open_outbox(to, epoch, &mut fds, *clock) {
                    Ok(outbox) => {
                        if self.links.replace_outbox(outbox) {
                            self.launcher.push(ControlEvent::OutboxReplaced { to });
                        }
                    }
                    Err(error) => self.report_unusable((to, epoch), false, error)?,
                },
                Attach::Slots { frontend, epoch } => {
                    let table = open_slots(epoch, &mut fds, me.role, config)?;
                    if self.links.replace_slots(frontend, table) {
                        // Its rings are replaced with it: they must not be read with the old table.
                        self.launcher.push_first(ControlEvent::SlotsReplaced { frontend });
                    }
                }
                Attach::Hello { .. }
                | Attach::Doorbell
                | Attach::Status { .. }
                | Attach::Spans { .. }
                | Attach::Listener
                | Attach::ReplayListener
                | Attach::Spare
                | Attach::Done => {}
            }
        }
        self.take_edges(edge_count)
    }

    /// Has the launcher replace an edge whose words are wrong. What the system refuses is no fault of the other end.
    fn report_unusable(
        &self,
        (peer, epoch): (Peer, u32),
        reads: bool,
        error: StartError,
    ) -> Result<(), StartError> {
        let StartError::Corrupt { what } = error else { return Err(error) };
        self.launcher.send(&FromRole::CorruptEdge { peer, epoch, reads, what });
        Ok(())
    }

    /// Under `--ipc channel` one end follows for every edge that was attached.
    fn take_edges(&mut self, count: usize) -> Result<(), StartError> {
        for _ in 0..count {
            let Some(end) = self.launcher.next_edge()? else { return Ok(()) };
            self.links.use_channel(end);
        }
        Ok(())
    }

    /// Sleeps as a turn of the loop says. False if the loop is to be left.
    pub fn rest(&mut self, pace: Pace) -> bool {
        match pace {
            Pace::Go => {}
            Pace::Wait(timeout) => self.wait(timeout),
            Pace::Pause(time) => {
                self.beat();
                std::thread::sleep(time);
            }
            Pace::Stop => return false,
        }
        true
    }

    /// Sleeps until a record or a control message is there, the doorbell rings, or `timeout` (at most 100 ms)
    /// has passed. Returns at once if something is there. Spins first only if the plan says so.
    pub fn wait(&mut self, timeout: Duration) {
        self.beat();
        self.sleeper.turn(self.now_ns(), &self.status, &self.recorder);
        let found = self.sleeper.spin(|| self.has_input());
        self.sleeper.slept();
        if found || !self.arm() {
            return;
        }
        self.status.add(Gauge::Sleeps as usize, 1);
        self.sleeper.wait(timeout);
        self.disarm();
        self.drain_doorbell();
        self.beat();
    }

    fn has_input(&self) -> bool {
        self.launcher.has_news(&self.status) || self.links.inboxes.iter().any(Inbox::has_data)
    }

    /// The eventfd that peers ring.
    pub fn doorbell_fd(&self) -> BorrowedFd<'_> {
        self.sleeper.doorbell_fd()
    }

    /// Says to every writer that this role sleeps. `false` if there is input already: then nothing is armed.
    pub fn arm(&mut self) -> bool {
        self.corrupt_edges.report(&mut self.links, &self.status, &self.launcher);
        self.sleeper.turn(self.now_ns(), &self.status, &self.recorder);
        let armed = self.links.inboxes.iter().all(Inbox::arm);
        if armed && !self.has_input() {
            return true;
        }
        self.disarm();
        false
    }

    /// Takes back what [`Session::arm`] said.
    pub fn disarm(&mut self) {
        self.links.inboxes.iter().for_each(Inbox::disarm);
        self.sleeper.slept();
    }

    /// This much of the turn under way passed in something that is watched elsewhere: it is no pause.
    pub fn excuse(&mut self, ns: u64) {
        self.sleeper.excuse(ns);
    }

    /// Empties the doorbell.
    pub fn drain_doorbell(&self) {
        self.sleeper.drain_doorbell();
    }
}
