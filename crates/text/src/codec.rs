//! A model folder's tokenizer: load, encode, decode.

use crate::added;
use crate::byte_table::{ByteTable, shown_token};
use crate::call_marks::with_shown_marks;
use crate::frame::{Configured, Frame};
use crate::stream::TextStream;
use crate::tokenizer_config;
use pinion_protocol::limits::VOCAB_MAX;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

/// Largest tokenizer.json read, in bytes; the largest in use today are near 40 MB.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Largest of the other files, in bytes: a tree is made of them, which takes many times as much.
pub(crate) const CONFIG_BYTES_MAX: u64 = 16 << 20;
/// Bytes of input text that a normalizer may fold into one byte of a token (canonical composition folds at
/// most three).
const NORMALIZER_SHRINK_MAX: usize = 4;

/// A loaded tokenizer.
pub struct TextCodec {
    tokenizer: Tokenizer,
    table: Option<ByteTable>,
    vocab_size: u32,
    eos_id: Option<u32>,
    bytes_per_token_max: usize,
    frame: Frame,
    ignored: Vec<String>,
    /// A token that shows a word, where there is no table.
    word: Option<u32>,
}

/// Why a folder's tokenizer or chat template can't be used. Names the file.
#[derive(Debug)]
pub enum LoadError {
    /// The file is not there.
    Missing(PathBuf),
    /// The file can't be read.
    Unreadable(PathBuf, std::io::Error),
    /// The file ends in the middle of its JSON.
    Truncated(PathBuf),
    /// The file is not JSON; says where.
    NotJson(PathBuf, String),
    /// The file is JSON but not a tokenizer, or one that can't be served; says what is wrong.
    Wrong(PathBuf, String),
    /// The file has a chat template that can't be used; says what is wrong.
    Template(PathBuf, String),
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LoadError::Missing(path) => write!(f, "{}: no such file", path.display()),
            LoadError::Unreadable(path, error) => write!(f, "{}: cannot read: {error}", path.display()),
            LoadError::Truncated(path) => write!(f, "{}: truncated: the JSON ends early", path.display()),
            LoadError::NotJson(path, reason) => write!(f, "{}: not JSON: {reason}", path.display()),
            LoadError::Wrong(path, reason) => {
                write!(f, "{}: not a usable tokenizer: {reason}", path.display())
            }
            LoadError::Template(path, reason) => {
                write!(f, "{}: not a usable chat template: {reason}", path.display())
            }
        }
    }
}

impl std::error::Error for LoadError {}

/// Why a text was not encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// No sequence of the allowed number of tokens can spell this many bytes.
    TooLong {
        /// Length of the text.
        bytes: usize,
        /// Longest text that was worth encoding.
        bytes_max: usize,
    },
    /// The tokenizer library failed on this text; says how.
    Failed(String),
}

impl std::fmt::Display for EncodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EncodeError::TooLong { bytes, bytes_max } => {
                write!(f, "the text has {bytes} bytes, but at most {bytes_max} can fit the context")
            }
            EncodeError::Failed(reason) => write!(f, "the text cannot be encoded: {reason}"),
        }
    }
}

impl std::error::Error for EncodeError {}

impl TextCodec {
    /// Loads `tokenizer.json` from a model folder; the end-of-sequence token, further special tokens, and whether any
    /// are added to a text, come from `tokenizer_config.json` if that is there.
    pub fn load(folder: &Path) -> Result<TextCodec, LoadError> {
        let path = folder.join("tokenizer.json");
        let bytes = read_bounded(&path, FILE_BYTES_MAX)?;
        // What is wrong with the file is told where the chat template is read.
        let config = tokenizer_config::read(folder).ok().flatten().unwrap_or_default();
        let added_file = tokenizer_config::optional_json(&folder.join("added_tokens.json")).ok().flatten();
        let mut left_out = Vec::new();
        let mut codec = TextCodec::build(&bytes, &path, |tokenizer| {
            // A GGUF file says of each token itself what it is.
            if pinion_gguf::of_path(&path).is_none() {
                left_out = added::add(tokenizer, &config, added_file.as_ref())?;
            }
            Ok(())
        })?;
        let configured = Configured::of(&config);
        let id_of = |token: &str| codec.tokenizer.token_to_id(token);
        codec.eos_id = configured.end.as_deref().and_then(id_of).or(codec.eos_id);
        codec.ignored = configured.apply(&mut codec.frame, id_of);
        codec.ignored.append(&mut left_out);
        Ok(codec)
    }

