//! Access: keys on every route, cross-origin requests, and what a silent stream says to stay open.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::harness::{Harness, Options, Reply, run};
use pinion_config::ApiKeys;
use pinion_frontend::answers::errors::Dialect;
use pinion_frontend::route::Route;
use pinion_protocol::frontend_inbox::{DELTA_LAST, FinishReason};
use pinion_protocol::{Fault, FaultCode};
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const KEY: &str = "sk-correct-horse";
const KEY_FIELD: &str = "x-api-key: sk-correct-horse";

fn locked() -> Options {
    let mut options = Options::default();
    options.settings.api_keys = ApiKeys::new(vec!["sk-other".into(), KEY.into()]);
    options
}

fn path(route: Route) -> String {
    route.name().replace("{id}", "tiny").replace("{file}", "main.js").replace("unknown", "/nowhere")
}

async fn ask(h: &Harness, method: &str, path: &str, fields: &str) -> Reply {
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n{fields}\r\n"
    );
    h.request(&text).await
}

#[test]
fn every_route_but_the_public_ones_needs_a_key_whatever_the_method() {
    run(locked(), |h| async move {
        let public = [
            Route::Health,
            Route::Ready,
            Route::Live,
            Route::Metrics,
            Route::MetricsLoad,
            Route::Loads,
            Route::Ping,
            Route::V2Live,
            Route::V2Ready,
            Route::Version,
            Route::Stats,
            Route::Page,
            Route::PageFile,
            Route::Docs,
        ];
        for route in Route::ALL {
            for method in ["GET", "POST", "HEAD", "OPTIONS", "DELETE"] {
                let right = match method {
                    "HEAD" => *route.method().as_str() == *"GET",
                    "DELETE" => route == Route::StoredResponse,
                    method => *route.method().as_str() == *method,
                };
                let open = public.contains(&route);
                for (fields, good) in [
                    (String::new(), false),
                    ("authorization: Bearer sk-wrong\r\n".into(), false),
                    (format!("authorization: Basic {KEY}\r\n"), false),
                    (format!("authorization: Bearer {KEY}x\r\n"), false),
                    (format!("authorization: {KEY}\r\n"), false),
                    ("x-api-key: sk-wrong\r\n".into(), false),
                    (format!("x-api-key: {KEY}\r\nx-api-key: {KEY}\r\n"), false),
                    (format!("x-api-key: {KEY}\r\nauthorization: Bearer sk-other\r\n"), false),
                    (format!("x-api-key: {KEY}\r\nauthorization: Basic {KEY}\r\n"), false),
                    (format!("x-api-key: {KEY}\r\n"), true),
                    (format!("x-api-key: {KEY}\r\nauthorization: Bearer {KEY}\r\n"), true),
                    (format!("authorization: Bearer {KEY}\r\nauthorization: Bearer {KEY}\r\n"), false),
                    (format!("authorization: Bearer {KEY}\r\n"), true),
                    ("authorization: bearer sk-other\r\n".into(), true),
                ] {
                    let reply = ask(&h, method, &path(route), &fields).await;
                    let what = format!("{method} {} with {fields:?}: {reply:?}", path(route));
                    let passes = open || good;
                    assert_eq!(reply.status == 401, !passes, "{what}");
                    if passes && route != Route::Unknown {
                        assert_eq!(reply.status == 405, !right, "{what}");
                    }
                    if !passes && method != "HEAD" {
                        let error = &reply.json()["error"];
                        let (code, kind) = match Dialect::of(&path(route)) {
                            Dialect::OpenAi | Dialect::Responses => {
                                ("invalid_api_key".into(), "invalid_request_error")
                            }
                            Dialect::Anthropic => (Value::Null, "authentication_error"),
                        };
                        assert_eq!((&error["code"], &error["type"]), (&code, &kind.into()), "{what}");
                        assert!(reply.head.contains("www-authenticate: bearer"), "{what}");
                        assert!(!reply.body.contains("sk-"), "{what}");
                    }
                }
            }
        }
    });
}

/// A close with unread bytes is a reset, which can overtake the answer.
#[test]
fn a_refused_client_may_send_its_body_late_and_ask_again() {
    run(locked(), |h| async move {
        for (line, field, status) in [
            ("POST /v1/completions", "x-api-key: sk-wrong", 401),
            ("POST /nowhere", KEY_FIELD, 404),
            ("PUT /v1/completions", KEY_FIELD, 405),
        ] {
            let mut client = h.connect().await;
            let body = "x".repeat(20 << 10);
            let length = body.len();
            let head = format!("{line} HTTP/1.1\r\nhost: x\r\n{field}\r\ncontent-length: {length}\r\n\r\n");
            client.write_all(head.as_bytes()).await.unwrap();
            let mut seen = vec![0; 4096];
            let count = client.read(&mut seen).await.unwrap();
            assert!(seen.starts_with(format!("HTTP/1.1 {status}").as_bytes()), "{line}: {count} bytes");
            tokio::time::sleep(Duration::from_millis(50)).await;
            client.write_all(body.as_bytes()).await.unwrap();
            let again = b"GET /live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            client.write_all(again).await.unwrap();
            assert_eq!(Reply::read(client).await.status, 200, "{line}: the connection was lost");
        }
    });
}

