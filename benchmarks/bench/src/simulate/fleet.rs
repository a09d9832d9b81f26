//! Replicas behind a router under one virtual clock. Each has a scheduler of its own, which runs one step after the
//! other; the router takes no time.

use super::routing::Router;
use super::traffic::Traffic;
use crate::answer::Outcome;
use pinion_protocol::{Claim, RequestId, Sampling};
use pinion_scheduler::{Request, RowResult, Scheduler, StepLoad};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// How long a step takes, in ns.
#[derive(Clone, Copy)]
pub(super) struct StepTime {
    pub step: f64,
    pub row: f64,
    pub prefill: f64,
}

impl StepTime {
    fn of(&self, load: StepLoad) -> u64 {
        let rows = self.row * f64::from(load.rows);
        (self.step + rows + self.prefill * f64::from(load.prefill_tokens)).round() as u64
    }
}

struct Replica {
    scheduler: Scheduler,
    /// Times of the steps that are planned and have not ended, oldest first. The first one computes.
    launched: VecDeque<u64>,
}

/// Replicas in the middle of their virtual lives.
pub(super) struct Fleet<'a> {
    replicas: Vec<Replica>,
    router: Router,
    traffic: &'a Traffic,
    time: StepTime,
    /// Steps of a replica that are planned at most: 2 where the next one is planned while one computes.
    depth: usize,
    /// When the step that a replica computes ends.
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    next: usize,
    results: Vec<RowResult>,
    /// The replica and the prompt tokens of each request, by its index.
    sent: Vec<(usize, u32)>,
    pub now_ns: u64,
    pub busy_ns: u64,
    pub steps: u64,
    pub rows: u64,
    pub outcomes: Vec<Outcome>,
}

