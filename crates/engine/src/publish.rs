//! What leaves the engine: one step record per detokenizer, one finished record per ended request.
//!
//! A detokenizer that is late but reads holds the next step back ([`crate::engine`]); one that has stopped reading
//! delays no other. Past the outbox's bounded backlog it counts as stuck: its requests end, it gets no new ones, and
//! the few events that are still pending for it (the tokens of one step and one last event for each of its requests)
//! wait here until its outbox takes them.

use crate::ports::Ports;
use pinion_model::{Logprob, PromptScores};
use pinion_protocol::detokenizer_inbox::{self, EVENT_EOS, EVENT_LAST, EVENT_TOKEN, TokenEvent, encode_step};
use pinion_protocol::limits::{PROMPT_SCORES_PER_RECORD_MAX, STEP_EVENTS_MAX};
use pinion_protocol::prompt_scores::{PROMPT_FIRST, PromptHeader, encode_prompt};
use pinion_protocol::scores::LogprobEntry;
use pinion_protocol::{Peer, RequestId, Role};
use pinion_scheduler::Event;
use pinion_worker::Overflow;

/// Events on their way to one detokenizer.
#[derive(Debug)]
struct Stream {
    events: Vec<TokenEvent>,
    /// Those of the events, one after another. Grows to what a step with logprobs needs and stays so.
    logprobs: Vec<LogprobEntry>,
    stuck: bool,
}

/// Events on their way to all detokenizers.
#[derive(Debug)]
pub(crate) struct Streams {
    streams: Vec<Stream>,
    encoded: Vec<u8>,
    /// Of one record of prompt scores.
    entries: Vec<LogprobEntry>,
    /// Events that one record may hold; the rings are sized by it.
    record_events_max: usize,
}

impl Streams {
    pub(crate) fn new(detokenizer_count: u16, row_count_max: usize) -> Streams {
        let record_events_max = row_count_max.min(STEP_EVENTS_MAX);
        let stream =
            || Stream { events: Vec::with_capacity(record_events_max), logprobs: Vec::new(), stuck: false };
        let record_bytes =
            size_of::<detokenizer_inbox::StepHeader>() + record_events_max * size_of::<TokenEvent>();
        Streams {
            streams: (0..detokenizer_count.max(1)).map(|_| stream()).collect(),
            encoded: Vec::with_capacity(record_bytes),
            entries: Vec::new(),
            record_events_max,
        }
    }

    /// The detokenizer of a request.
    pub(crate) fn of(&self, id: RequestId) -> u16 {
        id.detokenizer(self.streams.len() as u16)
    }

    fn stream(&mut self, id: RequestId) -> &mut Stream {
        let index = usize::from(self.of(id));
        &mut self.streams[index]
    }

    /// A token with its logprobs, and whether the request ends with it.
    pub(crate) fn token(&mut self, event: &Event, logprobs: &[Logprob]) {
        let last = if event.last { EVENT_LAST } else { 0 };
        let eos = if event.eos { EVENT_EOS } else { 0 };
        let stream = self.stream(event.id);
        stream.logprobs.extend(logprobs.iter().map(entry));
        stream.events.push(TokenEvent {
            id: event.id,
            token: event.token,
            sequence: event.sequence,
            flags: EVENT_TOKEN | last | eos,
            logprob_index: 0,
            logprob_count: logprobs.len() as u16,
        });
    }

