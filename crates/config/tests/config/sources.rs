//! Precedence, and all faults together.

use crate::tree::{Tree, run_on, serve, serve_result};
use pinion_config::{Backend, Command, Exit, Machine};

fn machine() -> Machine {
    Machine::uniform(8, 1)
}

#[test]
fn a_later_source_wins() {
    let model = Tree::gpt2();
    let file = model.file("pinion.toml", "max-num-seqs = 10\nport = 10\nfast_sse = false\n");
    let with_file = ["--config", &file];
    // (flags, environment, max_num_seqs, port, fast_sse)
    type Case<'a> = (Vec<&'a str>, Vec<(&'a str, &'a str)>, u32, u16, bool);
    let cases: Vec<Case> = vec![
        (vec![], vec![], 64, 8000, true),
        (with_file.to_vec(), vec![], 10, 10, false),
        (vec![], vec![("PINION_CONFIG", &file)], 10, 10, false),
        (with_file.to_vec(), vec![("PINION_MAX_NUM_SEQS", "20"), ("PINION_FAST_SSE", "1")], 20, 10, true),
        (
            [&with_file[..], &["--max-num-seqs=30", "--no-fast-sse"]].concat(),
            vec![("PINION_MAX_NUM_SEQS", "20"), ("PINION_FAST_SSE", "1"), ("PINION_PORT", "20")],
            30,
            20,
            false,
        ),
        (vec!["--port", "1", "--port", "2"], vec![], 64, 2, true),
        (vec!["--max_num_seqs", "5"], vec![], 5, 8000, true),
    ];
    for (args, env, seqs, port, fast) in cases {
        let config = serve(&machine(), &model, &args, &env);
        assert_eq!(
            (config.max_num_seqs, config.port, config.fast_sse),
            (seqs, port, fast),
            "{args:?} {env:?}"
        );
    }
}

#[test]
fn every_fault_of_every_source_is_reported_with_its_place_and_reason() {
    let model = Tree::gpt2();
    let file = model.file("pinion.toml", "max-num-seq = 10\nport = -1\nseed = 0.5\npin = 1\nlog = [1]\n");
    let args =
        ["--config", &file, "--block-size", "0", "--frobnicate", "x", "--port=7", "--cpus-engine", "0-99"];
    let env = [("PINION_MAX_NUM_SEQS", "nan"), ("PINION_HOSTS", "::1"), ("PINION_WRITE_TIMEOUT", "30")];
    let faults = serve_result(&machine(), &model, &args, &env).unwrap_err();
    let expected = [
        format!("{file}:max-num-seq: no such key; did you mean max-num-seqs?"),
        format!("{file}:port: `-1` is negative"),
        format!("{file}:seed: `0.5` is not a whole number"),
        format!("{file}:pin: is integer; expected true or false"),
        format!("{file}:log: is of type array; expected a TEXT"),
        "--block-size: `0` is below 1".to_owned(),
        "--frobnicate: no such flag".to_owned(),
        "--cpus-engine: CPU 8-99 is not in the allowed set 0-7".to_owned(),
        "PINION_MAX_NUM_SEQS: `nan` is not a number".to_owned(),
        "PINION_HOSTS: no such option; did you mean PINION_HOST?".to_owned(),
        "PINION_WRITE_TIMEOUT: `30` needs a unit: ms, s, m, min, h".to_owned(),
    ];
    let mut got: Vec<String> = faults.to_string().lines().map(str::to_owned).collect();
    got.sort();
    let mut expected = expected.to_vec();
    expected.sort();
    assert_eq!(got, expected);
    assert_eq!(faults.exit(), Exit::Usage);
}

/// Names of other servers lead to ours.
#[test]
fn foreign_names_are_answered_with_ours() {
    let model = Tree::gpt2();
    for (foreign, ours) in [
        ("--gpu-memory-utilization", "--kv-cache-memory-share"),
        ("--kv-cache-dtype", "--kv-dtype"),
        ("--cache-type-k", "--kv-dtype"),
        ("--ctx-size", "--max-model-len"),
        ("--parallel", "--max-num-seqs"),
        ("--batch-size", "--max-num-batched-tokens"),
        ("--alias", "--served-model-name"),
    ] {
        let faults = serve_result(&machine(), &model, &[foreign, "1"], &[]).unwrap_err().to_string();
        assert_eq!(faults, format!("{foreign}: no such flag; it is called {ours} here"));
    }
}

