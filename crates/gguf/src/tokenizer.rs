//! The vocabulary of a file as tokenizer.json and tokenizer_config.json.

use crate::merges::Merges;
use crate::vocabulary::{Added, Kind, Role, Vocabulary, shortened};
use crate::{Error, Header};
use serde::Serialize;
use serde_json::{Value as Json, json};

/// Expressions that split a text before merges, by `tokenizer.ggml.pre`.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Mistral's, as its tokenizer.json has it. llama.cpp runs a simpler one, which knows upper and lower case of a to z
/// only.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const PRE: &str = "tokenizer.ggml.pre";

/// Values of `tokenizer.ggml.pre` that mean Llama 3's.
const OF_LLAMA3: [&str; 3] = ["llama-bpe", "llama3", "llama-v3"];

/// Tokens that end a text: those that the file names, and those that are known by their text. A file often names one
/// only, which need not be the one that ends a turn of a chat.
pub(crate) fn ends(header: &Header) -> Result<Vec<u32>, Error> {
    let mut found = Vec::new();
    for role in [Role::End, Role::EndOfTurn, Role::EndOfMessage] {
        found.extend(role.id(header)?.filter(|id| !found.contains(id)));
    }
    let named = found.len();
    // What is wrong with the vocabulary is told where the tokenizer is made of it.
    if let Ok(vocabulary) = Vocabulary::read(header) {
        found.extend(vocabulary.ends().filter(|id| !found[..named].contains(id)).collect::<Vec<_>>());
    }
    Ok(found)
}

/// The token that begins a text.
pub(crate) fn begin(header: &Header) -> Result<Option<u32>, Error> {
    Role::Begin.id(header)
}

/// What tokenizer.json has. A tree of its JSON would take many times the memory.
#[derive(Serialize)]
struct Tokenizer<'a> {
    version: &'static str,
    added_tokens: Vec<Added<'a>>,
    normalizer: Json,
    pre_tokenizer: Json,
    post_processor: Json,
    decoder: Json,
    model: BytePairs<'a>,
}

/// A model of byte-pair encoding.
#[derive(Serialize)]
struct BytePairs<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    dropout: Option<f32>,
    unk_token: Option<&'a str>,
    continuing_subword_prefix: Option<&'a str>,
    end_of_word_suffix: Option<&'a str>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: &'a Vocabulary<'a>,
    merges: Merges<'a>,
}

impl<'a> BytePairs<'a> {
    fn new(vocab: &'a Vocabulary<'a>, merges: Merges<'a>) -> Self {
        Self {
            kind: "BPE",
            dropout: None,
            unk_token: None,
            continuing_subword_prefix: None,
            end_of_word_suffix: None,
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: false,
            vocab,
            merges,
        }
    }
}

/// What is before and behind the byte-pair encoding, and the encoding.
struct Stages<'a> {
    normalizer: Json,
    pre_tokenizer: Json,
    decoder: Json,
    model: BytePairs<'a>,
}

/// tokenizer.json.
pub(crate) fn tokenizer(header: &Header) -> Result<Vec<u8>, Error> {
    let vocabulary = Vocabulary::read(header)?;
    let added_tokens = vocabulary.added()?;
    let Stages { normalizer, pre_tokenizer, decoder, model } = match Kind::of(header)? {
        Kind::Bytes => byte_level(header, &vocabulary)?,
        Kind::Pieces => pieces(header, &vocabulary)?,
    };
    let post_processor = frame(header, &vocabulary)?;
    let found =
        Tokenizer { version: "1.0", added_tokens, normalizer, pre_tokenizer, post_processor, decoder, model };
    Ok(serde_json::to_vec(&found).expect("texts and numbers serialise"))
}

/// What is put around every text, as a post-processor.
fn frame(header: &Header, vocabulary: &Vocabulary<'_>) -> Result<Json, Error> {
    // What llama.cpp does where the file says nothing.
    let begins = |pre: &str| OF_LLAMA3.contains(&pre) || pre == "tekken";
    let is_begun = Kind::of(header)? == Kind::Pieces || header.text(PRE)?.is_some_and(begins);
    let has_begin = header.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(is_begun);
    let has_end = header.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
    let mut special = json!({});
    let mut mark = |role: Role, is_there: bool, flag: &str| -> Result<Option<Json>, Error> {
        if !is_there {
            return Ok(None);
        }
        let Some((id, token)) = vocabulary.named(header, role)? else {
            return Err(Error(format!("adds a token to every text and names none: {flag}")));
        };
        special[token] = json!({"id": token, "ids": [id], "tokens": [token]});
        Ok(Some(json!({"SpecialToken": {"id": token, "type_id": 0}})))
    };
    let before = mark(Role::Begin, has_begin, "tokenizer.ggml.add_bos_token")?;
    let behind = mark(Role::End, has_end, "tokenizer.ggml.add_eos_token")?;
    if before.is_none() && behind.is_none() {
        return Ok(Json::Null);
    }
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let single: Vec<Json> = before.into_iter().chain([text.clone()]).chain(behind).collect();
    Ok(json!({"type": "TemplateProcessing", "single": single, "pair": [text], "special_tokens": special}))
}

