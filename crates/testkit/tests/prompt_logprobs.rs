//! The logprobs of prompts from the HTTP field to the answer, over the real processes: with the fake model every number
//! is known, and the tiny GPT-2 must say the same of a text whether it reads or writes it.

use pinion_model::fake_token;
use pinion_testkit::{Api, End, Server, fixture_model};
use serde_json::{Value, json};

const VOCABULARY: u32 = 257;
const EOS: Option<u32> = Some(256);

/// log-softmax of the fake's logits: 1 for its token and 0 for the others.
fn known(likeliest: bool) -> f64 {
    f64::from(u8::from(likeliest)) - (1f64.exp() + f64::from(VOCABULARY - 1)).ln()
}

fn floats(list: &Value) -> Vec<Option<f64>> {
    list.as_array().expect("a list").iter().map(Value::as_f64).collect()
}

fn prompt(len: usize) -> Vec<u32> {
    // Printable, so that every id is a character of its own.
    (0..len as u32).map(|at| 32 + at.wrapping_mul(2_654_435_761) % 90).collect()
}

#[test]
fn echo_and_prompt_logprobs_are_the_model_s_opinion_of_every_token() {
    let server = Server::fake(&["--max-num-batched-tokens", "100", "--max-num-seqs", "8"]);
    for len in [1, 2, 33, 500] {
        let ids = prompt(len);
        let text: String = ids.iter().map(|&id| char::from(id as u8)).collect();
        let expected: Vec<f64> =
            (1..len).map(|at| known(fake_token(&ids[..at], 0, VOCABULARY, EOS) == ids[at])).collect();
        let check = |got: &[Option<f64>]| {
            assert_eq!((got.len(), got[0]), (len, None));
            for (at, (got, want)) in got[1..].iter().zip(&expected).enumerate() {
                assert!(
                    (got.expect("a number") - want).abs() < 1e-4,
                    "token {}: {got:?}, not {want}",
                    at + 1
                );
            }
        };
        for given in [json!(text), json!(ids)] {
            let body = json!({"prompt": given, "echo": true, "logprobs": 5, "max_tokens": 0});
            let answer = server.post("/v1/completions", &body).json();
            let choice = &answer["choices"][0];
            assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(text), &json!("length")));
            check(&floats(&choice["logprobs"]["token_logprobs"]));
            assert_eq!(choice["logprobs"]["text_offset"], json!((0..len).collect::<Vec<_>>()));
            let usage = &answer["usage"];
            assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(len), &json!(0)));
            assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0, "a scored prompt is computed");

            let body = json!({"prompt": given, "prompt_logprobs": 20, "max_tokens": 2});
            let answer = server.post("/v1/completions", &body).json();
            let list = answer["choices"][0]["prompt_logprobs"].as_array().expect("a list").clone();
            assert!(list[0].is_null());
            let own = |(at, entry): (usize, &Value)| entry[ids[at].to_string()]["logprob"].as_f64();
            check(&list.iter().enumerate().map(own).collect::<Vec<_>>());
            assert!(list[1..].iter().all(|entry| entry.as_object().expect("an object").len() >= 20));
        }
        let body = json!({"prompt": text, "echo": true, "logprobs": 1, "max_tokens": 3, "stream": true});
        let streamed = server.ask(Api::Completions, &body);
        assert_eq!(streamed.end, End::Complete);
        let oracle = server.oracle();
        assert_eq!(streamed.text, format!("{text}{}", oracle.text(&ids, 3)));
    }
    server.wait_idle();
    server.stop();
}

#[test]
fn floods_of_prompt_scores_reach_every_client_and_disturb_no_stream() {
    let server = Server::fake(&["--max-num-seqs", "16"]);
    let oracle = server.oracle();
    let ids = prompt(500);
    std::thread::scope(|scope| {
        let streams: Vec<_> = (0..4)
            .map(|index| {
                let (server, oracle) = (&server, &oracle);
                scope.spawn(move || {
                    let prompt = format!("stream {index}");
                    let body = json!({"prompt": prompt, "max_tokens": 200, "stream": true});
                    let answer = server.ask(Api::Completions, &body);
                    assert_eq!(answer.text, oracle.text(&oracle.encode(&prompt), 200));
                })
            })
            .collect();
        let many = json!({"prompt": vec![ids.clone(); 24], "prompt_logprobs": 20, "max_tokens": 1});
        let answer = server.post("/v1/completions", &many).json();
        let choices = answer["choices"].as_array().expect("choices");
        assert_eq!(choices.len(), 24);
        for choice in choices {
            assert_eq!(choice["prompt_logprobs"], choices[0]["prompt_logprobs"]);
            assert_eq!(choice["prompt_logprobs"].as_array().map(Vec::len), Some(500));
        }
        streams.into_iter().for_each(|stream| stream.join().expect("a stream"));
    });
    server.wait_idle();
    server.stop();
}

#[test]
fn what_the_model_wrote_it_reads_with_the_same_logprobs() {
    let folder = fixture_model();
    let server = Server::start(folder.path(), &["--dtype", "fp32"]);
    let asked = json!({"prompt": [5, 6, 7], "max_tokens": 40, "temperature": 0, "logprobs": 2, "ignore_eos": true, "echo": true});
    let written = server.post("/v1/completions", &asked).json()["choices"][0]["logprobs"].clone();
    let text: String =
        written["tokens"].as_array().expect("tokens").iter().filter_map(Value::as_str).collect();
    let told = floats(&written["token_logprobs"]);
    assert_eq!(told.len(), 43);
    assert!(!text.is_empty());
    // The ids that it wrote are the likeliest at each place: read them back through prompt_logprobs.
    let mut ids = vec![5u64, 6, 7];
    for _ in 0..40 {
        let body = json!({"prompt": ids, "prompt_logprobs": 1, "max_tokens": 1, "temperature": 0, "ignore_eos": true, "logprobs": 0});
        let choice = server.post("/v1/completions", &body).json()["choices"][0].clone();
        let next = choice["logprobs"]["token_logprobs"][0].as_f64().expect("a logprob");
        let at = ids.len();
        assert!((next - told[at].expect("a logprob")).abs() < 1e-3, "token {at}");
        for (index, entry) in choice["prompt_logprobs"].as_array().expect("a list").iter().enumerate().skip(1)
        {
            let got = entry[ids[index].to_string()]["logprob"].as_f64().expect("a logprob");
            assert!((got - told[index].expect("a logprob")).abs() < 1e-3, "token {index} of {at}");
        }
        // Which id that was: ask for the prompt with every id's chance is too much; the likeliest one has rank 1 when
        // the prompt is one longer.
        let probe: Vec<u64> = ids.iter().copied().chain([0]).collect();
        let body = json!({"prompt": probe, "prompt_logprobs": 1, "max_tokens": 0});
        let list = server.post("/v1/completions", &body).json()["choices"][0]["prompt_logprobs"].clone();
        let best = list[at].as_object().expect("an object").iter().find(|(_, entry)| entry["rank"] == 1);
        ids.push(best.expect("a likeliest").0.parse().expect("an id"));
    }
    server.stop();
}
