//! How the next token is drawn, checked once and carried unchanged to the engine.

use crate::limits::TEMPERATURE_MAX;
use crate::wire::Malformed;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Sampling parameters of one request. A value of this type is always in range: the only ways to get one
/// are [`Sampling::default`], field-by-field construction by admission, and a checked decode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy; otherwise the logits' divisor. Finite, 0 ..= 100.
    pub temperature: f32,
    /// Smallest probability mass kept, 0 < p ≤ 1; 1 keeps everything.
    pub top_p: f32,
    /// Most likely tokens kept; `None` keeps everything.
    pub top_k: Option<u32>,
    /// Seed of the draw; a token's random number depends only on (seed, its position).
    pub seed: u64,
    /// Most tokens to generate; `None` means as many as the context holds.
    pub max_tokens: Option<u32>,
    /// Go on past the end-of-sequence token.
    pub ignore_eos: bool,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: None,
            seed: 0,
            max_tokens: Some(16),
            ignore_eos: false,
        }
    }
}

const IGNORE_EOS: u32 = 1;
const HAS_TOP_K: u32 = 2;
const HAS_MAX_TOKENS: u32 = 4;
const KNOWN_FLAGS: u32 = IGNORE_EOS | HAS_TOP_K | HAS_MAX_TOKENS;

/// [`Sampling`] as it crosses a ring: 32 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SamplingRecord {
    seed: u64,
    temperature: f32,
    top_p: f32,
    top_k: u32,
    max_tokens: u32,
    flags: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<SamplingRecord>() == 32);

impl From<Sampling> for SamplingRecord {
    fn from(s: Sampling) -> Self {
        let mut flags = 0;
        if s.ignore_eos {
            flags |= IGNORE_EOS;
        }
        if s.top_k.is_some() {
            flags |= HAS_TOP_K;
        }
        if s.max_tokens.is_some() {
            flags |= HAS_MAX_TOKENS;
        }
        SamplingRecord {
            seed: s.seed,
            temperature: s.temperature,
            top_p: s.top_p,
            top_k: s.top_k.unwrap_or(0),
            max_tokens: s.max_tokens.unwrap_or(0),
            flags,
            reserved: 0,
        }
    }
}

impl TryFrom<SamplingRecord> for Sampling {
    type Error = Malformed;

    fn try_from(r: SamplingRecord) -> Result<Self, Malformed> {
        let in_range = (0.0..=TEMPERATURE_MAX).contains(&r.temperature) && r.top_p > 0.0 && r.top_p <= 1.0;
        if !in_range || r.flags & !KNOWN_FLAGS != 0 {
            return Err(Malformed("sampling parameters"));
        }
        Ok(Sampling {
            temperature: r.temperature,
            top_p: r.top_p,
            top_k: (r.flags & HAS_TOP_K != 0).then_some(r.top_k),
            seed: r.seed,
            max_tokens: (r.flags & HAS_MAX_TOKENS != 0).then_some(r.max_tokens),
            ignore_eos: r.flags & IGNORE_EOS != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_keeps_absent_apart_from_zero() {
        for s in [
            Sampling::default(),
            Sampling { top_k: Some(0), max_tokens: Some(0), ignore_eos: true, ..Sampling::default() },
            Sampling { top_k: None, max_tokens: None, seed: u64::MAX, ..Sampling::default() },
        ] {
            assert_eq!(Sampling::try_from(SamplingRecord::from(s)), Ok(s));
        }
    }

    #[test]
    fn non_finite_values_do_not_decode() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0] {
            let hot = Sampling { temperature: bad, ..Sampling::default() };
            assert!(Sampling::try_from(SamplingRecord::from(hot)).is_err());
            let mass = Sampling { top_p: bad, ..Sampling::default() };
            assert!(Sampling::try_from(SamplingRecord::from(mass)).is_err());
        }
    }
}
