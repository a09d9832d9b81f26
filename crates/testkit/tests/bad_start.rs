//! What cannot be served is refused at start: one clear message that names the file or the flag, an exit code
//! that says whose fault it is, and nothing left behind.

use pinion_testkit::{
    Ended, Folder, PATIENCE, fake_model, fixture_model, launcher_binary, run_binary_to_end, run_to_end,
};
use serde_json::Value;

/// Exit codes as docs/OPERATIONS.md has them.
const USAGE: i32 = 2;
const MODEL: i32 = 3;
const START: i32 = 5;

fn check_ended(name: &str, ended: &Ended, code: i32, says: &[&str]) {
    assert_eq!(ended.code, Some(code), "{name}: {}", ended.stderr);
    for part in says {
        assert!(ended.stderr.contains(part), "{name}: does not say {part:?}:\n{}", ended.stderr);
    }
    // One fault a line, each said once and in one form.
    let errors: Vec<&str> =
        ended.stderr.lines().filter(|line| line.contains(" ERROR ") || line.contains("error: ")).collect();
    assert!(errors.iter().all(|line| line.starts_with("pinion: error: ")), "{name}: {}", ended.stderr);
    let once: std::collections::BTreeSet<&&str> = errors.iter().collect();
    assert!(!errors.is_empty() && once.len() == errors.len(), "{name}: {}", ended.stderr);
    assert!(!ended.stderr.contains("panicked"), "{name}: a panic is no message:\n{}", ended.stderr);
    assert!(!ended.stderr.contains("pinion is ready"), "{name}: {}", ended.stderr);
    assert_eq!((&ended.left, &ended.files), (&vec![], &vec![]), "{name}");
}

/// Serves a folder that has been damaged.
fn check_folder(name: &str, folder: &Folder, backend: &str, says: &[&str]) {
    let flags = ["serve", "--model", folder.text(), "--backend", backend, "--port", "0", "--dtype", "fp32"];
    check_ended(name, &run_to_end(&flags, &[], PATIENCE), MODEL, says);
}

fn read(folder: &Folder, name: &str) -> Vec<u8> {
    std::fs::read(folder.path().join(name)).expect("the kit made this file")
}

fn remove(folder: &Folder, name: &str) {
    std::fs::remove_file(folder.path().join(name)).expect("the kit made this file");
}

/// What can happen to any file.
fn damage(folder: &Folder, file: &str, backend: &str) {
    let whole = read(folder, file);
    let half = whole[..whole.len() / 2].to_vec();
    let damaged = [
        ("truncated", half),
        ("empty", Vec::new()),
        ("another format", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec()),
    ];
    for (what, bytes) in damaged {
        folder.write(file, bytes);
        check_folder(&format!("{file} is {what}"), folder, backend, &[file]);
    }
    remove(folder, file);
    check_folder(&format!("{file} is missing"), folder, backend, &[file]);
    std::fs::create_dir(folder.path().join(file)).expect("a folder can be made");
    check_folder(&format!("{file} is a folder"), folder, backend, &[file]);
}

#[test]
fn a_damaged_config_or_tokenizer_is_named() {
    for file in ["config.json", "tokenizer.json"] {
        damage(&fake_model(512), file, "fake");
    }
    for (part, instead, says) in [
        ("\"vocab_size\":257", "\"vocab_size\":0", "vocab_size"),
        ("\"vocab_size\":257", "\"vocab_size\":\"many\"", "vocab_size"),
        ("\"vocab_size\":257", "\"vocab_size\":4000000000", "vocab_size"),
        ("\"n_positions\":512", "\"n_positions\":-1", "n_positions"),
        ("\"n_positions\":512", "\"n_positions\":1e300", "n_positions"),
    ] {
        let folder = fake_model(512);
        let text = String::from_utf8(read(&folder, "config.json")).expect("JSON is UTF-8");
        let changed = text.replace(part, instead);
        assert_ne!(text, changed, "{part} is in {text}");
        folder.write("config.json", changed);
        check_folder(instead, &folder, "fake", &["config.json", says]);
    }
}

#[test]
fn a_model_of_another_shape_is_named() {
    for (part, instead, says) in [
        ("\"model_type\": \"gpt2\"", "\"model_type\": \"abacus\"", "abacus"),
        ("\"n_head\": 4", "\"n_head\": 5", "n_head 5 does not divide"),
        ("\"n_layer\": 2", "\"n_layer\": 3", "model.safetensors"),
        ("\"n_embd\": 64", "\"n_embd\": 128", "model.safetensors"),
        ("\"vocab_size\": 257", "\"vocab_size\": 258", "model.safetensors"),
        ("\"gelu_new\"", "\"abacus_unit\"", "abacus_unit"),
    ] {
        let folder = fixture_model();
        let text = String::from_utf8(read(&folder, "config.json")).expect("JSON is UTF-8");
        let changed = text.replace(part, instead);
        assert_ne!(text, changed, "{part} is in {text}");
        folder.write("config.json", changed);
        check_folder(instead, &folder, "native", &[says]);
    }
}

