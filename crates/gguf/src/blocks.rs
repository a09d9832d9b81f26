//! Tensors in blocks: ggml's types whose numbers are a scale times an integer, and plain floating point.

use half::{bf16, f16};

/// How the numbers of a tensor stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are ggml's")]
pub enum BlockType {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
}

/// ggml's numbers of the types that are not read.
const NAMES: [(u32, &str); 14] = [
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

impl BlockType {
    pub(crate) fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            30 => Self::Bf16,
            _ => return None,
        })
    }

    /// A type that is not read, for a message.
    pub(crate) fn shown(number: u32) -> String {
        let named = NAMES.iter().find(|(known, _)| *known == number);
        named.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
    }

    /// Numbers of a block.
    pub fn numbers(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// The numbers of whole blocks.
    pub fn unpack(self, blocks: &[u8], to: &mut [f32]) {
        let all = blocks.chunks_exact(self.bytes()).zip(to.chunks_exact_mut(self.numbers()));
        match self {
            Self::F32 => all.for_each(|(b, to)| to[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            Self::F16 => all.for_each(|(b, to)| to[0] = half_at(b, 0)),
            Self::Bf16 => all.for_each(|(b, to)| to[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32()),
            Self::Q8_0 => all.for_each(|(b, to)| {
                let scale = half_at(b, 0);
                to.iter_mut().zip(&b[2..]).for_each(|(to, &q)| *to = scale * f32::from(q as i8));
            }),
            Self::Q4_0 => all.for_each(|(b, to)| {
                let scale = half_at(b, 0);
                nibbles(&b[2..], to, |q, _| scale * (f32::from(q) - 8.0));
            }),
            Self::Q4_1 => all.for_each(|(b, to)| {
                let (scale, least) = (half_at(b, 0), half_at(b, 2));
                nibbles(&b[4..], to, |q, _| scale * f32::from(q) + least);
            }),
            Self::Q5_0 => all.for_each(|(b, to)| {
                let (scale, high) = (half_at(b, 0), u32::from_le_bytes([b[2], b[3], b[4], b[5]]));
                nibbles(&b[6..], to, |q, at| scale * (f32::from(q | fifth(high, at)) - 16.0));
            }),
            Self::Q5_1 => all.for_each(|(b, to)| {
                let (scale, least) = (half_at(b, 0), half_at(b, 2));
                let high = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
                nibbles(&b[8..], to, |q, at| scale * f32::from(q | fifth(high, at)) + least);
            }),
            Self::Q4K => all.for_each(|(b, to)| k_4_or_5(b, &[], &b[16..], to)),
            Self::Q5K => all.for_each(|(b, to)| k_4_or_5(b, &b[16..48], &b[48..], to)),
            Self::Q6K => all.for_each(|(b, to)| k_6(b, to)),
        }
    }

    /// The integers of whole blocks of `Q4_0`, -8 to 7, and the blocks' scales.
    pub fn integers_of_q4_0(blocks: &[u8], to: &mut [i8], scales: &mut [f32]) {
        let blocks = blocks.chunks_exact(Self::Q4_0.bytes());
        for ((block, to), scale) in blocks.zip(to.chunks_exact_mut(32)).zip(scales) {
            *scale = half_at(block, 0);
            for (at, &byte) in block[2..].iter().enumerate() {
                to[at] = (byte & 15) as i8 - 8;
                to[at + 16] = (byte >> 4) as i8 - 8;
            }
        }
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// 32 numbers of 16 bytes: the low halves of all, then the high ones.
fn nibbles(bytes: &[u8], to: &mut [f32], value: impl Fn(u8, usize) -> f32) {
    for (at, &byte) in bytes.iter().enumerate().take(16) {
        to[at] = value(byte & 15, at);
        to[at + 16] = value(byte >> 4, at + 16);
    }
}

/// The fifth bit of a number.
fn fifth(high: u32, at: usize) -> u8 {
    ((high >> at & 1) << 4) as u8
}

/// Scale and least of one of eight groups of 32: six bits each in twelve bytes.
fn k_scale(packed: &[u8], group: usize) -> (u8, u8) {
    if group < 4 {
        return (packed[group] & 63, packed[group + 4] & 63);
    }
    let low = packed[group + 4];
    (low & 15 | packed[group - 4] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4)
}

/// Eight groups of 32: two share 32 bytes of halves; the fifth bits of a group are one bit of 32 bytes.
fn k_4_or_5(block: &[u8], high: &[u8], low: &[u8], to: &mut [f32]) {
    let (scale, least) = (half_at(block, 0), half_at(block, 2));
    for (group, to) in to.chunks_exact_mut(32).enumerate() {
        let (of_scale, of_least) = k_scale(&block[4..16], group);
        let (scale, least) = (scale * f32::from(of_scale), least * f32::from(of_least));
        for (at, to) in to.iter_mut().enumerate() {
            let half = low[group / 2 * 32 + at] >> (group % 2 * 4) & 15;
            let fifth = high.get(at).map_or(0, |byte| (byte >> group & 1) << 4);
            *to = scale * f32::from(half | fifth) - least;
        }
    }
}

/// Sixteen groups of 16: four low bits, two high ones, a signed scale of eight bits.
fn k_6(block: &[u8], to: &mut [f32]) {
    let (low, high, scales, scale) = (&block[..128], &block[128..192], &block[192..208], half_at(block, 208));
    for (at, to) in to.iter_mut().enumerate() {
        // Halves of 128 numbers; each is four runs of 32.
        let (half, run, place) = (at / 128, at % 128 / 32, at % 32);
        let four = low[half * 64 + run % 2 * 32 + place] >> (run / 2 * 4) & 15;
        let two = high[half * 32 + place] >> (run * 2) & 3;
        let group_scale = scale * f32::from(scales[at / 16] as i8);
        *to = group_scale * (f32::from(four | two << 4) - 32.0);
    }
}
