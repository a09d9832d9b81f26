//! The families that vLLM's dashboards, autoscalers and the Kubernetes inference gateway look for, with vLLM's meaning
//! and labels. Buckets are vLLM's and finer ones below, so that any query over its bounds holds.
//!
//! Gauges and preemptions are the engine's; the rest is counted where vLLM counts it, in the process that answers.

use super::Kind::{Counter, Gauge, Histogram};
use super::{Family, Series, View};
use crate::observe::health::gauge;
use crate::observe::metrics::{EndReason, Metrics};
use pinion_protocol::Role;
use pinion_protocol::status::{Gauge as Word, STEP_SIZES};
use std::fmt::Display;

/// vLLM's labels.
const LABELS: &[&str] = &["model_name", "engine"];

const fn family(
    name: &'static str,
    kind: super::Kind,
    help: &'static str,
    write: fn(&View<'_>, &mut Series<'_>),
) -> Family {
    Family { name, kind, help, labels: LABELS, write }
}

/// The table, in the order of the page.
#[rustfmt::skip]
pub(super) const FAMILIES: &[Family] = &[
    family("vllm:num_requests_running", Gauge, "Number of requests in model execution batches.",
        |view, series| engines(view, series, |page| gauge(page, Word::RequestsRunning) as f64)),
    family("vllm:num_requests_waiting", Gauge, "Number of requests waiting to be processed.",
        |view, series| engines(view, series, |page| gauge(page, Word::RequestsWaiting) as f64)),
    family("vllm:kv_cache_usage_perc", Gauge, "KV-cache usage. 1 means 100 percent usage.",
        |view, series| engines(view, series, kv_share)),
    Family { name: "vllm:cache_config_info", kind: Gauge, help: "Information of the KV cache's configuration.",
        labels: &["block_size", "num_gpu_blocks", "engine"],
        write: |view, series| {
            let constants = &view.constants;
            for (peer, _) in view.pages(Role::Engine) {
                series.put(&[&constants.block_size, &constants.kv_blocks, &peer.index], 1);
            }
        } },
    family("vllm:prefix_cache_queries_total", Counter, "Prefix cache queries, in terms of number of queried tokens.",
        |view, series| engines(view, series, |page| gauge(page, Word::PrefixQueryTokens) as f64)),
    family("vllm:prefix_cache_hits_total", Counter, "Prefix cache hits, in terms of number of cached tokens.",
        |view, series| engines(view, series, |page| gauge(page, Word::PrefixHitTokens) as f64)),
    family("vllm:gpu_cache_usage_perc", Gauge, "The same as vllm:kv_cache_usage_perc, by its former name.",
        |view, series| engines(view, series, kv_share)),
    family("vllm:gpu_prefix_cache_queries_total", Counter, "The same as vllm:prefix_cache_queries_total, by its former name.",
        |view, series| engines(view, series, |page| gauge(page, Word::PrefixQueryTokens) as f64)),
    family("vllm:gpu_prefix_cache_hits_total", Counter, "The same as vllm:prefix_cache_hits_total, by its former name.",
        |view, series| engines(view, series, |page| gauge(page, Word::PrefixHitTokens) as f64)),
    Family { name: "vllm:num_requests_waiting_by_reason", kind: Gauge,
        help: "Waiting requests by reason: no room in the batch or the cache, or a grammar that is being compiled.",
        labels: &["model_name", "engine", "reason"],
        write: |view, series| for (peer, page) in view.pages(Role::Engine) {
            for (reason, word) in [("capacity", Word::RequestsWaiting), ("deferred", Word::RequestsDeferred)] {
                series.put(&[&view.constants.model, &peer.index, &reason], gauge(page, word));
            }
        } },
    Family { name: "vllm:engine_sleep_state", kind: Gauge, help: "1 for the state that the engine is in; it never sleeps.",
        labels: &["model_name", "engine", "sleep_state"],
        write: |view, series| for (peer, _) in view.pages(Role::Engine) {
            for state in ["awake", "weights_offloaded", "discard_all"] {
                series.put(&[&view.constants.model, &peer.index, &state], u8::from(state == "awake"));
            }
        } },
    family("vllm:num_preemptions_total", Counter, "Cumulative number of preemptions from the engine.",
        |view, series| engines(view, series, |page| gauge(page, Word::Preemptions) as f64)),
    family("vllm:spec_decode_num_draft_tokens_total", Counter, "Number of draft tokens.",
        |view, series| engines(view, series, |page| gauge(page, Word::Drafts) as f64)),
    family("vllm:spec_decode_num_accepted_tokens_total", Counter, "Number of accepted tokens.",
        |view, series| engines(view, series, |page| gauge(page, Word::AcceptedDrafts) as f64)),
    family("vllm:prompt_tokens_total", Counter, "Number of prefill tokens processed.",
        |view, series| number(view, series, |metrics| metrics.live_prompt_tokens.get())),
    family("vllm:generation_tokens_total", Counter, "Number of generation tokens processed.",
        |view, series| number(view, series, |metrics| metrics.live_generated_tokens.get())),
    family("vllm:prompt_tokens_cached_total", Counter, "Number of prompt tokens of ended requests that came from the prefix cache.",
        |view, series| number(view, series, |metrics| metrics.cached_tokens.get())),
    Family { name: "vllm:request_success_total", kind: Counter, help: "Count of finished requests by how they ended.",
        labels: &["model_name", "engine", "finished_reason"], write: finished },
    family("vllm:time_to_first_token_seconds", Histogram, "Histogram of time to first token in seconds.",
        |view, series| histogram(view, series, |metrics| &metrics.first_token)),
    family("vllm:inter_token_latency_seconds", Histogram, "Histogram of inter-token latency in seconds.",
        |view, series| histogram(view, series, |metrics| &metrics.token_gap)),
    family("vllm:request_time_per_output_token_seconds", Histogram,
        "Histogram of time per output token after the first, per request, in seconds.",
        |view, series| histogram(view, series, |metrics| &metrics.phases.time_per_token)),
    family("vllm:e2e_request_latency_seconds", Histogram, "Histogram of end to end request latency in seconds.",
        |view, series| histogram(view, series, |metrics| &metrics.end_to_end)),
    family("vllm:request_queue_time_seconds", Histogram, "Histogram of time spent in the waiting phase.",
        |view, series| histogram(view, series, |metrics| &metrics.phases.queue)),
    family("vllm:request_prefill_time_seconds", Histogram, "Histogram of time spent in the prefill phase.",
        |view, series| histogram(view, series, |metrics| &metrics.phases.prefill)),
    family("vllm:request_decode_time_seconds", Histogram, "Histogram of time spent in the decode phase.",
        |view, series| histogram(view, series, |metrics| &metrics.phases.decode)),
    family("vllm:request_inference_time_seconds", Histogram, "Histogram of time spent in the running phase.",
        |view, series| histogram(view, series, |metrics| &metrics.phases.inference)),
    family("vllm:request_prompt_tokens", Histogram, "Number of prefill tokens of finished requests.",
        |view, series| histogram(view, series, |metrics| &metrics.phases.prompt_tokens)),
    family("vllm:request_generation_tokens", Histogram, "Number of generation tokens of finished requests.",
        |view, series| histogram(view, series, |metrics| &metrics.phases.generated_tokens)),
    family("vllm:request_max_num_generation_tokens", Histogram,
        "Histogram of the longest of the choices of a prompt, in generated tokens.",
        |view, series| histogram(view, series, |metrics| &metrics.longest_choices)),
    family("vllm:iteration_tokens_total", Histogram, "Histogram of number of tokens per engine step.", step_sizes),
    family("vllm:request_params_n", Histogram, "Histogram of the n request parameter.",
        |view, series| histogram(view, series, |metrics| &metrics.choices_asked)),
    family("vllm:request_params_max_tokens", Histogram, "Histogram of the max_tokens request parameter, where it is given.",
        |view, series| histogram(view, series, |metrics| &metrics.tokens_asked)),
];

