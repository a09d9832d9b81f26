//! A service that is recorded while clients come, stay and leave, and its recording replayed by the engine alone.

use pinion_testkit::{
    Api, Folder, PATIENCE, Server, fake_model, fixture_model, launcher_binary, run_binary_to_end,
};
use serde_json::{Value, json};

const STREAMS: usize = 12;

/// Half of the clients sample, a third leaves in mid-stream. One asks for eight texts in one request: however slowly the
/// others come, these are there together.
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