/// The value behind a flag that there is not is no model.
#[test]
fn flags_of_other_servers_are_one_fault_each() {
    let model = Tree::gpt2();
    for (args, expected) in [
        (&["-c", "4096"][..], "-c: no such flag; here it is --max-model-len"),
        (&["-x", "4096"], "-x: no such flag; every flag begins with two dashes"),
        (
            &["--no-enable-prefix-caching"],
            "--no-enable-prefix-caching: no such flag; it is called --prefix-cache here",
        ),
        (&["--enforce-eager"], "--enforce-eager: no such flag: --no-cuda-graphs is the same"),
        (
            &["--load-format", "auto"],
            "--load-format: no such flag: safetensors and GGUF are told apart by the files",
        ),
    ] {
        let faults = serve_result(&machine(), &model, args, &[]).unwrap_err().to_string();
        assert_eq!(faults, expected, "{args:?}");
    }
}

/// Each command line has exactly this one fault.
#[test]
fn one_fault_each() {
    let model = Tree::gpt2();
    let broken = model.file("broken.toml", "port = 1\nhost = \n");
    let nested = model.file("nested.toml", "[serve]\nport = 1\n");
    let twice = model.file("twice.toml", "block-size = 4\nblock_size = 5\n");
    let cases: Vec<(Vec<&str>, String)> = vec![
        (vec!["--port"], "--port: needs a value: --port N".into()),
        (vec!["--port", "--no-pin"], "--port: needs a value: --port N".into()),
        (vec!["--port", "65536"], "--port: `65536` is above 65535".into()),
        (vec!["--host", ""], "--host: is empty".into()),
        (vec!["--no-port"], "--no-port: no such flag; did you mean --port?".into()),
        (vec!["--no-pin=1"], "--no-pin: takes no value".into()),
        (vec!["-p", "--no-pin"], "-p: no such flag; every flag begins with two dashes".into()),
        (
            vec!["--tensor-parallel-size=2"],
            "--tensor-parallel-size: no such flag: one engine on one device is served".into(),
        ),
        (vec!["--max-num-seq", "4"], "--max-num-seq: no such flag; did you mean --max-num-seqs?".into()),
        (vec!["--device", "cuda", "--backend", "fake"], "--device: the fake backend runs on the CPU".into()),
        (vec!["--backend", "onnx"], "--backend: `onnx` is not one of auto, native, torch, fake".into()),
        (vec!["--max-model-len", "2k"], "--max-model-len: 2000 is more than the model's context of 1024".into()),
        (
            vec!["--max-num-batched-tokens", "63"],
            "--max-num-batched-tokens: a step of 63 tokens (max-num-batched-tokens) cannot hold one of each of 64 \
             sequences (max-num-seqs)"
                .into(),
        ),
        (
            vec!["--kv-cache-tokens", "1000"],
            "--kv-cache-tokens: 1008 tokens of KV cache cannot hold one sequence of 1024 tokens (max-model-len), which \
             takes 72.0 MiB; give a larger cache, or --max-model-len 1008 or less"
                .into(),
        ),
        (
            vec!["--kv-cache-tokens", "64k", "--kv-cache-bytes", "1GiB"],
            "--kv-cache-bytes: --kv-cache-tokens is also given; give one of the two".into(),
        ),
        (
            vec!["--cpus-engine", "7", "--engine-threads", "2"],
            "--engine-threads: 2 threads on 1 CPU(s) (7) wait for each other; give the engine more with --cpus-engine"
                .into(),
        ),
        (vec!["other-folder"], format!("--model: two models: `other-folder` and `{}`", model.text())),
        (
            vec!["--dtype", "bf16"],
            "--dtype: this CPU has neither avx512_bf16 nor amx_bf16, so bf16 would be emulated; use fp32 or auto, which keep the weights of a bf16 checkpoint in bf16".into(),
        ),
        (
            vec!["--config", "/no/such/file.toml"],
            "/no/such/file.toml: cannot be read: No such file or directory (os error 2)".into(),
        ),
        (vec!["--config", &nested], format!("{nested}:serve: no such key; there are no tables, options are top-level keys")),
        (
            vec!["--config", &twice],
            format!("{twice}:block_size: stands twice, once with dashes and once with underscores"),
        ),
        (vec!["--served-model-name", "a\nb"], "--served-model-name: contains a control character".into()),
    ];
    for (args, expected) in cases {
        let faults = serve_result(&machine(), &model, &args, &[]).expect_err(&expected);
        assert_eq!(faults.to_string(), expected, "{args:?}");
    }
    let faults = serve_result(&machine(), &model, &["--config", &broken], &[]).unwrap_err().to_string();
    assert!(faults.starts_with(&format!("{broken}: line 2: ")), "{faults}");
}

