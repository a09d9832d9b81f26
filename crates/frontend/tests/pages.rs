//! The pages for people: what they are made of, which headers go with them, which clients may load them, and `/stats`.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::harness::{Options, Reply, run};
use pinion_config::ApiKeys;
use pinion_frontend::http::guard::Guard;
use pinion_frontend::http::pages::POLICY;
use pinion_frontend::ui::FILES;
use pinion_protocol::control::DeathCause;
use pinion_protocol::frontend_inbox::{DELTA_LAST, FinishReason};
use pinion_protocol::{Peer, Role};

/// What a browser loads to show one of the two pages.
const BYTES_MAX: usize = 150_000;
/// What only `/docs` loads.
const OF_DOCS: [&str; 3] = ["/docs", "/ui/docs.js", "/ui/docs.css"];
/// What both load.
const OF_BOTH: [&str; 5] = ["/ui/style.css", "/ui/icon.svg", "/ui/theme.js", "/ui/api.js", "/ui/dom.js"];

fn keyed() -> Options {
    let mut options = Options::default();
    options.settings.api_keys = ApiKeys::new(vec!["sk-correct-horse".into()]);
    options
}

fn field<'a>(reply: &'a Reply, name: &str) -> &'a str {
    let line = reply.head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
    line.unwrap_or_else(|| panic!("{name} is missing: {}", reply.head))
}