#[test]
fn damaged_weights_are_named() {
    damage(&fixture_model(), "model.safetensors", "native");
    damage(&fixture_model(), "model.safetensors", "torch");
    let folder = fixture_model();
    let whole = read(&folder, "model.safetensors");
    let length = u64::from_le_bytes(whole[..8].try_into().expect("eight bytes"));
    let mut cases: Vec<(&str, Vec<u8>)> = Vec::new();
    for (what, length) in
        [("a header past the end", whole.len() as u64), ("an absurd header", u64::MAX), ("no header", 0)]
    {
        cases.push((what, [&length.to_le_bytes(), &whole[8..]].concat()));
    }
    cases.push(("one byte short", whole[..whole.len() - 1].to_vec()));
    let header = String::from_utf8(whole[8..8 + length as usize].to_vec()).expect("the header is JSON");
    for (what, part, instead) in [
        ("a tensor of another name", "wte.weight", "wtf.weight"),
        ("a tensor of another type", "\"F32\"", "\"I32\""),
        ("broken JSON in the header", "{", "["),
    ] {
        let changed = header.replacen(part, instead, 1);
        assert_eq!(changed.len(), header.len(), "{what}: the header keeps its length");
        assert_ne!(changed, header, "{what}");
        cases.push((what, [&whole[..8], changed.as_bytes(), &whole[8 + length as usize..]].concat()));
    }
    for (what, bytes) in cases {
        folder.write("model.safetensors", bytes);
        check_folder(what, &folder, "native", &["model.safetensors"]);
    }
}