#[test]
fn paths_that_look_like_a_public_route_are_not_one() {
    run(locked(), |h| async move {
        for path in [
            "/health/",
            "//health",
            "/HEALTH",
            "/health%2f",
            "/v1/models/health",
            "/metrics/../v1/models",
            "/version;x",
            "/generate?/health",
        ] {
            assert_eq!(ask(&h, "GET", path, "").await.status, 401, "{path}");
        }
        assert_eq!(ask(&h, "GET", "/live?x=/v1/models", "").await.status, 200);
        assert_eq!(ask(&h, "GET", "http://x/live", "").await.status, 200);
        assert_eq!(ask(&h, "GET", "http://x/v1/models", "").await.status, 401);
    });
}

#[test]
fn without_keys_none_is_needed_and_embeddings_are_refused_clearly() {
    run(Options::default(), |h| async move {
        assert_eq!(ask(&h, "GET", "/v1/models", "").await.status, 200);
        assert_eq!(ask(&h, "GET", "/v1/models", "authorization: Bearer any\r\n").await.status, 200);
        let reply = h.post("/v1/embeddings", r#"{"input":"x"}"#).await;
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &"no_embeddings".into()));
        assert!(reply.head.contains("x-should-retry: false"), "{}", reply.head);
        let document = h.get("/openapi.json").await.json();
        assert_eq!(document["openapi"], "3.1.0");
    });
}

const PREFLIGHT: &str = "origin: https://a.example\r\naccess-control-request-method: POST\r\n\
    access-control-request-headers: authorization, x-stainless-os\r\n";

#[test]
fn no_page_may_use_the_service_unless_its_origin_is_allowed() {
    run(locked(), |h| async move {
        let reply = ask(&h, "OPTIONS", "/v1/chat/completions", PREFLIGHT).await;
        assert_eq!(reply.status, 401);
        assert!(!reply.head.contains("access-control"), "{}", reply.head);
    });
    let mut options = locked();
    options.settings.cors_origins = vec!["https://a.example".into(), "http://localhost:3000".into()];
    run(options, |h| async move {
        let reply = ask(&h, "OPTIONS", "/v1/chat/completions", PREFLIGHT).await;
        assert_eq!((reply.status, reply.body.as_str()), (204, ""));
        for field in [
            "access-control-allow-origin: https://a.example\r",
            "access-control-allow-methods: post\r",
            "access-control-allow-headers: authorization, x-stainless-os\r",
            "vary: origin\r",
        ] {
            assert!(reply.head.contains(field), "{field}: {}", reply.head);
        }
        let foreign = PREFLIGHT.replace("a.example", "a.example.evil.org");
        let reply = ask(&h, "OPTIONS", "/v1/chat/completions", &foreign).await;
        assert_eq!(reply.status, 401);
        assert!(!reply.head.contains("access-control") && reply.head.contains("vary: origin"));
        // An error must be readable too, and a preflight opens nothing.
        let reply = ask(&h, "GET", "/v1/models", "origin: http://localhost:3000\r\n").await;
        assert_eq!(reply.status, 401);
        assert!(
            reply.head.contains("access-control-allow-origin: http://localhost:3000\r"),
            "{}",
            reply.head
        );
        assert_eq!(ask(&h, "OPTIONS", "/nowhere", PREFLIGHT).await.status, 401);
    });
    let mut options = Options::default();
    options.settings.cors_origins = vec!["*".into()];
    run(options, |h| async move {
        let reply = ask(&h, "GET", "/v1/models", "origin: null\r\n").await;
        assert!(reply.head.contains("access-control-allow-origin: *\r"), "{}", reply.head);
        let hostile = PREFLIGHT.replace("x-stainless-os", "x\"y");
        let reply = ask(&h, "OPTIONS", "/generate", &hostile).await;
        assert!(reply.head.contains("access-control-allow-headers: authorization, content-type"));
    });
}

