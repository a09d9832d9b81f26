//! The tokenizers and templates of GGUF files against the same ones as tokenizer.json
//! (crates/model/tests/make_gguf.py).

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use pinion_random::Random;
use pinion_text::TextCodec;
use pinion_text::chat::ChatRenderer;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const TEXTS: [&str; 12] = [
    "",
    " ",
    "the  other\n\n the",
    "the cafe\u{301} café 12345 1 22 333",
    "It's THE'LL they've",
    "<bos>the<turn><think>x</think><eos>",
    "<s>the</s> <unk> <0x41>",
    "日本語 emoji 🙂 \u{1F468}\u{200D}\u{1F469}",
    "tabs\tand\r\nlines \u{2581} end ",
    "...!!! ,.;",
    "thethethe there her er",
    "\u{0}\u{1}\u{7f}",
];

/// What texts are put together from.
const FRAGMENTS: [&str; 32] = [
    "the", "The", " the", "there", "her", "THE", "'s", "'LL", "don't", " ", "  ", "\n", "\r\n", "\n\n ",
    "\t", "1", "22", "12345", ".", "...", "!?", "(a)", "é", "e\u{301}", "ñandú", "日本", "🙂", "\u{200d}",
    "\u{2581}", "<eos>", "<s>", "<unk>",
];

/// A few of them, one after another.
fn texts() -> Vec<String> {
    let seed = 16;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut text = || (0..=random.below(12)).map(|_| FRAGMENTS[random.below(FRAGMENTS.len())]).collect();
    TEXTS.iter().map(|text| (*text).to_owned()).chain((0..400).map(|_| text())).collect()
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../model/tests/gguf_goldens/{name}.gguf"))
}

