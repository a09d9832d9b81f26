//! Incremental decode against the tokenizer library's decode of the whole, over real multilingual text and
//! random ids. The byte-level tokenizer is trained here with so few merges that characters split.

#![allow(clippy::unwrap_used)] // a failed unwrap here is a failed test

use pinion_text::{TextCodec, TextStream, byte_tokenizer_json};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::LazyLock;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer, TokenizerBuilder};

/// Latin with accents, CJK, Hangul, Arabic, Cyrillic, Devanagari, emoji sequences, combining marks, control
/// characters, and a genuine U+FFFD.
const SAMPLE: [&str; 14] = [
    "All human beings are born free and equal in dignity and rights. They're endowed with reason.",
    "Tous les êtres humains naissent libres et égaux; façade, Œuvre, naïveté, ‘à côté’ — déjà vu…",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "人人生而自由,在尊嚴和權利上一律平等。他們賦有理性和良心,並應以兄弟關係的精神相對待。𠮷野家",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق.",
    "Все люди рождаются свободными и равными в своём достоинстве и правах.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "👩‍👩‍👧‍👦 👨🏽‍🚀 🏳️‍🌈 🇯🇵🇨🇦 1️⃣ ❤️‍🔥 🤷🏾‍♀️",
    "e\u{301}a\u{308}o\u{302}\u{323} Z\u{351}\u{36B}\u{343}a\u{328}\u{30A}l\u{335}g\u{321}o\u{322}",
    "\u{0}\u{1}\u{7}\u{8}\t\r\n\u{1b}[0m\u{7f}\u{85}\u{a0}\u{200b}\u{2028}\u{feff}end",
    "a real \u{FFFD} stays, two \u{FFFD}\u{FFFD} too",
    "  indented\n\n\tfn main() { println!(\"{}\", 1 + 1); }   \n",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \u{10FFFF}\u{E000} ﷽ ǅ ß ﬁ Ⅷ ½ ²",
];

/// The library's tokenizer, which is the oracle, and ours from the same file.
struct Pair {
    oracle: Tokenizer,
    codec: TextCodec,
}

fn pair(json: &str) -> Pair {
    let codec = TextCodec::parse(json.as_bytes(), Path::new("tokenizer.json")).unwrap();
    Pair { oracle: Tokenizer::from_bytes(json).unwrap(), codec }
}

static TRAINED: LazyLock<Pair> = LazyLock::new(|| {
    let mut trainer = BpeTrainer::builder()
        .vocab_size(420)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(vec![AddedToken::from("<|endoftext|>", true)])
        .build();
    let byte_level = ByteLevel::new(false, true, true);
    let mut tokenizer = TokenizerBuilder::default()
        .with_model(BPE::default())
        .with_normalizer(None::<NFC>)
        .with_pre_tokenizer(Some(byte_level))
        .with_post_processor(Some(byte_level))
        .with_decoder(Some(byte_level))
        .build()
        .unwrap();
    tokenizer.train(&mut trainer, SAMPLE.iter()).unwrap();
    // An added token that is not special shows its text, and may lie outside the byte alphabet.
    tokenizer.add_tokens([AddedToken::from("<図>", false)]).unwrap();
    pair(&tokenizer.to_string(false).unwrap())
});

static BYTES: LazyLock<Pair> = LazyLock::new(|| pair(&byte_tokenizer_json()));

/// Pushes all ids, then finishes; checks every piece on the way.
fn streamed(codec: &TextCodec, stream: &mut TextStream, ids: &[u32], held_max: usize) -> String {
    let (mut text, mut quiet) = (String::new(), 0);
    for &id in ids {
        let before = text.len();
        stream.push(codec, id, &mut text);
        quiet = if text.len() > before || codec.decode_all(&[id]).is_empty() { 0 } else { quiet + 1 };
        assert!(quiet <= held_max, "stalled for {quiet} tokens at {id} of {ids:?}");
    }
    stream.finish(codec, &mut text);
    text
}