    /// The tokenizer in `bytes`; `path` is only named in errors.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<TextCodec, LoadError> {
        TextCodec::build(bytes, path, |_| Ok(()))
    }

    /// The same with what `change` does to the tokenizer.
    fn build(
        bytes: &[u8],
        path: &Path,
        change: impl FnOnce(&mut Tokenizer) -> tokenizers::Result<()>,
    ) -> Result<TextCodec, LoadError> {
        // The tokenizer library panics on some syntax errors, so JSON is checked before it sees the bytes.
        serde_json::from_slice::<serde::de::IgnoredAny>(bytes).map_err(|error| match error.classify() {
            serde_json::error::Category::Eof => LoadError::Truncated(path.to_owned()),
            _ => LoadError::NotJson(path.to_owned(), error.to_string()),
        })?;
        let wrong = |reason: String| LoadError::Wrong(path.to_owned(), reason);
        let mut tokenizer = guarded(|| Tokenizer::from_bytes(with_shown_marks(bytes))).map_err(wrong)?;
        // Limits are ours to check; a stored truncation or padding would silently change prompts.
        tokenizer.with_truncation(None).map_err(|e| wrong(e.to_string()))?;
        tokenizer.with_padding(None);
        guarded(|| change(&mut tokenizer)).map_err(wrong)?;
        let vocab_size = match tokenizer.get_vocab(true).into_values().max() {
            None => return Err(wrong("the vocabulary is empty".to_owned())),
            Some(id) if id >= VOCAB_MAX => {
                return Err(wrong(format!("token id {id} is over the limit of {VOCAB_MAX}")));
            }
            Some(id) => id + 1,
        };
        let table = guarded(|| Ok(ByteTable::build(&tokenizer, vocab_size))).map_err(wrong)?;
        let added = tokenizer.get_added_vocabulary().get_vocab().keys().map(String::len).max().unwrap_or(0);
        let longest = match &table {
            Some(table) => table.longest(),
            None => (0..vocab_size)
                .filter_map(|id| shown_token(&tokenizer, id))
                .map(|t| t.len())
                .max()
                .unwrap_or(0),
        };
        let shrink = if tokenizer.get_normalizer().is_some() { NORMALIZER_SHRINK_MAX } else { 1 };
        let eos_id = tokenizer.token_to_id("<|endoftext|>");
        let bytes_per_token_max = longest.max(added).max(1) * shrink;
        let frame = guarded(|| Frame::of(&tokenizer)).map_err(wrong)?;
        let mut codec = TextCodec {
            tokenizer,
            table,
            vocab_size,
            eos_id,
            bytes_per_token_max,
            frame,
            ignored: Vec::new(),
            word: None,
        };
        codec.word = codec.find_word();
        Ok(codec)
    }

    /// Ids are below this. A model may have more rows than its tokenizer has tokens.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// The end-of-sequence token, where the folder names one or the vocabulary has GPT-2's.
    pub fn eos_id(&self) -> Option<u32> {
        self.eos_id
    }

    /// What tokenizer_config.json says of special tokens and is not followed, in words that follow the file's name.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// Whether the text of a sequence is the sum of its tokens' bytes.
    pub fn concatenates(&self) -> bool {
        self.table.is_some()
    }

    /// Spaces at the very start of a text that are not shown.
    pub fn leading_spaces(&self) -> u8 {
        self.table.as_ref().map_or(0, |table| table.leading_spaces)
    }

    /// The name of a special token, which shows no text.
    pub fn special_token(&self, id: u32) -> Option<String> {
        let added = self.tokenizer.get_added_vocabulary();
        self.tokenizer.id_to_token(id).filter(|token| added.is_special_token(token))
    }

    /// The id of a mark that is one token.
    pub fn mark_id(&self, mark: &str) -> Option<u32> {
        self.tokenizer.token_to_id(mark)
    }

    /// No token spells more bytes of text than this.
    pub fn bytes_per_token_max(&self) -> usize {
        self.bytes_per_token_max
    }

    /// The text's ids, without added special tokens. Special tokens *written in* the text are recognised.
    /// A text that can't fit `tokens_max` tokens is refused before any work is done on it; a text that is
    /// encoded may still have more.
    pub fn encode(&self, text: &str, tokens_max: usize) -> Result<Vec<u32>, EncodeError> {
        let bytes_max = tokens_max.saturating_mul(self.bytes_per_token_max);
        if text.len() > bytes_max {
            return Err(EncodeError::TooLong { bytes: text.len(), bytes_max });
        }
        let encoding = guarded(|| self.tokenizer.encode_fast(text, false)).map_err(EncodeError::Failed)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The same with the tokens that the tokenizer puts around every text, each of them once: a text that is written
    /// with its beginning-of-sequence token gets no second one.
    pub fn encode_framed(&self, text: &str, tokens_max: usize) -> Result<Vec<u32>, EncodeError> {
        let mut ids = self.encode(text, tokens_max)?;
        let Frame { before, behind } = &self.frame;
        if !ids.starts_with(before) {
            ids.splice(..0, before.iter().copied());
        }
        if !ids.ends_with(behind) {
            ids.extend_from_slice(behind);
        }
        Ok(ids)
    }

    /// Cuts the ids of a text to their first `kept`. If they are framed, the tokens behind the text stay: the text is
    /// cut in front of them.
    pub fn keep_first(&self, ids: &mut Vec<u32>, kept: usize, is_framed: bool) {
        if ids.len() <= kept {
            return;
        }
        let behind = if is_framed { self.frame.behind.as_slice() } else { &[] };
        ids.truncate(kept.saturating_sub(behind.len()));
        ids.extend_from_slice(behind);
        ids.truncate(kept);
    }

    /// The text of all ids at once, with the names of special tokens. Ids outside the vocabulary show nothing.
    pub fn decode_shown(&self, ids: &[u32]) -> String {
        if self.table.is_none() {
            return guarded(|| self.tokenizer.decode(ids, false)).unwrap_or_default();
        }
        let (mut stream, mut text) = (TextStream::new(self), String::new());
        for &id in ids {
            stream.push_shown(self, id, &mut text);
        }
        stream.finish(self, &mut text);
        text
    }

    /// The text of all ids at once; special tokens and ids outside the vocabulary show nothing.
    pub fn decode_all(&self, ids: &[u32]) -> String {
        let mut text = String::new();
        if self.table.is_some() {
            let mut stream = TextStream::new(self);
            for &id in ids {
                stream.push(self, id, &mut text);
            }
            stream.finish(self, &mut text);
        } else {
            self.decode_whole(ids, &mut text);
        }
        text
    }

    pub(crate) fn table(&self) -> Option<&ByteTable> {
        self.table.as_ref()
    }

    /// A token that shows a word, for tokenizers without a byte table: what stands for the text before a stream.
    pub(crate) fn any_word(&self) -> Option<u32> {
        self.word
    }

    fn find_word(&self) -> Option<u32> {
        let mut text = String::new();
        let mut is_word = |id: &u32| {
            self.decode_whole(&[*id], &mut text);
            !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        (0..self.vocab_size).filter(|_| self.table.is_none()).find(|id| is_word(id))
    }

    /// Whether the token shows text at all. Only for tokenizers without a byte table.
    pub(crate) fn shows(&self, id: u32) -> bool {
        shown_token(&self.tokenizer, id).is_some()
    }

    /// Replaces `out` by the library's decode. Ids on which the library fails give no text.
    pub(crate) fn decode_whole(&self, ids: &[u32], out: &mut String) {
        out.clear();
        // Some decoders of the library panic when no token is left after skipping the special ones.
        if ids.iter().any(|&id| self.shows(id)) {
            out.push_str(&guarded(|| self.tokenizer.decode(ids, true)).unwrap_or_default());
        }
    }
}

/// Runs library code for which a malformed file or an odd text may be a panic: one request's text must
/// not end the process.
fn guarded<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the tokenizer library panicked".to_owned()),
    }
}

