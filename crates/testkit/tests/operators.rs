//! `--backend torch`, libtorch's operators alone, through the real processes: it gives the ids of the native backend.

use pinion_testkit::{
    Answer, Api, End, PATIENCE, Server, Signal, demo_model, fixture_model, kill, run_to_end, wait_until,
};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// Deaths of an engine until one hits a stream.
const DEATHS_MAX: usize = 20;
/// Prompts that begin alike, longer than some blocks, and short ones.
const PROMPTS: [&str; 6] = [
    "ROMEO:\nBut soft, what light through yonder window breaks? It is",
    "ROMEO:\nBut soft, what light through yonder window falls? It is",
    "JULIET:\nO Romeo, Romeo, wherefore",
    "First Citizen:\nWe are accounted poor citizens, the patricians good. What authority surfeits on would",
    "KING",
    "What",
];

fn body(prompt: &str, tokens: usize) -> Value {
    json!({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "return_token_ids": true})
}

fn ids(server: &Server, body: &Value) -> Value {
    let response = server.post("/v1/completions", body);
    assert_eq!(response.status(), 200, "{body}: {}", response.text());
    response.json()["choices"][0]["token_ids"].take()
}

/// The ids of each prompt alone, and of all at once.
fn all_ids(server: &Server, tokens: usize) -> [Vec<Value>; 2] {
    let alone = PROMPTS.iter().map(|prompt| ids(server, &body(prompt, tokens))).collect();
    let at_once = std::thread::scope(|scope| {
        let ask = |prompt: &'static str| scope.spawn(move || ids(server, &body(prompt, tokens)));
        let threads: Vec<_> = PROMPTS.into_iter().map(ask).collect();
        threads.into_iter().map(|thread| thread.join().expect("a request's thread")).collect()
    });
    server.wait_idle();
    [alone, at_once]
}

/// The CUDA object of the emulated device, which computes over tensors on the CPU.
fn emulated() -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/emulation/build.sh");
    let output = Command::new(script).output().expect("the script can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a path").trim().to_owned()
}

fn start(folder: &Path, backend: &str, flags: &[&str]) -> Server {
    Server::start(folder, &[&["--dtype", "fp32", "--backend", backend], flags].concat())
}

#[test]
fn every_way_of_scheduling_gives_the_ids_of_the_native_backend() {
    let Some(folder) = demo_model() else {
        println!("skipped: deploy/demo-model has no weights");
        return;
    };
    let native = start(&folder, "native", &[]);
    let [expected, at_once] = all_ids(&native, 32);
    assert_eq!(expected, at_once);
    native.stop();
    for flags in [
        &[][..],
        &["--prefill-attention", "plain"],
        &["--prefill-attention", "sdpa", "--overlap"],
        &["--no-prefix-cache", "--prefill-chunk-size", "9"],
        // Not all of them fit: sequences are preempted and computed again.
        &["--max-model-len", "160", "--kv-cache-tokens", "192", "--block-size", "8"],
    ] {
        let server = start(&folder, "torch", flags);
        for found in all_ids(&server, 32) {
            assert_eq!(found, expected, "{flags:?}");
        }
        let cached = server.metric("pinion_prefix_cache_hits_total") > 0.0;
        assert_eq!(cached, !flags.contains(&"--no-prefix-cache"), "{flags:?}");
        let preempted = server.metric("pinion_preemptions_total") > 0.0;
        assert_eq!(preempted, flags.contains(&"--kv-cache-tokens"), "{flags:?}");
        server.stop();
    }
}

#[test]
fn a_stream_goes_on_after_the_death_of_its_engine() {
    let folder = fixture_model();
    let server = start(folder.path(), "torch", &["--restart-backoff", "20ms", "--restart-limit", "1000"]);
    let bodies = ["one", "another"].map(|prompt| {
        json!({"prompt": prompt, "max_tokens": 200, "temperature": 0, "ignore_eos": true, "stream": true})
    });
    let undisturbed: Vec<Answer> = bodies.iter().map(|body| server.ask(Api::Completions, body)).collect();
    // Both texts may be over before the engine dies.
    let resumed = (0..DEATHS_MAX).any(|_| {
        let victim = wait_until("the engine runs", PATIENCE, || server.role("engine-0"));
        let begun = server.begin(Api::Completions, &bodies);
        kill(victim.pid, Signal::SIGKILL);
        for (whole, events) in undisturbed.iter().zip(begun) {
            let answer = Answer::of_events(Api::Completions, events);
            assert_eq!((answer.status, &answer.end), (200, &End::Complete));
            assert_eq!(answer.text, whole.text);
        }
        server.metric("pinion_resumed_requests_total") > 0.0
    });
    assert!(resumed, "{DEATHS_MAX} deaths interrupted no text");
    server.stop();
}

