//! An answer that leaves whole: what its choices came to, and the JSON made of it.
//!
//! It holds no request, so that a large one can be written on another thread than the one that serves the streams.

use crate::admission::Shown;
use crate::answers::best_of;
use crate::answers::calls::{Call, Calls};
use crate::answers::openai::{
    Answer, Ending, Head, Shape, Usage, UsageBody, answer_json, echoed, logprobs, prompt_logprobs,
};
use crate::answers::prompt_part::PromptPart;
use crate::observe::timeline::{Timeline, Timings};
use bytes::Bytes;
use pinion_protocol::prompt_scores::PromptScore;
use pinion_protocol::scores::TokenScore;
use pinion_protocol::{Fault, FaultCode};
use serde_json::json;

/// What came of one choice, as its request leaves it.
pub struct Part {
    /// The text behind the prompt's.
    pub text: Bytes,
    /// What is shown of the prompt, if anything.
    pub prompt: Option<PromptPart>,
    /// Finds the calls in the text, if there may be any.
    pub calls: Option<Box<Calls>>,
    /// If it is looked for and shown.
    pub reasoning: String,
    /// Of its tokens, if they were asked for.
    pub scores: Vec<TokenScore>,
    /// Those of the prompt and of the answer, if they are shown.
    pub ids: Option<(Vec<u32>, Vec<u32>)>,
    /// Why the text ended.
    pub ending: Ending,
    /// Its counts.
    pub usage: Usage,
}

/// An answer of which everything is known.
pub struct Whole {
    /// None: the short form of `/generate`.
    pub head: Option<Head>,
    /// The candidates of the first prompt, then those of the second.
    pub parts: Vec<Part>,
    /// Candidates of each prompt.
    pub choices_per_prompt: usize,
    /// What is shown of them.
    pub shown: Shown,
    /// Where the time went, if the answer says so.
    pub timeline: Option<Timeline>,
}

/// One choice, taken apart.
struct Told {
    text: String,
    reasoning: String,
    scores: Vec<TokenScore>,
    prompt: Vec<PromptScore>,
    calls: Vec<Call>,
    ids: Option<(Vec<u32>, Vec<u32>)>,
    ending: Ending,
}

impl Whole {
    /// The JSON, and how each candidate ended as clients see it. Errors: a role sent what is no answer.
    pub fn write(self) -> Result<(Vec<u8>, Vec<Ending>), Fault> {
        let Whole { head, parts, choices_per_prompt, shown, timeline } = self;
        let usage = Usage::of_choices(parts.iter().map(|part| part.usage), choices_per_prompt);
        let told = parts.into_iter().map(Told::of).collect::<Result<Vec<_>, _>>()?;
        let best: Vec<usize> = match shown.best {
            Some(kept) => {
                let scores: Vec<&[TokenScore]> = told.iter().map(|part| part.scores.as_slice()).collect();
                best_of::best(&scores, choices_per_prompt, kept as usize)
            }
            None => (0..told.len()).collect(),
        };
        let answers = best.into_iter().map(|index| told[index].answer(head.as_ref(), shown));
        let answers: Vec<Answer<'_>> = answers.collect();
        let body = match (&head, answers.first()) {
            (Some(head), _) => answer_json(head, &answers, usage, timeline.as_ref()),
            (None, Some(answer)) => generate_json(answer.text, answer.ending, usage, timeline.as_ref()),
            (None, None) => return Err(unexpected()),
        };
        Ok((body, told.iter().map(|part| part.ending).collect()))
    }
}

impl Told {
    fn of(part: Part) -> Result<Told, Fault> {
        let Part { text: said, prompt, calls: finder, reasoning, scores, ids, mut ending, .. } = part;
        let (mut text, prompt) = prompt.map_or_else(|| Ok(Default::default()), |mut part| part.rest())?;
        text.push_str(std::str::from_utf8(&said).map_err(|_| unexpected())?);
        let mut calls = Vec::new();
        if let Some(mut finder) = finder {
            (text, calls) = finder.read(&text);
            ending = finder.ending(ending);
        }
        Ok(Told { text, reasoning, scores, prompt, calls, ids, ending })
    }

    fn answer(&self, head: Option<&Head>, shown: Shown) -> Answer<'_> {
        let scored = shown.logprobs.zip(head);
        let logprobs = scored.map(|(alternatives, head)| match head.shape {
            Shape::Completions if shown.echo => {
                echoed((&self.prompt, alternatives as usize), &self.scores, (&self.text, 0), shown.style)
            }
            shape => logprobs(shape, &self.scores, &mut 0, shown.style),
        });
        let prompt = shown.prompt_logprobs.map(|most| prompt_logprobs(&self.prompt, most as usize));
        Answer {
            text: &self.text,
            reasoning: Some(self.reasoning.as_str()).filter(|reasoning| !reasoning.is_empty()),
            calls: &self.calls,
            logprobs,
            prompt_logprobs: prompt,
            token_ids: self.ids.as_ref().map(|(_, ids)| ids.as_slice()),
            prompt_token_ids: self.ids.as_ref().map(|(ids, _)| ids.as_slice()),
            ending: self.ending,
        }
    }
}

fn generate_json(text: &str, ending: Ending, usage: Usage, timeline: Option<&Timeline>) -> Vec<u8> {
    let usage = UsageBody::from(usage);
    let mut answer = json!({"text": text, "finish_reason": ending.name(), "usage": usage});
    if let Some(timeline) = timeline {
        answer["timings"] = json!(Timings::from(timeline));
    }
    answer.to_string().into_bytes()
}

fn unexpected() -> Fault {
    Fault::new(FaultCode::Internal, "a role answered with something else than was asked for")
}
