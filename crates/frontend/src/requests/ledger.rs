//! All accepted requests of this frontend, by slot: gives slots out, sends requests on, hands records to the
//! request they belong to, and takes slots back.
//!
//! A slot is taken at [`Ledger::begin`] and given back when both sides are done: no role will say more about
//! the request ([`Request::settled`]), and the client has everything or is gone (its [`Ticket`](super::ticket::Ticket)
//! is dropped). Until then the entry is a tombstone, so that an index is never reused while someone still works for it.
//! When a role dies, its requests keep their slots under a new generation and go on from their last token (`recovery`).
//! Single-threaded; it knows no socket, and rings only through [`super::outgoing`].

mod losses;
mod recovery;
mod report;

use crate::limits::{LAST_TEXT_GRACE, RESTART_PAUSE_MAX};
use crate::observe::metrics::Metrics;
use crate::observe::slow::SlowLog;
use crate::observe::timeline::{Stamps, Timeline};
use crate::requests::outgoing::{Job, Outgoing, Outlet};
use crate::requests::request::{Beginning, Facts, Form, Next, Outcome, Request};
use crate::route::Route;
use pinion_config::Lifecycle;
use pinion_os::clock::Clock;
use pinion_protocol::frontend_inbox::{Decoded, Delta, Encoded, Finished, Reject, deltas, kind};
use pinion_protocol::names::{Counter, Stage};
use pinion_protocol::status::Gauge;
use pinion_protocol::{Fault, FaultCode, Malformed, Peer, RequestId};
use pinion_shm::page::Page;
use pinion_shm::slots::{Slot, SlotTable};
use pinion_worker::Recorder;
use recovery::Life;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

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
}

struct Entry {
    request: Rc<RefCell<Request>>,
    id: RequestId,
    received_ns: u64,
    /// The ticket is gone.
    client_done: bool,
    /// The slot was closed ahead of its release, because a role died.
    closed: bool,
    /// When the engine's account came; 0 before.
    finished_ns: u64,
    /// When the latest token came; 0 before the first.
    token_ns: u64,
    life: Life,
}

/// How far a request is; docs/ARCHITECTURE.md has the diagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// It waits for a role and is with none.
    Parked,
    /// It is with its roles.
    Submitted,
    /// Only the engine's account is missing.
    TextComplete,
    /// Only the end of the text is missing.
    EngineDone,
    /// Its client was told the outcome, or is gone.
    Ended,
}

impl Entry {
    fn state(&self) -> EntryState {
        let request = self.request.borrow();
        match (self.life.parked, request.has_last_text(), request.finished().is_some()) {
            _ if request.outcome().is_some() => EntryState::Ended,
            (true, _, _) => EntryState::Parked,
            (false, true, _) => EntryState::TextComplete,
            (false, false, true) => EntryState::EngineDone,
            (false, false, false) => EntryState::Submitted,
        }
    }
}

/// All accepted requests.
pub struct Ledger {
    setup: Setup,
    entries: Vec<Option<Entry>>,
    free: VecDeque<u16>,
    outgoing: Outgoing,
    draining: bool,
    /// The drain ended some with an error because a role is gone.
    cut: bool,
    /// Requests that wait for the successor of a role.
    parked: usize,
    metrics: Rc<Metrics>,
    slow: SlowLog,
}

impl Ledger {
    /// An empty ledger.
    pub fn new(setup: Setup, outlet: Rc<RefCell<dyn Outlet>>, metrics: Rc<Metrics>) -> Ledger {
        let count = setup.table.len().min(usize::from(u16::MAX) + 1);
        Ledger {
            entries: (0..count).map(|_| None).collect(),
            free: (0..count).filter_map(|slot| u16::try_from(slot).ok()).collect(),
            outgoing: Outgoing::new(outlet, setup.tokenizers, setup.detokenizers),
            setup,
            draining: false,
            cut: false,
            parked: 0,
            metrics,
            slow: SlowLog::default(),
        }
    }

