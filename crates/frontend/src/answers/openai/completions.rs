//! `/v1/completions`: the answer and its chunks.

use super::{
    Additions, Answer, Ending, Event, Head, Logprobs, PromptLogprobs, Usage, UsageBody, timings_member,
    to_json, usage_member,
};
use crate::observe::timeline::{Timeline, Timings};
use serde::Serialize;

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageBody>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    text: &'a str,
    logprobs: Option<&'a Logprobs<'a>>,
    finish_reason: Option<Ending>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<&'a PromptLogprobs<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
}

fn render(
    head: &Head,
    choices: &[Choice<'_>],
    usage: Option<Option<UsageBody>>,
    timings: Option<Timings>,
) -> Vec<u8> {
    to_json(&Completion {
        id: &head.id,
        object: "text_completion",
        created: head.created,
        model: &head.model,
        choices,
        usage,
        timings,
    })
}

/// One chunk. [`Event::Role`], reasoning and tool calls do not exist here and give an empty text.
pub(super) fn chunk_json(head: &Head, index: u32, event: &Event<'_>, with: &Additions<'_>) -> Vec<u8> {
    let (usage, timings) = (usage_member(head, event, with.usage), timings_member(event));
    let (text, finish_reason) = match event {
        Event::Role | Event::Reasoning(_) | Event::Call { .. } | Event::Arguments { .. } => ("", None),
        Event::Text(text) => (*text, None),
        Event::Finish { text, ending } => (*text, Some(*ending)),
        Event::Usage(_) | Event::Timings(_) => return render(head, &[], usage, timings),
    };
    let Additions { logprobs, token_ids, prompt_token_ids, .. } = *with;
    let prompt_logprobs = None;
    let choice =
        Choice { index, text, logprobs, finish_reason, prompt_logprobs, prompt_token_ids, token_ids };
    render(head, &[choice], usage, None)
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
        text: answer.text,
        logprobs: answer.logprobs.as_ref(),
        finish_reason: Some(answer.ending),
        prompt_logprobs: answer.prompt_logprobs.as_ref(),
        prompt_token_ids: answer.prompt_token_ids,
        token_ids: answer.token_ids,
    });
    let choices: Vec<Choice<'_>> = choices.collect();
    render(head, &choices, Some(Some(usage.into())), timeline.map(Timings::from))
}
