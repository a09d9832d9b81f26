//! What load balancers and endpoint pickers read: readiness before a drain, the load report, the small pages.

use crate::harness::{Harness, Options, Reply, run};
use pinion_config::{Pooling, PoolingKind, Shorter};
use pinion_protocol::frontend_inbox::{DELTA_LAST, FinishReason, encode_pooled, kind};
use pinion_protocol::status::Gauge;
use serde_json::json;
use tokio::io::AsyncWriteExt;

const WHOLE: &str = r#"{"prompt":"hi","max_tokens":4}"#;
const STREAM: &str = r#"{"prompt":"hi","max_tokens":4,"stream":true}"#;
const HOST_FAILS: &str = "x-envoy-immediate-health-check-fail: true";

/// Answers the next request with one token.
async fn answer(h: &Harness) {
    let id = h.submit().await.id;
    h.delta(id, 0, &[1], "a", DELTA_LAST);
    h.finish(id, FinishReason::Stop, 1);
}

/// A completion that was asked for with one more head field.
async fn completion(h: &Harness, body: &str, field: &str) -> Reply {
    let mut stream = h.connect().await;
    let length = body.len();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n"
    );
    stream.write_all(format!("{head}{field}\r\n{body}").as_bytes()).await.expect("an open connection");
    answer(h).await;
    Reply::read(stream).await
}

/// The value of a field of the head; heads are in lower case here.
fn field<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    reply.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[test]
fn before_a_drain_ready_says_no_and_requests_are_served() {
    run(Options::default(), |h| async move {
        let before = completion(&h, WHOLE, "").await;
        assert_eq!((before.status, before.head.contains(HOST_FAILS)), (200, false));
        assert_eq!(h.get("/ready").await.status, 200);
        h.app.leaving.set(true);
        for path in ["/ready", "/v2/health/ready"] {
            let ready = h.get(path).await;
            assert_eq!((ready.status, &ready.json()["status"]), (503, &json!("draining")), "{path}");
            assert!(ready.head.contains(HOST_FAILS), "{path}: {}", ready.head);
        }
        assert_eq!((h.get("/health").await.status, h.get("/live").await.status), (200, 200));
        for body in [WHOLE, STREAM] {
            let served = completion(&h, body, "").await;
            assert_eq!(served.status, 200, "{body}");
            assert!(
                served.head.contains(HOST_FAILS) && served.head.contains("connection: close"),
                "{}",
                served.head
            );
        }
        h.app.ledger.borrow_mut().drain();
        let refused = h.post("/v1/completions", WHOLE).await;
        assert_eq!((refused.status, refused.head.contains(HOST_FAILS)), (503, true), "{}", refused.head);
    });
}

#[test]
fn the_load_report_is_there_when_it_is_asked_for_and_only_then() {
    run(Options::default(), |h| async move {
        let silent = completion(&h, WHOLE, "").await;
        assert_eq!(field(&silent, "endpoint-load-metrics"), None);
        h.engine_page.set(Gauge::RequestsRunning as usize, 2);
        h.engine_page.set(Gauge::RequestsWaiting as usize, 1);
        h.engine_page.set(Gauge::RequestsDeferred as usize, 1);
        h.engine_page.set(Gauge::KvBlocksTotal as usize, 64);
        h.engine_page.set(Gauge::KvBlocksUsed as usize, 16);
        // Four requests on eight places. Two answers so far, with this one.
        for (body, rate) in [(WHOLE, 2), (STREAM, 3)] {
            let text = completion(&h, body, "endpoint-load-metrics-format: TEXT\r\n").await;
            let expected = format!(
                "text application_utilization=0.5,rps_fractional={rate},eps=0,\
                 named_metrics.kv_cache_usage_perc=0.25,named_metrics.num_requests_waiting=2"
            );
            assert_eq!(field(&text, "endpoint-load-metrics"), Some(expected.as_str()), "{body}");
        }
        let report = completion(&h, WHOLE, "Endpoint-Load-Metrics-Format: json\r\n").await;
        let report = field(&report, "endpoint-load-metrics").expect("it was asked for").to_owned();
        let report: serde_json::Value =
            serde_json::from_str(report.strip_prefix("json ").expect("the word in front")).expect("JSON");
        let expected = json!({"application_utilization": 0.5, "rps_fractional": 4, "eps": 0,
            "named_metrics": {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 2}});
        assert_eq!(report, expected);
        // An idle replica: nothing is 0 that Envoy would ignore the report for.
        for gauge in
            [Gauge::RequestsRunning, Gauge::RequestsWaiting, Gauge::RequestsDeferred, Gauge::KvBlocksUsed]
        {
            h.engine_page.set(gauge as usize, 0);
        }
        let idle = completion(&h, WHOLE, "endpoint-load-metrics-format: TEXT\r\n").await;
        let idle = field(&idle, "endpoint-load-metrics").expect("it was asked for");
        assert!(idle.starts_with("text application_utilization=0.125,rps_fractional=5,"), "{idle}");
        let other = h.request("GET /live HTTP/1.1\r\nhost: x\r\nconnection: close\r\nendpoint-load-metrics-format: TEXT\r\n\r\n");
        assert_eq!(field(&other.await, "endpoint-load-metrics"), None);
    });
}

