//! One role process as the launcher sees it: spawned, starting, ready, dead.

use crate::corrupt::CorruptEdge;
use crate::host::{Body, Host};
use crate::restart::RestartPolicy;
use crate::spare::Waiting;
use crate::wiring::Wiring;
use nix::sys::signal::Signal;
use pinion_config::Process;
use pinion_os::fdpass;
use pinion_protocol::Peer;
use pinion_protocol::control::{Admin, AdminOutcome, FromRole, ToRole};
use pinion_protocol::status::{Gauge, Phase};
use pinion_worker::control::LauncherEnd;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Control messages a role may leave untaken before it is owed the next ones: far below the number at which a send would
/// block.
const UNTAKEN_MAX: u64 = 64;

/// Something to say to a process that has not attached yet, or has not taken what it was told before.
#[derive(PartialEq)]
enum Owed {
    Message(ToRole),
    /// Ends of the edges shared with this peer.
    Edges(Peer),
}

/// A living role.
struct Running {
    body: Body,
    socket: OwnedFd,
    control: LauncherEnd,
    /// It has said that it has attached; nothing is said to it before.
    attached: bool,
    /// Each thing once.
    owed: VecDeque<Owed>,
}

/// What happened to a member since it was last looked at.
#[derive(Debug)]
pub enum Happening {
    /// It can serve.
    Ready {
        /// One line for the operator.
        summary: String,
    },
    /// It says why it cannot.
    Failed {
        /// Why.
        reason: String,
        /// Exit code for the launcher.
        exit_code: i32,
    },
    /// It gives an order of an operator.
    Ordered {
        /// Its number for it.
        number: u64,
        /// When nobody waits for the answer any more.
        deadline_ns: u64,
        /// What to do.
        admin: Admin,
    },
    /// One of its edges is corrupt.
    Corrupt(CorruptEdge),
    /// It answers an order.
    Answered {
        /// Our number for it.
        number: u64,
        /// What came of it.
        outcome: AdminOutcome,
    },
    /// Its process ended.
    Ended(ExitStatus),
}

/// One role and, if it lives, its process.
pub struct Member {
    /// Who.
    pub peer: Peer,
    /// Its deaths.
    pub policy: RestartPolicy,
    /// When to start it again, if it is down and shall come back.
    pub restart_at_ns: Option<u64>,
    /// Whether it has said that it can serve.
    pub ready: bool,
    /// When a start counts as failed.
    pub start_deadline_ns: u64,
    /// By when it must have attached, if it was a spare and has not yet: until then its end is the spare's, and no death
    /// of this role.
    pub answers_by_ns: Option<u64>,
    process: Process,
    epoch: u32,
    /// Count of control messages up to the latest that handed it new links.
    links_sent: u64,
    running: Option<Running>,
    /// It was a thread that was to be killed, and nobody was told yet that it is gone.
    left_behind: bool,
}

impl Member {
    /// A role that has not been started.
    pub fn new(process: Process) -> Member {
        Member {
            peer: process.peer,
            policy: RestartPolicy::default(),
            restart_at_ns: None,
            ready: false,
            start_deadline_ns: 0,
            answers_by_ns: None,
            process,
            epoch: 0,
            links_sent: 0,
            running: None,
            left_behind: false,
        }
    }

