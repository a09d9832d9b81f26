//! The truth about one request: what it asked for, the ids received so far, and the bytes that wait for the
//! client.
//!
//! Pure: records go in, bytes and an [`Outcome`] come out; slots, rings and sockets are elsewhere
//! ([`super::ledger`], the HTTP side). Two things end a request on our side, in either order: the last text from the
//! detokenizer and [`Finished`] from the engine. The client is told exactly one outcome.

mod form;
mod output;
mod plan;
mod vector;
mod waiting;

use crate::answers::calls::Calls;
use crate::answers::errors::HttpError;
use crate::answers::extras::Extras;
use crate::answers::openai::{Ending, Event, TokenStyle, Usage};
use crate::answers::prompt_part::{self, PromptPart};
use crate::answers::sse;
use crate::answers::thoughts::Thoughts;
use crate::limits::{IDS_CAPACITY_MAX, STREAM_BUFFER_BYTES};
use crate::observe::timeline::Timeline;
use crate::route::Route;
use bytes::BytesMut;
pub use form::Form;
use pinion_protocol::frontend_inbox::{DELTA_LAST, DELTA_MARK, DELTA_PROMPT, Delta, FinishReason, Finished};
use pinion_protocol::scores::TokenScore;
use pinion_protocol::{Fault, FaultCode, RequestId};
pub use plan::AnswerPlan;
use std::task::Waker;
pub use waiting::WaitingScores;

/// What the client is told in the end.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The text is complete.
    Text(Ending, Usage),
    /// What the model made of the prompt is here; the prompt has this number of tokens.
    Vector(u32),
    /// Ids, for `/tokenize`.
    Ids(Vec<u32>),
    /// Text, for `/detokenize`.
    Decoded(String),
    /// An error.
    Failed(Fault),
    /// Nothing: the client went away first.
    Disconnected,
    /// Nothing: another choice of the same answer failed, and the client was told so.
    Withdrawn,
}

/// What a record makes necessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing.
    Continue,
    /// The client has its outcome, the engine should stop working on it.
    Cancel,
    /// The record does not follow the one before it: something was lost on the way.
    Gap,
}

/// Words of a request's slot that are known when its first token comes.
#[derive(Clone, Copy, Debug)]
pub struct Beginning {
    /// [`pinion_protocol::names::Counter::Reasoning`].
    pub reasoning: u64,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Those of them that came from the prefix cache.
    pub cached_tokens: u32,
}

/// Fixed facts of a request.
pub struct Facts {
    /// Its identity.
    pub id: RequestId,
    /// The route that took it.
    pub route: Route,
    /// The engine and a detokenizer have a part in it.
    pub reaches_engine: bool,
    /// `X-Request-Id` of the answer.
    pub label: String,
    /// The answer says where its time went.
    pub timings: bool,
    /// The tokenizer that has it.
    pub tokenizer: u16,
    /// More ids than this cannot come.
    pub ids_max: usize,
    /// More unread bytes than this end the stream; see `count_unread`.
    pub buffer_bytes_max: usize,
}

/// One accepted request.
pub struct Request {
    /// Fixed facts.
    pub facts: Facts,
    /// Where its time went up to the latest record. If the answer does not say so, only its first token's is kept.
    pub timeline: Timeline,
    form: Form,
    out: BytesMut,
    /// Bytes of text and scores that came for a stream since its client last took all of `out`.
    unread_bytes: usize,
    ids: Vec<u32>,
    /// What the answer shows of its prompt.
    prompt: Option<PromptPart>,
    /// Last piece of a completion's text, which goes out with the finish reason.
    held: String,
    /// Scores of the tokens that no chunk has shown yet; of all tokens if the answer leaves whole.
    scores: Vec<TokenScore>,
    /// Bytes that those took on the wire.
    waiting: WaitingScores,
    /// Characters of the tokens that chunks have shown the scores of.
    scored_chars: usize,
    waker: Option<Waker>,
    outcome: Option<Outcome>,
    finished: Option<Finished>,
    /// Tokens of the prompt that came from the cache of an engine that has died since.
    cached_tokens: Option<u32>,
    last_text: bool,
    /// The place of the stop string that ended the text.
    stopped_by: Option<usize>,
    /// Nothing more comes for this request, whatever is missing.
    over: bool,
    withdrawn: bool,
    role_said: bool,
    /// Why the answer ended, once the client was told.
    told: Option<Ending>,
    /// Finds tool calls in the text, if there may be any.
    calls: Option<Box<Calls>>,
    /// Tells reasoning from the answer, if there may be any.
    thoughts: Option<Box<Thoughts>>,
    /// The reasoning of a whole answer.
    reasoning: String,
    /// What else the answer shows.
    extras: Option<Box<Extras>>,
    /// How it writes tokens beside their scores.
    style: TokenStyle,
}