/// One series per engine, from its status page.
fn engines(view: &View<'_>, series: &mut Series<'_>, value: fn(&pinion_shm::page::Page) -> f64) {
    for (peer, page) in view.pages(Role::Engine) {
        series.put(&[&view.constants.model, &peer.index], value(page));
    }
}

fn kv_share(page: &pinion_shm::page::Page) -> f64 {
    let blocks = gauge(page, Word::KvBlocksTotal);
    let used = gauge(page, Word::KvBlocksUsed);
    if blocks == 0 { 0.0 } else { used as f64 / blocks as f64 }
}

/// The sizes of each engine's steps, from its status page.
fn step_sizes(view: &View<'_>, series: &mut Series<'_>) {
    for (peer, page) in view.pages(Role::Engine) {
        let mut steps = 0;
        let [bounded @ .., (_, count)] = STEP_SIZES.map(|(bound, word)| {
            steps += gauge(page, word);
            (f64::from(bound), steps)
        });
        let sum = gauge(page, Word::StepTokens) as f64;
        let labels: [&dyn Display; 2] = [&view.constants.model, &peer.index];
        series.buckets(&labels, bounded.into_iter(), (sum, count));
    }
}

/// What this process counted; there is one engine.
fn number(view: &View<'_>, series: &mut Series<'_>, value: fn(&Metrics) -> u64) {
    series.put(&[&view.constants.model, &0], value(view.metrics));
}

fn histogram(
    view: &View<'_>,
    series: &mut Series<'_>,
    of: fn(&Metrics) -> &crate::observe::metrics::Histogram,
) {
    series.histogram(&[&view.constants.model, &0], of(view.metrics));
}

/// vLLM's reasons; what ended before it began (refused, overload) is not a finished request there. A text
/// that became a vector has stopped.
fn finished(view: &View<'_>, series: &mut Series<'_>) {
    for (name, reasons) in [
        ("stop", &[EndReason::Stop, EndReason::Answered][..]),
        ("length", &[EndReason::Length]),
        ("abort", &[EndReason::Disconnected, EndReason::SlowReader, EndReason::Withdrawn]),
        ("error", &[EndReason::Engine, EndReason::Internal]),
    ] {
        series.put(&[&view.constants.model, &0, &name], view.metrics.engine_requests(reasons));
    }
}
