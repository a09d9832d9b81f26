//! Broken, slow, huge and hostile HTTP: it costs its own connection and nothing else.

use pinion_testkit::{Connection, PATIENCE, Response, Server, beside_a_stream, check_refusal, wait_until};
use serde_json::json;

const COMPLETIONS: &str = "/v1/completions";
const PATHS: [&str; 5] = [COMPLETIONS, "/v1/chat/completions", "/generate", "/tokenize", "/detokenize"];

/// Writes until the service stops reading, then reads its answer.
fn send_big(server: &Server, head: &str, piece: &[u8], pieces: usize) -> Response {
    let mut connection = server.connect();
    connection.write(head.as_bytes()).expect("the service reads heads");
    for _ in 0..pieces {
        if connection.write(piece).is_err() {
            break;
        }
    }
    connection.response().expect("the answer is not lost")
}

#[test]
fn bodies_that_are_too_large_are_refused_without_being_kept() {
    let megabyte = vec![b'x'; 1 << 20];
    let chunk = [b"100000\r\n", &megabyte[..], b"\r\n"].concat();
    beside_a_stream(|server, still_answers| {
        for path in PATHS {
            let by_length =
                format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", 20 << 20);
            let chunked =
                format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
            for (head, piece) in [(&by_length, &megabyte), (&chunked, &chunk)] {
                let response = send_big(server, head, piece, 20);
                check_refusal(head, &response, 413, None);
                still_answers(head);
            }
        }
        // A client that only announces too much, or waits for 100 Continue, gets its answer before it sends.
        for more in ["", "Expect: 100-continue\r\n"] {
            let head = format!(
                "POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {}\r\n\r\n",
                1u64 << 40
            );
            check_refusal(more, &send_big(server, &head, b"", 0), 413, None);
            still_answers(more);
        }
    });
}

#[test]
fn broken_http_ends_its_connection_and_nothing_else() {
    let field =
        |bytes: &str| format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{bytes}\r\n\r\n").into_bytes();
    let body = "{\"prompt\":\"x\",\"max_tokens\":1}";
    let post = |fields: &str, body: &str| {
        format!("POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n\r\n{body}").into_bytes()
    };
    let many: String = (0..200).map(|index| format!("X-{index}: y\r\n")).collect();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("garbage", b"\x00\x01\x02\xff\xfe nothing like it\r\n\r\n".to_vec()),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".repeat(30)),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        ("no version", b"GET /health\r\n\r\n".to_vec()),
        ("an absurd version", b"GET /health HTTP/9.9\r\n\r\n".to_vec()),
        ("a field without a colon", field("no colon here")),
        ("a NUL in a field", field("X: a\0b")),
        ("a space before the colon", field("X : y")),
        ("a line folded", field("X: a\r\n b")),
        ("a huge field", field(&format!("X: {}", "y".repeat(1 << 20)))),
        ("too many fields", field(many.trim_end())),
        (
            "a huge path",
            format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "y".repeat(1 << 20)).into_bytes(),
        ),
        ("two lengths", post("Content-Length: 5\r\nContent-Length: 6", body)),
        ("a negative length", post("Content-Length: -1", body)),
        ("a length in words", post("Content-Length: ten", body)),
        ("a length past 64 bits", post("Content-Length: 99999999999999999999", body)),
        ("an unknown transfer coding", post("Transfer-Encoding: rot13", body)),
        ("a chunk length in words", post("Transfer-Encoding: chunked", "long\r\nx\r\n0\r\n\r\n")),
        ("a chunk that lies", post("Transfer-Encoding: chunked", "2\r\nxyz\r\n0\r\n\r\n")),
    ];
    beside_a_stream(|server, still_answers| {
        for (name, bytes) in &cases {
            let mut connection = server.connect();
            // A service that has seen enough may close while we still write.
            let _ = connection.write(bytes);
            let _ = connection.finish_writing();
            if let Ok(response) = connection.response() {
                assert!((400..=431).contains(&response.status()), "{name}: {}", response.status());
                assert!(connection.is_closed_by_peer(), "{name}: the connection cannot be used further");
            }
            still_answers(name);
        }
    });
}

#[test]
fn who_sends_slowly_is_not_waited_for() {
    let flags = ["--header-timeout", "3s", "--body-timeout", "3s", "--idle-timeout", "4s"];
    let server = Server::fake(&flags);
    let begun = |bytes: &str| -> Connection {
        let mut connection = server.connect();
        connection.write(bytes.as_bytes()).expect("the service reads");
        connection
    };
    let mut half_head = begun("POST /v1/completions HTTP/1.1\r\nHo");
    let mut half_body =
        begun("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"pro");
    let mut nothing = begun("");
    let mut after_one = begun("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(after_one.response().expect("an answer").status(), 200);
    if let Ok(response) = half_head.response() {
        assert_eq!(response.status(), 408);
    }
    check_refusal("half a body", &half_body.response().expect("an answer"), 408, None);
    for (name, connection) in [
        ("half a head", &mut half_head),
        ("half a body", &mut half_body),
        ("nothing", &mut nothing),
        ("idle", &mut after_one),
    ] {
        assert!(connection.is_closed_by_peer(), "{name}: stays open");
    }
    server.check_serves("prompt clients");
    server.wait_idle();
    server.stop();
}

#[test]
fn clients_cannot_make_new_series() {
    let server = Server::fake(&[]);
    let series = || server.metrics().samples.len();
    for path in ["/one", COMPLETIONS] {
        server.request("GET", path, &[], b"").expect("an answer");
    }
    server.check_serves("every series exists");
    let before = series();
    for index in 0..200 {
        let method = format!("M{index}");
        server
            .request(&method, &format!("/path{index}"), &[("X-Request-Id", &method)], b"{}")
            .expect("an answer");
        server.post(COMPLETIONS, &json!({"model": format!("m{index}"), "prompt": "x"}));
    }
    wait_until("the number of series is what it was", PATIENCE, || (series() == before).then_some(()));
    server.stop();
}
