//! What a request gives alone and in company, over a golden's prompts.

use crate::driver::{Policy, Request, run};
use crate::tiny::Golden;
use pinion_model::{Model, OwnedBatch, SampleParams};

/// Tokens of each answer.
const OUTPUT: usize = 24;

/// The golden's first prompts, decoded greedily.
fn requests(golden: &Golden, count: usize, arrival: impl Fn(usize) -> usize) -> Vec<Request> {
    let request = |index: usize| Request {
        prompt: golden.cases[index].prompt.clone(),
        output_len: OUTPUT,
        arrival: arrival(index),
        params: SampleParams::GREEDY,
    };
    (0..golden.cases.len().min(count)).map(request).collect()
}

/// Logits after `prompt`, whose first `cached` tokens are computed in a step of their own, beside `mates` other rows.
pub(crate) fn last_logits(model: &mut dyn Model, prompt: &[u32], cached: usize, mates: u32) -> Vec<f32> {
    let blocks: Vec<u32> = (0..8).rev().map(|block| block * 3 + 1).collect();
    let mut logits = Vec::new();
    for (start, end) in [(0, cached), (cached, prompt.len())] {
        let mut batch = OwnedBatch::default();
        if start < end {
            batch.push(0, start as u32, &prompt[start..end], &blocks);
            for mate in 1..=mates {
                batch.push(mate, 0, &prompt[..1], &[100 + mate]).sample = None;
            }
            model.logits(&batch.as_step(), &mut logits).unwrap();
        }
    }
    logits
}

/// Greedy ids of the first `count` prompts are the same alone, together, in chunks and after preemptions.
pub(crate) fn check_ids(model: &mut dyn Model, golden: &Golden, count: usize, what: &str) {
    let whole = Policy { chunk: usize::MAX, preempt_at: &[] };
    let alone: Vec<Vec<u32>> = requests(golden, count, |_| 0)
        .into_iter()
        .map(|request| run(model, &[request], whole).remove(0))
        .collect();
    for policy in [
        whole,
        Policy { chunk: 24, preempt_at: &[] },
        Policy { chunk: 24, preempt_at: &[3, 9, 15] },
        Policy { chunk: 1, preempt_at: &[] },
    ] {
        let ids = run(model, &requests(golden, count, |index| index * 3 % 7), policy);
        assert_eq!(ids, alone, "{what} with {policy:?}");
    }
}

/// Logits after the longest prompt have the same bits beside other rows, and over a cached prefix.
pub(crate) fn check_logits(model: &mut dyn Model, golden: &Golden, what: &str) {
    let prompt = golden.cases.iter().map(|case| &case.prompt).max_by_key(|prompt| prompt.len()).unwrap();
    let whole = last_logits(model, prompt, 0, 0);
    assert_eq!(last_logits(model, prompt, 0, 5), whole, "{what} beside others");
    for cached in [16, 48, 80] {
        assert_eq!(last_logits(model, prompt, cached, 0), whole, "{what} after {cached} cached tokens");
    }
}