fn check(pair: &Pair, ids: &[u32]) {
    let whole = pair.oracle.decode(ids, true).unwrap();
    assert_eq!(pair.codec.decode_all(ids), whole, "decode_all of {ids:?}");
    let mut stream = TextStream::new(&pair.codec);
    assert_eq!(streamed(&pair.codec, &mut stream, ids, 3), whole, "stream of {ids:?}");
}

#[test]
fn multilingual_text_comes_back_whole() {
    for pair in [&*TRAINED, &*BYTES] {
        for text in SAMPLE.iter().map(|s| (*s).to_owned()).chain([SAMPLE.join("\n")]) {
            let ids = pair.codec.encode(&text, 1 << 20).unwrap();
            assert_eq!(ids, pair.oracle.encode(text.as_str(), false).unwrap().get_ids());
            assert_eq!(pair.codec.decode_all(&ids), text);
            check(pair, &ids);
            // Cut anywhere: the beginning and the end of the cut are unfinished characters.
            for cut in 0..ids.len().min(200) {
                check(pair, &ids[..cut]);
                check(pair, &ids[cut..]);
            }
        }
    }
    let split = TRAINED.codec.encode("😀", 64).unwrap();
    assert!(split.len() > 1, "the trained vocabulary is too good for this test: {split:?}");
}

/// A stream is a function of its tokens: after a restart it is rebuilt by pushing them again and dropping
/// the text, which was sent before.
#[test]
fn a_rebuilt_stream_goes_on_exactly() {
    let pair = &*TRAINED;
    let ids = pair.codec.encode(&SAMPLE.join(" "), 1 << 20).unwrap();
    let whole = pair.codec.decode_all(&ids);
    for cut in (0..ids.len()).step_by(7) {
        let (mut sent, mut again) = (String::new(), String::new());
        let (mut stream, mut rebuilt) = (TextStream::new(&pair.codec), TextStream::new(&pair.codec));
        for &id in &ids[..cut] {
            stream.push(&pair.codec, id, &mut sent);
            rebuilt.push(&pair.codec, id, &mut again);
        }
        assert_eq!(again, sent);
        assert_eq!(sent + &streamed(&pair.codec, &mut rebuilt, &ids[cut..], 3), whole, "rebuilt after {cut}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn random_ids_equal_the_library(ids in prop::collection::vec(0_u32..430, 0..60)) {
        check(&TRAINED, &ids);
    }

    #[test]
    fn random_bytes_equal_the_library(
        ids in prop::collection::vec(
            prop_oneof![0_u32..258, prop::sample::select(vec![0xC3, 0xE4, 0xBD, 0xA0, 0xF0, 0x9F, 0x91, 0xA9])],
            0..60,
        )
    ) {
        check(&BYTES, &ids);
    }

    #[test]
    fn random_text_comes_back(text in any::<String>()) {
        for pair in [&*TRAINED, &*BYTES] {
            let ids = pair.codec.encode(&text, 1 << 20).unwrap();
            prop_assert_eq!(&pair.codec.decode_all(&ids), &text);
            check(pair, &ids);
        }
    }
}

/// A word-level tokenizer over `words` with the given decoder; the first word is special.
fn with_decoder(words: &[&str], decoder: &Value) -> Pair {
    let vocab: serde_json::Map<String, Value> =
        words.iter().enumerate().map(|(id, word)| ((*word).to_owned(), json!(id))).collect();
    let special = json!([{"id": 0, "content": words[0], "special": true, "normalized": false,
        "single_word": false, "lstrip": false, "rstrip": false}]);
    let model = json!({"type": "WordLevel", "vocab": vocab, "unk_token": words[0]});
    pair(&json!({"version": "1.0", "added_tokens": special, "model": model, "decoder": decoder}).to_string())
}

/// Decoders whose tokens depend on their neighbours go through the window.
#[test]
fn other_decoders_equal_the_library() {
    let words =
        ["[S]", "un", "##able", ".", "n't", "do", "able</w>", "a</w>", "▁The", "▁", "é", "|", "<pad>"];
    let decoders = [
        Value::Null,
        json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        json!({"type": "BPEDecoder", "suffix": "</w>"}),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
        json!({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true}),
        json!({"type": "Fuse"}),
    ];
    let mut random = pinion_random::Random::new(7);
    let mut next = |below: usize| random.below(below);
    for decoder in &decoders {
        let pair = with_decoder(&words, decoder);
        for _ in 0..200 {
            // Only the special token is left out of the start, because the library panics on nothing.
            let mut ids = vec![1 + next(words.len() - 1) as u32];
            ids.extend((0..next(120)).map(|_| next(words.len()) as u32));
            let whole = pair.oracle.decode(&ids, true).unwrap();
            assert_eq!(pair.codec.decode_all(&ids), whole, "{decoder} {ids:?}");
            let mut stream = TextStream::new(&pair.codec);
            assert_eq!(streamed(&pair.codec, &mut stream, &ids, usize::MAX), whole, "{decoder} {ids:?}");
        }
        assert_eq!(pair.codec.decode_all(&[0, 0]), "", "{decoder}: special tokens only");
    }
}

/// Llama 2's chain. For valid text it equals the library; a byte that belongs to no character is one
/// U+FFFD, where the library would also replace the whole characters in the same run of byte tokens, which
/// could not be streamed.
#[test]
fn byte_fallback_streams_whole_characters() {
    let words = ["<s>", "▁Hello", "▁", "<0xE4>", "<0xBD>", "<0xA0>", "<0x0A>", "你", "x"];
    let chain = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]});
    let pair = with_decoder(&words, &chain);
    for ids in [&[0, 1, 3, 4, 5, 6, 1, 7][..], &[2, 1, 8], &[8, 2, 2], &[3, 4, 5, 3, 4, 5], &[2], &[]] {
        check(&pair, ids);
    }
    let mut stream = TextStream::new(&pair.codec);
    assert_eq!(streamed(&pair.codec, &mut stream, &[3, 4, 5, 3, 4, 8, 3], 3), "你\u{FFFD}x\u{FFFD}");
}

