//! The prefix cache from outside: what is found again, what it saves, and how it is emptied.

use pinion_testkit::{Answer, Api, End, PATIENCE, Server, fake_model, wait_until};
use serde_json::{Value, json};

const KEY: &str = "sk-operator";
const RESET: &str = "/reset_prefix_cache";

fn bearer() -> String {
    format!("Bearer {KEY}")
}

/// One completion, whole; its text and how many of its prompt tokens were found in the cache.
fn complete(server: &Server, prompt: &str, tokens: usize) -> (String, u64) {
    let body = json!({"prompt": prompt, "max_tokens": tokens}).to_string();
    let fields = [("authorization", bearer())];
    let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let response = server.request("POST", "/v1/completions", &fields, body.as_bytes()).expect("an answer");
    assert_eq!(response.status(), 200, "{}", response.text());
    let answer: Value = response.json();
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    (
        answer["choices"][0]["text"].as_str().expect("a text").to_owned(),
        cached.as_u64().expect("cached_tokens are in usage"),
    )
}

fn reset(server: &Server, fields: &[(&str, &str)]) -> u16 {
    server.request("POST", RESET, fields, b"").expect("an answer").status()
}

#[test]
fn clearing_the_cache_forgets_prefixes_and_disturbs_no_stream() {
    let server =
        Server::fake_with(&["--block-size", "16", "--fake-step-us", "30000"], &[("PINION_API_KEY", KEY)]);
    let oracle = server.oracle();
    let prompt = "the same beginning of many prompts ".repeat(8);
    let bearer = bearer();
    let key = [("authorization", bearer.as_str())];

    let (first, cold) = complete(&server, &prompt, 8);
    let (second, warm) = complete(&server, &prompt, 8);
    assert_eq!(cold, 0);
    assert!(warm >= 128, "{warm} tokens were found");
    assert!(server.metric("pinion_kv_blocks_cached") > 0.0);

    for (fields, status) in [(&[][..], 401), (&[("authorization", "Bearer sk-wrong")], 401)] {
        assert_eq!(reset(&server, fields), status, "{fields:?}");
    }
    assert_eq!(server.request("GET", RESET, &key, b"").expect("an answer").status(), 405);
    assert!(complete(&server, &prompt, 8).1 >= 128, "a client without a key empties nothing");

    // A stream of six seconds is under way and holds the prefix while the cache is emptied.
    let body = json!({"prompt": prompt, "max_tokens": 200, "stream": true}).to_string();
    let mut connection = server.connect();
    connection
        .request("POST", "/v1/completions", &[("authorization", &bearer)], body.as_bytes())
        .expect("the service reads requests");
    wait_until("the stream runs", PATIENCE, || {
        (server.metric("pinion_requests_running") > 0.0).then_some(())
    });
    assert_eq!(reset(&server, &key), 200);
    assert_eq!(server.metric("pinion_kv_blocks_cached"), 0.0);
    let (third, after) = complete(&server, &prompt, 8);
    assert_eq!(after, 0, "nothing is found any more, also not what a running request holds");
    let stream = Answer::read(Api::Completions, true, connection);
    assert_eq!((stream.status, &stream.end), (200, &End::Complete));

    let ids = oracle.encode(&prompt);
    assert_eq!(stream.text, oracle.text(&ids, 200));
    for text in [first, second, third] {
        assert_eq!(text, oracle.text(&ids, 8));
    }
    server.wait_idle();
    assert_eq!(reset(&server, &key), 200, "an idle engine hears it too");
    assert_eq!(server.metric("pinion_kv_blocks_cached"), 0.0);
    server.stop();
}

/// The choices of one request, and the best of more: its prompt is computed once.
#[test]
fn choices_of_one_request_compute_their_prompt_once() {
    let folder = fake_model(2048);
    for (flag, computed) in [(None, 1000.0 + 3.0), (Some("--no-prefix-cache"), 4000.0)] {
        let flags: Vec<&str> = ["--backend", "fake", "--block-size", "16"].into_iter().chain(flag).collect();
        let server = Server::start(folder.path(), &flags);
        let oracle = server.oracle();
        for (letter, choices) in [("a", json!({"n": 4})), ("b", json!({"n": 2, "best_of": 4}))] {
            let prompt = letter.repeat(1000);
            let mut body = json!({"prompt": prompt, "max_tokens": 20});
            body.as_object_mut().expect("an object").extend(choices.as_object().expect("an object").clone());
            let before = server.metric("pinion_engine_prompt_tokens_total");
            let answer = server.post("/v1/completions", &body).json();
            let texts = answer["choices"].as_array().expect("choices").iter().map(|choice| &choice["text"]);
            let expected = json!(oracle.text(&oracle.encode(&prompt), 20));
            assert!(
                texts.clone().count() >= 2 && texts.into_iter().all(|text| *text == expected),
                "{answer}"
            );
            let after = server.metric("pinion_engine_prompt_tokens_total");
            assert_eq!(after - before, computed, "{flag:?}, {choices}");
        }
        server.wait_idle();
        server.stop();
    }
}

/// Prompts of 1000 tokens: what is computed is what the cache does not cover, and the answers are those without it.
#[test]
fn a_prompt_that_is_known_costs_only_what_is_new() {
    let long = |own: usize| format!("{}{}", "x".repeat(1000 - own), "y".repeat(own));
    // The prompt's own last tokens, and what is computed: with copies, with whole blocks of 16 only, without the cache.
    let turns = [(0, [1000, 1000, 1000]), (0, [1, 8, 1000]), (200, [200, 200, 1000]), (5, [5, 8, 1000])];
    for (place, flag) in
        [None, Some("--no-prefix-partial"), Some("--no-prefix-cache")].into_iter().enumerate()
    {
        let folder = fake_model(2048);
        let flags: Vec<&str> = ["--backend", "fake", "--block-size", "16"].into_iter().chain(flag).collect();
        let server = Server::start(folder.path(), &flags);
        let oracle = server.oracle();
        for (own, computed) in turns {
            let before = server.metric("pinion_engine_prompt_tokens_total");
            let prompt = long(own);
            let ids = oracle.encode(&prompt);
            assert_eq!(ids.len(), 1000, "a token is a byte");
            let answer = server.ask(Api::Completions, &json!({"prompt": prompt, "max_tokens": 40}));
            assert_eq!(answer.text, oracle.text(&ids, 40), "{flag:?}");
            let after = server.metric("pinion_engine_prompt_tokens_total");
            assert_eq!(after - before, f64::from(computed[place]), "{flag:?}: {own} new tokens");
        }
        let metrics = server.metrics();
        let blocks = |what: &str| metrics.total(&format!("pinion_kv_blocks_{what}")).expect("it is there");
        let [used, cached, free, total] = ["used", "cached", "free", "total"].map(blocks);
        assert_eq!(used + cached + free, total, "held + cached + free = total");
        server.stop();
    }
}
