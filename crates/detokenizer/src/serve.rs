//! The loop: openings first, then the engine's steps, then the records out.

use crate::detokenizer::{Counts, Detokenizer};
use pinion_config::Exit;
use pinion_protocol::frontend_inbox::kind::DELTAS;
use pinion_protocol::spans::SpanName;
use pinion_protocol::status::{Gauge, Reading};
use pinion_protocol::{Malformed, Peer, Role};
use pinion_shm::slots::SlotTable;
use pinion_text::TextCodec;
use pinion_worker::{ControlEvent, Inbox, Links, Pace, Session, beat};
use std::process::ExitCode;
use std::time::Duration;

/// Step records taken from one engine before the others, and the control channel, have their turn.
const STEPS_PER_TURN: usize = 16;
/// How long to sleep when there is nothing to do; a record ends the sleep at once.
const IDLE_WAIT: Duration = Duration::from_millis(100);
/// How long to sleep while a frontend's ring is full.
const BACKLOG_WAIT: Duration = Duration::from_millis(1);
/// With more than this waiting for a frontend that is slow but reads, no further step is taken: the engine's ring
/// fills, and the engine works at the frontend's pace.
const LAG_BYTES_MAX: usize = 256 << 10;
/// Streams that were given up are looked for this often, in ns.
const SWEEP_INTERVAL_NS: u64 = 200_000_000;

/// The role's life: loads the codec, then serves.
pub fn live(mut session: Session) -> ExitCode {
    session.reads(Reading::Tokenizer);
    let codec = match TextCodec::load(&session.config().model_dir) {
        Ok(codec) => codec,
        Err(error) => return session.fail(&error.to_string(), Exit::Model.code().into()),
    };
    let summary = format!("{} tokens", codec.vocab_size());
    let tables = slot_tables(&session);
    let detokenizer = Detokenizer::new(codec, tables, record_bytes_max(&session))
        .with_interval(session.config().stream_interval);
    session.reads(Reading::Nothing);
    session.ready(&summary);
    Server::new(session, detokenizer).run()
}

/// The slot tables of all frontends, in order.
fn slot_tables(session: &Session) -> Vec<SlotTable> {
    (0..session.config().frontends).map_while(|index| session.links.slot_table(index).cloned()).collect()
}

/// Largest delta record that every frontend's ring takes.
fn record_bytes_max(session: &Session) -> usize {
    let edges =
        session.topology().edges.iter().filter(|e| e.from == session.me() && e.to.role == Role::Frontend);
    edges.map(|edge| edge.payload_bytes_max()).min().unwrap_or(0)
}

/// The role with its links.
pub struct Server {
    session: Session,
    detokenizer: Detokenizer,
    /// The step record at hand, copied out of its inbox so that the frontends' inboxes can be read first.
    step: Vec<u8>,
    /// What the status page says.
    reported: Counts,
    swept_ns: u64,
}

impl Server {
    /// A detokenizer that serves over the links of `session`.
    pub fn new(session: Session, detokenizer: Detokenizer) -> Server {
        Server { session, detokenizer, step: Vec::new(), reported: Counts::default(), swept_ns: 0 }
    }

    /// Serves until the launcher says stop.
    fn run(mut self) -> ExitCode {
        loop {
            let pace = self.turn();
            if !self.session.rest(pace) {
                return self.session.stop();
            }
        }
    }

    /// One turn of the loop: control messages, openings, a bounded number of steps.
    pub fn turn(&mut self) -> Pace {
        while let Some(event) = self.session.control() {
            if let ControlEvent::Stop = event {
                return Pace::Stop;
            }
            self.take_event(event);
        }
        let lags = self.session.links.outboxes.iter().any(|outbox| outbox.lag_bytes() > LAG_BYTES_MAX);
        let taken = if lags { self.take_openings() } else { self.take_turn() };
        self.session.links.publish();
        self.report();
        let now_ns = self.session.now_ns();
        if now_ns.saturating_sub(self.swept_ns) >= SWEEP_INTERVAL_NS {
            self.swept_ns = now_ns;
            self.detokenizer.sweep();
        }
        if lags {
            // The steps that are left unread would end any other wait at once.
            Pace::Pause(BACKLOG_WAIT)
        } else if taken {
            Pace::Go
        } else {
            Pace::Wait(if self.session.links.has_backlog() { BACKLOG_WAIT } else { IDLE_WAIT })
        }
    }