#[test]
fn fp16_is_refused_in_all_its_spellings_with_the_reason() {
    let model = Tree::gpt2();
    for name in ["fp16", "float16", "half", "FP16"] {
        let faults = serve_result(&machine(), &model, &["--dtype", name], &[]).unwrap_err().to_string();
        assert!(faults.starts_with("--dtype: fp16 is not served") && faults.contains("33 times"), "{faults}");
    }
}

#[test]
fn commands() {
    let model = Tree::gpt2();
    let dir = model.text();
    let run = |args: &[&str]| run_on(&machine(), args, &[]);
    for args in [vec!["version"], vec!["--version"], vec!["serve", "-V"], vec!["--version", "--frobnicate"]] {
        assert_eq!(run(&args), Ok(Command::Version), "{args:?}");
    }
    // What follows is the other tool's, even what looks like ours.
    let line = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<String>>();
    assert_eq!(run(&["bench", "online", "--help"]), Ok(Command::Bench(line(&["online", "--help"]))));
    for args in
        [vec![], vec!["help"], vec!["-h"], vec!["serve", "--help"], vec!["serve", "--port=x", "--help=port"]]
    {
        assert!(matches!(run(&args), Ok(Command::Help(_))), "{args:?}");
    }
    let Ok(Command::Serve(config)) = run(&["serve", &dir]) else { panic!("a folder without --model") };
    assert_eq!((config.model_dir.as_path(), config.backend), (model.path(), Backend::Native));
    let needs = run(&["serve"]).unwrap_err().to_string();
    assert_eq!(
        needs,
        "--model: is required: the folder of the model to serve, or ORG/NAME for one of the hub"
    );
    for (args, reason) in [
        (
            vec!["server", "--prt", "1"],
            "command line: `server` is no command; there are serve, pull, config show, chat, top, doctor, trace, bench, completions, man, help, version",
        ),
        (
            vec!["--model", &dir],
            "command line: a command comes first: serve, pull, config show, chat, top, doctor, trace, bench, completions, man, help, version",
        ),
        (vec!["config", "--model", &dir], "command line: `config` is followed by `show`"),
    ] {
        assert_eq!(run(&args).unwrap_err().to_string(), reason, "{args:?}");
    }
}

