//! The text page of `/metrics`: this frontend's own counts, and what the other processes' status pages and the
//! launcher's ring depths say at this moment.

use crate::app::App;
use crate::health::Health;
use crate::metrics::Histogram;
use pinion_protocol::status::{EDGE_WORDS, Gauge, LauncherGauge, Phase};
use pinion_protocol::{Peer, Role};
use pinion_shm::page::Page;
use std::fmt::Write;

/// Content type of the page.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

/// Renders the page.
pub(crate) fn render(app: &App, now_ns: u64) -> String {
    let mut out = String::with_capacity(16 << 10);
    requests(app, &mut out);
    engine(app, &mut out);
    rings(app, &mut out);
    roles(app, now_ns, &mut out);
    out
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn single(out: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    head(out, name, kind, help);
    let _ = writeln!(out, "{name} {value}");
}

fn requests(app: &App, out: &mut String) {
    let metrics = &app.metrics;
    let (used, total) = {
        let ledger = app.ledger.borrow();
        (ledger.slots_used() as u64, ledger.slots_total() as u64)
    };
    single(out, "pinion_request_slots_used", GAUGE, "Request slots of this frontend in use.", used);
    single(out, "pinion_request_slots_total", GAUGE, "Request slots of this frontend.", total);
    let name = "pinion_http_responses_total";
    head(out, name, COUNTER, "HTTP responses by route and status class.");
    for (route, class, count) in metrics.responses() {
        let _ = writeln!(out, "{name}{{route=\"{}\",class=\"{class}xx\"}} {count}", route.name());
    }
    let name = "pinion_http_errors_total";
    head(out, name, COUNTER, "HTTP responses that were errors, by blame.");
    for (blame, class) in [("client", 4), ("server", 5)] {
        let count: u64 = metrics.responses().filter(|(_, c, _)| *c == class).map(|(_, _, n)| n).sum();
        let _ = writeln!(out, "{name}{{blame=\"{blame}\"}} {count}");
    }
    let name = "pinion_requests_finished_total";
    head(out, name, COUNTER, "Accepted requests by how they ended.");
    for (reason, count) in metrics.ends() {
        let _ = writeln!(out, "{name}{{reason=\"{}\"}} {count}", reason.name());
    }
    let help = "Prompt tokens of ended requests.";
    single(out, "pinion_prompt_tokens_total", COUNTER, help, metrics.prompt_tokens.get());
    let help = "Generated tokens of ended requests.";
    single(out, "pinion_generation_tokens_total", COUNTER, help, metrics.generated_tokens.get());
    let help = "From the parsed head to the first bytes of the answer.";
    histogram(out, "pinion_time_to_first_token_seconds", help, &metrics.first_token);
    let help = "From the parsed head to the last bytes of the answer.";
    histogram(out, "pinion_e2e_request_latency_seconds", help, &metrics.end_to_end);
    let open = metrics.connections.get().saturating_sub(metrics.connections_closed.get());
    single(out, "pinion_connections_open", GAUGE, "Open client connections.", open);
    single(
        out,
        "pinion_connections_total",
        COUNTER,
        "Client connections accepted.",
        metrics.connections.get(),
    );
    single(out, "pinion_accept_errors_total", COUNTER, "Failures of accept.", metrics.accept_errors.get());
    let help = "Connections dropped because reading or writing took too long.";
    single(out, "pinion_connection_timeouts_total", COUNTER, help, metrics.timeouts.get());
}

fn histogram(out: &mut String, name: &str, help: &str, histogram: &Histogram) {
    head(out, name, "histogram", help);
    for (bound, count) in histogram.cumulative() {
        let _ = writeln!(out, "{name}_bucket{{le=\"{bound:?}\"}} {count}");
    }
    let (sum, count) = histogram.sum_and_count();
    let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {sum}\n{name}_count {count}");
}

/// Gauges that are summed over engines.
const ENGINE_WORDS: [(&str, &str, &str, Gauge); 9] = [
    ("pinion_kv_blocks_used", GAUGE, "KV blocks held by requests.", Gauge::KvBlocksUsed),
    ("pinion_kv_blocks_total", GAUGE, "KV blocks in the pool.", Gauge::KvBlocksTotal),
    ("pinion_requests_running", GAUGE, "Requests in the running set.", Gauge::RequestsRunning),
    ("pinion_requests_waiting", GAUGE, "Requests admitted and not yet running.", Gauge::RequestsWaiting),
    ("pinion_engine_steps_total", COUNTER, "Engine steps.", Gauge::Steps),
    ("pinion_engine_prompt_tokens_total", COUNTER, "Prompt tokens computed.", Gauge::PromptTokens),
    ("pinion_engine_generated_tokens_total", COUNTER, "Tokens sampled.", Gauge::GeneratedTokens),
    (
        "pinion_engine_requests_finished_total",
        COUNTER,
        "Requests that left the engine.",
        Gauge::RequestsFinished,
    ),
    ("pinion_preemptions_total", COUNTER, "Requests preempted for memory.", Gauge::Preemptions),
];

fn engine(app: &App, out: &mut String) {
    let of_role = |role: Role| app.health.pages.iter().filter(move |(peer, _)| peer.role == role);
    for (name, kind, help, gauge) in ENGINE_WORDS {
        let value = of_role(Role::Engine).map(|(_, page)| Health::word(page, gauge as usize)).sum();
        single(out, name, kind, help, value);
    }
    let words = |gauge: Gauge| of_role(Role::Engine).map(move |(_, page)| Health::word(page, gauge as usize));
    let seconds = |ns: u64| ns as f64 / 1e9;
    for (name, help, gauge) in [
        ("pinion_oldest_waiting_seconds", "Age of the oldest waiting request.", Gauge::OldestWaitingNs),
        ("pinion_last_step_seconds", "Time of the last engine step.", Gauge::LastStepNs),
    ] {
        head(out, name, GAUGE, help);
        let _ = writeln!(out, "{name} {}", seconds(words(gauge).max().unwrap_or(0)));
    }
    let encoded = of_role(Role::Tokenizer).map(|(_, page)| Health::word(page, Gauge::Encoded as usize)).sum();
    single(out, "pinion_tokenizer_requests_total", COUNTER, "Requests encoded.", encoded);
    let states =
        of_role(Role::Detokenizer).map(|(_, page)| Health::word(page, Gauge::DecodeStates as usize)).sum();
    single(out, "pinion_decode_states", GAUGE, "Decode states held by detokenizers.", states);
    let deltas = of_role(Role::Detokenizer).map(|(_, page)| Health::word(page, Gauge::Deltas as usize)).sum();
    single(out, "pinion_text_deltas_total", COUNTER, "Text deltas sent by detokenizers.", deltas);
}

fn launcher_page(app: &App) -> Option<&Page> {
    app.health.pages.iter().find(|(peer, _)| peer.role == Role::Launcher).map(|(_, page)| page)
}

fn rings(app: &App, out: &mut String) {
    let Some(page) = launcher_page(app) else { return };
    for (name, help, offset) in [
        ("pinion_ring_used_bytes", "Bytes waiting in a ring.", 0),
        ("pinion_ring_capacity_bytes", "Capacity of a ring.", 1),
    ] {
        head(out, name, GAUGE, help);
        for (index, edge) in app.topology.edges.iter().enumerate() {
            let value = Health::word(page, EDGE_WORDS + 2 * index + offset);
            let _ = writeln!(out, "{name}{{edge=\"{}->{}\"}} {value}", edge.from, edge.to);
        }
    }
    let restarts = Health::word(page, LauncherGauge::Restarts as usize);
    single(out, "pinion_restarts_total", COUNTER, "Role processes restarted.", restarts);
}

/// The pages of all roles but the launcher.
fn role_pages(app: &App) -> impl Iterator<Item = (Peer, &Page)> {
    let spawned = app.health.pages.iter().filter(|(peer, _)| peer.role != Role::Launcher);
    spawned.map(|(peer, page)| (*peer, page))
}

fn roles(app: &App, now_ns: u64, out: &mut String) {
    let name = "pinion_role_phase";
    head(out, name, GAUGE, "1 for the phase that a role is in.");
    for (peer, page) in role_pages(app) {
        for phase in [Phase::Starting, Phase::Ready, Phase::Draining, Phase::Stopped, Phase::Restarting] {
            let label = format!("{phase:?}").to_lowercase();
            let value = u8::from(Health::phase(page) == Some(phase));
            let _ = writeln!(out, "{name}{{role=\"{peer}\",phase=\"{label}\"}} {value}");
        }
    }
    let name = "pinion_role_heartbeat_age_seconds";
    head(out, name, GAUGE, "Time since a role's last turn of its loop.");
    for (peer, page) in role_pages(app) {
        let age = Health::heartbeat_age_ns(page, now_ns) as f64 / 1e9;
        let _ = writeln!(out, "{name}{{role=\"{peer}\"}} {age}");
    }
    for (name, help, gauge) in [
        ("pinion_stale_records_total", "Records dropped because they were late.", Gauge::StaleRecords),
        ("pinion_malformed_records_total", "Records that failed their check.", Gauge::MalformedRecords),
        ("pinion_role_sleeps_total", "Times a role slept on its doorbell.", Gauge::Sleeps),
    ] {
        head(out, name, COUNTER, help);
        for (peer, page) in role_pages(app) {
            let _ = writeln!(out, "{name}{{role=\"{peer}\"}} {}", Health::word(page, gauge as usize));
        }
    }
}
