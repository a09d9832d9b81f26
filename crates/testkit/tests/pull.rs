//! Models of the hub: pulled through everything that can go wrong, served, and served again without a hub. Each failure
//! is one sentence, and leaves nothing under a final name.

use pinion_testkit::{
    Api, COMMIT, Ended, Folder, Hub, PATIENCE, Server, Signal, Trouble, demo_model, run_to_end, wait_until,
};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Exit codes as docs/OPERATIONS.md has them.
const USAGE: i32 = 2;
const MODEL: i32 = 3;
const PULL: i32 = 8;

const TOKEN: &str = "hf_secretToken";
const WEIGHTS: &str = "model.safetensors";

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Noise, so that no part of a file is like another.
fn noise(count: usize) -> Vec<u8> {
    let mut random = pinion_testkit::Random::new(7);
    (0..count).map(|_| random.below(256) as u8).collect()
}

/// A repository that is no model, but looks like one from outside.
fn small_hub() -> Hub {
    let weights = noise(300_000);
    let files: [(&str, &[u8]); 6] = [
        ("config.json", b"{}"),
        ("tokenizer.json", b"{\"a\": 1}"),
        (WEIGHTS, &weights),
        ("pytorch_model.bin", b"never pulled"),
        ("modeling_x.py", b"never pulled"),
        ("README.md", b"not pulled"),
    ];
    Hub::new(&files, sha256)
}

fn variables<'a>(hub: &'a str, home: &'a Folder) -> Vec<(&'a str, &'a str)> {
    vec![
        ("HF_ENDPOINT", hub),
        ("HF_HOME", home.text()),
        ("HF_HUB_CACHE", ""),
        ("HF_HUB_OFFLINE", ""),
        ("HF_TOKEN", TOKEN),
        ("http_proxy", ""),
        ("HTTP_PROXY", ""),
        ("all_proxy", ""),
        ("ALL_PROXY", ""),
    ]
}

fn pull(hub: &Hub, home: &Folder, words: &[&str]) -> Ended {
    let endpoint = hub.endpoint();
    run_to_end(&[&["pull"], words].concat(), &variables(&endpoint, home), PATIENCE)
}

fn repository(home: &Folder) -> PathBuf {
    home.path().join("hub/models--org--name")
}

fn snapshot(home: &Folder) -> PathBuf {
    repository(home).join("snapshots").join(COMMIT)
}

/// Names below a folder, without what only this cache's locks are.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).map(|entries| {
        let mut names: Vec<_> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    });
    entries.unwrap_or_default()
}

fn check_failed(ended: &Ended, code: i32, says: &[&str]) {
    assert_eq!(ended.code, Some(code), "{}", ended.stderr);
    for part in says {
        assert!(ended.stderr.contains(part), "does not say {part:?}:\n{}", ended.stderr);
    }
    assert!(!ended.stderr.contains("panicked") && !ended.stderr.contains(TOKEN), "{}", ended.stderr);
    assert_eq!((ended.stdout.as_str(), &ended.left), ("", &vec![]));
}

fn check_pulled(ended: &Ended, home: &Folder) {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(Path::new(ended.stdout.trim_end()), snapshot(home), "{}", ended.stderr);
    assert_eq!(names(&snapshot(home)), ["config.json", WEIGHTS, "tokenizer.json"]);
    let weights = std::fs::read(snapshot(home).join(WEIGHTS)).expect("the weights were pulled");
    assert_eq!(weights, noise(300_000));
    let parts =
        names(&repository(home).join("blobs")).into_iter().filter(|name| name.ends_with("incomplete"));
    assert_eq!(parts.count(), 0);
    assert!(!ended.stderr.contains(TOKEN), "{}", ended.stderr);
}

