//! Clients that leave, at any moment and in any way, leave no cost behind; other clients notice nothing.

use pinion_testkit::{Answer, Api, Connection, End, Events, Random, Server, descriptor_count, fake_model};
use pinion_testkit::{PATIENCE, wait_until};
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const CLIENTS: usize = 1000;
const THREADS: usize = 8;
const SEED: u64 = 7_411;

/// How far a client gets before it leaves.
#[derive(Clone, Copy, Debug)]
enum Until {
    Connected,
    PartOfTheHead,
    PartOfTheBody,
    WholeRequest,
    HeadOfTheAnswer,
    Events(usize),
}

/// How it leaves.
#[derive(Clone, Copy, Debug)]
enum Leave {
    Reset,
    Close,
    /// FIN for its own direction only; then it waits a moment for nothing.
    HalfClose,
}

fn request(random: &mut Random, index: usize) -> (Api, bool, Vec<u8>) {
    let api = random.pick(&[Api::Completions, Api::Chat, Api::Generate]);
    let stream = random.below(3) > 0;
    let tokens = random.between(100, 400);
    let prompt = format!("client {index} {}", "x".repeat(random.below(80)));
    let body = match api {
        Api::Completions => json!({"prompt": prompt, "max_tokens": tokens, "stream": stream}),
        Api::Chat => {
            json!({"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "stream": stream})
        }
        Api::Generate => json!({"prompt": prompt, "max_new_tokens": tokens, "stream": stream}),
    };
    let body = body.to_string();
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: same\r\nContent-Length: {}\r\n\r\n",
        api.path(),
        body.len()
    );
    (api, stream, [head.as_bytes(), body.as_bytes()].concat())
}

fn visit(server: &Server, random: &mut Random, index: usize) {
    let (api, stream, bytes) = request(random, index);
    let head_length =
        bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("requests have a head") + 4;
    let until = match random.below(6) {
        0 => Until::Connected,
        1 => Until::PartOfTheHead,
        2 => Until::PartOfTheBody,
        3 => Until::WholeRequest,
        4 if stream => Until::HeadOfTheAnswer,
        _ if stream => Until::Events(1 + random.below(40)),
        _ => Until::WholeRequest,
    };
    let leave = random.pick(&[Leave::Reset, Leave::Reset, Leave::Close, Leave::HalfClose]);
    let Ok(mut connection) = Connection::open(server.address()) else {
        panic!("client {index} cannot connect")
    };
    let sent = match until {
        Until::Connected => 0,
        Until::PartOfTheHead => 1 + random.below(head_length - 1),
        Until::PartOfTheBody => head_length + random.below(bytes.len() - head_length),
        Until::WholeRequest | Until::HeadOfTheAnswer | Until::Events(_) => bytes.len(),
    };
    connection.write(&bytes[..sent]).expect("the service reads requests");
    if matches!(until, Until::WholeRequest) {
        // From at once to somewhere in the middle of the work.
        std::thread::sleep(std::time::Duration::from_micros(random.below(4000) as u64));
    }
    let connection = match until {
        Until::HeadOfTheAnswer | Until::Events(_) => read_some(api, until, connection),
        Until::Connected | Until::PartOfTheHead | Until::PartOfTheBody | Until::WholeRequest => connection,
    };
    match leave {
        Leave::Reset => connection.reset(),
        Leave::Close => connection.close(),
        Leave::HalfClose => {
            let mut connection = connection;
            // The service may have closed first.
            let _ = connection.finish_writing();
            std::thread::sleep(std::time::Duration::from_micros(random.below(2000) as u64));
        }
    }
}

/// Reads as far as `until` says, or until the answer ends by itself.
fn read_some(api: Api, until: Until, mut connection: Connection) -> Connection {
    let head = connection.head().expect("an answer begins");
    assert!([200, 429].contains(&head.status), "{head:?}");
    let Until::Events(count) = until else { return connection };
    if api == Api::Generate || head.status != 200 {
        let (mut framing, mut out) = (head.framing(), Vec::new());
        for _ in 0..count {
            if !connection.body_part(&mut framing, &mut out).expect("the answer goes on") {
                break;
            }
        }
        return connection;
    }
    let mut events = Events::new(connection, head);
    for _ in 0..count {
        if events.next_event().expect("the stream goes on").is_none() {
            break;
        }
    }
    events.into_connection()
}

#[test]
fn a_thousand_clients_leave_and_nothing_stays_in_use() {
    println!("seed {SEED}");
    let server = Server::fake(&["--fake-step-us", "500", "--max-inflight", "512"]);
    let oracle = server.oracle();
    server.check_serves("before");
    let frontend = server.role("frontend-0").expect("a frontend runs").pid;
    let descriptors = descriptor_count(frontend);
    let (next, busy) = (AtomicUsize::new(0), AtomicBool::new(true));
    let undisturbed = std::thread::scope(|scope| {
        // Clients that stay: full answers all the while, next to the ones that are torn off.
        let faithful = scope.spawn(|| {
            let mut count = 0;
            while busy.load(Ordering::Relaxed) {
                let prompt = format!("faithful {count}");
                let body = json!({"prompt": prompt, "max_tokens": 150, "stream": true});
                let answer: Answer = server.ask(Api::Completions, &body);
                assert_eq!(answer.end, End::Complete, "{answer:?}");
                assert_eq!(answer.text, oracle.text(&oracle.encode(&prompt), 150));
                count += 1;
            }
            count
        });
        let leavers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (server, next) = (&server, &next);
                scope.spawn(move || {
                    let mut random = Random::new(SEED + thread as u64);
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        if index >= CLIENTS {
                            return;
                        }
                        visit(server, &mut random, index);
                    }
                })
            })
            .collect();
        let results: Vec<_> = leavers.into_iter().map(|thread| thread.join()).collect();
        busy.store(false, Ordering::Relaxed);
        let undisturbed = faithful.join().expect("clients that stay get their text");
        results.into_iter().for_each(|result| result.expect("a leaving client's thread"));
        undisturbed
    });
    assert!(undisturbed > 0);
    let noticed =
        server.metrics().samples.get("pinion_requests_finished_total{reason=\"disconnected\"}").copied();
    println!(
        "{noticed:?} of {CLIENTS} left while their request was under way; {undisturbed} others were served"
    );
    assert!(noticed.is_some_and(|count| count > 100.0), "hardly anyone left in mid-work: {noticed:?}");
    server.wait_idle();
    wait_until("the frontend has closed every connection", PATIENCE, || {
        (descriptor_count(frontend) <= descriptors + 2).then_some(())
    });
    assert_eq!(server.role("frontend-0").map(|role| role.pid), Some(frontend), "the frontend lives on");
    server.check_serves("after");
    server.stop();
}

