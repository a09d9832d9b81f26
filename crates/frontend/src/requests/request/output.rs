//! What waits for the client: text, scores and calls on their way into the bytes of the answer.

use super::{Form, Next, Request};
use crate::answers::openai::{Additions, Ending, Event, Shape, Usage, echoed, logprobs};
use crate::answers::prompt_part::PromptPart;
use crate::answers::whole::Part;
use crate::limits::{SCORES_PER_CHUNK_BYTES_MAX, UNREAD_BYTES_MIN};
use bytes::{Bytes, BytesMut};
use pinion_api::{AnswerWriter, Said};
use pinion_protocol::frontend_inbox::Delta;
use pinion_protocol::{Fault, FaultCode};
use pinion_text::reasoning::Piece;
use std::task::Context;

impl Request {
    /// Counts what a delta brought until the client has taken everything: text and scores, at least
    /// [`UNREAD_BYTES_MIN`]. Error: it leaves too much.
    ///
    /// What the answer repeats, of its request or of itself, does not count: it is written at once, before the client
    /// can read any of it. So more than the bound may wait, and at most: the frames of the counted deltas; a few times
    /// the body, which is bounded; a few times the text, which is bounded by the context.
    pub(super) fn count_unread(&mut self, delta: &Delta<'_>) -> Result<(), Fault> {
        if !self.form.streams() || self.out.is_empty() {
            self.unread_bytes = 0;
            return Ok(());
        }
        let bytes = delta.text.len() + delta.score_bytes.len();
        self.unread_bytes += bytes.max(UNREAD_BYTES_MIN);
        if self.unread_bytes <= self.facts.buffer_bytes_max {
            return Ok(());
        }
        let message = format!("the client left more than {} bytes unread", self.facts.buffer_bytes_max);
        Err(Fault::new(FaultCode::SlowReader, message))
    }

    /// Streams what there is of the prompt: all of it if the `last` piece is due. A whole answer has it in the end.
    pub(super) fn say_prompt(&mut self, last: bool) -> Result<(), Fault> {
        let Some(prompt) = self.prompt.as_mut().filter(|prompt| !prompt.is_said()) else { return Ok(()) };
        let Form::Events(writer) = &self.form else { return Ok(()) };
        if let Some(piece) = prompt.next_piece(last)? {
            let event = Event::Text(&piece.text);
            if piece.scores.is_empty() {
                writer.write(&event, &mut self.out);
            } else {
                let prompt = (piece.scores.as_slice(), prompt.alternatives());
                let logprobs = echoed(prompt, &[], (&piece.text, piece.offset), self.style);
                let with = Additions { logprobs: Some(&logprobs), ..Additions::default() };
                writer.write_with(&event, &with, &mut self.out);
            }
        }
        if last {
            self.scored_chars = prompt.close();
        }
        Ok(())
    }

    /// Takes the score of a token of the prompt. A stream says it soon; for a whole answer it waits.
    pub(super) fn take_prompt_scores(&mut self, delta: &Delta<'_>) -> Result<(), Fault> {
        let Some(prompt) = &mut self.prompt else { return Ok(()) };
        let before = prompt.bytes();
        prompt.take(delta);
        if self.form.streams() {
            return Ok(());
        }
        let field = if prompt.has_text() { "logprobs" } else { "prompt_logprobs" };
        self.waiting.add(prompt.bytes() - before, field)
    }

    /// What a whole answer is made of, and how many bytes that is, about.
    pub fn take_part(&mut self, ending: Ending, usage: Usage) -> (Part, usize) {
        let part = Part {
            text: self.take_output(),
            prompt: self.prompt.take(),
            calls: self.calls.take(),
            reasoning: std::mem::take(&mut self.reasoning),
            scores: std::mem::take(&mut self.scores),
            ids: self.shown_ids(),
            ending,
            usage,
        };
        let ids = part.ids.as_ref().map_or(0, |(prompt, answer)| prompt.len() + answer.len());
        let echoed = part.prompt.as_ref().map_or(0, PromptPart::text_bytes);
        let bytes = part.text.len() + part.reasoning.len() + echoed + ids * size_of::<u32>();
        (part, bytes + self.waiting.bytes())
    }

