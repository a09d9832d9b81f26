//! The loop between the rings and the requests: control messages, records, the clock, sleep.
//!
//! It owns the session's reading side; connections run as other tasks of the same thread. Records are handed
//! to the [`Ledger`], which wakes the connection they belong to.

use crate::http::app::App;
use crate::http::server;
use crate::limits::{BACKLOG_WAIT, DRAIN_RESERVE, LAST_SPANS_RESERVE, RECORDS_PER_TURN_MAX, TICK};
use crate::observe::health::{Health, gauge};
use crate::observe::load;
use crate::observe::load_log::{EngineTotals, LoadLog};
use crate::requests::ledger::Ledger;
use crate::requests::outgoing::Outlet;
use pinion_config::Exit;
use pinion_protocol::control::Admin;
use pinion_protocol::spans::SpanName;
use pinion_protocol::status::Gauge;
use pinion_protocol::{Fault, FaultCode, Peer, Role};
use pinion_worker::{ControlEvent, Inbox, Overflow, Session};
use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Time for the last bytes to reach their sockets before the process ends.
const LAST_WRITE_PAUSE: Duration = Duration::from_millis(20);

/// The session's outboxes as the ledger's outlet.
pub struct SessionOutlet(pub Rc<RefCell<Session>>);

impl Outlet for SessionOutlet {
    fn has_room(&mut self, to: Peer, payload_bytes: usize) -> bool {
        self.0.borrow_mut().links.outbox(to).is_some_and(|outbox| outbox.has_room(payload_bytes))
    }

    fn send(&mut self, to: Peer, kind: u16, payload: &[u8]) -> Result<(), Overflow> {
        let mut session = self.0.borrow_mut();
        session.links.outbox(to).ok_or(Overflow)?.send(kind, payload)
    }

    fn publish(&mut self, to: Peer) -> bool {
        let mut session = self.0.borrow_mut();
        let Some(outbox) = session.links.outbox(to) else { return false };
        outbox.publish();
        outbox.backlog_bytes() == 0
    }

