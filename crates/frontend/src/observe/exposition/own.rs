//! The `pinion_*` families.

use super::Kind::{Counter, Gauge, Histogram};
use super::{Family, Series, View};
use crate::observe::health::{Health, gauge, word};
use pinion_protocol::Role;
use pinion_protocol::names::Part;
use pinion_protocol::status::{EDGE_WORDS, Gauge as Word, LauncherGauge, Phase};

const PHASES: [Phase; 5] =
    [Phase::Starting, Phase::Ready, Phase::Draining, Phase::Stopped, Phase::Restarting];

const fn plain(
    name: &'static str,
    kind: super::Kind,
    help: &'static str,
    write: fn(&View<'_>, &mut Series<'_>),
) -> Family {
    Family { name, kind, help, labels: &[], write }
}

/// The table, in the order of the page.
#[rustfmt::skip]
pub(super) const FAMILIES: &[Family] = &[
    plain("pinion_request_slots_used", Gauge, "Request slots of this frontend in use.",
        |view, series| series.put(&[], view.slots.used)),
    plain("pinion_request_slots_limit", Gauge, "Request slots of this frontend.",
        |view, series| series.put(&[], view.slots.total)),
    Family { name: "pinion_http_responses_total", kind: Counter, help: "HTTP responses by route and status class.",
        labels: &["route", "class"],
        write: |view, series| for (route, class, count) in view.metrics.responses() {
            series.put(&[&route.name(), &format_args!("{class}xx")], count);
        } },
    Family { name: "pinion_http_errors_total", kind: Counter, help: "HTTP responses that were errors, by blame.",
        labels: &["blame"], write: errors_by_blame },
    Family { name: "pinion_requests_finished_total", kind: Counter, help: "Accepted requests by how they ended.",
        labels: &["reason"],
        write: |view, series| for (reason, count) in view.metrics.ends() {
            series.put(&[&reason.name()], count);
        } },
    plain("pinion_prompt_tokens_total", Counter, "Prompt tokens of ended requests.",
        |view, series| series.put(&[], view.metrics.prompt_tokens.get())),
    plain("pinion_generation_tokens_total", Counter, "Generated tokens of ended requests.",
        |view, series| series.put(&[], view.metrics.generated_tokens.get())),
    plain("pinion_time_to_first_token_seconds", Histogram, "From the parsed head to the first token at the frontend.",
        |view, series| series.histogram(&[], &view.metrics.first_token)),
    plain("pinion_inter_token_latency_seconds", Histogram, "Between two tokens of a request, at the frontend.",
        |view, series| series.histogram(&[], &view.metrics.token_gap)),
    plain("pinion_e2e_request_latency_seconds", Histogram, "From the parsed head to the last bytes of the answer.",
        |view, series| series.histogram(&[], &view.metrics.end_to_end)),
    Family { name: "pinion_stage_seconds", kind: Histogram,
        help: "Where the time of completed generations went; the stages of a request add up to its latency.",
        labels: &["stage"],
        write: |view, series| for (part, histogram) in Part::ALL.iter().zip(&view.metrics.parts) {
            series.histogram(&[&part.name()], histogram);
        } },
    plain("pinion_connections_open", Gauge, "Open client connections.",
        |view, series| {
            let metrics = &view.metrics;
            series.put(&[], metrics.connections.get().saturating_sub(metrics.connections_closed.get()));
        }),
    plain("pinion_connections_total", Counter, "Client connections accepted.",
        |view, series| series.put(&[], view.metrics.connections.get())),
    plain("pinion_connections_displaced_total", Counter, "Idle client connections closed to make room for new ones.",
        |view, series| series.put(&[], view.metrics.connections_displaced.get())),
    plain("pinion_connections_refused_total", Counter, "New client connections answered 503 because there was no room.",
        |view, series| series.put(&[], view.metrics.connections_refused.get())),
    plain("pinion_accept_errors_total", Counter, "Failures of accept.",
        |view, series| series.put(&[], view.metrics.accept_errors.get())),
    plain("pinion_connection_timeouts_total", Counter, "Connections dropped because reading or writing took too long.",
        |view, series| series.put(&[], view.metrics.timeouts.get())),

    plain("pinion_kv_blocks_used", Gauge, "KV blocks held by requests.",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::KvBlocksUsed))),
    plain("pinion_kv_blocks_total", Gauge, "KV blocks in the pool.",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::KvBlocksTotal))),
    plain("pinion_kv_blocks_cached", Gauge, "KV blocks kept for requests that begin alike.",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::KvBlocksCached))),
    plain("pinion_kv_blocks_free", Gauge, "KV blocks that hold nothing; with the used and the cached ones all there are.",
        |view, series| {
            let taken = view.sum(Role::Engine, Word::KvBlocksUsed) + view.sum(Role::Engine, Word::KvBlocksCached);
            series.put(&[], view.sum(Role::Engine, Word::KvBlocksTotal).saturating_sub(taken));
        }),
    plain("pinion_kv_window_blocks_used", Gauge, "Blocks of layers that keep their window only, within that of a request.",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::WindowBlocksUsed))),
    plain("pinion_kv_window_blocks_limit", Gauge, "Blocks of layers that keep their window only; 0 if none does.",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::WindowBlocksTotal))),
    plain("pinion_kv_window_blocks_evicted_total", Counter, "Window blocks of cached prefixes that were taken for others.",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::WindowBlocksEvicted))),
    plain("pinion_prefix_cache_queries_total", Counter, "Tokens looked for in the prefix cache.",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::PrefixQueryTokens))),
    plain("pinion_prefix_cache_hits_total", Counter, "Tokens found in the prefix cache.",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::PrefixHitTokens))),
    plain("pinion_requests_running", Gauge, "Requests in the running set.",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::RequestsRunning))),
    plain("pinion_requests_waiting", Gauge, "Requests admitted and not yet running.",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::RequestsWaiting))),
    plain("pinion_engine_steps_total", Counter, "Engine steps.",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::Steps))),
    plain("pinion_engine_prompt_tokens_total", Counter, "Prompt tokens computed.",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::PromptTokens))),
    plain("pinion_engine_generated_tokens_total", Counter, "Tokens sampled.",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::GeneratedTokens))),
    plain("pinion_engine_requests_finished_total", Counter, "Requests that left the engine.",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::RequestsFinished))),
    plain("pinion_preemptions_total", Counter, "Requests preempted for memory.",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::Preemptions))),
    plain("pinion_oldest_waiting_seconds", Gauge, "Age of the oldest waiting request.",
        |view, series| longest(view, series, Word::OldestWaitingNs)),
    plain("pinion_last_step_seconds", Gauge, "Time of the last engine step.",
        |view, series| longest(view, series, Word::LastStepNs)),
    plain("pinion_step_budget_seconds", Gauge, "Time budget of the last engine step (--step-time-ms); 0 if it had none.",
        |view, series| longest(view, series, Word::StepBudgetNs)),
    plain("pinion_predicted_steps_total", Counter, "Engine steps whose time was predicted (--step-time-ms).",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::PredictedSteps))),
    plain("pinion_predicted_step_seconds_total", Counter, "Predicted time of those steps.",
        |view, series| seconds(view, series, Word::PredictedStepsNs)),
    plain("pinion_predicted_step_actual_seconds_total", Counter, "What those steps took.",
        |view, series| seconds(view, series, Word::PredictedStepsTookNs)),
    plain("pinion_predicted_step_error_seconds_total", Counter,
        "Differences between the predicted and the actual time of those steps, without sign.",
        |view, series| seconds(view, series, Word::PredictionErrorNs)),
    plain("pinion_deferred_prompt_tokens_total", Counter,
        "Prompt tokens that a step had room for and that its time budget left to a later step.",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::PromptTokensDeferred))),
    plain("pinion_draft_tokens_total", Counter, "Drafts of next tokens that steps have verified (--speculative).",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::Drafts))),
    plain("pinion_accepted_draft_tokens_total", Counter, "Drafts that were sampled, and so saved a step.",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::AcceptedDrafts))),
    plain("pinion_tokenizer_requests_total", Counter, "Requests encoded.",
        |view, series| series.put(&[], view.sum(Role::Tokenizer, Word::Encoded))),
    plain("pinion_decode_states", Gauge, "Decode states held by detokenizers.",
        |view, series| series.put(&[], view.sum(Role::Detokenizer, Word::DecodeStates))),
    plain("pinion_text_deltas_total", Counter, "Text deltas sent by detokenizers.",
        |view, series| series.put(&[], view.sum(Role::Detokenizer, Word::Deltas))),
    plain("pinion_kv_event_batches_total", Counter, "Batches of KV events published (--kv-events).",
        |view, series| series.put(&[], view.sum(Role::Events, Word::KvEventBatches))),
    plain("pinion_kv_event_subscribers", Gauge, "Subscribers of KV events.",
        |view, series| series.put(&[], view.sum(Role::Events, Word::KvEventSubscribers))),
    plain("pinion_kv_event_snapshots_total", Counter, "Times that one subscriber was told the whole prefix cache.",
        |view, series| series.put(&[], view.sum(Role::Events, Word::KvEventSnapshots))),
    plain("pinion_kv_event_overflows_total", Counter, "Times that a subscriber did not read and its queue was dropped.",
        |view, series| series.put(&[], view.sum(Role::Events, Word::KvEventOverflows))),
    plain("pinion_kv_event_connections_closed_total", Counter,
        "Connections of KV events that were refused, or closed because the peer was wrong, silent or too slow.",
        |view, series| series.put(&[], view.sum(Role::Events, Word::KvEventClosed))),

    Family { name: "pinion_ring_used_bytes", kind: Gauge, help: "Bytes waiting in a ring.", labels: &["edge"],
        write: |view, series| rings(view, series, 0) },
    Family { name: "pinion_ring_capacity_bytes", kind: Gauge, help: "Capacity of a ring.", labels: &["edge"],
        write: |view, series| rings(view, series, 1) },
    plain("pinion_restarts_total", Counter, "Role processes restarted.",
        |view, series| series.put(&[], view.launcher(LauncherGauge::Restarts))),
    Family { name: "pinion_log_lines_dropped_total", kind: Counter,
        help: "Log lines dropped because standard error was not read in time or could not be written.", labels: &["process"],
        write: |view, series| for (peer, dropped, _) in view.health.logs() {
            series.put(&[&peer], dropped);
        } },
    plain("pinion_recordings_ended", Gauge,
        "Engines whose recording (--record) has ended because its file could not be written.",
        |view, series| series.put(&[], view.sum(Role::Engine, Word::RecordingEnded))),
    plain("pinion_corrupt_edges_total", Counter,
        "Rings between two roles that were corrupt; one end of each was restarted.",
        |view, series| series.put(&[], view.launcher(LauncherGauge::CorruptEdges))),
    plain("pinion_mended_headers_total", Counter,
        "Headers of shared regions that were overwritten and that the launcher wrote again.",
        |view, series| series.put(&[], view.launcher(LauncherGauge::MendedHeaders))),
    plain("pinion_spare_engines", Gauge, "Engine processes that wait to take the place of one that dies.",
        |view, series| series.put(&[], view.launcher(LauncherGauge::SpareEngines))),
    plain("pinion_ignored_fields_total", Counter, "Unknown fields of generation requests.",
        |view, series| series.put(&[], view.metrics.ignored_fields.get())),
    plain("pinion_trace_spans_sent_total", Counter, "Spans that a collector has taken (--otlp-traces-endpoint).",
        |view, series| series.put(&[], view.metrics.spans.sent())),
    plain("pinion_trace_spans_dropped_total", Counter,
        "Spans that no collector has taken: it refused them, did not answer, or was too slow.",
        |view, series| series.put(&[], view.metrics.spans.dropped())),
    plain("pinion_resumed_requests_total", Counter, "Times that a request went on after a role had died.",
        |view, series| series.put(&[], view.metrics.resumptions.get())),
    plain("pinion_quarantined_requests_total", Counter,
        "Requests that were given up because role after role died while working on them.",
        |view, series| series.put(&[], view.metrics.quarantined.get())),
    plain("pinion_interruption_seconds", Histogram, "From the death of a role to the next token of a request that it held.",
        |view, series| series.histogram(&[], &view.metrics.interruption)),
    Family { name: "pinion_role_phase", kind: Gauge, help: "1 for the phase that a role is in.",
        labels: &["role", "phase"], write: phases },
    Family { name: "pinion_device_memory_bytes", kind: Gauge,
        help: "Memory of an engine on a GPU: the device's, but for staging, which is the host's.", labels: &["role", "kind"],
        write: device_memory },
    Family { name: "pinion_role_heartbeat_age_seconds", kind: Gauge, help: "Time since a role's last turn of its loop.",
        labels: &["role"],
        write: |view, series| for (peer, page) in view.role_pages() {
            series.put(&[&peer], Health::heartbeat_age_ns(page, view.now_ns) as f64 / 1e9);
        } },
    Family { name: "pinion_stale_records_total", kind: Counter, help: "Records dropped because they were late.",
        labels: &["role"], write: |view, series| by_role(view, series, Word::StaleRecords) },
    Family { name: "pinion_malformed_records_total", kind: Counter, help: "Records that failed their check.",
        labels: &["role"], write: |view, series| by_role(view, series, Word::MalformedRecords) },
    Family { name: "pinion_role_sleeps_total", kind: Counter, help: "Times a role slept on its doorbell.",
        labels: &["role"], write: |view, series| by_role(view, series, Word::Sleeps) },
    Family { name: "pinion_role_pauses_total", kind: Counter, help: "Turns of a role's loop over --pause-warn-ms.",
        labels: &["role"], write: |view, series| by_role(view, series, Word::Pauses) },
    Family { name: "pinion_role_pause_seconds_total", kind: Counter, help: "Time of those turns.",
        labels: &["role"],
        write: |view, series| for (peer, page) in view.role_pages() {
            series.put(&[&peer], gauge(page, Word::PauseNs) as f64 / 1e9);
        } },
    Family { name: "pinion_role_page_faults_total", kind: Counter,
        help: "Page faults of a role; the major ones waited for a disk.", labels: &["role", "kind"],
        write: |view, series| two_kinds(view, series, [("minor", Word::MinorFaults), ("major", Word::MajorFaults)]) },
    Family { name: "pinion_role_context_switches_total", kind: Counter,
        help: "Context switches of a role; at the involuntary ones the kernel took its CPU.", labels: &["role", "kind"],
        write: |view, series| two_kinds(view, series,
            [("voluntary", Word::VoluntarySwitches), ("involuntary", Word::InvoluntarySwitches)]) },
];

