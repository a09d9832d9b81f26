//! A JSON object within a body, whose readers name the place of what is wrong: `messages.0.content.1.type`.

use crate::json::wrong_type;
use pinion_protocol::Fault;
use serde_json::{Map, Value};
use std::fmt::Display;

/// The members of an object that have not been read, and where it stands. `null` is absent.
pub(crate) struct Object {
    path: String,
    members: Map<String, Value>,
}

/// The path of a member.
pub(crate) fn at(path: &str, name: impl Display) -> String {
    if path.is_empty() { name.to_string() } else { format!("{path}.{name}") }
}

impl Object {
    /// The body.
    pub(crate) fn root(members: Map<String, Value>) -> Object {
        Object { path: String::new(), members }
    }

    /// The object that `value` must be.
    pub(crate) fn new(path: String, value: Value) -> Result<Object, Fault> {
        match value {
            Value::Object(members) => Ok(Object { path, members }),
            other => Err(wrong_type(&path, "an object", &other)),
        }
    }

    /// The path of a member.
    pub(crate) fn at(&self, name: impl Display) -> String {
        at(&self.path, name)
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.members.remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, Fault> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(&self.at(name), "a string", &other)),
        }
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Result<Option<bool>, Fault> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(wrong_type(&self.at(name), "a boolean", &other)),
        }
    }

    pub(crate) fn array(&mut self, name: &str, most: usize) -> Result<Option<Vec<Value>>, Fault> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) if items.len() > most => {
                let field = self.at(name);
                let message = format!("{field} may have at most {most} entries, got {}", items.len());
                Err(Fault::field(&field, message))
            }
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong_type(&self.at(name), "an array", &other)),
        }
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Object>, Fault> {
        self.take(name).map(|value| Object::new(self.at(name), value)).transpose()
    }

    /// A member that must be there.
    pub(crate) fn need<T>(&self, name: &str, value: Option<T>) -> Result<T, Fault> {
        value.ok_or_else(|| {
            let field = self.at(name);
            Fault::field(&field, format!("{field} is required"))
        })
    }

    /// The fault of a member whose value is understood and not served.
    pub(crate) fn refused(&self, name: &str, why: impl Display) -> Fault {
        let field = self.at(name);
        Fault::field(&field, format!("{field}: {why}"))
    }

    /// The members that have not been read.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.members
    }
}
