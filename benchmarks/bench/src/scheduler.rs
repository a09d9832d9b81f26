//! `scheduler`: the pure scheduler under a steady load, without model, processes or clock. Every request that ends is
//! replaced at once, so the running set keeps its size while prompts, block boundaries and ends come as in service.
//! What requests would see of it is in [`simulate`].

use crate::figures::{Quantile, Spread, TOO_FEW_NOTE};
use crate::random::Random;
use crate::results::write_whole;
use crate::simulate::{self, Shared, SimulateArgs};
use crate::table;
use clap::Args;
use pinion_os::clock::now_ns;
use pinion_protocol::limits::BLOCK_TOKENS_MAX;
use pinion_protocol::{Claim, RequestId, Sampling, StopIds};
use pinion_scheduler::{Limits, Policy, Request, RowResult, Scheduler};
use serde::Serialize;
use std::path::PathBuf;

/// Lengths are drawn evenly from half to one and a half of the mean.
const VOCAB: usize = 50_257;
/// Prompt tokens beside the decodes of a full running set.
const PREFILL_ROOM: u32 = 512;

#[derive(Args, Clone, Debug)]
pub(crate) struct SchedulerArgs {
    /// Sizes of the running set, one row each.
    #[arg(long, value_delimiter = ',', default_value = "8,64,256,1024")]
    active: Vec<u32>,
    /// Measured steps per row.
    #[arg(long, default_value_t = 4000)]
    steps: usize,
    /// Mean prompt length.
    #[arg(long, default_value_t = 256)]
    input_len: u32,
    /// Mean output length.
    #[arg(long, default_value_t = 128)]
    output_len: u32,
    /// Tokens in one KV block.
    #[arg(long, default_value_t = 16)]
    block_size: u32,
    /// Without the prefix cache.
    #[arg(long)]
    no_prefix_cache: bool,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also write the figures to this JSON file.
    #[arg(long)]
    json: Option<PathBuf>,
    #[command(flatten)]
    simulated: SimulateArgs,
}

/// Costs at one size.
#[derive(Clone, Debug, Serialize)]
struct Row {
    active: u32,
    mean_rows: f64,
    tokens_per_step: f64,
    plan_us: Spread,
    commit_us: Spread,
    plan_and_commit_us: Spread,
    admit_us: Spread,
    ns_per_row: f64,
}

struct Load {
    scheduler: Scheduler,
    random: Random,
    next: u32,
    admit_ns: Vec<u64>,
    input_len: u32,
    output_len: u32,
}

impl Load {
    fn new(active: u32, args: &SchedulerArgs) -> Load {
        let longest = (args.input_len + args.output_len) * 2;
        let limits = Limits {
            max_num_seqs: active,
            max_num_batched_tokens: active + PREFILL_ROOM,
            max_requests: active + 1,
            max_model_len: longest,
            block_size: args.block_size,
            block_count: active * longest.div_ceil(args.block_size),
            stop_ids: StopIds::NONE,
        };
        let policy = Policy { prefix_cache: !args.no_prefix_cache, ..Policy::default() };
        Load {
            scheduler: Scheduler::with_policy(limits, policy),
            random: Random::stream(args.seed, u64::from(active)),
            next: 0,
            admit_ns: Vec::new(),
            input_len: args.input_len,
            output_len: args.output_len,
        }
    }

    fn length(&mut self, mean: u32) -> u32 {
        (mean / 2 + self.random.below(mean as usize + 1) as u32).max(1)
    }

    fn admit(&mut self, now: u64) -> Result<(), String> {
        let (prompt_tokens, output) = (self.length(self.input_len), self.length(self.output_len));
        self.next += 1;
        let ids = (0..prompt_tokens).map(|_| self.random.below(VOCAB) as u32).collect();
        let request = Request {
            id: RequestId { frontend: 0, slot: (self.next & 0xffff) as u16, generation: self.next },
            claim: Claim::default(),
            sampling: Sampling { max_tokens: Some(output), ignore_eos: true, ..Sampling::default() },
            ids,
            prompt_tokens,
        };
        let begin = now_ns();
        let taken = self.scheduler.admit(request, now);
        self.admit_ns.push(now_ns() - begin);
        taken.map_err(|refusal| format!("the scheduler refused a request: {refusal:?}"))
    }

    /// Costs of plan and commit in ns, rows and tokens of one step; ended requests are replaced after it.
    fn step(&mut self, results: &mut Vec<RowResult>) -> Result<(u64, u64, usize, u32), String> {
        let now = now_ns();
        let plan = self.scheduler.plan(now).ok_or("the scheduler planned nothing while requests wait")?;
        let plan_ns = now_ns() - now;
        let (rows, tokens) = (plan.rows.len(), plan.token_count);
        results.clear();
        results.extend(plan.rows.iter().map(|row| match row.draw {
            Some(index) => RowResult::Token((row.id.generation ^ index) % VOCAB as u32),
            None => RowResult::Computed,
        }));
        let begin = now_ns();
        self.scheduler.commit(results);
        let commit_ns = now_ns() - begin;
        let ended = self.scheduler.drain_finished().count();
        for _ in 0..ended {
            self.admit(now)?;
        }
        Ok((plan_ns, commit_ns, rows, tokens))
    }
}

