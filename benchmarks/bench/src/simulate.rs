//! `scheduler --simulate`: the pure scheduler serves a trace or made-up arrivals under a virtual clock, once for each
//! admission policy, and the latencies that clients would have seen are reported as of any other run.
//!
//! A step takes as long as the flags say for its rows and prompt tokens; nothing else takes time, so what differs
//! between two lines is the policy's doing alone. Nothing is measured: the same flags and seed give the same figures
//! anywhere.

use crate::answer::Outcome;
use crate::figures::Quantile::{P50, P90, P99};
use crate::figures::{self, Figures, Spread, TOO_FEW_NOTE, Targets};
use crate::prompts::{Form, Prompts, Source};
use crate::replay::{ClientCost, Measured, Run};
use crate::table;
use crate::trace::{self, Format, Synthetic};
use crate::workload::{Bounds, Fit, Lengths, select};
use clap::{Args, ValueEnum};
use pinion_protocol::{Claim, RequestId, Sampling, StopIds};
use pinion_scheduler::{
    Admission, Limits, Policy, Request, RowResult, Scheduler, StepLoad, StepTime as Budget,
};
use serde::Serialize;
use std::path::PathBuf;

const VOCAB: u32 = 50_257;
/// Most requests of one simulation: each has its own slot.
const REQUESTS_MAX: usize = 65_536;

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
    /// Instead: latencies of a service with this scheduler under a virtual clock, one line per admission policy.
    #[arg(long)]
    pub simulate: bool,
    /// Policies, one line each.
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
    /// Requests.
    #[arg(long, default_value_t = 1000)]
    requests: usize,
    /// Sequences in one step.
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
    /// Tokens in the KV cache [default: as many as all sequences of a step can need].
    #[arg(long)]
    kv_cache_tokens: Option<u32>,
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
    admission: String,
    steps: u64,
    rows_per_step: f64,
    /// Share of the time in which a step ran.
    busy_share: f64,
    preemptions: u64,
    figures: Figures,
}

/// One request on its way.
struct Arrival {
    at_ns: u64,
    lengths: Lengths,
    ids: Vec<u32>,
}

/// How long a step takes, in ns.
#[derive(Clone, Copy)]
struct StepTime {
    step: f64,
    row: f64,
    prefill: f64,
}

impl StepTime {
    fn of(&self, load: StepLoad) -> u64 {
        let rows = self.row * f64::from(load.rows);
        (self.step + rows + self.prefill * f64::from(load.prefill_tokens)).round() as u64
    }
}

impl SimulateArgs {
    fn check(&self) -> Result<(), String> {
        let positive = [self.scale, self.poisson, self.gamma_shape, self.step_us];
        let counts = [self.max_num_seqs, self.max_num_batched_tokens, self.context];
        if positive.iter().any(|value| !(value.is_finite() && *value > 0.0)) || counts.contains(&0) {
            return Err("scale, rate, shape, step time and sizes are above 0".to_owned());
        }
        if [self.row_us, self.prefill_us].iter().any(|value| !(value.is_finite() && *value >= 0.0)) {
            return Err("times are not below 0".to_owned());
        }
        if self.prefill_chunk_size == Some(0) {
            return Err("--prefill-chunk-size is above 0".to_owned());
        }
        if self.requests == 0 || self.requests > REQUESTS_MAX {
            return Err(format!("--requests is from 1 to {REQUESTS_MAX}"));
        }
        Ok(())
    }

