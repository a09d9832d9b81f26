//! A chat template, compiled once and run within limits.
//!
//! The environment is the one that transformers gives its templates: `trim_blocks`, `lstrip_blocks`, loop
//! controls, no escaping, undefined names are empty, `raise_exception`, `strftime_now`. There is no loader, so a
//! template reaches no other file. minijinja, by Jinja's own author, is the one engine in Rust that runs published
//! templates as they are; [`super::python`] has the rest of what they take from Python.
//!
//! A template is code from the model's author. The limits make one that does not end, or that writes
//! without end, cost its own request and no more. They do not limit the memory and time that one step takes (a
//! string that is doubled again and again, a list inside a list inside a list): the process has a memory limit for
//! that.

use super::date::strftime;
use super::forms::Forms;
use super::messages::{Chat, parse};
use super::python;
use super::source::SpecialTokens;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};
use pinion_protocol::Fault;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Instructions of the template machine that one render may take.
pub const TEMPLATE_STEPS_MAX: u64 = 1_000_000;
/// Nesting of calls, loops and blocks while a template runs; a macro call counts as several.
pub const TEMPLATE_RECURSION_MAX: usize = 200;
/// Bytes of text that one render may write.
pub const RENDERED_BYTES_MAX: usize = 16 << 20;

const NAME: &str = "chat_template";
const CLOCK: &str = "pinion_unix_seconds";
pub(super) struct Template {
    environment: Environment<'static>,
    tokens: SpecialTokens,
    forms: Forms,
}

impl Template {
    /// Errors say what is wrong and in which line.
    pub(super) fn compile(source: String, tokens: SpecialTokens) -> Result<Template, String> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|error| error.to_string())?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(TEMPLATE_STEPS_MAX));
        environment.set_recursion_limit(TEMPLATE_RECURSION_MAX);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        python::install(&mut environment);
        let compiled = guarded(|| environment.add_template_owned(NAME, as_the_library_reads(&source)));
        compiled.map_err(|refusal| refusal.reason())?;
        let mut template = Template { environment, tokens, forms: Forms::default() };
        template.forms = Forms::learn(|forms, chat, words| template.shows(forms, chat, words));
        Ok(template)
    }

    /// Whether all these words of a chat get into its text.
    fn shows(&self, forms: Forms, chat: &str, words: &[&str]) -> bool {
        parse(chat)
            .and_then(|chat| self.render_in(forms, &chat, 0))
            .is_ok_and(|text| words.iter().all(|word| text.contains(word)))
    }

    pub(super) fn render(&self, chat: &Chat, unix_seconds: i64) -> Result<String, Fault> {
        self.render_in(self.forms, chat, unix_seconds)
    }

    fn render_in(&self, forms: Forms, chat: &Chat, unix_seconds: i64) -> Result<String, Fault> {
        let messages: Value = chat.messages.iter().map(|message| forms.message(message)).collect();
        let tokens = self.tokens.iter().map(|(name, token)| (Value::from(*name), Value::from(token)));
        let mut context: Vec<(Value, Value)> = tokens.collect();
        // What follows has the last word, so that no request's name takes the place of ours.
        let names = chat.template_kwargs.try_iter().into_iter().flatten();
        context.extend(names.map(|name| {
            let value = chat.template_kwargs.get_item(&name).unwrap_or_default();
            (name, value)
        }));
        context.push(("messages".into(), messages));
        context.push(("add_generation_prompt".into(), Value::from(chat.add_generation_prompt)));
        context.push((CLOCK.into(), Value::from(unix_seconds)));
        // None where there are none, as with transformers: `tools is not none` would hold of what is undefined.
        let or_none = |value: &Value| if value.is_undefined() { Value::from(()) } else { value.clone() };
        context.push(("tools".into(), or_none(&chat.tools)));
        context.push(("documents".into(), or_none(&chat.documents)));
        let context = Value::from_pairs(context);
        let mut text = Bounded { bytes: Vec::new(), is_over: false };
        let rendered = guarded(|| {
            let template = self.environment.get_template(NAME)?;
            template.render_captured_to(context, &mut text).map(|_| ())
        });
        if text.is_over {
            let message = format!("the chat template writes more than {RENDERED_BYTES_MAX} bytes for them");
            return Err(Fault::field("messages", message));
        }
        rendered.map_err(|refusal| Fault::field("messages", refusal.message()))?;
        String::from_utf8(text.bytes)
            .map_err(|_| Fault::field("messages", "the chat template's text is not UTF-8"))
    }
}

/// The text so far, up to [`RENDERED_BYTES_MAX`].
struct Bounded {
    bytes: Vec<u8>,
    is_over: bool,
}

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + bytes.len() > RENDERED_BYTES_MAX {
            self.is_over = true;
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What `raise_exception` was called with.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
}

fn strftime_now(state: &minijinja::State, format: String) -> String {
    let now = state.lookup(CLOCK).and_then(|seconds| seconds.as_i64()).unwrap_or(0);
    strftime(&format, now)
}

/// Why a template was not compiled or did not finish.
enum Refusal {
    Failed(Error),
    Panicked,
}

impl Refusal {
    fn reason(&self) -> String {
        match self {
            Refusal::Failed(error) => first_cause(error).to_string(),
            Refusal::Panicked => "the template library panicked".to_owned(),
        }
    }

    /// In words for the client: the template's own, where it has some.
    fn message(&self) -> String {
        if let Refusal::Failed(error) = self {
            let cause = first_cause(error);
            if let Some(Raised(message)) = cause.downcast_ref() {
                return message.clone();
            }
            if cause.downcast_ref::<Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
                return format!("the chat template takes more than {TEMPLATE_STEPS_MAX} steps on them");
            }
        }
        format!("the model's chat template failed on them: {}", self.reason())
    }
}

/// Where a chain of errors began.
fn first_cause(error: &Error) -> &(dyn std::error::Error + 'static) {
    let mut cause: &(dyn std::error::Error + 'static) = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause
}

/// The library's errors, with its panics among them.
fn guarded(work: impl FnOnce() -> Result<(), Error>) -> Result<(), Refusal> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(Refusal::Failed),
        Err(_) => Err(Refusal::Panicked),
    }
}

/// The source as jinja2 reads it: every line end is a newline, and `{% generation %}` changes nothing.
fn as_the_library_reads(source: &str) -> String {
    without_generation_tags(&source.replace("\r\n", "\n").replace('\r', "\n"))
}

/// `{% generation %}` marks the assistant's text for training and changes nothing else; the library does not
/// know it. The tags become others that change nothing, with the same whitespace control.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, inner) = rest.split_at(start + 2);
        text.push_str(before);
        rest = inner;
        let Some(end) = inner.find("%}") else { break };
        let word = inner[..end].trim_matches(['-', '+']).trim();
        let replacement = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => continue,
        };
        text.push_str(&inner[..end].replacen(word, replacement, 1));
        rest = &inner[end..];
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::without_generation_tags;

    #[test]
    fn generation_tags_are_replaced_and_nothing_else() {
        let cases = [
            ("", ""),
            ("a {% generation %}b{% endgeneration %} c", "a {% if true %}b{% endif %} c"),
            ("{%- generation -%}\n{%+endgeneration-%}", "{%- if true -%}\n{%+endif-%}"),
            (
                "{% set generation = 1 %}{{ '{%' }}{% generation",
                "{% set generation = 1 %}{{ '{%' }}{% generation",
            ),
            ("{% if a %}é{% endif %}", "{% if a %}é{% endif %}"),
        ];
        for (source, expected) in cases {
            assert_eq!(without_generation_tags(source), expected);
        }
    }
}