    fn take_event(&mut self, event: ControlEvent) {
        match event {
            // Open streams go on; the launcher stops this role after the frontends.
            ControlEvent::Drain { .. } => self.session.draining(),
            ControlEvent::InboxReplaced { from, mut old } if from.role == Role::Engine => {
                // The engine died. What it still said is delivered; the frontends give its requests new
                // generations, and the sweep frees the states of the old ones.
                self.take_openings();
                while self.take_step(&mut old) {}
                self.detokenizer.sweep();
            }
            ControlEvent::SlotsReplaced { frontend } => {
                if let Some(table) = self.session.links.slot_table(frontend) {
                    self.detokenizer.replace_slots(frontend, table.clone());
                }
            }
            ControlEvent::InboxReplaced { .. }
            | ControlEvent::OutboxReplaced { .. }
            | ControlEvent::PeerLost(..)
            | ControlEvent::PeerReady(_)
            | ControlEvent::Admin { .. }
            | ControlEvent::AdminDone { .. }
            | ControlEvent::Open
            | ControlEvent::Leaving
            | ControlEvent::Stop => {}
        }
    }

    /// Openings, then a bounded number of steps from each engine. False if there was nothing.
    fn take_turn(&mut self) -> bool {
        let mut taken = self.take_openings();
        for index in 0..self.session.links.inboxes.len() {
            if self.session.links.inboxes[index].from.role != Role::Engine {
                continue;
            }
            for _ in 0..STEPS_PER_TURN {
                let inbox = &mut self.session.links.inboxes[index];
                let Some(record_kind) = copy_record(inbox, &mut self.step) else { break };
                taken = true;
                // The opening of a stream was published before its first event was, so it is visible now
                // even if it was not when the turn began.
                self.take_openings();
                if let Err(error) = self.handle_step(record_kind) {
                    self.session.links.inboxes[index].condemn(&error.to_string());
                }
            }
        }
        taken
    }

    /// Everything that waits in the frontends' rings. False if nothing did.
    fn take_openings(&mut self) -> bool {
        let (mut taken, clock) = (false, self.session.clock());
        for inbox in self.session.links.inboxes.iter_mut().filter(|inbox| inbox.from.role == Role::Frontend) {
            let from = inbox.from;
            while let Some(record) = inbox.next() {
                taken = true;
                // After a death all open texts are decoded again, which may take longer than a role may be silent.
                beat(&self.session.status, clock());
                if let Err(error) = self.detokenizer.open(from.index, record.kind, record.payload) {
                    inbox.condemn(&error.to_string());
                }
            }
        }
        taken
    }

    fn take_step(&mut self, inbox: &mut Inbox) -> bool {
        let Some(record_kind) = copy_record(inbox, &mut self.step) else { return false };
        if let Err(error) = self.handle_step(record_kind) {
            // Its writer is dead already.
            inbox.condemn(&error.to_string());
        }
        true
    }

    fn handle_step(&mut self, record_kind: u16) -> Result<(), Malformed> {
        let recorder = self.session.recorder().clone();
        let now_ns = self.session.now_ns();
        recorder.push(SpanName::Detokenize);
        let before = self.detokenizer.counts();
        // What came before the fault in the record goes out: it was right.
        let handled = self.detokenizer.step(record_kind, &self.step, now_ns);
        for frontend in 0..self.session.config().frontends {
            if !send_records(&mut self.session.links, &self.detokenizer, frontend) {
                tracing::error!(frontend, "frontend has stopped reading; its requests are cancelled");
                self.detokenizer.abandon(frontend);
            }
        }
        self.detokenizer.clear();
        self.session.links.publish();
        if recorder.records() {
            let after = self.detokenizer.counts();
            let deltas = after.deltas - before.deltas;
            let events = deltas + after.stale - before.stale;
            recorder.record(SpanName::Detokenize, now_ns, self.session.now_ns(), [events, deltas]);
        }
        recorder.pop();
        handled
    }

    fn report(&mut self) {
        let counts = self.detokenizer.counts();
        if counts != self.reported {
            let status = &self.session.status;
            status.add(Gauge::StaleRecords as usize, counts.stale - self.reported.stale);
            status.set(Gauge::Deltas as usize, counts.deltas);
            status.set(Gauge::DecodeStates as usize, counts.states);
            self.reported = counts;
        }
    }
}

/// Copies the inbox's next record into `payload` and gives its kind.
fn copy_record(inbox: &mut Inbox, payload: &mut Vec<u8>) -> Option<u16> {
    let record = inbox.next()?;
    payload.clear();
    payload.extend_from_slice(record.payload);
    Some(record.kind)
}

/// Stages the frontend's records. False if its backlog is over the bound.
fn send_records(links: &mut Links, detokenizer: &Detokenizer, frontend: u16) -> bool {
    let Some(outbox) = links.outbox(Peer::new(Role::Frontend, frontend)) else { return true };
    let mut delivered = true;
    for record in detokenizer.records(frontend) {
        delivered &= outbox.send(DELTAS, record).is_ok();
    }
    delivered
}
