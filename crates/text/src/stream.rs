//! One stream's incremental decode.

use crate::codec::TextCodec;
use crate::utf8_tail::Utf8Tail;

/// Tokens of context kept by the window decode when it is trimmed.
const CONTEXT_TOKENS: usize = 16;
/// Tokens of context at which the window decode is trimmed.
const CONTEXT_TOKENS_MAX: usize = 48;
/// Tokens that the window decode holds back at most while its text ends in U+FFFD: a character has four
/// bytes, so with four tokens more of them the character is as complete as it will ever be.
const HELD_TOKENS_MAX: usize = 4;

/// Decode state of one stream. Give the same [`TextCodec`] to every call.
///
/// With a byte table (see [`crate::codec`]) a push costs a look-up and a copy of the token's bytes, holds
/// back at most 3 bytes and allocates nothing beyond the growth of `out`. Other tokenizers are decoded
/// through the library over a bounded window of recent tokens.
#[derive(Clone, Debug)]
pub struct TextStream {
    tail: Utf8Tail,
    /// Spaces still to be dropped before the first other byte.
    leading_spaces: u8,
    window: Window,
}

impl TextStream {
    /// A stream before its first token.
    pub fn new(codec: &TextCodec) -> TextStream {
        let leading_spaces = codec.table().map_or(0, |table| table.leading_spaces);
        TextStream { tail: Utf8Tail::default(), leading_spaces, window: Window::default() }
    }

    /// The same behind a text: a space at its beginning is shown.
    pub fn continuing(codec: &TextCodec) -> TextStream {
        let mut window = Window::default();
        window.begin(codec);
        TextStream { tail: Utf8Tail::default(), leading_spaces: 0, window }
    }

    /// Appends to `out` the text that `token` completes: whole characters, possibly none.
    pub fn push(&mut self, codec: &TextCodec, token: u32, out: &mut String) {
        let Some(table) = codec.table() else { return self.window.push(codec, token, out) };
        let mut bytes = table.get(token);
        while self.leading_spaces > 0 && !bytes.is_empty() {
            match bytes.strip_prefix(b" ") {
                Some(rest) => {
                    bytes = rest;
                    self.leading_spaces -= 1;
                }
                None => self.leading_spaces = 0,
            }
        }
        self.tail.push(bytes, out);
    }

    /// The same, and the names of special tokens too.
    pub fn push_shown(&mut self, codec: &TextCodec, token: u32, out: &mut String) {
        match codec.special_token(token) {
            None => self.push(codec, token, out),
            Some(name) => {
                // No character reaches across it, and a space behind it does not begin the text.
                self.finish(codec, out);
                match codec.table() {
                    // Tokens are joined by spaces, which begin all but the first.
                    Some(table) if table.joined && self.leading_spaces == 0 => out.push(' '),
                    Some(_) => {}
                    None => self.window.begin(codec),
                }
                self.leading_spaces = 0;
                out.push_str(&name);
            }
        }
    }

    /// Ends the text: appends what is still held back, as the decode of the whole shows it.
    pub fn finish(&mut self, codec: &TextCodec, out: &mut String) {
        self.tail.finish(out);
        self.window.settle(codec, out);
    }
}

/// The generic decode: the text of a token is what it adds to the text of its recent predecessors. Exact
/// for decoders that look no further back than [`CONTEXT_TOKENS`] and only append.
#[derive(Clone, Debug, Default)]
struct Window {
    /// Recent tokens that show text.
    tokens: Vec<u32>,
    /// How many of them have had their text sent.
    settled: usize,
}

impl Window {
    /// Text is before what comes, if nothing has come.
    fn begin(&mut self, codec: &TextCodec) {
        if self.tokens.is_empty() {
            self.tokens.extend(codec.any_word());
            self.settled = self.tokens.len();
        }
    }

    fn push(&mut self, codec: &TextCodec, token: u32, out: &mut String) {
        if !codec.shows(token) {
            return;
        }
        self.tokens.push(token);
        let mut text = String::new();
        codec.decode_whole(&self.tokens, &mut text);
        let held = self.tokens.len() - self.settled;
        if text.ends_with(char::REPLACEMENT_CHARACTER) && held < HELD_TOKENS_MAX {
            return;
        }
        self.settle(codec, out);
    }

    fn settle(&mut self, codec: &TextCodec, out: &mut String) {
        if self.settled == self.tokens.len() {
            return;
        }
        let (mut before, mut after) = (String::new(), String::new());
        codec.decode_whole(&self.tokens[..self.settled], &mut before);
        codec.decode_whole(&self.tokens, &mut after);
        let shared: usize =
            before.chars().zip(after.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
        out.push_str(&after[shared..]);
        if self.tokens.len() > CONTEXT_TOKENS_MAX {
            self.tokens.drain(..self.tokens.len() - CONTEXT_TOKENS);
        }
        self.settled = self.tokens.len();
    }
}
