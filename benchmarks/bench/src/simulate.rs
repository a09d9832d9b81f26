//! `scheduler --simulate`: pure schedulers, one for each replica behind a router, serve a trace or made-up arrivals
//! under a virtual clock, once for each number of replicas, routing and admission policy. The latencies that clients
//! would have seen are reported as of any other run.
//!
//! A step takes as long as the flags say for its rows and prompt tokens; nothing else takes time, so what differs
//! between two lines is the policy's doing alone. Nothing is measured: the same flags and seed give the same figures
//! anywhere.

mod fleet;
mod routing;
mod traffic;

use self::fleet::{Fleet, StepTime};
use self::routing::{Router, Routing};
use self::traffic::{Prefixes, Traffic};
use crate::answer::Outcome;
use crate::figures::Quantile::{P50, P90, P99};
use crate::figures::{self, Figures, Spread, TOO_FEW_NOTE, Targets};
use crate::prompts::{Form, Prompts, Source};
use crate::replay::{ClientCost, Measured, Run};
use crate::table;
use crate::trace::{self, Format, Synthetic};
use crate::workload::{Bounds, Fit, select};
use clap::{Args, ValueEnum};
use pinion_protocol::StopIds;
use pinion_scheduler::{Admission, Limits, Policy, Scheduler, StepTime as Budget};
use serde::Serialize;
use std::path::PathBuf;

const VOCAB: u32 = 50_257;
/// Most requests of one simulation.
const REQUESTS_MAX: usize = 4_000_000;
/// Most replicas of one simulation.
const REPLICAS_MAX: usize = 16_384;
/// Places in the queues of all replicas together. A replica has room for twice its batch at least, and refuses more.
const PLACES: usize = 1 << 20;

/// Which waiting request is admitted next; the names of `pinion serve --admission`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    Fifo,
    Pack,
    Shortest,
    Deadline,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Simulated service (--simulate)")]
pub(crate) struct SimulateArgs {
    /// Instead: latencies of replicas with this scheduler under a virtual clock, one line for each number of replicas,
    /// routing and admission policy.
    #[arg(long)]
    pub simulate: bool,
    /// Replicas behind a router, one line for each number.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    replicas: Vec<usize>,
    /// How the router chooses, one line each.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "round-robin")]
    routing: Vec<Routing>,
    /// Admission policies of the replicas, one line each.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "fifo,pack,shortest,deadline")]
    admissions: Vec<Order>,
    /// Trace file; without one arrivals are made up.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Schema of the trace file.
    #[arg(long, value_enum, default_value = "auto")]
    trace_format: Format,
    /// Factor on the trace's times: less is heavier.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Made-up arrivals per second.
    #[arg(long, default_value_t = 8.0)]
    poisson: f64,
    /// Shape of the made-up gaps: 1 is Poisson, below 1 comes in bursts.
    #[arg(long, default_value_t = 1.0)]
    gamma_shape: f64,
    /// Made-up lengths are spread evenly over ± this share.
    #[arg(long, default_value_t = 0.9)]
    length_spread: f64,
    /// Number of prefixes, one of which each made-up prompt begins with; 0: prompts have nothing in common.
    #[arg(long, default_value_t = 0)]
    prefixes: usize,
    /// Tokens of such a prefix.
    #[arg(long, default_value_t = 64)]
    prefix_len: u32,
    /// Requests.
    #[arg(long, default_value_t = 1000)]
    requests: usize,
    /// Of each replica: sequences in one step.
    #[arg(long, default_value_t = 32)]
    max_num_seqs: u32,
    /// Tokens in one step.
    #[arg(long, default_value_t = 512)]
    max_num_batched_tokens: u32,
    /// Prompt tokens of one request in one step [default: the step's].
    #[arg(long)]
    prefill_chunk_size: Option<u32>,
    /// Time that a step with decode rows may take, in ms: `off`, `auto` or a number.
    #[arg(long, default_value = "off", value_parser = budget)]
    step_time_ms: Budget,
    /// Tokens that prompt and answer may have together.
    #[arg(long, default_value_t = 1024)]
    context: u32,
    /// Tokens in the KV cache of each replica [default: as many as all sequences of a step can need].
    #[arg(long)]
    kv_cache_tokens: Option<u32>,
    /// Plan a step while the one before it computes, as `pinion serve --overlap` does: what arrives meanwhile waits for
    /// the step after it.
    #[arg(long)]
    overlap: bool,
    /// Time of a step, in µs: this, ...
    #[arg(long, default_value_t = 4000.0)]
    step_us: f64,
    /// ... this for each row, ...
    #[arg(long, default_value_t = 500.0)]
    row_us: f64,
    /// ... and this for each prompt token.
    #[arg(long, default_value_t = 150.0)]
    prefill_us: f64,
    /// Of the policy `deadline`: time to the first token of a short prompt.
    #[arg(long, default_value_t = 500)]
    ttft_target_ms: u64,
    /// Targets in ms for goodput, like ttft=500,tpot=50.
    #[arg(long)]
    slo: Option<String>,
}

