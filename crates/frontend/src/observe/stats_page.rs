//! `GET /stats`: what the page's live tab shows, as one small JSON object: the roles and their phases, load, KV blocks,
//! token counters, the histogram of gaps between tokens, and the last deaths. Counters and buckets only grow; a reader
//! takes differences. Its counters, gauges and histograms are on `/metrics` too.

use crate::observe::health::Health;
use crate::observe::load_log::EngineTotals;
use crate::observe::metrics::Histogram;
use crate::observe::view::View;
use pinion_protocol::status::{Gauge, LauncherGauge};
use pinion_protocol::{Peer, Role};
use pinion_shm::page::Page;
use serde_json::{Value, json};

/// The object.
pub(crate) fn page(view: &View<'_>) -> Value {
    let View { health, metrics, constants, slots, now_ns, .. } = view;
    let problems = health.problems(&slots.down, *now_ns);
    let sum = |gauge| view.sum(Role::Engine, gauge);
    let longest_ms = |gauge| view.longest_ns(gauge) as f64 / 1e6;
    let load = EngineTotals::of(health, *now_ns);
    let roles: Vec<Value> =
        health.pages.iter().map(|(peer, page)| role(*peer, page, &slots.down, *now_ns)).collect();
    json!({
        "frontend": constants.frontend,
        "model": constants.model,
        "version": env!("CARGO_PKG_VERSION"),
        "max_model_len": constants.max_model_len,
        "monotonic_s": *now_ns as f64 / 1e9,
        "started_unix_s": constants.started_unix_s,
        "status": if problems.is_empty() { "ok" } else { "unhealthy" },
        "draining": slots.draining,
        "problems": problems,
        "roles": roles,
        "requests": {
            "running": load.running,
            "waiting": load.waiting,
            "oldest_waiting_ms": longest_ms(Gauge::OldestWaitingNs),
            "finished": sum(Gauge::RequestsFinished),
            "preemptions": sum(Gauge::Preemptions),
            "resumed": metrics.resumptions.get(),
            "quarantined": metrics.quarantined.get(),
        },
        "slots": {"used": slots.used, "total": slots.total},
        "kv_blocks": {"used": load.kv_blocks_used, "cached": sum(Gauge::KvBlocksCached), "total": load.kv_blocks,
                      "tokens_each": constants.block_size},
        "tokens": {"prompt": load.prompt_tokens, "generated": load.generated_tokens},
        "prefix_cache": {"queried": sum(Gauge::PrefixQueryTokens), "found": sum(Gauge::PrefixHitTokens)},
        "steps": {"count": sum(Gauge::Steps), "last_ms": longest_ms(Gauge::LastStepNs)},
        "gaps": buckets(&metrics.token_gap),
        "first_tokens": buckets(&metrics.first_token),
        "interruptions": buckets(&metrics.interruption),
        "connections": metrics.connections.get().saturating_sub(metrics.connections_closed.get()),
        "restarts": view.launcher(LauncherGauge::Restarts),
        "spare_engines": view.launcher(LauncherGauge::SpareEngines),
        "incidents": metrics.incidents.shown(*now_ns),
    })
}

fn role(peer: Peer, page: &Page, down: &[Peer], now_ns: u64) -> Value {
    let phase = match Health::phase(page) {
        // The launcher has no phase: it lives as long as the service.
        _ if peer.role == Role::Launcher => "ready".to_owned(),
        _ if down.contains(&peer) => "restarting".to_owned(),
        Some(phase) => format!("{phase:?}").to_lowercase(),
        None => "unknown".to_owned(),
    };
    json!({"role": peer.to_string(), "phase": phase, "heartbeat_ms": Health::heartbeat_age_ns(page, now_ns) as f64 / 1e6})
}

/// How many observations lie at or below each bound and above the one before; the last count is of those above all.
fn buckets(histogram: &Histogram) -> Value {
    let (mut bounds_ms, mut counts, mut before) = (Vec::new(), Vec::new(), 0);
    for (bound_s, total) in histogram.cumulative() {
        bounds_ms.push(bound_s * 1e3);
        counts.push(total - before);
        before = total;
    }
    let (sum_s, count) = histogram.sum_and_count();
    counts.push(count - before);
    json!({"bounds_ms": bounds_ms, "counts": counts, "sum_ms": sum_s * 1e3})
}
