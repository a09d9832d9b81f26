//! Reading single values, and what follows from them.

use crate::tree::{Tree, serve, serve_result};
use pinion_config::{Backend, Config, Dtype, Machine, ModelFacts};
use pinion_protocol::StopIds;

fn machine() -> Machine {
    Machine::uniform(4, 1)
}

#[test]
fn numbers_bytes_and_times_take_units_exactly() {
    let model = Tree::gpt2();
    // (option, text, the value or the reason)
    let cases: &[(&str, &str, Result<u64, &str>)] = &[
        ("seed", "1k", Ok(1000)),
        ("seed", "1K", Ok(1024)),
        ("seed", "25.6k", Ok(25_600)),
        ("seed", "1_000", Ok(1000)),
        ("seed", "18446744073709551615", Ok(u64::MAX)),
        ("seed", "18446744073709551616", Err("is too large")),
        ("seed", "99999999999999999999999999999999999999999999", Err("is too large")),
        ("seed", "1.0005k", Err("is not a whole number")),
        ("seed", "1.5", Err("is not a whole number")),
        ("seed", "1.0", Ok(1)),
        ("seed", "1e5", Err("`e5` is not a unit")),
        ("seed", "inf", Err("is not a number")),
        ("seed", "-inf", Err("is not a number")),
        ("seed", "NaN", Err("is not a number")),
        ("seed", "-5", Err("is negative")),
        ("seed", ".5", Err("is not a number")),
        ("seed", "1.2.3", Err("is not a number")),
        ("seed", "0x10", Err("`x10` is not a unit")),
        ("seed", " ", Err("is empty")),
        ("body-bytes-max", "64KiB", Ok(65_536)),
        ("body-bytes-max", "2MiB", Ok(2 << 20)),
        ("body-bytes-max", "1.5MiB", Ok(3 << 19)),
        ("body-bytes-max", "100kB", Ok(100_000)),
        ("body-bytes-max", "65536", Ok(65_536)),
        ("body-bytes-max", "1TiB", Err("`TiB` is not a unit")),
        ("body-bytes-max", "1GiB", Err("is above 16MiB")),
        ("body-bytes-max", "1", Err("is below 4KiB")),
        ("write-timeout", "500ms", Ok(500)),
        ("write-timeout", "30s", Ok(30_000)),
        ("write-timeout", "1.5s", Ok(1500)),
        ("write-timeout", "2m", Ok(120_000)),
        ("write-timeout", "2min", Ok(120_000)),
        ("write-timeout", "0", Err("is below 1ms")),
        ("write-timeout", "0.5ms", Err("is not a whole number")),
        ("write-timeout", "5", Err("needs a unit")),
        ("write-timeout", "2h", Err("is above 1h")),
        ("drain-timeout", "0", Ok(0)),
    ];
    for (option, text, expected) in cases {
        let flag = format!("--{option}={text}");
        let value = |c: &Config| match *option {
            "seed" => c.seed,
            "body-bytes-max" => c.body_bytes_max as u64,
            "write-timeout" => c.write_timeout_ms,
            _ => c.lifecycle.drain_timeout_ms,
        };
        match (serve_result(&machine(), &model, &[&flag], &[]), expected) {
            (Ok(config), Ok(number)) => assert_eq!(value(&config), *number, "{flag}"),
            (Err(faults), Err(reason)) => {
                let text = faults.to_string();
                assert!(
                    text.starts_with(&format!("--{option}: ")) && text.contains(reason),
                    "{flag}: {text}"
                );
            }
            (got, _) => panic!("{flag}: {got:?}, expected {expected:?}"),
        }
    }
}

#[test]
fn shares_switches_and_addresses() {
    let model = Tree::gpt2();
    for bad in ["nan", "0", "-0.5", "1.01", "inf", "x"] {
        let flag = format!("--kv-cache-memory-share={bad}");
        let faults = serve_result(&machine(), &model, &[&flag], &[]).unwrap_err();
        assert!(faults.to_string().starts_with("--kv-cache-memory-share: `"), "{faults}");
    }
    for (text, on) in [("1", true), ("true", true), ("0", false), ("false", false)] {
        assert_eq!(serve(&machine(), &model, &[], &[("PINION_FAST_SSE", text)]).fast_sse, on);
    }
    assert!(serve_result(&machine(), &model, &[], &[("PINION_FAST_SSE", "maybe")]).is_err());
    for (text, address) in [("localhost", "127.0.0.1"), ("[::1]", "::1"), ("0.0.0.0", "0.0.0.0")] {
        assert_eq!(serve(&machine(), &model, &["--host", text], &[]).host.to_string(), address);
    }
    assert!(serve_result(&machine(), &model, &["--host", "example.org"], &[]).is_err());
}

#[test]
fn dtype_follows_the_cpu_and_the_fake_takes_no_notice() {
    let model = Tree::gpt2();
    let slow = Machine { has_bf16: true, ..machine() };
    let with = Machine { prefers_bf16: true, ..slow.clone() };
    for (args, machine, dtype) in [
        (vec![], &with, Dtype::Bf16),
        (vec![], &slow, Dtype::Fp32),
        (vec!["--dtype", "bf16"], &slow, Dtype::Bf16),
        (vec![], &machine(), Dtype::Fp32),
        (vec!["--dtype", "float32"], &with, Dtype::Fp32),
        (vec!["--dtype", "bfloat16"], &with, Dtype::Bf16),
        (vec!["--dtype", "bf16", "--backend", "fake"], &machine(), Dtype::Bf16),
    ] {
        assert_eq!(serve(machine, &model, &args, &[]).dtype, dtype, "{args:?}");
    }
}

