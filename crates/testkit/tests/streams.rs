//! Many streams at once: each gets exactly its own text, token by token, and nothing stays in use.

use pinion_testkit::{Answer, Api, End, PATIENCE, Random, Server, wait_until};
use serde_json::json;

const STREAMS: usize = 64;
const SEED: u64 = 20_261_120;

/// A prompt that no other stream has.
fn prompt(random: &mut Random, index: usize) -> String {
    let words = ["thou", "art", "más", "lovely", "世界", "temperate", "👩‍👩‍👧", "rough", "\n", "winds"];
    let count = random.between(1, 20);
    let text: Vec<&str> = (0..count).map(|_| random.pick(&words)).collect();
    format!("{index} {}", text.join(" "))
}

/// Runs the streams and checks each against the oracle.
fn check(server: &Server, seed: u64) {
    println!("seed {seed}");
    let oracle = server.oracle();
    let mut random = Random::new(seed);
    let jobs: Vec<(String, usize, Api)> = (0..STREAMS)
        .map(|index| {
            let api = random.pick(&[Api::Completions, Api::Completions, Api::Chat, Api::Generate]);
            (prompt(&mut random, index), 20 + random.below(181), api)
        })
        .collect();
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let ask = |(prompt, tokens, api): &(String, usize, Api)| {
            let body = match api {
                Api::Completions => json!({"prompt": prompt, "max_tokens": tokens, "stream": true}),
                Api::Chat => {
                    json!({"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "stream": true})
                }
                Api::Generate => json!({"prompt": prompt, "max_new_tokens": tokens, "stream": true}),
            };
            server.ask(*api, &body)
        };
        let threads: Vec<_> = jobs.iter().map(|job| scope.spawn(move || ask(job))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a stream's thread")).collect()
    });
    for ((prompt, tokens, api), answer) in jobs.iter().zip(&answers) {
        let ids = match api {
            Api::Chat => oracle.encode_chat(&json!([{"role": "user", "content": prompt}])),
            Api::Completions | Api::Generate => oracle.encode(prompt),
        };
        assert_eq!((answer.status, &answer.end), (200, &End::Complete), "seed {seed}: {prompt:?}");
        assert_eq!(answer.text, oracle.text(&ids, *tokens), "seed {seed}: {prompt:?}");
        // A plain stream has no borders between its parts: tokens that are ready together are one.
        let in_parts = *api == Api::Generate || answer.parts > 1;
        assert!(in_parts, "seed {seed}: {tokens} tokens came in one piece: {prompt:?}");
    }
    server.wait_idle();
}

#[test]
fn sixty_four_streams_get_exactly_their_own_text() {
    let server = Server::fake(&["--fake-step-us", "1000"]);
    check(&server, SEED);
    server.stop();
}

#[test]
fn with_fewer_places_than_streams_and_little_kv() {
    // 8 places in a step, KV for little more than one full context: the rest waits its turn, some are preempted. A step
    // takes so long that the streams meet, however slowly they come.
    let flags = ["--max-num-seqs", "8", "--max-num-batched-tokens", "64", "--kv-cache-tokens", "640"];
    let server = Server::fake(&[&flags[..], &["--fake-step-us", "2000", "--block-size", "8"]].concat());
    check(&server, SEED + 1);
    assert!(
        server.metric("pinion_preemptions_total") > 0.0,
        "no request was preempted: the test shows nothing"
    );
    server.stop();
}

#[test]
fn with_two_processes_of_every_kind_that_can_have_two() {
    let flags = ["--frontends", "2", "--tokenizers", "2", "--detokenizers", "2", "--fake-step-us", "200"];
    let server = Server::fake(&flags);
    let names: Vec<String> = server.roles().into_iter().map(|role| role.name).collect();
    assert_eq!(names.len(), 7, "{names:?}");
    check(&server, SEED + 2);
    server.stop();
}

#[test]
fn tokens_arrive_while_the_answer_is_being_made() {
    let server = Server::fake(&["--fake-step-us", "20000"]);
    let oracle = server.oracle();
    let answer = server.ask(Api::Completions, &json!({"prompt": "slowly", "max_tokens": 60, "stream": true}));
    assert_eq!(answer.text, oracle.text(&oracle.encode("slowly"), 60));
    // Tokens that only begin a character carry no text; far more than a third do not.
    assert!(answer.parts >= 20, "60 tokens at 20 ms each came in {} parts", answer.parts);
    server.stop();
}

#[test]
fn past_the_limit_requests_are_told_to_come_back() {
    let server = Server::fake(&["--max-inflight", "4", "--fake-step-us", "50000"]);
    let body = json!({"prompt": "busy", "max_tokens": 500, "stream": true}).to_string();
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut connection = server.connect();
        connection
            .request("POST", "/v1/completions", &[], body.as_bytes())
            .expect("a request can be written");
        assert_eq!(connection.head().expect("an answer begins").status, 200);
        open.push(connection);
    }
    let refused = server.post("/v1/completions", &json!({"prompt": "one more", "max_tokens": 1}));
    assert_eq!((refused.status(), &refused.json()["error"]["type"]), (429, &json!("rate_limit_error")));
    let seconds = refused.head.field("retry-after").and_then(|value| value.parse::<u32>().ok());
    assert!(seconds.is_some_and(|s| s > 0), "{:?}", refused.head);
    assert_eq!(server.get("/health").status(), 200, "small routes need no slot");
    open.into_iter().for_each(|connection| connection.reset());
    wait_until("a slot is free again", PATIENCE, || {
        let answer = server.post("/v1/completions", &json!({"prompt": "one more", "max_tokens": 1}));
        (answer.status() == 200).then_some(())
    });
    server.wait_idle();
    server.stop();
}

#[test]
fn stream_interval_changes_the_chunks_and_not_the_text() {
    let mut chunks = Vec::new();
    for interval in ["1", "16"] {
        let server = Server::fake(&["--stream-interval", interval, "--fake-step-us", "2000"]);
        let oracle = server.oracle();
        let expected = oracle.text(&oracle.encode("in pieces"), 200);
        for stream in [true, false] {
            let body = json!({"prompt": "in pieces", "max_tokens": 200, "stream": stream});
            let answer = server.ask(Api::Completions, &body);
            assert_eq!((&answer.text, &answer.end), (&expected, &End::Complete), "{interval}");
        }
        let body = json!({"prompt": "in pieces", "max_tokens": 200, "stream": true});
        chunks.push(server.post("/v1/completions", &body).text().matches("data: {").count());
        server.wait_idle();
        server.stop();
    }
    // A token is at most a byte here, so some give no chunk of their own.
    assert!(chunks[0] > 60 && chunks[1] <= 200 / 16 + 3, "{chunks:?}");
}
