//! One record's answer: render, encode, check.
//!
//! The checks are the same for text, messages and id lists. Work is bounded by the context: a text of more
//! bytes than the context's tokens can spell is refused before it is encoded.

use crate::words;
use pinion_grammar::{Checker, MarkIds, Words};
use pinion_protocol::engine_inbox::Admit;
use pinion_protocol::frontend_inbox::{Decoded, Encoded, Reject};
use pinion_protocol::reasoning::ReasoningFound;
use pinion_protocol::tokenizer_inbox::{Decode, Encode, Prompt, Render, Submit, TokenizerRecord, Truncation};
use pinion_protocol::{Fault, FaultCode, Reasoning, RequestId, StopIds};
use pinion_text::{ChatRenderer, EncodeError, TextCodec};
use std::cell::RefCell;

/// What a request may not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest sequence served, prompt and output together, in tokens.
    pub max_model_len: u32,
    /// Token ids are below this: the model's rows.
    pub vocab_size: u32,
    /// Tokens of an answer for which the request names no number, if its context has room for them.
    pub max_new_tokens: Option<u32>,
    /// Largest payload that fits a ring to a frontend, in bytes.
    pub answer_bytes_max: usize,
}

/// What is sent for a record.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// To the engine.
    Admit(Admit),
    /// To the frontend.
    Encoded(Encoded),
    /// To the frontend.
    Decoded(Decoded),
    /// To the frontend.
    Reject(Reject),
}

/// The role without its links.
pub struct Tokenizer {
    codec: TextCodec,
    chat: ChatRenderer,
    limits: Limits,
    /// The marks of reasoning are in the vocabulary.
    marks_are_tokens: bool,
    grammars: RefCell<Checker>,
}

/// The request a record is about.
pub fn request_id(record: &TokenizerRecord) -> RequestId {
    match record {
        TokenizerRecord::Submit(submit) => submit.id,
        TokenizerRecord::Encode(encode) => encode.id,
        TokenizerRecord::Decode(decode) => decode.id,
        TokenizerRecord::Render(render) => render.id,
    }
}

/// The answer to a request whose client went away before it was admitted.
pub fn cancelled(id: RequestId) -> Reject {
    Reject { id, fault: Fault::new(FaultCode::Unavailable, "cancelled") }
}

impl Tokenizer {
    /// A tokenizer with the vocabulary of `codec` and the chat form of `chat`.
    pub fn new(codec: TextCodec, chat: ChatRenderer, limits: Limits) -> Tokenizer {
        let grammars = RefCell::new(Checker::start(Err("is not supported here".to_owned())));
        let marks_are_tokens = MarkIds::of(&codec).is_some();
        Tokenizer { codec, chat, limits, marks_are_tokens, grammars }
    }

    /// The same, which judges grammars too. `stop_ids` end a text for the engine.
    pub fn with_grammars(self, stop_ids: StopIds) -> Tokenizer {
        let words = Words::of(&self.codec, self.limits.vocab_size, stop_ids);
        Tokenizer { grammars: RefCell::new(Checker::start(words)), ..self }
    }

    /// The one answer to a record. The time, in seconds since 1970, is for chat templates that write the date; a
    /// submission brings its own, so that a chat which goes on after a death has the prompt that it began with.
    pub fn answer(&self, record: TokenizerRecord, unix_seconds: i64) -> Answer {
        let id = request_id(&record);
        let answer = match record {
            TokenizerRecord::Submit(submit) => self.admit(submit).map(Answer::Admit),
            TokenizerRecord::Encode(encode) => self.encoded(encode, unix_seconds).map(Answer::Encoded),
            TokenizerRecord::Decode(decode) => self.decoded(decode).map(Answer::Decoded),
            TokenizerRecord::Render(render) => self.rendered(render, unix_seconds).map(Answer::Decoded),
        };
        answer.unwrap_or_else(|fault| Answer::Reject(Reject { id, fault }))
    }

