//! What the sampler kernel, and the one before it that scores, read and write for each row, as bytes.

/// Bytes of one [`Draw`] on the device.
pub const DRAW_BYTES: usize = 64;
/// Bytes of one [`LogitChange`] on the device.
pub const CHANGE_BYTES: usize = 12;
/// Bytes of one sampled row on the device; see [`Sampled::read`].
pub const SAMPLED_BYTES: usize = 12;
/// Bytes of one [`Scored`] on the device.
pub const SCORED_BYTES: usize = 8;
/// Bytes of one row's [`Scores`] on the device.
pub const SCORES_BYTES: usize = 16 + 8 * BEST_MAX;
/// Bytes of one mask on the device: a bit for each id, lowest first, in words.
pub const fn mask_bytes(vocab: u32) -> usize {
    vocab.div_ceil(32) as usize * 4
}

/// Most of a row's likeliest tokens that are told.
pub const BEST_MAX: usize = 20;

/// How a row's token is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrawMode {
    /// Not at all.
    Skip,
    /// The likeliest, ties to the lowest id.
    Greedy,
    /// Drawn.
    Draw,
}

/// What a request does to one of its logits before anything is drawn from them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LogitChange {
    /// Whose logit. It stands once in a row's changes.
    pub id: u32,
    /// Apply the row's repetition penalty.
    pub is_recalled: bool,
    /// How often it stands in the output, for the other two penalties; 0 spares it them.
    pub count: u32,
    /// Added.
    pub bias: f32,
    /// Not to be drawn unless nothing else is left.
    pub is_banned: bool,
}

impl LogitChange {
    /// The bytes that the device reads.
    pub fn write(&self, to: &mut [u8]) {
        let what =
            u32::from(self.is_recalled) << 31 | u32::from(self.is_banned) << 30 | self.count & 0x3fff_ffff;
        for (to, word) in to.chunks_exact_mut(4).zip([self.id, what, self.bias.to_bits()]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// The changes of one row: a range of all of them, and the penalties.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowChanges {
    /// The first of the row.
    pub begin: u32,
    /// How many.
    pub count: u32,
    /// See `Shaping` in the model crate.
    pub repetition_penalty: f32,
    /// As above.
    pub frequency_penalty: f32,
    /// As above.
    pub presence_penalty: f32,
    /// What the row's lane sampled last is one more token of the output, which the changes do not know.
    pub recalls_last: bool,
}

impl RowChanges {
    /// The logits stay as they are.
    pub const NONE: RowChanges = RowChanges {
        begin: 0,
        count: 0,
        repetition_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        recalls_last: false,
    };
}

/// How one row is sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// Uniform in \[0, 1).
    pub draw: f64,
    /// 1 / temperature.
    pub inverse_temperature: f32,
    /// 1 or more is off.
    pub top_p: f32,
    /// 0 is off.
    pub min_p: f32,
    /// 0 is off.
    pub top_k: u32,
    /// Where the token is kept for the next step.
    pub lane: u32,
    /// Whether and how.
    pub mode: DrawMode,
    /// Made before.
    pub changes: RowChanges,
    /// Whose logits, and where the result goes.
    pub row: u32,
    /// Tell the token's logit as it was before the changes; see [`Sampled::logit`].
    pub is_scored: bool,
    /// Which of the masks says what may be drawn.
    pub mask: Option<u32>,
}

impl Draw {
    /// The bytes that the device reads.
    pub fn write(&self, to: &mut [u8]) {
        let mode = match self.mode {
            DrawMode::Skip => 0u32,
            DrawMode::Greedy => 1,
            DrawMode::Draw => 2,
        };
        let flags = [self.changes.recalls_last, self.is_scored, self.mask.is_some()];
        let flags = flags.iter().enumerate().map(|(bit, &is_on)| u32::from(is_on) << bit).sum();
        to[0..8].copy_from_slice(&self.draw.to_le_bytes());
        let words = [
            self.inverse_temperature.to_bits(),
            self.top_p.to_bits(),
            self.min_p.to_bits(),
            self.top_k,
            self.lane,
            mode,
            self.changes.begin,
            self.changes.count,
            self.changes.repetition_penalty.to_bits(),
            self.changes.frequency_penalty.to_bits(),
            self.changes.presence_penalty.to_bits(),
            flags,
            self.row,
            self.mask.unwrap_or(0),
        ];
        for (to, word) in to[8..DRAW_BYTES].chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// What a row came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampledState {
    /// It was not sampled.
    None,
    /// A token.
    Token(u32),
    /// The logits hold a NaN or an infinity.
    NonFinite,
}

/// Reads what the sampler writes.
#[derive(Debug, Clone, Copy)]
pub struct Sampled;

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Sampled {
    /// The state in `bytes`, which the device wrote.
    pub fn read(bytes: &[u8]) -> SampledState {
        match word(bytes, 4) {
            1 => SampledState::Token(word(bytes, 0)),
            2 => SampledState::NonFinite,
            _ => SampledState::None,
        }
    }

    /// The logit of the token in `bytes` as the model gave it, if the row's draw asked for it.
    pub fn logit(bytes: &[u8]) -> f32 {
        f32::from_bits(word(bytes, 8))
    }
}

/// A row whose tokens are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scored {
    /// Of the logits.
    pub row: u32,
    /// How many of the likeliest are wanted, at most [`BEST_MAX`].
    pub best: u32,
}

impl Scored {
    /// The bytes that the device reads.
    pub fn write(&self, to: &mut [u8]) {
        to[..4].copy_from_slice(&self.row.to_le_bytes());
        to[4..SCORED_BYTES].copy_from_slice(&self.best.to_le_bytes());
    }
}

/// What the device found out about one row of finite logits.
#[derive(Debug, Clone, Copy)]
pub struct Scores<'a> {
    bytes: &'a [u8],
    max: f32,
    /// ln of the sum of exp(logit - max).
    log_sum: f64,
}

impl Scores<'_> {
    /// The scores in [`SCORES_BYTES`] bytes, which the device wrote.
    pub fn read(bytes: &[u8]) -> Scores<'_> {
        let sum = f64::from_bits(u64::from(word(bytes, 4)) << 32 | u64::from(word(bytes, 0)));
        Scores { bytes, max: f32::from_bits(word(bytes, 8)), log_sum: sum.ln() }
    }

    /// The logarithm of the probability of the token that has this logit.
    pub fn logprob(&self, logit: f32) -> f32 {
        let logprob = f64::from(logit) - f64::from(self.max) - self.log_sum;
        (logprob as f32).max(f32::MIN)
    }

    /// The likeliest tokens and their logprobs, likeliest first.
    pub fn best(&self) -> impl Iterator<Item = (u32, f32)> + '_ {
        let count = (word(self.bytes, 12) as usize).min(BEST_MAX);
        let best = self.bytes[16..].chunks_exact(8).take(count);
        best.map(|entry| (word(entry, 0), self.logprob(f32::from_bits(word(entry, 4)))))
    }
}