/// GPT-2's kind.
fn byte_level<'a>(header: &Header, vocabulary: &'a Vocabulary<'a>) -> Result<Stages<'a>, Error> {
    let bytes = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": use_regex});
    let split = |expression: &str| {
        let split = json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false});
        json!({"type": "Sequence", "pretokenizers": [split, bytes(false)]})
    };
    let (normalizer, pre_tokenizer, ignore_merges) = match header.text(PRE)? {
        Some("gpt-2") => (Json::Null, bytes(true), false),
        Some(pre) if OF_LLAMA3.contains(&pre) => (Json::Null, split(LLAMA3), true),
        Some("tekken") => (Json::Null, split(TEKKEN), true),
        Some("qwen2" | "deepseek-r1-qwen") => (json!({"type": "NFC"}), split(QWEN2), false),
        Some("smollm") => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            (Json::Null, json!({"type": "Sequence", "pretokenizers": [digits, bytes(true)]}), false)
        }
        other => {
            let other = shortened(other.unwrap_or("(absent)"));
            let supported = "gpt-2, llama-bpe, tekken, qwen2, deepseek-r1-qwen, smollm";
            return Err(Error(format!("{PRE} {other} is not supported; supported: {supported}")));
        }
    };
    let merges = Merges::of_file(header, vocabulary)?;
    let model = BytePairs { ignore_merges, ..BytePairs::new(vocabulary, merges) };
    Ok(Stages { normalizer, pre_tokenizer, decoder: bytes(true), model })
}

/// SentencePiece's kind: the pieces with the best scores are merged first, and what has no piece is bytes.
fn pieces<'a>(header: &Header, vocabulary: &'a Vocabulary<'a>) -> Result<Stages<'a>, Error> {
    let has_prefix = header.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    if header.flag("tokenizer.ggml.remove_extra_whitespaces")? == Some(true) {
        return Err(Error("has tokenizer.ggml.remove_extra_whitespaces, which is not supported".into()));
    }
    let mut normalizers = vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"})];
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if has_prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "\u{2581}"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let merges = Merges::of_scores(header, vocabulary)?;
    let unk_token = vocabulary.named(header, Role::Unknown)?.map(|(_, unknown)| unknown);
    let model =
        BytePairs { unk_token, fuse_unk: true, byte_fallback: true, ..BytePairs::new(vocabulary, merges) };
    Ok(Stages {
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        pre_tokenizer: Json::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        model,
    })
}

/// tokenizer_config.json: the tokens that templates name, and the chat templates.
pub(crate) fn tokenizer_config(header: &Header) -> Result<Json, Error> {
    const TEMPLATE: &str = "tokenizer.chat_template";
    let vocabulary = Vocabulary::read(header)?;
    let mut found = json!({});
    for (name, role) in [
        ("bos_token", Role::Begin),
        ("eos_token", Role::End),
        ("unk_token", Role::Unknown),
        ("pad_token", Role::Padding),
    ] {
        if let Some((_, token)) = vocabulary.named(header, role)? {
            found[name] = token.into();
        }
    }
    let Some(default) = header.text(TEMPLATE)? else { return Ok(found) };
    let mut templates = vec![json!({"name": "default", "template": default})];
    for key in header.keys() {
        if let Some(name) = key.strip_prefix(TEMPLATE).and_then(|rest| rest.strip_prefix('.')) {
            templates.push(json!({"name": name, "template": header.text(key)?}));
        }
    }
    found["chat_template"] = if templates.len() == 1 { default.into() } else { templates.into() };
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

    use super::*;

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }

    fn list(kind: u32, count: usize, items: Vec<u8>) -> Vec<u8> {
        [&kind.to_le_bytes()[..], &(count as u64).to_le_bytes(), &items].concat()
    }

    /// A file with this vocabulary, which names one end.
    fn header(tokens: &[(&str, i32)], end: u32) -> Header {
        let texts = tokens.iter().flat_map(|(token, _)| text(token)).collect();
        let kinds = tokens.iter().flat_map(|(_, kind)| kind.to_le_bytes()).collect();
        let values = [
            ("tokenizer.ggml.model", 8u32, text("gpt2")),
            ("tokenizer.ggml.tokens", 9, list(8, tokens.len(), texts)),
            ("tokenizer.ggml.token_type", 9, list(5, tokens.len(), kinds)),
            ("tokenizer.ggml.eos_token_id", 4, end.to_le_bytes().to_vec()),
        ];
        let mut file = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes()].concat();
        file.extend((values.len() as u64).to_le_bytes());
        for (key, kind, bytes) in values {
            file.extend([&text(key)[..], &kind.to_le_bytes(), &bytes].concat());
        }
        file.resize(file.len().next_multiple_of(32), 0);
        Header::read(&file[..], file.len() as u64).unwrap()
    }

    /// Published files of chat models name the end of a text and not that of a turn.
    #[test]
    fn special_tokens_that_are_known_as_ends_end_a_text() {
        let tokens =
            [("a", 1), ("<|end_of_text|>", 3), ("<|eot_id|>", 3), ("</s>", 1), ("<|im_end|>", 4), ("<s>", 3)];
        assert_eq!(ends(&header(&tokens, 1)), Ok(vec![1, 2, 4]));
        assert_eq!(ends(&header(&tokens, 4)), Ok(vec![4, 1, 2]));
    }
}
