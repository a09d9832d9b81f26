//! What a tokenizer receives, all of it from frontends.

use crate::claim::Claim;
use crate::ids::RequestId;
use crate::limits::DETAIL_BYTES_MAX;
use crate::sampling::{Sampling, SamplingRecord};
use crate::wire::{Cursor, Malformed, put, put_ids};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Record kinds of this inbox.
pub mod kind {
    /// [`super::Submit`].
    pub const SUBMIT: u16 = 1;
    /// [`super::Encode`].
    pub const ENCODE: u16 = 2;
    /// [`super::Decode`].
    pub const DECODE: u16 = 3;
    /// [`super::Render`].
    pub const RENDER: u16 = 4;
}

/// A prompt in the form the client gave it.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Plain text, to be encoded with what the tokenizer puts around every text.
    Text(String),
    /// Plain text, to be encoded as it is.
    Bare(String),
    /// A chat as a JSON object (`messages`, `tools`, and how to render them), already checked in shape; to be rendered
    /// and encoded.
    Chat(String),
    /// Token ids, already checked against the vocabulary; only their number is left to check.
    Ids(Vec<u32>),
}

/// How much of a prompt is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Truncation {
    /// All of it.
    #[default]
    Never,
    /// This number of its last tokens, at least 1.
    Last(u32),
    /// The last tokens, as many as the context holds beside the answer.
    Fit,
    /// This number of its first tokens, at least 1. What the tokenizer puts behind every text is kept as the last of
    /// them.
    First(u32),
    /// The first tokens in the same way, as many as the context holds beside the answer.
    FitFirst,
}

impl Truncation {
    /// How many of a prompt's tokens are used, at least 1.
    pub fn kept(self, context: u32, max_tokens: Option<u32>) -> usize {
        match self {
            Truncation::Never => usize::MAX,
            Truncation::Last(count) | Truncation::First(count) => count.max(1) as usize,
            Truncation::Fit | Truncation::FitFirst => {
                context.saturating_sub(max_tokens.unwrap_or(1)).max(1) as usize
            }
        }
    }

    /// The same of the first tokens.
    pub fn of_first(self) -> Truncation {
        match self {
            Truncation::Never => Truncation::Never,
            Truncation::Last(count) | Truncation::First(count) => Truncation::First(count),
            Truncation::Fit | Truncation::FitFirst => Truncation::FitFirst,
        }
    }

    /// Whether the tokens that are used are the first ones.
    pub fn keeps_first(self) -> bool {
        matches!(self, Truncation::First(_) | Truncation::FitFirst)
    }

    /// As a header's `keeps` and `kept`.
    fn words(self) -> (u16, u32) {
        match self {
            Truncation::Never => (KEEPS_ALL, 0),
            Truncation::Last(count) => (KEEPS_LAST, count),
            Truncation::Fit => (KEEPS_LAST_FITTING, 0),
            Truncation::First(count) => (KEEPS_FIRST, count),
            Truncation::FitFirst => (KEEPS_FIRST_FITTING, 0),
        }
    }

    fn of_words(keeps: u16, kept: u32) -> Result<Truncation, Malformed> {
        match keeps {
            KEEPS_ALL => Ok(Truncation::Never),
            KEEPS_LAST => Ok(Truncation::Last(kept)),
            KEEPS_LAST_FITTING => Ok(Truncation::Fit),
            KEEPS_FIRST => Ok(Truncation::First(kept)),
            KEEPS_FIRST_FITTING => Ok(Truncation::FitFirst),
            _ => Err(Malformed("prompt truncation")),
        }
    }
}

/// A generation request.
#[derive(Clone, Debug, PartialEq)]
pub struct Submit {
    /// Whose it is.
    pub id: RequestId,
    /// Its claim on the engine.
    pub claim: Claim,
    /// How to draw.
    pub sampling: Sampling,
    /// What to continue.
    pub prompt: Prompt,
    /// How much of it is used.
    pub truncation: Truncation,
    /// When it was asked for, in seconds since 1970: the time that a chat's template reads, also after a restart.
    pub asked_unix_s: u64,
    /// Tokens already generated before a restart, to be continued from; normally empty.
    pub resume: Vec<u32>,
}

/// `/tokenize`: encode and send the ids back.
#[derive(Clone, Debug, PartialEq)]
pub struct Encode {
    /// Whose it is.
    pub id: RequestId,
    /// Text or a chat.
    pub prompt: Prompt,
    /// How much of it is sent back.
    pub truncation: Truncation,
}

/// `/detokenize`: decode and send the text back.
#[derive(Clone, Debug, PartialEq)]
pub struct Decode {
    /// Whose it is.
    pub id: RequestId,
    /// Ids, already checked against the vocabulary.
    pub ids: Vec<u32>,
}

