//! All accepted requests of this frontend, by slot: gives slots out, sends requests on, hands records to the
//! request they belong to, and takes slots back.
//!
//! A slot is taken at [`Ledger::begin`] and given back when both sides are done: no role will say more about
//! the request ([`Request::settled`]), and the client has everything or is gone (its [`Ticket`](super::ticket::Ticket)
//! is dropped). Until then the entry is a tombstone, so that an index is never reused while someone still works for it.
//! When a role dies, its requests keep their slots under a new generation and go on from their last token (`recovery`).
//! Single-threaded; it knows no socket, and rings only through [`super::outgoing`].

mod entries;
mod entry;
mod recovery;
mod recovery_state;
mod report;
mod submit;

use crate::limits::{LAST_TEXT_GRACE, RESTART_PAUSE_MAX};
use crate::observe::metrics::Metrics;
use crate::observe::otlp::TracedSequence;
use crate::observe::timeline::{Stamps, Timeline};
use crate::requests::outgoing::{Job, Outgoing, Outlet};
use crate::requests::request::{AnswerPlan, Beginning, Facts, Next, Outcome, Request};
use crate::requests::shared_line::SharedLine;
use crate::requests::siblings::Siblings;
use crate::route::Route;
use entries::Entries;
pub use entry::EntryState;
use entry::{Entry, Place};
use pinion_config::Lifecycle;
use pinion_os::clock::Clock;
use pinion_protocol::frontend_inbox::{
    Decoded, Delta, Encoded, FinishReason, Finished, Pooled, Reject, deltas, kind,
};
use pinion_protocol::names::{Counter, Stage};
use pinion_protocol::status::Gauge;
use pinion_protocol::{Fault, FaultCode, Malformed, Peer, RequestId};
use pinion_shm::page::Page;
use pinion_shm::slots::{Slot, SlotTable};
use pinion_worker::Recorder;
use recovery::unserved_in_drain;
use report::Reports;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use submit::Sent;

/// What the ledger is built from.
pub struct Setup {
    /// Index of this frontend.
    pub frontend: u16,
    /// Its slots.
    pub table: SlotTable,
    /// Own status page, for the counts of stale and malformed records.
    pub status: Page,
    /// Tokenizer processes.
    pub tokenizers: u16,
    /// Detokenizer processes.
    pub detokenizers: u16,
    /// Tokens of prompt and answer together.
    pub max_model_len: u32,
    /// Bytes that may wait for one client.
    pub buffer_bytes_max: usize,
    /// Requests that a dying role held go on when its successor serves.
    pub resume: bool,
    /// How long others are waited for.
    pub patience: Patience,
    /// Where the parts of ended requests are kept.
    pub recorder: Rc<Recorder>,
    /// What time it is.
    pub clock: Clock,
}

impl Setup {
    fn slot(&self, id: RequestId) -> Option<Slot<'_>> {
        self.table.slot(usize::from(id.slot))
    }

    /// What a role has counted of a request.
    fn counted(&self, id: RequestId, counter: Counter) -> u32 {
        let counted = self.slot(id).map_or(0, |slot| slot.counter(id.generation, counter as usize));
        u32::try_from(counted).unwrap_or(u32::MAX)
    }
}

/// How long requests wait for others.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a role that is down: past it they end.
    pub role: Duration,
    /// For the text of what the engine has finished: a detokenizer that hangs is replaced within it.
    pub text: Duration,
}

impl Patience {
    /// As the config has it: a start takes up to its timeout, and a role that hangs is one that dies.
    pub fn of(lifecycle: &Lifecycle) -> Patience {
        let hangs =
            if lifecycle.resume { Duration::from_millis(lifecycle.stuck_timeout_ms) } else { Duration::ZERO };
        Patience {
            role: Duration::from_millis(lifecycle.start_timeout_ms) + RESTART_PAUSE_MAX,
            text: hangs + LAST_TEXT_GRACE,
        }
    }
}

/// Where a request comes from.
pub struct Origin {
    /// The route that took it.
    pub route: Route,
    /// `X-Request-Id` of the answer.
    pub label: String,
    /// CLOCK_MONOTONIC ns at which its head was parsed.
    pub received_ns: u64,
    /// The answer shall say where its time went.
    pub timings: bool,
    /// The other choices of its prompt, itself included.
    pub siblings: Option<Rc<Siblings>>,
    /// The log line that it shares with the other texts of a request for vectors.
    pub line: Option<Rc<SharedLine>>,
    /// What its spans are gathered in, if it is traced.
    pub trace: Option<TracedSequence>,
    /// Others of the same answer have begun before: a drain lets it begin too.
    pub continues: bool,
}

