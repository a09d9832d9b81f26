//! The trace of a running service: every process is in it on one clock, its spans are nested, its requests whole.

use pinion_testkit::{Api, Folder, PATIENCE, Server, run_to_end};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A thread's spans: begin and duration in µs, and the name.
type Slices = Vec<(f64, f64, String)>;

const TOKENS: u32 = 20;
const REQUESTS: usize = 6;

fn traffic(server: &Server) {
    std::thread::scope(|scope| {
        for n in 0..REQUESTS {
            let body = json!({"prompt": format!("trace {n}"), "max_tokens": TOKENS, "stream": n % 2 == 0});
            scope.spawn(move || server.ask(Api::Completions, &body));
        }
    });
    server.wait_idle();
}

fn number(event: &Value, member: &str) -> f64 {
    event[member].as_f64().unwrap_or_else(|| panic!("no {member} in {event}"))
}

/// Spans of one thread lie beside or inside each other, never across.
fn check_nesting(slices: &mut [(f64, f64, String)]) {
    slices.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
    let mut open: Vec<(f64, String)> = Vec::new();
    for (begin, duration, name) in slices.iter() {
        let end = begin + duration;
        while open.last().is_some_and(|(outer_end, _)| outer_end <= begin) {
            open.pop();
        }
        if let Some((outer_end, outer)) = open.last() {
            assert!(end - 0.0005 <= *outer_end, "{name} at {begin} lies across the end of {outer}");
        }
        open.push((end, name.clone()));
    }
}

/// Every event is well-formed, and what belongs together is together. Gives the names seen, by process.
fn check(trace: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let events = trace["traceEvents"].as_array().expect("a list of events");
    let mut processes = BTreeMap::new();
    let mut slices: BTreeMap<(u64, u64), Slices> = BTreeMap::new();
    let mut requests: BTreeMap<&str, Vec<(&str, &str, f64)>> = BTreeMap::new();
    let mut flows: BTreeMap<&str, Vec<(&str, f64)>> = BTreeMap::new();
    for event in events {
        let (kind, name) = (event["ph"].as_str().expect("ph"), event["name"].as_str().expect("name"));
        let pid = event["pid"].as_u64().expect("pid");
        if kind == "M" {
            if name == "process_name" {
                processes.insert(pid, event["args"]["name"].as_str().expect("a name").to_owned());
            }
            continue;
        }
        let (tid, ts) = (event["tid"].as_u64().expect("tid"), number(event, "ts"));
        assert!(ts >= 0.0, "{event}");
        match kind {
            "X" => {
                let duration = number(event, "dur");
                assert!(duration >= 0.0 && event["args"].is_object(), "{event}");
                slices.entry((pid, tid)).or_default().push((ts, duration, name.to_owned()));
            }
            "b" | "e" => {
                let id = event["id"].as_str().expect("id");
                requests.entry(id).or_default().push((kind, name, ts));
            }
            "s" | "t" | "f" => flows.entry(event["id"].as_str().expect("id")).or_default().push((kind, ts)),
            other => panic!("{other} in {event}"),
        }
    }
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for ((pid, _), slices) in &mut slices {
        check_nesting(slices);
        let process = processes.get(pid).expect("a process that is named").clone();
        names.entry(process).or_default().extend(slices.iter().map(|(_, _, name)| name.clone()));
    }
    check_requests(&requests, &flows);
    names
}

fn check_requests(
    requests: &BTreeMap<&str, Vec<(&str, &str, f64)>>,
    flows: &BTreeMap<&str, Vec<(&str, f64)>>,
) {
    assert!(requests.len() >= REQUESTS, "{} requests", requests.len());
    for (id, events) in requests {
        let at = |kind: &str, name: &str| {
            let mut found = events.iter().filter(|(k, n, _)| (*k, *n) == (kind, name));
            found.next().unwrap_or_else(|| panic!("{id} has no {kind} {name}")).2
        };
        let (begin, end) = (at("b", "request"), at("e", "request"));
        let mut previous = begin;
        let parts = [
            "admission",
            "tokenizer_queue",
            "tokenize",
            "engine_inbox",
            "queue",
            "prefill",
            "decode",
            "detokenize",
            "write",
        ];
        for part in parts {
            assert!((at("b", part) - previous).abs() < 0.0025, "{id}: a gap before {part}");
            previous = at("e", part);
        }
        assert!((previous - end).abs() < 0.0025, "{id}: {previous} {end}");
        let arrows = flows.get(id).expect("a request has arrows");
        let kinds: String = arrows.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, "stttf", "{id}");
        assert!(arrows.is_sorted_by(|a, b| a.1 <= b.1), "{id}: {arrows:?}");
    }
}

