//! What a step costs: a model of its time, learnt from the steps that ran. docs/design/0014-step-time-budget.md.
//!
//! A step's time is a sum of non-negative costs: one for the step, one for each row, one for each prompt token, one for
//! each token whose KV a decode row reads, and one for each pair of a prompt token and a token that it attends to. The
//! costs minimise the sum of squared *relative* errors over the recent steps, so a step that another process delayed
//! counts for little however long it took.
//!
//! State has a fixed size and nothing but the arguments changes it: the same steps with the same times give the same
//! costs, to the bit. Only additions, multiplications, divisions and comparisons of `f64` are used.

const TERMS: usize = 5;
/// Amounts that count as one of each term, so that their sums are of similar size.
const UNIT: [f64; TERMS] = [1.0, 16.0, 128.0, 8192.0, 65536.0];
/// What an observation weighs after the next one of its kind: about the last 64 count.
const KEPT: f64 = 1.0 - 1.0 / 64.0;
/// Added, in proportion, to the diagonal of every term but the first. What the observations cannot tell apart then
/// counts as the cost of every step.
const RIDGE: f64 = 1e-4;
/// Steps of a kind before predictions are used.
const LEARNT_STEPS: u32 = 4;
/// This number of steps in a row that took more than [`CHANGED_RATIO`] times the prediction, or less than the
/// prediction divided by it, show that the machine has changed.
const CHANGED_STEPS: u32 = 8;
const CHANGED_RATIO: f64 = 1.5;
/// What older observations weigh after that.
const KEPT_AFTER_CHANGE: f64 = 1.0 / 64.0;
/// The largest change that is believed at once.
const CHANGE_MAX: f64 = 64.0;
/// A time below this share of the prediction counts as this share of it: a small time has a large weight.
const SHORTEST_SHARE: f64 = 0.5;

/// What a step computes, as far as its time depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepWork {
    /// Rows.
    pub rows: u32,
    /// Tokens of prompt chunks.
    pub prompt_tokens: u32,
    /// Tokens whose KV the decode rows read.
    pub decode_context: u64,
    /// Pairs of a prompt token and a token that it attends to, itself included.
    pub prompt_pairs: u64,
}

impl StepWork {
    /// The same and a decode row over a context of this length.
    pub fn and_decode(self, context: u32) -> StepWork {
        let decode_context = self.decode_context + u64::from(context);
        StepWork { rows: self.rows + 1, decode_context, ..self }
    }

    /// The same and a chunk of `len` prompt tokens behind `start` others.
    pub fn and_chunk(self, start: u32, len: u32) -> StepWork {
        let (start, tokens) = (u64::from(start), u64::from(len));
        StepWork {
            rows: self.rows + 1,
            prompt_tokens: self.prompt_tokens + len,
            prompt_pairs: self.prompt_pairs + tokens * start + tokens * (tokens + 1) / 2,
            ..self
        }
    }

    fn terms(&self) -> [f64; TERMS] {
        let amounts = [
            1.0,
            f64::from(self.rows),
            f64::from(self.prompt_tokens),
            self.decode_context as f64,
            self.prompt_pairs as f64,
        ];
        std::array::from_fn(|term| amounts[term] / UNIT[term])
    }
}

/// Recent steps of one kind as sums: of each term over the measured time, and of products of two of those.
#[derive(Debug, Clone, Copy, Default)]
struct Observations {
    products: [[f64; TERMS]; TERMS],
    sums: [f64; TERMS],
    count: u32,
}

impl Observations {
    fn add(&mut self, terms: &[f64; TERMS], took_us: f64) {
        self.scale(KEPT);
        let shares = terms.map(|amount| amount / took_us);
        for (row, share) in self.products.iter_mut().zip(shares) {
            row.iter_mut().zip(shares).for_each(|(product, other)| *product += share * other);
        }
        self.sums.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share);
        self.count = self.count.saturating_add(1);
    }

    fn scale(&mut self, factor: f64) {
        self.products.iter_mut().flatten().chain(&mut self.sums).for_each(|sum| *sum *= factor);
    }

    /// These and later ones.
    fn append(&mut self, later: &Observations) {
        for _ in 0..later.count {
            self.scale(KEPT);
        }
        self.products
            .iter_mut()
            .flatten()
            .zip(later.products.iter().flatten())
            .for_each(|(sum, more)| *sum += more);
        self.sums.iter_mut().zip(later.sums).for_each(|(sum, more)| *sum += more);
        self.count = self.count.saturating_add(later.count);
    }

    /// As if each of these steps had taken `ratio` times as long.
    fn retime(&mut self, ratio: f64) {
        self.sums.iter_mut().for_each(|sum| *sum /= ratio);
        self.products.iter_mut().flatten().for_each(|product| *product /= ratio * ratio);
    }
}