    fn order(&mut self, number: u64, deadline_ns: u64, admin: Admin) {
        self.0.borrow().order(number, deadline_ns, admin);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    /// Serving.
    No,
    /// Waiting for open requests, and until the sockets have their answers, until this time.
    Until(u64),
    /// The time is over, and requests that were open ended with an error. Bytes may leave until this time.
    Last { end_ns: u64, cut: bool },
}

/// What a drain waits for.
#[derive(Clone, Copy, Debug)]
struct Left {
    /// Requests wait for their outcome or their client.
    requests: bool,
    /// Answers are not all in their sockets. hyper drops an answer's body, and with it the request, when it has its
    /// last bytes in a buffer.
    answers: bool,
}

impl Drain {
    /// Moves on. If that completes the drain, says whether answers were cut.
    fn go_on(&mut self, left: Left, now_ns: u64) -> Option<bool> {
        let cut_before = matches!(self, Drain::Last { cut: true, .. });
        match *self {
            Drain::No => None,
            _ if !left.requests && !left.answers => Some(cut_before),
            Drain::Until(end_ns) if now_ns >= end_ns => {
                let end_ns = now_ns.saturating_add(nanos(DRAIN_RESERVE));
                *self = Drain::Last { end_ns, cut: left.requests };
                None
            }
            Drain::Last { end_ns, .. } if now_ns >= end_ns => Some(true),
            Drain::Until(_) | Drain::Last { .. } => None,
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What a turn of the loop came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Records came, and more may be there.
    Worked,
    /// No record came.
    Idle,
    /// The launcher says stop.
    Stopped,
    /// No request and no answer is left, or the time for them is over.
    Drained {
        /// Some were ended with an error, or not sent to their end.
        cut: bool,
    },
}

/// The loop's state.
pub struct Reactor {
    session: Rc<RefCell<Session>>,
    app: Rc<App>,
    closing: watch::Sender<bool>,
    accepting: Option<JoinHandle<()>>,
    drain: Drain,
    next_tick_ns: u64,
    /// At the first frontend only.
    load_log: Option<LoadLog>,
    /// What the pages of the tokenizers say.
    memory_limit_hits: Vec<(Peer, u64)>,
}

impl Reactor {
    /// A reactor of this session, whose connections share `app`.
    pub fn new(session: Rc<RefCell<Session>>, app: Rc<App>) -> Reactor {
        let (is_first, now_ns) = (session.borrow().me().index == 0, session.borrow().now_ns());
        let load_log = is_first.then(|| LoadLog::new(EngineTotals::of(&app.health, now_ns)));
        let memory_limit_hits = memory_limit_hits(&app.health).collect();
        Reactor {
            session,
            app,
            closing: watch::Sender::new(false),
            accepting: None,
            drain: Drain::No,
            next_tick_ns: 0,
            load_log,
            memory_limit_hits,
        }
    }

    /// Runs until the launcher says stop, or a drain is complete; then says whether answers were cut. Must be called
    /// inside the runtime. The error is a reason to exit with failure.
    pub async fn run(mut self) -> Result<Exit, String> {
        let doorbell =
            watched(&self.session).map_err(|error| format!("cannot watch the doorbell: {error}"))?;
        loop {
            match self.turn()? {
                Turn::Worked => tokio::task::yield_now().await,
                Turn::Idle => self.sleep(&doorbell).await,
                Turn::Stopped => return Ok(Exit::Ok),
                Turn::Drained { cut } => {
                    tokio::time::sleep(LAST_WRITE_PAUSE).await;
                    return Ok(if cut { Exit::DrainCut } else { Exit::Ok });
                }
            }
        }
    }

    /// One turn of the loop: control messages, records, what waits for a role, the clock. Takes connections once the
    /// launcher says so, which needs the runtime. The error is a reason to exit with failure.
    pub fn turn(&mut self) -> Result<Turn, String> {
        let now_ns = self.session.borrow().now_ns();
        self.app.ledger.borrow_mut().excuse_pause(now_ns);
        if self.take_control()? {
            return Ok(Turn::Stopped);
        }
        let records = self.take_records(now_ns);
        self.app.ledger.borrow_mut().resume_parked(now_ns);
        self.session.borrow_mut().links.publish();
        self.tick(now_ns)?;
        if let Some(cut) = self.drained(now_ns) {
            return Ok(Turn::Drained { cut: cut || self.app.ledger.borrow().cut() });
        }
        Ok(if records == 0 { Turn::Idle } else { Turn::Worked })
    }

    /// Whether it takes connections: the launcher has said so.
    pub fn accepts(&self) -> bool {
        self.accepting.is_some()
    }

    /// Returns whether to stop now.
    fn take_control(&mut self) -> Result<bool, String> {
        loop {
            let event = self.session.borrow_mut().control();
            match event {
                None => return Ok(false),
                Some(ControlEvent::Stop) => return Ok(true),
                Some(ControlEvent::Open) => self.open()?,
                Some(ControlEvent::Leaving) => self.app.leaving.set(true),
                // No request needs it.
                Some(ControlEvent::PeerLost(peer, _) | ControlEvent::PeerReady(peer))
                    if peer.role == Role::Events => {}
                Some(ControlEvent::Drain { deadline_ns }) => self.begin_drain(deadline_ns),
                Some(ControlEvent::PeerLost(peer, cause)) => {
                    // What it said before it died still counts, also where its ring has been replaced already.
                    let now_ns = self.session.borrow().now_ns();
                    let replaced = || self.session.borrow_mut().take_replaced_inbox(peer);
                    while let Some(mut old) = replaced() {
                        while take_some(&mut old, &self.app.ledger, now_ns) > 0 {}
                    }
                    while self.take_records(now_ns) > 0 {}
                    if self.reached_memory_limit(peer) {
                        self.app.ledger.borrow_mut().memory_ran_out(peer);
                    }
                    self.app.ledger.borrow_mut().peer_lost(peer, cause);
                }
                Some(ControlEvent::PeerReady(peer)) => {
                    tracing::info!(%peer, "peer is back");
                    self.app.ledger.borrow_mut().peer_ready(peer);
                }
                Some(ControlEvent::InboxReplaced { mut old, .. }) => {
                    let now_ns = self.session.borrow().now_ns();
                    while take_some(&mut old, &self.app.ledger, now_ns) > 0 {}
                }
                Some(ControlEvent::AdminDone { number, outcome }) => self.app.orders.done(number, outcome),
                Some(
                    ControlEvent::Admin { .. }
                    | ControlEvent::OutboxReplaced { .. }
                    | ControlEvent::SlotsReplaced { .. },
                ) => {}
            }
        }
    }

    /// Whether a tokenizer that died has counted a memory limit since it was last looked at.
    fn reached_memory_limit(&mut self, peer: Peer) -> bool {
        let known = self.memory_limit_hits.iter_mut().find(|(of, _)| *of == peer);
        let now = memory_limit_hits(&self.app.health).find(|(of, _)| *of == peer);
        match (known, now) {
            (Some((_, known)), Some((_, now))) => std::mem::replace(known, now) != now,
            _ => false,
        }
    }

    fn open(&mut self) -> Result<(), String> {
        if self.accepting.is_some() {
            return Ok(());
        }
        let Some(listener) = self.session.borrow_mut().links.listener.take() else {
            return Err("the launcher gave no listening socket".to_owned());
        };
        let listener = listener
            .set_nonblocking(true)
            .and_then(|()| tokio::net::TcpListener::from_std(listener))
            .map_err(|error| format!("cannot use the listening socket: {error}"))?;
        let accept = server::accept(self.app.clone(), listener, self.closing.subscribe());
        self.accepting = Some(tokio::task::spawn_local(accept));
        Ok(())
    }

    fn begin_drain(&mut self, deadline_ns: u64) {
        self.app.ledger.borrow_mut().drain();
        self.session.borrow().draining();
        self.closing.send_replace(true);
        self.drain = Drain::Until(deadline_ns.saturating_sub(nanos(DRAIN_RESERVE)));
        if let Some(exporter) = &self.app.exporter {
            exporter.leave_by(Some(deadline_ns.saturating_sub(nanos(LAST_SPANS_RESERVE))));
        }
    }

    /// Moves the drain on; if it is complete, says whether it cut answers.
    fn drained(&mut self, now_ns: u64) -> Option<bool> {
        let left = Left {
            requests: self.app.ledger.borrow().any_open(),
            answers: self.app.connections.any_answers(),
        };
        let was_waiting = matches!(self.drain, Drain::Until(_));
        let complete = self.drain.go_on(left, now_ns);
        if was_waiting && matches!(self.drain, Drain::Last { .. }) {
            let fault =
                Fault::new(FaultCode::Unavailable, "the service stopped before the answer was complete");
            self.app.ledger.borrow_mut().fail_all(&fault);
            self.app.exporter.iter().for_each(|exporter| exporter.leave_by(None));
        }
        complete
    }

    fn take_records(&mut self, now_ns: u64) -> usize {
        let mut session = self.session.borrow_mut();
        let taken =
            session.links.inboxes.iter_mut().map(|inbox| take_some(inbox, &self.app.ledger, now_ns)).sum();
        if taken > 0 && self.app.recorder.records() {
            let arguments = [taken as u64, 0];
            self.app.recorder.record(SpanName::FrontendRecords, now_ns, session.now_ns(), arguments);
        }
        taken
    }

    fn tick(&mut self, now_ns: u64) -> Result<(), String> {
        self.session.borrow().beat();
        if now_ns < self.next_tick_ns {
            return Ok(());
        }
        self.next_tick_ns = now_ns + nanos(TICK);
        self.app.ledger.borrow_mut().tick(now_ns);
        if self.app.load.borrow().due(now_ns) {
            let counts = load::Counts::of(&self.app.metrics, &self.app.health, now_ns);
            self.app.load.borrow_mut().look(counts);
        }
        if let Some(log) = self.load_log.as_mut().filter(|log| log.due(now_ns))
            && let Some(line) = log.line(EngineTotals::of(&self.app.health, now_ns))
        {
            line.log();
        }
        match &self.accepting {
            Some(task) if task.is_finished() => Err("the accept loop ended".to_owned()),
            _ => Ok(()),
        }
    }

    /// Sleeps until a peer rings, or for one tick, or a moment if records wait for room in a ring.
    async fn sleep(&mut self, doorbell: &AsyncFd<OwnedFd>) {
        if !self.session.borrow_mut().arm() {
            tokio::task::yield_now().await;
            return;
        }
        let nap = if self.session.borrow().links.has_backlog() { BACKLOG_WAIT } else { TICK };
        let ready = tokio::time::timeout(nap, doorbell.readable()).await;
        if let Ok(Ok(mut guard)) = ready {
            // Before the drain, so that a ring after it is seen as a new one.
            guard.clear_ready();
        }
        let mut session = self.session.borrow_mut();
        session.disarm();
        session.drain_doorbell();
    }
}

/// The bell that peers ring.
#[expect(
    deprecated,
    reason = "the successor is an unsafe fn; an OwnedFd keeps its descriptor open for as long"
)]
fn watched(session: &Rc<RefCell<Session>>) -> io::Result<AsyncFd<OwnedFd>> {
    let fd = session.borrow().doorbell_fd().try_clone_to_owned()?;
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// How often each tokenizer has reached its memory limit.
fn memory_limit_hits(health: &Health) -> impl Iterator<Item = (Peer, u64)> {
    let tokenizers = health.pages.iter().filter(|(peer, _)| peer.role == Role::Tokenizer);
    tokenizers.map(|(peer, page)| (*peer, gauge(page, Gauge::MemoryLimitHits)))
}

/// Takes a bounded number of records from one ring.
fn take_some(inbox: &mut Inbox, ledger: &Rc<RefCell<Ledger>>, now_ns: u64) -> usize {
    let mut ledger = ledger.borrow_mut();
    let mut count = 0;
    while count < RECORDS_PER_TURN_MAX {
        let Some(record) = inbox.next() else { break };
        count += 1;
        if let Err(malformed) = ledger.take(record.kind, record.payload, now_ns) {
            inbox.condemn(malformed.0);
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    const END_NS: u64 = 1000;

    /// A drain until [`END_NS`] that finds this left at these times; whether it cut answers, once it is complete.
    fn check(left: &[(u64, (bool, bool))], expected: Option<bool>) {
        let mut drain = Drain::Until(END_NS);
        let go_on = |&(now_ns, (requests, answers)): &_| drain.go_on(Left { requests, answers }, now_ns);
        let complete: Vec<Option<bool>> = left.iter().map(go_on).collect();
        let (last, before) = complete.split_last().expect("a look at least");
        assert_eq!((*last, before.iter().all(Option::is_none)), (expected, true), "{left:?}: {complete:?}");
    }

    #[test]
    fn a_drain_waits_for_requests_and_for_what_sockets_have_not_taken() {
        const REQUEST: (bool, bool) = (true, true);
        const ANSWER: (bool, bool) = (false, true);
        const NOTHING: (bool, bool) = (false, false);
        let late = END_NS + nanos(DRAIN_RESERVE);
        check(&[(0, NOTHING)], Some(false));
        check(&[(0, REQUEST), (1, ANSWER), (2, NOTHING)], Some(false));
        check(&[(0, ANSWER), (END_NS - 1, ANSWER)], None);
        check(&[(END_NS, ANSWER), (END_NS + 1, NOTHING)], Some(false));
        check(&[(END_NS, ANSWER), (late - 1, ANSWER)], None);
        check(&[(END_NS, ANSWER), (late, ANSWER)], Some(true));
        check(&[(END_NS, REQUEST), (END_NS + 1, NOTHING)], Some(true));
        check(&[(END_NS, (true, false)), (late, (true, false))], Some(true));
        assert_eq!(Drain::No.go_on(Left { requests: false, answers: false }, late), None);
    }
}
