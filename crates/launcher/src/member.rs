//! One role as the launcher sees it: down, starting, ready, or killed and not yet gone.

use crate::host::{Body, Host};
use crate::restart::RestartPolicy;
use crate::role_event::RoleEvent;
use crate::spare::Waiting;
use crate::wiring::Wiring;
use nix::sys::signal::Signal;
use pinion_config::Process;
use pinion_os::clock::Clock;
use pinion_os::fdpass;
use pinion_protocol::Peer;
use pinion_protocol::control::{DeathCause, ToRole};
use pinion_protocol::status::{Gauge, Phase};
use pinion_worker::control::LauncherEnd;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Unread control messages that a role may have; further ones are queued here, so that a send never blocks: the socket
/// holds far more.
const UNREAD_MAX: u64 = 64;
/// A warm standby has this long to attach, or half of the start timeout if that is shorter.
const STANDBY_ATTACH_NS: u64 = 5_000_000_000;

/// A message for a process that has not attached yet, or that has too many unread ones.
#[derive(PartialEq)]
enum Pending {
    Message(ToRole),
    /// New ends of the edges shared with this peer.
    Edges(Peer),
}

/// A process of a role, which exists until its end has been reaped.
struct Running {
    body: Body,
    socket: OwnedFd,
    control: LauncherEnd,
    /// It has said that it has attached. No message is sent to it before.
    attached: bool,
    /// Queued messages, without duplicates.
    pending: VecDeque<Pending>,
    /// How it ended, while its last words are told.
    ended: Option<ExitStatus>,
}

/// The state of a role. [`Member::spawn`], [`Member::poll`], [`Member::kill`] and [`Member::restart_at`] are its only
/// transitions.
enum Life {
    /// No process exists.
    Down {
        /// CLOCK_MONOTONIC ns of the next start, if there is one.
        restart_at_ns: Option<u64>,
    },
    /// The process attaches and loads what it needs.
    Starting {
        process: Running,
        /// A start that takes longer has failed.
        ready_by_ns: u64,
        /// A warm standby that has not attached yet does so by this time. If it ends before, the standby has died and
        /// not the role.
        attach_by_ns: Option<u64>,
    },
    /// It serves.
    Ready(Running),
    /// The launcher has killed it and has not seen its end.
    Killed {
        /// `None`: it was a thread, which cannot be killed and is left behind.
        process: Option<Running>,
        /// An end that takes longer is a failed start.
        gone_by_ns: u64,
        /// It was a warm standby that never attached.
        was_standby: bool,
    },
}

impl Life {
    const DOWN: Life = Life::Down { restart_at_ns: None };

    fn process(&self) -> Option<&Running> {
        match self {
            Life::Starting { process, .. } | Life::Ready(process) => Some(process),
            Life::Killed { process, .. } => process.as_ref(),
            Life::Down { .. } => None,
        }
    }

    fn process_mut(&mut self) -> Option<&mut Running> {
        match self {
            Life::Starting { process, .. } | Life::Ready(process) => Some(process),
            Life::Killed { process, .. } => process.as_mut(),
            Life::Down { .. } => None,
        }
    }

    /// Whether an end in this state is that of a warm standby that has not attached.
    fn is_standby(&self) -> bool {
        matches!(self, Life::Starting { attach_by_ns: Some(_), .. } | Life::Killed { was_standby: true, .. })
    }
}

/// The state of a role, without what belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// No process exists.
    Down,
    /// Its process attaches and builds.
    Starting,
    /// It serves.
    Ready,
    /// It was killed, and its end was not seen.
    Killed,
}

/// One role and its process.
pub struct Member {
    /// The role and its index.
    pub peer: Peer,
    /// Its deaths.
    pub policy: RestartPolicy,
    /// The launcher has killed it to replace a corrupt edge.
    condemned: bool,
    process: Process,
    start_timeout_ns: u64,
    clock: Clock,
    life: Life,
    epoch: u32,
    /// Count of control messages up to the latest that handed it new links.
    links_sent: u64,
}

impl Member {
    /// A role that has not been started.
    pub fn new(process: Process, start_timeout_ns: u64, clock: Clock) -> Member {
        Member {
            peer: process.peer,
            policy: RestartPolicy::default(),
            condemned: false,
            process,
            start_timeout_ns,
            clock,
            life: Life::DOWN,
            epoch: 0,
            links_sent: 0,
        }
    }