/// Recent steps of both kinds. They forget apart from each other: hours of decoding do not wash out what a prompt token
/// costs.
#[derive(Debug, Clone, Copy, Default)]
struct Steps {
    decodes: Observations,
    prompts: Observations,
}

impl Steps {
    fn of_kind(&mut self, work: &StepWork) -> &mut Observations {
        if work.prompt_tokens > 0 { &mut self.prompts } else { &mut self.decodes }
    }

    /// The machine's steps take `ratio` times as long from now on. What was measured before counts for little, and as
    /// if it had taken that much longer: perhaps no step since the change had prompt tokens, or none had decode rows.
    fn change(&mut self, ratio: f64) {
        for kind in [&mut self.decodes, &mut self.prompts] {
            kind.retime(ratio);
            kind.scale(KEPT_AFTER_CHANGE);
        }
    }

    /// These and later ones.
    fn append(&mut self, later: &Steps) {
        self.decodes.append(&later.decodes);
        self.prompts.append(&later.prompts);
    }
}

/// Steps in a row that all took much longer than predicted, or all much less. They are kept apart until it is clear
/// whether the machine has changed.
#[derive(Debug, Clone, Copy, Default)]
struct Deviation {
    longer: bool,
    steps: Steps,
    count: u32,
    /// In sum.
    took_us: f64,
    predicted_us: f64,
}

/// See the module's head.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepCost {
    steps: Steps,
    deviation: Deviation,
    /// µs per unit of each term.
    costs: [f64; TERMS],
    /// Most prompt tokens that a step had.
    prompt_tokens_seen: u32,
}

impl StepCost {
    /// A step of this work took `took_ns`. A time of 0 says nothing.
    pub(crate) fn observe(&mut self, work: &StepWork, took_ns: u64) {
        if took_ns == 0 {
            return;
        }
        let took_us = took_ns as f64 / 1e3;
        self.prompt_tokens_seen = self.prompt_tokens_seen.max(work.prompt_tokens);
        let predicted_us = self.knows(work).then(|| self.predicted_us(work));
        match predicted_us.map(|predicted| (predicted, took_us / predicted)) {
            Some((predicted, ratio)) if ratio > CHANGED_RATIO || ratio * CHANGED_RATIO < 1.0 => {
                self.deviate(work, took_us, predicted);
            }
            _ => {
                self.end_deviation();
                self.steps.of_kind(work).add(&work.terms(), took_us);
                self.costs = self.fitted();
            }
        }
    }

    fn deviate(&mut self, work: &StepWork, took_us: f64, predicted_us: f64) {
        let longer = took_us > predicted_us;
        if self.deviation.longer != longer {
            self.end_deviation();
        }
        let deviation = &mut self.deviation;
        deviation.longer = longer;
        deviation.count += 1;
        deviation.took_us += took_us;
        deviation.predicted_us += predicted_us;
        // A small time has a large weight.
        deviation.steps.of_kind(work).add(&work.terms(), took_us.max(predicted_us * SHORTEST_SHARE));
        if deviation.count < CHANGED_STEPS {
            return;
        }
        let ratio = deviation.took_us / deviation.predicted_us;
        if ratio.is_finite() && ratio > 0.0 {
            self.deviation = Deviation::default();
            self.steps.change(ratio.clamp(1.0 / CHANGE_MAX, CHANGE_MAX));
            self.costs = self.fitted();
        } else {
            self.end_deviation();
        }
    }

    /// The machine has not changed: these steps count as all others do.
    fn end_deviation(&mut self) {
        let deviation = std::mem::take(&mut self.deviation);
        if deviation.count > 0 {
            self.steps.append(&deviation.steps);
            self.costs = self.fitted();
        }
    }

    /// Whether enough steps with prompt tokens have run to say how many of them fit a time.
    pub(crate) fn knows_prompts(&self) -> bool {
        self.steps.prompts.count >= LEARNT_STEPS
    }

    fn knows(&self, work: &StepWork) -> bool {
        let kind = if work.prompt_tokens > 0 { &self.steps.prompts } else { &self.steps.decodes };
        kind.count >= LEARNT_STEPS
    }

    /// Most prompt tokens that a step had.
    pub(crate) fn prompt_tokens_seen(&self) -> u32 {
        self.prompt_tokens_seen
    }

    /// The time that a step of this work takes, in ns; rounded up.
    pub(crate) fn predicted_ns(&self, work: &StepWork) -> u64 {
        (self.predicted_us(work) * 1e3).ceil() as u64
    }

    /// The same, once enough steps of its kind have run.
    pub(crate) fn known_ns(&self, work: &StepWork) -> Option<u64> {
        self.knows(work).then(|| self.predicted_ns(work))
    }