/// A program that reads the log as objects reads the last line, too.
#[test]
fn a_log_of_objects_ends_with_one() {
    let good = fake_model(512);
    let of_config = fake_model(512);
    remove(&of_config, "config.json");
    let of_role = fake_model(512);
    of_role.write("chat_template.jinja", "{% if %}");
    let table: [(&Folder, &[&str], i32, &[&str]); 4] = [
        (&good, &["--port", "http"], USAGE, &["--port: `http` is not a number"]),
        (&good, &["--port", "x", "--max-inflight", "-1"], USAGE, &["--port: ", "--max-inflight: "]),
        (&of_config, &[], MODEL, &["config.json: is missing"]),
        (&of_role, &[], MODEL, &["chat_template.jinja: not a usable chat template"]),
    ];
    for (folder, more, code, says) in table {
        let flags = [&["serve", folder.text(), "--backend", "fake", "--port", "0"][..], more].concat();
        let asked = [&flags[..], &["--log-format", "json"]].concat();
        for (flags, variables) in [(&asked, &[][..]), (&flags, &[("PINION_LOG_FORMAT", "json")])] {
            let ended = run_to_end(flags, variables, PATIENCE);
            assert_eq!(ended.code, Some(code), "{}", ended.stderr);
            assert!(!ended.stderr.contains("pinion: error"), "{}", ended.stderr);
            let lines: Vec<&str> = ended.stderr.lines().collect();
            for (line, part) in lines[lines.len() - says.len()..].iter().zip(says) {
                let line: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{}", ended.stderr));
                assert_eq!(line["level"], "ERROR", "{line}");
                assert!(line["message"].as_str().is_some_and(|reason| reason.contains(part)), "{line}");
                assert!(line["timestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
            }
        }
    }
}

#[test]
fn a_wrong_command_line_is_told_all_at_once() {
    let folder = fake_model(512);
    let model = folder.text();
    let table: [(&str, &[&str], &[&str]); 12] = [
        ("unknown flag", &["--prot", "1"], &["--prot", "--port"]),
        ("flag of another server", &["--gpu-memory-utilization", "0.9"], &["kv-cache-memory-share"]),
        ("not a number", &["--port", "http"], &["--port", "http"]),
        ("out of range", &["--port", "65536"], &["--port", "65536"]),
        ("negative", &["--max-inflight", "-1"], &["--max-inflight"]),
        ("no value", &["--port"], &["--port"]),
        ("fp16", &["--dtype", "fp16"], &["--dtype", "bf16"]),
        ("no such address", &["--host", "example.invalid."], &["--host"]),
        ("longer than the model's context", &["--max-model-len", "513"], &["--max-model-len", "512"]),
        ("no such CPU", &["--cpus-engine", "8000"], &["--cpus-engine", "8000"]),
        (
            "one CPU for two",
            &["--cpus-engine", "0", "--cpus-frontend", "0"],
            &["--cpus-engine", "--cpus-frontend"],
        ),
        (
            "several",
            &["--prot", "1", "--max-num-seqs", "0", "--dtype", "f12"],
            &["--prot", "--max-num-seqs", "--dtype"],
        ),
    ];
    for (name, flags, says) in table {
        let arguments = [&["serve", "--backend", "fake", "--model", model][..], flags].concat();
        check_ended(name, &run_to_end(&arguments, &[], PATIENCE), USAGE, says);
    }
    check_ended("no model", &run_to_end(&["serve"], &[], PATIENCE), USAGE, &["--model"]);
    check_ended("no such command", &run_to_end(&["serv"], &[], PATIENCE), USAGE, &["serv"]);
    let missing = run_to_end(&["serve", "--model", "/no/such/folder"], &[], PATIENCE);
    check_ended("no such folder", &missing, MODEL, &["/no/such/folder"]);
}

#[test]
fn environment_and_file_are_checked_with_the_flags() {
    let folder = fake_model(512);
    folder.write("pinion.toml", "max-inflght = 5\nport = \"high\"\n");
    folder.write("broken.toml", "port = = 1\n");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (good, broken, gone) = (path("pinion.toml"), path("broken.toml"), path("gone.toml"));
    let serve = ["serve", "--backend", "fake", "--model", folder.text(), "--bogus"];
    let ended = run_to_end(
        &[&serve[..], &["--config", &good]].concat(),
        &[("PINION_PROT", "1"), ("PINION_SEED", "none")],
        PATIENCE,
    );
    let says = [
        "pinion.toml",
        "max-inflght",
        "max-inflight",
        "port",
        "PINION_PROT",
        "PINION_PORT",
        "PINION_SEED",
        "--bogus",
    ];
    check_ended("file, environment and flags", &ended, USAGE, &says);
    for file in [&broken, &gone] {
        let ended = run_to_end(&[&serve[..5], &["--config", file]].concat(), &[], PATIENCE);
        check_ended(file, &ended, USAGE, &[file]);
    }
}

#[test]
fn a_start_that_takes_too_long_is_given_up() {
    let folder = fake_model(512);
    let flags =
        ["serve", "--backend", "fake", "--model", folder.text(), "--port", "0", "--start-timeout", "1ms"];
    check_ended("1 ms", &run_to_end(&flags, &[], PATIENCE), START, &["--start-timeout"]);
}

/// The binaries, linked into a folder so far away that libtorch is not found from there.
fn far_away(names: &[&str]) -> (std::path::PathBuf, std::path::PathBuf) {
    let launcher = launcher_binary();
    let binaries = launcher.parent().expect("a file is in a folder");
    let root = binaries.join(format!("far-away-{}-{}", std::process::id(), names.len()));
    let folder = root.join("from/libtorch/bin");
    std::fs::create_dir_all(&folder).expect("the target folder is writable");
    for name in names {
        std::fs::hard_link(binaries.join(name), folder.join(name)).expect("binaries can be linked");
    }
    (root, folder.join("pinion"))
}

#[test]
fn missing_parts_of_the_installation_are_named() {
    let folder = fake_model(512);
    let flags = ["serve", "--backend", "fake", "--model", folder.text(), "--port", "0"];
    let all = ["pinion", "pinion-frontend", "pinion-tokenizer", "pinion-engine", "pinion-detokenizer"];
    for (name, present, code, says) in [
        ("no libtorch", &all[..], START, ["libtorch", "setup-only"]),
        ("no role binaries", &all[..1], START, ["pinion-engine", "cannot start"]),
    ] {
        let (root, launcher) = far_away(present);
        let ended = run_binary_to_end(&launcher, &flags, &[("LD_LIBRARY_PATH", "")], PATIENCE);
        std::fs::remove_dir_all(root).expect("what was linked can be removed");
        check_ended(name, &ended, code, &says);
    }
}

#[test]
fn what_is_asked_for_is_printed_and_nothing_started() {
    for (arguments, says) in [
        (&["--version"][..], "pinion 0."),
        (&["version"], "pinion 0."),
        (&["--help"], "serve"),
        (&["help"], "serve"),
        (&["serve", "--help"], "--max-model-len"),
    ] {
        let ended = run_to_end(arguments, &[], PATIENCE);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        assert!(ended.stdout.contains(says), "{arguments:?}: {}", ended.stdout);
        assert_eq!(ended.stderr, "", "{arguments:?}");
    }
    let folder = fake_model(512);
    let ended = run_to_end(
        &["config", "show", "--backend", "fake", folder.text()],
        &[("PINION_PORT", "81")],
        PATIENCE,
    );
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("81") && ended.stdout.contains("PINION_PORT"), "{}", ended.stdout);
}