#[test]
fn a_pull_has_the_layout_that_others_read_and_tells_the_token_to_the_hub_alone() {
    let (hub, home) = (small_hub(), Folder::new());
    check_pulled(&pull(&hub, &home, &["org/name"]), &home);
    let link = std::fs::read_link(snapshot(&home).join(WEIGHTS)).unwrap();
    assert_eq!(link, Path::new("../../blobs").join(hub.etag(WEIGHTS)));
    assert_eq!(std::fs::read_to_string(repository(&home).join("refs/main")).unwrap(), COMMIT);
    let seen = hub.seen();
    assert!(seen.iter().any(|request| request.at_storage));
    for request in &seen {
        assert_eq!(request.token.as_deref(), (!request.at_storage).then_some(TOKEN), "{request:?}");
        assert!(!request.path.contains(".bin") && !request.path.contains(".py"), "{request:?}");
    }
    // The second pull asks for the list and nothing else; another revision of the same commit takes no byte.
    check_pulled(&pull(&hub, &home, &["org/name"]), &home);
    assert_eq!(hub.seen().len(), seen.len() + 1);
    check_pulled(&pull(&hub, &home, &["org/name@refs/pr/1"]), &home);
    assert_eq!(std::fs::read_to_string(repository(&home).join("refs/refs/pr/1")).unwrap(), COMMIT);
    assert_eq!(hub.seen().len(), seen.len() + 2);
}

#[test]
fn cuts_refusals_for_a_while_and_wrong_answers_are_got_over() {
    let (hub, home) = (small_hub(), Folder::new());
    hub.trouble("list", Trouble::Refuse(429, vec![("Retry-After", "0")]));
    hub.trouble("list", Trouble::Refuse(503, vec![]));
    for trouble in [
        Trouble::Refuse(500, vec![("Retry-After", "0")]),
        Trouble::Cut(100_000),
        Trouble::Cut(0),
        Trouble::Cut(50_000),
        Trouble::WholeFile,
    ] {
        hub.trouble(WEIGHTS, trouble);
    }
    hub.trouble("config.json", Trouble::Cut(1));
    check_pulled(&pull(&hub, &home, &["org/name"]), &home);
    let requests = hub.seen().into_iter().filter(|seen| seen.at_storage).map(|seen| seen.from);
    assert_eq!(requests.collect::<Vec<_>>(), [None, None, Some(100_000), Some(100_000), Some(150_000)]);
}

#[test]
fn what_has_come_is_kept_when_a_pull_ends_and_the_next_goes_on_from_it() {
    let (hub, home) = (small_hub(), Folder::new());
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        hub.trouble(WEIGHTS, Trouble::Stall(100_000));
        let endpoint = hub.endpoint();
        let mut command = std::process::Command::new(pinion_testkit::launcher_binary());
        command
            .args(["pull", "org/name"])
            .envs(variables(&endpoint, &home))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let part = repository(&home).join("blobs").join(hub.etag(WEIGHTS) + ".incomplete");
        let grown = if signal == Signal::SIGINT { 100_000 } else { 200_000 };
        wait_until("a part has come", PATIENCE, || {
            std::fs::metadata(&part).ok().filter(|meta| meta.len() == grown).map(drop)
        });
        pinion_testkit::kill(child.id(), signal);
        let text = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
        let code = child.wait().unwrap().code();
        assert_eq!(code, (signal == Signal::SIGINT).then_some(PULL), "{text}");
        assert!(signal == Signal::SIGKILL || text.contains("goes on from it"), "{text}");
        assert!(!snapshot(&home).join(WEIGHTS).exists() && !repository(&home).join("refs").exists());
    }
    check_pulled(&pull(&hub, &home, &["org/name"]), &home);
    let last = hub.seen().pop().unwrap();
    assert_eq!((last.at_storage, last.from), (true, Some(200_000)));
}

#[test]
fn a_wrong_hash_is_named_and_the_file_is_gone() {
    let (hub, home) = (small_hub(), Folder::new());
    hub.trouble(WEIGHTS, Trouble::Corrupt);
    let ended = pull(&hub, &home, &["org/name"]);
    check_failed(&ended, PULL, &[WEIGHTS, "sha256", &hub.etag(WEIGHTS), "was removed"]);
    let left = names(&repository(&home).join("blobs"));
    assert!(!left.iter().any(|name| name.starts_with(&hub.etag(WEIGHTS))), "{left:?}");
    // A part that another program left may be wrong, too: then the file comes once more from its start.
    let part = repository(&home).join("blobs").join(hub.etag(WEIGHTS) + ".incomplete");
    std::fs::write(&part, noise(1000).iter().map(|byte| byte ^ 1).collect::<Vec<_>>()).unwrap();
    check_pulled(&pull(&hub, &home, &["org/name"]), &home);
    // Nor is a blob of the wrong size taken for the file.
    let (blob, link) =
        (repository(&home).join("blobs").join(hub.etag(WEIGHTS)), snapshot(&home).join(WEIGHTS));
    std::fs::write(blob, "short").unwrap();
    std::fs::remove_file(link).unwrap();
    check_pulled(&pull(&hub, &home, &["org/name"]), &home);
}

