//! What the engine's status page says of the scheduler, and a request's slot of its end.

use crate::ports::Ports;
use pinion_protocol::names::Counter;
use pinion_protocol::status::Gauge;
use pinion_scheduler::{Ended, Scheduler};

/// `step` is the last step committed, and `deferred` the requests whose grammar is being compiled.
pub(crate) fn set_gauges(scheduler: &Scheduler, step: u64, deferred: usize, ports: &impl Ports) {
    let (plan, totals) = (scheduler.current_plan(), scheduler.totals());
    ports.set_gauge(Gauge::Steps, step);
    ports.set_gauge(Gauge::KvBlocksUsed, u64::from(scheduler.pool().held()));
    ports.set_gauge(Gauge::KvBlocksTotal, u64::from(scheduler.pool().total()));
    ports.set_gauge(Gauge::KvBlocksCached, u64::from(scheduler.pool().cached()));
    ports.set_gauge(Gauge::PrefixQueryTokens, totals.prefix_query_tokens);
    ports.set_gauge(Gauge::PrefixHitTokens, totals.prefix_hit_tokens);
    ports.set_gauge(Gauge::RequestsRunning, scheduler.running().len() as u64);
    ports.set_gauge(Gauge::RequestsWaiting, scheduler.waiting().len() as u64);
    ports.set_gauge(Gauge::RequestsDeferred, deferred as u64);
    ports.set_gauge(Gauge::PromptTokens, totals.prompt_tokens);
    ports.set_gauge(Gauge::GeneratedTokens, totals.generated_tokens);
    ports.set_gauge(Gauge::RequestsFinished, totals.finished);
    ports.set_gauge(Gauge::Preemptions, totals.preemptions);
    ports.set_gauge(Gauge::OldestWaitingNs, plan.oldest_waiting_ns);
    ports.set_gauge(Gauge::Drafts, totals.drafts);
    ports.set_gauge(Gauge::AcceptedDrafts, totals.accepted_drafts);
    if let Some(windows) = scheduler.pool().windows() {
        ports.set_gauge(Gauge::WindowBlocksUsed, u64::from(windows.used()));
        ports.set_gauge(Gauge::WindowBlocksTotal, u64::from(windows.total()));
        ports.set_gauge(Gauge::WindowBlocksEvicted, windows.evicted());
    }

    let Some(times) = scheduler.step_times() else { return };
    ports.set_gauge(Gauge::StepBudgetNs, plan.budget_ns.unwrap_or(0));
    ports.set_gauge(Gauge::PredictedSteps, times.steps);
    ports.set_gauge(Gauge::PredictedStepsNs, times.predicted_ns);
    ports.set_gauge(Gauge::PredictedStepsTookNs, times.measured_ns);
    ports.set_gauge(Gauge::PredictionErrorNs, times.error_ns);
    ports.set_gauge(Gauge::PromptTokensDeferred, times.deferred_tokens);
}

/// What is known of a request at its end.
pub(crate) fn count_ended(ended: &Ended, ports: &impl Ports) {
    let Ended { finished, preemptions, company, drafts, .. } = ended;
    for (counter, value) in [
        (Counter::GeneratedTokens, u64::from(finished.generated_tokens)),
        (Counter::CachedTokens, u64::from(finished.cached_tokens)),
        (Counter::Preemptions, u64::from(*preemptions)),
        (Counter::Steps, u64::from(company.steps)),
        (Counter::BatchRowsSum, company.rows_sum),
        (Counter::BatchRowsMax, u64::from(company.rows_max)),
        (Counter::BatchPrefillSum, company.prefill_sum),
        (Counter::BatchPrefillMax, u64::from(company.prefill_max)),
        (Counter::Drafts, drafts.proposed),
        (Counter::AcceptedDrafts, drafts.accepted),
    ] {
        ports.count(finished.id, counter, value);
    }
}
