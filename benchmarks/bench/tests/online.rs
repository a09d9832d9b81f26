//! The tool against real processes: a Pinion with the fake model, and the tool's own null server.

use pinion_testkit::{Folder, PATIENCE, Server, free_port, launcher_binary, wait_until};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pinion-bench"))
        .args(arguments)
        .output()
        .expect("pinion-bench can be run")
}

fn check_success(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
}

fn json(folder: &Folder, name: &str) -> Value {
    let text = std::fs::read_to_string(folder.path().join(name)).expect("a result");
    serde_json::from_str(&text).expect("JSON")
}

/// The cells of a CSV file without quotes, by line and column name.
fn rows(folder: &Folder, name: &str) -> Vec<Vec<(String, String)>> {
    let text = std::fs::read_to_string(folder.path().join(name)).expect("raw rows");
    let mut lines = text.lines();
    let names: Vec<String> = lines.next().expect("a header").split(',').map(str::to_owned).collect();
    lines.map(|line| names.iter().cloned().zip(line.split(',').map(str::to_owned)).collect()).collect()
}

fn cell(row: &[(String, String)], name: &str) -> u64 {
    let found = row.iter().find(|(column, _)| column == name).expect("the column is there");
    found.1.parse().unwrap_or_else(|_| panic!("{name}: {}", found.1))
}

/// Ends the process with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Four requests, so that the slowest 5 % are one.
fn check_tail(tail: &Value) {
    let (slowest, all) = (&tail["slowest"], &tail["all"]);
    assert_eq!((&slowest["requests"], &all["requests"]), (&1.into(), &4.into()), "{tail}");
    assert!(all["stages_ms"]["decode"].as_f64() > Some(0.0), "{tail}");
    assert!(slowest["e2e_ms"].as_f64() >= all["e2e_ms"].as_f64(), "{tail}");
    assert!(tail["token_to_socket_ms"]["p50"].as_f64() > Some(0.0), "{tail}");
}

