//! How the next token is drawn, checked once and carried unchanged to the engine.

use crate::grammar::{self, Grammar};
use crate::limits::{
    ADDITIVE_PENALTY_MAX, GRAMMAR_BYTES_MAX, LOGIT_BIAS_ENTRIES_MAX, LOGIT_BIAS_MAX,
    LOGPROB_ALTERNATIVES_MAX, REPETITION_PENALTY_MAX, REPETITION_PENALTY_MIN, STOP_TOKEN_IDS_MAX,
    TEMPERATURE_MAX,
};
use crate::reasoning::Reasoning;
use crate::stop_ids::StopIds;
use crate::wire::{Cursor, Malformed, put_ids};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Sampling parameters of one request. A value of this type is always in range: the only ways to get one
/// are [`Sampling::default`], field-by-field construction by admission, and a checked decode.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy; otherwise the logits' divisor. Finite, 0 ..= 100.
    pub temperature: f32,
    /// Smallest probability mass kept, 0 < p ≤ 1; 1 keeps everything.
    pub top_p: f32,
    /// Most likely tokens kept; `None` keeps everything.
    pub top_k: Option<u32>,
    /// Tokens less likely than this share of the likeliest are dropped, 0 ≤ p ≤ 1; 0 drops none.
    pub min_p: f32,
    /// Divides the positive and multiplies the negative logits of tokens in the prompt or the output; 1 is off.
    pub repetition_penalty: f32,
    /// Taken from a token's logit for each time it stands in the output; 0 is off.
    pub frequency_penalty: f32,
    /// Taken once from the logit of each token that stands in the output; 0 is off.
    pub presence_penalty: f32,
    /// Seed of the draw; a token's random number depends only on (seed, its position).
    pub seed: u64,
    /// Most tokens to generate; `None` means as many as the context holds.
    pub max_tokens: Option<u32>,
    /// Tokens generated before one that ends the text may come; at most `max_tokens`.
    pub min_tokens: u32,
    /// Go on past the model's end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Token ids and what is added to their logits, each within ±[`LOGIT_BIAS_MAX`].
    pub logit_bias: Vec<(u32, f32)>,
    /// Report each token's logprob and those of this number of likeliest tokens, at most [`LOGPROB_ALTERNATIVES_MAX`].
    pub logprobs: Option<u32>,
    /// Report the logprob of each token of the prompt and those of this number of likeliest tokens at its
    /// place, at most [`LOGPROB_ALTERNATIVES_MAX`].
    pub prompt_logprobs: Option<u32>,
    /// Token ids that end the text as the end-of-sequence tokens do, whatever `ignore_eos` says.
    pub stop_token_ids: Vec<u32>,
    /// What the whole text must look like, but for the reasoning before it. It wins over `ignore_eos`, `min_tokens` and
    /// biases.
    pub grammar: Option<Grammar>,
    /// How the text begins. A frontend says whether reasoning is to be looked for, the tokenizer whether it has begun.
    pub reasoning: Reasoning,
    /// The text goes on with its prompt's, so that a space at its beginning is shown whatever the tokenizer.
    pub continues: bool,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            seed: 0,
            max_tokens: Some(16),
            min_tokens: 0,
            ignore_eos: false,
            logit_bias: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
            stop_token_ids: Vec::new(),
            grammar: None,
            reasoning: Reasoning::None,
            continues: false,
        }
    }
}

impl Sampling {
    /// Whether anything but the model decides the logits of the token that follows `generated` others.
    pub fn shapes_logits(&self, generated: u32) -> bool {
        self.reads_output() || !self.logit_bias.is_empty() || generated < self.min_tokens
    }