    fn admit(&self, submit: Submit) -> Result<Admit, Fault> {
        let param = param_of(&submit.prompt);
        let mut sampling = submit.sampling;
        // No prompt can be longer than this and leave room for one token, if one is wanted.
        let least = u32::from(sampling.max_tokens != Some(0));
        let prompt_max = self.limits.max_model_len.saturating_sub(least);
        if let Some(grammar) = sampling.grammar.take() {
            sampling.grammar = Some(words::encoded(&self.codec, grammar)?);
        }
        let asked_unix_s = i64::try_from(submit.asked_unix_s).unwrap_or(i64::MAX);
        let (mut ids, begins, is_framed) = self.prompt_ids(submit.prompt, prompt_max, asked_unix_s)?;
        if sampling.reasoning != Reasoning::None {
            sampling.reasoning = begins;
        }
        self.truncate(&mut ids, submit.truncation, sampling.max_tokens, is_framed);
        let prompt_tokens = ids.len() as u32;
        if prompt_tokens > prompt_max {
            let least = sampling.max_tokens.unwrap_or(1);
            return Err(Fault::past_context(param, prompt_tokens, least, self.limits.max_model_len));
        }
        let room = self.limits.max_model_len - prompt_tokens;
        let max_tokens =
            sampling.max_tokens.unwrap_or_else(|| self.limits.max_new_tokens.unwrap_or(room).min(room));
        if max_tokens > room {
            return Err(Fault::past_context(param, prompt_tokens, max_tokens, self.limits.max_model_len));
        }
        if sampling.min_tokens > max_tokens {
            let message = format!("must not be above the {max_tokens} tokens that may be generated");
            return Err(Fault::field("min_tokens", message));
        }
        // None is left after the last one, and with nothing to generate there is nothing to go on from.
        if submit.resume.len() >= max_tokens.max(1) as usize {
            return Err(Fault::new(FaultCode::Internal, "the resumed request has no token left to generate"));
        }
        self.check_vocabulary(&submit.resume, "resume")?;
        // Last, because it costs most. A text that goes on was allowed to begin: no clock of a busy machine ends it
        // now.
        if let Some(grammar) = sampling.grammar.as_ref().filter(|_| submit.resume.is_empty()) {
            self.grammars.borrow_mut().check(grammar)?;
        }
        ids.extend_from_slice(&submit.resume);
        sampling.max_tokens = Some(max_tokens);
        Ok(Admit { id: submit.id, claim: submit.claim, sampling, ids, prompt_tokens })
    }

    fn encoded(&self, encode: Encode, unix_seconds: i64) -> Result<Encoded, Fault> {
        let param = param_of(&encode.prompt);
        let ids = match encode.prompt {
            // Counting is what `/tokenize` is for, so nothing is an answer here: no ids.
            Prompt::Bare(text) if text.is_empty() => Vec::new(),
            Prompt::Text(text) if text.is_empty() => {
                self.encode("prompt", "", self.limits.max_model_len, true)?
            }
            prompt => {
                let (mut ids, _, is_framed) =
                    self.prompt_ids(prompt, self.limits.max_model_len, unix_seconds)?;
                self.truncate(&mut ids, encode.truncation, None, is_framed);
                ids
            }
        };
        self.check_answer(param, size_of::<RequestId>() + size_of_val(ids.as_slice()))?;
        Ok(Encoded { id: encode.id, ids })
    }

    fn decoded(&self, decode: Decode) -> Result<Decoded, Fault> {
        let (count, context) = (decode.ids.len(), self.limits.max_model_len);
        if count > context as usize {
            let message =
                format!("has {count} ids, but the model's maximum context length is {context} tokens");
            return Err(context_fault("tokens", message));
        }
        self.check_vocabulary(&decode.ids, "tokens")?;
        let text = self.codec.decode_shown(&decode.ids);
        self.check_answer("tokens", size_of::<RequestId>() + text.len())?;
        Ok(Decoded { id: decode.id, text })
    }

    fn rendered(&self, Render { id, chat }: Render, unix_seconds: i64) -> Result<Decoded, Fault> {
        let text = self.chat.render(&chat, unix_seconds)?.text;
        self.check_answer("messages", size_of::<RequestId>() + text.len())?;
        Ok(Decoded { id, text })
    }

