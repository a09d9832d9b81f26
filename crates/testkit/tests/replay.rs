//! A service that is recorded while clients come, stay and leave, and its recording replayed by the engine alone.

use pinion_testkit::{
    Api, Folder, PATIENCE, Server, Signal, fake_model, fixture_model, kill, launcher_binary,
    run_binary_to_end, wait_until,
};
use serde_json::{Value, json};

const STREAMS: usize = 12;

/// Half of the clients sample, a third leaves in mid-stream. One asks for eight texts in one request: however slowly
/// the others come, these are there together.
fn traffic(server: &Server) {
    std::thread::scope(|scope| {
        for n in 0..STREAMS {
            let temperature = if n % 2 == 0 { 0.0 } else { 0.9 };
            let body = json!({"prompt": vec![3 + n, 5, 7], "max_tokens": 20, "stream": true,
                "temperature": temperature, "seed": n, "ignore_eos": true});
            scope.spawn(move || {
                if n % 3 != 0 {
                    server.ask(Api::Completions, &body);
                    return;
                }
                let mut connection = server.connect();
                let bytes = body.to_string();
                connection.request("POST", "/v1/completions", &[], bytes.as_bytes()).expect("a request");
                assert_eq!(connection.head().expect("an answer begins").status, 200);
                connection.reset();
            });
        }
        let prompts: Vec<_> = (0..8).map(|n| vec![40 + n, 8, 9]).collect();
        let together = json!({"prompt": prompts, "max_tokens": 40, "temperature": 0.0, "ignore_eos": true});
        assert_eq!(server.post("/v1/completions", &together).status(), 200);
    });
    server.wait_idle();
}

fn replay(file: &str, flags: &[&str]) -> (Option<i32>, Value, String) {
    let engine = launcher_binary().with_file_name("pinion-engine");
    let arguments = [&["replay", file], flags].concat();
    let ended = run_binary_to_end(&engine, &arguments, &[], PATIENCE);
    let report = serde_json::from_str(&ended.stdout).unwrap_or_default();
    (ended.code, report, ended.stderr)
}

fn check(server: impl FnOnce(&[&str]) -> Server) {
    let folder = Folder::new();
    let file = folder.path().join("run").display().to_string();
    let server = server(&["--record", &file]);
    traffic(&server);
    server.stop();
    let (code, report, stderr) = replay(&file, &[]);
    assert_eq!((code, &report["identical"]), (Some(0), &json!(true)), "{report} {stderr}");
    assert!(stderr.contains("\nidentical: "), "{stderr}");
    assert_eq!((&report["complete"], &report["lost_bytes"]), (&json!(true), &json!(0)));
    assert!(report["tokens"][0].as_u64() > Some(100), "too little to show anything: {report}");
    let (code, report, stderr) = replay(&file, &["--max-num-seqs", "2"]);
    assert_eq!((code, &report["identical"]), (Some(0), &json!(false)), "{report} {stderr}");
    assert!(stderr.contains("\nnot identical: "), "{stderr}");
    assert!(
        report["first_difference"].is_string() && report["steps"][1].as_u64() > report["steps"][0].as_u64()
    );
    assert_eq!(replay(&file, &["--admission", "none"]).0, Some(2));
}

#[test]
fn a_recorded_run_of_the_fake_model_replays() {
    // The folder is read again by the replay.
    let model = fake_model(512);
    let own = ["--backend", "fake", "--fake-step-us", "1000"];
    check(|flags| Server::start(model.path(), &[flags, &own].concat()));
}

#[test]
fn a_recorded_run_of_a_tiny_gpt2_replays() {
    let model = fixture_model();
    check(|flags| Server::start(model.path(), &[flags, &["--dtype", "fp32"]].concat()));
}

#[test]
fn a_recording_into_a_pipe_is_refused_at_start() {
    let (model, folder) = (fake_model(512), Folder::new());
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let (model, pipe) = (model.path().display().to_string(), pipe.display().to_string());
    let arguments = ["serve", &model, "--backend", "fake", "--port", "0", "--record", &pipe];
    let ended = run_binary_to_end(&launcher_binary(), &arguments, &[], PATIENCE);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let says = format!("cannot record into {pipe}: it is not a plain file");
    assert!(ended.stderr.contains(&says), "{}", ended.stderr);
}

