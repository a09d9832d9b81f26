//! What is said of a request that has ended: one log line, its metrics, its timeline.

use super::{Entry, Setup};
use crate::answers::openai::Ending;
use crate::observe::metrics::{EndReason, Life, Metrics};
use crate::observe::slow::{Slow, SlowLog};
use crate::observe::timeline::{Stamps, Timeline};
use crate::requests::request::Outcome;
use pinion_os::clock;
use pinion_protocol::names::{Counter, Stage};
use std::rc::Rc;

/// What is kept of ended requests.
pub(super) struct Reports {
    metrics: Rc<Metrics>,
    slow: SlowLog,
}

impl Reports {
    pub(super) fn new(metrics: Rc<Metrics>) -> Reports {
        Reports { metrics, slow: SlowLog::default() }
    }

    /// The worst requests of the last hour.
    pub(super) fn slow_json(&mut self, setup: &Setup) -> serde_json::Value {
        self.slow.page(setup.frontend, (setup.clock)())
    }

    /// The one log line of a request, and its metrics.
    pub(super) fn report(&mut self, entry: &Entry, setup: &Setup) {
        let request = entry.request.borrow();
        let reason = match request.outcome() {
            Some(Outcome::Text(Ending::Stop | Ending::ToolCalls, _)) => EndReason::Stop,
            Some(Outcome::Text(Ending::Length, _)) => EndReason::Length,
            Some(Outcome::Ids(_) | Outcome::Decoded(_) | Outcome::Vector(..)) => EndReason::Answered,
            Some(Outcome::Failed(fault)) => EndReason::of_fault(fault.code),
            Some(Outcome::Withdrawn) => EndReason::Withdrawn,
            Some(Outcome::Disconnected) | None => EndReason::Disconnected,
        };
        let slot = setup.slot(entry.id);
        let stamps = Stamps::of_slot(slot, entry.id.generation, entry.recovery.earlier());
        let stamped = |stage: Stage| stamps.of(stage);
        let last_write = Some(stamped(Stage::LastWrite)).filter(|ns| *ns >= entry.received_ns);
        let now_ns = (setup.clock)();
        let until_ns = last_write.unwrap_or(now_ns);
        let timeline = Timeline::of_slot(slot, entry.id.generation, &stamps, entry.received_ns, until_ns);
        let end = last_write.map(|_| timeline.total_ns);
        let generated_tokens = request.token_count();
        let prompt_tokens = match request.finished() {
            Some(finished) => finished.prompt_tokens,
            None => setup.counted(entry.id, Counter::PromptTokens),
        };
        self.metrics.end(request.facts.route, reason);
        self.metrics.prompt_tokens.add(u64::from(prompt_tokens));
        self.metrics.cached_tokens.add(u64::from(request.cached_tokens()));
        self.metrics.generated_tokens.add(u64::from(generated_tokens));
        if matches!(request.outcome(), Some(Outcome::Text(..) | Outcome::Vector(..))) {
            entry.siblings.iter().for_each(|siblings| siblings.completed(generated_tokens));
            if let Some(ns) = end {
                self.metrics.end_to_end.observe_ns(ns);
                let parts = self.metrics.parts.iter().zip(timeline.parts_ns);
                parts.for_each(|(histogram, ns)| histogram.observe_ns(ns));
            }
            self.metrics.phases.observe(&Life {
                queued_ns: stamped(Stage::EngineReceived),
                scheduled_ns: stamped(Stage::FirstScheduled),
                first_token_ns: stamped(Stage::FirstToken),
                last_token_ns: stamped(Stage::LastToken),
                prompt_tokens,
                generated_tokens,
            });
        }
        let ms = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e6);
        tracing::info!(
            id = %entry.id,
            request_id = request.facts.label,
            route = request.facts.route.name(),
            prompt_tokens,
            generated_tokens,
            reason = reason.name(),
            ttft_ms = ms(timeline.first_ns),
            e2e_ms = ms(end),
            resumptions = entry.recovery.resumptions(),
            "request"
        );
        if request.facts.reaches_engine {
            let facts = &request.facts;
            let detokenizer = facts.id.detokenizer(setup.detokenizers);
            timeline.record(&setup.recorder, facts.id, facts.tokenizer, detokenizer);
            self.slow.look(&timeline, now_ns, || Slow {
                label: request.facts.label.clone(),
                id: entry.id,
                route: request.facts.route.name(),
                reason: reason.name(),
                ended_unix_s: clock::unix_s(),
                timeline,
            });
        }
    }
}
