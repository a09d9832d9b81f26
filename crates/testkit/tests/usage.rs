//! What an answer that a stop string ends counts: the tokens up to the one that completes the string, however far the engine
//! ran ahead of the detokenizer and whoever died meanwhile.

use pinion_testkit::{Api, End, Oracle, PATIENCE, Random, Server, Signal, Usage, kill, wait_until};
use serde_json::json;
use std::time::Duration;

const TOKENS: usize = 200;
const SEED: u64 = 5_281;

/// A prompt, a stop string in its answer, the text before it, and the tokens that it takes to find it.
struct Case {
    prompt: String,
    stop: String,
    text: String,
    tokens: u64,
}

impl Case {
    /// The two characters that begin at character `at` of the answer, or later if they are not plain ones.
    fn new(oracle: &Oracle, prompt: String, at: usize) -> Option<Case> {
        let ids = oracle.ids(&oracle.encode(&prompt), TOKENS);
        let chars: Vec<char> = oracle.decode(&ids).chars().collect();
        let plain = |pair: &[char]| pair.iter().all(char::is_ascii_graphic);
        let stop: String = chars.windows(2).skip(at).find(|pair| plain(pair))?.iter().collect();
        let tokens = (1..=TOKENS).find(|count| oracle.decode(&ids[..*count]).contains(&stop))?;
        let text = oracle.decode(&ids[..tokens]);
        let text = text[..text.find(&stop)?].to_owned();
        Some(Case { prompt, stop, text, tokens: tokens as u64 })
    }

    fn check(&self, server: &Server, streamed: bool) {
        let Case { prompt, stop, text, tokens } = self;
        let mut body = json!({"prompt": prompt, "max_tokens": TOKENS, "stop": stop});
        if streamed {
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
        }
        let answer = server.ask(Api::Completions, &body);
        assert_eq!((&answer.end, &answer.text), (&End::Complete, text), "{prompt}, {stop:?}");
        let prompt_tokens = server.oracle().encode(prompt).len() as u64;
        let usage = Usage { prompt_tokens, completion_tokens: *tokens };
        assert_eq!(answer.usage, Some(usage), "{prompt}, {stop:?}");
    }
}

fn cases(server: &Server, name: &str) -> Vec<Case> {
    let oracle = server.oracle();
    (0..40).filter_map(|at| Case::new(&oracle, format!("{name} {at}"), at * 4)).collect()
}

#[test]
fn a_stop_counts_the_same_however_fast_the_engine_is() {
    for step_us in ["0", "300", "3000"] {
        let server = Server::fake(&["--fake-step-us", step_us]);
        let cases = cases(&server, "fast or slow");
        assert!(cases.len() > 20, "too few to show anything");
        std::thread::scope(|scope| {
            for (index, case) in cases.iter().enumerate() {
                let server = &server;
                scope.spawn(move || case.check(server, index % 2 == 0));
            }
        });
        let counted: u64 = cases.iter().map(|case| case.tokens).sum();
        server.wait_idle();
        assert_eq!(server.metric("pinion_generation_tokens_total"), counted as f64);
        assert_eq!(server.metric("vllm:generation_tokens_total"), counted as f64);
        server.stop();
    }
}

/// The engine ran to the end of each text before the detokenizer had looked at its first token.
#[test]
fn a_detokenizer_that_stood_still_counts_no_more() {
    let server = Server::fake(&["--fake-step-us", "300"]);
    let cases = cases(&server, "stands still");
    let detokenizer = server.role("detokenizer-0").expect("it runs").pid;
    std::thread::scope(|scope| {
        kill(detokenizer, Signal::SIGSTOP);
        for (index, case) in cases.iter().enumerate() {
            let server = &server;
            scope.spawn(move || case.check(server, index % 2 == 0));
        }
        std::thread::sleep(Duration::from_secs(2));
        kill(detokenizer, Signal::SIGCONT);
    });
    server.wait_idle();
    server.stop();
}

#[test]
fn a_stop_counts_the_same_when_roles_die_around_it() {
    let server =
        Server::fake(&["--fake-step-us", "2000", "--restart-backoff", "5ms", "--restart-limit", "1000"]);
    let mut random = Random::new(SEED);
    for round in 0..6 {
        let cases = cases(&server, &format!("round {round}"));
        std::thread::scope(|scope| {
            for (index, case) in cases.iter().enumerate() {
                let server = &server;
                scope.spawn(move || case.check(server, index % 2 == 0));
            }
            let role = *random.pick(&["engine-0", "detokenizer-0", "tokenizer-0"]);
            std::thread::sleep(Duration::from_millis(random.between(1, 400) as u64));
            let victim = wait_until("the role runs", PATIENCE, || server.role(role));
            kill(victim.pid, Signal::SIGKILL);
        });
    }
    assert!(server.metric("pinion_restarts_total") > 0.0);
    server.wait_idle();
    server.stop();
}