    /// Index of this frontend.
    pub fn frontend(&self) -> u16 {
        self.setup.frontend
    }

    /// Every request that has a slot, with how far it is.
    pub fn states(&self) -> impl Iterator<Item = (RequestId, EntryState)> + '_ {
        self.entries.iter().flatten().map(|entry| (entry.id, entry.state()))
    }

    /// Slots in use.
    pub fn slots_used(&self) -> usize {
        self.entries.len() - self.free.len()
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
        let (total, free) = (self.entries.len(), self.free.len());
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
    pub fn begin(&mut self, origin: Origin, job: Job, form: Form) -> Result<Rc<RefCell<Request>>, Fault> {
        if self.draining {
            return Err(Fault::new(FaultCode::Unavailable, "the service is shutting down"));
        }
        let generates = matches!(job, Job::Generate { .. });
        let Some(slot_index) = self.free.front().copied() else {
            let message = format!("all {} request slots are taken; try again later", self.entries.len());
            return Err(Fault::new(FaultCode::TooManyRequests, message));
        };
        if !self.setup.resume {
            self.outgoing.choose(slot_index, generates)?;
        }
        let Some(slot) = self.setup.table.slot(usize::from(slot_index)) else {
            return Err(Fault::new(FaultCode::Internal, "a request slot does not exist"));
        };
        let id = RequestId { frontend: self.setup.frontend, slot: slot_index, generation: slot.open() };
        slot.stamp(id.generation, Stage::Received as usize, origin.received_ns);
        let tokens_hint = match &job {
            Job::Generate { sampling, .. } => sampling.max_tokens.unwrap_or(u32::MAX) as usize,
            Job::Encode(_) | Job::Decode(_) => 0,
        };
        let received_ns = origin.received_ns;
        let facts = Facts {
            id,
            route: origin.route,
            label: origin.label,
            timings: origin.timings,
            tokenizer: 0,
            ids_max: self.setup.max_model_len as usize,
            buffer_bytes_max: self.setup.buffer_bytes_max,
        };
        let request = Rc::new(RefCell::new(Request::new(facts, form, tokens_hint)));
        let mut entry = Entry {
            request: request.clone(),
            id,
            received_ns,
            client_done: false,
            closed: false,
            finished_ns: 0,
            token_ns: 0,
            life: Life::new(job),
        };
        match entry.send_on(&mut self.outgoing, &self.setup) {
            Ok(sent) => self.parked += usize::from(!sent),
            Err(fault) => {
                self.close(id);
                return Err(fault);
            }
        }
        self.free.pop_front();
        self.entries[usize::from(slot_index)] = Some(entry);
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
                        reasoning: self.slot(id).map_or(0, |slot| slot.counter(id.generation, reasoning)),
                        prompt_tokens: self.counted(id, Counter::PromptTokens),
                        cached_tokens: self.counted(id, Counter::CachedTokens),
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
                if let Some(entry) = self.entry(finished.id) {
                    entry.finished_ns = now_ns;
                }
                self.with(finished.id, |request| request.finish(&finished))
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
        let Some(entry) = self.entry(id).filter(is_new) else { return };
        let (received_ns, before_ns) = (entry.received_ns, entry.token_ns);
        entry.token_ns = now_ns;
        if let Some(lost_ns) = entry.life.lost_ns.take() {
            metrics.interruption.observe_ns(now_ns.saturating_sub(lost_ns));
        }
        metrics.live_generated_tokens.add(count);
        if before_ns == 0 {
            metrics.first_token.observe_ns(now_ns.saturating_sub(received_ns));
            metrics.live_prompt_tokens.add(u64::from(self.counted(id, Counter::PromptTokens)));
        } else {
            let gap_s = now_ns.saturating_sub(before_ns) as f64 / 1e9;
            metrics.token_gap.observe_many(gap_s / count as f64, count);
        }
    }

    fn answer(&mut self, id: RequestId, outcome: Outcome) -> Result<(), Malformed> {
        self.with(id, |request| {
            request.answer(outcome);
            Next::Continue
        })
    }

    fn entry(&mut self, id: RequestId) -> Option<&mut Entry> {
        self.entries.get_mut(usize::from(id.slot))?.as_mut().filter(|entry| entry.id == id && !entry.closed)
    }

    /// Applies a record to its request, then settles what that leads to. Errors: there never was such a request, or the
    /// record does not follow the one before.
    fn with(&mut self, id: RequestId, apply: impl FnOnce(&mut Request) -> Next) -> Result<(), Malformed> {
        let Some(entry) = self.entry(id) else {
            let slot = self.slot(id).filter(|_| id.frontend == self.setup.frontend);
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
            let counted = |counter| self.counted(id, counter);
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

    fn slot(&self, id: RequestId) -> Option<Slot<'_>> {
        self.setup.table.slot(usize::from(id.slot))
    }

    fn cancel(&self, id: RequestId) {
        if let Some(slot) = self.slot(id) {
            slot.cancel(id.generation);
        }
    }

    fn close(&self, id: RequestId) {
        if let Some(slot) = self.slot(id) {
            slot.close(id.generation);
        }
    }

    /// Stamps a stage of a request whose slot is still its own.
    pub fn stamp(&mut self, id: RequestId, stage: Stage) {
        if self.entry(id).is_some()
            && let Some(slot) = self.slot(id)
        {
            slot.stamp(id.generation, stage as usize, (self.setup.clock)());
        }
    }

    /// The client has everything, or is gone. In the latter case the request is cancelled everywhere.
    pub(crate) fn client_done(&mut self, id: RequestId) {
        let place = self.entries.get_mut(usize::from(id.slot)).and_then(Option::as_mut);
        let Some(entry) = place.filter(|entry| entry.id == id) else { return };
        entry.client_done = true;
        if entry.request.borrow_mut().abandon() {
            self.cancel(id);
        }
        self.release_if_done(id);
    }

    fn release_if_done(&mut self, id: RequestId) {
        let Some(place) = self.entries.get_mut(usize::from(id.slot)) else { return };
        // No other process holds a parked request.
        let settled = |entry: &Entry| entry.life.parked || entry.request.borrow().settled();
        let done = |entry: &mut Entry| entry.id == id && entry.client_done && settled(entry);
        let Some(entry) = place.take_if(done) else { return };
        self.parked -= usize::from(entry.life.parked);
        if !entry.closed {
            self.close(id);
        }
        // Before anything is said of it, so that nothing that happens there can keep the slot.
        self.free.push_back(id.slot);
        self.report(&entry);
    }

    /// Where the time of a request went up to now.
    pub(crate) fn timeline(&self, id: RequestId, received_ns: u64) -> Timeline {
        let place = self.entries.get(usize::from(id.slot)).and_then(Option::as_ref);
        let earlier = place.filter(|entry| entry.id == id).and_then(|entry| entry.life.earlier.as_deref());
        let stamps = Stamps::of_slot(self.slot(id), id.generation, earlier);
        Timeline::of_slot(self.slot(id), id.generation, &stamps, received_ns, (self.setup.clock)())
    }

    /// The worst requests of the last hour.
    pub(crate) fn slow_json(&mut self) -> serde_json::Value {
        self.slow.page(self.setup.frontend, (self.setup.clock)())
    }

    fn counted(&self, id: RequestId, counter: Counter) -> u32 {
        let counted = self.slot(id).map_or(0, |slot| slot.counter(id.generation, counter as usize));
        u32::try_from(counted).unwrap_or(u32::MAX)
    }

    fn ids(&self, wanted: impl Fn(&Entry, &Request) -> bool) -> Vec<RequestId> {
        let entries = self.entries.iter().flatten();
        entries.filter(|entry| wanted(entry, &entry.request.borrow())).map(|entry| entry.id).collect()
    }

    /// Whether any request still waits for its outcome or its client.
    pub fn any_open(&self) -> bool {
        self.entries.iter().flatten().any(|entry| !entry.client_done)
    }
}
