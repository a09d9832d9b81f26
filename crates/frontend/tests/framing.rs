//! Heads that two readers could understand differently, methods, and connections beyond the limit.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::harness::{Options, Reply, run};
use pinion_frontend::route::Route;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn a_head_with_two_meanings_is_refused_with_a_reason() {
    const BODY: &str = "{\"prompt\":\"x\"}";
    let post = |fields: &str| format!("POST /tokenize HTTP/1.1\r\n{fields}\r\n{BODY}");
    let chunked =
        |fields: &str| format!("POST /tokenize HTTP/1.1\r\nhost: x\r\n{fields}\r\ne\r\n{BODY}\r\n0\r\n\r\n");
    let long = format!("GET /live HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "y".repeat(20_000));
    let many: String = (0..100).map(|index| format!("x-{index}: y\r\n")).collect();
    // (request, status, the error's code)
    let cases: Vec<(String, u16, &str)> = vec![
        (chunked("transfer-encoding: identity, chunked\r\n"), 400, "malformed_head"),
        (chunked("transfer-encoding: chunked, chunked\r\n"), 400, "malformed_head"),
        (chunked("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n"), 400, "malformed_head"),
        (post("content-length: 14\r\n"), 400, "malformed_head"),
        (post("host: a\r\nhost: a\r\ncontent-length: 14\r\n"), 400, "malformed_head"),
        (post("host: a b\r\ncontent-length: 14\r\n"), 400, "malformed_head"),
        (post("host: u@a\r\ncontent-length: 14\r\n"), 400, "malformed_head"),
        (post("host: a\r\ncontent-length: 14\r\nexpect: 200-maybe\r\n"), 417, "expectation_failed"),
        ("CONNECT a.example:443 HTTP/1.1\r\nhost: a.example:443\r\n\r\n".into(), 405, "method_not_allowed"),
        // What hyper refuses has the same body.
        ("GET /live HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n".into(), 400, "malformed_head"),
        ("GET /live HTTP/9.9\r\nhost: x\r\n\r\n".into(), 400, "malformed_head"),
        (post("host: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n"), 400, "malformed_head"),
        (post("host: a\r\ntransfer-encoding: rot13\r\n"), 400, "malformed_head"),
        (long, 431, "malformed_head"),
        (format!("GET /live HTTP/1.1\r\nhost: x\r\n{many}\r\n"), 431, "malformed_head"),
    ];
    run(Options::default(), |h| async move {
        for (text, status, code) in &cases {
            // Read to the end of the connection: a server that keeps it makes the test hang.
            let reply = h.request(text).await;
            assert_eq!(reply.status, *status, "{text:?}: {reply:?}");
            assert_eq!(reply.json()["error"]["code"], *code, "{text:?}");
            assert!(reply.head.contains("connection: close"), "{text:?}: {}", reply.head);
            assert!(reply.complete, "{text:?}: {reply:?}");
        }
        let counted = h.get("/metrics").await.body;
        let line = counted.lines().find(|line| line.contains("route=\"unknown\",class=\"4xx\"")).unwrap();
        assert!(line.ends_with(" 7"), "what hyper refuses, and CONNECT, is counted: {line}");
        for text in [
            "GET /live HTTP/1.0\r\n\r\n",
            "GET /live HTTP/1.1\r\nhost:\r\nconnection: close\r\n\r\n",
            "GET /live HTTP/1.1\r\nhost: my_box:1\r\nexpect: 100-Continue\r\nconnection: close\r\n\r\n",
        ] {
            assert_eq!(h.request(text).await.status, 200, "{text:?}");
        }
    });
}

#[test]
fn half_a_head_is_answered_when_its_time_is_over() {
    let mut options = Options::default();
    options.settings.header_timeout = Duration::from_millis(100);
    run(options, |h| async move {
        let reply = h.request("GET /live HTTP/1.1\r\nho").await;
        assert_eq!(reply.status, 408);
        assert_eq!(reply.json()["error"]["code"], "malformed_head");
        let mut silent = h.connect().await;
        let mut seen = [0; 1];
        let waited = tokio::time::timeout(Duration::from_millis(300), silent.read(&mut seen)).await;
        assert!(waited.is_err(), "a connection that has begun nothing waits for the idle timeout");
    });
}

#[test]
fn a_compressed_body_is_refused_by_name_and_the_connection_goes_on() {
    run(Options::default(), |h| async move {
        for (coding, refused) in
            [("gzip", true), ("br", true), ("identity, gzip", true), ("identity", false), ("", false)]
        {
            let post = format!(
                "POST /reset_prefix_cache HTTP/1.1\r\nhost: x\r\ncontent-encoding: {coding}\r\ncontent-length: 2\r\n\r\nxx"
            );
            let follow = "GET /live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            let text = format!("{post}{follow}");
            let mut client = h.connect().await;
            client.write_all(text.as_bytes()).await.unwrap();
            let mut seen = String::new();
            client.read_to_string(&mut seen).await.unwrap();
            let seen = seen.to_lowercase();
            assert_eq!(seen.starts_with("http/1.1 415"), refused, "{coding}: {seen}");
            assert_eq!(seen.contains("accept-encoding: identity\r\n"), refused, "{coding}: {seen}");
            assert_eq!(seen.contains("unsupported_encoding"), refused, "{coding}: {seen}");
            assert!(seen.ends_with("{\"status\":\"live\"}"), "{coding}: {seen}");
        }
    });
}

#[test]
fn head_is_get_without_a_body_and_other_methods_are_told_what_is_allowed() {
    run(Options::default(), |h| async move {
        // Times and counters are in it.
        let varies = |route| matches!(route, Route::Metrics | Route::DebugSlow | Route::Stats);
        for route in Route::ALL {
            let path = route
                .name()
                .replace("{id}", "tiny")
                .replace("{file}", "main.js")
                .replace("unknown", "/nowhere");
            let call = |method: &str| {
                format!(
                    "{method} {path} HTTP/1.1\r\nhost: x\r\nx-request-id: same\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                )
            };
            let reads = route.method() == "GET";
            let head = h.request(&call("HEAD")).await;
            assert_eq!(head.body, "", "{path}");
            if reads {
                let get = h.request(&call("GET")).await;
                let stable = |reply: &Reply| -> Vec<String> {
                    let fields = reply.head.lines().map(str::to_owned);
                    fields
                        .filter(|line| {
                            let differs = varies(route) && line.starts_with("content-length");
                            !differs && !line.starts_with("date:")
                        })
                        .collect()
                };
                assert_eq!(stable(&head), stable(&get), "{path}");
                assert!(!get.body.is_empty() && head.head.contains("content-length: "), "{path}");
            }
            // The one route with a third method.
            let deletes = route == Route::StoredResponse;
            let allow = match (reads, deletes) {
                (_, true) => "allow: get, head, delete\r",
                (true, false) => "allow: get, head\r",
                (false, false) => "allow: post\r",
            };
            let others = ["DELETE", "PUT", "PATCH", "OPTIONS", "TRACE", if reads { "POST" } else { "GET" }];
            for method in others.into_iter().skip(usize::from(deletes)) {
                let reply = h.request(&call(method)).await;
                if route == Route::Unknown {
                    assert_eq!(reply.status, 404, "{method} {path}");
                } else {
                    let head = format!("{}\r", reply.head.replace('\n', ""));
                    assert_eq!((reply.status, head.contains(allow)), (405, true), "{method} {path}: {head}");
                }
            }
        }
    });
}
