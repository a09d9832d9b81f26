//! Priorities and fair shares through HTTP: a late request is served early if it has priority or its tenant has had
//! little.

use pinion_testkit::{PATIENCE, Server, wait_until};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

const TOKENS: usize = 20;

/// One request and the place in which its answer came.
struct Client<'a> {
    key: &'a str,
    fields: Value,
}

/// Sends them one after the other, each when the one before waits in the engine, behind a long stream of `first_key`'s
/// that leaves when all are there. Gives the order of their ends.
fn order(server: &Server, first_key: &str, clients: &[Client]) -> Vec<usize> {
    let oracle = server.oracle();
    let ended = AtomicUsize::new(0);
    let long = json!({"prompt": "the place is taken", "max_tokens": 480, "stream": true}).to_string();
    let bearer = format!("Bearer {first_key}");
    let mut first = server.connect();
    first
        .request("POST", "/v1/completions", &[("authorization", bearer.as_str())], long.as_bytes())
        .expect("the service reads requests");
    assert_eq!(first.head().expect("an answer begins").status, 200);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, Client { key, fields }) in clients.iter().enumerate() {
            let (oracle, ended) = (&oracle, &ended);
            threads.push(scope.spawn(move || {
                let prompt = format!("request {index}");
                let mut body = json!({"prompt": prompt, "max_tokens": TOKENS});
                let all = body.as_object_mut().expect("an object");
                all.extend(fields.as_object().expect("an object").clone());
                let bearer = format!("Bearer {key}");
                let fields = [("authorization", bearer.as_str())];
                let response = server
                    .request("POST", "/v1/completions", &fields, body.to_string().as_bytes())
                    .expect("an answer");
                let place = ended.fetch_add(1, Ordering::SeqCst);
                assert_eq!(response.status(), 200, "{}", response.text());
                let text = response.json()["choices"][0]["text"].as_str().expect("a text").to_owned();
                assert_eq!(text, oracle.text(&oracle.encode(&prompt), TOKENS));
                place
            }));
            wait_until("it waits in the engine", PATIENCE, || {
                (server.metric("pinion_requests_waiting") > index as f64).then_some(())
            });
        }
        first.reset();
        let places: Vec<usize> = threads.into_iter().map(|thread| thread.join().expect("a client")).collect();
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by_key(|&index| places[index]);
        order
    })
}

#[test]
fn a_late_important_request_is_served_before_those_that_wait() {
    let server = Server::fake(&["--max-num-seqs", "1", "--fake-step-us", "25000"]);
    let priorities = [0, 0, 0, 3, 0, -5];
    let clients: Vec<Client> = priorities
        .iter()
        .map(|priority| Client { key: "x", fields: json!({"priority": priority}) })
        .collect();
    assert_eq!(order(&server, "x", &clients), [5, 0, 1, 2, 4, 3]);
    server.stop();
}

#[test]
fn a_key_that_sends_little_does_not_wait_for_one_that_sends_much() {
    let flags = ["--max-num-seqs", "1", "--fake-step-us", "25000", "--fair-share", "key"];
    let server = Server::fake_with(&flags, &[("PINION_API_KEY", "sk-much,sk-little")]);
    let much = || Client { key: "sk-much", fields: json!({}) };
    let mut clients: Vec<Client> = (0..6).map(|_| much()).collect();
    clients.push(Client { key: "sk-little", fields: json!({}) });
    let order = order(&server, "sk-much", &clients);
    let place = order.iter().position(|&index| index == 6).expect("it ended");
    assert!(place <= 1, "the next of the other key may be as far as it: {order:?}");
    server.stop();
}
