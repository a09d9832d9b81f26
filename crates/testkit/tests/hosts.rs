//! What a web page in a browser on this machine may do with a service that asks for no key: DNS rebinding, posts across
//! origins, and what must go on as it did for clients that are no browsers.

use pinion_testkit::{Response, Server};
use serde_json::Value;

const COMPLETIONS: &str = "/v1/completions";
const RESET: &str = "/reset_prefix_cache";
const TRACE: &str = "/debug/trace";
const KEY: &str = "sk-operator";
const PAGE: &str = "Origin: https://page.example";
const EVIL: &str = "Origin: https://evil.example";
const CROSS_SITE: &str = "Sec-Fetch-Site: cross-site";

/// Header fields, method, path, status.
type Case = (&'static [&'static str], &'static str, &'static str, u16);

/// Sends exactly these fields, and the body as a page may without asking: as text.
fn send(server: &Server, fields: &[&str], method: &str, path: &str) -> Response {
    let body = match path {
        COMPLETIONS => "{\"prompt\":\"x\",\"max_tokens\":1}",
        _ => "{}",
    };
    let body = if method == "POST" { body } else { "" };
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    let text = format!(
        "{method} {path} HTTP/1.1\r\n{fields}Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut connection = server.connect();
    connection.write(text.as_bytes()).expect("the service reads");
    connection.response().expect("an answer")
}

fn check(server: &Server, cases: &[Case]) {
    for (fields, method, path, status) in cases {
        let response = send(server, fields, method, path);
        let what = format!("{method} {path} {fields:?}: {}", response.text());
        assert_eq!(response.status(), *status, "{what}");
        if *status == 403 {
            let error = &response.json()["error"];
            let option = match &error["code"] {
                Value::String(code) if code == "host_not_allowed" => "--allowed-hosts",
                Value::String(code) if code == "origin_not_allowed" && [RESET, TRACE].contains(path) => {
                    "--api-key"
                }
                Value::String(code) if code == "origin_not_allowed" => "--cors-origin",
                _ => panic!("{what}"),
            };
            assert!(error["message"].as_str().is_some_and(|text| text.contains(option)), "{what}");
        }
    }
}

#[test]
fn a_page_cannot_use_a_service_on_loopback_that_asks_for_no_key() {
    let server = Server::fake(&[]);
    let own = format!("http://localhost:{}", server.address().port());
    check(
        &server,
        &[
            // Rebinding: the page's own name leads here.
            (&["Host: evil.example"], "POST", COMPLETIONS, 403),
            (&["Host: evil.example:8000"], "GET", "/debug/slow", 403),
            (&["Host: evil.example"], "GET", "/metrics", 403),
            (&["Host: evil.example"], "GET", "/health", 403),
            (&["Host: evil.example"], "GET", "/nowhere", 403),
            (&["Host: localhost.evil.example"], "GET", "/v1/models", 403),
            (&["Host: 192.0.2.7"], "GET", "/v1/models", 403),
            (&["Host:"], "GET", "/v1/models", 403),
            (&["Host: localhost"], "GET", "http://evil.example/v1/models", 403),
            (&["Host: evil.example"], "GET", "http://localhost/v1/models", 403),
            // Names of this machine.
            (&["Host: localhost"], "GET", "/v1/models", 200),
            (&["Host: LOCALHOST:8000"], "GET", "/debug/slow", 200),
            (&["Host: page.localhost"], "GET", "/v1/models", 200),
            (&["Host: 127.0.0.1:1"], "POST", COMPLETIONS, 200),
            (&["Host: [::1]:8000"], "GET", "/metrics", 200),
            // Posts across origins, which a page may send without reading the answer.
            (&["Host: localhost", EVIL], "POST", COMPLETIONS, 403),
            (&["Host: localhost", "Origin: null"], "POST", COMPLETIONS, 403),
            (&["Host: localhost", CROSS_SITE], "POST", COMPLETIONS, 403),
            (&["Host: localhost", EVIL, CROSS_SITE], "POST", RESET, 403),
            (&["Host: localhost", EVIL], "POST", TRACE, 403),
            (&["Host: localhost", EVIL], "GET", "/v1/models", 200),
            // Clients that are no browsers.
            (&["Host: localhost"], "POST", COMPLETIONS, 200),
            (&["Host: localhost"], "POST", RESET, 200),
            (&["Host: localhost", "Sec-Fetch-Site: none"], "POST", COMPLETIONS, 200),
        ],
    );
    // A page that the service itself has served.
    for path in [COMPLETIONS, RESET] {
        let host = format!("Host: localhost:{}", server.address().port());
        let origin = format!("Origin: {own}");
        let same = [host.as_str(), origin.as_str(), "Sec-Fetch-Site: same-origin"];
        assert_eq!(send(&server, &same, "POST", path).status(), 200, "{path}");
        let other = ["Host: localhost:1", origin.as_str(), "Sec-Fetch-Site: same-site"];
        assert_eq!(
            send(&server, &other, "POST", path).status(),
            403,
            "{path}: another port is another origin"
        );
    }
    server.stop();
}

#[test]
fn names_and_origins_that_the_operator_lists_are_served() {
    let server = Server::fake(&[
        "--allowed-hosts",
        "llm.example,*.lan.example,192.0.2.7",
        "--cors-origin=https://page.example",
    ]);
    check(
        &server,
        &[
            (&["Host: llm.example"], "POST", COMPLETIONS, 200),
            (&["Host: a.lan.example:8000"], "GET", "/v1/models", 200),
            (&["Host: 192.0.2.7"], "GET", "/v1/models", 200),
            (&["Host: localhost"], "GET", "/v1/models", 200),
            (&["Host: lan.example"], "GET", "/v1/models", 403),
            (&["Host: evil.example"], "GET", "/v1/models", 403),
            (&["Host: llm.example", PAGE, CROSS_SITE], "POST", COMPLETIONS, 200),
            (&["Host: llm.example", "Origin: https://llm.example"], "POST", RESET, 200),
            (&["Host: llm.example", EVIL, CROSS_SITE], "POST", COMPLETIONS, 403),
            // No list opens what is the operator's.
            (&["Host: llm.example", PAGE], "POST", RESET, 403),
            (&["Host: llm.example", PAGE], "POST", TRACE, 403),
        ],
    );
    let asks = "Access-Control-Request-Method: POST";
    for (path, status) in [(COMPLETIONS, 204), (RESET, 405)] {
        let fields = ["Host: llm.example", PAGE, asks];
        assert_eq!(send(&server, &fields, "OPTIONS", path).status(), status, "{path}");
    }
    server.stop();
}

#[test]
fn beyond_loopback_only_what_is_the_operators_is_kept_from_pages() {
    let server = Server::fake(&["--host", "0.0.0.0"]);
    check(
        &server,
        &[
            (&["Host: llm.example"], "POST", COMPLETIONS, 200),
            (&["Host: llm.example", EVIL, CROSS_SITE], "POST", COMPLETIONS, 200),
            (&["Host: llm.example"], "POST", RESET, 200),
            (&["Host: llm.example", EVIL], "POST", RESET, 403),
            (&["Host: llm.example", CROSS_SITE], "POST", TRACE, 403),
        ],
    );
    server.stop();
    let server = Server::fake(&["--host", "0.0.0.0", "--allowed-hosts", "llm.example"]);
    check(
        &server,
        &[
            (&["Host: llm.example"], "GET", "/v1/models", 200),
            // As a probe of Kubernetes has it.
            (&["Host: 192.0.2.7:8000"], "GET", "/health", 200),
            (&["Host: evil.example"], "GET", "/v1/models", 403),
        ],
    );
    server.stop();
}

#[test]
fn where_a_key_is_asked_for_the_key_is_the_permission() {
    let server = Server::fake_with(&[], &[("PINION_API_KEY", KEY)]);
    const BEARER: &str = "Authorization: Bearer sk-operator";
    check(
        &server,
        &[
            (&["Host: llm.example", EVIL, CROSS_SITE, BEARER], "POST", COMPLETIONS, 200),
            (&["Host: llm.example", EVIL, CROSS_SITE, BEARER], "POST", RESET, 200),
            (&["Host: llm.example", EVIL, CROSS_SITE], "POST", COMPLETIONS, 401),
            (&["Host: llm.example"], "GET", "/debug/slow", 401),
        ],
    );
    server.stop();
}
