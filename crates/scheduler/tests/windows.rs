//! Layers with a window keep only that: what a sequence holds, what a cached prefix is worth, and when requests wait.

use pinion_protocol::{Claim, RequestId, Sampling, StopIds, WindowKv, window_blocks_of_sequence};
use pinion_scheduler::{Limits, NO_WINDOW_BLOCK, Policy, Request, RowResult, Scheduler};

const LIMITS: Limits = Limits {
    max_num_seqs: 4,
    max_num_batched_tokens: 64,
    max_requests: 8,
    max_model_len: 2048,
    block_size: 4,
    block_count: 512,
    stop_ids: StopIds::NONE,
};
/// Tokens of a window.
const WINDOW: u32 = 12;

fn scheduler(blocks: u32, policy: Policy) -> Scheduler {
    let window = Some(WindowKv { tokens: WINDOW, blocks });
    Scheduler::with_policy(LIMITS, Policy { window, prefix_partial: false, ..policy })
}

fn admit(scheduler: &mut Scheduler, slot: u16, ids: Vec<u32>, max_tokens: u32) {
    let sampling = Sampling { max_tokens: Some(max_tokens), ..Sampling::default() };
    let (id, prompt_tokens) = (RequestId { frontend: 0, slot, generation: 1 }, ids.len() as u32);
    let request = Request { id, claim: Claim::default(), sampling, ids, prompt_tokens };
    scheduler.admit(request, 0).expect("it fits");
}

/// One step that draws `token`. Gives slot, start and length of each row.
fn step(scheduler: &mut Scheduler, token: u32) -> Vec<(u16, u32, u32)> {
    let Some(plan) = scheduler.plan(0) else { return Vec::new() };
    let rows = plan.rows.clone();
    for row in &rows {
        let windows = scheduler.row(row).windows;
        let seen = (row.start + 1).saturating_sub(WINDOW) / 4..(row.start + row.len).div_ceil(4);
        let lacks = |index: u32| windows[index as usize] == NO_WINDOW_BLOCK;
        assert!(!seen.clone().any(lacks), "{row:?}: {windows:?}");
        let kept = windows.iter().filter(|&&window| window != NO_WINDOW_BLOCK).count();
        assert!(kept <= seen.len() + 1, "{row:?} keeps {kept} window blocks");
    }
    let drawn = |draws| if draws { RowResult::Token(token) } else { RowResult::Computed };
    let results: Vec<RowResult> = rows.iter().map(|row| drawn(row.draw.is_some())).collect();
    scheduler.commit(&results);
    rows.iter().map(|row| (row.id.slot, row.start, row.len)).collect()
}

/// Runs until nothing is left. Gives the tokens computed, and the most window blocks in use between two steps.
fn run(scheduler: &mut Scheduler) -> (u32, u32) {
    let (mut computed, mut used) = (0, 0);
    while !scheduler.is_empty() {
        computed += step(scheduler, 1).iter().map(|(_, _, len)| len).sum::<u32>();
        used = used.max(scheduler.pool().windows().expect("there are windows").used());
    }
    (computed, used)
}

fn prompt(len: u32) -> Vec<u32> {
    (100..100 + len).collect()
}

fn cached_tokens(scheduler: &mut Scheduler) -> Vec<u32> {
    scheduler.drain_finished().map(|ended| ended.finished.cached_tokens).collect()
}

#[test]
fn a_long_text_keeps_the_blocks_of_its_window() {
    let of_sequence = window_blocks_of_sequence(WINDOW, 4);
    assert_eq!(of_sequence, 6);
    for (blocks, chunk) in [(6, None), (6 + 16, None), (7, Some(5)), (300, Some(1))] {
        let policy = Policy { prefill_chunk_tokens_max: chunk, prefix_cache: false, ..Policy::default() };
        let mut scheduler = scheduler(blocks, policy);
        admit(&mut scheduler, 0, prompt(400), 600);
        let (computed, used) = run(&mut scheduler);
        assert_eq!(computed, 999, "each position once, but the last token's");
        assert!(used <= blocks.min(of_sequence + 16), "{used} of {blocks}");
        let (pool, windows) = (scheduler.pool(), scheduler.pool().windows().unwrap());
        assert_eq!((pool.held(), windows.used(), windows.idle(), windows.free()), (0, 0, 0, blocks));
    }
}

#[test]
fn a_chunk_is_no_longer_than_the_window_blocks_that_are_there() {
    let mut scheduler = scheduler(10, Policy::default());
    admit(&mut scheduler, 0, prompt(200), 1);
    // Ten blocks for the first chunk; then those of 12 tokens stay, and one more position may be seen.
    assert_eq!(step(&mut scheduler, 1), [(0, 0, 40)]);
    assert_eq!(step(&mut scheduler, 1), [(0, 40, 28)]);
    run(&mut scheduler);
    assert_eq!(scheduler.totals().preemptions, 0);
}

