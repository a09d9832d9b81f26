//! `/v1/chat/completions`: the answer and its chunks.

use super::{
    Additions, Answer, Ending, Event, Head, Logprobs, PromptLogprobs, Usage, UsageBody, timings_member,
    to_json, usage_member,
};
use crate::answers::calls::Call;
use crate::observe::timeline::{Timeline, Timings};
use serde::Serialize;

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [ChunkChoice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageBody>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: u32,
    delta: Delta<'a>,
    logprobs: Option<&'a Logprobs<'a>>,
    finish_reason: Option<Ending>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
}

#[derive(Serialize, Default)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[CallDelta<'a>; 1]>,
}

#[derive(Serialize)]
struct CallDelta<'a> {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: FunctionDelta<'a>,
}

#[derive(Serialize)]
struct FunctionDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice<'a>>,
    usage: UsageBody,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<&'a PromptLogprobs<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    message: Message<'a>,
    logprobs: Option<&'a Logprobs<'a>>,
    finish_reason: Ending,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    /// Null beside calls and reasoning, if there is none.
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    refusal: Option<()>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallBody<'a>>,
}

#[derive(Serialize)]
struct CallBody<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    function: FunctionBody<'a>,
}

#[derive(Serialize)]
struct FunctionBody<'a> {
    name: &'a str,
    arguments: &'a str,
}

impl<'a> From<&'a Call> for CallBody<'a> {
    fn from(call: &'a Call) -> Self {
        let function = FunctionBody { name: &call.name, arguments: &call.arguments };
        CallBody { id: &call.id, kind: "function", function }
    }
}

fn render(
    head: &Head,
    choices: &[ChunkChoice<'_>],
    usage: Option<Option<UsageBody>>,
    timings: Option<Timings>,
    prompt_token_ids: Option<&[u32]>,
) -> Vec<u8> {
    to_json(&Chunk {
        id: &head.id,
        object: "chat.completion.chunk",
        created: head.created,
        model: &head.model,
        choices,
        usage,
        timings,
        prompt_token_ids,
    })
}

/// One chunk. A finish carries no text here.
pub(super) fn chunk_json(head: &Head, index: u32, event: &Event<'_>, with: &Additions<'_>) -> Vec<u8> {
    let (usage, timings) = (usage_member(head, event, with.usage), timings_member(event));
    let (delta, finish_reason) = match event {
        Event::Role => (Delta { role: Some("assistant"), content: Some(""), ..Delta::default() }, None),
        Event::Reasoning(text) => (Delta { reasoning_content: Some(text), ..Delta::default() }, None),
        Event::Text(text) => (Delta { content: Some(text), ..Delta::default() }, None),
        Event::Call { index, id, name } => {
            let function = FunctionDelta { name: Some(name), arguments: "" };
            let call = CallDelta { index: *index, id: Some(id), kind: Some("function"), function };
            (Delta { tool_calls: Some([call]), ..Delta::default() }, None)
        }
        Event::Arguments { index, text } => {
            let function = FunctionDelta { name: None, arguments: text };
            let call = CallDelta { index: *index, id: None, kind: None, function };
            (Delta { tool_calls: Some([call]), ..Delta::default() }, None)
        }
        Event::Finish { ending, .. } => (Delta::default(), Some(*ending)),
        Event::Usage(_) | Event::Timings(_) => return render(head, &[], usage, timings, None),
    };
    let Additions { logprobs, token_ids, .. } = *with;
    let choice = [ChunkChoice { index, delta, logprobs, finish_reason, token_ids }];
    render(head, &choice, usage, None, with.prompt_token_ids)
}

/// Whether a message has nothing but its content.
fn stands_alone(answer: &Answer<'_>) -> bool {
    answer.calls.is_empty() && answer.reasoning.is_none()
}

/// The whole answer.
pub(super) fn answer_json(
    head: &Head,
    answers: &[Answer<'_>],
    usage: Usage,
    timeline: Option<&Timeline>,
) -> Vec<u8> {
    let choices = (0..).zip(answers).map(|(index, answer)| Choice {
        index,
        message: Message {
            role: "assistant",
            content: Some(answer.text).filter(|text| !text.is_empty() || stands_alone(answer)),
            reasoning_content: answer.reasoning,
            refusal: None,
            tool_calls: answer.calls.iter().map(CallBody::from).collect(),
        },
        logprobs: answer.logprobs.as_ref(),
        finish_reason: answer.ending,
        token_ids: answer.token_ids,
    });
    to_json(&Completion {
        id: &head.id,
        object: "chat.completion",
        created: head.created,
        model: &head.model,
        choices: choices.collect(),
        usage: usage.into(),
        timings: timeline.map(Timings::from),
        prompt_logprobs: answers.first().and_then(|answer| answer.prompt_logprobs.as_ref()),
        prompt_token_ids: answers.first().and_then(|answer| answer.prompt_token_ids),
    })
}
