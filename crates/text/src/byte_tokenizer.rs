//! The smallest tokenizer there is.

use serde_json::{Map, Value, json};

/// A complete `tokenizer.json` with one token per byte (ids 0 to 255, the id is the byte) and the special
/// token `<|endoftext|>` as 256. Every character outside ASCII splits over tokens, so it is the hardest
/// tokenizer for a decoder: tests use it, and a fake model can be served with it.
pub fn byte_tokenizer_json() -> String {
    byte_tokenizer_json_with(&[])
}

/// The same with further added tokens, which have the ids from 257 on and show their text.
pub fn byte_tokenizer_json_with(added: &[&str]) -> String {
    let token = |(id, content): (usize, &str)| {
        json!({
            "id": id, "content": content, "special": id == 256, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false,
        })
    };
    let contents = ["<|endoftext|>"].into_iter().chain(added.iter().copied());
    let added_tokens: Vec<Value> = (256..).zip(contents).map(token).collect();
    let mut vocabulary = Map::new();
    for byte in 0..=255_u8 {
        vocabulary.insert(spelling(byte).to_string(), Value::from(byte));
    }
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": added_tokens,
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": [],
        },
    })
    .to_string()
}

/// The character that byte-level vocabularies write for a byte: itself where it is printable Latin-1,
/// otherwise the next unused one from U+0100 on. (GPT-2's `bytes_to_unicode`.)
pub(crate) fn spelling(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let earlier = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + earlier).expect("U+0100 to U+0143 are characters")
}