/// The text behind a prompt is what the library shows of both, without what it shows of the prompt.
#[test]
fn a_text_that_goes_on_keeps_its_first_space() {
    let llama = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]});
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let words = ["<s>", "▁The", "▁capital", "▁is", "s", "▁"];
    for decoder in [&llama, &metaspace, &Value::Null] {
        let pair = with_decoder(&words, decoder);
        for answer in [&[2, 3, 4][..], &[0, 2], &[4, 3], &[5, 5, 2], &[0], &[]] {
            let prompt = [0, 1];
            let before = pair.oracle.decode(&prompt, true).unwrap();
            let both = pair.oracle.decode(&[&prompt, answer].concat(), true).unwrap();
            let mut stream = TextStream::continuing(&pair.codec);
            let text = streamed(&pair.codec, &mut stream, answer, usize::MAX);
            assert_eq!(before + &text, both, "{decoder} {answer:?}");
        }
    }
}

#[test]
fn special_tokens_are_shown_as_the_library_shows_them() {
    let llama = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]});
    let words = ["<s>", "▁The", "▁capital", "<0xE4>", "<0xBD>", "<0xA0>"];
    for decoder in
        [&llama, &json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})]
    {
        let pair = with_decoder(&words, decoder);
        for ids in [&[0, 1, 2][..], &[1, 0, 2], &[3, 4, 5, 0, 0], &[2], &[0]] {
            let (mut stream, mut text) = (TextStream::new(&pair.codec), String::new());
            ids.iter().for_each(|id| stream.push_shown(&pair.codec, *id, &mut text));
            stream.finish(&pair.codec, &mut text);
            assert_eq!(text, pair.oracle.decode(ids, false).unwrap(), "{decoder} {ids:?}");
            assert_eq!(
                pair.codec.decode_shown(ids),
                pair.oracle.decode(ids, false).unwrap(),
                "{decoder} {ids:?}"
            );
        }
    }
}
