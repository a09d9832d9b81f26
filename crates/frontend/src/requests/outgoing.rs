//! What goes to the other roles: which of them take a request, and the records that carry it.
//!
//! The ring itself is behind [`Outlet`], so that tests can stand in for the other roles.

use pinion_protocol::control::Admin;
use pinion_protocol::detokenizer_inbox::{self, TextForm, encode_open};
use pinion_protocol::tokenizer_inbox::{
    self, Prompt, Truncation, encode_decode, encode_encode, encode_render, encode_submit,
};
use pinion_protocol::{Claim, Fault, FaultCode, Peer, RequestId, Role, Sampling};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Bytes of the encoding buffer that are kept after a large request.
const SCRATCH_BYTES_KEPT: usize = 64 << 10;

/// Where records for other roles go: the session's links, or a test.
pub trait Outlet {
    /// Whether a record of this number of bytes would fit now.
    fn has_room(&mut self, to: Peer, payload_bytes: usize) -> bool;
    /// Stages one record; the error says that the reader has stopped reading.
    fn send(&mut self, to: Peer, kind: u16, payload: &[u8]) -> Result<(), pinion_worker::Overflow>;
    /// Makes what was staged for `to` visible. False if its ring is full and some of it has to wait.
    fn publish(&mut self, to: Peer) -> bool;
    /// Gives the launcher an operator's order.
    fn order(&mut self, number: u64, deadline_ns: u64, admin: Admin);
}

/// Work for the other roles; kept by the ledger, which sends it again when a role dies.
pub enum Job {
    /// Generate text.
    Generate {
        /// Its claim on the engine.
        claim: Claim,
        /// How to draw.
        sampling: Box<Sampling>,
        /// What to continue; the choices of a prompt share it.
        prompt: Rc<Prompt>,
        /// How much of it is used.
        truncation: Truncation,
        /// When it was asked for, in seconds since 1970.
        asked_unix_s: u64,
        /// Strings that end the text.
        stop: Vec<String>,
        /// How the text is made of its tokens.
        form: TextForm,
    },
    /// Text to ids, as far as they are used.
    Encode(Prompt, Truncation),
    /// Ids to text.
    Decode(Vec<u32>),
    /// A chat to the text of its prompt.
    Render(String),
}

impl Job {
    /// Whether the engine and a detokenizer have a part in it.
    pub(crate) fn reaches_engine(&self) -> bool {
        matches!(self, Job::Generate { .. })
    }

    /// The record that carries it is larger than this.
    fn bytes_min(&self) -> usize {
        let of_prompt = |prompt: &Prompt| match prompt {
            Prompt::Text(text) | Prompt::Bare(text) | Prompt::Chat(text) => text.len(),
            Prompt::Ids(ids) => size_of_val(ids.as_slice()),
        };
        match self {
            Job::Generate { prompt, .. } => of_prompt(prompt),
            Job::Encode(prompt, _) => of_prompt(prompt),
            Job::Decode(ids) => size_of_val(ids.as_slice()),
            Job::Render(chat) => chat.len(),
        }
    }
}

/// The processes that one request goes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) tokenizer: u16,
    pub(crate) detokenizer: u16,
}

/// An instant moved by `gap`, but not into the future.
pub(crate) fn later(at_ns: u64, gap: Duration, now_ns: u64) -> u64 {
    let gap_ns = u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX);
    at_ns.saturating_add(gap_ns).min(now_ns.max(at_ns))
}

/// Everything that goes out.
pub(crate) struct Outgoing {
    outlet: Rc<RefCell<dyn Outlet>>,
    tokenizers: u16,
    detokenizers: u16,
    next_tokenizer: u16,
    /// Roles that are dead and not yet replaced, each with the CLOCK_MONOTONIC ns of its first death.
    down: Vec<(Peer, u64)>,
    scratch: Vec<u8>,
}