/// As `pinion serve --step-time-ms` has it.
fn budget(text: &str) -> Result<Budget, String> {
    match text {
        "off" => Ok(Budget::Unbounded),
        "auto" => Ok(Budget::Auto),
        _ => match text.parse::<f64>() {
            Ok(ms) if ms.is_finite() && ms > 0.0 => Ok(Budget::Target { ns: (ms * 1e6).round() as u64 }),
            Ok(_) | Err(_) => Err("neither off nor auto nor a number above 0".to_owned()),
        },
    }
}

/// What is the same for both parts of `scheduler`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    pub input_len: u32,
    pub output_len: u32,
    pub prefix_cache: bool,
    pub block_size: u32,
    pub seed: u64,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Simulated {
    replicas: usize,
    routing: String,
    admission: String,
    steps: u64,
    rows_per_step: f64,
    /// Share of the replicas' time in which a step ran.
    busy_share: f64,
    preemptions: u64,
    /// Share of the prompts' tokens that came from a prefix cache.
    cached_share: f64,
    figures: Figures,
}

impl SimulateArgs {
    fn check(&self) -> Result<(), String> {
        for (name, value) in [
            ("--scale", self.scale),
            ("--poisson", self.poisson),
            ("--gamma-shape", self.gamma_shape),
            ("--step-us", self.step_us),
            ("--max-num-seqs", f64::from(self.max_num_seqs)),
            ("--max-num-batched-tokens", f64::from(self.max_num_batched_tokens)),
            ("--context", f64::from(self.context)),
            ("--prefill-chunk-size", f64::from(self.prefill_chunk_size.unwrap_or(u32::MAX))),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(format!("{name} is above 0"));
            }
        }
        for (name, value) in [("--row-us", self.row_us), ("--prefill-us", self.prefill_us)] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(format!("{name} is not below 0"));
            }
        }
        if self.requests == 0 || self.requests > REQUESTS_MAX {
            return Err(format!("--requests is from 1 to {REQUESTS_MAX}"));
        }
        if self.replicas.iter().any(|count| !(1..=REPLICAS_MAX).contains(count)) {
            return Err(format!("--replicas is from 1 to {REPLICAS_MAX}"));
        }
        if self.prefixes > 0 && (self.prefix_len == 0 || self.trace.is_some()) {
            return Err("--prefixes is for made-up prompts and wants a --prefix-len above 0".to_owned());
        }
        Ok(())
    }

    fn traffic(&self, shared: &Shared) -> Result<Traffic, String> {
        let mut trace = match &self.trace {
            Some(path) => trace::read(path, self.trace_format)?,
            None => Synthetic {
                rate_per_s: self.poisson,
                shape: self.gamma_shape,
                requests: self.requests,
                input_tokens: shared.input_len,
                output_tokens: shared.output_len,
                length_spread: self.length_spread,
                seed: shared.seed,
            }
            .trace(),
        };
        if self.prefixes > 0 {
            Prefixes { count: self.prefixes, tokens: self.prefix_len }.put_into(&mut trace, shared.seed);
        }
        let bounds =
            Bounds { context: self.context, input_max: u32::MAX, output_max: u32::MAX, fit: Fit::Clamp };
        let selection = select(&trace, 0, self.requests, &bounds)?;
        let prompts = Prompts::new(Source::Blocks, Form::Ids, shared.seed, None, Some(VOCAB))?;
        Ok(Traffic::new(selection, prompts, self.scale))
    }

    fn limits(&self, shared: &Shared, replicas: usize) -> Limits {
        let places = (PLACES / replicas).max(2 * self.max_num_seqs as usize);
        let tokens = self.kv_cache_tokens.unwrap_or(self.max_num_seqs.saturating_mul(self.context));
        Limits {
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_requests: self.requests.min(places) as u32,
            max_model_len: self.context,
            block_size: shared.block_size,
            block_count: tokens.div_ceil(shared.block_size).max(1),
            stop_ids: StopIds::NONE,
        }
    }

    fn policy(&self, order: Order, shared: &Shared) -> Policy {
        Policy {
            prefix_cache: shared.prefix_cache,
            prefill_chunk_tokens_max: self.prefill_chunk_size,
            step_time: self.step_time_ms,
            admission: match order {
                Order::Fifo => Admission::Fifo,
                Order::Pack => Admission::Pack,
                Order::Shortest => Admission::Shortest,
                Order::Deadline => {
                    Admission::Deadline { target_ns: self.ttft_target_ms.saturating_mul(1_000_000) }
                }
            },
            ..Policy::default()
        }
    }

    /// Everything that was asked for, over the same arrivals.
    pub(crate) fn simulate(&self, shared: &Shared) -> Result<Vec<Simulated>, String> {
        self.check()?;
        let traffic = self.traffic(shared)?;
        let targets = self.slo.as_deref().map(Targets::parse).transpose()?;
        let mut lines = Vec::new();
        for &replicas in &self.replicas {
            // One replica gets everything, however it is chosen.
            let routings = if replicas == 1 { &self.routing[..1] } else { &self.routing[..] };
            for &routing in routings {
                for &order in &self.admissions {
                    let fleet = self.fleet(shared, &traffic, replicas, routing, order).run(VOCAB)?;
                    let names = [name_of(routing), name_of(order)];
                    lines.push(report(fleet, &traffic, replicas, names, targets));
                }
            }
        }
        Ok(lines)
    }

    fn fleet<'a>(
        &self,
        shared: &Shared,
        traffic: &'a Traffic,
        replicas: usize,
        routing: Routing,
        order: Order,
    ) -> Fleet<'a> {
        let (limits, policy) = (self.limits(shared, replicas), self.policy(order, shared));
        let schedulers = (0..replicas).map(|_| Scheduler::with_policy(limits, policy));
        let (blocks, block_size) = (limits.block_count as usize, limits.block_size as usize);
        let router = Router::new(routing, replicas, blocks, block_size);
        let time =
            StepTime { step: self.step_us * 1e3, row: self.row_us * 1e3, prefill: self.prefill_us * 1e3 };
        Fleet::new(schedulers, router, traffic, time, if self.overlap { 2 } else { 1 })
    }
}

fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}

fn report(
    fleet: Fleet<'_>,
    traffic: &Traffic,
    replicas: usize,
    [routing, admission]: [String; 2],
    targets: Option<Targets>,
) -> Simulated {
    let (steps, preemptions, now_ns) = (fleet.steps, fleet.preemptions(), fleet.now_ns);
    let rows_per_step = fleet.rows as f64 / steps.max(1) as f64;
    let busy_share = fleet.busy_ns as f64 / (now_ns.max(1) as f64 * replicas as f64);
    let measured = |(index, outcome): (usize, Outcome)| {
        let at_ns = traffic.arrives_ns(index).expect("what has an outcome arrived");
        Measured { scheduled_ns: at_ns, sent_ns: at_ns, lengths: traffic.lengths(index), outcome }
    };
    let requests: Vec<Measured> = fleet.outcomes.into_iter().enumerate().map(measured).collect();
    let run = Run { requests, wall_s: now_ns as f64 / 1e9, client: ClientCost::default() };
    let figures = figures::of(&run, targets, true);
    let cached_share = figures.cached_tokens.unwrap_or(0) as f64 / figures.input_tokens.max(1) as f64;
    Simulated {
        replicas,
        routing,
        admission,
        steps,
        rows_per_step,
        busy_share,
        preemptions,
        cached_share,
        figures,
    }
}

