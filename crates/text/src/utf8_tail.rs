//! UTF-8 decoding of bytes that arrive in pieces, equal to `String::from_utf8_lossy` of the whole.

/// Holds back the bytes of a character whose end has not arrived: at most 3. Everything else comes out at
/// once; a byte that can't belong to any character comes out as U+FFFD, one per maximal subpart, exactly
/// where the lossy decode of the whole text has it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Utf8Tail {
    held: [u8; 4],
    held_len: u8,
}

impl Utf8Tail {
    /// Appends to `out` what `bytes` complete.
    pub(crate) fn push(&mut self, mut bytes: &[u8], out: &mut String) {
        while self.held_len > 0 {
            let Some((&next, rest)) = bytes.split_first() else { return };
            let len = usize::from(self.held_len);
            self.held[len] = next;
            match std::str::from_utf8(&self.held[..=len]) {
                Ok(character) => {
                    out.push_str(character);
                    self.held_len = 0;
                    bytes = rest;
                }
                Err(error) if error.error_len().is_none() => {
                    self.held_len += 1;
                    bytes = rest;
                }
                Err(_) => {
                    // `next` does not continue the held bytes: they are one replacement character, and
                    // `next` is looked at again as a beginning.
                    out.push(char::REPLACEMENT_CHARACTER);
                    self.held_len = 0;
                }
            }
        }
        self.push_from_boundary(bytes, out);
    }

    fn push_from_boundary(&mut self, bytes: &[u8], out: &mut String) {
        let mut rest = bytes;
        for chunk in bytes.utf8_chunks() {
            out.push_str(chunk.valid());
            let invalid = chunk.invalid();
            rest = &rest[chunk.valid().len() + invalid.len()..];
            if invalid.is_empty() {
                continue;
            }
            let incomplete =
                rest.is_empty() && std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
            if incomplete {
                self.held[..invalid.len()].copy_from_slice(invalid);
                self.held_len = invalid.len() as u8;
            } else {
                out.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }

    /// Ends the text: an unfinished character is one replacement character.
    pub(crate) fn finish(&mut self, out: &mut String) {
        if self.held_len > 0 {
            out.push(char::REPLACEMENT_CHARACTER);
            self.held_len = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(pieces: &[&[u8]]) {
        let (mut tail, mut got) = (Utf8Tail::default(), String::new());
        for piece in pieces {
            tail.push(piece, &mut got);
            assert!(tail.held_len <= 3);
        }
        tail.finish(&mut got);
        assert_eq!(got, String::from_utf8_lossy(&pieces.concat()), "{pieces:?}");
    }

    #[test]
    fn every_split_of_awkward_bytes_equals_the_lossy_decode() {
        let cases: [&[u8]; 12] = [
            b"",
            b"plain",
            "é中👩‍👩‍👧".as_bytes(),
            "\u{FFFD}x\u{FFFD}".as_bytes(),
            b"\xFF\xFE",
            b"\xE4\xBD",
            b"\xF0\x9F\x91",
            b"\xF0\x9F\x91A",
            b"\xF0\x80\x80\x80",
            b"\xED\xA0\x80",
            b"\xC3\xC3\xA9",
            b"\xF4\x90\x80\x80",
        ];
        for bytes in cases {
            for first in 0..=bytes.len() {
                for second in first..=bytes.len() {
                    check(&[&bytes[..first], &bytes[first..second], &bytes[second..]]);
                }
            }
            check(&bytes.chunks(1).collect::<Vec<_>>());
        }
    }

    proptest! {
        #[test]
        fn random_pieces_equal_the_lossy_decode(
            pieces in prop::collection::vec(prop::collection::vec(prop_oneof![
                any::<u8>(),
                prop::sample::select(vec![0xC3, 0xA9, 0xE4, 0xBD, 0xA0, 0xF0, 0x9F, 0x91, 0xED, 0xF4, 0x80]),
            ], 0..6), 0..12)
        ) {
            check(&pieces.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
    }
}