impl Request {
    /// A request that is about to be submitted. `tokens_hint` sizes the list of ids.
    pub fn new(facts: Facts, plan: AnswerPlan, tokens_hint: usize) -> Request {
        let AnswerPlan { form, prompt, extras, style, calls, thoughts, waiting } = plan;
        Request {
            ids: Vec::with_capacity(tokens_hint.min(IDS_CAPACITY_MAX).min(facts.ids_max)),
            facts,
            timeline: Timeline::default(),
            form,
            out: BytesMut::with_capacity(STREAM_BUFFER_BYTES),
            unread_bytes: 0,
            prompt,
            held: String::new(),
            scores: Vec::new(),
            waiting,
            scored_chars: 0,
            waker: None,
            outcome: None,
            finished: None,
            cached_tokens: None,
            last_text: false,
            stopped_by: None,
            over: false,
            withdrawn: false,
            role_said: false,
            told: None,
            calls: calls.map(Box::new),
            thoughts: thoughts.map(Box::new),
            reasoning: String::new(),
            extras: extras.map(Box::new),
            style,
        }
    }

    /// Says what the request's slot says of how the answer begins. Only the first time counts.
    pub fn begin_text(&mut self, beginning: Beginning) {
        if let Some(thoughts) = &mut self.thoughts {
            thoughts.begin(beginning.reasoning);
        }
        if let Form::Translated(writer) = &mut self.form {
            writer.count_prompt(beginning.prompt_tokens, beginning.cached_tokens);
        }
    }

    /// Generated ids received so far.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// What the client is told, once that is known.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// The engine's account, once it came.
    pub fn finished(&self) -> Option<&Finished> {
        self.finished.as_ref()
    }

    /// How the answer leaves.
    pub fn form(&self) -> &Form {
        &self.form
    }

    /// Whether no role will say anything more about this request.
    pub fn settled(&self) -> bool {
        self.over || (self.finished.is_some() && self.last_text)
    }

    /// Whether only the last text is missing.
    pub fn lacks_only_text(&self) -> bool {
        !self.over && self.finished.is_some() && !self.last_text
    }

    /// Whether the detokenizer has said its last.
    pub fn has_last_text(&self) -> bool {
        self.last_text
    }

    /// Takes a piece of text with its ids. Nothing comes after the last text, except again when only the engine's
    /// account was lost. `prompt_tokens` is 0 where it is not known.
    pub fn delta(&mut self, delta: &Delta<'_>, prompt_tokens: u32) -> Next {
        if self.last_text {
            return Next::Continue;
        }
        if !self.follows(delta) || self.lacks_prompt_scores_before(delta, prompt_tokens) {
            return Next::Gap;
        }
        self.last_text |= delta.header.flags & DELTA_LAST != 0;
        self.stopped_by = self.stopped_by.or(delta.header.stop_place());
        if self.outcome.is_some() {
            return Next::Continue;
        }
        if let Err(fault) = self.take_text(delta) {
            self.fail(fault);
            return Next::Cancel;
        }
        let next = self.complete_if_possible();
        self.wake();
        next
    }

    /// Whether the delta has the tokens that come next, and no more than there can be, or the score of the next token
    /// of the prompt. Once the client has its outcome nothing is kept, and any do.
    pub fn follows(&self, delta: &Delta<'_>) -> bool {
        let (header, have, count) = (&delta.header, self.ids.len(), delta.header.token_count as usize);
        let is_next = header.first_sequence as usize == have && have + count <= self.facts.ids_max;
        let scores_next = || self.prompt.as_ref().is_some_and(|prompt| prompt.follows(header.first_sequence));
        let follows = if header.flags & DELTA_PROMPT != 0 { scores_next() } else { count == 0 || is_next };
        self.outcome.is_some() || follows
    }