/// `/apply-template`: render a chat and send the text back.
#[derive(Clone, Debug, PartialEq)]
pub struct Render {
    /// Whose it is.
    pub id: RequestId,
    /// As in [`Prompt::Chat`].
    pub chat: String,
}

/// Everything that can arrive here.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenizerRecord {
    /// A generation request.
    Submit(Submit),
    /// Encode only.
    Encode(Encode),
    /// Decode only.
    Decode(Decode),
    /// Render only.
    Render(Render),
}

const FORM_TEXT: u16 = 0;
const FORM_CHAT: u16 = 1;
const FORM_IDS: u16 = 2;
const FORM_BARE: u16 = 3;

const KEEPS_ALL: u16 = 0;
const KEEPS_LAST: u16 = 1;
const KEEPS_LAST_FITTING: u16 = 2;
const KEEPS_FIRST: u16 = 3;
const KEEPS_FIRST_FITTING: u16 = 4;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Header {
    id: RequestId,
    claim: Claim,
    /// Of a submission: see [`Submit::asked_unix_s`].
    asked_unix_s: u64,
    /// Its lists follow this header.
    sampling: SamplingRecord,
    form: u16,
    /// Which tokens of the prompt are used, see [`Truncation`].
    keeps: u16,
    /// Bytes for text and chats, ids for ids.
    prompt_len: u32,
    resume_len: u32,
    /// How many of them, with [`KEEPS_FIRST`] and [`KEEPS_LAST`].
    kept: u32,
}

/// Replaces `out` by the payload of a [`Submit`] of these parts.
pub fn encode_submit(
    out: &mut Vec<u8>,
    of: (RequestId, Claim),
    sampling: &Sampling,
    (prompt, truncation): (&Prompt, Truncation),
    asked_unix_s: u64,
    resume: &[u32],
) {
    out.clear();
    put_request(out, of, sampling, (prompt, truncation), asked_unix_s, resume);
}

fn put_request(
    out: &mut Vec<u8>,
    (id, claim): (RequestId, Claim),
    sampling: &Sampling,
    (prompt, truncation): (&Prompt, Truncation),
    asked_unix_s: u64,
    resume: &[u32],
) {
    let (form, prompt_len) = match prompt {
        Prompt::Text(text) => (FORM_TEXT, text.len()),
        Prompt::Bare(text) => (FORM_BARE, text.len()),
        Prompt::Chat(json) => (FORM_CHAT, json.len()),
        Prompt::Ids(ids) => (FORM_IDS, ids.len()),
    };
    let (keeps, kept) = truncation.words();
    let header = Header {
        id,
        claim,
        asked_unix_s,
        sampling: sampling.into(),
        form,
        keeps,
        prompt_len: prompt_len as u32,
        resume_len: resume.len() as u32,
        kept,
    };
    put(out, &header);
    sampling.put_lists(out);
    match prompt {
        Prompt::Text(text) | Prompt::Bare(text) | Prompt::Chat(text) => {
            out.extend_from_slice(text.as_bytes())
        }
        Prompt::Ids(ids) => put_ids(out, ids),
    }
    put_ids(out, resume);
}

impl Submit {
    /// Replaces `out` by the record's payload; its kind is [`kind::SUBMIT`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        let prompt = (&self.prompt, self.truncation);
        encode_submit(out, (self.id, self.claim), &self.sampling, prompt, self.asked_unix_s, &self.resume);
    }
}

/// Replaces `out` by the payload of an [`Encode`] of these parts.
pub fn encode_encode(out: &mut Vec<u8>, id: RequestId, prompt: &Prompt, truncation: Truncation) {
    out.clear();
    put_request(out, (id, Claim::default()), &Sampling::default(), (prompt, truncation), 0, &[]);
}

impl Encode {
    /// Replaces `out` by the record's payload; its kind is [`kind::ENCODE`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_encode(out, self.id, &self.prompt, self.truncation);
    }
}

/// Replaces `out` by the payload of a [`Decode`] of these parts.
pub fn encode_decode(out: &mut Vec<u8>, id: RequestId, ids: &[u32]) {
    out.clear();
    put(out, &id);
    put_ids(out, ids);
}

impl Decode {
    /// Replaces `out` by the record's payload; its kind is [`kind::DECODE`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_decode(out, self.id, &self.ids);
    }
}

/// Replaces `out` by the payload of a [`Render`] of these parts.
pub fn encode_render(out: &mut Vec<u8>, id: RequestId, chat: &str) {
    out.clear();
    put(out, &id);
    out.extend_from_slice(chat.as_bytes());
}

