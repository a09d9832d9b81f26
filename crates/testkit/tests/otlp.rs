//! Spans of requests at a collector: they nest, join the trace of their caller and hold no text; and whatever becomes
//! of the collector, no request notices.

use pinion_testkit::{
    Answer, Api, Collector, End, Events, Mood, PATIENCE, Response, Server, Signal, TakenSpan, free_port,
    kill, wait_until,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const KEY: &str = "sk-nobody-may-see-this";
const PROMPT: &str = "words that only the model may see";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";
const STAGES: [&str; 9] = [
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
const SENT: &str = "pinion_trace_spans_sent_total";
const DROPPED: &str = "pinion_trace_spans_dropped_total";
/// Of the line about spans that were dropped.
const LOST: &str = "spans were dropped";

fn server(collector: &Collector, flags: &[&str]) -> Server {
    Server::fake(&[&["--otlp-traces-endpoint", &collector.endpoint()], flags].concat())
}

/// A trace: the request's span, and those of its stages in the order of time.
type Trace = (TakenSpan, Vec<TakenSpan>);

/// All that were taken, by the label of their request. Every span of a stage has its request's.
fn traces(collector: &Collector) -> BTreeMap<String, Trace> {
    let (roots, mut stages): (Vec<_>, Vec<_>) =
        collector.spans().into_iter().partition(|span| span.json["kind"] == 2);
    stages.sort_by_key(TakenSpan::interval);
    let mut traces = BTreeMap::new();
    for root in roots {
        let of_root = |span: &TakenSpan| span.text("parentSpanId") == root.text("spanId");
        let (own, others) = stages.into_iter().partition(of_root);
        stages = others;
        let label = root.attributes["gen_ai.request.id"].as_str().expect("a label").to_owned();
        assert!(traces.insert(label, (root, own)).is_none());
    }
    assert!(stages.is_empty(), "stages without a request: {stages:?}");
    traces
}

/// Waits for the trace of the request with this label.
fn trace(collector: &Collector, label: &str) -> Trace {
    wait_until("the collector has the trace", PATIENCE, || traces(collector).remove(label))
}

fn is_id(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'))
}

/// Checks that the stages are of the same trace and lie one after another within their request.
fn check_nests((root, stages): &Trace) {
    let [begin, end] = root.interval();
    assert!(begin < end && is_id(root.text("traceId"), 32) && is_id(root.text("spanId"), 16), "{root:?}");
    let mut before = begin;
    for stage in stages {
        let [stage_begin, stage_end] = stage.interval();
        assert!(stage_begin == before && stage_begin <= stage_end && stage_end <= end, "{root:?} {stage:?}");
        assert_eq!(stage.text("traceId"), root.text("traceId"));
        assert_eq!((stage.text("traceState"), &stage.json["kind"]), (root.text("traceState"), &json!(1)));
        assert!(is_id(stage.text("spanId"), 16), "{stage:?}");
        before = stage_end;
    }
}

fn names(stages: &[TakenSpan]) -> Vec<&str> {
    stages.iter().map(|stage| stage.text("name")).collect()
}

fn post(server: &Server, path: &str, fields: &[(&str, &str)], body: &Value) -> Response {
    server.request("POST", path, fields, body.to_string().as_bytes()).expect("an answer")
}

#[test]
fn spans_nest_join_their_caller_and_hold_no_text() {
    for in_process in [false, true] {
        let collector = Collector::new(Mood::Takes);
        let mut flags = vec!["--api-key", KEY, "--served-model-name", "tiny"];
        if in_process {
            flags.push("--in-process");
        }
        let server = server(&collector, &flags);
        let authorization = format!("Bearer {KEY}");
        let parent = format!("00-{TRACE}-{CALLER}-01");
        let mut texts = Vec::new();
        for stream in [false, true] {
            let label = format!("caller-{stream}");
            let fields = [
                ("Authorization", authorization.as_str()),
                ("X-Request-Id", &label),
                ("traceparent", &parent),
                ("tracestate", "vendor=1"),
                ("tracestate", "other=2"),
            ];
            let body =
                json!({"prompt": PROMPT, "max_tokens": 20, "temperature": 0.7, "seed": 1, "stream": stream});
            let mut connection = server.connect();
            let bytes = body.to_string();
            connection.request("POST", "/v1/completions", &fields, bytes.as_bytes()).expect("it is read");
            let answer = Answer::read(Api::Completions, stream, connection);
            assert_eq!(answer.end, End::Complete, "{answer:?}");
            texts.push(answer.text);
            let trace = trace(&collector, &label);
            check_nests(&trace);
            let (root, stages) = trace;
            assert_eq!((root.text("traceId"), root.text("parentSpanId")), (TRACE, CALLER));
            assert_eq!(root.text("traceState"), "vendor=1,other=2");
            assert_eq!((root.text("name"), root.failed()), ("text_completion tiny", false));
            assert_eq!(names(&stages), STAGES);
            let [_, end] = root.interval();
            assert_eq!(stages[8].interval()[1], end, "nothing follows the last bytes");
            for (name, value) in [
                ("gen_ai.operation.name", json!("text_completion")),
                ("gen_ai.request.model", json!("tiny")),
                ("gen_ai.request.max_tokens", json!(20)),
                ("gen_ai.request.temperature", json!(0.7)),
                ("gen_ai.request.top_p", json!(1.0)),
                ("gen_ai.usage.prompt_tokens", json!(PROMPT.len())),
                ("gen_ai.usage.input_tokens", json!(PROMPT.len())),
                ("gen_ai.usage.completion_tokens", json!(20)),
                ("gen_ai.usage.output_tokens", json!(20)),
                ("gen_ai.response.finish_reasons", json!(["length"])),
                ("http.response.status_code", json!(200)),
                ("http.route", json!("/v1/completions")),
            ] {
                assert_eq!(root.attributes.get(name), Some(&value), "{name}");
            }
            let seconds = |name: &str| root.attributes[name].as_f64().expect("seconds");
            let decode = seconds("gen_ai.latency.time_in_model_decode");
            let inference = seconds("gen_ai.latency.time_in_model_inference");
            assert!(decode <= inference && inference < seconds("gen_ai.latency.e2e"));
            assert!(seconds("gen_ai.latency.time_to_first_token") <= seconds("gen_ai.latency.e2e"));
            assert!(seconds("gen_ai.latency.time_in_queue") >= 0.0);
        }
        check_secrets(&collector, &texts);
        assert_eq!(collector.resource(), BTreeMap::from([("service.name".to_owned(), json!("pinion"))]));
        server.stop();
    }
}

/// Checks that nothing that was sent has a key or a text in it.
fn check_secrets(collector: &Collector, texts: &[String]) {
    let all = collector.bodies().concat() + &collector.heads().concat();
    assert!(!all.contains(KEY), "the key was sent");
    for text in texts.iter().map(String::as_str).chain([PROMPT]) {
        let escaped = json!(text).to_string();
        assert!(text.len() > 8 && !all.contains(escaped.trim_matches('"')), "a text was sent: {text}");
    }
}

#[test]
fn a_caller_decides_what_is_recorded_and_a_broken_field_is_none() {
    let collector = Collector::new(Mood::Takes);
    let server = server(&collector, &[]);
    let body = json!({"prompt": "x", "max_tokens": 2});
    let parents = [
        ("unsampled", format!("00-{TRACE}-{CALLER}-00")),
        ("broken", format!("00-{TRACE}-{CALLER}")),
        ("zero", format!("00-{}-{CALLER}-01", "0".repeat(32))),
        ("later", format!("01-{TRACE}-{CALLER}-01-more")),
    ];
    for (label, parent) in &parents {
        let fields = [("X-Request-Id", *label), ("traceparent", parent)];
        assert_eq!(post(&server, "/v1/completions", &fields, &body).status(), 200);
    }
    // What is for no model has no span.
    assert_eq!(server.post("/tokenize", &json!({"prompt": "x"})).status(), 200);
    assert_eq!(post(&server, "/v1/completions", &[("X-Request-Id", "last")], &body).status(), 200);
    trace(&collector, "last");
    let traces = traces(&collector);
    assert_eq!(traces.keys().collect::<Vec<_>>(), ["broken", "last", "later", "zero"]);
    let ids: Vec<&str> = traces.values().map(|(root, _)| root.text("traceId")).collect();
    assert_eq!(ids[2], TRACE);
    assert!(ids[0] != TRACE && ids[0] != ids[1] && ids[0] != ids[3], "{ids:?}");
    for label in ["broken", "last", "zero"] {
        assert_eq!(traces[label].0.text("parentSpanId"), "", "{label}");
    }
    traces.values().for_each(check_nests);
    server.stop();
}

#[test]
fn several_choices_are_one_request() {
    let collector = Collector::new(Mood::Takes);
    let server = server(&collector, &[]);
    let body = json!({"prompt": ["one", "another"], "n": 2, "max_tokens": 3, "temperature": 1.0});
    assert_eq!(post(&server, "/v1/completions", &[("X-Request-Id", "all")], &body).status(), 200);
    let (root, stages) = trace(&collector, "all");
    assert_eq!(root.attributes["gen_ai.usage.num_sequences"], json!(4));
    assert_eq!(root.attributes["gen_ai.usage.prompt_tokens"], json!("oneanother".len()));
    assert_eq!(root.attributes["gen_ai.usage.completion_tokens"], json!(12));
    assert_eq!(root.attributes["gen_ai.response.finish_reasons"], json!(vec!["length"; 4]));
    for sequence in 0..4 {
        let of_sequence = |stage: &TakenSpan| stage.attributes["pinion.sequence"] == json!(sequence);
        let own: Vec<TakenSpan> = stages.iter().filter(|stage| of_sequence(stage)).cloned().collect();
        assert_eq!(names(&own), STAGES);
        check_nests(&(root.clone(), own));
    }
    server.stop();
}

#[test]
fn the_texts_of_an_embedding_are_one_request() {
    let collector = Collector::new(Mood::Takes);
    let server = server(&collector, &["--pooling", "last", "--served-model-name", "tiny"]);
    let body = json!({"input": ["one", "another", "third"]});
    let response = post(&server, "/v1/embeddings", &[("X-Request-Id", "vectors")], &body);
    assert_eq!(response.status(), 200, "{}", response.text());
    let (root, stages) = trace(&collector, "vectors");
    assert_eq!((root.text("name"), root.failed()), ("embeddings tiny", false));
    assert_eq!(root.attributes["gen_ai.usage.num_sequences"], json!(3));
    assert_eq!(root.attributes["gen_ai.usage.input_tokens"], response.json()["usage"]["prompt_tokens"]);
    for sequence in 0..3 {
        let of_sequence = |stage: &TakenSpan| stage.attributes["pinion.sequence"] == json!(sequence);
        let own: Vec<TakenSpan> = stages.iter().filter(|stage| of_sequence(stage)).cloned().collect();
        assert_eq!(names(&own), [&STAGES[..6], &["write"]].concat());
        check_nests(&(root.clone(), own));
    }
    server.stop();
}

#[test]
fn what_failed_and_what_was_left_is_an_error() {
    let collector = Collector::new(Mood::Takes);
    let server = server(&collector, &["--fake-step-us", "20000", "--no-resume"]);
    let fields = |label: &'static str| [("X-Request-Id", label)];

    let refused = json!({"prompt": "x", "max_tokens": 2, "temperature": -1});
    assert_eq!(post(&server, "/v1/completions", &fields("refused"), &refused).status(), 400);
    let (root, stages) = trace(&collector, "refused");
    assert_eq!((root.failed(), stages.len()), (false, 0), "a client's own fault");
    assert_eq!(root.attributes["http.response.status_code"], json!(400));
    // So is what is refused before its body is read.
    let encoded = [("X-Request-Id", "encoded"), ("Content-Encoding", "br")];
    assert_eq!(post(&server, "/v1/completions", &encoded, &refused).status(), 415);
    let (root, stages) = trace(&collector, "encoded");
    assert_eq!((root.failed(), stages.len()), (false, 0));
    assert_eq!(root.attributes["http.response.status_code"], json!(415));

    let long = json!({"prompt": "x", "max_tokens": 400, "stream": true}).to_string();
    let begun = |label: &'static str| {
        let mut connection = server.connect();
        connection.request("POST", "/v1/completions", &fields(label), long.as_bytes()).expect("it is read");
        let head = connection.head().expect("an answer begins");
        assert_eq!(head.status, 200);
        (head, connection)
    };
    begun("left").1.reset();
    let (root, stages) = trace(&collector, "left");
    check_nests(&(root.clone(), stages.clone()));
    assert!(root.failed() && stages.last().is_some_and(TakenSpan::failed), "{root:?}");
    assert_eq!(stages.last().map(|stage| stage.text("name")), Some("decode"));
    assert_eq!(root.attributes["error.type"], json!("disconnected"));
    assert!(stages[..stages.len() - 1].iter().all(|stage| !stage.failed()));

    let (head, broken) = begun("broken");
    kill(server.role("engine-0").expect("it runs").pid, Signal::SIGKILL);
    let answer = Answer::of_events(Api::Completions, Events::new(broken, head));
    assert!(matches!(answer.end, End::Error(_)), "{answer:?}");
    let (root, stages) = trace(&collector, "broken");
    check_nests(&(root.clone(), stages));
    assert!(root.failed());
    assert_eq!(root.attributes["error.type"], json!("engine"));
    server.stop();
}

/// The number of lines that tell of lost spans.
fn warnings(server: &Server) -> usize {
    server.stderr_text().lines().filter(|line| line.contains(LOST)).count()
}

#[test]
fn a_collector_that_refuses_costs_the_spans_and_one_line() {
    let collector = Collector::new(Mood::Refuses(500));
    let server = server(&collector, &[]);
    let mut asked = 0;
    let ask = || server.check_serves("the answer comes");
    while collector.batches() < 3 {
        ask();
        asked += 1;
        let dropped = f64::from(asked * (1 + STAGES.len() as u32));
        wait_until("they are counted", PATIENCE, || (server.metric(DROPPED) == dropped).then_some(()));
    }
    assert_eq!((server.metric(SENT), warnings(&server)), (0.0, 1));
    let before = server.metric(DROPPED);

    collector.become_one_that(Mood::Rejects(4));
    ask();
    wait_until("some were taken", PATIENCE, || (server.metric(SENT) == 6.0).then_some(()));
    assert_eq!(server.metric(DROPPED), before + 4.0);

    collector.become_one_that(Mood::Takes);
    ask();
    wait_until("all were taken", PATIENCE, || (server.metric(SENT) == 16.0).then_some(()));
    assert_eq!((server.metric(DROPPED), warnings(&server)), (before + 4.0, 1));
    server.stop();
}

#[test]
fn a_collector_that_hangs_or_is_not_there_holds_nothing_up() {
    let hangs = Collector::new(Mood::Hangs);
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    for endpoint in [hangs.endpoint(), nowhere, "http://no-such-host.invalid:1".to_owned()] {
        let server = Server::fake(&["--otlp-traces-endpoint", &endpoint]);
        let mut connection = server.connect();
        // More than the queue holds, while the first of them are under way to the collector.
        for _ in 0..2000 {
            let bad = br#"{"prompt": 1}"#;
            connection.request("POST", "/v1/completions", &[], bad).expect("it is read");
            assert_eq!(connection.response().expect("an answer").status(), 400);
        }
        server.check_serves("the answer comes");
        wait_until("spans are dropped", PATIENCE, || (server.metric(DROPPED) > 0.0).then_some(()));
        assert_eq!((server.get("/ready").status(), server.metric(SENT)), (200, 0.0), "{endpoint}");
        assert!(warnings(&server) <= 1, "{endpoint}");
        server.stop();
    }
}

#[test]
fn the_last_spans_are_sent_before_the_service_ends() {
    let collector = Collector::new(Mood::Takes);
    // Nothing is sent before the process leaves: its batch waits for a second.
    let mut quick = server(&collector, &[]);
    let body = json!({"prompt": "x", "max_tokens": 2});
    assert_eq!(post(&quick, "/v1/completions", &[("X-Request-Id", "quick")], &body).status(), 200);
    quick.signal(Signal::SIGTERM);
    assert_eq!(quick.wait_exit(PATIENCE).code(), Some(0));
    let (root, stages) = traces(&collector).remove("quick").expect("it was sent before the end");
    assert_eq!((root.failed(), names(&stages)), (false, STAGES.to_vec()));

    // A step takes so long that the stream cannot be complete.
    let mut slow = server(&collector, &["--fake-step-us", "250000", "--drain-timeout", "500ms"]);
    let mut connection = slow.connect();
    let body = json!({"prompt": "x", "max_tokens": 400, "stream": true}).to_string();
    connection
        .request("POST", "/v1/completions", &[("X-Request-Id", "cut")], body.as_bytes())
        .expect("it is read");
    let head = connection.head().expect("an answer begins");
    slow.signal(Signal::SIGTERM);
    let answer = Answer::of_events(Api::Completions, Events::new(connection, head));
    assert_ne!(answer.end, End::Complete);
    slow.wait_exit(PATIENCE);
    let trace = traces(&collector).remove("cut").expect("it was sent before the end");
    check_nests(&trace);
    assert!(trace.0.failed() && trace.1.iter().any(|stage| stage.text("name") == "prefill"));
}