    /// Starts the role, or gives its work to `standby`, and sends it its descriptors. `control` are both sides of its
    /// control channel.
    pub(crate) fn spawn(
        &mut self,
        wiring: &Wiring,
        host: &Host,
        (control, theirs): (LauncherEnd, Vec<OwnedFd>),
        standby: Option<Waiting>,
    ) -> io::Result<()> {
        self.epoch += 1;
        self.links_sent = 0;
        let now_ns = (self.clock)();
        let attach_ns = STANDBY_ATTACH_NS.min(self.start_timeout_ns / 2);
        let attach_by_ns = standby.is_some().then(|| now_ns + attach_ns);
        let page = wiring.page(self.peer);
        page.set(Gauge::Phase as usize, Phase::Starting as u64);
        page.set(Gauge::LogLosing as usize, 0);
        // Messages that its predecessor did not read are gone with it.
        page.set(Gauge::ControlSeen as usize, page.get(Gauge::ControlSequence as usize));
        let Waiting { body, socket } = match standby {
            Some(waiting) => waiting,
            None => {
                let (ours, standard_input) = fdpass::pair()?;
                Waiting { body: host.spawn(&self.process, standard_input)?, socket: ours }
            }
        };
        let sent = wiring.attach(self.peer, self.epoch, &theirs, socket.as_fd());
        let process =
            Running { body, socket, control, attached: false, pending: VecDeque::new(), ended: None };
        self.life = Life::Starting { process, ready_by_ns: now_ns + self.start_timeout_ns, attach_by_ns };
        match sent {
            Err(error) if is_closed(&error) => Ok(()),
            sent => sent,
        }
    }

    /// Plans the next start of a role that is down.
    pub fn restart_at(&mut self, at_ns: u64) {
        debug_assert!(!self.lives(), "a role restarts after its end");
        self.life = Life::Down { restart_at_ns: Some(at_ns) };
    }

    /// Whether its planned start is due.
    pub fn restart_is_due(&self, now_ns: u64) -> bool {
        matches!(self.life, Life::Down { restart_at_ns: Some(at_ns) } if now_ns >= at_ns)
    }

    /// Whether it has said that it can serve.
    pub fn is_ready(&self) -> bool {
        matches!(self.life, Life::Ready(_))
    }

    /// Whether its start, or its end after a kill, takes longer than the start timeout.
    pub fn is_late(&self, now_ns: u64) -> bool {
        match self.life {
            Life::Starting { ready_by_ns: by_ns, .. }
            | Life::Killed { gone_by_ns: by_ns, process: Some(_), .. } => now_ns > by_ns,
            Life::Killed { process: None, .. } | Life::Down { .. } | Life::Ready(_) => false,
        }
    }

    /// Whether it is a warm standby that should have attached by now.
    pub fn is_late_standby(&self, now_ns: u64) -> bool {
        matches!(self.life, Life::Starting { attach_by_ns: Some(by_ns), .. } if now_ns > by_ns)
    }

    /// Its state.
    pub fn state(&self) -> MemberState {
        match self.life {
            Life::Down { .. } => MemberState::Down,
            Life::Starting { .. } => MemberState::Starting,
            Life::Ready(_) => MemberState::Ready,
            Life::Killed { .. } => MemberState::Killed,
        }
    }

    /// The process id, while it lives.
    pub fn pid(&self) -> Option<u32> {
        self.life.process().map(|process| process.body.pid())
    }

    /// Which life of the role it is, or was: 1 is the first.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether a process exists.
    pub fn lives(&self) -> bool {
        self.life.process().is_some()
    }

    /// Whether its process has ended, or was killed, also where [`Member::poll`] has not told of it yet: then all that
    /// it shares is made anew.
    pub fn has_ended(&mut self) -> bool {
        match &mut self.life {
            Life::Down { .. } => self.epoch > 0,
            Life::Killed { .. } => true,
            Life::Starting { process, .. } | Life::Ready(process) => {
                if process.ended.is_none() {
                    process.ended = process.body.try_wait().unwrap_or_default();
                }
                process.ended.is_some()
            }
        }
    }

