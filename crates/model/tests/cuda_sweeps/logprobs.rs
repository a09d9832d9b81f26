//! Random logits and requests through the kernels that score and sample, and through the host's sampler.

use super::sampling::{draw_of, logits, params};
use pinion_cuda::{
    CHANGE_BYTES, DRAW_BYTES, Device, Draw, LogitChange, RowChanges, SAMPLED_BYTES, SCORED_BYTES,
    SCORES_BYTES, Sample, Sampled, SampledState, Score, Scored, Scores,
};
use pinion_model::{Logprob, MaskState, RowOutcome, SampleParams, Sampler, Shaping, StepOutput, TokenMask};
use pinion_random::Random;
use std::sync::Arc;

/// One row of a case.
#[derive(Debug)]
struct Case {
    logits: Vec<f32>,
    bias: Vec<(u32, f32)>,
    banned: Vec<u32>,
    /// What stands in the output, and what the lane sampled last.
    output: Vec<u32>,
    last: u32,
    penalty: f32,
    /// A bit for each id that may be drawn.
    mask: Option<Arc<dyn TokenMask>>,
    params: SampleParams,
}

/// A mask that is known.
#[derive(Debug)]
pub(crate) struct Bits(pub(crate) Vec<u32>);

impl TokenMask for Bits {
    fn read(&self, _: u64, bits: &mut Vec<u32>) -> MaskState {
        bits.clone_from(&self.0);
        MaskState::Ready
    }
}

/// A few ids or nearly all; one at least.
pub(crate) fn mask(random: &mut Random, vocab: usize) -> Bits {
    let (one, few) = (random.below(vocab), random.below(2) == 0);
    let mut bits: Vec<u32> = (0..vocab.div_ceil(32))
        .map(|_| {
            let word = random.bits() as u32;
            if few { word & random.bits() as u32 & random.bits() as u32 } else { word }
        })
        .collect();
    bits[one / 32] |= 1 << (one % 32);
    Bits(bits)
}

impl Case {
    fn random(random: &mut Random, vocab: usize) -> Case {
        let mut ids = |most: usize| -> Vec<u32> {
            let mut ids: Vec<u32> = (0..random.below(most + 1)).map(|_| random.below(vocab) as u32).collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        let (biased, banned, output) = (ids(9), ids(30), ids(6));
        let last = match output.first() {
            Some(&id) if random.below(2) == 0 => id,
            _ => random.below(vocab) as u32,
        };
        let mut row = logits(random, vocab);
        if random.below(12) == 0 {
            let at = random.below(vocab);
            row[at] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][random.below(3)];
        }
        let mut case = Case {
            logits: row,
            // A bias that excludes a token, one that makes it certain, small ones.
            bias: biased.iter().map(|&id| (id, [f32::MIN, f32::MAX, -1.0, 0.5][random.below(4)])).collect(),
            banned,
            output,
            last,
            penalty: [1.0, 1.0, 0.5, 1.7][random.below(4)],
            mask: None,
            params: SampleParams { logprobs: Some(random.below(21) as u32), ..params(random, vocab) },
        };
        if random.below(2) == 0 {
            let bits = mask(random, vocab);
            // Now and then all that it allows is banned, or has the lowest logit from the start.
            if random.below(4) == 0 {
                let is_allowed = |id: &u32| bits.0[*id as usize / 32] >> (id % 32) & 1 == 1;
                let allowed: Vec<u32> = (0..vocab as u32).filter(is_allowed).collect();
                match random.below(2) {
                    0 => case.banned = allowed,
                    _ => allowed.iter().for_each(|id| case.logits[*id as usize] = f32::MIN),
                }
            }
            case.mask = Some(Arc::new(bits));
        }
        case
    }

    fn on_host(&self) -> StepOutput {
        let mut out = StepOutput::default();
        let output = [&self.output[..], &[self.last]].concat();
        let shaping = Shaping {
            output: &output,
            repetition_penalty: self.penalty,
            frequency_penalty: self.penalty - 1.0,
            bias: &self.bias,
            banned_ids: &self.banned,
            mask: self.mask.as_ref(),
            ..Shaping::OFF
        };
        let mut sampler = Sampler::new(self.logits.len());
        sampler.draw_row(&mut self.logits.clone(), &self.params, Some(shaping), &mut out);
        out
    }

    /// One change for each id, behind `all`.
    fn changes(&self, all: &mut Vec<LogitChange>) -> RowChanges {
        let begin = all.len();
        let is_penalised = self.penalty != 1.0;
        let mut ids =
            [self.bias.iter().map(|(id, _)| *id).collect(), self.banned.clone(), self.output.clone()]
                .concat();
        ids.sort_unstable();
        ids.dedup();
        all.extend(ids.iter().map(|&id| LogitChange {
            id,
            is_recalled: is_penalised && self.output.contains(&id),
            count: u32::from(is_penalised && self.output.contains(&id)),
            bias: self.bias.iter().find(|(biased, _)| *biased == id).map_or(0.0, |(_, bias)| *bias),
            is_banned: self.banned.contains(&id),
        }));
        RowChanges {
            begin: begin as u32,
            count: (all.len() - begin) as u32,
            repetition_penalty: self.penalty,
            frequency_penalty: self.penalty - 1.0,
            presence_penalty: 0.0,
            recalls_last: is_penalised,
        }
    }
}