    fn arrivals(&self, shared: &Shared) -> Result<Vec<Arrival>, String> {
        let trace = match &self.trace {
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
        let bounds =
            Bounds { context: self.context, input_max: u32::MAX, output_max: u32::MAX, fit: Fit::Clamp };
        let selection = select(&trace, 0, self.requests, &bounds)?;
        let prompts = Prompts::new(Source::Blocks, Form::Ids, shared.seed, None, Some(VOCAB))?;
        let times = selection.arrivals_ns(self.scale);
        let rows = selection.rows.iter().zip(times).enumerate();
        let arrival = |(index, ((row, lengths), at_ns)): (usize, (&(trace::Row, Lengths), u64))| Arrival {
            at_ns,
            lengths: *lengths,
            ids: prompts.ids(index, row, selection.block_tokens, lengths.input),
        };
        Ok(rows.map(arrival).collect())
    }

    fn limits(&self, shared: &Shared) -> Limits {
        let tokens = self.kv_cache_tokens.unwrap_or(self.max_num_seqs.saturating_mul(self.context));
        Limits {
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_requests: self.requests as u32,
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

    /// Every policy over the same arrivals.
    pub(crate) fn simulate(&self, shared: &Shared) -> Result<Vec<Simulated>, String> {
        self.check()?;
        let arrivals = self.arrivals(shared)?;
        let targets = self.slo.as_deref().map(Targets::parse).transpose()?;
        let time =
            StepTime { step: self.step_us * 1e3, row: self.row_us * 1e3, prefill: self.prefill_us * 1e3 };
        let one = |order: &Order| {
            let scheduler = Scheduler::with_policy(self.limits(shared), self.policy(*order, shared));
            let name = order.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
            Ok(Service::new(scheduler, &arrivals, time).run()?.report(name, targets))
        };
        self.admissions.iter().map(one).collect()
    }
}

/// A service in the middle of its virtual life.
struct Service<'a> {
    scheduler: Scheduler,
    arrivals: &'a [Arrival],
    time: StepTime,
    now_ns: u64,
    busy_ns: u64,
    next: usize,
    steps: u64,
    rows: u64,
    outcomes: Vec<Outcome>,
}

impl<'a> Service<'a> {
    fn new(scheduler: Scheduler, arrivals: &'a [Arrival], time: StepTime) -> Service<'a> {
        let outcomes = vec![Outcome::default(); arrivals.len()];
        Service { scheduler, arrivals, time, now_ns: 0, busy_ns: 0, next: 0, steps: 0, rows: 0, outcomes }
    }

    fn run(mut self) -> Result<Self, String> {
        let mut results = Vec::new();
        loop {
            self.take_arrivals();
            if self.scheduler.is_empty() {
                let Some(arrival) = self.arrivals.get(self.next) else { return Ok(self) };
                self.now_ns = arrival.at_ns;
                continue;
            }
            self.step(&mut results)?;
        }
    }

    fn take_arrivals(&mut self) {
        while let Some(arrival) = self.arrivals.get(self.next).filter(|next| next.at_ns <= self.now_ns) {
            let index = self.next;
            self.next += 1;
            let output = arrival.lengths.output;
            let request = Request {
                id: RequestId { frontend: 0, slot: index as u16, generation: index as u32 },
                claim: Claim::default(),
                sampling: Sampling { max_tokens: Some(output), ignore_eos: true, ..Sampling::default() },
                prompt_tokens: arrival.ids.len() as u32,
                ids: arrival.ids.clone(),
            };
            if self.scheduler.admit(request, arrival.at_ns).is_err() {
                let outcome = &mut self.outcomes[index];
                (outcome.error, outcome.end_ns) = (Some("refused".to_owned()), arrival.at_ns);
            }
        }
    }

    fn step(&mut self, results: &mut Vec<RowResult>) -> Result<(), String> {
        let plan = self.scheduler.plan(self.now_ns);
        let plan = plan.ok_or("the scheduler planned nothing while requests wait")?;
        let load = plan.load();
        results.clear();
        results.extend(plan.rows.iter().map(|row| match row.draw {
            Some(index) => RowResult::Token((row.id.generation ^ index) % VOCAB),
            None => RowResult::Computed,
        }));
        let took_ns = self.time.of(load);
        self.now_ns += took_ns;
        self.busy_ns += took_ns;
        self.steps += 1;
        self.rows += u64::from(load.rows);
        self.scheduler.measured(took_ns);
        for event in self.scheduler.commit(results) {
            self.outcomes[event.id.generation as usize].event_ns.push(self.now_ns);
        }
        for ended in self.scheduler.drain_finished() {
            let finished = ended.finished;
            let outcome = &mut self.outcomes[finished.id.generation as usize];
            outcome.end_ns = self.now_ns;
            outcome.output_tokens = finished.generated_tokens;
            outcome.counted_by_server = true;
            outcome.cached_tokens = Some(finished.cached_tokens);
        }
        Ok(())
    }

    fn report(self, admission: String, targets: Option<Targets>) -> Simulated {
        let measured = |(arrival, outcome): (&Arrival, Outcome)| Measured {
            scheduled_ns: arrival.at_ns,
            sent_ns: arrival.at_ns,
            lengths: arrival.lengths,
            outcome,
        };
        let requests: Vec<Measured> = self.arrivals.iter().zip(self.outcomes).map(measured).collect();
        let wall_s = self.now_ns as f64 / 1e9;
        let run = Run { requests, wall_s, client: ClientCost::default() };
        Simulated {
            admission,
            steps: self.steps,
            rows_per_step: self.rows as f64 / self.steps.max(1) as f64,
            busy_share: self.busy_ns as f64 / self.now_ns.max(1) as f64,
            preemptions: self.scheduler.totals().preemptions,
            figures: figures::of(&run, targets, true),
        }
    }
}

/// The lines as a table.
pub(crate) fn render(lines: &[Simulated]) -> String {
    let header = [
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
        "preempted",
        "goodput",
    ];
    let number = table::number;
    let three = |spread: &Spread| [P50, P90, P99].map(|quantile| quantile.cell(spread)).join(" / ");
    let all = |spread: &Spread| format!("{} / {}", three(spread), number(spread.max));
    let rows = lines.iter().map(|line| {
        let Figures { ttft_ms, itl_ms, tpot_ms, e2e_ms, .. } = &line.figures;
        vec![
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
}