#[test]
fn refusals_say_what_to_do() {
    let (hub, home) = (small_hub(), Folder::new());
    let endpoint = hub.endpoint();
    let gated = format!("accept its licence at {endpoint}/org/name");
    let cases: [(u16, &'static str, &'static str, &[&str]); 4] = [
        (401, "X-Error-Code", "GatedRepo", &["org/name is gated", &gated]),
        (403, "X-Error-Code", "GatedRepo", &["org/name is gated", "HF_TOKEN"]),
        (403, "X-Other", "", &["org/name is gated", &gated]),
        (
            401,
            "X-Error-Message",
            "Invalid credentials in Authorization header",
            &["does not take the token", "HF_TOKEN"],
        ),
    ];
    for (status, field, value, says) in cases {
        hub.trouble("config.json", Trouble::Refuse(status, vec![(field, value)]));
        check_failed(&pull(&hub, &home, &["org/name"]), PULL, says);
    }
    check_failed(&pull(&hub, &home, &["org/other"]), PULL, &["no model org/other", "check the name"]);
    check_failed(
        &pull(&hub, &home, &["org/name@v9"]),
        PULL,
        &["org/name has no revision v9", "/commits/main"],
    );
    check_failed(&pull(&hub, &home, &["gpt2"]), USAGE, &["`gpt2`", "ORG/NAME"]);
    check_failed(
        &pull(&hub, &home, &["org/name", "--hub-offline"]),
        PULL,
        &["org/name is not in the cache", "offline"],
    );
    for _ in 0..5 {
        hub.trouble("list", Trouble::Refuse(500, vec![("Retry-After", "0")]));
    }
    check_failed(&pull(&hub, &home, &["org/name"]), PULL, &["answers 500", "try again later"]);
    let flags = ["org/name", "--hub-endpoint", "http://127.0.0.1:1"];
    check_failed(&pull(&hub, &home, &flags), PULL, &["127.0.0.1 cannot be reached", "HF_ENDPOINT"]);
    check_failed(
        &pull(&hub, &home, &["org/name", "--hub-endpoint", "ftp://x"]),
        USAGE,
        &["--hub-endpoint", "no address"],
    );
    for (file, says) in [
        ("pytorch_model.bin", "save_pretrained"),
        ("model-Q4_K_M.gguf", "GGUF"),
        ("adapter_model.safetensors", "adapter"),
        ("notes.txt", "no weights"),
    ] {
        let hub = Hub::new(&[("config.json", b"{}"), (file, b"x")], sha256);
        check_failed(&pull(&hub, &Folder::new(), &["org/name"]), MODEL, &["org/name has", says]);
    }
}

#[test]
fn a_full_disk_is_told_before_and_during_the_download() {
    let (hub, home) = (small_hub(), Folder::new());
    hub.claim_size(WEIGHTS, 1 << 60);
    check_failed(&pull(&hub, &home, &["org/name"]), PULL, &["1152921.5 TB are needed", "--hub-cache"]);
    hub.claim_size(WEIGHTS, 300_000);
    let part = repository(&home).join("blobs").join(hub.etag(WEIGHTS) + ".incomplete");
    std::os::unix::fs::symlink("/dev/full", &part).unwrap();
    check_failed(&pull(&hub, &home, &["org/name"]), PULL, &["the disk is full at", "make room"]);
    assert!(!snapshot(&home).join(WEIGHTS).exists());
}

