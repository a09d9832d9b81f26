//! Overlap through the real processes, on libtorch: the same texts as without, whatever else is in the batch.

use pinion_testkit::{Answer, Api, End, Server, fixture_model};
use serde_json::{Value, json};

/// Greedy and seeded requests: some look at their output, some end before their length.
fn requests() -> Vec<Value> {
    let extras = [
        json!({"temperature": 0}),
        json!({"temperature": 0, "max_tokens": 1}),
        json!({"temperature": 0, "repetition_penalty": 3.0}),
        json!({"temperature": 0, "logit_bias": {"65": 5}, "logprobs": 3}),
        json!({"temperature": 0.9, "min_p": 0.02, "seed": 5}),
        json!({"temperature": 1.5, "top_k": 50, "top_p": 0.9, "seed": 6}),
        json!({"temperature": 1.5, "seed": 7, "stop_token_ids": (0..60).collect::<Vec<u32>>()}),
        json!({"temperature": 1.5, "seed": 8, "stop": ["e", "a", "t"]}),
        json!({"temperature": 1.2, "seed": 9, "frequency_penalty": 0.5, "min_tokens": 9}),
    ];
    let body = |(n, extra): (usize, Value)| {
        let prompt = "Full fathom five thy father lies. ".repeat(1 + n % 3);
        let mut body = json!({"prompt": prompt, "max_tokens": 48, "ignore_eos": true, "stream": true});
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        body
    };
    extras.into_iter().enumerate().map(body).collect()
}

/// The answers to all requests at once, in order.
fn answers(server: &Server) -> Vec<Answer> {
    let requests = requests();
    std::thread::scope(|scope| {
        let ask = |body| scope.spawn(move || server.ask(Api::Completions, body));
        let threads: Vec<_> = requests.iter().map(ask).collect();
        threads.into_iter().map(|thread| thread.join().expect("a stream's thread")).collect()
    })
}

#[test]
fn overlap_gives_the_texts_that_come_without_it() {
    let folder = fixture_model();
    let texts = [["--overlap", "overlap on"], ["--no-overlap", "overlap off"]].map(|[flag, ready]| {
        let server =
            Server::start(folder.path(), &["--dtype", "fp32", "--max-num-batched-tokens", "64", flag]);
        assert!(server.stderr_text().contains(ready), "{}", server.stderr_text());
        let answers = answers(&server);
        assert!(answers.iter().all(|answer| answer.end == End::Complete), "{answers:?}");
        server.wait_idle();
        assert_eq!(server.metric("pinion_kv_blocks_used"), 0.0);
        server.stop();
        answers.into_iter().map(|answer| (answer.text, answer.finish_reason)).collect::<Vec<_>>()
    });
    assert_eq!(texts[0], texts[1]);
    let stopped = texts[0].iter().filter(|(_, reason)| reason.as_deref() == Some("stop")).count();
    assert!(stopped >= 1, "nothing ends early: {:?}", texts[0]);
}