    /// Readable when the role has ended, which [`Member::poll`] reports.
    pub fn death_fd(&self) -> Option<BorrowedFd<'_>> {
        self.life.process().map(|process| process.body.fd())
    }

    /// Readable when a role that starts has sent something, which [`Member::poll`] takes.
    pub fn start_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.life {
            Life::Starting { process, .. } => Some(process.socket.as_fd()),
            // Nothing is read of it any more; it would end each wait at once.
            Life::Down { .. } | Life::Ready(_) | Life::Killed { .. } => None,
        }
    }

    /// The next event since the last call; never blocks.
    pub fn poll(&mut self, wiring: &Wiring) -> io::Result<Option<RoleEvent>> {
        if let Life::Killed { process: None, was_standby, .. } = self.life {
            self.life = Life::DOWN;
            let status = ExitStatus::from_raw(Signal::SIGKILL as i32);
            return Ok(Some(RoleEvent::Ended { status, was_standby }));
        }
        let sent = self.see_attached(wiring).and_then(|()| self.send_pending(wiring));
        self.kill_if_failed(sent);
        let was_standby = self.life.is_standby();
        if let Some(event) = self.next_message(wiring) {
            return Ok(Some(event));
        }
        let Some(process) = self.life.process_mut() else { return Ok(None) };
        if process.ended.is_none() {
            process.ended = process.body.try_wait()?;
            // Its last words may have come since the look above; they are told before its end.
            if process.ended.is_some()
                && let Some(event) = self.next_message(wiring)
            {
                return Ok(Some(event));
            }
        }
        let Some(status) = self.life.process().and_then(|process| process.ended) else { return Ok(None) };
        self.life = Life::DOWN;
        Ok(Some(RoleEvent::Ended { status, was_standby }))
    }

    /// The next of the role's messages that is an event.
    pub(crate) fn next_message(&mut self, wiring: &Wiring) -> Option<RoleEvent> {
        let control = &self.life.process()?.control;
        let event =
            std::iter::from_fn(|| control.next()).find_map(|message| RoleEvent::of(self.peer, message))?;
        if matches!(event, RoleEvent::Ready { .. }) {
            // It said before that it has attached; both may have come since the look at the socket.
            let attached = self.see_attached(wiring);
            self.kill_if_failed(attached);
            self.become_ready();
        }
        Some(event)
    }

    pub(crate) fn become_ready(&mut self) {
        self.life = match std::mem::replace(&mut self.life, Life::DOWN) {
            Life::Starting { process, .. } => Life::Ready(process),
            // It was killed while its message was under way.
            life => life,
        };
    }

    /// Sees whether the role has attached, and sends its edges then. Errors: it died meanwhile, or does not read; its
    /// end is reported like any other.
    fn see_attached(&mut self, wiring: &Wiring) -> io::Result<()> {
        let Life::Starting { process, attach_by_ns, .. } = &mut self.life else { return Ok(()) };
        if process.attached {
            return Ok(());
        }
        let Ok(Some(_)) = fdpass::recv(process.socket.as_fd()) else { return Ok(()) };
        let later = |peer| process.pending.contains(&Pending::Edges(peer));
        wiring.send_edges(self.peer, None, later, &process.control)?;
        process.attached = true;
        *attach_by_ns = None;
        Ok(())
    }

    /// Sends queued messages while the role reads them.
    fn send_pending(&mut self, wiring: &Wiring) -> io::Result<()> {
        while self.reads_messages(wiring) {
            match self.life.process_mut().and_then(|process| process.pending.pop_front()) {
                Some(Pending::Message(message)) => {
                    if !self.send_or_keep(wiring, message) {
                        break;
                    }
                }
                Some(Pending::Edges(peer)) => self.hand_over(wiring, peer)?,
                None => break,
            }
        }
        Ok(())
    }

    /// Sends the message, or puts it back where the system refuses it for now. Whether the next one may follow.
    fn send_or_keep(&mut self, wiring: &Wiring, message: ToRole) -> bool {
        let Err(error) = self.send(wiring, &message) else { return true };
        if is_closed(&error) {
            return true;
        }
        tracing::warn!(peer = %self.peer, %error, "cannot send a control message now; trying again");
        if let Some(process) = self.life.process_mut() {
            process.pending.push_front(Pending::Message(message));
        }
        false
    }

    /// Whether it has attached and has read most of its messages.
    fn reads_messages(&self, wiring: &Wiring) -> bool {
        let page = wiring.page(self.peer);
        let [sent, seen] = [Gauge::ControlSequence, Gauge::ControlSeen].map(|gauge| page.get(gauge as usize));
        let is_attached = self.life.process().is_some_and(|process| process.attached);
        is_attached && sent.saturating_sub(seen) <= UNREAD_MAX
    }

    /// Sends the message, or queues it behind pending ones. A duplicate moves to the later place, so that the queue is
    /// bounded by the number of peers.
    fn enqueue(&mut self, wiring: &Wiring, message: Pending) -> io::Result<()> {
        let Some(process) = self.life.process_mut() else { return Ok(()) };
        process.pending.retain(|pending| *pending != message);
        process.pending.push_back(message);
        self.send_pending(wiring)
    }

    /// Sends a control message: at once, or as soon as the role has attached and reads. Commands of operators have a
    /// deadline and are not sent late.
    pub fn tell(&mut self, wiring: &Wiring, message: &ToRole) {
        if matches!(message, ToRole::Admin { .. } | ToRole::AdminDone { .. }) && !self.reads_messages(wiring)
        {
            tracing::warn!(peer = %self.peer, "role reads no control messages; not sending {message:?}");
        } else {
            let sent = self.enqueue(wiring, Pending::Message(message.clone()));
            self.kill_if_failed(sent);
        }
    }

    /// A role that has missed a message is out of step.
    fn kill_if_failed(&mut self, sent: io::Result<()>) {
        if let Err(error) = sent {
            tracing::error!(peer = %self.peer, %error, "cannot send control messages; killing it");
            self.kill();
        }
    }

    fn send(&self, wiring: &Wiring, message: &ToRole) -> io::Result<()> {
        self.life.process().map_or(Ok(()), |process| process.control.send(message))?;
        let page = wiring.page(self.peer);
        page.set(Gauge::ControlSequence as usize, page.get(Gauge::ControlSequence as usize).wrapping_add(1));
        wiring.ring_doorbell(self.peer);
        Ok(())
    }

    /// Hands over new ends of the edges shared with `renewed`: at once, or as soon as the role has attached and reads.
    pub fn reattach(&mut self, wiring: &Wiring, renewed: Peer) -> io::Result<()> {
        self.enqueue(wiring, Pending::Edges(renewed))
    }

    /// Sends the descriptors together with the message that announces them: one without the other would put all that
    /// follow out of step.
    fn hand_over(&mut self, wiring: &Wiring, renewed: Peer) -> io::Result<()> {
        let Some(process) = self.life.process() else { return Ok(()) };
        wiring.reattach(self.peer, renewed, process.socket.as_fd())?;
        wiring.send_edges(self.peer, Some(renewed), |_| false, &process.control)?;
        self.send(wiring, &ToRole::Attached)?;
        self.links_sent = wiring.page(self.peer).get(Gauge::ControlSequence as usize);
        Ok(())
    }

    /// Whether it serves over links that have been replaced and that it has not yet put away.
    pub fn has_old_links(&self, wiring: &Wiring) -> bool {
        let Life::Ready(process) = &self.life else { return false };
        let seen = wiring.page(self.peer).get(Gauge::ControlSeen as usize);
        let is_pending = process.pending.iter().any(|pending| matches!(pending, Pending::Edges(_)));
        seen < self.links_sent || is_pending
    }

    /// Ends the role to replace a corrupt edge of it.
    pub fn condemn(&mut self) {
        self.condemned |= matches!(self.life, Life::Starting { .. } | Life::Ready(_));
        self.kill();
    }

    /// Why it died; to be asked once at each death.
    pub fn take_cause(&mut self) -> DeathCause {
        if std::mem::take(&mut self.condemned) { DeathCause::CorruptEdge } else { DeathCause::Unknown }
    }

    /// Ends the role now, or leaves it behind if it is a thread, which leaves by itself once it finds its control
    /// channel closed. [`Member::poll`] reports its end in both cases.
    pub fn kill(&mut self) {
        let was_standby = self.life.is_standby();
        let gone_by_ns = (self.clock)() + self.start_timeout_ns;
        self.life = match std::mem::replace(&mut self.life, Life::DOWN) {
            Life::Starting { process, .. } | Life::Ready(process) => {
                let has_ended = process.ended.is_some();
                let process = (has_ended || process.body.kill()).then_some(process);
                Life::Killed { process, gone_by_ns, was_standby }
            }
            life @ (Life::Down { .. } | Life::Killed { .. }) => life,
        };
    }
}

/// Whether the role has died before it had read everything; [`Member::poll`] gives its end.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}
