//! What ends a text by a token: the end of sequence, stop ids, and how long both must wait.

#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]

use pinion_protocol::frontend_inbox::FinishReason;
use pinion_protocol::{Claim, RequestId, Sampling, StopIds};
use pinion_scheduler::{Limits, Request, RowResult, Scheduler};

const EOS: u32 = 9;
/// The model ends its texts with these too.
const OTHER_ENDS: [u32; 2] = [14, 15];

/// The length of an output and why it ended.
type End = (u32, FinishReason);

/// The length of the output and why it ended there, if the model gives `tokens`, of which `resumed` came along.
fn run(sampling: &Sampling, tokens: &[u32], resumed: usize) -> Option<End> {
    let mut scheduler = Scheduler::new(limits());
    let ids = [&[1, 2], &tokens[..resumed]].concat();
    let id = RequestId { frontend: 0, slot: 0, generation: 1 };
    scheduler.admit(request(id, sampling.clone(), ids), 0).unwrap();
    for &token in &tokens[resumed..] {
        if scheduler.plan(0).is_none() {
            break;
        }
        let ends = scheduler.commit(&[RowResult::Token(token)]).iter().any(|event| event.last && event.eos);
        if let Some(ended) = scheduler.drain_finished().next() {
            assert_eq!(ends, ended.finished.reason == FinishReason::Stop);
            return Some((ended.finished.generated_tokens, ended.finished.reason));
        }
    }
    scheduler.drain_finished().next().map(|ended| (ended.finished.generated_tokens, ended.finished.reason))
}

#[test]
fn a_text_ends_at_the_first_token_that_may_end_it() {
    use FinishReason::{Length, Stop};
    let base = Sampling { max_tokens: Some(6), ..Sampling::default() };
    let ids = Sampling { stop_token_ids: vec![7, 8], ..base.clone() };
    let waiting = Sampling { min_tokens: 2, ..ids.clone() };
    let deaf = Sampling { ignore_eos: true, ..ids.clone() };
    let table: [(&Sampling, &[u32], Option<End>); 14] = [
        (&base, &[3, 7, EOS, 3], Some((3, Stop))),
        (&base, &[3; 6], Some((6, Length))),
        (&ids, &[3, 8, EOS], Some((2, Stop))),
        (&ids, &[3, 3, EOS], Some((3, Stop))),
        (&deaf, &[3, EOS, 7], Some((3, Stop))),
        (&deaf, &[3, EOS, 3], None),
        (&waiting, &[7, EOS, 7], Some((3, Stop))),
        (&waiting, &[7, EOS, 3], None),
        (&waiting, &[7, EOS, 3, 3, 3, 8], Some((6, Stop))),
        (&base, &[3, OTHER_ENDS[1], 3], Some((2, Stop))),
        (&base, &[OTHER_ENDS[0], 3], Some((1, Stop))),
        (&deaf, &[OTHER_ENDS[0], OTHER_ENDS[1], EOS, 3], None),
        (&waiting, &[OTHER_ENDS[0], OTHER_ENDS[1], OTHER_ENDS[1]], Some((3, Stop))),
        (&waiting, &[OTHER_ENDS[0], EOS, 3, OTHER_ENDS[0]], Some((4, Stop))),
    ];
    for (sampling, tokens, expected) in table {
        for resumed in 0..=1 {
            // A resumed token is looked at too: a request that resumes after its end has nothing left to do.
            assert_eq!(run(sampling, tokens, resumed), expected, "{tokens:?} from {resumed}, {sampling:?}");
        }
    }
}

fn limits() -> Limits {
    Limits {
        max_num_seqs: 2,
        max_num_batched_tokens: 8,
        max_requests: 2,
        max_model_len: 16,
        block_size: 2,
        block_count: 16,
        stop_ids: StopIds::of([EOS, OTHER_ENDS[0], OTHER_ENDS[1]]).unwrap(),
    }
}

fn request(id: RequestId, sampling: Sampling, ids: Vec<u32>) -> Request {
    Request { id, claim: Claim::default(), sampling, ids, prompt_tokens: 2 }
}

/// A row that could draw nothing yet comes again, with its last token alone, and nothing else is different.
#[test]
fn a_row_that_comes_again_draws_the_same() {
    for (prompt, times) in [(1, 1), (1, 2), (2, 3), (5, 3), (5, 1), (9, 2)] {
        let mut scheduler = Scheduler::new(limits());
        let id = RequestId { frontend: 0, slot: 0, generation: 1 };
        let sampling = Sampling { max_tokens: Some(3), ..Sampling::default() };
        let request = Request { prompt_tokens: prompt as u32, ..request(id, sampling, vec![1; prompt]) };
        scheduler.admit(request, 0).unwrap();
        let (mut tokens, mut waited) = (Vec::new(), 0);
        for _ in 0..40 {
            let planned = scheduler.plan(0).map_or(Vec::new(), |plan| plan.rows.clone());
            if planned.is_empty() {
                break;
            }
            let result = match planned[0].draw {
                None => RowResult::Computed,
                Some(_) if waited < times => {
                    waited += 1;
                    RowResult::Again
                }
                Some(index) => {
                    assert!(waited == 0 || planned[0].len == 1, "only the last token is computed again");
                    waited = 0;
                    RowResult::Token(index + 3)
                }
            };
            tokens.extend(scheduler.commit(&[result]).iter().map(|event| event.token));
        }
        assert_eq!(tokens, [3, 4, 5], "prompt of {prompt}");
        let ended = scheduler.drain_finished().next().unwrap();
        assert_eq!((ended.finished.reason, ended.finished.generated_tokens), (FinishReason::Length, 3));
        assert_eq!(scheduler.pool().held(), 0);
    }
}

#[test]
fn a_complete_text_ends_with_stop_and_no_token() {
    let mut scheduler = Scheduler::new(limits());
    let id = RequestId { frontend: 0, slot: 0, generation: 1 };
    let sampling = Sampling { max_tokens: Some(6), ..Sampling::default() };
    scheduler.admit(request(id, sampling, vec![1, 2]), 0).unwrap();
    scheduler.plan(0);
    assert_eq!(scheduler.commit(&[RowResult::Token(3)]).len(), 1);
    scheduler.plan(0);
    assert!(scheduler.commit(&[RowResult::Complete]).is_empty());
    let ended = scheduler.drain_finished().next().unwrap();
    assert_eq!((ended.finished.reason, ended.finished.generated_tokens), (FinishReason::Stop, 1));
    assert!(!ended.announced && scheduler.is_empty());
}