/// A trace during which traffic comes.
fn live(server: &Server) -> Value {
    for seconds in [2, 10, 50] {
        let mut connection = server.connect();
        let body = json!({ "seconds": seconds }).to_string();
        let begin = Instant::now();
        connection.request("POST", "/debug/trace", &[], body.as_bytes()).expect("a request can be written");
        // Its head is there when it records.
        let head = connection.head().expect("a trace begins");
        assert_eq!(head.status, 200);
        traffic(server);
        let came_in_time = begin.elapsed() < Duration::from_secs(seconds);
        let (mut framing, mut bytes) = (head.framing(), Vec::new());
        while connection.body_part(&mut framing, &mut bytes).expect("a whole trace") {}
        if came_in_time {
            return serde_json::from_slice(&bytes).expect("JSON");
        }
    }
    panic!("{REQUESTS} short requests took the best part of a minute");
}

#[test]
fn a_trace_has_every_process_on_one_clock() {
    let server = Server::fake(&["--fake-step-us", "2000"]);
    traffic(&server);
    let folder = Folder::new();
    let out = folder.path().join("trace.json");
    let out_text = out.display().to_string();
    let url = format!("http://{}", server.address());
    let arguments = ["trace", "--out", &out_text, "--url", &url];
    let ended = run_to_end(&arguments, &[], PATIENCE);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let text = std::fs::read_to_string(&out).expect("the trace is there");
    let names = check(&serde_json::from_str(&text).expect("JSON"));
    for (process, wanted) in [
        (
            "pinion-frontend-0",
            &["pinion.frontend.admit", "pinion.frontend.records", "pinion.frontend.write"][..],
        ),
        ("pinion-tokenizer-0", &["pinion.tokenize"]),
        (
            "pinion-engine-0",
            &[
                "pinion.engine.step",
                "pinion.engine.plan",
                "pinion.engine.commit",
                "pinion.engine.publish",
                "pinion.prefill",
                "pinion.decode",
            ],
        ),
        ("pinion-detokenizer-0", &["pinion.detokenize"]),
    ] {
        let seen = names.get(process).unwrap_or_else(|| panic!("{process} is missing: {names:?}"));
        assert!(wanted.iter().all(|name| seen.contains(*name)), "{process}: {seen:?}");
    }
    // What comes while it records is in it, and what was before is not.
    let trace = live(&server);
    let begun = trace["traceEvents"].as_array().expect("a list").iter();
    assert_eq!(begun.filter(|event| event["ph"] == "s").count(), REQUESTS);
    check(&trace);
    for (body, status) in [(json!({"seconds": 61}), 400), (json!({"seconds": -1}), 400), (json!([]), 400)] {
        assert_eq!(server.post("/debug/trace", &body).status(), status, "{body}");
    }
    server.stop();
}

/// With overlap the model has a thread of its own, which records its steps all the same.
#[test]
fn with_overlap_the_models_thread_is_in_the_trace() {
    let server = Server::fake(&["--fake-step-us", "2000", "--overlap"]);
    traffic(&server);
    let names = check(&server.post("/debug/trace", &json!({})).json());
    let seen = &names["pinion-engine-0"];
    let wanted = ["pinion.engine.step", "pinion.engine.plan", "pinion.prefill", "pinion.decode"];
    assert!(wanted.iter().all(|name| seen.contains(*name)), "{seen:?}");
    server.stop();
}

#[test]
fn without_the_timeline_there_is_no_trace_and_the_service_serves() {
    let server = Server::fake(&["--no-timeline", "--fake-step-us", "1000"]);
    server.check_serves("quietly");
    let response = server.post("/debug/trace", &json!({}));
    assert_eq!((response.status(), &response.json()["error"]["code"]), (503, &json!("unavailable")));
    let folder = Folder::new();
    let out = folder.path().join("trace.json").display().to_string();
    let url = format!("http://{}", server.address());
    let ended = run_to_end(&["trace", "--out", &out, "--url", &url], &[], PATIENCE);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("--no-timeline") && folder.entries().is_empty(), "{}", ended.stderr);
    server.stop();
}