impl TokenizerRecord {
    /// Checks and copies a record. Errors: an unknown kind, a length that does not add up, text that is not
    /// UTF-8, sampling out of range.
    pub fn decode(record_kind: u16, payload: &[u8]) -> Result<TokenizerRecord, Malformed> {
        let mut cursor = Cursor(payload);
        match record_kind {
            kind::SUBMIT | kind::ENCODE => {
                let header: Header = cursor.take("submit header")?;
                let sampling = header.sampling.decode(&mut cursor)?;
                let len = header.prompt_len as usize;
                let prompt = match header.form {
                    FORM_TEXT => Prompt::Text(cursor.text(len, "prompt text")?.to_owned()),
                    FORM_BARE => Prompt::Bare(cursor.text(len, "prompt text")?.to_owned()),
                    FORM_CHAT => Prompt::Chat(cursor.text(len, "chat")?.to_owned()),
                    FORM_IDS => Prompt::Ids(cursor.ids(len, "prompt ids")?),
                    _ => return Err(Malformed("prompt form")),
                };
                let resume = cursor.ids(header.resume_len as usize, "resume ids")?;
                cursor.end("submit tail")?;
                let truncation = Truncation::of_words(header.keeps, header.kept)?;
                if record_kind == kind::ENCODE {
                    return Ok(TokenizerRecord::Encode(Encode { id: header.id, prompt, truncation }));
                }
                let claim = header.claim.checked()?;
                let Header { id, asked_unix_s, .. } = header;
                let submit = Submit { id, claim, sampling, prompt, truncation, asked_unix_s, resume };
                Ok(TokenizerRecord::Submit(submit))
            }
            kind::DECODE => {
                let id: RequestId = cursor.take("decode header")?;
                let count = cursor.0.len() / 4;
                let ids = cursor.ids(count, "ids to decode")?;
                cursor.end("decode tail")?;
                Ok(TokenizerRecord::Decode(Decode { id, ids }))
            }
            kind::RENDER => {
                let id: RequestId = cursor.take("render header")?;
                let len = cursor.0.len();
                let chat = cursor.text(len, "chat to render")?.to_owned();
                Ok(TokenizerRecord::Render(Render { id, chat }))
            }
            _ => Err(Malformed("tokenizer record kind")),
        }
    }
}

/// Cuts a message to the limit of a rejection's detail, at a character boundary.
pub fn cut_detail(text: &str) -> &str {
    let mut end = text.len().min(DETAIL_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar::{Grammar, GrammarField, GrammarKind};

    #[test]
    fn every_form_round_trips_and_every_truncation_is_refused() {
        let id = RequestId { frontend: 0, slot: 7, generation: 3 };
        for (truncation, prompt) in [
            Prompt::Text("héllo".into()),
            Prompt::Bare("héllo".into()),
            Prompt::Chat("{}".into()),
            Prompt::Ids(vec![1, 2, 3]),
            Prompt::Ids(vec![4]),
        ]
        .into_iter()
        .zip([
            Truncation::Never,
            Truncation::Fit,
            Truncation::Last(u32::MAX),
            Truncation::First(1),
            Truncation::FitFirst,
        ])
        .map(|(prompt, truncation)| (truncation, prompt))
        {
            let grammar = Some(Grammar {
                kind: GrammarKind::Regex,
                field: GrammarField::GuidedRegex,
                text: "[ab]+".into(),
            });
            let sampling = Sampling {
                logit_bias: vec![(5, -1.5)],
                stop_token_ids: vec![6, 7],
                grammar,
                ..Sampling::default()
            };
            let claim = Claim { tenant: 1 << 40, priority: -3, weight: 7 };
            let (asked_unix_s, resume) = (1 << 33, vec![9, 8]);
            let submit = Submit { id, claim, sampling, prompt, truncation, asked_unix_s, resume };
            let mut bytes = Vec::new();
            submit.encode(&mut bytes);
            assert_eq!(TokenizerRecord::decode(kind::SUBMIT, &bytes), Ok(TokenizerRecord::Submit(submit)));
            for cut in 0..bytes.len() {
                assert!(TokenizerRecord::decode(kind::SUBMIT, &bytes[..cut]).is_err(), "cut at {cut}");
            }
        }
        let mut bytes = Vec::new();
        encode_render(&mut bytes, id, "{\"é\": 1}");
        let render = Render { id, chat: "{\"é\": 1}".into() };
        assert_eq!(TokenizerRecord::decode(kind::RENDER, &bytes), Ok(TokenizerRecord::Render(render)));
        for cut in [0, size_of::<RequestId>() - 1, size_of::<RequestId>() + 3] {
            assert!(TokenizerRecord::decode(kind::RENDER, &bytes[..cut]).is_err(), "cut at {cut}");
        }
    }
}
