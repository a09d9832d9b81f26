//! Scores of prompt tokens against transformers' log_softmax (tests/fixtures/*/prompt_scores.json): the whole prompt at
//! once, in chunks, and beside other rows; and the fake model's, which have one true answer.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use crate::emulated;
use pinion_model::{
    FakeModel, FakeOptions, FakeShape, Model, OwnedBatch, PromptScores, SampleParams, Scored, StepOutput,
    fake_token,
};

/// What came of one prompt: for each token but the first its logprob, its rank and the likeliest ids.
type Scores = Vec<(f32, u32, Vec<u32>)>;

/// Feeds `prompt` in chunks of `chunk` tokens and collects the scores of its tokens. `mate` is another sequence, one
/// token of which is decoded in each step as long as it has some.
fn scores(model: &mut dyn Model, prompt: &[u32], chunk: usize, alternatives: u32, mate: &[u32]) -> Scores {
    let block_size = model.info().block_size;
    let blocks_of = |len: usize, odd: u32| -> Vec<u32> {
        (0..(len as u32).div_ceil(block_size).max(1)).rev().map(|block| block * 2 + odd).collect()
    };
    let (own_blocks, mate_blocks) = (blocks_of(prompt.len(), 0), blocks_of(mate.len(), 1));
    let mut out = StepOutput::default();
    let mut scores = Vec::new();
    for (step, begin) in (0..prompt.len()).step_by(chunk).enumerate() {
        let end = prompt.len().min(begin + chunk);
        // The last position of the prompt has no successor to score.
        let scored = end.min(prompt.len() - 1) - begin;
        let mut batch = OwnedBatch::default();
        if let Some(&token) = mate.get(step) {
            let row = batch.push(1, step as u32, &[token], &mate_blocks);
            row.prompt_len = 1;
            row.sample = Some(SampleParams { logprobs: Some(2), ..SampleParams::GREEDY });
        }
        let row = batch.push(0, begin as u32, &prompt[begin..end], &own_blocks);
        row.prompt_len = prompt.len() as u32;
        row.sample = (end == prompt.len()).then_some(SampleParams::GREEDY);
        row.scored = (scored > 0).then(|| Scored {
            first: 0,
            len: scored as u32,
            after: prompt.get(end).copied().unwrap_or(0),
            alternatives,
        });
        let batch = batch.as_step();
        model.step(&batch, &mut out).unwrap();
        for (index, row) in batch.rows.iter().enumerate() {
            let got = out.prompt_scores(index);
            let want = if row.scored.is_some() { scored } else { 0 };
            assert_eq!(got.ranks.len(), want, "row {index} of step {step}");
            take(&got, &prompt[begin + 1..], &mut scores);
        }
    }
    scores
}

/// Appends what a row gives for the tokens that follow its first.
fn take(got: &PromptScores<'_>, tokens: &[u32], scores: &mut Scores) {
    let each = got.logprobs.len() / got.ranks.len().max(1);
    for (at, rank) in got.ranks.iter().enumerate() {
        let entries = &got.logprobs[at * each..][..each];
        assert_eq!(entries[0].token, tokens[at]);
        scores.push((entries[0].logprob, *rank, entries[1..].iter().map(|entry| entry.token).collect()));
    }
}

#[test]
fn the_fake_s_scores_follow_from_the_prefix() {
    let shape = FakeShape { vocab_size: 50, max_context: 64, eos: Some(3), block_size: 4, block_count: 64 };
    let mut model = FakeModel::new(shape, FakeOptions::default());
    // Every third token is the one that the fake would say.
    let mut prompt: Vec<u32> = vec![7];
    for at in 1..30 {
        prompt.push(if at % 3 == 0 { fake_token(&prompt, 0, 50, Some(3)) } else { at * 11 % 50 });
    }
    let (hot, cold) = (1.0 - (1f64.exp() + 49.0).ln(), -(1f64.exp() + 49.0).ln());
    for (chunk, mate) in [(usize::MAX, &[][..]), (1, &[]), (7, &[5, 6, 7]), (4, &[9; 20])] {
        let got = scores(&mut model, &prompt, chunk.min(prompt.len()), 2, mate);
        assert_eq!(got.len(), prompt.len() - 1);
        for (at, (logprob, rank, best)) in (1..).zip(&got) {
            let likeliest = fake_token(&prompt[..at], 0, 50, Some(3));
            let (own, place) = if prompt[at] == likeliest { (hot, 1) } else { (cold, 2) };
            assert!((f64::from(*logprob) - own).abs() < 1e-5, "token {at}: {logprob} instead of {own}");
            let second = u32::from(likeliest == 0);
            assert_eq!((*rank, best), (place, &vec![likeliest, second]), "token {at} in chunks of {chunk}");
        }
    }
}