fn on_device(device: &Device, cases: &[Case]) -> Vec<(SampledState, Vec<Logprob>)> {
    let stream = device.stream().unwrap();
    let put = |bytes: &[u8]| {
        let span = device.alloc(bytes.len()).unwrap();
        stream.upload(span, bytes).unwrap();
        span
    };
    let (count, vocab) = (cases.len(), cases[0].logits.len());
    let mut masks: Vec<Vec<u32>> = Vec::new();
    let (mut draws, mut scored) = (vec![0; count * DRAW_BYTES], vec![0; count * SCORED_BYTES]);
    let mut changes = Vec::new();
    for (row, case) in cases.iter().enumerate() {
        // Rows are named backwards: what is sampled is what `row` says.
        let (to, row) = (count - 1 - row, row as u32);
        let mut bits = Vec::new();
        let mask = case.mask.as_ref().map(|mask| {
            mask.read(0, &mut bits);
            masks.push(bits);
            masks.len() as u32 - 1
        });
        let draw = Draw {
            row,
            mask,
            is_scored: true,
            changes: case.changes(&mut changes),
            ..draw_of(&case.params, row)
        };
        draw.write(&mut draws[to * DRAW_BYTES..][..DRAW_BYTES]);
        let best = case.params.logprobs.unwrap();
        Scored { row, best }.write(&mut scored[row as usize * SCORED_BYTES..][..SCORED_BYTES]);
    }
    let mut change_bytes = vec![0; changes.len() * CHANGE_BYTES];
    for (change, to) in changes.iter().zip(change_bytes.chunks_exact_mut(CHANGE_BYTES)) {
        change.write(to);
    }
    let bytes = |words: &mut dyn Iterator<Item = u32>| words.flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
    let logits = put(&bytes(&mut cases.iter().flat_map(|case| &case.logits).map(|logit| logit.to_bits())));
    let lane_tokens = put(&bytes(&mut cases.iter().map(|case| case.last)));
    let sampled = put(&vec![0xee; count * SAMPLED_BYTES]);
    let scores = put(&vec![0xee; count * SCORES_BYTES]);
    let (rows, vocab) = (count as u32, vocab as u32);
    let mask_span = put(&bytes(&mut masks.concat().into_iter().chain([0])));
    stream.score(&Score { logits, scored: put(&scored), scores, count: rows, rows, vocab }).unwrap();
    let args = Sample {
        logits,
        draws: put(&draws),
        sampled,
        lane_tokens,
        changes: Some((put(&change_bytes), changes.len() as u32)),
        masks: Some((mask_span, masks.len() as u32)),
        rows,
        logits_rows: rows,
        vocab,
        lanes: rows,
    };
    stream.sample(&args).unwrap();
    let (mut tokens, mut told) = (vec![0; sampled.bytes()], vec![0; scores.bytes()]);
    stream.download(&mut tokens, sampled).unwrap();
    stream.download(&mut told, scores).unwrap();
    let rows = tokens.chunks_exact(SAMPLED_BYTES).zip(told.chunks_exact(SCORES_BYTES));
    rows.map(|(sampled, scores)| {
        let (state, scores) = (Sampled::read(sampled), Scores::read(scores));
        let SampledState::Token(token) = state else { return (state, Vec::new()) };
        let mut all = vec![Logprob { token, logprob: scores.logprob(Sampled::logit(sampled)) }];
        all.extend(scores.best().map(|(token, logprob)| Logprob { token, logprob }));
        (state, all)
    })
    .collect()
}

/// The same tokens, and logprobs that differ by what the order of one sum of doubles explains.
pub(crate) fn assert_same(have: &[Logprob], want: &[Logprob], what: &str) {
    let tokens = |all: &[Logprob]| all.iter().map(|one| one.token).collect::<Vec<_>>();
    assert_eq!(tokens(have), tokens(want), "{what}");
    for (have, want) in have.iter().zip(want) {
        let (have, want) = (have.logprob, want.logprob);
        assert!((have - want).abs() <= f32::EPSILON * want.abs() + 1e-11, "{what}: {have:e}, not {want:e}");
    }
}

/// `cases` launches of a few rows each.
pub(crate) fn sweep(device: &Device, cases: u64, vocab_max: usize) {
    let (mut changed, mut broken) = (0, 0);
    for seed in 0..cases {
        let mut random = Random::new(seed);
        let vocab = 1 + random.below(vocab_max);
        let rows: Vec<Case> = (0..1 + random.below(4)).map(|_| Case::random(&mut random, vocab)).collect();
        for (index, (case, (state, have))) in rows.iter().zip(on_device(device, &rows)).enumerate() {
            let want = case.on_host();
            let what = format!("seed {seed}, row {index} of {vocab}: {:?}", case.params);
            let expected = match want.rows[0] {
                RowOutcome::Token(token) => SampledState::Token(token),
                _ => SampledState::NonFinite,
            };
            assert_eq!(state, expected, "{what}");
            assert_same(&have, want.logprobs(0), &what);
            let is_changed =
                |one: &Logprob| case.last == one.token || case.bias.iter().any(|(id, _)| *id == one.token);
            changed += u32::from(have.first().is_some_and(is_changed));
            broken += u32::from(have.is_empty());
        }
    }
    // Some of what is drawn had its logit changed, and is scored as it was; some rows are not finite and have no
    // scores.
    assert!(changed > 0 && (broken > 0 || cases < 40), "{changed} changed, {broken} broken");
}
