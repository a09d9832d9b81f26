//! What is said of a request that has ended: one log line, its metrics, its timeline, its spans.

use super::{Entry, Setup};
use crate::answers::openai::Ending;
use crate::observe::metrics::{EndReason, Life, Metrics};
use crate::observe::otlp::Sequence;
use crate::observe::slow::{Slow, SlowLog};
use crate::observe::timeline::{Stamps, Timeline};
use crate::requests::request::{Outcome, Request};
use crate::requests::shared_line::{SharedLine, Told};
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

    /// The one log line of a request, and its metrics. The texts of a request for vectors share a line.
    pub(super) fn report(&mut self, entry: &Entry, setup: &Setup) {
        let request = entry.request.borrow();
        let known = Known::of(entry, &request, setup);
        let Known { reason, stamps, timeline, now_ns, prompt_tokens, .. } = known;
        let stamped = |stage: Stage| stamps.of(stage);
        let end = known.is_written.then_some(timeline.total_ns);
        let generated_tokens = request.token_count();
        self.metrics.end(reason, request.facts.reaches_engine);
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
        let told = Told {
            texts: 1,
            prompt_tokens: prompt_tokens.into(),
            reason,
            total_ms: end.map(ms),
            resumptions: entry.recovery.resumptions(),
        };
        if let Some(trace) = &entry.trace {
            trace.end(known.sequence(entry, &request));
        }
        match &entry.line {
            None => log_request(&request, &told, generated_tokens, timeline.first_ns),
            Some(line) => log_text(&request, told, line),
        }
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

/// Says of a request that is not over what its spans say, as if it were.
pub(super) fn end_trace(entry: &mut Entry, setup: &Setup) {
    if let Some(trace) = entry.trace.take() {
        let request = entry.request.borrow();
        trace.end(Known::of(entry, &request, setup).sequence(entry, &request));
    }
}

/// What is known of a request when something is said of it.
struct Known {
    reason: EndReason,
    stamps: Stamps,
    /// Up to its last bytes, if they were written, or up to now.
    timeline: Timeline,
    is_written: bool,
    now_ns: u64,
    prompt_tokens: u32,
}

impl Known {
    fn of(entry: &Entry, request: &Request, setup: &Setup) -> Known {
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
        let last_write = Some(stamps.of(Stage::LastWrite)).filter(|ns| *ns >= entry.received_ns);
        let now_ns = (setup.clock)();
        let until_ns = last_write.unwrap_or(now_ns);
        let timeline = Timeline::of_slot(slot, entry.id.generation, &stamps, entry.received_ns, until_ns);
        let prompt_tokens = match request.finished() {
            Some(finished) => finished.prompt_tokens,
            None => setup.counted(entry.id, Counter::PromptTokens),
        };
        Known { reason, stamps, timeline, is_written: last_write.is_some(), now_ns, prompt_tokens }
    }

    /// The same for its spans.
    fn sequence(&self, entry: &Entry, request: &Request) -> Sequence {
        let finish = match request.outcome() {
            Some(Outcome::Text(ending, _)) => Some(ending.name()),
            _ => None,
        };
        Sequence {
            number: 0,
            stamps: self.stamps,
            until_ns: self.timeline.received_ns + self.timeline.total_ns,
            first_ns: self.timeline.first_ns,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: request.cached_tokens(),
            generated_tokens: request.token_count(),
            preemptions: self.timeline.counter(Counter::Preemptions),
            resumptions: entry.recovery.resumptions(),
            finish,
            reason: self.reason,
        }
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn log_request(request: &Request, told: &Told, generated_tokens: u32, first_ns: Option<u64>) {
    let facts = &request.facts;
    tracing::info!(
        id = %facts.id,
        request_id = facts.label,
        route = facts.route.name(),
        prompt_tokens = told.prompt_tokens,
        generated_tokens,
        reason = told.reason.name(),
        ttft_ms = first_ns.map(ms),
        e2e_ms = told.total_ms,
        resumptions = told.resumptions,
        "request"
    );
}

fn log_text(request: &Request, told: Told, line: &SharedLine) {
    let facts = &request.facts;
    tracing::debug!(
        id = %facts.id,
        request_id = facts.label,
        prompt_tokens = told.prompt_tokens,
        reason = told.reason.name(),
        e2e_ms = told.total_ms,
        resumptions = told.resumptions,
        "text"
    );
    line.add(told);
}
