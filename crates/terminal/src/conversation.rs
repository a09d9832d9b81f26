//! What was said so far, and the request that follows from it. Pure.

use serde_json::{Map, Value, json};

/// Members of a request that are not the user's to set.
const OURS: [&str; 5] = ["messages", "prompt", "stream", "stream_options", "n"];

/// A chat: the system prompt, the messages, and the settings of every request.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    model: String,
    pub(crate) system: Option<String>,
    messages: Vec<Message>,
    settings: Map<String, Value>,
    /// The model has no chat template: each prompt is completed by itself.
    pub(crate) completes: bool,
}

#[derive(Debug)]
struct Message {
    role: &'static str,
    text: String,
}

impl Conversation {
    pub(crate) fn new(model: String, system: Option<String>) -> Conversation {
        Conversation { model, system, ..Conversation::default() }
    }

    pub(crate) fn say(&mut self, text: &str) {
        self.messages.push(Message { role: "user", text: text.to_owned() });
    }

    pub(crate) fn answered(&mut self, text: &str) {
        self.messages.push(Message { role: "assistant", text: text.to_owned() });
    }

    /// The last message got no answer.
    pub(crate) fn take_back(&mut self) {
        self.messages.pop();
    }

    /// Forgets what was said; system prompt and settings stay.
    pub(crate) fn reset(&mut self) {
        self.messages.clear();
    }

    /// Sets a member of every request, or takes it away. Errors: it is not the user's.
    pub(crate) fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), String> {
        if OURS.contains(&name) {
            return Err(format!("{name} is set by the chat itself"));
        }
        match value {
            Some(text) => {
                let value = serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()));
                self.settings.insert(name.to_owned(), value);
            }
            None => {
                self.settings.remove(name);
            }
        }
        Ok(())
    }

    pub(crate) fn settings(&self) -> String {
        let lines: Vec<String> =
            self.settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
        if lines.is_empty() { "nothing is set".to_owned() } else { lines.join("\n") }
    }

    /// Where the next request goes, and its body.
    pub(crate) fn request(&self) -> (&'static str, Value) {
        let mut body =
            json!({"model": self.model, "stream": true, "stream_options": {"include_usage": true}});
        for (name, value) in &self.settings {
            body[name] = value.clone();
        }
        if self.completes {
            body["prompt"] = self.messages.last().map_or("", |message| message.text.as_str()).into();
            return ("/v1/completions", body);
        }
        body["messages"] = self.messages();
        ("/v1/chat/completions", body)
    }

    fn messages(&self) -> Value {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let said = self.messages.iter().map(|message| json!({"role": message.role, "content": message.text}));
        system.chain(said).collect()
    }

    /// The whole chat: as JSON for a file of that ending, else as text.
    pub(crate) fn saved(&self, file: &str) -> String {
        if file.ends_with(".json") {
            return format!("{:#}\n", json!({"model": self.model, "messages": self.messages()}));
        }
        let system = self.system.iter().map(|text| ("system", text));
        let said = self.messages.iter().map(|message| (message.role, &message.text));
        system.chain(said).map(|(role, text)| format!("## {role}\n\n{text}\n\n")).collect()
    }
}

/// Whether a server's refusal says that the model has no chat template.
pub(crate) fn lacks_template(status: u16, message: &str) -> bool {
    let message = message.to_lowercase();
    status == 400 && (message.contains("chat template") || message.contains("chat_template"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_what_was_said_and_what_was_set() {
        let mut chat = Conversation::new("m".into(), Some("s".into()));
        chat.say("a");
        chat.answered("b");
        chat.say("c");
        chat.set("temperature", Some("0.7")).unwrap();
        chat.set("stop", Some("x")).unwrap();
        let (path, body) = chat.request();
        assert_eq!(
            (path, &body["temperature"], &body["stop"]),
            ("/v1/chat/completions", &json!(0.7), &json!("x"))
        );
        let roles: Vec<&str> = body["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| message["role"].as_str().unwrap())
            .collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        assert!(chat.set("messages", Some("[]")).is_err());
        chat.set("stop", None).unwrap();
        assert_eq!(chat.settings(), "temperature 0.7");

        chat.completes = true;
        let (path, body) = chat.request();
        assert_eq!((path, &body["prompt"], body.get("messages")), ("/v1/completions", &json!("c"), None));
        chat.take_back();
        assert_eq!(chat.saved("a.md"), "## system\n\ns\n\n## user\n\na\n\n## assistant\n\nb\n\n");
        let saved: Value = serde_json::from_str(&chat.saved("a.json")).unwrap();
        assert_eq!((saved["messages"].as_array().unwrap().len(), &saved["model"]), (3, &json!("m")));
        chat.reset();
        assert_eq!(chat.saved("x"), "## system\n\ns\n\n");
    }

    #[test]
    fn only_a_400_about_a_template_means_that_there_is_none() {
        assert!(lacks_template(400, "As of v4.44 default Chat Template is no longer allowed"));
        assert!(
            !lacks_template(500, "chat template") && !lacks_template(400, "temperature must be a number")
        );
    }
}
