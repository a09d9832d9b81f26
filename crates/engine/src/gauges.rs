//! What the engine's status page says of the scheduler.

use crate::engine::Engine;
use crate::ports::Ports;
use pinion_protocol::status::Gauge;

impl Engine {
    pub(crate) fn set_gauges(&self, ports: &impl Ports) {
        let (plan, totals) = (self.scheduler.current_plan(), self.scheduler.totals());
        ports.set_gauge(Gauge::Steps, self.step);
        ports.set_gauge(Gauge::KvBlocksUsed, u64::from(self.scheduler.pool().held()));
        ports.set_gauge(Gauge::KvBlocksTotal, u64::from(self.scheduler.pool().total()));
        ports.set_gauge(Gauge::KvBlocksCached, u64::from(self.scheduler.pool().cached()));
        ports.set_gauge(Gauge::PrefixQueryTokens, totals.prefix_query_tokens);
        ports.set_gauge(Gauge::PrefixHitTokens, totals.prefix_hit_tokens);
        ports.set_gauge(Gauge::RequestsRunning, self.scheduler.running().len() as u64);
        ports.set_gauge(Gauge::RequestsWaiting, self.scheduler.waiting().len() as u64);
        ports.set_gauge(Gauge::RequestsDeferred, self.constraints.waiting() as u64);
        ports.set_gauge(Gauge::PromptTokens, totals.prompt_tokens);
        ports.set_gauge(Gauge::GeneratedTokens, totals.generated_tokens);
        ports.set_gauge(Gauge::RequestsFinished, totals.finished);
        ports.set_gauge(Gauge::Preemptions, totals.preemptions);
        ports.set_gauge(Gauge::OldestWaitingNs, plan.oldest_waiting_ns);

        let Some(times) = self.scheduler.step_times() else { return };
        ports.set_gauge(Gauge::StepBudgetNs, plan.budget_ns.unwrap_or(0));
        ports.set_gauge(Gauge::PredictedSteps, times.steps);
        ports.set_gauge(Gauge::PredictedStepsNs, times.predicted_ns);
        ports.set_gauge(Gauge::PredictedStepsTookNs, times.measured_ns);
        ports.set_gauge(Gauge::PredictionErrorNs, times.error_ns);
        ports.set_gauge(Gauge::PromptTokensDeferred, times.deferred_tokens);
    }
}