#[cfg(feature = "torch")]
mod torch {
    use super::{Scores, scores};
    use pinion_model::{AttentionKernel, DtypeChoice, KvSize, LinearKind, Model, ModelOptions, load};
    use serde::Deserialize;
    use std::path::PathBuf;

    #[derive(Deserialize)]
    struct Golden {
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        prompt: Vec<u32>,
        logprobs: Vec<f32>,
        ranks: Vec<u32>,
        best: Vec<Vec<u32>>,
    }

    fn model(name: &str, linear: LinearKind, dtype: DtypeChoice) -> Option<(Box<dyn Model>, Vec<Case>)> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        let options = ModelOptions {
            dtype,
            block_size: 16,
            kv: KvSize::Blocks(64),
            linear,
            attention: AttentionKernel::Vector,
            ..ModelOptions::default()
        };
        let text = std::fs::read_to_string(folder.join("prompt_scores.json")).unwrap();
        let golden: Golden = serde_json::from_str(&text).unwrap();
        assert_eq!(golden.cases.len(), 15, "{name}");
        match load(&folder, &options) {
            Ok(model) => Some((model, golden.cases)),
            Err(error) => {
                assert!(error.to_string().contains("no bf16 instructions"), "{error}");
                None
            }
        }
    }

    /// The largest difference of a logprob; ranks and likeliest ids are compared only if `exact`.
    fn difference(have: &Scores, want: &Case, exact: bool) -> f32 {
        assert_eq!(have.len(), want.logprobs.len());
        let mut largest = 0f32;
        for (at, (logprob, rank, best)) in have.iter().enumerate() {
            largest = largest.max((logprob - want.logprobs[at]).abs());
            if exact {
                assert_eq!((*rank, best), (want.ranks[at], &want.best[at]), "token {}", at + 1);
            }
        }
        largest
    }

    #[test]
    fn prompt_scores_equal_the_goldens_whole_in_chunks_and_beside_others() {
        for name in ["tiny-a", "tiny-b", "tiny-c"] {
            for linear in [LinearKind::OneDnn, LinearKind::Plain, LinearKind::Packed] {
                let (mut model, cases) = model(name, linear, DtypeChoice::F32).unwrap();
                let mate: Vec<u32> = (0..40).map(|at| at * 7 % 100).collect();
                for case in &cases {
                    for (chunk, mate) in [(usize::MAX, &[][..]), (24, &[]), (5, &mate), (64, &mate[..1])] {
                        let chunk = chunk.min(case.prompt.len());
                        let got = scores(&mut *model, &case.prompt, chunk, 3, mate);
                        let error = difference(&got, case, true);
                        assert!(error < 1e-4, "{name}, {linear:?}, chunks of {chunk}: {error:e}");
                    }
                }
            }
        }
    }

    /// Scores come through the host there; the mate's rows are sampled beside them, and the greedy ones by the device.
    #[test]
    fn the_cuda_engine_s_scores_equal_the_goldens() {
        let mut device = super::emulated::ready("tiny-b", &super::emulated::options());
        let (_, cases) = model("tiny-b", LinearKind::OneDnn, DtypeChoice::F32).unwrap();
        let mate: Vec<u32> = (0..40).map(|at| at * 7 % 100).collect();
        for case in &cases[..4] {
            for (chunk, mate) in [(usize::MAX, &[][..]), (24, &[]), (5, &mate), (64, &mate[..1])] {
                let chunk = chunk.min(case.prompt.len());
                let got = scores(&mut device, &case.prompt, chunk, 3, mate);
                let error = difference(&got, case, true);
                assert!(error < 1e-4, "chunks of {chunk}: {error:e}");
            }
        }
    }

    #[test]
    fn bf16_scores_are_near_the_goldens() {
        let Some((mut model, cases)) = model("tiny-b", LinearKind::OneDnn, DtypeChoice::Bf16) else { return };
        for case in &cases {
            let got = scores(&mut *model, &case.prompt, case.prompt.len(), 3, &[]);
            let error = difference(&got, case, false);
            assert!(error < 0.5, "{error}");
        }
    }
}