#[test]
fn every_file_is_served_with_its_policy_without_a_key_and_to_head_too() {
    run(keyed(), |h| async move {
        let paths = FILES.iter().map(|file| file.path).chain(["/docs"]);
        let (mut chat_bytes, mut docs_bytes) = (0, 0);
        for path in paths {
            let reply = h.get(path).await;
            assert!(reply.status == 200 && reply.complete, "{path}: {reply:?}");
            let of_docs = OF_DOCS.contains(&path);
            chat_bytes += if of_docs { 0 } else { reply.body.len() };
            docs_bytes += if of_docs || OF_BOTH.contains(&path) { reply.body.len() } else { 0 };
            assert_eq!(field(&reply, "content-security-policy"), POLICY.to_lowercase(), "{path}");
            assert_eq!(field(&reply, "x-content-type-options"), "nosniff");
            assert_eq!(field(&reply, "referrer-policy"), "no-referrer");
            assert_eq!(field(&reply, "cache-control"), "no-cache");
            let kind = match path.rsplit_once('.') {
                Some((_, "js")) => "text/javascript; charset=utf-8",
                Some((_, "css")) => "text/css; charset=utf-8",
                Some((_, "svg")) => "image/svg+xml",
                _ => "text/html; charset=utf-8",
            };
            assert_eq!(field(&reply, "content-type"), kind, "{path}");
            let head =
                h.request(&format!("HEAD {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).await;
            assert_eq!((head.status, head.body.as_str()), (200, ""), "{path}");
            for name in ["etag", "content-type", "content-length"] {
                assert_eq!(field(&head, name), field(&reply, name), "{path}");
            }
        }
        println!("bytes: {chat_bytes} of the chat's page, {docs_bytes} of the API's");
        assert!((50_000..BYTES_MAX).contains(&chat_bytes), "the chat's page has {chat_bytes} bytes");
        assert!((50_000..BYTES_MAX).contains(&docs_bytes), "the API's page has {docs_bytes} bytes");
    });
}

#[test]
fn a_browser_that_has_the_file_gets_no_second_one() {
    run(Options::default(), |h| async move {
        let first = h.get("/ui/main.js").await;
        let tag = field(&first, "etag").to_owned();
        let other = field(&h.get("/ui/chat.js").await, "etag").to_owned();
        assert_ne!(tag, other);
        for (asked, status) in [
            (tag.clone(), 304),
            (format!("W/{tag}"), 304),
            (format!("\"0\", {tag}"), 304),
            ("*".to_owned(), 304),
            (other, 200),
            ("\"\"".to_owned(), 200),
        ] {
            let request = format!(
                "GET /ui/main.js HTTP/1.1\r\nhost: x\r\nconnection: close\r\nif-none-match: {asked}\r\n\r\n"
            );
            let reply = h.request(&request).await;
            assert_eq!(reply.status, status, "{asked}");
            assert_eq!(reply.body.is_empty(), status == 304, "{asked}");
            assert_eq!(field(&reply, "etag"), tag);
            assert_eq!(field(&reply, "content-security-policy"), POLICY.to_lowercase());
        }
    });
}

/// The policy of the pages forbids both, and a browser would leave them out without a word.
#[test]
fn nothing_is_inline_nothing_is_from_elsewhere_and_no_text_becomes_markup() {
    for file in FILES {
        let text = std::str::from_utf8(file.bytes).unwrap();
        for sink in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser", "srcdoc"]
        {
            assert!(!text.contains(sink), "{} has {sink}", file.path);
        }
        let foreign = text.match_indices("://").filter(|(at, _)| {
            let (scheme, rest) = (&text[..*at], &text[at + 3..]);
            let own = ["127.0.0.1", "www.w3.org/2000/svg"].iter().any(|host| rest.starts_with(host));
            (scheme.ends_with("http") || scheme.ends_with("https")) && !own
        });
        assert_eq!(foreign.count(), 0, "{}", file.path);
        if file.path == "/" {
            for inline in
                [" style=", "<style", " onclick=", " onload=", " onerror=", " oninput=", " onsubmit="]
            {
                assert!(!text.contains(inline), "inline: {inline}");
            }
            assert!(text.split("<script").skip(1).all(|script| script.contains(" src=\"ui/")));
        }
    }
}

/// What a page names is there: a file that was renamed in one place only would be a blank page.
#[test]
fn every_file_that_a_file_names_is_served_and_every_one_is_named() {
    let text = |path: &str| {
        let file = FILES.iter().find(|file| file.path == path);
        std::str::from_utf8(file.unwrap_or_else(|| panic!("{path} is not served")).bytes).unwrap()
    };
    let mut waiting = vec!["/".to_owned(), "/ui/docs.js".to_owned(), "/ui/docs.css".to_owned()];
    let mut seen = std::collections::BTreeSet::new();
    while let Some(path) = waiting.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let named = text(&path).split('"').filter_map(|part| match part.strip_prefix("./") {
            Some(module) if module.ends_with(".js") => Some(format!("/ui/{module}")),
            None if part.starts_with("ui/") => Some(format!("/{part}")),
            _ => None,
        });
        waiting.extend(named);
    }
    assert_eq!(seen.len(), FILES.len(), "{seen:?}");
}

/// A proxy may serve the service below a path, with or without passing it on.
#[test]
fn the_pages_name_nothing_from_the_root_of_the_host() {
    run(Options::default(), |h| async move {
        for path in ["/", "/docs"] {
            let page = h.get(path).await.body;
            for absolute in ["href=\"/", "src=\"/", "action=\"/"] {
                assert!(!page.contains(absolute), "{path}: {absolute}");
            }
        }
        assert!(h.get("/openapi.json").await.json().get("servers").is_none());
    });
    for file in FILES.iter().filter(|file| file.path.ends_with(".js")) {
        let text = std::str::from_utf8(file.bytes).unwrap();
        for call in text.split("fetch(").skip(1) {
            assert!(call.starts_with("new URL(path.slice(1), BASE)"), "{}: fetch({call:.40}", file.path);
        }
        assert!(!text.contains("location.origin") && !text.contains("location.host"), "{}", file.path);
    }
}

#[test]
fn below_a_path_everything_is_served_with_it_and_without() {
    let mut options = keyed();
    options.settings.root_path = "/llm/one".to_owned();
    run(options, |h| async move {
        let key = "authorization: Bearer sk-correct-horse\r\n";
        let ask = |method: &str, path: &str, fields: &str| {
            format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{fields}\r\n")
        };
        for path in ["/", "/docs", "/ui/main.js", "/health", "/stats", "/v1/models", "/openapi.json"] {
            for path in [path.to_owned(), format!("/llm/one{path}")] {
                assert_eq!(h.request(&ask("GET", &path, key)).await.status, 200, "{path}");
            }
        }
        let document = h.request(&ask("GET", "/llm/one/openapi.json", key)).await.json();
        assert_eq!(document["servers"], serde_json::json!([{"url": "/llm/one"}]));
        // A key is asked for there, too, and an API's errors have its shape.
        assert_eq!(h.get("/llm/one/v1/models").await.status, 401);
        let fields = format!("{key}content-length: 2\r\n");
        let reply =
            h.request(&format!("{}{{}}", ask("POST", "/llm/one/v1/messages?beta=true", &fields))).await;
        assert_eq!((reply.status, &reply.json()["type"]), (400, &"error".into()), "{reply:?}");
        let kept = h.request(&ask("GET", "/llm/one/v1/responses/resp_7/input_items?limit=3", key)).await;
        assert!(kept.status == 404 && kept.body.contains("resp_7"), "{kept:?}");
        // The page's files are beside the page.
        for method in ["GET", "HEAD"] {
            let reply = h.request(&ask(method, "/llm/one", "")).await;
            assert_eq!((reply.status, field(&reply, "location")), (308, "/llm/one/"), "{method}");
        }
        for path in ["/llm", "/llm/", "/llm/oneness/health", "/llm/one/llm/one/health", "/LLM/one/health"] {
            assert_eq!(h.request(&ask("GET", path, key)).await.status, 404, "{path}");
        }
        assert_eq!(
            h.request(&ask("POST", "/llm/one", &format!("{key}content-length: 0\r\n"))).await.status,
            404
        );
    });
}

#[test]
fn a_root_that_is_the_beginning_of_a_route_hides_none() {
    let mut options = Options::default();
    options.settings.root_path = "/v1".to_owned();
    run(options, |h| async move {
        for path in ["/v1/models", "/v1/v1/models", "/v1/health", "/health"] {
            assert_eq!(h.get(path).await.status, 200, "{path}");
        }
    });
}

#[test]
fn without_the_pages_their_paths_are_unknown_and_the_api_is_as_ever() {
    let mut options = keyed();
    options.settings.ui = false;
    run(options, |h| async move {
        for path in ["/", "/ui/main.js", "/docs"] {
            for method in ["GET", "POST"] {
                let request = format!(
                    "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                );
                let reply = h.request(&request).await;
                assert_eq!(
                    (reply.status, &reply.json()["error"]["code"]),
                    (404, &"unknown_url".into()),
                    "{path}"
                );
            }
        }
        assert_eq!(h.get("/stats").await.status, 200);
        assert_eq!(h.get("/openapi.json").await.status, 401);
    });
}

#[test]
fn the_pages_are_only_at_their_own_paths_and_names_of_the_service() {
    let mut options = Options::default();
    options.settings.guard = Guard::of(true, true, Vec::new(), Vec::new());
    run(options, |h| async move {
        let ask = |path: &str, fields: &str| {
            format!("GET {path} HTTP/1.1\r\nconnection: close\r\n{fields}\r\n\r\n")
        };
        for path in ["/", "/docs", "/ui/main.js"] {
            assert_eq!(h.request(&ask(path, "host: localhost")).await.status, 200, "{path}");
            let reply = h.request(&ask(path, "host: evil.example")).await;
            assert_eq!(
                (reply.status, &reply.json()["error"]["code"]),
                (403, &"host_not_allowed".into()),
                "{path}"
            );
        }
        for path in [
            "//",
            "/ui",
            "/ui/",
            "/ui/main.js/",
            "/ui/../ui/main.js",
            "/ui/%6dain.js",
            "/UI/main.js",
            "/index.html",
        ] {
            assert_eq!(h.request(&ask(path, "host: localhost")).await.status, 404, "{path}");
        }
        // Its own origin may post, another may not.
        for (origin, status) in [("http://localhost", 400), ("http://evil.example", 403)] {
            let request = format!(
                "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\norigin: {origin}\r\nconnection: close\r\n\
                 content-length: 2\r\n\r\n{{}}"
            );
            assert_eq!(h.request(&request).await.status, status, "{origin}");
        }
    });
}

#[test]
fn the_api_s_page_shows_what_to_copy_and_asks_for_the_key_where_there_is_one() {
    run(Options::default(), |h| async move {
        let page = h.get("/docs").await.body;
        for text in [
            "id=\"post-v1-chat-completions\"",
            "curl -sN http://127.0.0.1:8000/v1/chat/completions",
            "whole number from 1",
            "\"none\" or \"auto\"",
            "This service asks for no key.",
        ] {
            assert!(page.contains(text), "{text} is missing");
        }
        assert!(!page.contains("key-button"));
    });
    run(keyed(), |h| async move {
        let page = h.get("/docs").await.body;
        assert!(
            page.contains("key-button") && page.contains("Bearer $PINION_API_KEY") && !page.contains("sk-")
        );
    });
}

#[test]
fn the_stats_show_roles_load_gaps_and_each_death() {
    run(keyed(), |h| async move {
        let before = h.get("/stats").await.json();
        assert_eq!(before["status"], "ok");
        assert_eq!(before["roles"][1]["role"], "engine-0");
        assert_eq!((&before["slots"]["total"], &before["incidents"]), (&8.into(), &serde_json::json!([])));

        let body = r#"{"prompt":"hi","stream":true}"#;
        let request = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-correct-horse\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = h.request(&request);
        let roles = async {
            let id = h.submit().await.id;
            h.delta(id, 0, &[1], "a", 0);
            let engine = Peer::new(Role::Engine, 0);
            h.app.ledger.borrow_mut().peer_lost(engine, DeathCause::Unknown);
            let down = h.get("/stats").await.json();
            assert_eq!(
                (&down["status"], &down["roles"][1]["phase"]),
                (&"unhealthy".into(), &"restarting".into())
            );
            h.app.ledger.borrow_mut().peer_ready(engine);
            let id = h.submit().await.id;
            h.delta(id, 1, &[2], "b", DELTA_LAST);
            h.finish(id, FinishReason::Length, 2);
        };
        let (reply, ()) = tokio::join!(answer, roles);
        assert!(reply.body.contains("[DONE]"), "{reply:?}");

        let after = h.get("/stats").await.json();
        let gaps: u64 = after["gaps"]["counts"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!((gaps, &after["requests"]["resumed"], &after["status"]), (1, &1.into(), &"ok".into()));
        let [lost, back] = after["incidents"].as_array().unwrap().as_slice() else { panic!("{after}") };
        assert_eq!(
            (&lost["what"], &lost["role"], &lost["held"], &lost["waiting"]),
            (&"lost".into(), &"engine-0".into(), &1.into(), &1.into())
        );
        assert_eq!(
            (&back["what"], &back["resumed"], &back["number"]),
            (&"back".into(), &1.into(), &2.into())
        );
    });
}
