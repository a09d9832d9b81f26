//! Requests of a model that pools: all of a prompt is computed, whatever the prefix cache has, and then the request
//! ends.

use pinion_protocol::frontend_inbox::FinishReason;
use pinion_protocol::{Claim, RequestId, Sampling, StopIds};
use pinion_scheduler::{Limits, Policy, Request, RowResult, Scheduler};

fn scheduler(pools: bool) -> Scheduler {
    let limits = Limits {
        max_num_seqs: 4,
        max_num_batched_tokens: 8,
        max_requests: 8,
        max_model_len: 64,
        block_size: 4,
        block_count: 32,
        stop_ids: StopIds::NONE,
    };
    Scheduler::with_policy(limits, Policy { pools, ..Policy::default() })
}

fn request(slot: u16, prompt_tokens: u32) -> Request {
    Request {
        id: RequestId { frontend: 0, slot, generation: 1 },
        claim: Claim::default(),
        sampling: Sampling { max_tokens: Some(0), ..Sampling::default() },
        ids: (0..prompt_tokens).collect(),
        prompt_tokens,
    }
}

/// Runs all steps, the next one planned before the last is committed where `ahead`. Gives the ranges of tokens that
/// each request had computed.
fn run(scheduler: &mut Scheduler, ahead: bool) -> Vec<(u16, u32, u32)> {
    let (mut rows, mut outstanding) = (Vec::new(), 0);
    for step in 0..100 {
        if let Some(plan) = scheduler.plan(step) {
            rows.extend(plan.rows.iter().map(|row| (row.id.slot, row.start, row.start + row.len)));
            assert!(plan.rows.iter().all(|row| row.draw.is_none()), "nothing is generated");
            outstanding += 1;
            if ahead && outstanding == 1 {
                continue;
            }
        }
        if outstanding == 0 {
            return rows;
        }
        let count = scheduler.oldest_plan().rows.len();
        assert!(scheduler.commit(&vec![RowResult::Computed; count]).is_empty());
        outstanding -= 1;
    }
    panic!("still at work");
}

#[test]
fn every_prompt_is_computed_whole_and_then_its_request_ends() {
    for ahead in [false, true] {
        let mut scheduler = scheduler(true);
        for round in 1..3 {
            // The same tokens each time: there would be much to share.
            let prompts = [1, 8, 20, 5];
            for (slot, prompt_tokens) in prompts.into_iter().enumerate() {
                scheduler.admit(request(slot as u16, prompt_tokens), 0).expect("there is room");
            }
            let rows = run(&mut scheduler, ahead);
            for (slot, prompt_tokens) in prompts.into_iter().enumerate() {
                let own = || rows.iter().filter(|(of, _, _)| usize::from(*of) == slot);
                let ends: Vec<u32> = own().map(|(_, _, end)| *end).collect();
                let starts: Vec<u32> = own().map(|(_, start, _)| *start).collect();
                assert_eq!(starts[0], 0, "round {round}, slot {slot}");
                assert_eq!(starts[1..], ends[..ends.len() - 1], "round {round}, slot {slot}");
                assert_eq!(ends.last(), Some(&prompt_tokens), "round {round}, slot {slot}");
            }
            let ended: Vec<_> = scheduler.drain_finished().map(|ended| ended.finished).collect();
            assert_eq!(ended.len(), prompts.len());
            for finished in ended {
                assert_eq!((finished.reason, finished.cached_tokens), (FinishReason::Length, 0));
                assert_eq!(finished.prompt_tokens, prompts[usize::from(finished.id.slot)]);
            }
            assert!(scheduler.is_empty());
        }
    }
}

#[test]
fn without_a_vector_a_request_for_nothing_ends_at_once() {
    let mut scheduler = scheduler(false);
    scheduler.admit(request(0, 5), 0).expect("there is room");
    assert!(run(&mut scheduler, false).is_empty());
    assert_eq!(scheduler.drain_finished().count(), 1);
}