#[test]
fn requests_wait_for_window_blocks_and_none_is_preempted() {
    // Room for two sequences.
    let mut scheduler = scheduler(13, Policy::default());
    for slot in 0..4 {
        admit(&mut scheduler, slot, (0..30).map(|n| 1000 * u32::from(slot) + n).collect(), 40);
    }
    let mut most = 0;
    while !scheduler.is_empty() {
        step(&mut scheduler, 1);
        most = most.max(scheduler.running().len());
    }
    assert_eq!((most, scheduler.totals().preemptions, scheduler.totals().starts), (2, 0, 4));
    // A short text reserves no more than it has.
    for slot in 0..4 {
        admit(&mut scheduler, slot, vec![2000 + u32::from(slot)], 7);
    }
    step(&mut scheduler, 1);
    assert_eq!(scheduler.running().len(), 4);
    run(&mut scheduler);
}

#[test]
fn a_cached_prefix_is_taken_as_far_as_its_window_is_there() {
    // (window blocks, tokens of another text that runs in between, what the first text's twin takes from the cache)
    for (blocks, between, cached) in [(80, 4, 96), (80, 160, 96), (26, 160, 0)] {
        let mut scheduler = scheduler(blocks, Policy::default());
        admit(&mut scheduler, 0, prompt(100), 1);
        run(&mut scheduler);
        admit(&mut scheduler, 1, (5000..5000 + between).collect(), 1);
        run(&mut scheduler);
        admit(&mut scheduler, 2, prompt(100), 1);
        run(&mut scheduler);
        assert_eq!(cached_tokens(&mut scheduler), [0, 0, cached], "{blocks} window blocks");
        let evicted = scheduler.pool().windows().unwrap().evicted();
        assert_eq!(evicted > 0, blocks == 26, "{evicted} of {blocks} were evicted");
    }
}

/// Its own blocks are not the ones that are found, but what it computed for layers with a window is.
#[test]
fn what_is_computed_again_makes_a_cached_prefix_whole() {
    let mut scheduler = scheduler(26, Policy::default());
    let other = |n: u32| (5000 * n..5000 * n + 160).collect::<Vec<u32>>();
    for (slot, ids) in [prompt(100), other(1), prompt(100), prompt(100)].into_iter().enumerate() {
        admit(&mut scheduler, slot as u16, ids, 1);
        run(&mut scheduler);
    }
    assert_eq!(cached_tokens(&mut scheduler), [0, 0, 0, 96]);
    let cached = scheduler.pool().cached();
    assert_eq!(cached, 25 + 40, "no block is kept twice");
}

#[test]
fn a_shorter_prefix_is_taken_where_the_end_of_the_longer_one_is_gone() {
    // A first text of 40 tokens runs on while a longer one that begins like it ends: its window stays in use.
    let mut scheduler = scheduler(40, Policy::default());
    admit(&mut scheduler, 0, prompt(40), 8);
    step(&mut scheduler, 1);
    admit(&mut scheduler, 1, prompt(120), 1);
    step(&mut scheduler, 1);
    step(&mut scheduler, 1);
    // What only the cache keeps is evicted by another text.
    admit(&mut scheduler, 2, (9000..9000 + 128).collect(), 1);
    step(&mut scheduler, 1);
    step(&mut scheduler, 1);
    assert!(scheduler.pool().windows().unwrap().evicted() > 0);
    admit(&mut scheduler, 3, prompt(120), 1);
    run(&mut scheduler);
    let mut cached = cached_tokens(&mut scheduler);
    cached.sort_unstable();
    // Whole blocks of the longer one cover 116 tokens; the window behind the 100th is the last that is left.
    assert_eq!(cached, [0, 0, 40, 100]);
}

#[test]
fn a_cleared_cache_keeps_no_window_blocks() {
    let mut scheduler = scheduler(80, Policy::default());
    admit(&mut scheduler, 0, prompt(100), 1);
    run(&mut scheduler);
    assert_eq!(scheduler.pool().windows().unwrap().idle(), 25);
    scheduler.clear_prefix_cache();
    let windows = scheduler.pool().windows().unwrap();
    assert_eq!((windows.idle(), windows.free()), (0, 80));
}

#[test]
#[should_panic(expected = "5 window blocks are too few: one sequence takes 6")]
fn a_pool_that_holds_no_sequence_is_a_bug() {
    scheduler(5, Policy::default());
}
