//! OpenAI's response vocabulary: what a stream says, and the identity that all its chunks share.
//!
//! The serde shapes are in [`completions`] and [`chat`]; they are the reference. [`crate::answers::sse`] writes the
//! same bytes without them.

pub mod chat;
pub mod completions;
pub mod logprobs;

pub use crate::admission::TokenStyle;
use crate::answers::calls::Call;
use crate::observe::timeline::{Timeline, Timings};
pub use logprobs::{Logprobs, PromptLogprobs, echoed, logprobs, prompt_logprobs};
pub use pinion_api::{Ending, Usage};
use serde::Serialize;

#[derive(Serialize)]
struct PromptDetails {
    cached_tokens: u32,
}

#[derive(Serialize)]
struct CompletionDetails {
    reasoning_tokens: u32,
}

/// [`Usage`] as it is serialised.
#[derive(Serialize)]
pub struct UsageBody {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionDetails>,
}

impl From<Usage> for UsageBody {
    fn from(usage: Usage) -> Self {
        UsageBody {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
            prompt_tokens_details: PromptDetails { cached_tokens: usage.cached_tokens },
            completion_tokens_details: usage
                .reasoning_tokens
                .map(|reasoning_tokens| CompletionDetails { reasoning_tokens }),
        }
    }
}

/// Which of the two shapes a stream has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `text_completion`.
    Completions,
    /// `chat.completion` and `chat.completion.chunk`.
    Chat,
}

/// What every chunk of one answer repeats.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// Completion or chat.
    pub shape: Shape,
    /// `cmpl-<hex>` or `chatcmpl-<hex>`.
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    /// The served model's name.
    pub model: String,
    /// Whether chunks carry `usage` (null until the last).
    pub include_usage: bool,
}

/// One thing a stream says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// Chat only: the assistant begins.
    Role,
    /// Chat only: more of the reasoning ahead of the answer.
    Reasoning(&'a str),
    /// More text.
    Text(&'a str),
    /// Chat only: the model calls a tool.
    Call {
        /// Its number in this answer.
        index: u32,
        /// What the tool's answer will name.
        id: &'a str,
        /// The function.
        name: &'a str,
    },
    /// Chat only: more of a call's arguments.
    Arguments {
        /// The call.
        index: u32,
        /// A piece of JSON.
        text: &'a str,
    },
    /// The text is complete; completions carry its last piece here.
    Finish {
        /// Last piece of text; chat has none here.
        text: &'a str,
        /// Why it ended.
        ending: Ending,
    },
    /// The counts, after the finish.
    Usage(Usage),
    /// Where the time went, after everything else.
    Timings(&'a Timeline),
}

/// One complete choice of a whole answer.
#[derive(Debug)]
pub struct Answer<'a> {
    /// Its text, but for reasoning and tool calls.
    pub text: &'a str,
    /// What the model thought before; only in chats.
    pub reasoning: Option<&'a str>,
    /// Tools that the model called; only in chats.
    pub calls: &'a [Call],
    /// The scores of its tokens, if they were asked for.
    pub logprobs: Option<Logprobs<'a>>,
    /// The scores of its prompt's tokens, if they were asked for by that name.
    pub prompt_logprobs: Option<PromptLogprobs<'a>>,
    /// Its tokens, if they were asked for.
    pub token_ids: Option<&'a [u32]>,
    /// Those of its prompt.
    pub prompt_token_ids: Option<&'a [u32]>,
    /// Why it ended.
    pub ending: Ending,
}

/// What a chunk has beside its event, where the client asks for it.
#[derive(Debug, Default)]
pub struct Additions<'a> {
    /// Scores of the tokens that no chunk has shown yet.
    pub logprobs: Option<&'a Logprobs<'a>>,
    /// Those tokens.
    pub token_ids: Option<&'a [u32]>,
    /// The prompt's tokens, in the first chunk.
    pub prompt_token_ids: Option<&'a [u32]>,
    /// The counts so far.
    pub usage: Option<Usage>,
}

/// Renders one event of choice `index` through serde, as a JSON object without the SSE frame around it.
pub fn chunk_json(head: &Head, index: u32, event: &Event<'_>, with: &Additions<'_>) -> Vec<u8> {
    match head.shape {
        Shape::Completions => completions::chunk_json(head, index, event, with),
        Shape::Chat => chat::chunk_json(head, index, event, with),
    }
}

/// Renders a whole answer through serde.
pub fn answer_json(
    head: &Head,
    answers: &[Answer<'_>],
    usage: Usage,
    timeline: Option<&Timeline>,
) -> Vec<u8> {
    match head.shape {
        Shape::Completions => completions::answer_json(head, answers, usage, timeline),
        Shape::Chat => chat::answer_json(head, answers, usage, timeline),
    }
}

/// Serialises `value`.
pub(crate) fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("strings and numbers always serialise")
}

/// The `usage` member of a chunk: left out, null, or the counts.
pub(crate) fn usage_member(
    head: &Head,
    event: &Event<'_>,
    so_far: Option<Usage>,
) -> Option<Option<UsageBody>> {
    if let Some(usage) = so_far {
        return Some(Some(usage.into()));
    }
    match event {
        Event::Usage(usage) => Some(Some((*usage).into())),
        Event::Role
        | Event::Reasoning(_)
        | Event::Text(_)
        | Event::Call { .. }
        | Event::Arguments { .. }
        | Event::Finish { .. }
        | Event::Timings(_) => head.include_usage.then_some(None),
    }
}

/// The `timings` member of a chunk: left out of all but their own.
pub(crate) fn timings_member(event: &Event<'_>) -> Option<Timings> {
    match event {
        Event::Timings(timeline) => Some(Timings::from(*timeline)),
        Event::Role
        | Event::Reasoning(_)
        | Event::Text(_)
        | Event::Call { .. }
        | Event::Arguments { .. }
        | Event::Finish { .. }
        | Event::Usage(_) => None,
    }
}