/// Every field of ours that an answer may have.
#[test]
fn a_page_of_an_allowed_origin_may_read_the_fields_of_an_answer() {
    let mut options = Options::default();
    options.settings.cors_origins = vec!["https://a.example".into()];
    run(options, |h| async move {
        let reply = ask(&h, "GET", "/v1/models", "origin: https://a.example\r\n").await;
        let list = reply.head.lines().find_map(|line| line.strip_prefix("access-control-expose-headers: "));
        let mut names: Vec<&str> = list.unwrap().split(", ").collect();
        names.sort_unstable();
        let expected = [
            "endpoint-load-metrics",
            "request-id",
            "retry-after",
            "server-timing",
            "x-pinion-ignored-fields",
            "x-request-id",
            "x-should-retry",
        ];
        assert_eq!(names, expected);
    });
}

fn lively() -> Options {
    let mut options = Options::default();
    options.settings.keep_alive = Some(Duration::from_millis(20));
    options
}

const STREAM: &str = r#"{"prompt":"hi","stream":true}"#;
const COMMENT: &str = ": keep-alive\n\n";

/// The bytes without comments, which may stand only between events.
fn without_comments(body: &str) -> String {
    let kept = body.split_inclusive("\n\n").filter(|part| *part != COMMENT);
    let kept: String = kept.collect();
    assert!(!kept.contains("keep-alive"), "a comment inside an event: {body:?}");
    kept
}

/// Reads until `count` comments have come in all.
async fn hear(client: &mut TcpStream, heard: &mut String, count: usize) {
    let mut buffer = [0; 4096];
    while heard.matches(COMMENT).count() < count {
        let length = client.read(&mut buffer).await.unwrap();
        assert!(length > 0, "the stream ended: {heard:?}");
        heard.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
    }
}

/// The body of a stream of two tokens with `silence` comments before each of them.
fn stream_body(options: Options, silence: usize) -> String {
    let (sender, receiver) = std::sync::mpsc::channel();
    run(options, |h| async move {
        let (mut client, mut heard) = (h.post_raw("/v1/completions", STREAM).await, String::new());
        let id = h.submit().await.id;
        hear(&mut client, &mut heard, silence).await;
        h.delta(id, 0, &[1], "a", 0);
        hear(&mut client, &mut heard, 2 * silence).await;
        h.delta(id, 1, &[2], "b", DELTA_LAST);
        h.finish(id, FinishReason::Length, 2);
        client.read_to_string(&mut heard).await.unwrap();
        let reply = Reply::parse(&heard);
        assert!(reply.complete && reply.status == 200);
        sender.send(reply.body).unwrap();
    });
    receiver.recv().unwrap()
}

#[test]
fn a_silent_stream_gets_comments_between_events_and_the_events_are_the_same() {
    let silent = stream_body(lively(), 3);
    assert!(silent.starts_with(COMMENT), "the answer begins before its first token: {silent:?}");
    let plain = stream_body(Options::default(), 0);
    assert!(!plain.contains("keep-alive"));
    let (kept, expected) = (without_comments(&silent), without_comments(&plain));
    let shape = |body: &str| -> Vec<String> {
        let events = body.split_terminator("\n\n");
        // Ids and times differ between two answers.
        events.map(|event| event.split_once("\"model\"").map_or(event, |(_, rest)| rest).to_owned()).collect()
    };
    assert_eq!(shape(&kept), shape(&expected));
}

#[test]
fn only_event_streams_get_comments_and_an_early_error_keeps_its_status() {
    run(lively(), |h| async move {
        let plain = h.post_raw("/generate", r#"{"prompt":"hi","stream":true}"#).await;
        let id = h.submit().await.id;
        tokio::time::sleep(Duration::from_millis(120)).await;
        h.delta(id, 0, &[1], "a", DELTA_LAST);
        h.finish(id, FinishReason::Length, 1);
        assert_eq!(Reply::read(plain).await.body, "a");

        let (mut late, mut heard) = (h.post_raw("/v1/completions", STREAM).await, String::new());
        let id = h.submit().await.id;
        hear(&mut late, &mut heard, 1).await;
        h.reject(id, Fault::new(FaultCode::Unavailable, "no"));
        late.read_to_string(&mut heard).await.unwrap();
        let reply = Reply::parse(&heard);
        assert_eq!(reply.status, 200);
        let events = without_comments(&reply.body);
        assert!(events.starts_with("data: {\"error\":") && !events.contains("[DONE]"), "{events:?}");
        assert_eq!(h.slots_used(), 0);
    });
    let mut patient = Options::default();
    patient.settings.keep_alive = Some(Duration::from_secs(50));
    run(patient, |h| async move {
        let early = h.post_raw("/v1/completions", STREAM).await;
        let id = h.submit().await.id;
        h.reject(id, Fault::new(FaultCode::Unavailable, "no"));
        assert_eq!(Reply::read(early).await.status, 503);
    });
}