impl<'a> Fleet<'a> {
    pub(super) fn new(
        schedulers: impl Iterator<Item = Scheduler>,
        router: Router,
        traffic: &'a Traffic,
        time: StepTime,
        depth: usize,
    ) -> Fleet<'a> {
        let replica = |scheduler| Replica { scheduler, launched: VecDeque::with_capacity(depth) };
        Fleet {
            replicas: schedulers.map(replica).collect(),
            router,
            traffic,
            time,
            depth,
            ends: BinaryHeap::new(),
            next: 0,
            results: Vec::new(),
            sent: vec![(0, 0); traffic.len()],
            now_ns: 0,
            busy_ns: 0,
            steps: 0,
            rows: 0,
            outcomes: vec![Outcome::default(); traffic.len()],
        }
    }

    /// Until every request has its end.
    pub(super) fn run(mut self, vocab: u32) -> Result<Self, String> {
        let mut woken = Vec::new();
        loop {
            let arrives_ns = self.traffic.arrives_ns(self.next);
            let ends_ns = self.ends.peek().map(|Reverse((at_ns, _))| *at_ns);
            // What arrives as a step ends is there for the next one.
            let arrives_first = match (arrives_ns, ends_ns) {
                (None, None) => return Ok(self),
                (Some(arrives_ns), Some(ends_ns)) => arrives_ns <= ends_ns,
                (arrives_ns, _) => arrives_ns.is_some(),
            };
            if arrives_first {
                self.take_arrivals(&mut woken);
                for index in woken.drain(..) {
                    self.launch(index)?;
                }
            } else if let Some(Reverse((ends_ns, index))) = self.ends.pop() {
                self.now_ns = ends_ns;
                self.retire(index, vocab);
                self.launch(index)?;
            }
        }
    }

    /// The next arrival and all of the same moment. The replicas that did nothing until now are added to `woken`.
    fn take_arrivals(&mut self, woken: &mut Vec<usize>) {
        self.now_ns = self.traffic.arrives_ns(self.next).unwrap_or(self.now_ns);
        while self.traffic.arrives_ns(self.next).is_some_and(|at_ns| at_ns <= self.now_ns) {
            let index = self.next;
            self.next += 1;
            let (ids, output) = (self.traffic.ids(index), self.traffic.lengths(index).output);
            let at = self.router.send(&ids);
            let prompt_tokens = ids.len() as u32;
            let request = Request {
                id: RequestId { frontend: 0, slot: (index & 0xffff) as u16, generation: index as u32 },
                claim: Claim::default(),
                sampling: Sampling { max_tokens: Some(output), ignore_eos: true, ..Sampling::default() },
                prompt_tokens,
                ids,
            };
            let replica = &mut self.replicas[at];
            if replica.scheduler.admit(request, self.now_ns).is_err() {
                let outcome = &mut self.outcomes[index];
                (outcome.error, outcome.end_ns) = (Some("refused".to_owned()), self.now_ns);
                self.router.ended(at, u64::from(prompt_tokens));
                continue;
            }
            self.sent[index] = (at, prompt_tokens);
            if replica.launched.is_empty() && !woken.contains(&at) {
                woken.push(at);
            }
        }
    }

    /// Plans as many steps of a replica as it may have, and lets the first one compute.
    fn launch(&mut self, index: usize) -> Result<(), String> {
        let replica = &mut self.replicas[index];
        while replica.launched.len() < self.depth {
            let Some(plan) = replica.scheduler.plan(self.now_ns) else { break };
            let load = plan.load();
            let took_ns = self.time.of(load);
            replica.launched.push_back(took_ns);
            self.busy_ns += took_ns;
            self.steps += 1;
            self.rows += u64::from(load.rows);
        }
        match replica.launched.front() {
            Some(took_ns) => self.ends.push(Reverse((self.now_ns + took_ns, index))),
            None if replica.scheduler.is_empty() => {}
            None => return Err("the scheduler planned nothing while requests wait".to_owned()),
        }
        Ok(())
    }

    /// Ends the step that a replica computes.
    fn retire(&mut self, at: usize, vocab: u32) {
        let Replica { scheduler, launched } = &mut self.replicas[at];
        let took_ns = launched.pop_front().expect("a step that ends was launched");
        self.results.clear();
        self.results.extend(scheduler.oldest_plan().rows.iter().map(|row| match row.draw {
            Some(index) => RowResult::Token((row.id.generation ^ index) % vocab),
            None => RowResult::Computed,
        }));
        scheduler.measured(took_ns);
        for event in scheduler.commit(&self.results) {
            self.outcomes[event.id.generation as usize].event_ns.push(self.now_ns);
            self.router.token(at);
        }
        for ended in scheduler.drain_finished() {
            let finished = ended.finished;
            let index = finished.id.generation as usize;
            let outcome = &mut self.outcomes[index];
            outcome.end_ns = self.now_ns;
            outcome.output_tokens = finished.generated_tokens;
            outcome.counted_by_server = true;
            outcome.cached_tokens = Some(finished.cached_tokens);
            let (replica, prompt_tokens) = self.sent[index];
            self.router.ended(replica, u64::from(prompt_tokens) + outcome.event_ns.len() as u64);
        }
    }

    pub(super) fn preemptions(&self) -> u64 {
        self.replicas.iter().map(|replica| replica.scheduler.totals().preemptions).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompts::{Form, Prompts, Source};
    use crate::simulate::routing::Routing;
    use crate::trace::Row;
    use crate::workload::{Lengths, Selection};
    use pinion_protocol::StopIds;
    use pinion_scheduler::Limits;

    const VOCAB: u32 = 1000;
    /// A step of one row takes 1.1 ms, and 1 ms more with a prompt.
    const TIME: StepTime = StepTime { step: 1e6, row: 1e5, prefill: 1e4 };

    /// Milliseconds from each arrival to its first token and to its end. Each prompt has 100 tokens, each answer 5.
    fn served(arrivals_ms: &[f64], replicas: usize, depth: usize) -> Vec<(f64, f64)> {
        let row =
            |at_ms: &f64| Row { at_s: at_ms / 1e3, input_tokens: 100, output_tokens: 5, blocks: Vec::new() };
        let rows = arrivals_ms.iter().map(|at_ms| (row(at_ms), Lengths { input: 100, output: 5 })).collect();
        let selection = Selection { rows, block_tokens: 0, dropped: 0, clamped: 0 };
        let prompts = Prompts::new(Source::Random, Form::Ids, 1, None, Some(VOCAB)).expect("prompts");
        let traffic = Traffic::new(selection, prompts, 1.0);
        let limits = Limits {
            max_num_seqs: 4,
            max_num_batched_tokens: 512,
            max_requests: 8,
            max_model_len: 200,
            block_size: 16,
            block_count: 100,
            stop_ids: StopIds::NONE,
        };
        let schedulers = (0..replicas).map(|_| Scheduler::new(limits));
        let router = Router::new(Routing::RoundRobin, replicas, 100, 16);
        let fleet = Fleet::new(schedulers, router, &traffic, TIME, depth).run(VOCAB).expect("a run");
        let since =
            |index: usize, at_ns: u64| (at_ns - traffic.arrives_ns(index).expect("it arrived")) as f64 / 1e6;
        let outcomes = fleet.outcomes.iter().enumerate();
        outcomes.map(|(at, outcome)| (since(at, outcome.event_ns[0]), since(at, outcome.end_ns))).collect()
    }

    #[test]
    fn replicas_compute_at_the_same_time() {
        assert_eq!(served(&[0.0, 0.0], 1, 1), [(3.2, 8.0); 2], "both in each step");
        assert_eq!(served(&[0.0, 0.0], 2, 1), [(2.1, 6.5); 2], "each by itself");
        // The third one shares the first replica, from the end of its third step on.
        assert_eq!(served(&[0.0, 0.0, 4.0], 2, 1)[1], (2.1, 6.5));
        assert_eq!(served(&[0.0, 0.0, 4.0], 2, 1)[2].0, 2.5);
    }

    #[test]
    fn a_step_that_is_planned_ahead_keeps_an_arrival_out() {
        for depth in [1, 2] {
            assert_eq!(served(&[0.0], 1, depth), [(2.1, 6.5)], "alone, depth {depth}");
        }
        // The second one arrives in the first decode step, which ends at 3.2.
        assert_eq!(served(&[0.0, 3.0], 1, 1)[1].0, 2.4);
        assert_eq!(served(&[0.0, 3.0], 1, 2)[1].0, 3.5);
    }
}