/// A file-size limit that the engine meets in mid-run: writing fails as on a full disk.
#[test]
fn a_recording_that_cannot_be_written_ends_and_no_request_does() {
    let (model, folder) = (fake_model(512), Folder::new());
    let file = folder.path().join("run");
    let path = file.display().to_string();
    let server = Server::start(model.path(), &["--backend", "fake", "--record", &path]);
    let engine = server.role("engine-0").expect("an engine").pid;
    let limited = std::process::Command::new("prlimit")
        .args(["--pid", &engine.to_string(), "--fsize=4096"])
        .status()
        .expect("prlimit is part of util-linux");
    assert!(limited.success());
    let prompts: Vec<_> = (0..8).map(|n| vec![40 + n, 8, 9]).collect();
    let body = json!({"prompt": prompts, "max_tokens": 400, "temperature": 0.0, "ignore_eos": true});
    let rounds = (0..200).take_while(|_| {
        let answer = server.post("/v1/completions", &body);
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.json()["usage"]["completion_tokens"], 8 * 400);
        server.metric("pinion_recordings_ended") == 0.0
    });
    assert!(rounds.count() < 200, "the recording never met its limit");
    assert_eq!(server.role("engine-0").map(|role| role.pid), Some(engine), "the engine lives");
    assert_eq!(server.metric("pinion_restarts_total"), 0.0);
    assert!(std::fs::metadata(&file).expect("the recording").len() <= 4096);
    server.stop();
}

/// What the engine wrote before it was killed replays, whichever process was killed, and the file says that its end is
/// missing. The successor of the engine writes a file of its own.
#[test]
fn a_recording_that_a_kill_cuts_short_replays_as_far_as_it_goes() {
    for victim in ["engine-0", "launcher"] {
        let (model, folder) = (fake_model(512), Folder::new());
        let file = folder.path().join("run").display().to_string();
        let flags = ["--backend", "fake", "--fake-step-us", "1000", "--record", &file];
        let mut server = Server::start(model.path(), &flags);
        let prompts: Vec<_> = (0..8).map(|n| vec![40 + n, 8, 9]).collect();
        let body = json!({"prompt": prompts, "max_tokens": 400, "temperature": 0.0, "ignore_eos": true});
        let size = || std::fs::metadata(&file).map_or(0, |file| file.len());
        let before = size();
        assert!(before > 12, "the header is there from the beginning");
        assert_eq!(server.post("/v1/completions", &body).status(), 200);
        wait_until("the recording of that is written", PATIENCE, || (size() > before + 50_000).then_some(()));
        std::thread::scope(|scope| {
            let streams = server.connect();
            let bytes = body.to_string();
            scope.spawn(move || {
                let mut streams = streams;
                streams.request("POST", "/v1/completions", &[], bytes.as_bytes()).expect("a request");
                // Of a dead launcher's service there is none.
                let _ = streams.response();
            });
            std::thread::sleep(std::time::Duration::from_millis(150));
            let pid = match victim {
                "launcher" => server.pid(),
                role => server.role(role).expect("it runs").pid,
            };
            kill(pid, Signal::SIGKILL);
        });
        if victim == "launcher" {
            server.wait_exit(PATIENCE);
            wait_until("its processes are gone", PATIENCE, || server.processes().is_empty().then_some(()));
        } else {
            let second = format!("{file}.2");
            assert_eq!(server.post("/v1/completions", &body).status(), 200);
            server.stop();
            let (code, report, stderr) = replay(&second, &[]);
            let told = (code, &report["identical"], &report["complete"]);
            assert_eq!(told, (Some(0), &json!(true), &json!(true)), "{report} {stderr}");
        }
        let (code, report, stderr) = replay(&file, &[]);
        let told = (code, &report["identical"], &report["complete"]);
        assert_eq!(told, (Some(0), &json!(true), &json!(false)), "{victim}: {report} {stderr}");
        assert!(report["tokens"][0].as_u64() > Some(500), "{victim}: too little to show anything: {report}");
    }
}
