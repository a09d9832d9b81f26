//! Just enough of Rust's lexical structure for the rules: which bytes are code, where words and blocks are.
//! Not a parser: macros are read as they stand.

use std::ops::Range;

/// The text with comments, strings and character literals replaced by spaces. Length and line ends are kept, so
/// an offset or a line number in the result is one in the text as well.
pub(super) fn masked(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        match end {
            Some(end) => {
                for byte in &mut out[at..end] {
                    if *byte != b'\n' {
                        *byte = b' ';
                    }
                }
                at = end;
            }
            None => at += 1,
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Where the comment or literal that begins at `at` ends; nothing if none begins there.
fn literal_end(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    let starts_word = at == 0 || !is_word(bytes[at - 1]);
    match rest {
        [b'/', b'/', ..] => Some(find(bytes, at, b"\n")),
        [b'/', b'*', ..] => Some(block_comment_end(bytes, at)),
        [b'"', ..] => Some(quoted_end(bytes, at + 1, b'"')),
        [b'\'', ..] => char_end(bytes, at),
        [b'r', b'"' | b'#', ..] if starts_word => raw_end(bytes, at + 1),
        [b'b' | b'c', b'r', b'"' | b'#', ..] if starts_word => raw_end(bytes, at + 2),
        _ => None,
    }
}

/// The offset of `needle` from `at` on, or the end.
fn find(bytes: &[u8], at: usize, needle: &[u8]) -> usize {
    bytes[at..]
        .windows(needle.len())
        .position(|window| window == needle)
        .map_or(bytes.len(), |found| at + found)
}

fn block_comment_end(bytes: &[u8], from: usize) -> usize {
    let (mut depth, mut at) = (0_usize, from);
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(bytes.len())
}

fn quoted_end(bytes: &[u8], from: usize, quote: u8) -> usize {
    let mut at = from;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// `'x'` and `'\n'`, but not the lifetime `'a`.
fn char_end(bytes: &[u8], at: usize) -> Option<usize> {
    let first = *bytes.get(at + 1)?;
    if first == b'\\' {
        return Some(quoted_end(bytes, at + 1, b'\''));
    }
    let width = match first {
        0..=0x7f => 1,
        0x80..=0xdf => 2,
        0xe0..=0xef => 3,
        _ => 4,
    };
    (bytes.get(at + 1 + width) == Some(&b'\'')).then_some(at + 2 + width)
}

/// `"..."`, `#"..."#` and so on, after the `r`; nothing for a raw identifier.
fn raw_end(bytes: &[u8], from: usize) -> Option<usize> {
    let hashes = bytes[from..].iter().take_while(|&&byte| byte == b'#').count();
    if bytes.get(from + hashes) != Some(&b'"') {
        return None;
    }
    let closing = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    Some((find(bytes, from + hashes + 1, &closing) + closing.len()).min(bytes.len()))
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// Offsets at which `word` stands between non-word characters.
pub(super) fn word_offsets<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = text.as_bytes();
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = at.checked_sub(1).is_some_and(|before| is_word(bytes[before]));
        let after = bytes.get(at + word.len()).is_some_and(|&after| is_word(after));
        !before && !after
    })
}

/// The identifier at the start of `code`, after spaces.
pub(super) fn leading_word(code: &str) -> &str {
    let code = code.trim_start();
    let end = code.bytes().position(|byte| !is_word(byte)).unwrap_or(code.len());
    &code[..end]
}

/// The line of an offset, from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count()
}

/// The body `{...}` of the item whose header begins at `from`, braces included; nothing if it ends with `;`.
pub(super) fn body_of(code: &str, from: usize) -> Option<Range<usize>> {
    let (mut nested, mut braces, mut start) = (0_i32, 0_i32, None);
    for (at, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'(' | b'[' if start.is_none() => nested += 1,
            b')' | b']' if start.is_none() => nested -= 1,
            b';' if start.is_none() && nested == 0 => return None,
            // A brace within brackets, as in `[u8; { N }]`, is part of the header.
            b'{' if nested == 0 => {
                start.get_or_insert(at);
                braces += 1;
            }
            b'}' if nested == 0 => {
                braces -= 1;
                if braces == 0 {
                    return start.map(|start| start..at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// The bodies of all `#[cfg(test)]` items.
pub(super) fn test_bodies(code: &str) -> Vec<Range<usize>> {
    let marks = code.match_indices("#[cfg(test)]");
    marks.filter_map(|(at, mark)| body_of(code, at + mark.len())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_offsets_kept() {
        let cases = [
            ("a // b\nc", "a     \nc"),
            ("a /* /* x */ \n */ b", "a            \n    b"),
            (r#"f("a\"b", c)"#, "f(      , c)"),
            (r##"r#"a"b"# + r#type"##, "         + r#type"),
            (r#"b"x" br"y" c"z""#, "b          c   "),
            ("'a' + '\\'' + 'é'", "    +      +     "),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("\"open", "     "),
            ("/* open", "       "),
        ];
        for (text, expected) in cases {
            assert_eq!(masked(text), expected, "{text}");
        }
    }

    #[test]
    fn words_stand_alone() {
        let found: Vec<usize> = word_offsets("unsafe unsafe_code my_unsafe (unsafe)", "unsafe").collect();
        assert_eq!(found, [0, 30]);
        assert_eq!(leading_word("  name<T>("), "name");
    }

    #[test]
    fn bodies_are_matched_over_headers() {
        let code = "fn f(a: [u8; { 3 }]) -> T where T: X { if a { b } else { c } } fn g();";
        assert_eq!(&code[body_of(code, 0).unwrap()], "{ if a { b } else { c } }");
        assert_eq!(body_of(code, code.find("fn g").unwrap()), None);
        let code = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() {} }\n";
        assert_eq!(&code[test_bodies(code)[0].clone()], "{ fn b() {} }");
    }
}