    /// Whether the logits depend on which tokens were generated, as with penalties.
    pub fn reads_output(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// Whether the next draw cannot be planned before the token before it is known here: a grammar follows tokens on a
    /// thread of this process. What penalties need of that token the model adds where it draws it.
    pub fn waits_for_output(&self) -> bool {
        self.grammar.is_some()
    }

    /// Whether `token` ends a text in which `before` tokens were generated before it. `model` are the ids that end
    /// every text of the model.
    pub fn ends_at(&self, token: u32, before: u32, model: &StopIds) -> bool {
        let is_eos = !self.ignore_eos && model.contains(token);
        before >= self.min_tokens && (is_eos || self.stop_token_ids.contains(&token))
    }

    /// Appends the lists, which stand behind the header that holds the [`SamplingRecord`].
    pub(crate) fn put_lists(&self, out: &mut Vec<u8>) {
        for (id, bias) in &self.logit_bias {
            put_ids(out, &[*id, bias.to_bits()]);
        }
        put_ids(out, &self.stop_token_ids);
        out.extend_from_slice(self.grammar.as_ref().map_or(&[], |grammar| grammar.text.as_bytes()));
    }
}

const IGNORE_EOS: u32 = 1;
const HAS_TOP_K: u32 = 2;
const HAS_MAX_TOKENS: u32 = 4;
const HAS_LOGPROBS: u32 = 8;
const HAS_PROMPT_LOGPROBS: u32 = 16;
/// Two bits for [`Reasoning`].
const REASONING_SHIFT: u32 = 5;
const REASONING_MASK: u32 = 3 << REASONING_SHIFT;
const CONTINUES: u32 = 128;
const KNOWN_FLAGS: u32 =
    IGNORE_EOS | HAS_TOP_K | HAS_MAX_TOKENS | HAS_LOGPROBS | HAS_PROMPT_LOGPROBS | REASONING_MASK | CONTINUES;

/// Bytes of the longest lists that follow a header.
pub const LISTS_BYTES_MAX: usize =
    (2 * LOGIT_BIAS_ENTRIES_MAX + STOP_TOKEN_IDS_MAX) * size_of::<u32>() + GRAMMAR_BYTES_MAX;

/// The fixed part of [`Sampling`] as it crosses a ring: 72 bytes. The lists follow the header that it stands in: each
/// bias as a token id and the bits of an `f32`, then the stop ids, then the grammar's text.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SamplingRecord {
    seed: u64,
    temperature: f32,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    frequency_penalty: f32,
    presence_penalty: f32,
    top_k: u32,
    max_tokens: u32,
    min_tokens: u32,
    flags: u32,
    logit_bias_count: u32,
    stop_token_id_count: u32,
    logprobs: u32,
    prompt_logprobs: u32,
    grammar_tag: u32,
    grammar_len: u32,
}

const _: () = assert!(size_of::<SamplingRecord>() == 72);

impl From<&Sampling> for SamplingRecord {
    fn from(s: &Sampling) -> Self {
        let mut flags = (s.reasoning as u32) << REASONING_SHIFT;
        if s.ignore_eos {
            flags |= IGNORE_EOS;
        }
        if s.continues {
            flags |= CONTINUES;
        }
        if s.top_k.is_some() {
            flags |= HAS_TOP_K;
        }
        if s.max_tokens.is_some() {
            flags |= HAS_MAX_TOKENS;
        }
        if s.logprobs.is_some() {
            flags |= HAS_LOGPROBS;
        }
        if s.prompt_logprobs.is_some() {
            flags |= HAS_PROMPT_LOGPROBS;
        }
        SamplingRecord {
            seed: s.seed,
            temperature: s.temperature,
            top_p: s.top_p,
            min_p: s.min_p,
            repetition_penalty: s.repetition_penalty,
            frequency_penalty: s.frequency_penalty,
            presence_penalty: s.presence_penalty,
            top_k: s.top_k.unwrap_or(0),
            max_tokens: s.max_tokens.unwrap_or(0),
            min_tokens: s.min_tokens,
            flags,
            logit_bias_count: s.logit_bias.len() as u32,
            stop_token_id_count: s.stop_token_ids.len() as u32,
            logprobs: s.logprobs.unwrap_or(0),
            prompt_logprobs: s.prompt_logprobs.unwrap_or(0),
            grammar_tag: grammar::tag_of(s.grammar.as_ref()),
            grammar_len: s.grammar.as_ref().map_or(0, |grammar| grammar.text.len() as u32),
        }
    }
}

