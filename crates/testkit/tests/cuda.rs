//! `--device cuda` through the real processes: on the emulated device, and on machines that have none.

use pinion_testkit::{Api, End, Folder, PATIENCE, Server, StubDriver, StubObject, fixture_model, run_to_end};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The CUDA object whose device is the engine process itself.
fn emulated() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/emulation/build.sh");
    let output = Command::new(script).output().expect("the script can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
}

/// Greedy, drawn, penalised, with logprobs and with a grammar, all at once.
fn texts(server: &Server) -> Vec<String> {
    let bodies = [
        json!({"prompt": "greedy", "max_tokens": 9, "temperature": 0, "ignore_eos": true, "stream": true}),
        json!({"prompt": "drawn", "max_tokens": 9, "temperature": 0.9, "top_p": 0.9, "seed": 5, "ignore_eos": true}),
        json!({"prompt": "penalised", "max_tokens": 9, "temperature": 0, "repetition_penalty": 1.5, "ignore_eos": true}),
        json!({"prompt": "told", "max_tokens": 9, "temperature": 0, "logprobs": 2, "ignore_eos": true}),
        json!({"prompt": "drawn and penalised", "max_tokens": 9, "temperature": 1.1, "seed": 3, "frequency_penalty": 1.2, "presence_penalty": -0.5, "logprobs": 20, "ignore_eos": true}),
        json!({"prompt": "constrained", "max_tokens": 40, "temperature": 0.7, "seed": 8, "logprobs": 1, "guided_regex": "[a-z]{3} [0-9]{4}"}),
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

/// What is scored, and what stands on a copied beginning of a block, one after the other.
fn answers(server: &Server) -> Vec<Value> {
    let beginning = "a beginning that many prompts share";
    let bodies = [
        json!({"prompt": format!("{beginning}: one"), "max_tokens": 5}),
        json!({"prompt": format!("{beginning}, two"), "max_tokens": 5}),
        json!({"prompt": format!("{beginning}, twice"), "max_tokens": 5}),
        json!({"prompt": "read this back", "echo": true, "logprobs": 2, "max_tokens": 4}),
        json!({"prompt": "and what of this", "prompt_logprobs": 3, "max_tokens": 1}),
    ];
    let ask = |mut body: Value| {
        body["temperature"] = json!(0);
        body["ignore_eos"] = json!(true);
        let response = server.post("/v1/completions", &body);
        assert_eq!(response.status(), 200, "{body}: {}", response.text());
        response.json()
    };
    bodies.into_iter().map(ask).collect()
}

/// The same words, the same tokens found in the cache, the same numbers but for their last digits.
fn check_alike(have: &Value, want: &Value, path: &str) {
    match (have, want) {
        (Value::Object(have), Value::Object(want)) => {
            assert!(have.keys().eq(want.keys()), "{path}: {have:?} {want:?}");
            let told_apart = ["id", "created", "timings", "model", "system_fingerprint"];
            for (key, have) in have.iter().filter(|(key, _)| !told_apart.contains(&key.as_str())) {
                check_alike(have, &want[key], &format!("{path}.{key}"));
            }
        }
        (Value::Array(have), Value::Array(want)) => {
            assert_eq!(have.len(), want.len(), "{path}");
            for (index, (have, want)) in have.iter().zip(want).enumerate() {
                check_alike(have, want, &format!("{path}[{index}]"));
            }
        }
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => {
            let (a, b) = (a.as_f64().expect("a number"), b.as_f64().expect("a number"));
            assert!((a - b).abs() < 1e-3, "{path}: {a} {b}");
        }
        _ => assert_eq!(have, want, "{path}"),
    }
}

/// What a service on a device tells of itself: spans of its steps, and where the device's memory went.
fn check_told(server: &Server, replays_all: Option<bool>) {
    let trace = server.post("/debug/trace", &json!({})).json();
    let events = trace["traceEvents"].as_array().expect("a list of events");
    let count =
        |name: &str| events.iter().filter(|event| event["name"] == name && event["ph"] == "X").count();
    assert!(count("pinion.prefill") > 0);
    let (replays, decodes) = (count("pinion.decode.graph_replay"), count("pinion.decode"));
    assert!(replays + decodes > 0);
    if let Some(all) = replays_all {
        assert_eq!((replays > 0, decodes > 0), (all, !all), "{replays} {decodes}");
    }
    let text = server.get("/metrics").text();
    for kind in ["weights", "cache", "activations", "staging", "free"] {
        let line = format!("pinion_device_memory_bytes{{role=\"engine-0\",kind=\"{kind}\"}} ");
        let value = text.lines().find_map(|found| found.strip_prefix(&line)).expect("a line of each kind");
        assert!(value.parse::<f64>().is_ok_and(|bytes| bytes > 0.0), "{kind}: {value}");
    }
}

#[test]
fn the_emulated_device_gives_the_text_of_the_cpu() {
    let folder = fixture_model();
    let sizes = ["--dtype", "fp32", "--max-num-seqs", "4", "--max-num-batched-tokens", "64"];
    let cpu = Server::start(folder.path(), &sizes);
    let (expected, expected_answers) = (texts(&cpu), answers(&cpu));
    let cached = &expected_answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert!(cached.as_u64().is_some_and(|tokens| !tokens.is_multiple_of(16)), "a copied beginning: {cached}");
    assert!(!cpu.get("/metrics").text().contains("pinion_device_memory_bytes{"));
    cpu.stop();
    let object = emulated();
    let object = object.to_str().expect("a path in UTF-8");
    for (switches, ready) in [
        // The device's own choice is overlap.
        (&[][..], "overlap on"),
        (
            &["--no-overlap", "--no-cuda-graphs", "--no-cuda-fused-norms", "--no-cuda-fused-products"],
            "overlap off",
        ),
        (
            &["--no-cuda-shaping", "--no-cuda-logprobs", "--no-cuda-masks", "--no-jitter-control"],
            "overlap on",
        ),
        (&["--decode", "fused"], "overlap on"),
    ] {
        let flags = [&sizes[..], &["--device", "cuda", "--cuda-object", object], switches].concat();
        let server = Server::start(folder.path(), &flags);
        assert!(server.stderr_text().contains(ready), "{}", server.stderr_text());
        assert_eq!(texts(&server), expected, "{switches:?}");
        for (index, (have, want)) in answers(&server).iter().zip(&expected_answers).enumerate() {
            check_alike(have, want, &format!("{switches:?}: answer {index}"));
        }
        // Whether a graph can hold the fused kernel is the device's affair.
        check_told(
            &server,
            (!switches.contains(&"--decode")).then_some(!switches.contains(&"--no-cuda-graphs")),
        );
        server.stop();
    }
}

/// Tokenizer and weights of one file: the ids of the CPU, which unpacks the weights, too.
#[test]
fn a_gguf_file_is_served_on_the_emulated_device() {
    let file =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/gguf_goldens/llama-pieces.gguf"));
    let object = emulated();
    let on_device = ["--device", "cuda", "--cuda-object", object.to_str().expect("a path in UTF-8")];
    let ids = |flags: &[&str]| {
        let sizes = ["--dtype", "fp32", "--max-num-seqs", "4", "--max-num-batched-tokens", "64"];
        let server = Server::start(file, &[&sizes[..], flags].concat());
        let body = json!({"prompt": "the other", "max_tokens": 24, "temperature": 0, "ignore_eos": true,
            "return_token_ids": true});
        let response = server.post("/v1/completions", &body);
        assert_eq!(response.status(), 200, "{}", response.text());
        let choice = response.json()["choices"][0].clone();
        server.stop();
        (choice["prompt_token_ids"].clone(), choice["token_ids"].clone(), choice["text"].clone())
    };
    assert_eq!(ids(&on_device), ids(&["--quantization", "none"]));
}

/// Each thing that can be missing ends the start with one sentence, its remedy and the exit code of the GPU.
#[test]
fn without_a_device_one_sentence_says_why_and_what_helps() {
    let (folder, work) = (fixture_model(), Folder::new());
    let object = |name: &str, stub: StubObject<'_>| stub.build(&work.path().join(name)).display().to_string();
    let driver = |name: &str, stub: StubDriver| stub.build(&work.path().join(name));
    let ours = object("ours", StubObject::OURS);
    let absent = StubDriver::absent(&work.path().join("no-driver"));
    let none = absent.as_str();
    let refuses = driver("refuses", StubDriver { init: 999, ..StubDriver::GOOD });
    let cases = [
        ("/no/such/object.so", none, "there is no /no/such/object.so: build it with deploy/cuda.sh"),
        ("/dev/null", none, "/dev/null cannot be used: "),
        (
            &object("lacking", StubObject { lacks: "pinion_cuda_rope", ..StubObject::OURS }),
            none,
            "cannot be used: it has no pinion_cuda_rope: build it with deploy/cuda.sh of this version",
        ),
        (
            &object("ahead", StubObject { abi_ahead: 1, ..StubObject::OURS }),
            none,
            "cannot be used: it has interface ",
        ),
        (&ours, none, "no NVIDIA driver is here ("),
        (
            &ours,
            &refuses,
            "the NVIDIA driver fails: cuInit answers 999, the stub refuses: look at nvidia-smi",
        ),
        (
            &ours,
            &driver("old", StubDriver { version: 12_040, ..StubDriver::GOOD }),
            "the NVIDIA driver runs CUDA 12.4, and the object needs CUDA 13: update the driver to 580 or newer",
        ),
        (
            &ours,
            &driver("none", StubDriver { devices: 0, ..StubDriver::GOOD }),
            "the NVIDIA driver has no device: give this machine or container a GPU",
        ),
        (
            &ours,
            &driver("good", StubDriver::GOOD),
            "the device does not open: the stub refuses: ask nvidia-smi",
        ),
        (
            &object("old-card", StubObject { open: 0, capability: 75, ..StubObject::OURS }),
            none,
            "Stub T4 has compute capability 7.5, and the object has no code for it: take a GPU of 8.0 or newer",
        ),
        (
            &object("bare", StubObject { open: 0, ..StubObject::OURS }),
            none,
            "libcublasLt.so.13 does not open: the stub refuses: deploy/launch.sh --device cuda sets it up",
        ),
    ];
    for (object, libraries, says) in cases {
        let flags =
            ["serve", "--model", folder.text(), "--port", "0", "--device", "cuda", "--cuda-object", object];
        let ended = run_to_end(&flags, &[("LD_LIBRARY_PATH", libraries)], PATIENCE);
        assert_eq!(ended.code, Some(9), "{}", ended.stderr);
        let errors: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("error: ")).collect();
        assert!(errors.len() == 1 && errors[0].contains(says), "{says:?} in {}", ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    }
}