#[test]
fn a_client_that_does_not_read_is_let_go() {
    let folder = fake_model(1 << 17);
    let flags = ["--backend", "fake", "--stream-buffer-bytes-max", "64KiB", "--write-timeout", "2s"];
    // Every chunk carries the model's name: with a long one the socket's buffers are full sooner.
    let name = "long".repeat(60);
    let server = Server::start(folder.path(), &[&flags[..], &["--served-model-name", &name]].concat());
    // Some 16 MB of stream: more than all socket buffers between us take.
    let body = json!({"prompt": "lazy", "max_tokens": 40_000, "stream": true}).to_string();
    let mut lazy: Vec<Connection> = (0..2)
        .map(|_| {
            let mut connection = server.connect();
            connection
                .request("POST", "/v1/completions", &[], body.as_bytes())
                .expect("a request can be written");
            connection
        })
        .collect();
    let heads: Vec<_> =
        lazy.iter_mut().map(|connection| connection.head().expect("an answer begins")).collect();
    assert!(heads.iter().all(|head| head.status == 200), "{heads:?}");
    server.check_serves("meanwhile");
    server.wait_idle();
    for (connection, head) in lazy.into_iter().zip(heads) {
        let answer = Answer::of_events(Api::Completions, Events::new(connection, head));
        assert_ne!(answer.end, End::Complete, "all of it fitted the buffers: the test shows nothing");
    }
    server.check_serves("after");
    server.stop();
}