/// A file of a model's folder; of a GGUF file, what it says instead.
pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> Result<Vec<u8>, LoadError> {
    let too_large = || LoadError::Wrong(path.to_owned(), format!("larger than {bytes_max} bytes"));
    if let Some((model, name)) = pinion_gguf::of_path(path) {
        let found = pinion_gguf::folder_file(model, name);
        let found = found.map_err(|error| LoadError::Wrong(model.to_owned(), error.to_string()))?;
        let found = found.ok_or_else(|| LoadError::Missing(path.to_owned()))?;
        return if found.len() as u64 > bytes_max { Err(too_large()) } else { Ok(found) };
    }
    let unreadable = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => LoadError::Missing(path.to_owned()),
        _ => LoadError::Unreadable(path.to_owned(), error),
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > bytes_max {
        return Err(too_large());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::byte_tokenizer_json;

    #[test]
    fn a_bad_file_is_named_with_its_reason() {
        let path = Path::new("folder/tokenizer.json");
        let whole = byte_tokenizer_json();
        let cases: [(&[u8], &str); 8] = [
            (&whole.as_bytes()[..whole.len() / 2], "truncated"),
            (b"", "truncated"),
            (b"\x89PNG", "not JSON"),
            (b"{\"a\": 1} x", "not JSON"),
            (b"[]", "not a usable tokenizer"),
            (b"{\"version\": \"1.0\"}", "not a usable tokenizer"),
            (b"{\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}}", "the vocabulary is empty"),
            (
                b"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 4000000000}, \"merges\": []}}",
                "over the limit",
            ),
        ];
        for (bytes, expected) in cases {
            let message = TextCodec::parse(bytes, path).err().expect(expected).to_string();
            assert!(
                message.starts_with("folder/tokenizer.json: ") && message.contains(expected),
                "{message}"
            );
        }
        let missing = TextCodec::load(Path::new("/no/such/folder")).err().expect("missing").to_string();
        assert_eq!(missing, "/no/such/folder/tokenizer.json: no such file");
    }

    #[test]
    fn no_mutation_of_the_file_panics() {
        let whole = byte_tokenizer_json().into_bytes();
        let mut random = pinion_random::Random::new(1);
        for _ in 0..300 {
            let mut bytes = whole.clone();
            bytes[random.below(whole.len())] = random.bits() as u8;
            if let Ok(codec) = TextCodec::parse(&bytes, Path::new("t")) {
                let _ = codec.encode("héllo", 64).map(|ids| codec.decode_all(&ids));
            }
        }
    }

    #[test]
    fn encode_is_bounded_and_adds_nothing() {
        let codec = TextCodec::parse(byte_tokenizer_json().as_bytes(), Path::new("t")).unwrap();
        assert_eq!((codec.vocab_size(), codec.eos_id()), (257, Some(256)));
        assert_eq!(codec.encode("hé", 8), Ok(vec![b'h'.into(), 0xC3, 0xA9]));
        assert_eq!(codec.encode("", 8), Ok(vec![]));
        assert_eq!(codec.encode("a<|endoftext|>", 8), Ok(vec![b'a'.into(), 256]));
        let long = "x".repeat(8 * codec.bytes_per_token_max() + 1);
        let refused = EncodeError::TooLong { bytes: long.len(), bytes_max: long.len() - 1 };
        assert_eq!(codec.encode(&long, 8), Err(refused));
        assert_eq!(codec.decode_all(&[b'a'.into(), 256, 0xC3, 999, 0xA9, 0xE4]), "aé\u{FFFD}");
    }

    fn with_post_processor(processor: serde_json::Value) -> TextCodec {
        let mut json: serde_json::Value = serde_json::from_str(&byte_tokenizer_json()).unwrap();
        json["post_processor"] = processor;
        TextCodec::parse(json.to_string().as_bytes(), Path::new("t")).unwrap()
    }

    #[test]
    fn the_config_frames_a_text_and_leaves_a_bare_one_alone() {
        let folder = std::env::temp_dir().join(format!("pinion-codec-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("tokenizer.json"), byte_tokenizer_json()).unwrap();
        let (a, end) = (u32::from(b'a'), 256);
        for (flag, framed) in [("true", vec![a, end]), ("false", vec![a]), ("null", vec![a])] {
            let config = format!("{{\"eos_token\": \"<|endoftext|>\", \"add_eos_token\": {flag}}}");
            std::fs::write(folder.join("tokenizer_config.json"), config).unwrap();
            let codec = TextCodec::load(&folder).unwrap();
            assert_eq!(codec.encode_framed("a", 8), Ok(framed), "{flag}");
            // As the text of a chat is encoded, whose template writes such tokens itself.
            assert_eq!(codec.encode("a", 8), Ok(vec![a]), "{flag}");
            assert!(codec.ignored().is_empty(), "{flag}");
        }
        std::fs::write(folder.join("tokenizer_config.json"), "{\"add_bos_token\": true}").unwrap();
        let ignored = TextCodec::load(&folder).unwrap().ignored().to_vec();
        assert_eq!(ignored, ["add_bos_token is true, but the vocabulary has no bos_token"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_frame_is_added_once() {
        let template = |parts: serde_json::Value| {
            serde_json::json!({"type": "TemplateProcessing", "single": parts, "pair": [{"Sequence": {"id": "A",
                "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}], "special_tokens": {"<|endoftext|>":
                {"id": "<|endoftext|>", "ids": [256], "tokens": ["<|endoftext|>"]}}})
        };
        let mark = serde_json::json!({"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}});
        let text = serde_json::json!({"Sequence": {"id": "A", "type_id": 0}});
        let before = with_post_processor(template(serde_json::json!([mark, text])));
        let behind = with_post_processor(template(serde_json::json!([text, mark])));
        let both = with_post_processor(template(serde_json::json!([mark, text, mark])));
        let a = u32::from(b'a');
        for (codec, written, framed) in [
            (&before, "a", vec![256, a]),
            (&before, "", vec![256]),
            (&before, "<|endoftext|>a", vec![256, a]),
            (&before, "<|endoftext|><|endoftext|>a", vec![256, 256, a]),
            (&before, "a<|endoftext|>", vec![256, a, 256]),
            (&behind, "a", vec![a, 256]),
            (&behind, "a<|endoftext|>", vec![a, 256]),
            (&both, "a", vec![256, a, 256]),
        ] {
            assert_eq!(codec.encode_framed(written, 8), Ok(framed), "{written}");
        }
        for (codec, kept, first) in [
            (&before, 3, vec![256, a, a + 1]),
            (&behind, 3, vec![a, a + 1, 256]),
            (&both, 3, vec![256, a, 256]),
            (&both, 6, vec![256, a, a + 1, a + 2, a + 3, 256]),
            (&both, 1, vec![256]),
        ] {
            let mut ids = codec.encode_framed("abcd", 8).unwrap();
            codec.keep_first(&mut ids, kept, true);
            assert_eq!(ids, first, "{kept}");
        }
        let mut ids = behind.encode("abcd", 8).unwrap();
        behind.keep_first(&mut ids, 2, false);
        assert_eq!(ids, [a, a + 1]);
        assert_eq!(before.encode("a", 8), Ok(vec![a]));
        let plain = TextCodec::parse(byte_tokenizer_json().as_bytes(), Path::new("t")).unwrap();
        assert_eq!(plain.encode_framed("a", 8), Ok(vec![a]));
        for text in ["a", "é", "two words", "終", " "] {
            let library = before.tokenizer.encode_fast(text, true).unwrap();
            assert_eq!(before.encode_framed(text, 64).as_deref(), Ok(library.get_ids()), "{text}");
        }
    }
}