#[test]
fn the_tokenizer_of_a_file_is_that_of_the_folder() {
    for name in ["llama", "llama-pieces", "qwen2", "qwen3"] {
        let golden: Value =
            serde_json::from_slice(&std::fs::read(path(name).with_extension("json")).unwrap()).unwrap();
        let folder = TextCodec::parse(golden["tokenizer"].to_string().as_bytes(), Path::new("t")).unwrap();
        let file = TextCodec::load(&path(name)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(file.vocab_size(), folder.vocab_size(), "{name}");
        assert_eq!(file.concatenates(), folder.concatenates(), "{name}");
        assert_eq!(file.eos_id().map(u64::from), golden["ends"][0].as_u64(), "{name}");
        for text in &texts() {
            let ids = file.encode_framed(text, 1 << 12).unwrap();
            assert_eq!(ids, folder.encode_framed(text, 1 << 12).unwrap(), "{name} {text:?}");
            assert_eq!(file.decode_all(&ids), folder.decode_all(&ids), "{name} {text:?}");
        }
    }
}

/// One model as a folder and as a file: the same tokens, ends and rendered chats.
#[test]
fn a_file_speaks_as_the_folder_that_it_was_made_from() {
    let folder = path("plain").with_extension("");
    let of_folder = (TextCodec::load(&folder).unwrap(), ChatRenderer::load(&folder).unwrap());
    let chats = [
        json!({"messages": [{"role": "user", "content": "the"}]}),
        json!({"messages": [{"role": "system", "content": "é\n"}, {"role": "user", "content": "<eos> 12"}]}),
    ];
    for name in ["plain-f16", "plain-f32"] {
        let of_file = (TextCodec::load(&path(name)).unwrap(), ChatRenderer::load(&path(name)).unwrap());
        assert_eq!(of_file.0.eos_id(), of_folder.0.eos_id());
        for text in &texts() {
            let ids = of_file.0.encode_framed(text, 1 << 12).unwrap();
            assert_eq!(ids, of_folder.0.encode_framed(text, 1 << 12).unwrap(), "{name} {text:?}");
        }
        for chat in &chats {
            let (file, folder) =
                [&of_file.1, &of_folder.1].map(|chats| chats.render(&chat.to_string(), 0).unwrap()).into();
            assert_eq!(file.text, folder.text);
        }
    }
}

#[test]
fn the_template_of_a_file_is_rendered() {
    let chat = json!({"messages": [{"role": "user", "content": "the"}]}).to_string();
    for (name, expected) in
        [("llama", Some("<user>the<eos>")), ("llama-pieces", Some("<user>the</s>")), ("qwen2", None)]
    {
        let renderer = ChatRenderer::load(&path(name)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(renderer.has_template(), expected.is_some(), "{name}");
        if let Some(expected) = expected {
            assert_eq!(renderer.render(&chat, 0).unwrap().text, expected, "{name}");
        }
    }
}

/// A file of byte-level tokens: one for each byte, these words and `<s>`, which begins a text.
fn byte_level_file(name: &str, pre: &str, words: &[&str]) -> (PathBuf, u32) {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let list = |kind: u32, count: usize, items: Vec<u8>| {
        [&kind.to_le_bytes()[..], &(count as u64).to_le_bytes(), &items].concat()
    };
    let bytes: Value = serde_json::from_str(&pinion_text::byte_tokenizer_json()).unwrap();
    let bytes = bytes["model"]["vocab"].as_object().unwrap().keys().map(String::as_str);
    let tokens: Vec<&str> = bytes.chain(words.iter().copied()).chain(["<s>"]).collect();
    let begin = tokens.len() as u32 - 1;
    let kinds = (0..=begin).flat_map(|id| if id == begin { 3i32 } else { 1 }.to_le_bytes()).collect();
    let values = [
        ("tokenizer.ggml.model", 8u32, text("gpt2")),
        ("tokenizer.ggml.pre", 8, text(pre)),
        (
            "tokenizer.ggml.tokens",
            9,
            list(8, tokens.len(), tokens.iter().flat_map(|token| text(token)).collect()),
        ),
        ("tokenizer.ggml.token_type", 9, list(5, tokens.len(), kinds)),
        ("tokenizer.ggml.merges", 9, list(8, 0, Vec::new())),
        ("tokenizer.ggml.bos_token_id", 4, begin.to_le_bytes().to_vec()),
    ];
    let mut file = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes()].concat();
    file.extend((values.len() as u64).to_le_bytes());
    for (key, kind, bytes) in values {
        file.extend([&text(key)[..], &kind.to_le_bytes(), &bytes].concat());
    }
    file.resize(file.len().next_multiple_of(32), 0);
    let path = std::env::temp_dir().join(format!("pinion-text-{name}-{}.gguf", std::process::id()));
    std::fs::write(&path, file).unwrap();
    (path, begin)
}

/// A part that the expression finds and that is a token is taken whole, without merges.
#[test]
fn mistrals_expression_splits_at_case_and_at_each_digit() {
    const WORDS: [&str; 10] = ["Foo", "Bar", "FooBar", "ABC", "ABCd", "12", "don", "'t", "don't", ")/"];
    let (path, begin) = byte_level_file("tekken", "tekken", &WORDS);
    let codec = TextCodec::load(&path).unwrap_or_else(|error| panic!("{error}"));
    let word = |word: &str| {
        let at = WORDS.iter().position(|known| *known == word);
        at.map_or_else(|| u32::from(word.as_bytes()[0]), |at| 256 + at as u32)
    };
    for (text, parts) in [
        ("FooBar", &["Foo", "Bar"][..]),
        ("ABCd", &["ABCd"]),
        ("12", &["1", "2"]),
        ("don't", &["don", "'t"]),
        (")/", &[")/"]),
    ] {
        let expected: Vec<u32> = [begin].into_iter().chain(parts.iter().map(|part| word(part))).collect();
        assert_eq!(codec.encode_framed(text, 64), Ok(expected), "{text}");
        assert_eq!(codec.decode_all(&codec.encode(text, 64).unwrap()), text);
    }
    std::fs::remove_file(path).unwrap();
}
