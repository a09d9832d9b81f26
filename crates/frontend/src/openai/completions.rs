//! `/v1/completions`: the answer and its chunks.

use super::{Answer, Ending, Event, Head, Logprobs, Usage, UsageBody, to_json, usage_member};
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
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    text: &'a str,
    logprobs: Option<&'a Logprobs<'a>>,
    finish_reason: Option<Ending>,
}

fn render(head: &Head, choices: &[Choice<'_>], usage: Option<Option<UsageBody>>) -> Vec<u8> {
    to_json(&Completion {
        id: &head.id,
        object: "text_completion",
        created: head.created,
        model: &head.model,
        choices,
        usage,
    })
}

/// One chunk. [`Event::Role`] does not exist here and gives an empty text.
pub(super) fn chunk_json(
    head: &Head,
    index: u32,
    event: &Event<'_>,
    logprobs: Option<&Logprobs<'_>>,
) -> Vec<u8> {
    let choice = |text, finish_reason| [Choice { index, text, logprobs, finish_reason }];
    let usage = usage_member(head, event);
    match event {
        Event::Role => render(head, &choice("", None), usage),
        Event::Text(text) => render(head, &choice(text, None), usage),
        Event::Finish { text, ending } => render(head, &choice(text, Some(*ending)), usage),
        Event::Usage(_) => render(head, &[], usage),
    }
}

/// The whole answer.
pub(super) fn answer_json(head: &Head, answers: &[Answer<'_>], usage: Usage) -> Vec<u8> {
    let choices = (0..).zip(answers).map(|(index, answer)| Choice {
        index,
        text: answer.text,
        logprobs: answer.logprobs.as_ref(),
        finish_reason: Some(answer.ending),
    });
    let choices: Vec<Choice<'_>> = choices.collect();
    render(head, &choices, Some(Some(usage.into())))
}
