//! What names a block outside: a digest of the token ids from the beginning of its text to its end, so that equal
//! blocks have equal names on all replicas and after a restart.
//!
//! Digests are those of vLLM with `--prefix-caching-hash-algo sha256_cbor` and `PYTHONHASHSEED=0`, and a name is what
//! its events say of them. docs/design/0018-kv-events.md has the bytes.

use sha2::{Digest as _, Sha256};

/// Major types of CBOR (RFC 8949), and the two whole items that stand in each block.
const UNSIGNED: u8 = 0;
const ARRAY: u8 = 4;
const BYTES_32: [u8; 2] = [0x58, 32];
const NULL: u8 = 0xf6;
/// Bytes of an item's head at most, for what has 32 bits.
const HEAD_BYTES_MAX: usize = 5;

/// A block's contents and all before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Of what stands before the first block: the hash of the text "0".
    pub fn root() -> Digest {
        Digest(Sha256::digest(b"\x610").into())
    }

    /// Of the block with these token ids after this one: the hash of `[digest, [token ids], null]`. The null is vLLM's
    /// place for what else separates blocks, such as an adapter or a salt; here nothing does.
    pub fn then(&self, tokens: &[u32]) -> Digest {
        let mut item = Vec::with_capacity(2 * HEAD_BYTES_MAX + 40 + HEAD_BYTES_MAX * tokens.len());
        put_head(&mut item, ARRAY, 3);
        item.extend_from_slice(&BYTES_32);
        item.extend_from_slice(&self.0);
        put_head(&mut item, ARRAY, tokens.len() as u32);
        tokens.iter().for_each(|token| put_head(&mut item, UNSIGNED, *token));
        item.push(NULL);
        Digest(Sha256::digest(&item).into())
    }

    /// The name: the last eight bytes, big-endian.
    pub fn name(&self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

/// Appends an item's head in its shortest form: a number, or how many items an array has.
fn put_head(out: &mut Vec<u8>, major: u8, value: u32) {
    let major = major << 5;
    if value < 24 {
        out.push(major | value as u8);
    } else if let Ok(value) = u8::try_from(value) {
        out.extend_from_slice(&[major | 24, value]);
    } else if let Ok(value) = u16::try_from(value) {
        out.push(major | 25);
        out.extend_from_slice(&value.to_be_bytes());
    } else {
        out.push(major | 26);
        out.extend_from_slice(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that docs/design/0018-kv-events.md shows; tests/golden.rs has names that vLLM made.
    #[test]
    fn a_name_is_computed_by_hand() {
        let root = *b"\x4e\x11\x95\xdf\x02\x0d\xe5\x9e\x0d\x65\xa3\x3a\x42\x79\xf1\x18\
            \x3e\x7a\xe4\xe5\xd9\x80\xe3\x09\xf8\xb5\x5a\xdf\xf2\xe6\x1c\x3e";
        assert_eq!(Digest::root().0, root);
        let head = &b"\x83\x58\x20"[..];
        let tokens = &b"\x84\x01\x18\x18\x19\xc3\x50\x1a\x00\x01\xe2\x40\xf6"[..];
        let by_hand: [u8; 32] = Sha256::digest([head, &root, tokens].concat()).into();
        let digest = Digest::root().then(&[1, 24, 50_000, 123_456]);
        assert_eq!((digest.0, digest.name()), (by_hand, 0x515c_2058_7db8_f360));
    }
}