fn errors_by_blame(view: &View<'_>, series: &mut Series<'_>) {
    for (blame, class) in [("client", 4), ("server", 5)] {
        let of_class = view.metrics.responses().filter(|(_, c, _)| *c == class);
        series.put(&[&blame], of_class.map(|(_, _, count)| count).sum::<u64>());
    }
}

fn longest(view: &View<'_>, series: &mut Series<'_>, word: Word) {
    series.put(&[], view.longest_ns(word) as f64 / 1e9);
}

fn seconds(view: &View<'_>, series: &mut Series<'_>, word: Word) {
    series.put(&[], view.sum(Role::Engine, word) as f64 / 1e9);
}

fn rings(view: &View<'_>, series: &mut Series<'_>, offset: usize) {
    let Some(page) = view.launcher_page() else { return };
    for (index, edge) in view.topology.edges.iter().enumerate() {
        let value = word(page, EDGE_WORDS + 2 * index + offset);
        series.put(&[&format_args!("{}->{}", edge.from, edge.to)], value);
    }
}

fn phases(view: &View<'_>, series: &mut Series<'_>) {
    for (peer, page) in view.role_pages() {
        for phase in PHASES {
            let label = format!("{phase:?}").to_lowercase();
            series.put(&[&peer, &label], u8::from(Health::phase(page) == Some(phase)));
        }
    }
}

fn device_memory(view: &View<'_>, series: &mut Series<'_>) {
    let kinds = [
        ("weights", Word::DeviceWeightBytes),
        ("cache", Word::DeviceCacheBytes),
        ("activations", Word::DeviceActivationBytes),
        ("staging", Word::DeviceStagingBytes),
        ("free", Word::DeviceFreeBytes),
    ];
    for (peer, page) in view.role_pages() {
        // Weights take something wherever there is a device.
        if gauge(page, Word::DeviceWeightBytes) > 0 {
            for (kind, word) in kinds {
                series.put(&[&peer, &kind], gauge(page, word));
            }
        }
    }
}

fn two_kinds(view: &View<'_>, series: &mut Series<'_>, kinds: [(&str, Word); 2]) {
    for (peer, page) in view.role_pages() {
        for (kind, word) in kinds {
            series.put(&[&peer, &kind], gauge(page, word));
        }
    }
}

fn by_role(view: &View<'_>, series: &mut Series<'_>, word: Word) {
    for (peer, page) in view.role_pages() {
        series.put(&[&peer], gauge(page, word));
    }
}
