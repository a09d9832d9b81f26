//! `--chat-template`: a file, or as in vLLM the template itself.

use crate::fault::Collector;
use crate::sources::Settings;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read};

const NAME: &str = "chat-template";
/// Largest template, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// A chat template that the operator gives in place of the model's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatTemplate {
    /// Its file, or the option where it was given itself.
    pub name: String,
    /// The template.
    pub text: String,
}

/// Reads what the option names. Whether it is a template that can be used the tokenizer says.
pub(crate) fn read(settings: &Settings, faults: &mut Collector) -> Option<ChatTemplate> {
    let given = settings.text(NAME)?;
    let origin = settings.origin(NAME);
    match text_of(given) {
        Ok(Some(text)) => Some(ChatTemplate { name: given.to_owned(), text }),
        // No file's name has what every template has.
        Ok(None) if given.contains(['{', '}', '\n']) => {
            Some(ChatTemplate { name: origin.to_string(), text: given.to_owned() })
        }
        Ok(None) => {
            let reason = format!("{given}: no such file; a template itself has braces");
            faults.add(&origin, reason);
            None
        }
        Err(reason) => {
            faults.add(&origin, format!("{given}: {reason}"));
            None
        }
    }
}

/// The text of the file, if there is one.
fn text_of(path: &str) -> Result<Option<String>, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        // A template is often too long for a name.
        Err(error) if error.kind() == ErrorKind::InvalidFilename => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(format!("is larger than {BYTES_MAX} bytes"));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| "is not UTF-8".to_owned())
}
