//! Speculation through the real processes: the same texts with drafts and without, counted in /metrics and in
//! `timings`, over the death of an engine, and in a recording that replays.

use pinion_testkit::{
    Answer, Api, End, Folder, PATIENCE, Server, Signal, kill, launcher_binary, run_binary_to_end, wait_until,
};
use serde_json::{Value, json};

const PROMPT: &str = "Round and round and round and round it goes, and round and round. ";

/// Products whose bits do not depend on the rows beside a row.
const EXACT: [&str; 4] = ["--dtype", "fp32", "--linear", "packed"];

/// A model of random weights, small and made of what its published kin are made of.
fn made() -> Folder {
    let folder = Folder::new();
    let arguments = ["make-model", "qwen3", "--size", "tiny", "--deviation", "0.2", "--out", folder.text()];
    let ended = run_binary_to_end(&launcher_binary().with_file_name("xtask"), &arguments, &[], PATIENCE);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    folder
}

/// Few different tokens are likely, so that texts repeat themselves.
fn body(n: u64) -> Value {
    let bias = json!({"65": 100, "66": 100, "67": 100});
    let mut body = json!({"prompt": format!("{n} {PROMPT}"), "max_tokens": 160, "seed": n, "ignore_eos": true,
        "temperature": if n.is_multiple_of(2) { 0.0 } else { 0.4 }, "logit_bias": bias, "stream": n.is_multiple_of(3)});
    if n % 4 == 3 {
        body["stop"] = json!(["AABBA", "CCCCCCC"]);
    }
    if n % 4 == 2 {
        body["frequency_penalty"] = json!(0.01);
    }
    body
}

fn texts(server: &Server) -> Vec<(String, Option<String>)> {
    let ask = |n: u64| {
        let answer: Answer = server.ask(Api::Completions, &body(n));
        assert_eq!((answer.status, &answer.end), (200, &End::Complete), "{n}");
        (answer.text, answer.finish_reason)
    };
    // One after the other, then several at once.
    let alone = (0..4).map(ask).collect::<Vec<_>>();
    let together = std::thread::scope(|scope| {
        let threads: Vec<_> = (4..10).map(|n| scope.spawn(move || ask(n))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a client's thread")).collect::<Vec<_>>()
    });
    [alone, together].concat()
}

#[test]
fn drafts_change_no_text_and_are_counted() {
    let (folder, record) = (made(), Folder::new());
    let file = record.path().join("run").display().to_string();
    let run = |flags: &[&str]| {
        let server = Server::start(folder.path(), &[&EXACT[..], flags].concat());
        let texts = texts(&server);
        let mut asked = body(0);
        (asked["timings"], asked["stream"]) = (true.into(), false.into());
        let timings = server.post("/v1/completions", &asked).json()["timings"].clone();
        server.wait_idle();
        let own =
            ["draft", "accepted_draft"].map(|name| server.metric(&format!("pinion_{name}_tokens_total")));
        let compat = ["draft", "accepted"]
            .map(|name| server.metrics().total(&format!("vllm:spec_decode_num_{name}_tokens_total")));
        assert_eq!(own.map(Some), compat);
        server.stop();
        (texts, own, timings)
    };
    let (plain, none, timings) = run(&[]);
    assert_eq!((none, &timings["draft_n"]), ([0.0, 0.0], &json!(0)));
    for flags in [
        &["--speculative", "ngram", "--record", &file][..],
        &["--speculative", "ngram", "--overlap"],
        &["--speculative", "ngram", "--max-num-seqs", "2", "--no-prefix-cache", "--block-size", "4"],
    ] {
        let (texts, [drafts, accepted], timings) = run(flags);
        assert_eq!(texts, plain, "{flags:?}");
        assert!(accepted > 200.0 && drafts > accepted, "{flags:?}: {accepted} of {drafts}");
        let count = |name: &str| timings[name].as_u64().unwrap_or_else(|| panic!("no {name} in {timings}"));
        let (proposed, right, steps) =
            (count("draft_n"), count("draft_n_accepted"), timings["batch"]["steps"].as_u64());
        assert!(right > 20 && proposed >= right, "{timings}");
        // Each step gives a token of its own, and the prompt takes one at least.
        assert!(steps.is_some_and(|steps| steps >= 160 - right && steps <= 165 - right), "{timings}");
    }
    let engine = launcher_binary().with_file_name("pinion-engine");
    for (flags, identical) in [(&[][..], true), (&["--speculative", "off"], false)] {
        let arguments = [&["replay", &file], flags].concat();
        let ended = run_binary_to_end(&engine, &arguments, &[], PATIENCE);
        let report: Value = serde_json::from_str(&ended.stdout).unwrap_or_default();
        assert_eq!(
            (ended.code, &report["identical"]),
            (Some(0), &json!(identical)),
            "{report} {}",
            ended.stderr
        );
    }
}

/// A resumed text goes on with drafts, to the same end.
#[test]
fn a_death_under_drafts_changes_no_text() {
    let folder = made();
    let ask = |n: u64| {
        let mut body = body(2 * n);
        (body["max_tokens"], body["stream"]) = (400.into(), true.into());
        body
    };
    let bodies: Vec<Value> = (0..3).map(ask).collect();
    let restarts = ["--restart-backoff", "20ms", "--restart-limit", "1000"];
    let flags = [&EXACT[..], &restarts].concat();
    let plain = Server::start(folder.path(), &flags);
    let expected: Vec<String> = bodies.iter().map(|body| plain.ask(Api::Completions, body).text).collect();
    plain.stop();
    let server = Server::start(folder.path(), &[&flags[..], &["--speculative", "ngram"]].concat());
    let hit = (0..20).any(|_| {
        let victim = wait_until("the engine runs", PATIENCE, || server.role("engine-0"));
        let begun = server.begin(Api::Completions, &bodies);
        kill(victim.pid, Signal::SIGKILL);
        for (events, expected) in begun.into_iter().zip(&expected) {
            let answer = Answer::of_events(Api::Completions, events);
            assert_eq!((answer.status, &answer.text), (200, expected), "{:?}", answer.end);
        }
        wait_until("the engine is back", PATIENCE, || {
            let back = server.role("engine-0").is_some_and(|role| role.pid != victim.pid);
            (back && server.get("/ready").status() == 200).then_some(())
        });
        server.metric("pinion_resumed_requests_total") > 0.0
    });
    assert!(hit, "no death came under a stream");
    server.stop();
}