#[test]
fn the_kv_cache_has_room_for_every_sequence_within_its_share_of_memory() {
    let model = Tree::gpt2();
    // GPT-2 in fp32 takes 73728 bytes per token, 1179648 per block of 16
    let memory = |gib: u64| Machine { memory_bytes: Some(gib << 30), ..machine() };
    // (machine, flags, blocks)
    for (machine, args, blocks) in [
        (machine(), vec![], 64 * 64),
        (memory(64), vec![], 64 * 64),
        (memory(4), vec![], 910),
        (memory(4), vec!["--kv-cache-memory-share", "1"], 3640),
        (memory(4), vec!["--backend", "fake"], 64 * 64),
        (memory(64), vec!["--kv-cache-tokens", "2000"], 125),
        (memory(64), vec!["--kv-cache-tokens", "2001"], 126),
        (memory(64), vec!["--kv-cache-bytes", "1GiB"], 910),
        (memory(64), vec!["--max-model-len", "100", "--max-num-seqs", "2"], 14),
        (memory(64), vec!["--max-num-seqs", "1", "--block-size", "1"], 1024),
    ] {
        assert_eq!(serve(&machine, &model, &args, &[]).kv_blocks, blocks, "{args:?}");
    }
    let faults =
        serve_result(&memory(4), &model, &["--kv-cache-bytes", "5GiB"], &[]).unwrap_err().to_string();
    assert_eq!(faults, "--kv-cache-bytes: a KV cache of 5.0 GiB is more than the memory, 4.0 GiB");
    let tiny = Machine { memory_bytes: Some(200 << 20), ..machine() };
    let small = memory(1);
    let faults =
        serve_result(&small, &model, &["--body-bytes-max", "16MiB", "--tokenizers", "4"], &[]).unwrap_err();
    assert!(
        faults.to_string().starts_with("command line: the rings take 1.0 GiB, and a quarter"),
        "{faults}"
    );
    // Without a length the service takes what the cache holds of the model's.
    let small_rings = ["--max-num-seqs", "4", "--max-inflight", "8"];
    assert_eq!(serve(&tiny, &model, &small_rings, &[]).max_model_len, 704);
    let asked = [&small_rings[..], &["--max-model-len", "1024"]].concat();
    let faults = serve_result(&tiny, &model, &asked, &[]).unwrap_err().to_string();
    assert!(faults.starts_with("--kv-cache-memory-share: ") && faults.contains("72.0 MiB"), "{faults}");
}

#[test]
fn profilers_need_what_they_look_at() {
    let model = Tree::gpt2();
    // (flags, whether the profiler stands around roles; or the reason)
    let cases: &[(&[&str], Result<bool, &str>)] = &[
        (&["--profile", "nsys"], Ok(true)),
        (&["--profile", "perf", "--backend", "fake"], Ok(true)),
        (&["--profile", "torch"], Ok(false)),
        (&["--profile", "torch", "--backend", "fake"], Err("no operation of libtorch")),
        (&["--profile", "perf", "--in-process"], Err("leave --in-process away")),
        (&["--profile", "gdb"], Err("gdb")),
    ];
    for (args, expected) in cases {
        match (serve_result(&machine(), &model, args, &[]), expected) {
            (Ok(config), Ok(wraps)) => {
                assert_eq!(
                    config.observe.profiler.map(|profiler| profiler.wraps()),
                    Some(*wraps),
                    "{args:?}"
                );
            }
            (Err(faults), Err(reason)) => {
                let text = faults.to_string();
                assert!(text.starts_with("--profile: ") && text.contains(reason), "{args:?}: {text}");
            }
            (got, _) => panic!("{args:?}: {got:?}, expected {expected:?}"),
        }
    }
}

#[test]
fn a_config_survives_bincode() {
    let model = Tree::gpt2();
    let config = serve(&machine(), &model, &["--host", "::1", "--cpus-engine", "2-3"], &[]);
    let bytes = bincode::serialize(&config).unwrap();
    assert_eq!(bincode::deserialize::<Config>(&bytes).unwrap(), config);
}

#[test]
fn defaults_need_no_folder_on_disk() {
    let facts = ModelFacts {
        max_context: 128,
        default_context: 128,
        vocab_size: 1000,
        stop_ids: StopIds::NONE,
        layers: 2,
        kv_heads: 2,
        head_dim: 32,
        hidden: 64,
        window: None,
    };
    let dir = std::path::Path::new("/models/tiny");
    let config = Config::with_defaults(dir, facts.clone(), Backend::Fake, &machine()).unwrap();
    assert_eq!((config.model, config.served_model_name.as_str()), (facts, "tiny"));
    assert_eq!((config.max_num_seqs, config.kv_blocks, config.engine_threads), (64, 64 * 8, 1));
}

#[test]
fn a_root_path_is_a_path_without_the_slash_at_its_end() {
    let model = Tree::gpt2();
    let given = |text: &str| serve_result(&machine(), &model, &["--root-path", text], &[]);
    for (text, path) in [("/llm", "/llm"), ("/llm/", "/llm"), ("/a/b-1.2_~", "/a/b-1.2_~"), ("/", "")] {
        assert_eq!(given(text).unwrap().root_path, path, "{text}");
    }
    assert_eq!(serve(&machine(), &model, &[], &[]).root_path, "");
    let long = format!("/{}", "a".repeat(256));
    for text in ["llm", "/a//b", "/a/../b", "/.", "/a b", "/a?b", "/a%20b", "/ä", "http://x/a", &long] {
        let faults = given(text).expect_err(text).to_string();
        assert!(
            faults.starts_with("--root-path: ") && faults.contains("is not a path like /llm"),
            "{faults}"
        );
    }
}
