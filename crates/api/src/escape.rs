//! JSON written by hand, byte for byte as serde_json writes it.

use bytes::{BufMut, BytesMut};

/// Appends a whole number.
pub fn put_number(number: u64, out: &mut BytesMut) {
    out.put_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// For each byte: 0 if a JSON string may hold it as it is, `u` if it needs `\u00xx`, else the letter after
/// the backslash.
const ESCAPES: [u8; 256] = {
    let mut table = [0; 256];
    let mut control = 0;
    while control < 0x20 {
        table[control] = b'u';
        control += 1;
    }
    table[0x08] = b'b';
    table[0x09] = b't';
    table[0x0a] = b'n';
    table[0x0c] = b'f';
    table[0x0d] = b'r';
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table
};

/// Appends `text` as the inside of a JSON string, byte for byte as serde_json writes it.
pub fn escape(text: &str, out: &mut BytesMut) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| ESCAPES[usize::from(*byte)] != 0) {
        let (plain, tail) = rest.split_at(at);
        out.put_slice(plain);
        let Some((byte, after)) = tail.split_first() else { return };
        match ESCAPES[usize::from(*byte)] {
            b'u' => {
                let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
                out.put_slice(&[b'\\', b'u', b'0', b'0', high, low]);
            }
            letter => out.put_slice(&[b'\\', letter]),
        }
        rest = after;
    }
    out.put_slice(rest);
}