/// The lines as a table.
pub(crate) fn render(lines: &[Simulated]) -> String {
    let header = [
        "replicas",
        "routing",
        "admission",
        "done",
        "refused",
        "TTFT p50/p90/p99/max ms",
        "ITL p50/p99 ms",
        "TPOT p50/p90/p99 ms",
        "E2E p50/p90/p99/max ms",
        "output tok/s",
        "rows/step",
        "busy",
        "KV hit",
        "preempted",
        "goodput",
    ];
    let number = table::number;
    let three = |spread: &Spread| [P50, P90, P99].map(|quantile| quantile.cell(spread)).join(" / ");
    let all = |spread: &Spread| format!("{} / {}", three(spread), number(spread.max));
    let rows = lines.iter().map(|line| {
        let Figures { ttft_ms, itl_ms, tpot_ms, e2e_ms, .. } = &line.figures;
        vec![
            line.replicas.to_string(),
            line.routing.clone(),
            line.admission.clone(),
            line.figures.completed.to_string(),
            (line.figures.requests - line.figures.completed).to_string(),
            all(ttft_ms),
            format!("{} / {}", P50.cell(itl_ms), P99.cell(itl_ms)),
            three(tpot_ms),
            all(e2e_ms),
            number(line.figures.output_tokens_per_s),
            number(line.rows_per_step),
            format!("{:.0} %", line.busy_share * 100.0),
            format!("{:.1} %", line.cached_share * 100.0),
            line.preemptions.to_string(),
            line.figures.goodput.map_or("–".to_owned(), |good| format!("{:.1} %", good.share * 100.0)),
        ]
    });
    table::noted(table::render(&header, &rows.collect::<Vec<_>>()), TOO_FEW_NOTE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SimulateArgs,
    }

    fn simulated(flags: &str, shared: Shared) -> Vec<Simulated> {
        let line = Line::parse_from(std::iter::once("x").chain(flags.split_whitespace()));
        line.args.simulate(&shared).expect(flags)
    }

    const SHARED: Shared =
        Shared { input_len: 100, output_len: 5, prefix_cache: true, block_size: 16, seed: 1 };

    /// (flags, first token, end): worked out by hand, in ms.
    #[test]
    fn one_request_takes_what_its_steps_take() {
        let times =
            "--admissions fifo --requests 1 --length-spread 0 --step-us 1000 --row-us 100 --prefill-us 10";
        for (flags, first_ms, end_ms) in [
            ("", 2.1, 6.5),
            // Two chunks of 50.
            ("--max-num-batched-tokens 50", 3.2, 7.6),
            ("--prefill-chunk-size 25", 4.0 * 1.35, 4.0 * 1.35 + 4.4),
            // The prompt is cut to 97.
            ("--context 102", 2.07, 6.47),
        ] {
            let found = simulated(&format!("{times} {flags}"), SHARED);
            let figures = &found[0].figures;
            let near = |found: f64, expected: f64| (found - expected).abs() < 1e-9;
            assert!(near(figures.ttft_ms.max, first_ms), "{flags}: {}", figures.ttft_ms.max);
            assert!(near(figures.e2e_ms.max, end_ms), "{flags}: {}", figures.e2e_ms.max);
            assert!(found[0].busy_share == 1.0 && found[0].rows_per_step == 1.0, "{flags}: {:?}", found[0]);
        }
    }

    #[test]
    fn what_is_not_above_0_is_refused_by_its_name() {
        let positive =
            "--scale --poisson --gamma-shape --step-us --max-num-seqs --max-num-batched-tokens --context";
        for flag in positive.split(' ').chain(["--prefill-chunk-size"]) {
            let fault = Line::parse_from(["x", flag, "0"]).args.simulate(&SHARED).expect_err(flag);
            assert_eq!(fault, format!("{flag} is above 0"));
        }
        for flag in ["--row-us=-1", "--prefill-us=-1"] {
            let fault = Line::parse_from(["x", flag]).args.simulate(&SHARED).expect_err(flag);
            assert!(flag.starts_with(fault.trim_end_matches(" is not below 0")), "{flag}: {fault}");
        }
    }

    #[test]
    fn a_step_time_bounds_the_gaps_of_streams() {
        let shared = Shared { input_len: 600, output_len: 40, ..SHARED };
        let flags = "--requests 200 --poisson 3 --admissions fifo --length-spread 0.5 --step-us 10000 --row-us 100 \
                     --prefill-us 100 --max-num-seqs 16";
        let p99 = |time: &str| {
            let found = simulated(&format!("{flags} --step-time-ms {time}"), shared);
            assert_eq!(found[0].figures.completed, 200, "{time}");
            found[0].figures.itl_ms.p99
        };
        assert!(p99("off") > 55.0, "{}", p99("off"));
        assert!((22.0..26.0).contains(&p99("25")), "{}", p99("25"));
        assert!((15.0..30.0).contains(&p99("auto")), "{}", p99("auto"));
        for wrong in ["never", "0", "-1", "inf"] {
            assert!(budget(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_seed_repeats_and_policies_differ_in_order_only() {
        let shared = Shared { output_len: 40, ..SHARED };
        let flags = "--requests 300 --poisson 40 --max-num-seqs 8 --slo ttft=2000";
        let found = simulated(flags, shared);
        assert_eq!(found, simulated(flags, shared), "the same again");
        assert_ne!(found, simulated(flags, Shared { seed: 2, ..shared }));
        let tokens = found[0].figures.output_tokens;
        for line in &found {
            assert_eq!((line.figures.completed, line.figures.output_tokens), (300, tokens), "{line:?}");
            assert!(line.busy_share > 0.9, "more comes than can be served: {line:?}");
            assert!(line.figures.goodput.is_some_and(|good| good.good < 300), "{line:?}");
        }
        let by_name = |name: &str| found.iter().find(|line| line.admission == name).expect(name);
        let (fifo, shortest) = (by_name("fifo"), by_name("shortest"));
        assert!(shortest.figures.ttft_ms.mean < fifo.figures.ttft_ms.mean, "{shortest:?} {fifo:?}");
        let rows = render(&found).lines().filter(|line| line.starts_with('|')).count();
        assert!(rows == 6, "{}", render(&found));
    }

    #[test]
    fn a_small_cache_preempts_and_a_request_that_never_fits_is_refused() {
        let shared = Shared { output_len: 60, ..SHARED };
        let flags = "--requests 60 --poisson 1000 --max-num-seqs 8 --context 512 --admissions fifo";
        let found = simulated(&format!("{flags} --kv-cache-tokens 320"), shared);
        assert!(found[0].preemptions > 0 && found[0].figures.completed == 60, "{:?}", found[0]);
        let found = simulated(&format!("{flags} --kv-cache-tokens 160"), shared);
        let refused = found[0].figures.errors.values().sum::<usize>();
        assert!(refused > 0 && found[0].figures.completed == 60 - refused, "{:?}", found[0]);
    }

    #[test]
    fn routing_by_prefixes_finds_more_in_the_caches() {
        let shared = Shared { input_len: 128, ..SHARED };
        let flags = "--requests 400 --poisson 20 --admissions fifo --prefixes 40 --prefix-len 96 --replicas 1,4 \
                     --length-spread 0 --routing round-robin,least-requests,least-tokens,cache-aware";
        let found = simulated(flags, shared);
        let shares: Vec<f64> = found.iter().map(|line| line.cached_share).collect();
        assert_eq!(found.iter().map(|line| line.replicas).collect::<Vec<_>>(), [1, 4, 4, 4, 4]);
        assert!(found.iter().all(|line| line.figures.completed == 400), "{found:?}");
        // All but the first prompt of each prefix find it; on four replicas by turns, all but the first on each.
        let most = 0.75 * 360.0 / 400.0;
        assert!((most - 0.03..=most).contains(&shares[0]), "{shares:?}");
        let (by_turns, by_prefix) = (shares[1], shares[4]);
        assert!(by_turns < 0.75 * 275.0 / 400.0 && by_prefix > by_turns + 0.1, "{shares:?}");
        for wrong in ["--replicas 0", "--prefixes 3 --prefix-len 0"] {
            let line = Line::parse_from(std::iter::once("x").chain(wrong.split_whitespace()));
            assert!(line.args.simulate(&shared).is_err(), "{wrong}");
        }
    }
}