    /// Says a piece of text, or what is certain of it where it is taken apart.
    pub(super) fn say_text(&mut self, text: &str, is_mark: bool) {
        let Some(mut thoughts) = self.thoughts.take() else { return self.say_answer(text) };
        thoughts.push(text, is_mark, &mut |piece| self.say_piece(piece));
        self.thoughts = Some(thoughts);
    }

    /// Says what is left of the text where reasoning is looked for.
    pub(super) fn end_reasoning(&mut self) {
        let Some(mut thoughts) = self.thoughts.take() else { return };
        thoughts.finish(&mut |piece| self.say_piece(piece));
        self.thoughts = Some(thoughts);
    }

    /// Tokens of the reasoning, if it is looked for.
    pub(super) fn reasoning_tokens(&self) -> Option<u32> {
        self.thoughts.as_ref().map(|thoughts| thoughts.tokens())
    }

    fn say_piece(&mut self, piece: Piece<'_>) {
        match (piece, &self.form) {
            (Piece::Text(text), _) => self.say_answer(text),
            (Piece::Thought(text), Form::Events(_) | Form::Translated(_)) => {
                self.say(&Event::Reasoning(text))
            }
            (Piece::Thought(text), Form::PlainStream | Form::Whole | Form::Vector { .. }) => {
                self.reasoning.push_str(text)
            }
        }
    }

    /// Says a piece of the answer, or in a stream with tools what is certain of it.
    fn say_answer(&mut self, text: &str) {
        match self.calls.take_if(|_| self.form.takes_events()) {
            None => self.say(&Event::Text(text)),
            Some(mut calls) => {
                calls.push(text, &mut |event| self.say(event));
                self.calls = Some(calls);
            }
        }
    }

    /// Ends the search for calls; says what is left of the text, and gives the ending as the client sees it.
    pub(super) fn end_calls(&mut self, ending: Ending) -> Ending {
        let Some(mut calls) = self.calls.take_if(|_| self.form.takes_events()) else {
            return ending;
        };
        calls.finish(&mut |event| self.say(event));
        calls.ending(ending)
    }

    pub(super) fn take_scores_of(&mut self, delta: &Delta<'_>) -> Result<(), Fault> {
        let scores =
            delta.scores().map_err(|malformed| Fault::new(FaultCode::Internal, malformed.to_string()))?;
        self.scores.extend(scores);
        self.waiting.add_generated(delta.score_bytes.len())
    }

    /// Lets scores leave ahead of their text, where that is held back for long: all at once they would hold up the
    /// other streams.
    pub(super) fn say_many_scores(&mut self) {
        let is_many = self.waiting.bytes() > SCORES_PER_CHUNK_BYTES_MAX;
        if is_many && !self.scores.is_empty() && matches!(self.form, Form::Events(_)) {
            self.say(&Event::Text(""));
        }
    }

    /// A completion's finish chunk carries the last text; a chat's carries none.
    pub(super) fn holds_last_text(&self) -> bool {
        matches!(&self.form, Form::Events(writer) if writer.head().shape == Shape::Completions)
    }

    pub(super) fn say(&mut self, event: &Event<'_>) {
        match (&mut self.form, event) {
            (Form::Events(writer), _) => {
                if writer.head().shape == Shape::Chat && !self.role_said {
                    self.role_said = true;
                    self.write(&Event::Role);
                }
                self.write(event);
            }
            (Form::Translated(writer), event) => {
                write_translated(writer, event, self.stopped_by, &mut self.out)
            }
            (Form::PlainStream | Form::Whole, Event::Text(text)) => {
                self.out.extend_from_slice(text.as_bytes())
            }
            (Form::Vector { .. }, _) => {}
            (
                Form::PlainStream | Form::Whole,
                Event::Role
                | Event::Reasoning(_)
                | Event::Call { .. }
                | Event::Arguments { .. }
                | Event::Finish { .. }
                | Event::Usage(_)
                | Event::Timings(_),
            ) => {}
        }
    }

