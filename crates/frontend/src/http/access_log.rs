//! The access log (`--access-log`): one line for each HTTP request at its end, with what was answered and in what time.
//! It never has a text, a key or the query of a path.

use crate::http::body::AnswerBody;
use crate::requests::request::{Outcome, Request};
use hyper::Response;
use pinion_os::clock;
use std::cell::RefCell;
use std::rc::Rc;

/// Longest path in a line, in characters.
const PATH_CHARS_MAX: usize = 256;
/// Longest method in a line, in characters; a client may invent one.
const METHOD_CHARS_MAX: usize = 32;

/// Answers for each prompt of a request that has several; goes with the response.
#[derive(Clone, Copy)]
pub(crate) struct ChoicesPerPrompt(pub(crate) usize);

/// Tokens of the texts that became vectors; goes with the response.
#[derive(Clone, Copy)]
pub(crate) struct PooledTokens(pub(crate) u64);

/// One HTTP request. It is logged when this is dropped: its answer is complete, or its client is gone.
pub(crate) struct Access {
    method: String,
    path: String,
    begin_ns: u64,
    reply: Option<Reply>,
}

struct Reply {
    status: u16,
    label: String,
    body_bytes: u64,
    /// Those that generate the answer, and how many of them belong to one prompt.
    requests: Vec<Rc<RefCell<Request>>>,
    choices_per_prompt: usize,
    /// Tokens of texts that became vectors. Their requests have ended before.
    pooled_tokens: Option<u64>,
}

impl Access {
    /// A request whose head was read now.
    pub(crate) fn begin<B>(request: &hyper::Request<B>) -> Access {
        Access {
            method: request.method().as_str().chars().take(METHOD_CHARS_MAX).collect(),
            path: request.uri().path().chars().take(PATH_CHARS_MAX).collect(),
            begin_ns: clock::now_ns(),
            reply: None,
        }
    }

    /// Its answer begins.
    pub(crate) fn answered(&mut self, response: &Response<AnswerBody>) {
        let label = response.headers().get("x-request-id").and_then(|label| label.to_str().ok());
        let choices = response.extensions().get::<ChoicesPerPrompt>();
        let mut requests = response.body().requests();
        requests.retain(|request| request.borrow().facts.route.generates());
        self.reply = Some(Reply {
            status: response.status().as_u16(),
            label: label.unwrap_or_default().to_owned(),
            body_bytes: 0,
            requests,
            choices_per_prompt: choices.map_or(1, |ChoicesPerPrompt(count)| *count),
            pooled_tokens: response.extensions().get::<PooledTokens>().map(|PooledTokens(count)| *count),
        });
    }

    /// This number of bytes of it leaves.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.reply.iter_mut().for_each(|reply| reply.body_bytes += bytes as u64);
    }
}

/// What is said of the requests that an answer is made of.
struct Generation {
    prompt_tokens: u64,
    completion_tokens: u64,
    /// To the first token of any of them.
    first_ns: Option<u64>,
    finish: String,
}

impl Reply {
    fn generation(&self) -> Option<Generation> {
        if let Some(prompt_tokens) = self.pooled_tokens {
            let finish = "answered".to_owned();
            return Some(Generation { prompt_tokens, completion_tokens: 0, first_ns: None, finish });
        }
        let mut finish: Vec<&'static str> = Vec::new();
        let mut found =
            Generation { prompt_tokens: 0, completion_tokens: 0, first_ns: None, finish: String::new() };
        for choices in self.requests.chunks(self.choices_per_prompt.max(1)) {
            let mut prompt_tokens = 0;
            for request in choices {
                let request = request.borrow();
                prompt_tokens = prompt_tokens.max(prompt_tokens_of(&request));
                found.completion_tokens += u64::from(request.token_count());
                found.first_ns = [found.first_ns, request.timeline.first_ns].into_iter().flatten().min();
                let name = match request.outcome() {
                    Some(Outcome::Text(ending, _)) => ending.name(),
                    Some(Outcome::Failed(_)) => "error",
                    Some(Outcome::Withdrawn) => "withdrawn",
                    Some(
                        Outcome::Vector(_) | Outcome::Ids(_) | Outcome::Decoded(_) | Outcome::Disconnected,
                    )
                    | None => "disconnected",
                };
                if !finish.contains(&name) {
                    finish.push(name);
                }
            }
            found.prompt_tokens += u64::from(prompt_tokens);
        }
        found.finish = finish.join(",");
        (!self.requests.is_empty()).then_some(found)
    }
}

fn prompt_tokens_of(request: &Request) -> u32 {
    match (request.outcome(), request.finished()) {
        (Some(Outcome::Text(_, usage)), _) => usage.prompt_tokens,
        (_, Some(finished)) => finished.prompt_tokens,
        (_, None) => 0,
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        let ms = |ns: u64| ns as f64 / 1e6;
        let generation = self.reply.as_ref().and_then(Reply::generation);
        let generation = generation.as_ref();
        let gone = self.reply.is_none().then_some("disconnected");
        tracing::info!(
            method = self.method,
            path = self.path,
            status = self.reply.as_ref().map(|reply| reply.status),
            bytes = self.reply.as_ref().map_or(0, |reply| reply.body_bytes),
            prompt_tokens = generation.map(|generation| generation.prompt_tokens),
            completion_tokens = generation.map(|generation| generation.completion_tokens),
            ttft_ms = generation.and_then(|generation| generation.first_ns).map(ms),
            total_ms = ms(clock::now_ns().saturating_sub(self.begin_ns)),
            finish = generation.map(|generation| generation.finish.as_str()).or(gone),
            request_id = self.reply.as_ref().map(|reply| reply.label.as_str()),
            "access"
        );
    }
}
