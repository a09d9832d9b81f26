//! The tokens of a file, and those of them that have a part of their own.

use crate::config::texts;
use crate::{Error, Header, Value};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::collections::HashMap;

/// Most tokens.
const TOKENS_MAX: usize = 1 << 20;
/// Most tokens that are found in a text before anything else; published files have a few hundred.
const ADDED_MAX: usize = 1 << 16;

/// Special tokens that end a text in models of any maker; llama.cpp's list.
const ENDS: [&str; 13] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "</s>",
];

/// What a token is, by ggml's numbers.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

const TYPES: &str = "tokenizer.ggml.token_type";

/// A token that is found in a text before anything else, as tokenizer.json has it.
#[derive(Serialize)]
pub(crate) struct Added<'a> {
    id: usize,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

/// The tokens, each of them once.
pub(crate) struct Vocabulary<'a> {
    pub(crate) tokens: Vec<Cow<'a, str>>,
    types: Option<&'a [i32]>,
}

impl<'a> Vocabulary<'a> {
    pub(crate) fn read(header: &'a Header) -> Result<Self, Error> {
        const KEY: &str = "tokenizer.ggml.tokens";
        let listed = texts(header, KEY)?;
        if listed.len() > TOKENS_MAX {
            return Err(Error(format!("{KEY} has {} tokens, more than {TOKENS_MAX}", listed.len())));
        }
        let types = match header.get(TYPES) {
            None => None,
            Some(Value::Integers(types)) if types.len() == listed.len() => Some(types.as_slice()),
            Some(_) => return Err(Error(format!("{TYPES} is not a list of one number for each token"))),
        };
        // As llama.cpp names a token without a text.
        let named = |(id, token): (usize, &'a str)| match token {
            "" => Cow::Owned(format!("[EMPTY_{id}]")),
            token => Cow::Borrowed(token),
        };
        Ok(Self { tokens: listed.iter().enumerate().map(named).collect(), types })
    }

    fn kind(&self, id: usize) -> i32 {
        self.types.map_or(NORMAL, |types| types[id])
    }

    /// Whether the token is made of others by merges.
    pub(crate) fn is_normal(&self, id: usize) -> bool {
        self.kind(id) == NORMAL
    }

    /// Ids by token.
    pub(crate) fn ids(&self) -> Result<HashMap<&str, u32>, Error> {
        let mut found = HashMap::with_capacity(self.tokens.len());
        for (id, token) in (0..).zip(&self.tokens) {
            if let Some(first) = found.insert(token.as_ref(), id) {
                let token = shortened(token);
                return Err(Error(format!("tokenizer.ggml.tokens has {token} twice: {first} and {id}")));
            }
        }
        Ok(found)
    }

    /// The special tokens whose text says that they end a text.
    pub(crate) fn ends(&self) -> impl Iterator<Item = u32> + '_ {
        let special = self.tokens.iter().enumerate().filter(|(id, token)| {
            ENDS.contains(&token.as_ref()) && matches!(self.kind(*id), CONTROL | USER_DEFINED)
        });
        special.map(|(id, _)| u32::try_from(id).expect("there are at most TOKENS_MAX tokens"))
    }

    /// `added_tokens` of a tokenizer.json.
    pub(crate) fn added(&self) -> Result<Vec<Added<'_>>, Error> {
        let is_added = |id: usize| matches!(self.kind(id), UNKNOWN | CONTROL | USER_DEFINED);
        let count = (0..self.tokens.len()).filter(|id| is_added(*id)).count();
        if count > ADDED_MAX {
            return Err(Error(format!("{TYPES} has {count} special tokens, more than {ADDED_MAX}")));
        }
        let tokens = self.tokens.iter().enumerate().filter(|(id, _)| is_added(*id));
        let added = tokens.map(|(id, token)| Added {
            id,
            content: token,
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: self.kind(id) != USER_DEFINED,
        });
        Ok(added.collect())
    }

    /// The token that a key names, if the file has the key or llama.cpp a default for it.
    pub(crate) fn named(&self, header: &Header, role: Role) -> Result<Option<(u32, &str)>, Error> {
        let Some(id) = role.id(header)? else { return Ok(None) };
        match self.tokens.get(id as usize) {
            Some(token) => Ok(Some((id, token))),
            // Some writers put 4294967295 where there is none; llama.cpp goes on, too.
            None if matches!(role, Role::Unknown | Role::Padding) => Ok(None),
            None => Err(Error(format!("{} is {id}, but there are {} tokens", role.key(), self.tokens.len()))),
        }
    }
}

/// `vocab` of a tokenizer.json.
impl Serialize for Vocabulary<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.tokens.iter().enumerate().map(|(id, token)| (token, id)))
    }
}

/// A token of the file's, for a message.
pub(crate) fn shortened(token: &str) -> String {
    const CHARACTERS_MAX: usize = 40;
    token.chars().take(CHARACTERS_MAX).flat_map(char::escape_debug).collect()
}

/// The kind of tokenizer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// GPT-2's: bytes spelt as characters, merges in the file.
    Bytes,
    /// SentencePiece's: pieces with scores.
    Pieces,
}

impl Kind {
    pub(crate) fn of(header: &Header) -> Result<Self, Error> {
        const KEY: &str = "tokenizer.ggml.model";
        match header.text(KEY)? {
            Some("gpt2") => Ok(Self::Bytes),
            Some("llama") => Ok(Self::Pieces),
            other => {
                let other = shortened(other.unwrap_or("(absent)"));
                Err(Error(format!("{KEY} {other} is not supported; supported: gpt2, llama")))
            }
        }
    }
}

/// What a token is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Begin,
    End,
    EndOfTurn,
    EndOfMessage,
    Unknown,
    Padding,
}

impl Role {
    fn key(self) -> &'static str {
        match self {
            Self::Begin => "tokenizer.ggml.bos_token_id",
            Self::End => "tokenizer.ggml.eos_token_id",
            Self::EndOfTurn => "tokenizer.ggml.eot_token_id",
            Self::EndOfMessage => "tokenizer.ggml.eom_token_id",
            Self::Unknown => "tokenizer.ggml.unknown_token_id",
            Self::Padding => "tokenizer.ggml.padding_token_id",
        }
    }

    /// Its id; where the file names none, that which llama.cpp takes for pieces.
    pub(crate) fn id(self, header: &Header) -> Result<Option<u32>, Error> {
        let named = header.number(self.key())?;
        Ok(match (named, self) {
            (Some(id), _) => Some(id),
            (None, Self::Unknown | Self::Begin | Self::End) if Kind::of(header)? == Kind::Pieces => {
                Some(match self {
                    Self::Unknown => 0,
                    Self::Begin => 1,
                    _ => 2,
                })
            }
            (None, _) => None,
        })
    }
}
