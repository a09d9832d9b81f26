//! A log that is not read or cannot be written costs its lines and nothing else: requests are answered, slots come
//! back, dead roles are replaced, a drain ends well. What is lost is counted, told by health and by the log itself.

use pinion_testkit::{Answer, Api, Connection, End, PATIENCE, Server, Signal, kill, wait_until};
use serde_json::{Value, json};
use std::io::{PipeReader, Read};
use std::process::Stdio;

/// More lines than a pipe of 64 KiB and both buffers of a process hold.
const REQUESTS_MANY: usize = 1600;
const REQUESTS_FEW: usize = 300;
/// Makes each line of the log some 350 bytes long.
const LABEL_BYTES: usize = 120;
const DROPPED: &str = "pinion_log_lines_dropped_total";

fn answer(connection: &mut Connection, number: usize) -> (u16, String) {
    let label = format!("{number:0>LABEL_BYTES$}");
    let body = json!({"prompt": "x", "max_tokens": 1}).to_string();
    let asked = connection.request("POST", "/v1/completions", &[("x-request-id", &label)], body.as_bytes());
    asked.expect("a request can be written");
    let response = connection.response().expect("every request is answered");
    (response.status(), response.text())
}

fn log_health(server: &Server) -> (u16, Value) {
    let health = server.get("/health");
    (health.status(), health.json()["log"].clone())
}

/// Requests, a death and another, while the log is what it is.
fn check_under_load(server: &Server, requests: usize) {
    let mut connection = server.connect();
    for number in 0..requests {
        let (status, text) = answer(&mut connection, number);
        assert_eq!(status, 200, "request {number}: {text}");
    }
    assert_eq!(server.post("/tokenize", &json!({"prompt": "x"})).status(), 200);
    drop(connection);
    server.wait_idle();
    for role in ["tokenizer-0", "engine-0"] {
        let old = server.role(role).unwrap_or_else(|| panic!("{role} runs")).pid;
        kill(old, Signal::SIGKILL);
        wait_until(&format!("{role} has a successor"), PATIENCE, || {
            server.role(role).filter(|found| found.pid != old)
        });
        server.check_serves("after a death");
        wait_until("health is 200 again", PATIENCE, || (log_health(server).0 == 200).then_some(()));
    }
    server.wait_idle();
}

/// A stream that is open when the service is told to end is finished, and the exit code is 0.
fn check_drain(mut server: Server) {
    let body = json!({"prompt": "let me finish", "max_tokens": 480, "stream": true});
    let stream = server.begin(Api::Completions, &[body]).remove(0);
    server.signal(Signal::SIGTERM);
    let answer = Answer::of_events(Api::Completions, stream);
    assert_eq!(answer.end, End::Complete, "{answer:?}");
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    assert_eq!(server.processes(), [], "processes left");
}

/// Lines are written, and lost, by a thread of their own.
fn check_losing(server: &Server) {
    let (status, log) = wait_until("the frontend loses lines", PATIENCE, || {
        let (status, log) = log_health(server);
        let names = log["losing"].as_array()?;
        names.contains(&json!("frontend-0")).then_some((status, log.clone()))
    });
    assert_eq!((status, &log["status"]), (200, &json!("losing")), "{log}");
    let counted = server.metric(DROPPED);
    assert!(counted > 0.0 && log["lines_dropped"].as_f64().is_some_and(|told| told > 0.0), "{counted} {log}");
}

const FLAGS: [&str; 2] = ["--fake-step-us", "3000"];

#[test]
fn a_log_whose_reader_is_gone_costs_its_lines_only() {
    let (reader, writer) = std::io::pipe().expect("a pipe can be made");
    let server = Server::fake_by_shell(r#"exec "$0" "$@""#, Stdio::from(writer), &FLAGS);
    assert_eq!(log_health(&server).1, json!({"status": "ok", "losing": [], "lines_dropped": 0}));
    drop(reader);
    check_under_load(&server, REQUESTS_FEW);
    check_losing(&server);
    check_drain(server);
}

#[test]
fn a_log_on_a_full_disk_costs_its_lines_only() {
    let server = Server::fake_by_shell(r#"exec "$0" "$@" 2>/dev/full"#, Stdio::null(), &FLAGS);
    check_under_load(&server, REQUESTS_FEW);
    check_losing(&server);
    check_drain(server);
}

#[test]
fn a_closed_standard_error_is_no_fault() {
    let server = Server::fake_by_shell(r#"exec "$0" "$@" 2>&-"#, Stdio::null(), &FLAGS);
    check_under_load(&server, REQUESTS_FEW);
    check_drain(server);
}

/// Reads what is there, in a thread that ends with the last writer.
fn read_on(mut reader: PipeReader) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).expect("a pipe can be read");
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

#[test]
fn a_log_that_is_not_read_blocks_no_process_and_tells_what_is_missing() {
    let (reader, writer) = std::io::pipe().expect("a pipe can be made");
    let server = Server::fake_by_shell(r#"exec "$0" "$@""#, Stdio::from(writer), &FLAGS);
    check_under_load(&server, REQUESTS_MANY);
    check_losing(&server);
    let text = read_on(reader);
    wait_until("lines go through again", PATIENCE, || {
        answer(&mut server.connect(), 0);
        (log_health(&server).1["status"] == "ok").then_some(())
    });
    let dropped = server.metric(DROPPED);
    answer(&mut server.connect(), 1);
    assert_eq!(server.metric(DROPPED), dropped, "nothing is lost while the log is read");
    check_drain(server);
    let text = text.join().expect("the reading thread ends");
    let told = text.lines().filter(|line| line.contains("log lines were dropped"));
    let counts = told.filter_map(|line| line.rsplit_once("lines=")?.1.parse::<f64>().ok());
    assert_eq!(counts.sum::<f64>(), dropped, "the log tells how many lines are missing");
    assert!(text.lines().any(|line| line.ends_with("stopped")), "the launcher's last line is there");
}

/// The launcher and all roles share one log.
#[test]
fn the_service_in_one_process_goes_on_without_a_log() {
    let (reader, writer) = std::io::pipe().expect("a pipe can be made");
    let flags = [&FLAGS[..], &["--in-process"]].concat();
    let server = Server::fake_by_shell(r#"exec "$0" "$@""#, Stdio::from(writer), &flags);
    drop(reader);
    let mut connection = server.connect();
    for number in 0..REQUESTS_FEW {
        assert_eq!(answer(&mut connection, number).0, 200, "request {number}");
    }
    server.wait_idle();
    wait_until("the process loses lines", PATIENCE, || {
        let (status, log) = log_health(&server);
        assert_eq!(status, 200, "{log}");
        (log["losing"] == json!(["launcher-0"])).then_some(())
    });
    check_drain(server);
}
