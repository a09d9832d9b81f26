//! `--device cuda` through the real processes: on the emulated device, and on machines that have none.

use pinion_testkit::{Api, End, PATIENCE, Server, fixture_model, run_to_end};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The CUDA object whose device is the engine process itself.
fn emulated() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/emulation/build.sh");
    let output = Command::new(script).output().expect("the script can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
}

/// Greedy, drawn, penalised and with logprobs, all at once.
fn texts(server: &Server) -> Vec<String> {
    let bodies = [
        json!({"prompt": "greedy", "max_tokens": 9, "temperature": 0, "ignore_eos": true, "stream": true}),
        json!({"prompt": "drawn", "max_tokens": 9, "temperature": 0.9, "top_p": 0.9, "seed": 5, "ignore_eos": true}),
        json!({"prompt": "penalised", "max_tokens": 9, "temperature": 0, "repetition_penalty": 1.5, "ignore_eos": true}),
        json!({"prompt": "told", "max_tokens": 9, "temperature": 0, "logprobs": 2, "ignore_eos": true}),
    ];
    std::thread::scope(|scope| {
        let ask = |body| {
            let answer = server.ask(Api::Completions, body);
            assert_eq!((answer.status, &answer.end), (200, &End::Complete), "{body}");
            answer.text
        };
        let threads: Vec<_> = bodies.iter().map(|body| scope.spawn(move || ask(body))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a request's thread")).collect()
    })
}

#[test]
fn the_emulated_device_gives_the_text_of_the_cpu() {
    let folder = fixture_model();
    let sizes = ["--dtype", "fp32", "--max-num-seqs", "4", "--max-num-batched-tokens", "64"];
    let cpu = Server::start(folder.path(), &sizes);
    let expected = texts(&cpu);
    cpu.stop();
    let object = emulated();
    let object = object.to_str().expect("a path in UTF-8");
    for switches in [
        &["--overlap"][..],
        &["--no-overlap", "--no-cuda-graphs", "--no-cuda-fused"],
        &["--overlap", "--decode", "fused"],
    ] {
        let flags = [&sizes[..], &["--device", "cuda", "--cuda-object", object], switches].concat();
        let server = Server::start(folder.path(), &flags);
        assert_eq!(texts(&server), expected, "{switches:?}");
        server.stop();
    }
}

#[test]
fn without_a_device_one_line_says_why() {
    let folder = fixture_model();
    let serve = ["serve", "--model", folder.text(), "--port", "0", "--device", "cuda"];
    let missing = [&serve[..], &["--cuda-object", "/no/such/object.so"]].concat();
    let not_one = [&serve[..], &["--cuda-object", "/dev/null"]].concat();
    for (flags, says) in [(missing, "/no/such/object.so"), (not_one, "/dev/null cannot be used")] {
        let ended = run_to_end(&flags, &[], PATIENCE);
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        let lines = ended.stderr.lines().filter(|line| line.contains(says)).count();
        assert!(lines >= 1, "does not say {says:?}:\n{}", ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    }
}