    /// Whether the delta has tokens of the answer while scores of the prompt are missing: those come first. A request
    /// that ends without a token may have failed before they were all computed.
    fn lacks_prompt_scores_before(&self, delta: &Delta<'_>, prompt_tokens: u32) -> bool {
        let answers = delta.header.flags & DELTA_PROMPT == 0 && delta.header.token_count > 0;
        let lacks = |prompt: &PromptPart| !prompt.is_complete(prompt_tokens);
        answers && prompt_tokens > 0 && self.outcome.is_none() && self.prompt.as_ref().is_some_and(lacks)
    }

    fn take_text(&mut self, delta: &Delta<'_>) -> Result<(), Fault> {
        let header = &delta.header;
        if header.flags & DELTA_PROMPT != 0 {
            self.take_prompt_scores(delta)?;
            self.say_prompt(false)?;
            return self.count_unread(delta);
        }
        if header.token_count > 0 {
            self.say_prompt(true)?;
        }
        self.ids.extend(delta.ids());
        let is_mark = header.flags & DELTA_MARK != 0;
        if let Some(thoughts) = &mut self.thoughts {
            thoughts.count(header.token_count, is_mark);
        }
        if !delta.score_bytes.is_empty() {
            self.take_scores_of(delta)?;
        }
        if self.last_text && self.holds_last_text() {
            self.held.push_str(delta.text);
        } else if !delta.text.is_empty() {
            self.say_text(delta.text, is_mark);
        }
        self.say_many_scores();
        self.count_unread(delta)
    }

    /// Takes the engine's account.
    pub fn finish(&mut self, finished: &Finished) -> Next {
        self.finished = Some(*finished);
        if self.outcome.is_some() {
            return Next::Continue;
        }
        let mut next = Next::Continue;
        match finished.reason {
            // A stop string ended the visible text before the engine ended: it is complete.
            _ if self.stopped_by.is_some() => next = self.complete_if_possible(),
            FinishReason::Stop | FinishReason::Length => next = self.complete_if_possible(),
            FinishReason::Failed(code) => self.fail(Fault::new(code, engine_message(code))),
            FinishReason::Cancelled => {
                self.fail(Fault::new(FaultCode::Unavailable, "the service cancelled the request"));
            }
        }
        self.wake();
        next
    }

    /// Whether the visible text is complete and only the engine's counts are missing.
    pub fn lacks_only_counts(&self) -> bool {
        self.told.is_some()
    }

    /// The client of a whole answer sees another ending than the engine and the detokenizer gave: its text has calls.
    pub fn retell(&mut self, ending: Ending) {
        if let Some(Outcome::Text(told, _)) = &mut self.outcome {
            *told = ending;
        }
    }

    /// A role that held the request is gone: what the engine said of its end does not count any more. `cached_tokens`
    /// is what it had found of the prompt in its cache.
    pub fn interrupt(&mut self, id: RequestId, cached_tokens: u32) {
        self.facts.id = id;
        self.finished = None;
        // The engine that made it is gone.
        drop(self.form.take_vector());
        if !self.ids.is_empty() {
            self.cached_tokens.get_or_insert(cached_tokens);
        }
    }

    /// The tokens to go on after: all that came, but for the last one if the text ends with it, so that the engine
    /// comes to the same end.
    pub fn resume_ids(&self) -> &[u32] {
        let count = self.ids.len() - usize::from(self.last_text && !self.ids.is_empty());
        &self.ids[..count]
    }

    /// A tokenizer or engine refused the request; nothing more comes.
    pub fn reject(&mut self, fault: Fault) {
        self.over = true;
        self.fail(fault);
    }

    /// A role that the request needs is gone; nothing more comes. The counts are used if the visible text was already
    /// complete.
    pub fn lose(&mut self, fault: Fault, prompt_tokens: u32, cached_tokens: u32) {
        self.over = true;
        match self.told.filter(|_| self.outcome.is_none()) {
            Some(ending) => {
                self.end(ending, self.usage(prompt_tokens, cached_tokens));
                self.wake();
            }
            None => self.fail(fault),
        }
    }

    /// Answers `/tokenize` or `/detokenize`.
    pub fn answer(&mut self, outcome: Outcome) {
        self.over = true;
        if self.outcome.is_none() {
            self.outcome = Some(outcome);
        }
        self.wake();
    }