fn measure(active: u32, args: &SchedulerArgs) -> Result<Row, String> {
    let mut load = Load::new(active, args);
    for _ in 0..active {
        load.admit(now_ns())?;
    }
    let mut results = Vec::new();
    // Until prompts are computed and the requests' ages are mixed.
    let warmup = (active * args.input_len / PREFILL_ROOM + 2 * args.output_len) as usize;
    for _ in 0..warmup {
        load.step(&mut results)?;
    }
    load.admit_ns.clear();
    let (mut plans, mut commits) = (Vec::with_capacity(args.steps), Vec::with_capacity(args.steps));
    let (mut row_count, mut token_count) = (0u64, 0u64);
    for _ in 0..args.steps {
        let (plan_ns, commit_ns, rows, tokens) = load.step(&mut results)?;
        plans.push(plan_ns);
        commits.push(commit_ns);
        row_count += rows as u64;
        token_count += u64::from(tokens);
    }
    // Spread is in millionths of what goes in: times 1000 it is in thousandths, so ns become µs.
    let spread = |values: &mut dyn Iterator<Item = u64>| Spread::of(values.map(|ns| ns * 1000));
    let both: Vec<u64> = plans.iter().zip(&commits).map(|(plan, commit)| plan + commit).collect();
    Ok(Row {
        active,
        mean_rows: row_count as f64 / args.steps as f64,
        tokens_per_step: token_count as f64 / args.steps as f64,
        ns_per_row: both.iter().sum::<u64>() as f64 / row_count.max(1) as f64,
        plan_us: spread(&mut plans.iter().copied()),
        commit_us: spread(&mut commits.iter().copied()),
        plan_and_commit_us: spread(&mut both.iter().copied()),
        admit_us: spread(&mut load.admit_ns.iter().copied()),
    })
}

pub(crate) fn run(args: &SchedulerArgs) -> Result<(), String> {
    for (name, length) in [("--input-len", args.input_len), ("--output-len", args.output_len)] {
        if length == 0 {
            return Err(format!("{name} is above 0"));
        }
    }
    if !(1..=BLOCK_TOKENS_MAX as u32).contains(&args.block_size) {
        return Err(format!("--block-size is from 1 to {BLOCK_TOKENS_MAX}"));
    }
    if args.simulated.simulate { run_simulation(args) } else { run_costs(args) }
}

fn run_simulation(args: &SchedulerArgs) -> Result<(), String> {
    let lines = args.simulated.simulate(&Shared {
        input_len: args.input_len,
        output_len: args.output_len,
        prefix_cache: !args.no_prefix_cache,
        block_size: args.block_size,
        seed: args.seed,
    })?;
    println!("{}", simulate::render(&lines));
    write_json(args, &lines)
}

fn write_json(args: &SchedulerArgs, lines: &impl Serialize) -> Result<(), String> {
    let Some(path) = &args.json else { return Ok(()) };
    let text = serde_json::to_string_pretty(lines).map_err(|error| error.to_string())?;
    write_whole(path, text.as_bytes())
}

fn run_costs(args: &SchedulerArgs) -> Result<(), String> {
    if cfg!(debug_assertions) {
        eprintln!(
            "a debug build checks the scheduler's invariants after every step: these times mean nothing"
        );
    }
    for (name, has_none) in [("--steps", args.steps == 0), ("--active", args.active.contains(&0))] {
        if has_none {
            return Err(format!("{name} is above 0"));
        }
    }
    let rows = args.active.iter().map(|&active| measure(active, args)).collect::<Result<Vec<Row>, _>>()?;
    let header = [
        "active",
        "rows/step",
        "tokens/step",
        "plan µs p50/p99",
        "commit µs p50/p99",
        "both µs p50/p99",
        "admit µs p50",
        "ns/row",
    ];
    let number = table::number;
    let two = |spread: &Spread| format!("{} / {}", Quantile::P50.cell(spread), Quantile::P99.cell(spread));
    let lines = rows.iter().map(|row| {
        vec![
            row.active.to_string(),
            number(row.mean_rows),
            number(row.tokens_per_step),
            two(&row.plan_us),
            two(&row.commit_us),
            two(&row.plan_and_commit_us),
            number(row.admit_us.p50),
            number(row.ns_per_row),
        ]
    });
    println!("{}", table::noted(table::render(&header, &lines.collect::<Vec<_>>()), TOO_FEW_NOTE));
    write_json(args, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SchedulerArgs,
    }

    #[test]
    fn the_running_set_keeps_its_size_and_requests_come_and_go() {
        let flags = "x --active 8 --steps 200 --input-len 40 --output-len 10";
        let args = Line::parse_from(flags.split(' ')).args;
        let row = measure(8, &args).expect("a row");
        assert!((7.0..=8.0).contains(&row.mean_rows), "{row:?}");
        assert!(row.admit_us.count > 50, "{row:?}");
        assert!(row.tokens_per_step > row.mean_rows, "prompts are computed, too: {row:?}");
    }

    #[test]
    fn what_is_not_above_0_is_refused_by_its_name() {
        for flag in ["--input-len", "--output-len", "--steps", "--active"] {
            let fault = run(&Line::parse_from(["x", flag, "0"]).args).expect_err(flag);
            assert_eq!(fault, format!("{flag} is above 0"));
        }
    }

    #[test]
    fn a_block_size_that_no_engine_has_is_refused_by_its_name() {
        for size in ["0", "257"] {
            let args = Line::parse_from(["x", "--block-size", size]).args;
            assert!(run(&args).expect_err(size).starts_with("--block-size is from 1"), "{size}");
        }
    }
}