    /// Sends the scores of a request's prompt tokens from `first_index` on, ahead of the step's events. `begin` is the
    /// prompt's first token, if it is one of them: it comes before those that have scores. Records that the outbox does
    /// not take are lost: the stuck detokenizer's requests end.
    pub(crate) fn prompt(
        &mut self,
        ports: &mut impl Ports,
        id: RequestId,
        first_index: u32,
        begin: Option<u32>,
        scores: PromptScores<'_>,
    ) {
        let to = Peer::new(Role::Detokenizer, self.of(id));
        let mut header =
            PromptHeader { id, first_index, token_count: 1, entry_count: 1, flags: PROMPT_FIRST };
        let mut taken = true;
        if let Some(token) = begin {
            encode_prompt(&mut self.encoded, &header, &[0], &[LogprobEntry { token, logprob: 0.0 }]);
            taken &= ports.send(to, detokenizer_inbox::kind::PROMPT, &self.encoded).is_ok();
            header.first_index += 1;
        }
        let each = scores.logprobs.len() / scores.ranks.len().max(1);
        let ranks = scores.ranks.chunks(PROMPT_SCORES_PER_RECORD_MAX);
        let logprobs = scores.logprobs.chunks((PROMPT_SCORES_PER_RECORD_MAX * each).max(1));
        for (ranks, logprobs) in ranks.zip(logprobs) {
            header = PromptHeader {
                token_count: ranks.len() as u32,
                entry_count: each as u32,
                flags: 0,
                ..header
            };
            self.entries.clear();
            self.entries.extend(logprobs.iter().map(entry));
            encode_prompt(&mut self.encoded, &header, ranks, &self.entries);
            taken &= ports.send(to, detokenizer_inbox::kind::PROMPT, &self.encoded).is_ok();
            header.first_index += header.token_count;
        }
        if !taken {
            tracing::error!(%id, "the detokenizer does not take the scores of a prompt");
        }
    }

    /// The end of a request that did not end with a token.
    pub(crate) fn last(&mut self, id: RequestId, generated_tokens: u32) {
        let event = TokenEvent {
            id,
            token: 0,
            sequence: generated_tokens,
            flags: EVENT_LAST,
            logprob_index: 0,
            logprob_count: 0,
        };
        self.stream(id).events.push(event);
    }

    /// Sends what waits, one record per detokenizer as a rule. Calls `overflowed` for each detokenizer that is found
    /// stuck and was not before.
    pub(crate) fn flush(
        &mut self,
        ports: &mut impl Ports,
        step: u64,
        now_ns: u64,
        mut overflowed: impl FnMut(u16),
    ) {
        for (index, stream) in self.streams.iter_mut().enumerate() {
            let to = Peer::new(Role::Detokenizer, index as u16);
            let (mut sent, mut logprobs_sent) = (0, 0);
            let mut answer = Ok(());
            while sent < stream.events.len() && answer.is_ok() {
                let end = stream.events.len().min(sent + self.record_events_max);
                let events = &stream.events[sent..end];
                let logprob_count: usize = events.iter().map(|event| usize::from(event.logprob_count)).sum();
                let logprobs = &stream.logprobs[logprobs_sent..][..logprob_count];
                encode_step(&mut self.encoded, step, now_ns, events, logprobs);
                answer = ports.send(to, detokenizer_inbox::kind::STEP, &self.encoded);
                if answer.is_ok() {
                    (sent, logprobs_sent) = (end, logprobs_sent + logprob_count);
                }
            }
            stream.events.drain(..sent);
            stream.logprobs.drain(..logprobs_sent);
            let was_stuck = std::mem::replace(&mut stream.stuck, answer == Err(Overflow));
            if stream.stuck && !was_stuck {
                overflowed(index as u16);
            }
        }
    }

    /// Whether the request's detokenizer takes no more.
    pub(crate) fn is_stuck(&self, id: RequestId) -> bool {
        self.streams[usize::from(self.of(id))].stuck
    }

    /// Whether events wait for a stuck detokenizer.
    pub(crate) fn owes(&self) -> bool {
        self.streams.iter().any(|stream| !stream.events.is_empty())
    }

    /// The detokenizer is another process now: nothing is pending for it.
    pub(crate) fn forget(&mut self, detokenizer: u16) {
        if let Some(stream) = self.streams.get_mut(usize::from(detokenizer)) {
            stream.events.clear();
            stream.logprobs.clear();
            stream.stuck = false;
        }
    }
}

fn entry(&Logprob { token, logprob }: &Logprob) -> LogprobEntry {
    LogprobEntry { token, logprob }
}