    /// Tells the client an error, unless it has its outcome. What was written before it stays.
    pub fn fail(&mut self, fault: Fault) {
        if self.outcome.is_some() {
            return;
        }
        let error = || HttpError::from(fault.clone());
        match &mut self.form {
            Form::Events(_) => sse::write_error(&error().body(), &mut self.out),
            Form::Translated(writer) => writer.fail(&error().failure(), &mut self.out),
            Form::PlainStream | Form::Whole | Form::Vector { .. } => {}
        }
        self.outcome = Some(Outcome::Failed(fault));
        self.wake();
    }

    /// The answer ends without this part of it: see [`Outcome::Withdrawn`].
    pub fn withdraw(&mut self) {
        self.withdrawn = true;
    }

    /// The client is gone. Returns whether it left before its outcome.
    pub fn abandon(&mut self) -> bool {
        self.waker = None;
        self.out = BytesMut::new();
        let early = self.outcome.is_none();
        if early {
            self.outcome = Some(if self.withdrawn { Outcome::Withdrawn } else { Outcome::Disconnected });
        }
        early
    }

    /// Ends the request if both halves of its end are there. A gap: scores of its prompt are missing.
    fn complete_if_possible(&mut self) -> Next {
        if self.outcome.is_some() || !self.last_text {
            return Next::Continue;
        }
        let by_engine = self.finished.and_then(|finished| match finished.reason {
            FinishReason::Stop => Some(Ending::Stop),
            FinishReason::Length => Some(Ending::Length),
            FinishReason::Cancelled | FinishReason::Failed(_) => None,
        });
        let ending = if self.stopped_by.is_some() { Some(Ending::Stop) } else { by_engine };
        let Some(ending) = ending else { return Next::Continue };
        if !self.has_prompt_scores() {
            return self.miss_prompt_scores();
        }
        if let Err(fault) = self.say_prompt(true) {
            self.fail(fault);
            return Next::Cancel;
        }
        let told = self.told.unwrap_or_else(|| self.say_finish(ending));
        if let Some(finished) = self.finished {
            self.end(told, self.usage(finished.prompt_tokens, finished.cached_tokens));
        }
        Next::Continue
    }

    /// Says what is left and why the answer ended, which it gives as the client sees it.
    fn say_finish(&mut self, ending: Ending) -> Ending {
        self.end_reasoning();
        let ending = self.end_calls(ending);
        self.told = Some(ending);
        let held = std::mem::take(&mut self.held);
        self.say(&Event::Finish { text: &held, ending });
        ending
    }

    /// A request without a token begins anew, which gives all scores again. One with tokens would not get them.
    fn miss_prompt_scores(&mut self) -> Next {
        if self.ids.is_empty() {
            (self.last_text, self.finished) = (false, None);
            return Next::Gap;
        }
        self.fail(prompt_part::lost());
        Next::Cancel
    }

    /// Whether every score of the prompt came that was asked for. They come before the last text if they come at all.
    fn has_prompt_scores(&self) -> bool {
        let parts = self.prompt.as_ref().zip(self.finished);
        parts.is_none_or(|(prompt, finished)| prompt.is_complete(finished.prompt_tokens))
    }

    fn end(&mut self, ending: Ending, usage: Usage) {
        match &mut self.form {
            Form::Events(writer) if !writer.is_part() => {
                let timeline = self.facts.timings.then_some(&self.timeline);
                sse::write_end(writer, usage, timeline, &mut self.out);
            }
            Form::Translated(writer) => writer.end(usage, &mut self.out),
            Form::Vector { values, .. } => {
                return self.outcome = Some(vector::outcome(values.is_some(), usage));
            }
            Form::Events(_) | Form::PlainStream | Form::Whole => {}
        }
        self.outcome = Some(Outcome::Text(ending, usage));
    }
}

fn engine_message(code: FaultCode) -> &'static str {
    match code {
        FaultCode::NonFinite => "the model gave a non-finite number for this request",
        FaultCode::RoleRestarted => "the engine restarted while it held this request",
        FaultCode::ContextLengthExceeded => "the request does not fit the model's context",
        FaultCode::TooManyRequests | FaultCode::Unavailable => "the engine cannot take this request now",
        FaultCode::SlowReader => "the text was read too slowly",
        FaultCode::GrammarFailed => "the grammar became too complex to follow for this text; simplify it",
        FaultCode::InvalidValue
        | FaultCode::ModelNotFound
        | FaultCode::BodyTooLarge
        | FaultCode::Internal => "the engine could not serve this request",
    }
}