#[test]
fn a_trace_is_replayed_and_every_token_counted() {
    let server = Server::fake(&[]);
    let folder = Folder::new();
    // (seconds, input, output): the second is cut to the context of 512, the last comes long after.
    let lengths = [(0.0, 20, 5), (0.1, 900, 40), (0.1, 3, 1), (0.4, 100, 30)];
    let mut trace = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n".to_owned();
    for (seconds, input, output) in lengths {
        trace.push_str(&format!("2023-11-16 18:17:{:010.7},{input},{output}\r\n", 3.0 + seconds));
    }
    folder.write("trace.csv", &trace);
    let url = format!("http://{}", server.address());
    let arguments = [
        "online",
        "--url",
        &url,
        "--trace",
        &format!("{}/trace.csv", folder.text()),
        "--vocab",
        "257",
        "--context",
        "512",
        "--scales",
        "0.5,1",
        "--slo",
        "e2e=30000",
        "--warmup",
        "2",
        "--timings",
        "--out",
        folder.text(),
    ];
    let before = server.metric("pinion_engine_generated_tokens_total");
    check_success(&bench(&arguments));
    server.wait_idle();
    let generated = server.metric("pinion_engine_generated_tokens_total") - before;
    let result = json(&folder, "online.json");
    let runs = result["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 2);
    for run in runs {
        let figures = &run["figures"];
        assert_eq!(
            (figures["requests"].as_u64(), figures["completed"].as_u64()),
            (Some(4), Some(4)),
            "{figures}"
        );
        assert_eq!(figures["output_tokens"], 76, "{figures}");
        assert_eq!(figures["input_tokens"], 20 + 472 + 3 + 100, "{figures}");
        assert_eq!(run["server_output_tokens"], 76);
        assert_eq!(figures["goodput"]["good"], 4);
        assert_eq!(figures["shorter_than_asked"], 0);
        check_tail(&figures["tail"]);
        assert!(figures["ttft_ms"]["p50"].as_f64() > Some(0.0), "{figures}");
        let rows = rows(&folder, run["rows_file"].as_str().expect("a file"));
        let scale = run["scale"].as_f64().expect("a scale");
        for (row, (seconds, _, output)) in rows.iter().zip(lengths) {
            // A time of day has 0.2 µs of room in a float; the column is whole µs, cut off.
            let due_us = seconds * 1e6 * scale;
            assert!((cell(row, "scheduled_us") as f64 - due_us).abs() <= 1.0, "{row:?} {due_us}");
            assert_eq!(cell(row, "output"), output);
            assert!(cell(row, "sent_us") >= cell(row, "scheduled_us"));
            assert!(cell(row, "end_us") >= cell(row, "first_us"));
        }
    }
    assert_eq!(generated, 2.0 * (76.0 + 2.0 * 32.0), "two runs, each with its warm-up");
    // Once more: everything is there, and the server has nothing to do.
    check_success(&bench(&arguments));
    assert_eq!(json(&folder, "online.json")["runs"], result["runs"]);
    assert_eq!(server.metric("pinion_engine_generated_tokens_total") - before, generated);
    server.stop();
}

#[test]
fn batches_on_one_server_find_nothing_in_its_cache() {
    let server = Server::fake(&[]);
    let folder = Folder::new();
    let url = format!("http://{}", server.address());
    let lengths = ["--num-prompts", "3", "--input-len", "64", "--output-len", "2"];
    let shape = ["--vocab", "257", "--context", "512", "--rounds", "2", "--out", folder.text()];
    check_success(&bench(&[&["offline", "--url", &url], &lengths[..], &shape].concat()));
    let result = json(&folder, "offline.json");
    let runs = result["runs"].as_array().expect("runs");
    let cached: Vec<_> = runs.iter().map(|run| run["figures"]["cached_tokens"].as_u64()).collect();
    assert_eq!(cached, [Some(0), Some(0)], "{runs:?}");
    server.stop();
}

const STALL_AT_MS: u64 = 400;
const STALL_MS: u64 = 1200;
/// Another program may hold a core, so that the client is late by a part of a stall; one undisturbed try is enough.
const TRIES: usize = 10;

#[test]
fn a_stall_shows_in_every_request_that_it_touches() {
    let mut disturbed = Vec::new();
    while disturbed.len() < TRIES {
        match a_stall_shows() {
            Ok(()) => return,
            Err(why) => disturbed.push(why),
        }
    }
    panic!("{disturbed:#?}");
}

fn a_stall_shows() -> Result<(), String> {
    let folder = Folder::new();
    let port = free_port();
    let (port_text, at, length) = (port.to_string(), STALL_AT_MS.to_string(), STALL_MS.to_string());
    let arguments = [
        "null-server",
        "--port",
        &port_text,
        "--stall-at-ms",
        &at,
        "--stall-ms",
        &length,
        "--first-us",
        "1000",
        "--token-us",
        "1000",
    ];
    let server = Command::new(env!("CARGO_BIN_EXE_pinion-bench")).args(arguments).spawn().expect("started");
    let _server = Ended(server);
    wait_until("the null server listens", PATIENCE, || TcpStream::connect(("127.0.0.1", port)).ok());
    let url = format!("http://127.0.0.1:{port}");
    check_success(&bench(&[
        "online",
        "--url",
        &url,
        "--vocab",
        "100",
        "--context",
        "64",
        "--poisson",
        "100",
        "--requests",
        "200",
        "--input-len",
        "8",
        "--output-len",
        "4",
        "--warmup",
        "0",
        "--out",
        folder.text(),
    ]));
    let result = json(&folder, "online.json");
    let rows = rows(&folder, result["runs"][0]["rows_file"].as_str().expect("a file"));
    // The stall counts from the first request's arrival at the server.
    let begin = cell(&rows[0], "sent_us") + STALL_AT_MS * 1000;
    let end = begin + STALL_MS * 1000;
    let mut touched = 0;
    for row in &rows {
        // The clocks of the two sides are the same; what lies between sending and arriving is not known, and the stall
        // is later by as much.
        let scheduled = cell(row, "scheduled_us");
        if (begin + 400_000..end - 1000).contains(&scheduled) {
            touched += 1;
            if cell(row, "first_us") < end {
                return Err(format!("{row:?} came out of a stall until {end}"));
            }
        }
        // No request waited for the stalled ones: the schedule is kept.
        if scheduled < end - 800_000 && cell(row, "sent_us") >= end {
            return Err(format!("{row:?} was held back by the stall until {end}"));
        }
    }
    let ttft = &result["runs"][0]["figures"]["ttft_ms"];
    if touched <= 50 || ttft["max"].as_f64() <= Some(900.0) || ttft["p50"].as_f64() <= Some(50.0) {
        return Err(format!("{touched} requests fell into the stall: {ttft}"));
    }
    Ok(())
}

#[test]
fn the_client_measures_itself() {
    let folder = Folder::new();
    let arguments = [
        "online",
        "--self-test",
        "--vocab",
        "100",
        "--context",
        "64",
        "--poisson",
        "50",
        "--requests",
        "20",
        "--input-len",
        "8",
        "--output-len",
        "8",
        "--warmup",
        "1",
        "--out",
        folder.text(),
    ];
    check_success(&bench(&arguments));
    let figures = &json(&folder, "online.json")["runs"][0]["figures"];
    assert_eq!((figures["completed"].as_u64(), figures["output_tokens"].as_u64()), (Some(20), Some(160)));
    assert_eq!(figures["wire_lag_ms"]["count"], 160, "each token says when it was written");
    assert!(figures["client"]["cpu_s"].as_f64() > Some(0.0));
}

#[test]
fn a_closed_loop_keeps_its_streams_busy_and_no_more() {
    let server = Server::fake(&["--fake-step-us", "500"]);
    let folder = Folder::new();
    let url = format!("http://{}", server.address());
    check_success(&bench(&[
        "online",
        "--url",
        &url,
        "--vocab",
        "257",
        "--context",
        "512",
        "--streams",
        "3",
        "--requests",
        "10",
        "--input-len",
        "8",
        "--output-len",
        "6",
        "--warmup",
        "0",
        "--out",
        folder.text(),
    ]));
    let run = &json(&folder, "online.json")["runs"][0];
    assert_eq!(
        (run["streams"].as_u64(), run["figures"]["output_tokens"].as_u64()),
        (Some(3), Some(60)),
        "{run}"
    );
    let rows = rows(&folder, run["rows_file"].as_str().expect("a file"));
    // A request is open from its sending to its end; at no sending are three others open.
    for row in &rows {
        let sent = cell(row, "sent_us");
        let open = rows.iter().filter(|other| cell(other, "sent_us") < sent && cell(other, "end_us") > sent);
        assert!(open.count() < 3, "{row:?}");
        assert_eq!(cell(row, "scheduled_us"), sent);
    }
    server.stop();
}

#[test]
fn switches_take_turns_and_unknown_ones_are_skipped() {
    let folder = Folder::new();
    let model = pinion_testkit::fake_model(128);
    let scenario = format!(
        "name = \"t\"\nseed = 3\nrounds = 3\nworkload = \"offline --vocab 257 --num-prompts 6 --input-len 12 --output-len 5\"\n\
         server = \"'{}' serve --backend fake --model {} --port {{port}}\"\n\
         switches = [\"--no-fast-sse\", \"--no-such-switch\"]\ninert = [\"--no-ui\"]\nmetrics = [\"output_tok_s\"]\n",
        launcher_binary().display(),
        model.text()
    );
    folder.write("s.toml", &scenario);
    let file = format!("{}/s.toml", folder.text());
    let arguments = ["ablate", &file, "--out", folder.text()];
    let output = bench(&arguments);
    check_success(&output);
    let result = json(&folder, "ablate.json");
    let labels: Vec<&str> =
        result["runs"].as_array().expect("runs").iter().filter_map(|r| r["label"].as_str()).collect();
    let count = |label: &str| labels.iter().filter(|found| **found == label).count();
    assert_eq!((count("base"), count("-fast-sse"), count("-ui"), labels.len()), (3, 3, 3, 9), "{labels:?}");
    assert_eq!(result["inert"], serde_json::json!(["-ui"]));
    for run in result["runs"].as_array().expect("runs") {
        assert_eq!(
            (run["figures"]["output_tokens"].as_u64(), run["server_output_tokens"].as_u64()),
            (Some(30), Some(30))
        );
    }
    let notes = result["notes"].to_string();
    assert!(notes.contains("-such-switch skipped") && notes.contains("no such flag"), "{notes}");
    let compared = result["compared"].as_array().expect("ratios");
    let switch = compared.iter().find(|row| row["label"] == "-fast-sse").expect("compared");
    assert_eq!(switch["pairs"], 3);
    assert!(switch["low"].as_f64() <= switch["ratio"].as_f64(), "{switch}");
    // Three rounds are too few, and so is one switch that cannot act: there is a ratio, and no verdict.
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("(1) no verdict: 3 of the 5 paired rounds that it takes"), "{table}");
    assert!(switch["better"].is_null() && switch["reason"].as_str().is_some(), "{switch}");
    let version = &result["runs"][0]["server"]["version"];
    assert!(version["version"].as_str().is_some(), "{version}");
    check_success(&bench(&arguments));
    assert_eq!(json(&folder, "ablate.json")["runs"], result["runs"], "a second call repeats nothing");
}

