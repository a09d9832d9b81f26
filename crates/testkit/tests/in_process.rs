//! Every role as a thread of one process: the same answers, the same ends.

use nix::sys::signal::Signal;
use pinion_testkit::{Api, PATIENCE, Server};
use serde_json::json;

/// Exit code of a model folder that cannot be served (docs/OPERATIONS.md).
const BAD_MODEL: i32 = 3;

#[test]
fn one_process_gives_the_same_text_and_leaves_when_told() {
    let mut server = Server::fake(&["--in-process", "--fake-step-us", "200"]);
    assert_eq!(server.processes().len(), 1, "{:?}", server.processes());
    let oracle = server.oracle();
    for (prompt, tokens) in [("one", 1), ("a longer prompt than a block holds, by far", 40)] {
        for stream in [false, true] {
            let body = json!({"prompt": prompt, "max_tokens": tokens, "stream": stream});
            let answer = server.ask(Api::Completions, &body);
            assert_eq!(answer.text, oracle.text(&oracle.encode(prompt), tokens), "{prompt}, stream {stream}");
        }
    }
    server.wait_idle();
    server.signal(Signal::SIGTERM);
    assert!(server.wait_exit(PATIENCE).success(), "{}", server.stderr_text());
}

#[test]
fn one_process_says_why_it_cannot_start() {
    let ended = pinion_testkit::run_to_end(
        &["serve", "--in-process", "--backend", "fake", "--model", "/nonexistent"],
        &[],
        PATIENCE,
    );
    assert_eq!(ended.code, Some(BAD_MODEL), "{}", ended.stderr);
    assert!(ended.stderr.contains("/nonexistent"), "{}", ended.stderr);
    assert!(ended.left.is_empty() && ended.files.is_empty(), "{ended:?}");
}
