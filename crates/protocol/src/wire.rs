//! Small helpers for records: a checked cursor for decoding, and the layout hash compared at attach.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A record that failed its check; it names what was wrong. The sender is at fault, never the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "malformed record: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// Reads a record front to back; every take is bounds-checked.
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(crate) fn take<T: FromBytes>(&mut self, what: &'static str) -> Result<T, Malformed> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Malformed(what))?;
        self.0 = rest;
        Ok(value)
    }

    pub(crate) fn bytes(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed(what))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn text(&mut self, len: usize, what: &'static str) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes(len, what)?).map_err(|_| Malformed(what))
    }

    /// `count` token ids, copied out because the bytes may be unaligned.
    pub(crate) fn ids(&mut self, count: usize, what: &'static str) -> Result<Vec<u32>, Malformed> {
        let bytes = self.bytes(count.checked_mul(4).ok_or(Malformed(what))?, what)?;
        Ok(bytes.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect())
    }

    pub(crate) fn end(self, what: &'static str) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed(what)) }
    }
}

/// Appends a wire struct.
pub(crate) fn put<T: IntoBytes + Immutable + KnownLayout>(out: &mut Vec<u8>, value: &T) {
    out.extend_from_slice(value.as_bytes());
}

/// Appends token ids.
pub(crate) fn put_ids(out: &mut Vec<u8>, ids: &[u32]) {
    out.extend_from_slice(ids.as_bytes());
}

/// FNV-1a over the names and sizes of everything that crosses shared memory. Two builds whose hashes
/// differ must not talk: attach refuses.
pub const fn layout_hash() -> u64 {
    const PARTS: [usize; 13] = [
        size_of::<crate::RequestId>(),
        size_of::<crate::sampling::SamplingRecord>(),
        size_of::<crate::tokenizer_inbox::Header>(),
        size_of::<crate::detokenizer_inbox::TokenEvent>(),
        size_of::<crate::detokenizer_inbox::StepHeader>(),
        size_of::<crate::scores::LogprobEntry>(),
        size_of::<crate::prompt_scores::PromptHeader>(),
        size_of::<crate::frontend_inbox::FinishedRecord>(),
        size_of::<crate::frontend_inbox::DeltaHeader>(),
        size_of::<crate::events_inbox::EntryHead>(),
        crate::limits::STAGE_COUNT,
        crate::limits::COUNTER_COUNT,
        crate::limits::GAUGE_COUNT,
    ];
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut i = 0;
    while i < PARTS.len() {
        hash = (hash ^ PARTS[i] as u64).wrapping_mul(0x0100_0000_01b3);
        i += 1;
    }
    let mut i = 0;
    while i < version.len() {
        hash = (hash ^ version[i] as u64).wrapping_mul(0x0100_0000_01b3);
        i += 1;
    }
    hash
}