#[test]
fn draws_scores_and_grammars_are_those_of_the_native_backend() {
    let folder = fixture_model();
    let bodies = [
        json!({"prompt": "drawn", "max_tokens": 20, "temperature": 0.9, "top_p": 0.9, "seed": 5, "ignore_eos": true}),
        json!({"prompt": "penalised", "max_tokens": 20, "temperature": 0, "repetition_penalty": 1.5, "ignore_eos": true}),
        json!({"prompt": "constrained", "max_tokens": 40, "temperature": 0.7, "seed": 8, "guided_regex": "[a-z]{3} [0-9]{4}"}),
    ];
    let scored =
        json!({"prompt": "read this back", "echo": true, "logprobs": 2, "max_tokens": 4, "temperature": 0});
    let object = emulated();
    let kernels = ["--torch-kernels", "on", "--cuda-object", &object];
    let [native, torch, kernels] =
        [("native", &[][..]), ("torch", &[]), ("torch", &kernels)].map(|(backend, flags)| {
            let server = start(folder.path(), backend, flags);
            let texts: Vec<String> =
                bodies.iter().map(|body| server.ask(Api::Completions, body).text).collect();
            let scores = server.post("/v1/completions", &scored).json();
            server.stop();
            (texts, scores["choices"][0]["logprobs"]["token_logprobs"].clone())
        });
    assert_eq!(native.0, torch.0);
    assert_eq!(native.0, kernels.0);
    let numbers = |scores: &Value| -> Vec<f64> {
        scores.as_array().expect("a list").iter().filter_map(Value::as_f64).collect()
    };
    for found in [&torch.1, &kernels.1] {
        let (have, want) = (numbers(found), numbers(&native.1));
        assert!(have.len() > 4 && have.len() == want.len(), "{have:?} {want:?}");
        assert!(have.iter().zip(&want).all(|(have, want)| (have - want).abs() < 1e-3), "{have:?} {want:?}");
    }
}

/// Attention, append and sampler of the emulated object between the operators, behind the roles' sandbox: chunks, the
/// prefix cache with its copied blocks, preemption.
#[test]
fn the_objects_kernels_serve_between_operators() {
    let Some(folder) = demo_model() else {
        println!("skipped: deploy/demo-model has no weights");
        return;
    };
    let native = start(&folder, "native", &[]);
    let [expected, _] = all_ids(&native, 8);
    native.stop();
    let object = emulated();
    for flags in [
        &["--prefill-chunk-size", "9"][..],
        &["--max-model-len", "160", "--kv-cache-tokens", "192", "--block-size", "8", "--overlap"],
    ] {
        let kernels = ["--torch-kernels", "on", "--cuda-object", &object];
        let server = start(&folder, "torch", &[&kernels[..], flags].concat());
        for found in all_ids(&server, 8) {
            assert_eq!(found, expected, "{flags:?}");
        }
        server.stop();
    }
    let model = folder.to_string_lossy().into_owned();
    let flags = ["serve", "--model", &model, "--port", "0", "--backend", "torch", "--device"];
    let wrong = ["cpu", "--torch-kernels", "on", "--cuda-object", "/no/such/object.so"];
    let ended = run_to_end(&[&flags[..], &wrong].concat(), &[], PATIENCE);
    assert!(ended.stderr.contains("there is no /no/such/object.so"), "{}", ended.stderr);
}

/// The set-up for the CPU has no CUDA libraries for libtorch; where they are, there is no GPU here.
#[test]
fn without_cuda_one_sentence_says_what_is_missing() {
    if Path::new("/dev/nvidia0").exists() {
        println!("skipped: there is a GPU");
        return;
    }
    let folder = fixture_model();
    let flags = ["serve", "--model", folder.text(), "--port", "0", "--backend", "torch", "--device", "cuda"];
    let ended = run_to_end(&flags, &[], PATIENCE);
    assert_eq!(ended.code, Some(9), "{}", ended.stderr);
    let is_known = ["sets libtorch up for CUDA", "so there is no device 0"].iter();
    assert!(is_known.clone().any(|part| ended.stderr.contains(part)), "{}", ended.stderr);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    assert_eq!(ended.left, []);
}
