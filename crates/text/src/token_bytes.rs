//! The bytes of one token, for answers that report tokens rather than text.

use crate::codec::TextCodec;

impl TextCodec {
    /// Appends the bytes that this token shows: possibly a part of a character, nothing for a special token. With a
    /// byte table that is a look-up; other tokenizers decode the token alone.
    pub fn token_bytes(&self, id: u32, out: &mut Vec<u8>) {
        match self.table() {
            Some(table) => out.extend_from_slice(table.get(id)),
            None => {
                let mut text = String::new();
                self.decode_whole(&[id], &mut text);
                out.extend_from_slice(text.as_bytes());
            }
        }
    }
}
