//! `/v1/completions`: the answer and its chunks.

use super::{
    Answer, Ending, Event, Head, Logprobs, PromptLogprobs, Usage, UsageBody, timings_member, to_json,
    usage_member,
};
use crate::timeline::{Timeline, Timings};
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
pub(super) fn chunk_json(
    head: &Head,
    index: u32,
    event: &Event<'_>,
    logprobs: Option<&Logprobs<'_>>,
) -> Vec<u8> {
    let choice =
        |text, finish_reason| [Choice { index, text, logprobs, finish_reason, prompt_logprobs: None }];
    let usage = usage_member(head, event);
    match event {
        Event::Role | Event::Reasoning(_) | Event::Call { .. } | Event::Arguments { .. } => {
            render(head, &choice("", None), usage, None)
        }
        Event::Text(text) => render(head, &choice(text, None), usage, None),
        Event::Finish { text, ending } => render(head, &choice(text, Some(*ending)), usage, None),
        Event::Usage(_) | Event::Timings(_) => render(head, &[], usage, timings_member(event)),
    }
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
    });
    let choices: Vec<Choice<'_>> = choices.collect();
    render(head, &choices, Some(Some(usage.into())), timeline.map(Timings::from))
}
