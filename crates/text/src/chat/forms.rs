//! What a template wants of messages where templates differ: found out by showing it probes, once, when it is
//! compiled.
//!
//! OpenAI's API has one spelling of a chat; templates were written against others. Some take content only as a list
//! of parts, most show a system message and not a developer's, most write the arguments of a tool call with
//! `tojson` and so want them as an object where the API has them as text, and some show a call only where the
//! content beside it is null. transformers leaves that to its callers; vLLM and llama-server convert as we do.

use super::messages::{Content, Message, items, member};
use minijinja::Value;

/// What the probes say; no template writes it by itself.
const PROBE: &str = "pinion-probe-3f9b";
/// What the probe's tool call says.
const ARGUMENT: &str = "pinion-argument-7c1e";

/// The forms that a template knows. The default is what most do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Forms {
    /// It takes content apart into parts and shows nothing of a string.
    parts: bool,
    /// It shows a system message and nothing of a developer's.
    developer_as_system: bool,
    /// It shows the arguments of a call only if they are text.
    arguments_as_text: bool,
    /// It shows a call only beside content that is null.
    null_beside_calls: bool,
}

impl Forms {
    /// Asks the template: `shows` says whether a chat, given in some forms, gets all these words into the text.
    pub(super) fn learn(shows: impl Fn(Forms, &str, &[&str]) -> bool) -> Forms {
        let mut forms = Forms::default();
        let user = format!(r#"{{"messages": [{{"role": "user", "content": "{PROBE}"}}]}}"#);
        let in_parts = Forms { parts: true, ..forms };
        forms.parts = !shows(forms, &user, &[PROBE]) && shows(in_parts, &user, &[PROBE]);
        let first = |role: &str| {
            format!(
                r#"{{"messages": [{{"role": "{role}", "content": "{PROBE}"}}, {{"role": "user", "content": "x"}}]}}"#
            )
        };
        forms.developer_as_system =
            !shows(forms, &first("developer"), &[PROBE]) && shows(forms, &first("system"), &[PROBE]);
        let call = format!(
            r#"{{"tools": [{{"type": "function", "function": {{"name": "f", "description": "", "parameters":
                {{"type": "object", "properties": {{}}}}}}}}], "messages": [{{"role": "user", "content": "x"}},
                {{"role": "assistant", "content": null, "tool_calls": [{{"id": "abcdefghi", "type": "function",
                  "function": {{"name": "{PROBE}", "arguments": "{{\"a\": \"{ARGUMENT}\"}}"}}}}]}},
                {{"role": "tool", "tool_call_id": "abcdefghi", "name": "{PROBE}", "content": "x"}}]}}"#
        );
        let tries = [(false, false), (false, true), (true, false), (true, true)].map(
            |(arguments_as_text, null_beside_calls)| Forms { arguments_as_text, null_beside_calls, ..forms },
        );
        tries.into_iter().find(|tried| shows(*tried, &call, &[PROBE, ARGUMENT])).unwrap_or(forms)
    }

    /// The message as the template sees it: as it was sent, but in the forms that it knows.
    pub(super) fn message(self, message: &Message) -> Value {
        let has_calls = !message.tool_calls.is_undefined();
        let is_developer = self.developer_as_system && message.role == "developer";
        let is_as_sent = matches!(message.content, Some(Content::Text(_))) && !self.parts;
        let names = match message.members.try_iter() {
            Ok(names) if has_calls || is_developer || !is_as_sent => names,
            _ => return message.members.clone(),
        };
        let changed = |name: &str| ["content", "tool_calls", "role"].contains(&name);
        let mut members: Vec<(Value, Value)> = vec![
            ("role".into(), if is_developer { "system".into() } else { Value::from(&message.role) }),
            ("content".into(), self.content(message, has_calls)),
        ];
        if has_calls {
            members.push(("tool_calls".into(), items(&message.tool_calls).map(|c| self.call(&c)).collect()));
        }
        members.extend(names.filter(|name| !name.as_str().is_some_and(changed)).map(|name| {
            let value = message.members.get_item(&name).unwrap_or_default();
            (name, value)
        }));
        Value::from_pairs(members)
    }

    fn content(self, message: &Message, has_calls: bool) -> Value {
        match &message.content {
            Some(Content::Parts(parts, _)) if self.parts => parts.clone(),
            None if has_calls && self.null_beside_calls => Value::from(()),
            content => {
                let text = content.as_ref().map_or("", Content::text);
                let part = || Value::from_pairs([("type", "text"), ("text", text)]);
                if self.parts { Value::from(vec![part()]) } else { Value::from(text) }
            }
        }
    }

    /// A call with its arguments as an object, if the template wants one and they are one.
    fn call(self, call: &Value) -> Value {
        let function = member(call, "function");
        let arguments = member(&function, "arguments");
        match arguments.as_str().map(serde_json::from_str::<Value>) {
            Some(Ok(object)) if !self.arguments_as_text => {
                with(call, "function", with(&function, "arguments", object))
            }
            _ => call.clone(),
        }
    }
}

/// The object with another value for one of its members.
fn with(object: &Value, changed: &str, value: Value) -> Value {
    let names = object.try_iter().into_iter().flatten();
    let member = |name: Value| {
        let is_changed = name.as_str() == Some(changed);
        let value = if is_changed { value.clone() } else { object.get_item(&name).unwrap_or_default() };
        (name, value)
    };
    Value::from_pairs(names.map(member))
}