impl SamplingRecord {
    /// A NaN is in no range.
    fn is_in_range(&self) -> bool {
        let additive = -ADDITIVE_PENALTY_MAX..=ADDITIVE_PENALTY_MAX;
        (0.0..=TEMPERATURE_MAX).contains(&self.temperature)
            && self.top_p > 0.0
            && self.top_p <= 1.0
            && (0.0..=1.0).contains(&self.min_p)
            && (REPETITION_PENALTY_MIN..=REPETITION_PENALTY_MAX).contains(&self.repetition_penalty)
            && additive.contains(&self.frequency_penalty)
            && additive.contains(&self.presence_penalty)
            && self.flags & !KNOWN_FLAGS == 0
            && self.logprobs <= LOGPROB_ALTERNATIVES_MAX
            && self.prompt_logprobs <= LOGPROB_ALTERNATIVES_MAX
            && (self.flags & HAS_MAX_TOKENS == 0 || self.min_tokens <= self.max_tokens)
    }

    /// Checks the record and takes its lists. Errors: a value out of range, lists too long or cut short.
    pub(crate) fn decode(self, cursor: &mut Cursor<'_>) -> Result<Sampling, Malformed> {
        if !self.is_in_range() {
            return Err(Malformed("sampling parameters"));
        }
        let (bias_count, stop_count) = (self.logit_bias_count as usize, self.stop_token_id_count as usize);
        if bias_count > LOGIT_BIAS_ENTRIES_MAX || stop_count > STOP_TOKEN_IDS_MAX {
            return Err(Malformed("sampling list length"));
        }
        let reasoning = Reasoning::from_bits((self.flags & REASONING_MASK) >> REASONING_SHIFT);
        let words = cursor.ids(2 * bias_count, "logit bias")?;
        let logit_bias: Vec<_> = words.chunks_exact(2).map(|w| (w[0], f32::from_bits(w[1]))).collect();
        if logit_bias.iter().any(|(_, bias)| !(-LOGIT_BIAS_MAX..=LOGIT_BIAS_MAX).contains(bias)) {
            return Err(Malformed("logit bias"));
        }
        Ok(Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: (self.flags & HAS_TOP_K != 0).then_some(self.top_k),
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            seed: self.seed,
            max_tokens: (self.flags & HAS_MAX_TOKENS != 0).then_some(self.max_tokens),
            min_tokens: self.min_tokens,
            ignore_eos: self.flags & IGNORE_EOS != 0,
            logit_bias,
            logprobs: (self.flags & HAS_LOGPROBS != 0).then_some(self.logprobs),
            prompt_logprobs: (self.flags & HAS_PROMPT_LOGPROBS != 0).then_some(self.prompt_logprobs),
            stop_token_ids: cursor.ids(stop_count, "stop token ids")?,
            grammar: grammar::decode(self.grammar_tag, self.grammar_len, cursor)?,
            reasoning: reasoning.ok_or(Malformed("sampling flags"))?,
            continues: self.flags & CONTINUES != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar::{GrammarField, GrammarKind};

    fn grammar(kind: GrammarKind, text: &str) -> Option<Grammar> {
        Some(Grammar { kind, field: GrammarField::GuidedChoice, text: text.into() })
    }

    fn round_trip(s: &Sampling) -> Result<Sampling, Malformed> {
        let mut lists = Vec::new();
        s.put_lists(&mut lists);
        let mut cursor = Cursor(&lists);
        let decoded = SamplingRecord::from(s).decode(&mut cursor)?;
        cursor.end("sampling tail")?;
        Ok(decoded)
    }

    #[test]
    fn round_trip_keeps_absent_apart_from_zero() {
        for s in [
            Sampling::default(),
            Sampling {
                top_k: Some(0),
                max_tokens: Some(0),
                ignore_eos: true,
                logprobs: Some(0),
                prompt_logprobs: Some(0),
                ..Sampling::default()
            },
            Sampling { top_k: None, max_tokens: None, seed: u64::MAX, min_tokens: 9, ..Sampling::default() },
            Sampling {
                min_p: 0.5,
                repetition_penalty: 1.5,
                frequency_penalty: -2.0,
                presence_penalty: 2.0,
                min_tokens: 16,
                logit_bias: vec![(3, -100.0), (u32::MAX, 100.0), (0, -0.0)],
                logprobs: Some(20),
                prompt_logprobs: Some(19),
                stop_token_ids: vec![0, u32::MAX],
                grammar: grammar(GrammarKind::Choice, "[\"é\"]"),
                ..Sampling::default()
            },
            Sampling {
                grammar: grammar(GrammarKind::JsonObject, ""),
                reasoning: Reasoning::Begun,
                continues: true,
                ..Sampling::default()
            },
            Sampling { reasoning: Reasoning::Possible, ignore_eos: true, ..Sampling::default() },
            Sampling {
                grammar: grammar(GrammarKind::Regex, &"x".repeat(GRAMMAR_BYTES_MAX)),
                ..Sampling::default()
            },
        ] {
            assert_eq!(round_trip(&s), Ok(s));
        }
    }

    #[test]
    fn values_out_of_range_do_not_decode() {
        let base = Sampling::default;
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -101.0, 101.0] {
            for s in [
                Sampling { temperature: bad, ..base() },
                Sampling { top_p: bad, ..base() },
                Sampling { min_p: bad, ..base() },
                Sampling { repetition_penalty: bad, ..base() },
                Sampling { frequency_penalty: bad, ..base() },
                Sampling { presence_penalty: bad, ..base() },
                Sampling { logit_bias: vec![(1, 0.0), (2, bad)], ..base() },
            ] {
                assert!(round_trip(&s).is_err(), "{s:?}");
            }
        }
        for s in [
            Sampling { min_tokens: 17, ..base() },
            Sampling { logprobs: Some(21), ..base() },
            Sampling { prompt_logprobs: Some(21), ..base() },
            Sampling { repetition_penalty: 0.0, ..base() },
            Sampling { frequency_penalty: 2.1, ..base() },
            Sampling { min_p: -0.1, ..base() },
            Sampling { logit_bias: vec![(1, 0.0); LOGIT_BIAS_ENTRIES_MAX + 1], ..base() },
            Sampling { stop_token_ids: vec![1; STOP_TOKEN_IDS_MAX + 1], ..base() },
            Sampling { grammar: grammar(GrammarKind::Lark, &"x".repeat(GRAMMAR_BYTES_MAX + 1)), ..base() },
        ] {
            assert!(round_trip(&s).is_err(), "{s:?}");
        }
        let longest = Sampling {
            logit_bias: vec![(1, 0.0); LOGIT_BIAS_ENTRIES_MAX],
            stop_token_ids: vec![1; STOP_TOKEN_IDS_MAX],
            ..base()
        };
        assert_eq!(round_trip(&longest), Ok(longest));
    }

    #[test]
    fn ends_are_counted_from_what_came_before() {
        let s = Sampling { min_tokens: 2, stop_token_ids: vec![5], ..Sampling::default() };
        let model = StopIds::of([7, 9]).unwrap();
        for (token, before, ends) in [
            (5, 1, false),
            (5, 2, true),
            (7, 1, false),
            (7, 2, true),
            (9, 1, false),
            (9, 2, true),
            (6, 9, false),
            (0, 9, false),
        ] {
            assert_eq!(s.ends_at(token, before, &model), ends, "{token} after {before}");
        }
        let ignoring = Sampling { ignore_eos: true, ..s };
        for (token, ends) in [(7, false), (9, false), (5, true)] {
            assert_eq!(ignoring.ends_at(token, 9, &model), ends, "{token}");
        }
        assert!(ignoring.shapes_logits(1) && !ignoring.shapes_logits(2));
    }
}