/// All accepted requests.
pub struct Ledger {
    setup: Setup,
    entries: Entries,
    outgoing: Outgoing,
    draining: bool,
    /// CLOCK_MONOTONIC ns of the last [`Ledger::excuse_pause`].
    turned_ns: Option<u64>,
    /// The drain ended some with an error because a role is gone.
    cut: bool,
    metrics: Rc<Metrics>,
    reports: Reports,
}

impl Ledger {
    /// An empty ledger.
    pub fn new(setup: Setup, outlet: Rc<RefCell<dyn Outlet>>, metrics: Rc<Metrics>) -> Ledger {
        let count = setup.table.len().min(usize::from(u16::MAX) + 1);
        Ledger {
            entries: Entries::new(count),
            outgoing: Outgoing::new(outlet, setup.tokenizers, setup.detokenizers),
            setup,
            draining: false,
            turned_ns: None,
            cut: false,
            reports: Reports::new(metrics.clone()),
            metrics,
        }
    }

    /// Index of this frontend.
    pub fn frontend(&self) -> u16 {
        self.setup.frontend
    }

    /// Every request that has a slot, with how far it is.
    pub fn states(&self) -> impl Iterator<Item = (RequestId, EntryState)> + '_ {
        self.entries.iter().map(|entry| (entry.id, entry.state()))
    }

    /// Slots in use.
    pub fn slots_used(&self) -> usize {
        self.entries.len() - self.entries.free()
    }

    /// Slots in all.
    pub fn slots_total(&self) -> usize {
        self.entries.len()
    }

    /// Roles that are dead and not yet replaced.
    pub fn down(&self) -> Vec<Peer> {
        self.outgoing.down()
    }

    /// Whether new requests are refused for good.
    pub fn draining(&self) -> bool {
        self.draining
    }

    /// Whether the drain could not finish some requests because a role is gone.
    pub fn cut(&self) -> bool {
        self.cut
    }

    /// Whether one HTTP request can have `count` slots now. Errors: never, or not now.
    pub fn check_room(&self, count: usize) -> Result<(), Fault> {
        let (total, free) = (self.entries.len(), self.entries.free());
        if count > total {
            let message =
                format!("{count} choices at once are more than this service's {total} request slots");
            return Err(Fault::field("n", message));
        }
        if count > free {
            let message =
                format!("{free} of {total} request slots are free and {count} are needed; try again later");
            return Err(Fault::new(FaultCode::TooManyRequests, message));
        }
        Ok(())
    }

    /// Takes a slot and sends the job on; where a role that it needs is down, it waits for the successor. Errors: all
    /// slots taken, a role down and `--no-resume`, draining, a reader stuck.
    pub fn begin(
        &mut self,
        origin: Origin,
        job: Job,
        plan: AnswerPlan,
    ) -> Result<Rc<RefCell<Request>>, Fault> {
        if self.draining && !origin.continues {
            return Err(Fault::new(FaultCode::Unavailable, "the service is shutting down"));
        }
        let reaches_engine = job.reaches_engine();
        let Some(slot_index) = self.entries.next_free() else {
            let message = format!("all {} request slots are taken; try again later", self.entries.len());
            return Err(Fault::new(FaultCode::TooManyRequests, message));
        };
        if !self.setup.resume {
            self.outgoing.check(slot_index, reaches_engine)?;
        }
        let Some(slot) = self.setup.table.slot(usize::from(slot_index)) else {
            return Err(Fault::new(FaultCode::Internal, "a request slot does not exist"));
        };
        let id = RequestId { frontend: self.setup.frontend, slot: slot_index, generation: slot.open() };
        slot.stamp(id.generation, Stage::Received as usize, origin.received_ns);
        let tokens_hint = match &job {
            Job::Generate { sampling, .. } => sampling.max_tokens.unwrap_or(u32::MAX) as usize,
            Job::Encode(..) | Job::Decode(_) | Job::Render(_) => 0,
        };
        let facts = Facts {
            id,
            route: origin.route,
            reaches_engine,
            label: origin.label,
            timings: origin.timings,
            tokenizer: 0,
            ids_max: self.setup.max_model_len as usize,
            buffer_bytes_max: self.setup.buffer_bytes_max,
        };
        let request = Rc::new(RefCell::new(Request::new(facts, plan, tokens_hint)));
        let mut entry = Entry::new(request.clone(), origin.received_ns, job);
        entry.siblings = origin.siblings;
        entry.line = origin.line;
        entry.trace = origin.trace;
        let place = match entry.send_on(&mut self.outgoing, &self.setup) {
            Sent::Submitted(submission) => Place::Submitted(submission),
            // In a drain a role that died is not restarted.
            Sent::Waits { .. }
                if self.draining && self.outgoing.unserved_since(slot_index, reaches_engine).is_some() =>
            {
                self.cut = true;
                self.close(id);
                return Err(unserved_in_drain());
            }
            Sent::Waits { opened } => Place::Parked { opened },
            Sent::Stuck { fault, .. } => {
                self.close(id);
                return Err(fault);
            }
        };
        self.entries.insert(entry, place);
        Ok(request)
    }

    /// Takes one record from a ring. What is late is counted and dropped. Errors: it, or one before it, is not what an
    /// honest role sent; what it was about goes on when its edge has been replaced.
    pub fn take(&mut self, record_kind: u16, payload: &[u8], now_ns: u64) -> Result<(), Malformed> {
        match record_kind {
            kind::DELTAS => {
                for delta in deltas(payload) {
                    let delta = delta?;
                    self.count_tokens(&delta, now_ns);
                    let id = delta.header.id;
                    let reasoning = Counter::Reasoning as usize;
                    let beginning = Beginning {
                        reasoning: self
                            .setup
                            .slot(id)
                            .map_or(0, |slot| slot.counter(id.generation, reasoning)),
                        prompt_tokens: self.setup.counted(id, Counter::PromptTokens),
                        cached_tokens: self.setup.counted(id, Counter::CachedTokens),
                    };
                    self.with(id, |request| {
                        request.begin_text(beginning);
                        request.delta(&delta, beginning.prompt_tokens)
                    })?;
                }
                Ok(())
            }
            kind::FINISHED => {
                let finished = Finished::decode(payload)?;
                self.entries.finished(finished.id, now_ns);
                if matches!(finished.reason, FinishReason::Stop | FinishReason::Length) {
                    self.count_prompt(finished.id, finished.prompt_tokens);
                }
                self.with(finished.id, |request| request.finish(&finished))
            }
            kind::POOLED => {
                let Pooled { id, values } = Pooled::decode(payload)?;
                self.with(id, |request| request.pool(values))
            }
            kind::REJECT => {
                let Reject { id, fault } = Reject::decode(payload)?;
                self.with(id, |request| {
                    request.reject(fault);
                    Next::Continue
                })
            }
            kind::ENCODED => {
                let Encoded { id, ids } = Encoded::decode(payload)?;
                self.answer(id, Outcome::Ids(ids))
            }
            kind::DECODED => {
                let Decoded { id, text } = Decoded::decode(payload)?;
                self.answer(id, Outcome::Decoded(text))
            }
            _ => Err(Malformed("frontend record kind")),
        }
    }

    /// Counts tokens and their times as they come. Tokens that come together share the time since those before. One
    /// that is drawn again for the sake of the end was counted.
    fn count_tokens(&mut self, delta: &Delta<'_>, now_ns: u64) {
        let (id, count) = (delta.header.id, u64::from(delta.header.token_count));
        let metrics = self.metrics.clone();
        let is_new = |entry: &&mut Entry| {
            let request = entry.request.borrow();
            count > 0 && !request.has_last_text() && request.follows(delta)
        };
        let Some(entry) = self.entries.open(id).filter(is_new) else { return };
        let (received_ns, before_ns) = (entry.received_ns, entry.token_ns.replace(now_ns));
        if let Some(lost_ns) = entry.recovery.token_came() {
            metrics.interruption.observe_ns(now_ns.saturating_sub(lost_ns));
        }
        metrics.live_generated_tokens.add(count);
        if let Some(before_ns) = before_ns {
            let gap_s = now_ns.saturating_sub(before_ns) as f64 / 1e9;
            metrics.token_gap.observe_many(gap_s / count as f64, count);
        } else {
            let first_ns = now_ns.saturating_sub(received_ns);
            entry.request.borrow_mut().timeline.first_ns = Some(first_ns);
            metrics.first_token.observe_ns(first_ns);
            self.count_prompt(id, self.setup.counted(id, Counter::PromptTokens));
        }
    }

    /// Counts the prompt of a request that has its first token, or its end: not each request has a token. Only the
    /// first time counts; after a death a request may have both again.
    fn count_prompt(&mut self, id: RequestId, prompt_tokens: u32) {
        let Some(entry) = self.entries.open(id) else { return };
        if !std::mem::replace(&mut entry.is_prompt_counted, true) {
            self.metrics.live_prompt_tokens.add(u64::from(prompt_tokens));
        }
    }

    fn answer(&mut self, id: RequestId, outcome: Outcome) -> Result<(), Malformed> {
        self.with(id, |request| {
            request.answer(outcome);
            Next::Continue
        })
    }

    /// Applies a record to its request, then settles what that leads to. Errors: there never was such a request, or the
    /// record does not follow the one before.
    fn with(&mut self, id: RequestId, apply: impl FnOnce(&mut Request) -> Next) -> Result<(), Malformed> {
        let Some(entry) = self.entries.open(id) else {
            let slot = self.setup.slot(id).filter(|_| id.frontend == self.setup.frontend);
            if !slot.is_some_and(|slot| slot.state().has_reached(id.generation)) {
                return Err(Malformed("request of a record"));
            }
            self.setup.status.add(Gauge::StaleRecords as usize, 1);
            return Ok(());
        };
        let (request, received_ns) = (entry.request.clone(), entry.received_ns);
        if request.borrow().facts.timings {
            request.borrow_mut().timeline = self.timeline(id, received_ns);
        }
        if request.borrow().shows_counts() {
            let counted = |counter| self.setup.counted(id, counter);
            let (prompt, cached) = (counted(Counter::PromptTokens), counted(Counter::CachedTokens));
            request.borrow_mut().count_prompt(prompt, cached);
        }
        match apply(&mut request.borrow_mut()) {
            Next::Continue => {}
            Next::Cancel => self.cancel(id),
            Next::Gap => return Err(Malformed("sequence of a delta")),
        }
        self.release_if_done(id);
        Ok(())
    }

    fn cancel(&self, id: RequestId) {
        if let Some(slot) = self.setup.slot(id) {
            slot.cancel(id.generation);
        }
    }

    fn close(&self, id: RequestId) {
        if let Some(slot) = self.setup.slot(id) {
            slot.close(id.generation);
        }
    }

    /// Stamps a stage of a request whose slot is still its own.
    pub fn stamp(&mut self, id: RequestId, stage: Stage) {
        if self.entries.open(id).is_some()
            && let Some(slot) = self.setup.slot(id)
        {
            slot.stamp(id.generation, stage as usize, (self.setup.clock)());
        }
    }

    /// The client has everything, or is gone. In the latter case the request is cancelled everywhere.
    pub(crate) fn client_done(&mut self, id: RequestId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.client_done = true;
        if entry.request.borrow_mut().abandon() {
            self.cancel(id);
        }
        self.release_if_done(id);
    }

    fn release_if_done(&mut self, id: RequestId) {
        // The slot is free before anything is said of the request, so that nothing that happens there can keep it.
        let Some(entry) = self.entries.take_done(id) else { return };
        if entry.place != Place::Closed {
            self.close(id);
        }
        self.reports.report(&entry, &self.setup);
    }

    /// Where the time of a request went up to now.
    pub(crate) fn timeline(&self, id: RequestId, received_ns: u64) -> Timeline {
        let earlier = self.entries.get(id).and_then(|entry| entry.recovery.earlier());
        let stamps = Stamps::of_slot(self.setup.slot(id), id.generation, earlier);
        Timeline::of_slot(self.setup.slot(id), id.generation, &stamps, received_ns, (self.setup.clock)())
    }

    /// The process leaves: what roles still hold is over for its spans.
    pub(crate) fn end_traces(&mut self) {
        for id in self.ids(|entry, _| entry.trace.is_some()) {
            if let Some(entry) = self.entries.get_mut(id) {
                report::end_trace(entry, &self.setup);
            }
        }
    }

    /// The worst requests of the last hour.
    pub(crate) fn slow_json(&mut self) -> serde_json::Value {
        self.reports.slow_json(&self.setup)
    }

    fn ids(&self, wanted: impl Fn(&Entry, &Request) -> bool) -> Vec<RequestId> {
        let entries = self.entries.iter();
        entries.filter(|entry| wanted(entry, &entry.request.borrow())).map(|entry| entry.id).collect()
    }

    /// Whether any request still waits for its outcome or its client.
    pub fn any_open(&self) -> bool {
        self.entries.iter().any(|entry| !entry.client_done)
    }
}
