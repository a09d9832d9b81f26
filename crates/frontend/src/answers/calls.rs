//! The tool calls of one answer: found in its text, numbered, and given ids.

use crate::admission::tools::CallPlan;
use crate::answers::openai::{Ending, Event};
use pinion_text::tools::{CALLS_MAX, CallParser, Part, Shape};
use std::fmt::Write;

/// Letters of an id that differ between answers, before those that differ between calls.
const ID_LETTERS: usize = 22;
/// The same for Mistral, whose templates want ids of nine letters.
const MISTRAL_ID_LETTERS: usize = 7;
const _: () = assert!(CALLS_MAX <= 256, "two hexadecimal digits number an answer's calls");

/// One call of a whole answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Call {
    /// What the tool's answer will name.
    pub id: String,
    /// The function.
    pub name: String,
    /// JSON as the model wrote it.
    pub arguments: String,
}

/// Finds the calls of one answer.
#[derive(Debug)]
pub struct Calls {
    parser: CallParser,
    /// What the ids of this answer's calls begin with.
    prefix: String,
    /// A function was asked for by name, so that calling it is no news.
    is_named: bool,
    /// Calls so far.
    count: u32,
    id: String,
}

impl Calls {
    /// `letters` are at least `ID_LETTERS` that no other answer has.
    pub fn new(plan: &CallPlan, letters: &str) -> Calls {
        let prefix = if plan.short_ids {
            letters.get(..MISTRAL_ID_LETTERS).unwrap_or(letters).to_owned()
        } else {
            format!("call_{}", letters.get(..ID_LETTERS).unwrap_or(letters))
        };
        Calls {
            parser: CallParser::new(plan.shape.clone(), plan.names.clone(), plan.calls_max)
                .typed(plan.json_parameters.clone()),
            prefix,
            is_named: matches!(plan.shape, Shape::Arguments(_)),
            count: 0,
            id: String::new(),
        }
    }

    /// More text; `say` gets what is certain.
    pub fn push(&mut self, text: &str, say: &mut dyn FnMut(&Event<'_>)) {
        let Calls { parser, prefix, count, id, .. } = self;
        parser.push(text, &mut |part| tell(part, prefix, count, id, say));
    }

    /// The text is complete.
    pub fn finish(&mut self, say: &mut dyn FnMut(&Event<'_>)) {
        let Calls { parser, prefix, count, id, .. } = self;
        parser.finish(&mut |part| tell(part, prefix, count, id, say));
    }

    /// Why the answer ended, as clients see it. As with OpenAI a call of the function that was asked for ends it
    /// with `stop`.
    pub fn ending(&self, ending: Ending) -> Ending {
        let calls = self.count > 0 && !self.is_named;
        if calls && ending == Ending::Stop { Ending::ToolCalls } else { ending }
    }

    /// Takes a whole answer apart into its content and its calls.
    pub fn read(&mut self, text: &str) -> (String, Vec<Call>) {
        let (mut content, mut calls) = (String::new(), Vec::<Call>::new());
        let mut take = |event: &Event<'_>| match *event {
            Event::Text(text) => content.push_str(text),
            Event::Call { id, name, .. } => {
                calls.push(Call { id: id.to_owned(), name: name.to_owned(), arguments: String::new() });
            }
            Event::Arguments { text, .. } => {
                calls.last_mut().into_iter().for_each(|call| call.arguments.push_str(text));
            }
            Event::Role
            | Event::Reasoning(_)
            | Event::Finish { .. }
            | Event::Usage(_)
            | Event::Timings(_) => {}
        };
        self.push(text, &mut take);
        self.finish(&mut take);
        (content, calls)
    }
}

fn tell(part: Part<'_>, prefix: &str, count: &mut u32, id: &mut String, say: &mut dyn FnMut(&Event<'_>)) {
    match part {
        Part::Text(text) => say(&Event::Text(text)),
        Part::Call { name } => {
            let index = *count;
            *count += 1;
            id.clear();
            // Writing to a String does not fail.
            let _ = write!(id, "{prefix}{index:02x}");
            say(&Event::Call { index, id, name });
        }
        Part::Arguments(text) => say(&Event::Arguments { index: count.saturating_sub(1), text }),
    }
}
