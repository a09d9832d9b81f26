//! Priorities and fair shares through HTTP: who sends late is served early if it is important or has had little.

use pinion_testkit::{PATIENCE, Server, wait_until};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

const TOKENS: usize = 20;

/// One request and the place in which its answer came.
struct Client<'a> {
    key: &'a str,
    fields: Value,
}

/// Sends them one after the other, each when the one before has reached the engine, and gives the order of their ends.
fn order(server: &Server, clients: &[Client]) -> Vec<usize> {
    let oracle = server.oracle();
    let ended = AtomicUsize::new(0);
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
            wait_until("it is in the engine", PATIENCE, || {
                let here =
                    ["pinion_requests_running", "pinion_requests_waiting"].map(|name| server.metric(name));
                let done = server.metric("pinion_engine_requests_finished_total");
                (here.iter().sum::<f64>() + done > index as f64).then_some(())
            });
        }
        let places: Vec<usize> = threads.into_iter().map(|thread| thread.join().expect("a client")).collect();
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by_key(|&index| places[index]);
        order
    })
}

#[test]
fn row_16_a_late_important_request_is_served_before_those_that_wait() {
    let server = Server::fake(&["--max-num-seqs", "1", "--fake-step-us", "20000"]);
    let priorities = [0, 0, 0, 3, 0, -5];
    let clients: Vec<Client> = priorities
        .iter()
        .map(|priority| Client { key: "x", fields: json!({"priority": priority}) })
        .collect();
    assert_eq!(order(&server, &clients), [0, 5, 1, 2, 4, 3]);
    server.stop();
}

#[test]
fn row_16_a_key_that_sends_little_does_not_wait_for_one_that_sends_much() {
    let flags = ["--max-num-seqs", "1", "--fake-step-us", "20000", "--fair-share", "key"];
    let server = Server::fake_with(&flags, &[("PINION_API_KEY", "sk-much,sk-little")]);
    let much = || Client { key: "sk-much", fields: json!({}) };
    let mut clients: Vec<Client> = (0..6).map(|_| much()).collect();
    clients.push(Client { key: "sk-little", fields: json!({}) });
    let order = order(&server, &clients);
    let place = order.iter().position(|&index| index == 6).expect("it ended");
    assert!(place <= 2, "one of the other key ran, and the next may have been chosen: {order:?}");
    server.stop();
}
