//! Answers that clients come back to: bounded by their bytes and by a time to live, the oldest go first.
//!
//! It has no clock: times are Unix seconds that the caller brings.

use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// One response and the conversation that led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The response as JSON.
    pub response: Bytes,
    /// The items of its input, those of earlier responses first, as a JSON array.
    pub input: Arc<str>,
    /// The items that the model said, as a JSON array.
    pub output: String,
    /// Unix seconds of its creation.
    pub created_s: u64,
    /// Which of the service's keys it was asked for with, if the service has keys. Others do not see it.
    pub key: Option<usize>,
}

impl Kept {
    /// The items that a later response goes on from, as a JSON array.
    pub fn conversation(&self) -> String {
        let mut all = String::with_capacity(self.input.len() + self.output.len());
        all.push('[');
        for items in [&*self.input, self.output.as_str()] {
            let items = items.get(1..items.len().saturating_sub(1)).unwrap_or_default();
            all.push_str(if all.len() > 1 && !items.is_empty() { "," } else { "" });
            all.push_str(items);
        }
        all.push(']');
        all
    }

    fn bytes(&self, id: &str) -> usize {
        2 * id.len() + self.response.len() + self.input.len() + self.output.len()
    }
}

/// The items of a kept response's input as a client reads them, each with an id.
pub fn input_items(input: &str) -> Vec<Value> {
    let items: Vec<Value> = serde_json::from_str(input).unwrap_or_default();
    items.into_iter().enumerate().map(|(index, item)| shown(index, item)).collect()
}

/// An item with the members that clients may leave out.
fn shown(index: usize, mut item: Value) -> Value {
    let Some(members) = item.as_object_mut() else { return item };
    let kind = members.entry("type").or_insert_with(|| "message".into()).clone();
    members.entry("id").or_insert_with(|| format!("item_{index:04}").into());
    if kind == "message"
        && let Some(Value::String(text)) = members.get("content")
    {
        let part = if members.get("role").is_some_and(|role| role == "assistant") {
            json!({"type": "output_text", "text": text, "annotations": []})
        } else {
            json!({"type": "input_text", "text": text})
        };
        members.insert("content".to_owned(), json!([part]));
    }
    item
}

/// Responses by their id.
#[derive(Debug)]
pub struct Store {
    bytes_max: usize,
    ttl_s: u64,
    bytes: usize,
    kept: HashMap<String, Kept>,
    /// Ids in the order of their creation.
    order: VecDeque<String>,
}

impl Store {
    /// An empty one. With 0 bytes it keeps nothing.
    pub fn new(bytes_max: usize, ttl_s: u64) -> Store {
        Store { bytes_max, ttl_s, bytes: 0, kept: HashMap::new(), order: VecDeque::new() }
    }

    /// Keeps a response, in the place of the oldest ones. One that is larger than the store is not kept.
    pub fn put(&mut self, id: String, kept: Kept) {
        self.expire(kept.created_s);
        let bytes = kept.bytes(&id);
        if bytes > self.bytes_max {
            return;
        }
        while self.bytes + bytes > self.bytes_max {
            let Some(oldest) = self.order.pop_front() else { break };
            self.forget(&oldest);
        }
        self.bytes += bytes;
        self.order.push_back(id.clone());
        self.kept.insert(id, kept);
    }

    /// The response of a key, unless its time is over.
    pub fn get(&mut self, id: &str, key: Option<usize>, now_s: u64) -> Option<&Kept> {
        self.expire(now_s);
        self.kept.get(id).filter(|kept| kept.key == key)
    }

    /// Forgets a response; false if there is none.
    pub fn delete(&mut self, id: &str, key: Option<usize>, now_s: u64) -> bool {
        if self.get(id, key, now_s).is_none() {
            return false;
        }
        self.order.retain(|other| other != id);
        self.forget(id)
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets whose time is over.
    pub fn expire(&mut self, now_s: u64) {
        while let Some(oldest) = self.order.front() {
            let is_over = |kept: &Kept| kept.created_s.saturating_add(self.ttl_s) <= now_s;
            if !self.kept.get(oldest).is_none_or(is_over) {
                return;
            }
            if let Some(oldest) = self.order.pop_front() {
                self.forget(&oldest);
            }
        }
    }

    fn forget(&mut self, id: &str) -> bool {
        let Some(kept) = self.kept.remove(id) else { return false };
        self.bytes -= kept.bytes(id);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Option<usize> = Some(1);

    fn kept(bytes: usize, created_s: u64) -> Kept {
        let (input, output) = ("".into(), String::new());
        Kept { response: "r".repeat(bytes).into(), input, output, created_s, key: KEY }
    }

    #[test]
    fn the_oldest_give_way_and_time_ends_what_is_left() {
        let mut store = Store::new(100, 10);
        for (id, created) in [("a", 0), ("b", 1), ("c", 2)] {
            store.put(id.to_owned(), kept(38, created));
        }
        assert_eq!(store.bytes(), 80);
        assert!(store.get("a", KEY, 2).is_none(), "it gave way");
        assert!(store.get("b", KEY, 10).is_some() && store.get("b", KEY, 11).is_none());
        assert!(store.get("c", KEY, 11).is_some() && store.get("c", None, 11).is_none());
        store.put("large".to_owned(), kept(99, 12));
        assert!(store.get("large", KEY, 12).is_none(), "more than the store holds");
        store.put("d".to_owned(), kept(10, 12));
        assert!(store.get("c", KEY, 12).is_none(), "its time is over");
        assert!(!store.delete("d", Some(0), 12) && store.delete("d", KEY, 12) && !store.delete("d", KEY, 12));
        assert_eq!((store.bytes(), store.order.len()), (0, 0));
    }

    #[test]
    fn a_conversation_is_what_was_asked_and_what_was_said() {
        for (input, output, all) in
            [("[1,2]", "[3]", "[1,2,3]"), ("[1]", "[]", "[1]"), ("[]", "[3]", "[3]"), ("[]", "[]", "[]")]
        {
            let kept = Kept { input: input.into(), output: output.to_owned(), ..kept(0, 0) };
            assert_eq!(kept.conversation(), all);
        }
    }

    #[test]
    fn without_room_nothing_is_kept() {
        let mut store = Store::new(0, 10);
        store.put("a".to_owned(), kept(0, 0));
        assert!(store.get("a", KEY, 0).is_none());
        assert_eq!(store.bytes(), 0);
    }
}