/// A server that serves a model and says nothing else of itself: port of the loopback. It ends with the test's process.
fn nameless_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                match stream.read(&mut byte) {
                    Ok(1) => head.push(byte[0]),
                    _ => break,
                }
            }
            let known = head.starts_with(b"GET /v1/models ");
            let (status, body) =
                if known { ("200 OK", r#"{"data":[{"id":"m"}]}"#) } else { ("404 Not Found", "") };
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
        }
    });
    port
}

#[test]
fn a_peer_without_a_version_is_refused_before_it_is_measured() {
    let folder = Folder::new();
    let scenario = |version: &str| {
        let text = format!(
            "name = \"t\"\nworkload = \"offline --vocab 257 --num-prompts 2 --input-len 4 --output-len 2\"\n\
             metrics = [\"output_tok_s\"]\n\
             [[variant]]\nlabel = \"peer\"\nurl = \"http://127.0.0.1:{port}\"\n{version}\
             [[variant]]\nlabel = \"again\"\nurl = \"http://127.0.0.1:{port}\"\n{version}",
            port = nameless_server()
        );
        folder.write("s.toml", &text);
        let file = format!("{}/s.toml", folder.text());
        let output = bench(&["compare", &file, "--out", folder.text()]);
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let refused = scenario("");
    assert!(refused.contains("does not say its version") && refused.contains("`version`"), "{refused}");
    // With one it goes on, as far as a server that has no completions lets it.
    let measured = scenario("version = \"echo b1234\"\n");
    assert!(measured.contains("http 404") && !measured.contains("version"), "{measured}");
}

#[test]
fn the_launcher_hands_on_to_the_tool() {
    let output =
        Command::new(launcher_binary()).args(["bench", "online", "--help"]).output().expect("pinion runs");
    check_success(&output);
    assert!(String::from_utf8_lossy(&output.stdout).contains("--trace"), "the tool's own help");
    // The engine's part of the tool is the engine's own.
    let output = bench(&["replay", "no-such-file"]);
    assert!(!output.status.success());
    // Nothing to measure: the tool says so, and ends with a failure.
    let output =
        bench(&["online", "--url", "http://127.0.0.1:9", "--vocab", "9", "--context", "9", "--poisson", "1"]);
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.starts_with("pinion: error: ") && stderr.contains("lists no model"), "{stderr}");
    assert_eq!((stderr.lines().count(), output.stdout.len()), (1, 0), "{stderr}");
}

/// Arrivals at a rate below 0 would come all at once, under the name of that rate.
#[test]
fn numbers_that_mean_no_work_are_refused_by_their_flag() {
    let folder = Folder::new();
    for (flags, said) in [
        ("--poisson=-4", "--poisson is above 0"),
        ("--poisson 0", "--poisson is above 0"),
        ("--poisson 1 --gamma-shape 0", "--gamma-shape is above 0"),
        ("--poisson 1 --requests 0", "--requests is above 0"),
        ("--poisson 1 --scales 1,0", "--scales is above 0"),
        ("--poisson 1 --rate=3,-1", "--rate is above 0"),
        ("--poisson 1 --requests 1 --rate 3", "--rate: requests that come all at once"),
        ("--streams 2,0", "--streams is above 0"),
    ] {
        let server = ["online", "--url", "http://127.0.0.1:1", "--model", "m"];
        let fixed = ["--vocab", "9", "--context", "512", "--out", folder.text()];
        let output = bench(&server.into_iter().chain(fixed).chain(flags.split(' ')).collect::<Vec<_>>());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(said), "{flags}: {text}");
    }
}