    fn predicted_us(&self, work: &StepWork) -> f64 {
        work.terms().iter().zip(self.costs).map(|(amount, cost)| amount * cost).sum()
    }

    /// Least squares over both kinds. While a cost is negative, the most negative one becomes 0 and the rest are fitted
    /// again.
    fn fitted(&self) -> [f64; TERMS] {
        let mut used = [true; TERMS];
        loop {
            let costs = self.solved(&used);
            let negative = (0..TERMS).filter(|&term| costs[term] < 0.0);
            match negative.min_by(|&a, &b| costs[a].total_cmp(&costs[b])) {
                Some(term) => used[term] = false,
                None => return costs,
            }
        }
    }

    /// Solves the normal equations of the terms in use by elimination. A term without observations costs nothing.
    fn solved(&self, used: &[bool; TERMS]) -> [f64; TERMS] {
        let sum = |a: usize| self.steps.decodes.sums[a] + self.steps.prompts.sums[a];
        let product = |a: usize, b: usize| {
            let ridge = if a == b && a > 0 { 1.0 + RIDGE } else { 1.0 };
            (self.steps.decodes.products[a][b] + self.steps.prompts.products[a][b]) * ridge
        };
        // [terms, terms and the right-hand side]
        let mut rows: [[f64; TERMS + 1]; TERMS] = std::array::from_fn(|a| {
            std::array::from_fn(|b| match used.get(b) {
                Some(true) if used[a] => product(a, b),
                None if used[a] => sum(a),
                _ => 0.0,
            })
        });
        let diagonal: [f64; TERMS] = std::array::from_fn(|term| rows[term][term]);
        for pivot in 0..TERMS {
            let head = rows[pivot];
            for row in rows.iter_mut().skip(pivot + 1) {
                // A pivot that is nothing but rounding belongs to a term that says nothing new.
                let factor =
                    if head[pivot] > diagonal[pivot] * 1e-9 { row[pivot] / head[pivot] } else { 0.0 };
                row.iter_mut().zip(head).for_each(|(value, above)| *value -= factor * above);
            }
        }
        let mut costs = [0.0; TERMS];
        for term in (0..TERMS).rev() {
            let known: f64 = (term + 1..TERMS).map(|later| rows[term][later] * costs[later]).sum();
            if rows[term][term] > diagonal[term] * 1e-9 {
                costs[term] = (rows[term][TERMS] - known) / rows[term][term];
            }
        }
        costs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_random::Random;

    /// A machine whose steps take these times, in µs: for the step, a row, a prompt token, 1024 tokens of decode
    /// context, 1024 pairs.
    const MACHINE: [f64; TERMS] = [10_000.0, 100.0, 120.0, 250.0, 20.0];

    fn true_us(work: &StepWork, machine: &[f64; TERMS]) -> f64 {
        let amounts = [
            1.0,
            f64::from(work.rows),
            f64::from(work.prompt_tokens),
            work.decode_context as f64 / 1024.0,
            work.prompt_pairs as f64 / 1024.0,
        ];
        amounts.iter().zip(machine).map(|(amount, cost)| amount * cost).sum()
    }

    /// Up to 32 decode rows; in a third of the steps also up to two chunks.
    fn some_work(random: &mut Random) -> StepWork {
        let decodes = random.below(33);
        let mut work =
            (0..decodes).fold(StepWork::default(), |work, _| work.and_decode(1 + random.below(1024) as u32));
        let chunks = if work.rows == 0 { 1 } else { random.below(6).saturating_sub(3) };
        for _ in 0..chunks {
            work = work.and_chunk(random.below(512) as u32, 1 + random.below(256) as u32);
        }
        work
    }

    /// Observes steps of a machine with noise of ±`noise`.
    fn observe(cost: &mut StepCost, random: &mut Random, steps: u32, machine: &[f64; TERMS], noise: f64) {
        for _ in 0..steps {
            let work = some_work(random);
            let factor = 1.0 + noise * (random.below(2001) as f64 / 1000.0 - 1.0);
            cost.observe(&work, (true_us(&work, machine) * factor * 1e3) as u64);
        }
    }

    /// The largest relative error over steps that were not observed.
    fn worst(cost: &StepCost, random: &mut Random, machine: &[f64; TERMS]) -> f64 {
        let errors = (0..500).map(|_| {
            let work = some_work(random);
            (cost.predicted_us(&work) / true_us(&work, machine) - 1.0).abs()
        });
        errors.fold(0.0, f64::max)
    }

    #[test]
    fn predictions_converge_within_the_noise() {
        for seed in 0..20 {
            let (mut cost, mut random) = (StepCost::default(), Random::new(seed));
            observe(&mut cost, &mut random, 300, &MACHINE, 0.0);
            let exact = worst(&cost, &mut random, &MACHINE);
            assert!(exact < 0.02, "seed {seed}: {exact} without noise");
            observe(&mut cost, &mut random, 300, &MACHINE, 0.1);
            let noisy = worst(&cost, &mut random, &MACHINE);
            assert!(noisy < 0.15, "seed {seed}: {noisy} with noise of 10 %");
        }
    }

    #[test]
    fn steps_that_another_process_delays_count_for_little() {
        for seed in 0..20 {
            let (mut cost, mut random) = (StepCost::default(), Random::new(seed));
            for step in 0..400 {
                let work = some_work(&mut random);
                let delay = if step % 10 == 9 { 20.0 } else { 1.0 };
                cost.observe(&work, (true_us(&work, &MACHINE) * delay * 1e3) as u64);
            }
            let found = worst(&cost, &mut random, &MACHINE);
            assert!(found < 0.15, "seed {seed}: {found}");
        }
    }

    #[test]
    fn a_machine_that_changes_is_learnt_again() {
        for factor in [0.25, 0.5, 2.0, 5.0] {
            for seed in 0..10 {
                let (mut cost, mut random) = (StepCost::default(), Random::new(seed));
                observe(&mut cost, &mut random, 1000, &MACHINE, 0.05);
                let changed = MACHINE.map(|part| part * factor);
                observe(&mut cost, &mut random, 100, &changed, 0.05);
                let found = worst(&cost, &mut random, &changed);
                assert!(found < 0.2, "factor {factor}, seed {seed}: {found}");
            }
        }
    }

    /// What prompt tokens cost after a change is not measured while there are only decode steps.
    #[test]
    fn a_change_among_decode_steps_is_expected_of_prompts_too() {
        for factor in [0.25, 0.5, 2.0, 5.0] {
            for seed in 0..10 {
                let (mut cost, mut random) = (StepCost::default(), Random::new(seed));
                observe(&mut cost, &mut random, 1000, &MACHINE, 0.05);
                let changed = MACHINE.map(|part| part * factor);
                for _ in 0..40 {
                    let rows = 1 + random.below(32);
                    let work = (0..rows).fold(StepWork::default(), |work, _| work.and_decode(300));
                    cost.observe(&work, (true_us(&work, &changed) * 1e3) as u64);
                }
                let found = worst(&cost, &mut random, &changed);
                assert!(found < 0.35, "factor {factor}, seed {seed}: {found}");
            }
        }
    }

    /// Many hours of decoding change nothing about prompt tokens.
    #[test]
    fn decode_steps_do_not_wash_out_what_prompts_cost() {
        let (mut cost, mut random) = (StepCost::default(), Random::new(1));
        observe(&mut cost, &mut random, 300, &MACHINE, 0.0);
        for _ in 0..10_000 {
            let work = StepWork::default().and_decode(100);
            cost.observe(&work, (true_us(&work, &MACHINE) * 1e3) as u64);
        }
        let found = worst(&cost, &mut random, &MACHINE);
        assert!(found < 0.1, "{found}");
    }

    /// Steps that are all alike say what they take; the part of their prompt tokens is not known and counts as none.
    #[test]
    fn what_cannot_be_told_apart_counts_as_the_cost_of_every_step() {
        let mut cost = StepCost::default();
        let alike = StepWork::default().and_decode(100).and_chunk(0, 32);
        for _ in 0..50 {
            cost.observe(&alike, 10_000_000);
        }
        let near = |found: u64| (9_900_000..10_100_000).contains(&found);
        assert!(near(cost.predicted_ns(&alike)), "{}", cost.predicted_ns(&alike));
        let without = StepWork::default().and_decode(100);
        assert!(near(cost.predicted_ns(&without)), "{}", cost.predicted_ns(&without));
    }

    /// Whatever is measured, costs are finite and not negative, so that more work never takes less time; and the same
    /// steps give the same costs to the bit.
    #[test]
    fn costs_are_not_negative_whatever_is_measured() {
        for seed in 0..200 {
            let (mut cost, mut random) = (StepCost::default(), Random::new(seed));
            let mut again = StepCost::default();
            for _ in 0..200 {
                let work = some_work(&mut random);
                let took_ns = match random.below(6) {
                    0 => 0,
                    1 => 1,
                    2 => u64::MAX,
                    3 => random.below(1 << 40) as u64,
                    _ => 1 + random.below(100_000_000) as u64,
                };
                cost.observe(&work, took_ns);
                again.observe(&work, took_ns);
                assert!(cost.costs.iter().all(|part| part.is_finite() && *part >= 0.0), "{seed}: {cost:?}");
            }
            assert_eq!(cost.costs.map(f64::to_bits), again.costs.map(f64::to_bits), "seed {seed}");
        }
    }
}
