//! What calls that are not written as JSON have in common: their arguments are spelled anew, as JSON.

/// What a character of such a call means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It may belong to a call.
    Hold,
    /// This is no call.
    Refuse,
    /// The name is known, and the arguments begin.
    Begin,
    /// It belongs to the call; what it adds to the arguments has been appended.
    Flow,
    /// It ends the call, or the list of calls.
    Done,
    /// It cannot be read any further. What was told stands.
    GiveUp,
}

/// Appends a character as part of a JSON string.
pub(super) fn escape(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if u32::from(c) < 0x20 => {
            const HEX: [char; 16] =
                ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
            out.push_str("\\u00");
            out.push(HEX[(u32::from(c) >> 4) as usize]);
            out.push(HEX[(u32::from(c) & 15) as usize]);
        }
        c => out.push(c),
    }
}

/// Appends a text as a JSON string.
pub(super) fn quote(text: &str, out: &mut String) {
    out.push('"');
    text.chars().for_each(|c| escape(c, out));
    out.push('"');
}

/// JSON for a word of Python, if it is one.
pub(super) fn python_word(word: &str) -> Option<&'static str> {
    match word {
        "True" | "true" => Some("true"),
        "False" | "false" => Some("false"),
        "None" | "null" => Some("null"),
        _ => None,
    }
}