impl Outgoing {
    pub(crate) fn new(outlet: Rc<RefCell<dyn Outlet>>, tokenizers: u16, detokenizers: u16) -> Outgoing {
        Outgoing {
            outlet,
            tokenizers,
            detokenizers,
            next_tokenizer: 0,
            down: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Roles that are dead and not yet replaced.
    pub(crate) fn down(&self) -> Vec<Peer> {
        self.down.iter().map(|(peer, _)| *peer).collect()
    }

    pub(crate) fn lost(&mut self, peer: Peer, now_ns: u64) {
        if self.down_since(peer).is_none() {
            self.down.push((peer, now_ns));
        }
    }

    pub(crate) fn back(&mut self, peer: Peer) {
        self.down.retain(|(down, _)| *down != peer);
    }

    /// What has lasted since before a pause of this process began `gap` later.
    pub(crate) fn excuse_pause(&mut self, gap: Duration, now_ns: u64) {
        self.down.iter_mut().for_each(|(_, since_ns)| *since_ns = later(*since_ns, gap, now_ns));
    }

    fn down_since(&self, peer: Peer) -> Option<u64> {
        self.down.iter().find(|(down, _)| *down == peer).map(|(_, since_ns)| *since_ns)
    }

    /// Since when a request in slot `slot` cannot be served, if it cannot: a role that it needs is down.
    pub(crate) fn unserved_since(&self, slot: u16, reaches_engine: bool) -> Option<u64> {
        let detokenizer = RequestId { slot, ..RequestId::default() }.detokenizer(self.detokenizers);
        let needed = [Peer::new(Role::Engine, 0), Peer::new(Role::Detokenizer, detokenizer)];
        let needed =
            needed.into_iter().filter(|_| reaches_engine).filter_map(|peer| self.down_since(peer)).min();
        // One tokenizer is enough.
        let tokenizers = (0..self.tokenizers.max(1)).map(|index| Peer::new(Role::Tokenizer, index));
        let since = tokenizers.map(|peer| self.down_since(peer)).collect::<Option<Vec<u64>>>();
        needed.into_iter().chain(since.into_iter().filter_map(|since| since.into_iter().max())).min()
    }

    /// The processes for the next request in slot `slot`. Error: one that it needs is down.
    pub(crate) fn choose(&mut self, slot: u16, reaches_engine: bool) -> Result<Way, Fault> {
        let way = self.way(slot, reaches_engine)?;
        self.next_tokenizer = (way.tokenizer + 1) % self.tokenizers.max(1);
        Ok(way)
    }

    /// Whether [`Outgoing::choose`] would choose; the next request's turn stays the same.
    pub(crate) fn check(&self, slot: u16, reaches_engine: bool) -> Result<(), Fault> {
        self.way(slot, reaches_engine).map(drop)
    }

    /// The processes that are next; changes nothing.
    fn way(&self, slot: u16, reaches_engine: bool) -> Result<Way, Fault> {
        let detokenizer = RequestId { slot, ..RequestId::default() }.detokenizer(self.detokenizers);
        if reaches_engine {
            self.check_up(Peer::new(Role::Engine, 0))?;
            self.check_up(Peer::new(Role::Detokenizer, detokenizer))?;
        }
        let count = self.tokenizers.max(1);
        let in_turn = (0..count).map(|place| (self.next_tokenizer + place) % count);
        let is_up = |index: &u16| self.down_since(Peer::new(Role::Tokenizer, *index)).is_none();
        let tokenizer = in_turn.into_iter().find(is_up).ok_or_else(|| {
            Fault::new(FaultCode::Unavailable, "the tokenizer is restarting; try again shortly")
        })?;
        Ok(Way { tokenizer, detokenizer })
    }

    fn check_up(&self, peer: Peer) -> Result<(), Fault> {
        if self.down_since(peer).is_some() {
            let message = format!("the {} is restarting; try again shortly", peer.role.name());
            return Err(Fault::new(FaultCode::Unavailable, message));
        }
        Ok(())
    }

    /// Opens the stream of a generation, which continues after the tokens of `resume`; the detokenizer sees it after
    /// [`Outgoing::shows_openings`]. Error: the reader is stuck.
    pub(crate) fn open(&mut self, id: RequestId, job: &Job, resume: &[u32], way: Way) -> Result<(), Fault> {
        let Job::Generate { stop, form, .. } = job else { return Ok(()) };
        let to = Peer::new(Role::Detokenizer, way.detokenizer);
        self.check_room(to, size_of_val(resume))?;
        encode_open(&mut self.scratch, id, stop, *form, resume);
        self.put(to, detokenizer_inbox::kind::OPEN)
    }

    /// Publishes what was opened. Whether all of it can be seen: only then may the engine come to know the request,
    /// whose first token would find no stream otherwise.
    pub(crate) fn shows_openings(&mut self, way: Way) -> bool {
        self.outlet.borrow_mut().publish(Peer::new(Role::Detokenizer, way.detokenizer))
    }

    /// Sends `job` on to the tokenizer. Error: the reader is stuck.
    pub(crate) fn submit(&mut self, id: RequestId, job: &Job, resume: &[u32], way: Way) -> Result<(), Fault> {
        let to = Peer::new(Role::Tokenizer, way.tokenizer);
        self.check_room(to, job.bytes_min() + size_of_val(resume))?;
        let record_kind = match job {
            Job::Generate { claim, sampling, prompt, truncation, asked_unix_s, .. } => {
                let (of, prompt) = ((id, *claim), (&**prompt, *truncation));
                encode_submit(&mut self.scratch, of, sampling, prompt, *asked_unix_s, resume);
                tokenizer_inbox::kind::SUBMIT
            }
            Job::Encode(prompt, truncation) => {
                encode_encode(&mut self.scratch, id, prompt, *truncation);
                tokenizer_inbox::kind::ENCODE
            }
            Job::Decode(ids) => {
                encode_decode(&mut self.scratch, id, ids);
                tokenizer_inbox::kind::DECODE
            }
            Job::Render(chat) => {
                encode_render(&mut self.scratch, id, chat);
                tokenizer_inbox::kind::RENDER
            }
        };
        self.put(to, record_kind)?;
        self.outlet.borrow_mut().publish(to);
        Ok(())
    }

    /// Looked at before a record is made: a request that waits for room asks in each turn, and a prompt may have
    /// megabytes.
    fn check_room(&self, to: Peer, bytes_min: usize) -> Result<(), Fault> {
        if self.outlet.borrow_mut().has_room(to, bytes_min) { Ok(()) } else { Err(overloaded()) }
    }

    /// Stages the record in `scratch`.
    fn put(&mut self, to: Peer, record_kind: u16) -> Result<(), Fault> {
        let mut outlet = self.outlet.borrow_mut();
        outlet.send(to, record_kind, &self.scratch).map_err(|_| overloaded())?;
        self.scratch.clear();
        self.scratch.shrink_to(SCRATCH_BYTES_KEPT);
        Ok(())
    }
}

fn overloaded() -> Fault {
    Fault::new(FaultCode::TooManyRequests, "the service is overloaded; try again later")
}