    /// Starts the role, or gives its work to `spare`, and sends it its descriptors.
    pub(crate) fn spawn(&mut self, wiring: &Wiring, host: &Host, spare: Option<Waiting>) -> io::Result<()> {
        self.epoch += 1;
        self.links_sent = 0;
        self.ready = false;
        self.restart_at_ns = None;
        self.answers_by_ns = None;
        let page = wiring.page(self.peer);
        page.set(Gauge::Phase as usize, Phase::Starting as u64);
        page.set(Gauge::LogLosing as usize, 0);
        // What its predecessor did not take nobody will.
        page.set(Gauge::ControlSeen as usize, page.get(Gauge::ControlSequence as usize));
        let (control, theirs) = wiring.control()?;
        let Waiting { body, socket } = match spare {
            Some(waiting) => waiting,
            None => {
                let (ours, standard_input) = fdpass::pair()?;
                Waiting { body: host.spawn(&self.process, standard_input)?, socket: ours }
            }
        };
        self.running = Some(Running { body, socket, control, attached: false, owed: VecDeque::new() });
        let socket = self.running.as_ref().map(|r| r.socket.as_fd()).expect("set on the line above");
        match wiring.attach(self.peer, self.epoch, &theirs, socket) {
            // It died before it had read everything; `poll` tells how.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                Ok(())
            }
            attached => attached,
        }
    }

    /// The process id, while it lives.
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|r| r.body.pid())
    }

    /// Whether a process exists.
    pub fn lives(&self) -> bool {
        self.running.is_some()
    }

    /// Readable when the role has ended, which [`Member::poll`] tells.
    pub fn death_fd(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|running| running.body.fd())
    }

    /// Readable when a role that starts has said something, which [`Member::poll`] takes.
    pub fn start_fd(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().filter(|_| !self.ready).map(|running| running.socket.as_fd())
    }

    /// What happened since the last call, one thing at a time; never blocks.
    pub fn poll(&mut self, wiring: &Wiring) -> io::Result<Option<Happening>> {
        if std::mem::take(&mut self.left_behind) {
            self.ready = false;
            return Ok(Some(Happening::Ended(ExitStatus::from_raw(Signal::SIGKILL as i32))));
        }
        if let Err(error) = self.see_attached(wiring).and_then(|()| self.settle(wiring)) {
            tracing::error!(peer = %self.peer, %error, "cannot be told what it needs; killing it");
            self.running.iter().for_each(|running| _ = running.body.kill());
        }
        let Some(running) = &mut self.running else { return Ok(None) };
        while let Some(message) = running.control.next() {
            match message {
                FromRole::Ready { summary } => {
                    self.ready = true;
                    return Ok(Some(Happening::Ready { summary }));
                }
                FromRole::Failed { reason, exit_code } => {
                    return Ok(Some(Happening::Failed { reason, exit_code }));
                }
                FromRole::Admin { number, deadline_ns, admin } => {
                    return Ok(Some(Happening::Ordered { number, deadline_ns, admin }));
                }
                FromRole::AdminDone { number, outcome } => {
                    return Ok(Some(Happening::Answered { number, outcome }));
                }
                FromRole::CorruptEdge { peer, epoch, reads, what } => {
                    let (from, to) = if reads { (peer, self.peer) } else { (self.peer, peer) };
                    return Ok(Some(Happening::Corrupt(CorruptEdge {
                        from,
                        to,
                        epoch,
                        suspect: peer,
                        what,
                    })));
                }
                FromRole::Hello { .. } | FromRole::Phase { .. } => {}
            }
        }
        let Some(status) = running.body.try_wait()? else { return Ok(None) };
        self.running = None;
        self.ready = false;
        Ok(Some(Happening::Ended(status)))
    }

    /// Sees whether the role has attached, and sends what waits for that. Errors: it died meanwhile, or does not read; its
    /// end is told like any other.
    fn see_attached(&mut self, wiring: &Wiring) -> io::Result<()> {
        let Some(running) = self.running.as_mut().filter(|running| !running.attached) else { return Ok(()) };
        let Ok(Some(_)) = fdpass::recv(running.socket.as_fd()) else { return Ok(()) };
        wiring.send_edges(self.peer, None, &running.control)?;
        running.attached = true;
        self.answers_by_ns = None;
        Ok(())
    }

    /// Says what is owed, as far as the role takes it.
    fn settle(&mut self, wiring: &Wiring) -> io::Result<()> {
        while self.hears(wiring) {
            match self.running.as_mut().and_then(|running| running.owed.pop_front()) {
                Some(Owed::Message(message)) => {
                    if let Err(error) = self.send(wiring, &message) {
                        tracing::warn!(peer = %self.peer, %error, "cannot send a control message");
                    }
                }
                Some(Owed::Edges(peer)) => self.hand_over(wiring, peer)?,
                None => break,
            }
        }
        Ok(())
    }

    /// Whether it has attached and taken most of what it was told.
    fn hears(&self, wiring: &Wiring) -> bool {
        let page = wiring.page(self.peer);
        let [sent, seen] = [Gauge::ControlSequence, Gauge::ControlSeen].map(|gauge| page.get(gauge as usize));
        let is_attached = self.running.as_ref().is_some_and(|running| running.attached);
        is_attached && sent.saturating_sub(seen) <= UNTAKEN_MAX
    }

    /// Says it now, or after what is owed already. What is owed twice is said once, at its later place, so that no more is
    /// owed than there are peers to tell of.
    fn say(&mut self, wiring: &Wiring, what: Owed) -> io::Result<()> {
        let Some(running) = &mut self.running else { return Ok(()) };
        running.owed.retain(|owed| *owed != what);
        running.owed.push_back(what);
        self.settle(wiring)
    }

    /// Sends a control message: at once, or as soon as the role has attached and takes it. Orders of operators have their
    /// deadline and are not sent late.
    pub fn tell(&mut self, wiring: &Wiring, message: &ToRole) {
        if matches!(message, ToRole::Admin { .. } | ToRole::AdminDone { .. }) && !self.hears(wiring) {
            tracing::warn!(peer = %self.peer, "role takes no control messages; not sending {message:?}");
        } else if let Err(error) = self.say(wiring, Owed::Message(message.clone())) {
            tracing::error!(peer = %self.peer, %error, "cannot be handed what it is owed; killing it");
            self.kill();
        }
    }

    fn send(&self, wiring: &Wiring, message: &ToRole) -> io::Result<()> {
        self.running.as_ref().map_or(Ok(()), |running| running.control.send(message))?;
        let page = wiring.page(self.peer);
        page.set(Gauge::ControlSequence as usize, page.get(Gauge::ControlSequence as usize).wrapping_add(1));
        wiring.ring_doorbell(self.peer);
        Ok(())
    }

    /// Hands over new ends of the edges shared with `renewed`: at once, or as soon as the role has attached and takes them.
    pub fn reattach(&mut self, wiring: &Wiring, renewed: Peer) -> io::Result<()> {
        self.say(wiring, Owed::Edges(renewed))
    }

    /// Descriptors and the message that they are there go together: one without the other would put all that follow out of
    /// step.
    fn hand_over(&mut self, wiring: &Wiring, renewed: Peer) -> io::Result<()> {
        let Some(running) = &self.running else { return Ok(()) };
        wiring.reattach(self.peer, renewed, running.socket.as_fd())?;
        wiring.send_edges(self.peer, Some(renewed), &running.control)?;
        self.send(wiring, &ToRole::Attached)?;
        self.links_sent = wiring.page(self.peer).get(Gauge::ControlSequence as usize);
        Ok(())
    }

    /// Whether it serves over links that have been replaced and that it has not yet put away.
    pub fn has_old_links(&self, wiring: &Wiring) -> bool {
        let is_owed = |running: &Running| running.owed.iter().any(|owed| matches!(owed, Owed::Edges(_)));
        let seen = wiring.page(self.peer).get(Gauge::ControlSeen as usize);
        self.ready && (seen < self.links_sent || self.running.as_ref().is_some_and(is_owed))
    }

    /// Ends the role now, or leaves it behind if it is a thread, which leaves by itself once it finds its control channel
    /// closed. Either way [`Member::poll`] tells of its end.
    pub fn kill(&mut self) {
        if self.running.as_ref().is_some_and(|running| !running.body.kill()) {
            (self.running, self.left_behind) = (None, true);
        }
    }
}