#[test]
fn loads_tell_of_each_engine_in_the_form_of_sglang() {
    run(Options::default(), |h| async move {
        for (gauge, value) in [
            (Gauge::RequestsRunning, 3),
            (Gauge::RequestsWaiting, 2),
            (Gauge::RequestsDeferred, 1),
            (Gauge::KvBlocksTotal, 64),
            (Gauge::KvBlocksUsed, 48),
            (Gauge::PrefixQueryTokens, 200),
            (Gauge::PrefixHitTokens, 50),
            (Gauge::GeneratedTokens, 7),
        ] {
            h.engine_page.set(gauge as usize, value);
        }
        let reply = h.get("/v1/loads?include=core,disagg,queues,memory").await;
        let loads = reply.json();
        let expected = json!([{"dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 3, "num_total_reqs": 6,
            "num_used_tokens": 768, "max_total_num_tokens": 1024, "token_usage": 0.75, "gen_throughput": 7.0,
            "cache_hit_rate": 0.25, "utilization": 0.75, "max_running_requests": 8}]);
        assert_eq!((reply.status, &loads["loads"], &loads["dp_rank_count"]), (200, &expected, &json!(1)));
        let timestamp = loads["timestamp"].as_str().expect("a time");
        assert!(timestamp.starts_with("20") && timestamp.ends_with("+00:00"), "{timestamp}");
    });
}

#[test]
fn the_small_page_is_a_part_of_the_large_one() {
    for compatible in [true, false] {
        let mut options = Options::default();
        options.settings.vllm_metrics = compatible;
        run(options, |h| async move {
            h.engine_page.set(Gauge::RequestsWaiting as usize, 5);
            let (large, small) = (h.get("/metrics").await.body, h.get("/metrics/load").await.body);
            assert!(small.len() < 3000 && small.contains("\npinion_requests_waiting 5\n"), "{small}");
            assert_eq!(
                small.contains("vllm:num_requests_waiting{model_name=\"tiny\",engine=\"0\"} 5\n"),
                compatible
            );
            for line in small.lines() {
                assert!(large.lines().any(|other| other == line), "{line}");
            }
        });
    }
}

#[test]
fn other_names_of_the_probes_answer_as_ours_do() {
    run(Options::default(), |h| async move {
        for (name, ours) in
            [("/ping", "/health"), ("/v2/health/live", "/live"), ("/v2/health/ready", "/ready")]
        {
            let (theirs, ours) = (h.get(name).await, h.get(ours).await);
            assert_eq!((theirs.status, theirs.body), (200, ours.body), "{name}");
        }
    });
}

/// The rate was 0, for which Envoy ignores a report, and answers with vectors had no report.
#[test]
fn answers_with_vectors_count_in_the_load_report() {
    let pooling = Pooling { kind: PoolingKind::Last, width: 1, normalize: false, shorter: Shorter::None };
    run(Options { pooling: Some(pooling), ..Options::default() }, |h| async move {
        let body = r#"{"input":"a"}"#;
        let head = format!("POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n", body.len());
        let text = format!("{head}connection: close\r\nendpoint-load-metrics-format: TEXT\r\n\r\n{body}");
        for rate in 1..3 {
            let (reply, ()) = tokio::join!(h.request(&text), async {
                let (id, mut record) = (h.submit().await.id, Vec::new());
                encode_pooled(&mut record, id, &[1.0]);
                h.take(kind::POOLED, &record);
                h.delta(id, 0, &[], "", DELTA_LAST);
                h.finish(id, FinishReason::Length, 0);
            });
            let report = field(&reply, "endpoint-load-metrics").expect("it was asked for");
            let expected = format!("text application_utilization=0.125,rps_fractional={rate},");
            assert!(report.starts_with(&expected), "{report}");
        }
    });
}