    /// Writes one event of a stream, and what is shown beside it.
    fn write(&mut self, event: &Event<'_>) {
        let is_role = matches!(event, Event::Role);
        let usage = self.extras.as_ref().and_then(|extras| extras.counts()).map(|counts| {
            let (prompt_tokens, cached_tokens) = counts;
            self.usage(prompt_tokens, cached_tokens)
        });
        let Form::Events(writer) = &self.form else { return };
        let has_scores = !is_role && !self.scores.is_empty();
        if !has_scores && self.extras.is_none() {
            return writer.write(event, &mut self.out);
        }
        let shape = writer.head().shape;
        let logprobs = has_scores.then(|| logprobs(shape, &self.scores, &mut self.scored_chars, self.style));
        let (prompt_token_ids, token_ids) = match &mut self.extras {
            // The role is no token.
            Some(extras) if is_role => (extras.take_prompt_ids(), extras.next_ids(&[])),
            Some(extras) => (extras.take_prompt_ids(), extras.next_ids(&self.ids)),
            None => (None, None),
        };
        let with = Additions {
            logprobs: logprobs.as_ref(),
            token_ids,
            prompt_token_ids: prompt_token_ids.as_deref(),
            usage,
        };
        writer.write_with(event, &with, &mut self.out);
        if has_scores {
            self.scores.clear();
            self.waiting.clear();
        }
    }

    /// The ids of a whole answer's prompt and of the answer, if they were asked for.
    fn shown_ids(&mut self) -> Option<(Vec<u32>, Vec<u32>)> {
        let prompt_ids = self.extras.as_mut()?.take_prompt_ids()?;
        Some((prompt_ids, self.ids.clone()))
    }

    pub(super) fn wake(&mut self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    /// Wakes the task of `context` at the next change. Allocates nothing if it is the same task as before.
    pub fn wake_later(&mut self, context: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(context.waker()),
            None => self.waker = Some(context.waker().clone()),
        }
    }

    /// Whether bytes wait for the client.
    pub fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    /// Everything that waits for the client, as one piece.
    pub fn take_output(&mut self) -> Bytes {
        self.unread_bytes = 0;
        self.out.split().freeze()
    }

    /// Takes the vector of the prompt. A gap: none was asked for, or it has another width than the model's vectors.
    pub fn pool(&mut self, values: Vec<f32>) -> Next {
        if self.form.keep_vector(values) { Next::Continue } else { Next::Gap }
    }

    /// The vector, for the answer.
    pub fn take_vector(&mut self) -> Option<Vec<f32>> {
        self.form.take_vector()
    }

    /// Whether each chunk has the counts so far.
    pub fn shows_counts(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.shows_counts())
    }

    /// Says how many tokens the prompt has, and how many of them the engine found in its cache.
    pub fn count_prompt(&mut self, prompt_tokens: u32, cached_tokens: u32) {
        if let Some(extras) = &mut self.extras {
            extras.count_prompt(prompt_tokens, cached_tokens);
        }
    }

    /// Prompt tokens from the prefix cache, as the answer counts them: those of the first engine that drew a token.
    pub fn cached_tokens(&self) -> u32 {
        let of_last = || self.finished.map_or(0, |finished| finished.cached_tokens);
        self.cached_tokens.unwrap_or_else(of_last)
    }

    /// Of the cached tokens those count that the first engine found which drew a token for the answer.
    pub(super) fn usage(&self, prompt_tokens: u32, cached_tokens: u32) -> Usage {
        let cached_tokens = self.cached_tokens.unwrap_or(cached_tokens);
        Usage {
            prompt_tokens,
            cached_tokens,
            completion_tokens: self.token_count(),
            reasoning_tokens: self.reasoning_tokens(),
        }
    }

    /// Tokens of the answer so far.
    pub fn token_count(&self) -> u32 {
        u32::try_from(self.ids.len()).unwrap_or(u32::MAX)
    }
}

/// Hands one event on to a writer.
fn write_translated(
    writer: &mut AnswerWriter,
    event: &Event<'_>,
    stopped_by: Option<usize>,
    out: &mut BytesMut,
) {
    match *event {
        Event::Reasoning(text) => writer.say(Said::Reasoning(text), out),
        Event::Text(text) => writer.say(Said::Text(text), out),
        Event::Call { id, name, .. } => writer.say(Said::Call { id, name }, out),
        Event::Arguments { text, .. } => writer.say(Said::Arguments(text), out),
        Event::Finish { ending, .. } => writer.finish(ending, stopped_by, out),
        // It has them from elsewhere.
        Event::Role | Event::Usage(_) | Event::Timings(_) => {}
    }
}