    /// Cuts a prompt to what is used of it beside `max_tokens` of an answer. Of a framed text the tokens behind it
    /// stay.
    fn truncate(&self, ids: &mut Vec<u32>, truncation: Truncation, max_tokens: Option<u32>, is_framed: bool) {
        let kept = truncation.kept(self.limits.max_model_len, max_tokens);
        if truncation.keeps_first() {
            self.codec.keep_first(ids, kept, is_framed);
        } else {
            ids.drain(..ids.len().saturating_sub(kept));
        }
    }

    /// The prompt's ids, at least one and all in the vocabulary; how an answer to it begins; and whether it is a text
    /// with the tokens that the tokenizer puts around every text. There may be more ids than `tokens_max`, but only if
    /// that could not be told from the length of the text.
    fn prompt_ids(
        &self,
        prompt: Prompt,
        tokens_max: u32,
        unix_seconds: i64,
    ) -> Result<(Vec<u32>, Reasoning, bool), Fault> {
        let param = param_of(&prompt);
        let (mut begins, mut is_framed) = (Reasoning::None, false);
        let ids = match prompt {
            Prompt::Ids(ids) => ids,
            Prompt::Text(text) => {
                is_framed = true;
                self.encode(param, &text, tokens_max, true)?
            }
            Prompt::Bare(text) => self.encode(param, &text, tokens_max, false)?,
            Prompt::Chat(json) => {
                let rendered = self.chat.render(&json, unix_seconds)?;
                (begins, is_framed) = (rendered.reasoning, rendered.is_framed);
                self.encode(param, &rendered.text, tokens_max, rendered.is_framed)?
            }
        };
        if ids.is_empty() {
            return Err(Fault::empty_prompt(param));
        }
        self.check_vocabulary(&ids, param)?;
        Ok((ids, begins, is_framed))
    }

    /// What a frontend is told of an answer that begins so.
    pub fn found(&self, reasoning: Reasoning) -> ReasoningFound {
        ReasoningFound { reasoning, marks_are_tokens: self.marks_are_tokens }
    }

    fn encode(&self, param: &str, text: &str, tokens_max: u32, is_framed: bool) -> Result<Vec<u32>, Fault> {
        let tokens_max = tokens_max as usize;
        let encoded = match is_framed {
            true => self.codec.encode_framed(text, tokens_max),
            false => self.codec.encode(text, tokens_max),
        };
        encoded.map_err(|error| match error {
            EncodeError::TooLong { bytes, .. } => {
                let least = bytes.div_ceil(self.codec.bytes_per_token_max());
                let message = format!(
                    "This model's maximum context length is {} tokens. However, your {param} has {bytes} bytes, which \
                     is at least {least} tokens. Please reduce the length of the {param}.",
                    self.limits.max_model_len
                );
                context_fault(param, message)
            }
            EncodeError::Failed(reason) => Fault::field(param, format!("{param} cannot be encoded: {reason}")),
        })
    }

    fn check_vocabulary(&self, ids: &[u32], param: &str) -> Result<(), Fault> {
        let vocab_size = self.limits.vocab_size;
        match ids.iter().position(|&id| id >= vocab_size) {
            None => Ok(()),
            Some(at) => {
                let message = format!("token id {} at position {at} is not below {vocab_size}", ids[at]);
                Err(Fault::field(param, message))
            }
        }
    }

    fn check_answer(&self, param: &str, bytes: usize) -> Result<(), Fault> {
        if bytes <= self.limits.answer_bytes_max {
            return Ok(());
        }
        let message =
            format!("the answer has {bytes} bytes, but at most {} fit", self.limits.answer_bytes_max);
        Err(Fault::field(param, message))
    }
}

fn context_fault(param: &str, message: String) -> Fault {
    Fault { code: FaultCode::ContextLengthExceeded, param: Some(param.to_owned()), message }
}

/// The request field that a prompt came from, in the API's spelling.
fn param_of(prompt: &Prompt) -> &'static str {
    match prompt {
        Prompt::Text(_) | Prompt::Bare(_) | Prompt::Ids(_) => "prompt",
        Prompt::Chat(_) => "messages",
    }
}