#[test]
fn shards_come_by_their_index_and_two_pulls_at_once_download_once() {
    let index = json!({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).to_string();
    let (one, two) = (noise(400_000), noise(200_000));
    let files: [(&str, &[u8]); 6] = [
        ("config.json", b"{}"),
        ("tokenizer.json", b"{}"),
        ("model.safetensors.index.json", index.as_bytes()),
        ("model-1.safetensors", &one),
        ("model-2.safetensors", &two),
        ("consolidated.safetensors", b"not of the index"),
    ];
    let (hub, home) = (Hub::new(&files, sha256), Folder::new());
    hub.trouble("model-1.safetensors", Trouble::Cut(10_000));
    let both = std::thread::scope(|scope| {
        let first = scope.spawn(|| pull(&hub, &home, &["org/name"]));
        let second = scope.spawn(|| pull(&hub, &home, &["org/name"]));
        [first.join().unwrap(), second.join().unwrap()]
    });
    for ended in both {
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    assert_eq!(std::fs::read(snapshot(&home).join("model-1.safetensors")).unwrap(), one);
    assert_eq!(std::fs::read(snapshot(&home).join("model-2.safetensors")).unwrap(), two);
    let at_storage: Vec<_> =
        hub.seen().into_iter().filter(|seen| seen.at_storage).map(|seen| seen.path).collect();
    assert_eq!(at_storage.len(), 3, "each once, and once more after the cut: {at_storage:?}");
    for (map, says) in [
        (json!({"a": "../x.safetensors"}), "no safetensors file"),
        (json!({"a": "other.safetensors"}), "does not have"),
    ] {
        let index = json!({ "weight_map": map }).to_string();
        let files: [(&str, &[u8]); 2] =
            [("config.json", b"{}"), ("model.safetensors.index.json", index.as_bytes())];
        let (hub, home) = (Hub::new(&files, sha256), Folder::new());
        check_failed(&pull(&hub, &home, &["org/name"]), PULL, &[says]);
    }
}

#[test]
fn a_model_is_served_by_its_name_through_a_cut_and_then_without_a_hub() {
    let Some(folder) = demo_model() else { return };
    let (hub, home) = (Hub::of_folder(&folder, sha256), Folder::new());
    hub.trouble(WEIGHTS, Trouble::Cut(1_000_000));
    let endpoint = hub.endpoint();
    let mut variables = variables(&endpoint, &home);
    let flags = ["--dtype", "fp32", "--max-num-seqs", "4"];
    let ask = |server: &Server| {
        let body = json!({"model": "org/name", "prompt": "ROMEO:\n", "max_tokens": 8, "temperature": 0});
        let answer = server.ask(Api::Completions, &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.text
    };
    let serve = |name: &str, variables: &[(&str, &str)]| {
        let mut server = Server::launch_with(Path::new(name), &flags, variables);
        server.wait_ready();
        let text = ask(&server);
        assert_eq!(server.model(), "org/name");
        assert!(!server.stderr_text().contains(TOKEN));
        server.stop();
        text
    };
    let first = serve("org/name", &variables);
    let requests = hub.seen().len();
    assert!(hub.seen().iter().any(|seen| seen.from == Some(1_000_000)), "the cut was resumed");
    variables.push(("HF_HUB_OFFLINE", "1"));
    assert_eq!(serve("org/name", &variables), first);
    assert_eq!(hub.seen().len(), requests, "offline nothing is asked");
    // The hub cannot be reached: the copy in the cache stands in.
    let gone = [&variables[..], &[("HF_HUB_OFFLINE", "0"), ("HF_ENDPOINT", "http://127.0.0.1:1")]].concat();
    assert_eq!(serve("org/name", &gone), first);
    let failed = run_to_end(&["serve", "org/none", "--port", "0"], &variables, PATIENCE);
    check_failed(&failed, PULL, &["org/none is not in the cache"]);
}

#[test]
fn a_service_that_pulls_stops_at_a_signal() {
    let (hub, home) = (small_hub(), Folder::new());
    hub.trouble(WEIGHTS, Trouble::Stall(100_000));
    let endpoint = hub.endpoint();
    let mut server = Server::launch_with(Path::new("org/name"), &[], &variables(&endpoint, &home));
    let part = repository(&home).join("blobs").join(hub.etag(WEIGHTS) + ".incomplete");
    wait_until("a part has come", PATIENCE, || {
        std::fs::metadata(&part).ok().filter(|meta| meta.len() == 100_000).map(drop)
    });
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    assert!(server.stderr_text().contains("the next pull goes on from it"), "{}", server.stderr_text());
    assert_eq!(server.processes(), []);
}
