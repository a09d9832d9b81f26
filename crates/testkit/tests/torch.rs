//! The real model on libtorch, through the real processes.

use pinion_testkit::{
    Answer, Api, End, PATIENCE, Server, Signal, demo_model, fixture_model, kill, wait_until,
};
use serde_json::{Value, json};

fn ask(server: &Server, body: &Value) -> Answer {
    let answer = server.ask(Api::Completions, body);
    assert_eq!((answer.status, &answer.end), (200, &End::Complete), "{body}");
    answer
}

/// Greedy text does not depend on how it is requested or on other requests.
fn check_greedy(server: &Server, prompts: &[&str], tokens: usize) {
    let body = |prompt: &str, stream: bool| json!({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "stream": stream});
    let alone: Vec<Answer> = prompts.iter().map(|prompt| ask(server, &body(prompt, false))).collect();
    for (prompt, answer) in prompts.iter().zip(&alone) {
        assert!(!answer.text.is_empty(), "{prompt:?}");
        assert_eq!(answer.finish_reason.as_deref(), Some("length"), "{prompt:?}");
        assert_eq!(answer.usage.map(|usage| usage.completion_tokens), Some(tokens as u64), "{prompt:?}");
    }
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> =
            prompts.iter().map(|prompt| scope.spawn(move || ask(server, &body(prompt, true)))).collect();
        for ((prompt, alone), thread) in prompts.iter().zip(&alone).zip(threads) {
            let crowded = thread.join().expect("a stream's thread");
            assert_eq!(crowded.text, alone.text, "{prompt:?} streamed among others");
            assert!(crowded.parts > 1, "{prompt:?} came in one piece");
        }
    });
    server.wait_idle();
}

#[test]
fn the_demo_model_answers_the_same_alone_and_in_a_crowd() {
    let Some(folder) = demo_model() else {
        println!("skipped: deploy/demo-model has no weights");
        return;
    };
    let server = Server::start(&folder, &["--dtype", "fp32"]);
    let prompts = [
        "ROMEO:\n",
        "JULIET:\nO ",
        "First Citizen:\nWe",
        "KING RICHARD III:\nNow",
        "What",
        "The lord of",
        "MENENIUS:\nI tell you, friends, most charitable care\nHave the patricians of you.",
        "Enter",
    ];
    check_greedy(&server, &prompts, 32);
    let body =
        json!({"messages": [{"role": "user", "content": "Speak."}], "max_tokens": 12, "temperature": 0});
    let answer = server.ask(Api::Chat, &body);
    assert_eq!(answer.end, End::Complete, "{answer:?}");
    server.stop();
}

#[test]
fn what_a_load_does_not_use_is_in_the_log() {
    let folder = fixture_model();
    let config = std::fs::read_to_string(folder.path().join("config.json")).expect("the kit made this file");
    let shorter = config.replace("\"n_layer\": 2", "\"n_layer\": 1");
    assert_ne!(config, shorter);
    folder.write("config.json", shorter);
    let server = Server::start(folder.path(), &["--dtype", "fp32"]);
    let said = wait_until("the engine says it", PATIENCE, || {
        let log = server.stderr_text();
        log.lines().find(|line| line.contains("tensors of the checkpoint are not used")).map(str::to_owned)
    });
    assert!(said.contains("WARN") && said.contains("h.1."), "{said}");
    server.stop();
}

#[test]
fn a_seed_repeats_and_another_one_does_not() {
    let folder = fixture_model();
    let server = Server::start(folder.path(), &["--dtype", "fp32"]);
    let sampled = |seed: u64, stream: bool| {
        let body = json!({"prompt": "draw", "max_tokens": 24, "temperature": 1.0, "top_p": 0.95, "top_k": 100,
            "ignore_eos": true, "seed": seed, "stream": stream});
        ask(&server, &body).text
    };
    let first = sampled(1, false);
    assert_eq!(first, sampled(1, true), "one seed, one text");
    let others: Vec<String> = (2..6).map(|seed| sampled(seed, false)).collect();
    assert!(others.iter().any(|text| *text != first), "five seeds, one text: {first:?}");
    server.stop();
}

#[test]
fn every_kernel_choice_gives_the_same_greedy_text() {
    let folder = fixture_model();
    let texts: Vec<String> =
        [["onednn", "vector"], ["plain", "vector"], ["packed", "vector"], ["auto", "twin"]]
            .iter()
            .map(|[linear, attention]| {
                let flags = ["--dtype", "fp32", "--linear", linear, "--attention", attention];
                let server = Server::start(folder.path(), &flags);
                let body = json!({"prompt": "same", "max_tokens": 32, "temperature": 0, "ignore_eos": true});
                let text = ask(&server, &body).text;
                server.stop();
                text
            })
            .collect();
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
}

/// Our own products change nothing about batches, and nothing about streams that outlive their engine.
#[test]
fn packed_and_quantised_weights_and_kv_answer_the_same_alone_in_a_crowd_and_after_a_death() {
    let Some(folder) = demo_model() else {
        println!("skipped: deploy/demo-model has no weights");
        return;
    };
    let prompts = ["ROMEO:\n", "JULIET:\nO ", "First Citizen:\nWe", "What", "The lord of"];
    let forms = [
        &["--quantization", "int8"][..],
        &["--quantization", "int4"],
        &["--linear", "packed"],
        &["--linear", "packed", "--kv-dtype", "int8"],
    ];
    for form in forms {
        let flags = [&["--dtype", "fp32", "--restart-backoff", "20ms"], form].concat();
        let server = Server::start(&folder, &flags);
        check_greedy(&server, &prompts, 24);
        let body = |prompt: &&str| json!({"prompt": prompt, "max_tokens": 400, "temperature": 0, "ignore_eos": true, "stream": true});
        let bodies: Vec<Value> = prompts.iter().map(body).collect();
        let text = |events| Answer::of_events(Api::Completions, events).text;
        let undisturbed: Vec<String> =
            server.begin(Api::Completions, &bodies).into_iter().map(text).collect();
        let victim = server.role("engine-0").expect("the engine runs");
        let begun = server.begin(Api::Completions, &bodies);
        kill(victim.pid, Signal::SIGKILL);
        for ((prompt, whole), events) in prompts.iter().zip(&undisturbed).zip(begun) {
            let answer = Answer::of_events(Api::Completions, events);
            assert_eq!((answer.status, &answer.end), (200, &End::Complete), "{form:?} {prompt:?}");
            assert_eq!(&answer.text, whole, "{form:?} {prompt:?}");
        }
        assert!(server.metric("pinion_resumed_requests_total") > 0.0, "{form:?}: no stream was resumed");
        server.stop();
    }
}
