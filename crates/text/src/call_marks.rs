//! Some vocabularies have the marks of tool calls and of reasoning as special tokens, which show no text. What reads
//! the text has to see them, so here they are ordinary tokens.

use pinion_protocol::reasoning::{REASONING_CLOSE, REASONING_OPEN};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Marks that Llama, Mistral, Hermes and Qwen write around calls, and those of reasoning.
const MARKS: [&str; 8] = [
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[CALL_ID]",
    "[ARGS]",
    "<tool_call>",
    "</tool_call>",
    REASONING_OPEN,
    REASONING_CLOSE,
];

/// Whether it is a mark that has to be seen.
pub(crate) fn is_mark(token: &str) -> bool {
    MARKS.contains(&token)
}

/// A tokenizer.json in which no mark is special; as it was if none is, or if it is not what it should be.
pub(crate) fn with_shown_marks(json: &[u8]) -> Cow<'_, [u8]> {
    changed(json).map_or(Cow::Borrowed(json), Cow::Owned)
}

fn changed(json: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(json).ok()?;
    MARKS.iter().find(|mark| text.contains(**mark))?;
    // The other members can be large; they stay the text that they are.
    let mut members =
        BTreeMap::<&str, &RawValue>::deserialize(&mut serde_json::Deserializer::from_str(text)).ok()?;
    let mut tokens: Vec<Value> = serde_json::from_str(members.get("added_tokens")?.get()).ok()?;
    let mut found = false;
    for token in &mut tokens {
        if MARKS.iter().any(|mark| token["content"] == **mark) && token["special"] == true {
            token["special"] = false.into();
            found = true;
        }
    }
    let tokens = serde_json::value::to_raw_value(&tokens).ok().filter(|_| found)?;
    members.insert("added_tokens", &*tokens);
    serde_json::to_vec(&members).ok()
}

#[cfg(test)]
mod tests {
    use crate::{TextCodec, TextStream, byte_tokenizer_json};
    use serde_json::{Value, json};
    use std::path::Path;

    #[test]
    fn marks_show_and_other_special_tokens_do_not() {
        let mut tokenizer: Value = serde_json::from_str(&byte_tokenizer_json()).unwrap();
        let tokens = tokenizer["added_tokens"].as_array_mut().unwrap();
        let first = 257;
        for (id, content) in (first..).zip(["[TOOL_CALLS]", "[OTHER]", "[ARGS]"]) {
            tokens.push(
                json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}),
            );
        }
        let text = tokenizer.to_string();
        let codec = TextCodec::parse(text.as_bytes(), Path::new("tokenizer.json")).unwrap();
        let ids = codec.encode("a[TOOL_CALLS]f[OTHER][ARGS]{", 100).unwrap();
        assert_eq!(ids.len(), 6, "each mark is one token: {ids:?}");
        assert_eq!(codec.decode_all(&ids), "a[TOOL_CALLS]f[ARGS]{");
        let (mut stream, mut shown) = (TextStream::new(&codec), String::new());
        ids.iter().for_each(|id| stream.push(&codec, *id, &mut shown));
        assert_eq!(shown, "a[TOOL_CALLS]f[ARGS]{");
    }
}
