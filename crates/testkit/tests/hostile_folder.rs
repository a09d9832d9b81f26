//! Model folders whose template or tokenizer asks for any amount of memory: a clear end at the start, and at a request
//! the end of that request alone. Memory is bounded throughout.

use pinion_testkit::{Api, End, Folder, PATIENCE, Server, Signal, fake_model, kill, run_to_end, wait_until};
use serde_json::{Value, json};

/// Exit code as docs/OPERATIONS.md has it.
const MODEL: i32 = 3;
/// No role of a small folder may have more, in bytes.
const MEMORY_MAX: u64 = 1 << 30;
/// More than `--restart-limit` below.
const TIMES: usize = 4;

/// 16 bytes, doubled 60 times.
const DOUBLED: &str = "{% set ns = namespace(x='0123456789abcdef') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}\
                       {% endfor %}{{ ns.x }}";

fn chat(content: &str) -> Value {
    json!({"messages": [{"role": "user", "content": content}], "max_tokens": 4})
}

#[test]
fn a_template_that_wants_all_memory_ends_the_start_with_a_reason() {
    let folder = fake_model(512);
    folder.write("chat_template.jinja", DOUBLED);
    let flags = ["serve", "--model", folder.text(), "--backend", "fake", "--port", "0"];
    let ended = run_to_end(&flags, &[], PATIENCE);
    assert_eq!(ended.code, Some(MODEL), "{}", ended.stderr);
    for part in ["chat_template.jinja", "chat template needs more than", "MiB of memory"] {
        assert!(ended.stderr.contains(part), "does not say {part:?}: {}", ended.stderr);
    }
    assert_eq!(ended.left, []);
}

#[test]
fn a_template_without_a_name_is_the_folders_fault() {
    let folder = fake_model(512);
    folder.write("tokenizer_config.json", r#"{"chat_template": [{"template": "x"}]}"#);
    let flags = ["serve", "--model", folder.text(), "--backend", "fake", "--port", "0"];
    let ended = run_to_end(&flags, &[], PATIENCE);
    assert_eq!(ended.code, Some(MODEL), "{}", ended.stderr);
    assert!(ended.stderr.contains("tokenizer_config.json"), "{}", ended.stderr);
}

/// The kernel's word for how much memory of its own each role that reads the folder may have.
fn check_bound(server: &Server) {
    for name in ["tokenizer-0", "detokenizer-0"] {
        let pid = server.role(name).expect("it runs").pid;
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("it lives");
        let line =
            limits.lines().find_map(|line| line.strip_prefix("Max data size")).expect("the kernel tells it");
        let bytes: u64 = line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a limit");
        assert!(bytes <= MEMORY_MAX, "{name}: {line}");
    }
}

/// A request that runs out of memory is refused; those beside and after it are served, however often it comes.
fn check_refused_alone(folder: &Folder, api: Api, hostile: &Value, harmless: &Value, flags: &[&str]) {
    let all = ["--backend", "fake", "--restart-limit", "2", "--restart-backoff", "1ms"];
    let server = Server::start(folder.path(), &[&all, flags].concat());
    check_bound(&server);
    assert_eq!(server.ask(api, harmless).end, End::Complete);
    for time in 0..TIMES {
        let before = server.role("tokenizer-0").map(|role| role.pid);
        let beside = std::thread::scope(|scope| {
            let beside = scope.spawn(|| server.ask(api, harmless));
            let answer = server.post(api.path(), hostile);
            assert_eq!(answer.status(), 400, "{time}: {}\n{}", answer.text(), server.stderr_text());
            assert!(answer.text().contains("more memory"), "{}", answer.text());
            beside.join().expect("a request's thread")
        });
        assert_eq!(beside.end, End::Complete, "{time}: the request beside it");
        wait_until("the tokenizer is back", PATIENCE, || {
            let now = server.role("tokenizer-0").map(|role| role.pid);
            let ready = server.get("/ready").status() == 200;
            (now.is_some() && now != before && ready).then_some(())
        });
    }
    // The deaths of those requests bring no other death nearer to the limit.
    for _ in 0..2 {
        let before = server.role("tokenizer-0").expect("it runs").pid;
        kill(before, Signal::SIGKILL);
        wait_until("the tokenizer is back", PATIENCE, || {
            let back = server.role("tokenizer-0").is_some_and(|role| role.pid != before);
            (back && server.get("/ready").status() == 200).then_some(())
        });
    }
    assert_eq!(server.ask(api, harmless).end, End::Complete);
    server.wait_idle();
    server.stop();
}

#[test]
fn a_request_for_which_the_template_wants_all_memory_is_refused_alone() {
    let folder = fake_model(512);
    let template = format!(
        "{{% if messages[-1].content == 'boom' %}}{DOUBLED}{{% endif %}}{{{{ messages[-1].content }}}}"
    );
    folder.write("chat_template.jinja", template);
    check_refused_alone(&folder, Api::Chat, &chat("boom"), &chat("calm"), &[]);
}

#[test]
fn a_request_that_a_normalizer_grows_is_refused_alone() {
    let folder = fake_model(512);
    let mut tokenizer: Value = serde_json::from_str(&pinion_text::byte_tokenizer_json()).expect("it is JSON");
    tokenizer["normalizer"] =
        json!({"type": "Replace", "pattern": {"String": "z"}, "content": "y".repeat(1 << 20)});
    folder.write("tokenizer.json", tokenizer.to_string());
    let hostile = json!({"prompt": "z".repeat(500), "max_tokens": 1});
    let harmless = json!({"prompt": "calm", "max_tokens": 4});
    // Which request it is the stamps of its slot tell, which stay where no timeline is kept.
    check_refused_alone(&folder, Api::Completions, &hostile, &harmless, &["--no-timeline"]);
}