#[test]
fn kubernetes_service_links_and_script_variables_are_no_faults() {
    let model = Tree::gpt2();
    let env = [
        ("PINION_SERVICE_HOST", "10.0.0.1"),
        ("PINION_SERVICE_PORT", "8000"),
        ("PINION_SERVICE_PORT_HTTP", "8000"),
        ("PINION_PORT", "tcp://10.0.0.1:8000"),
        ("PINION_PORT_8000_TCP", "tcp://10.0.0.1:8000"),
        ("PINION_PORT_8000_TCP_ADDR", "10.0.0.1"),
        // Of a service called pinion-qwen-2.
        ("PINION_QWEN_2_SERVICE_HOST", "10.0.0.1"),
        ("PINION_QWEN_2_SERVICE_PORT", "8000"),
        ("PINION_QWEN_2_SERVICE_PORT_HTTP", "8000"),
        ("PINION_QWEN_2_PORT", "tcp://10.0.0.1:8000"),
        ("PINION_QWEN_2_PORT_8000_TCP", "tcp://10.0.0.1:8000"),
        ("PINION_QWEN_2_PORT_8000_TCP_PROTO", "tcp"),
        ("PINION_CACHE", "/tmp/cache"),
        ("PINION_PROGRAMS", "/tmp/programs"),
        ("PINION_SIM_RUNS", "10"),
        ("PINION_SIM_SEED", "7"),
        ("OTHER_PORT", "x"),
    ];
    assert_eq!(serve(&machine(), &model, &[], &env).port, 8000);
    let faults = serve_result(&machine(), &model, &[], &[("PINION_PORT", "http")]).unwrap_err();
    assert_eq!(faults.to_string(), "PINION_PORT: `http` is not a number");
    for name in ["PINION_QWEN_PORT", "PINION_QWEN_HOST", "PINION_PORT_HTTP"] {
        let faults = serve_result(&machine(), &model, &[], &[(name, "8000")]).unwrap_err().to_string();
        assert!(faults.starts_with(&format!("{name}: no such option")), "{faults}");
    }
}

#[test]
fn config_show_names_value_and_origin() {
    let model = Tree::gpt2();
    let file = model.file("pinion.toml", "block-size = 32\n");
    let args = ["config", "show", "--model", &model.text(), "--config", &file, "--seed", "7"];
    let Ok(Command::ShowConfig(text)) = run_on(&machine(), &args, &[("PINION_PORT", "9")]) else {
        panic!("no text")
    };
    let line = |name: &str| {
        let found = text.lines().find(|l| l.split_whitespace().next() == Some(name));
        found
            .unwrap_or_else(|| panic!("no {name} in\n{text}"))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(line("block-size"), format!("block-size 32 ({file}:block-size)"));
    assert_eq!(line("port"), "port 9 (PINION_PORT)");
    assert_eq!(line("seed"), "seed 7 (--seed)");
    assert_eq!(line("drain-timeout"), "drain-timeout 30s (default)");
    assert_eq!(line("dtype"), "dtype fp32 (default)");
    assert_eq!(line("max-model-len"), "max-model-len 1024 (worked out)");
    assert_eq!(line("cpus-engine"), "cpus-engine 3-7 (worked out)");
    let Ok(Command::ShowConfig(bare)) = run_on(&machine(), &["config", "show"], &[]) else {
        panic!("no text")
    };
    assert!(
        bare.contains("max-model-len") && bare.contains("(the model's context, if the cache holds it)"),
        "{bare}"
    );
}

#[test]
fn quantisation_is_refused_where_it_makes_no_sense() {
    let model = Tree::gpt2();
    let cases = [
        (["--linear", "plain"], "--linear is about unquantised weights; leave one of the two out"),
        (["--backend", "fake"], "the fake backend has no weights"),
        (
            ["--device", "cuda"],
            "--device cuda computes with unquantised weights only; leave one of the two out",
        ),
    ];
    for form in ["int8", "int4"] {
        for (other, expected) in &cases {
            let args = [&["--quantization", form], &other[..]].concat();
            let faults = serve_result(&machine(), &model, &args, &[]).expect_err(expected);
            assert_eq!(faults.to_string(), format!("--quantization: {expected}"), "{args:?}");
        }
        assert!(serve_result(&machine(), &model, &["--quantization", form], &[]).is_ok());
    }
    for (other, _) in &cases {
        for form in ["none", "checkpoint"] {
            let args = [&["--quantization", form], &other[..]].concat();
            assert!(serve_result(&machine(), &model, &args, &[]).is_ok(), "{args:?}");
        }
    }
    let faults = serve_result(&machine(), &model, &["--quantization", "awq"], &[]).unwrap_err().to_string();
    assert!(faults.contains("a checkpoint says itself how it is quantised"), "{faults}");
}
