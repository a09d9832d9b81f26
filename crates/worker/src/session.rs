//! One role process's side of the launcher's arrangement.

use crate::attach::{Builder, open_inbox, open_outbox, open_slots, receive_set};
use crate::channel::EdgeEnd;
use crate::control::RoleEnd;
use crate::event::{ControlEvent, Pace};
use crate::links::{Inbox, Links};
use crate::pauses::Pauses;
use crate::recorder::Recorder;
use crate::sandbox;
use crate::start_error::StartError;
use crate::{memory, memory_limit, telemetry};
use pinion_config::{Config, Topology};
use pinion_os::clock::{self, Clock};
use pinion_os::{fdpass, process};
use pinion_protocol::control::{Admin, AdminOutcome, Attach, FromRole, ToRole};
use pinion_protocol::status::{Gauge, Phase, Reading};
use pinion_protocol::{Peer, Role};
use pinion_shm::doorbell::{self, Doorbell};
use pinion_shm::page::Page;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

/// How long a role waits for the ends of its channels before it gives up.
const EDGE_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest any sleep lasts, so that a heartbeat is never older than this in an idle role.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// A role that is attached.
pub struct Session {
    /// This process's role and index.
    pub me: Peer,
    /// What time it is for its loop.
    pub clock: Clock,
    /// 1 at the first start, one more at each restart.
    pub epoch: u32,
    /// The resolved config.
    pub config: Config,
    /// The processes and rings that follow from it.
    pub topology: Topology,
    /// Own status page, indexed by [`Gauge`].
    pub status: Page,
    /// The data edges.
    pub links: Links,
    /// What this role's thread does.
    pub recorder: Rc<Recorder>,
    /// The same for the engine's model, if that gets a thread of its own.
    pub model_recorder: Option<Recorder>,
    /// Over it came, and come, this role's descriptors.
    pub(crate) socket: OwnedFd,
    pub(crate) doorbell: Doorbell,
    pub(crate) control: RoleEnd,
    pub(crate) control_seen: u64,
    pub(crate) events: VecDeque<ControlEvent>,
    pub(crate) spin_ns: u64,
    pub(crate) pauses: Pauses,
    /// Corrupt edges, as the status page says.
    pub(crate) corrupt_edges: usize,
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
        memory_limit::enter(session.me, &session.config, &session.status);
        sandbox::confine(session.me, &session.config);
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
        fdpass::send(session.socket.as_fd(), &[1], &[]).map_err(|e| StartError::attach("control", e))?;
        session.take_edges(session.links.inboxes.len() + session.links.outboxes.len())?;
        Ok(session)
    }

    /// Tells the launcher that this role can serve: everything that it needs is there. `summary` is one line for the
    /// operator.
    pub fn ready(&mut self, summary: &str) {
        let mut summary = summary.to_owned();
        if self.config.jitter_control {
            summary = format!("{summary}, {}", memory::lock());
        }
        self.set_phase(Phase::Ready);
        self.control.send(&FromRole::Ready { summary });
        // Wakes the launcher, which would see the message at its next look only. One that is gone ends us anyway.
        let _ = fdpass::send(self.socket.as_fd(), &[1], &[]);
    }

    /// Tells the launcher why this role cannot serve, and gives the process's exit code.
    pub fn fail(self, reason: &str, exit_code: i32) -> ExitCode {
        self.control.send(&FromRole::Failed { reason: reason.to_owned(), exit_code });
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
        self.control.send(&FromRole::Phase { phase });
    }

    /// Asks the launcher to have an order carried out. Its end comes as [`ControlEvent::AdminDone`] with the same
    /// number, if it comes before the deadline.
    pub fn order(&self, number: u64, deadline_ns: u64, admin: Admin) {
        self.control.send(&FromRole::Admin { number, deadline_ns, admin });
    }

    /// Answers a [`ControlEvent::Admin`].
    pub fn admin_done(&self, number: u64, outcome: AdminOutcome) {
        self.control.send(&FromRole::AdminDone { number, outcome });
    }

    /// What time it is.
    pub fn now_ns(&self) -> u64 {
        (self.clock)()
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
        self.pauses.turn(now_ns, &self.status, &self.recorder);
        self.report_corrupt_edges();
        let sent = self.status.get(Gauge::ControlSequence as usize);
        if sent != self.control_seen {
            self.control_seen = sent;
            self.take_control();
            self.status.set(Gauge::ControlSeen as usize, sent);
        }
        self.events.pop_front()
    }

    fn take_control(&mut self) {
        loop {
            match self.control.next() {
                Ok(Some(message)) => self.take_message(message),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "control channel is broken");
                    self.events.push_back(ControlEvent::Stop);
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
                    self.events.push_back(ControlEvent::Stop);
                }
                return;
            }
        };
        self.events.push_back(event);
    }

    /// Takes one set of replacement links. The launcher put it on the socket before it said so.
    fn take_attachments(&mut self) -> Result<(), StartError> {
        let set = receive_set(self.socket.as_fd()).map_err(|error| error.unwrap_or(StartError::Orphan))?;
        let is_edge =
            |(message, _): &&(Attach, _)| matches!(message, Attach::Inbox { .. } | Attach::Outbox { .. });
        let edge_count = set.iter().filter(is_edge).count();
        for (message, mut fds) in set {
            match message {
                Attach::Inbox { from, epoch } => {
                    let inbox = open_inbox(from, epoch, &mut fds, &self.status)?;
                    if let Some(place) = self.links.inboxes.iter_mut().find(|inbox| inbox.from == from) {
                        let old = std::mem::replace(place, inbox);
                        self.events.push_back(ControlEvent::InboxReplaced { from, old });
                    }
                }
                Attach::Outbox { to, epoch } => {
                    let outbox = open_outbox(to, epoch, &mut fds, self.clock)?;
                    if let Some(place) = self.links.outbox(to) {
                        *place = outbox;
                        self.events.push_back(ControlEvent::OutboxReplaced { to });
                    }
                }
                Attach::Slots { frontend, epoch } => {
                    let table = open_slots(epoch, &mut fds, self.me.role, &self.config)?;
                    if let Some(place) = self.links.slots.get_mut(usize::from(frontend)) {
                        *place = table;
                        // Its rings are replaced with it: they must not be read with the old table.
                        self.events.push_front(ControlEvent::SlotsReplaced { frontend });
                    }
                }
                Attach::Hello { .. }
                | Attach::Doorbell
                | Attach::Status { .. }
                | Attach::Spans { .. }
                | Attach::Listener
                | Attach::Spare
                | Attach::Done => {}
            }
        }
        self.take_edges(edge_count)
    }

    /// Under `--ipc channel` one end follows for every edge that was attached.
    fn take_edges(&mut self, count: usize) -> Result<(), StartError> {
        for _ in 0..count {
            let end = self.control.edge(EDGE_TIMEOUT).map_err(|e| StartError::attach("channel", e))?;
            match end {
                Some(EdgeEnd::Read { from, receiver }) => {
                    if let Some(inbox) = self.links.inboxes.iter_mut().find(|inbox| inbox.from == from) {
                        inbox.use_channel(receiver);
                    }
                }
                Some(EdgeEnd::Write { to, sender }) => {
                    if let Some(index) = self.links.outboxes.iter().position(|outbox| outbox.to == to) {
                        let outbox = self.links.outboxes.remove(index).use_channel(sender);
                        self.links.outboxes.insert(index, outbox);
                    }
                }
                Some(EdgeEnd::Unchanged) => {}
                None => return Ok(()),
            }
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
        let now_ns = self.now_ns();
        self.pauses.turn(now_ns, &self.status, &self.recorder);
        let found = self.spin();
        let now_ns = self.now_ns();
        self.pauses.slept(now_ns);
        if found || !self.arm() {
            return;
        }
        self.status.add(Gauge::Sleeps as usize, 1);
        let ready = doorbell::wait(&[self.doorbell.fd()], timeout.min(SLEEP_MAX));
        if let Err(error) = ready {
            tracing::error!(%error, "cannot wait on the doorbell");
        }
        self.disarm();
        self.drain_doorbell();
        self.beat();
    }

    fn spin(&self) -> bool {
        if self.spin_ns == 0 {
            return false;
        }
        let end = self.now_ns() + self.spin_ns;
        while self.now_ns() < end {
            if self.has_input() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    fn has_input(&self) -> bool {
        self.status.get(Gauge::ControlSequence as usize) != self.control_seen
            || !self.events.is_empty()
            || self.links.inboxes.iter().any(Inbox::has_data)
    }

    /// The eventfd that peers ring.
    pub fn doorbell_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.fd()
    }

    /// Says to every writer that this role sleeps. `false` if there is input already: then nothing is armed.
    pub fn arm(&mut self) -> bool {
        self.report_corrupt_edges();
        let now_ns = self.now_ns();
        self.pauses.turn(now_ns, &self.status, &self.recorder);
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
        let now_ns = self.now_ns();
        self.pauses.slept(now_ns);
    }

    /// So much of this turn of the loop passed in something that is watched elsewhere: it is no pause.
    pub fn excuse(&mut self, ns: u64) {
        self.pauses.excuse(ns);
    }

    /// Empties the doorbell.
    pub fn drain_doorbell(&self) {
        self.doorbell.drain();
    }
}
