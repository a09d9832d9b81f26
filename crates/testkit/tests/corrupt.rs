//! One wrong word in shared memory, in each ring and in the header of each status page and slot table: the service
//! finds it, replaces what is wrong, and every text is whole and right.

use pinion_testkit::{
    Api, End, PATIENCE, Random, RegionKind, RingWord, Server, SharedRegion, Signal, demo_model, kill,
    wait_until,
};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const CLIENTS: usize = 64;
const SEED: u64 = 70_121;
const CORRUPT: &str = "pinion_corrupt_edges_total";
/// Sleeping roles look at their rings so often.
const LOOK: Duration = Duration::from_millis(250);

/// Writer, reader, and a word of each record that names the request or says how much follows.
const EDGES: [(&str, &str, u64); 7] = [
    ("frontend-0", "tokenizer-0", 2),
    ("frontend-0", "detokenizer-0", 2),
    ("tokenizer-0", "engine-0", 2),
    ("tokenizer-0", "frontend-0", 2),
    ("engine-0", "detokenizer-0", 5),
    ("engine-0", "frontend-0", 2),
    ("detokenizer-0", "frontend-0", 2),
];

/// Clients that ask until they are told to stop.
struct Load<'a> {
    server: &'a Server,
    over: AtomicBool,
    /// Answers of each client.
    answers: Vec<AtomicUsize>,
}

impl Load<'_> {
    /// Runs `disturb` under the clients, of which each runs `ask` again and again.
    fn run(
        server: &Server,
        clients: usize,
        ask: impl Fn(&mut Random) + Sync,
        disturb: impl FnOnce(&Load<'_>),
    ) {
        let answers = (0..clients).map(|_| AtomicUsize::new(0)).collect();
        let load = Load { server, over: AtomicBool::new(false), answers };
        std::thread::scope(|scope| {
            let (load, ask) = (&load, &ask);
            for index in 0..clients {
                scope.spawn(move || {
                    let mut random = Random::new(SEED + index as u64);
                    while !load.over.load(Ordering::Relaxed) {
                        ask(&mut random);
                        load.answers[index].fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            // A panic must not leave the clients asking for ever.
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| disturb(load)));
            load.over.store(true, Ordering::Relaxed);
            if let Err(panic) = outcome {
                std::panic::resume_unwind(panic);
            }
        });
    }

    /// Damages a word of a ring while its reader is stopped, until that was found: the reader may take the record at
    /// the moment in which it is damaged, or there may be none. What it leads to is not waited
    /// for: the next word may hit the same requests.
    fn damage(&self, from: &str, to: &str, word: RingWord) {
        println!("{from} -> {to}: {word:?}");
        let before = self.server.metric(CORRUPT);
        wait_until("a damaged word is found", PATIENCE, || {
            let found = damage_unread(self.server, from, to, word)
                && (0..40).any(|_| {
                    std::thread::sleep(Duration::from_millis(50));
                    corrupt_edges(self.server).is_some_and(|now| now > before)
                });
            if !found {
                // The clients go on, so that there are records for the next try.
                std::thread::sleep(LOOK);
            }
            found.then_some(())
        });
    }

    /// All roles serve, and every client got an answer.
    fn is_well(&self) {
        wait_until("the service is healthy", PATIENCE, || {
            let health = self.server.request("GET", "/health", &[], b"").ok()?;
            (health.status() == 200 && self.server.roles().len() == 4).then_some(())
        });
        let counts = || self.answers.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = counts();
        wait_until("every client has an answer", PATIENCE, || {
            counts().iter().zip(&before).all(|(now, before)| now > before).then_some(())
        });
    }
}

/// None while the frontend restarts.
fn corrupt_edges(server: &Server) -> Option<f64> {
    let response = server.request("GET", "/metrics", &[], b"").ok()?;
    pinion_testkit::Metrics::parse(&response.text()).ok()?.total(CORRUPT)
}

fn ring(server: &Server, from: &str, to: &str) -> Option<SharedRegion> {
    SharedRegion::find(server.pid(), RegionKind::Ring, &format!("pinion-{from}-{to}")).pop()
}

/// Whether a word of a ring with an unread record was damaged.
fn damage_unread(server: &Server, from: &str, to: &str, word: RingWord) -> bool {
    let (Some(writer), Some(reader)) = (server.role(from), server.role(to)) else { return false };
    let Some(ring) = ring(server, from, to) else { return false };
    // What the writer works on piles up, then what it writes.
    kill(writer.pid, Signal::SIGSTOP);
    std::thread::sleep(Duration::from_millis(40));
    kill(reader.pid, Signal::SIGSTOP);
    kill(writer.pid, Signal::SIGCONT);
    let unread = (0..40).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        ring.unread_words() > 0
    });
    kill(writer.pid, Signal::SIGSTOP);
    if unread {
        ring.damage_ring(word);
    }
    kill(reader.pid, Signal::SIGCONT);
    if unread {
        // The writer would put a wrong head right.
        std::thread::sleep(LOOK);
    }
    kill(writer.pid, Signal::SIGCONT);
    unread
}

/// Asks the fake model, or its tokenizer, and checks the answer.
fn ask_fake(server: &Server, random: &mut Random) {
    let oracle = server.oracle();
    let prompt = format!("a text of {}", random.below(1_000_000));
    if random.below(4) == 0 {
        let reply = server.post("/tokenize", &json!({"prompt": prompt}));
        let ids: Value = serde_json::from_str(&reply.text()).expect("an answer is JSON");
        assert_eq!((reply.status(), &ids["tokens"]), (200, &json!(oracle.encode(&prompt))), "{prompt}");
        return;
    }
    let (tokens, streamed) = (1 + random.below(60), random.below(2) == 0);
    let body = json!({"prompt": prompt, "max_tokens": tokens, "stream": streamed,
        "stream_options": if streamed { json!({"include_usage": true}) } else { Value::Null }});
    let answer = server.ask(Api::Completions, &body);
    let whole = oracle.text(&oracle.encode(&prompt), tokens);
    assert_eq!((&answer.end, &answer.text), (&End::Complete, &whole), "{prompt}: {answer:?}");
}

fn fake_server() -> Server {
    Server::fake(&["--fake-step-us", "2000", "--restart-backoff", "5ms", "--restart-limit", "1000"])
}

fn check_rings(words: impl Fn(u64) -> [RingWord; 2]) {
    let server = fake_server();
    Load::run(
        &server,
        CLIENTS,
        |random| ask_fake(&server, random),
        |load| {
            let frontend = server.role("frontend-0");
            for (from, to, telling) in EDGES {
                for word in words(telling) {
                    load.damage(from, to, word);
                }
            }
            load.is_well();
            assert_eq!(
                server.role("frontend-0"),
                frontend,
                "no connection is worth less than another role's restart"
            );
            // The log is written by a thread of its own.
            let told = || server.stderr_text().matches("edge is corrupt").count() as f64;
            let counted = server.metric(CORRUPT);
            wait_until("each is told", PATIENCE, || (told() >= counted).then_some(()));
            assert_eq!(told(), server.metric(CORRUPT), "each is told once");
        },
    );
    server.wait_idle();
    server.check_serves("as before");
    server.stop();
}

#[test]
fn a_wrong_head_or_length_in_any_ring() {
    check_rings(|_| [RingWord::Head, RingWord::Unread(0)]);
}

#[test]
fn a_wrong_sequence_or_request_in_any_ring() {
    check_rings(|telling| [RingWord::Unread(1), RingWord::Unread(telling)]);
}

/// The same requests lose a role to a corrupt ring six times, without a token between: each step of the engine takes
/// longer than its life. None of them is the reason.
#[test]
fn corrupt_rings_make_no_request_suspect() {
    let server =
        Server::fake(&["--fake-step-us", "400000", "--restart-backoff", "0ms", "--restart-limit", "1000"]);
    let ask = |random: &mut Random| {
        let prompt = format!("a text of {}", random.below(1_000_000));
        let answer = server.ask(Api::Completions, &json!({"prompt": prompt, "max_tokens": 2}));
        let whole = server.oracle().text(&server.oracle().encode(&prompt), 2);
        assert_eq!((&answer.end, &answer.text), (&End::Complete, &whole), "{prompt}: {answer:?}");
    };
    Load::run(&server, CLIENTS, ask, |load| {
        for _ in 0..6 {
            let before = server.metric("pinion_restarts_total");
            wait_until("the engine works", PATIENCE, || {
                (server.metric("pinion_requests_running") > 0.0).then_some(())
            });
            // The detokenizer finds it at its next look, and the engine dies in the middle of its step. An engine that
            // publishes before that look puts the head right: then it is damaged again.
            wait_until("it is replaced", PATIENCE, || {
                ring(&server, "engine-0", "detokenizer-0")?.damage_ring(RingWord::Head);
                // When the restart is counted the edge is new.
                (0..50).find_map(|_| {
                    std::thread::sleep(Duration::from_millis(10));
                    (server.metric("pinion_restarts_total") > before).then_some(())
                })
            });
        }
        load.is_well();
    });
    assert_eq!(server.metric("pinion_quarantined_requests_total"), 0.0);
    server.wait_idle();
    server.stop();
}

/// The scores of a prompt are records of their own, and only their order tells that some are missing.
#[test]
fn a_wrong_word_in_the_scores_of_a_prompt() {
    let server = fake_server();
    let prompt: String = (0..400_u32).map(|at| char::from(b'!' + (at * 7 % 90) as u8)).collect();
    let body = |tokens| json!({"prompt": prompt, "prompt_logprobs": 3, "max_tokens": tokens, "echo": true});
    let asked = |tokens: usize| {
        let reply = server.post("/v1/completions", &body(tokens));
        assert_eq!(reply.status(), 200, "{}", reply.text());
        reply.json()["choices"][0].clone()
    };
    let whole = [0, 1, 2].map(asked);
    assert_eq!(whole[0]["prompt_logprobs"].as_array().map(Vec::len), Some(400));
    let ask = |random: &mut Random| {
        let tokens = random.below(3);
        assert!(asked(tokens) == whole[tokens], "{tokens} tokens: another answer");
    };
    Load::run(&server, CLIENTS / 4, ask, |load| {
        for (from, to) in [("engine-0", "detokenizer-0"), ("detokenizer-0", "frontend-0")] {
            for word in [2, 3] {
                load.damage(from, to, RingWord::Unread(word));
            }
        }
        load.is_well();
    });
    server.wait_idle();
    server.stop();
}

/// The reader writes these words again itself, or the writer finds them wrong.
#[test]
fn wrong_words_of_a_reader_change_nothing() {
    let server = fake_server();
    Load::run(
        &server,
        CLIENTS,
        |random| ask_fake(&server, random),
        |load| {
            for (from, to, _) in EDGES {
                for word in [RingWord::Tail, RingWord::ReaderAsleep] {
                    let ring = wait_until("the edge is there", PATIENCE, || ring(&server, from, to));
                    ring.damage_ring(word);
                    std::thread::sleep(LOOK);
                    load.is_well();
                }
            }
        },
    );
    server.wait_idle();
    server.check_serves("as before");
    server.stop();
}

/// A new ring is damaged before the role that lives on has attached it: the role reports it as it does a ring in use,
/// and lives on.
#[test]
fn a_ring_that_is_corrupt_before_it_is_attached_ends_no_living_role() {
    // The role that stays up, and the one that is killed.
    for (living, dying) in [("engine-0", "tokenizer-0"), ("frontend-0", "detokenizer-0")] {
        let server = fake_server();
        let lives_on = server.role(living).expect("it runs");
        let body = json!({"prompt": "a text", "max_tokens": 200, "stream": true});
        let whole = server.oracle().text(&server.oracle().encode("a text"), 200);
        std::thread::scope(|scope| {
            let streams: Vec<_> =
                (0..4).map(|_| scope.spawn(|| server.ask(Api::Completions, &body))).collect();
            wait_until("the engine works", PATIENCE, || {
                (server.metric("pinion_requests_running") > 0.0).then_some(())
            });
            kill(lives_on.pid, Signal::SIGSTOP);
            let first = server.role(dying).expect("it runs").pid;
            kill(first, Signal::SIGKILL);
            wait_until("a successor has a new ring", PATIENCE, || {
                server.role(dying).filter(|role| role.pid != first)
            });
            let ring = wait_until("the edge is there", PATIENCE, || ring(&server, dying, living));
            // The writer looks at it only when the ring seems full.
            ring.damage_ring(RingWord::Tail);
            kill(lives_on.pid, Signal::SIGCONT);
            for stream in streams {
                let answer = stream.join().expect("a client does not panic");
                assert_eq!((&answer.end, &answer.text), (&End::Complete, &whole), "{living}: {answer:?}");
            }
        });
        wait_until("the edge was found corrupt", PATIENCE, || (server.metric(CORRUPT) >= 1.0).then_some(()));
        wait_until("the service is healthy", PATIENCE, || {
            let health = server.request("GET", "/health", &[], b"").ok()?;
            (health.status() == 200 && server.roles().len() == 4).then_some(())
        });
        assert_eq!(server.role(living), Some(lives_on), "{living} has done nothing wrong");
        assert_eq!(server.metric("pinion_quarantined_requests_total"), 0.0);
        server.wait_idle();
        server.check_serves("as before");
        server.stop();
    }
}

/// As long as the launcher has not replaced the edge, the service is not well and says so.
#[test]
fn health_tells_of_a_corrupt_edge_until_it_is_replaced() {
    let server = fake_server();
    let health = |status: u16, says: &str| {
        wait_until("the health is as expected", PATIENCE, || {
            let reply = server.get("/health");
            (reply.status() == status && reply.text().contains(says)).then_some(())
        })
    };
    health(200, "");
    server.signal(Signal::SIGSTOP);
    // A head that the writer does not put right: nothing is asked.
    ring(&server, "engine-0", "detokenizer-0").expect("the edge is there").damage_ring(RingWord::Head);
    // That the launcher stands still may be told first.
    health(503, "detokenizer-0 has 1 corrupt edges");
    assert_eq!(server.get("/ready").status(), 503);
    std::thread::sleep(2 * LOOK);
    health(503, "detokenizer-0 has 1 corrupt edges");
    server.signal(Signal::SIGCONT);
    health(200, "");
    assert_eq!(server.metric(CORRUPT), 1.0);
    server.check_serves("as before");
    server.stop();
}

/// An edge that is corrupt again and again ends as a role that dies again and again does.
#[test]
fn an_edge_that_stays_corrupt_ends_in_the_restart_limit() {
    let mut server = Server::fake(&["--restart-limit", "3", "--restart-backoff", "10ms"]);
    let code = wait_until("the launcher gives up", PATIENCE, || {
        if !pinion_testkit::is_alive(server.pid()) {
            return Some(server.wait_exit(PATIENCE).code());
        }
        // Ever the ring of the day.
        if let Some(ring) = ring(&server, "tokenizer-0", "engine-0").filter(|ring| ring.unread_words() == 0) {
            ring.damage_ring(RingWord::Head);
        }
        None
    });
    assert_eq!(code, Some(6));
    let text = server.stderr_text();
    assert!(text.contains("edge is corrupt") && text.contains("giving up"), "{text}");
}

/// Successors read these headers: with a wrong one each of them died at its start.
#[test]
fn wrong_headers_of_pages_and_slot_tables_stop_no_successor() {
    let server = fake_server();
    let pages = SharedRegion::find(server.pid(), RegionKind::Page, "pinion-page");
    let tables = SharedRegion::find(server.pid(), RegionKind::Slots, "pinion-slots");
    assert_eq!((pages.len(), tables.len()), (5, 1), "four roles, the launcher; one frontend");
    for (word, value) in [(0, 0), (1, u64::MAX), (2, 7), (3, 1 << 40)] {
        pages.iter().chain(&tables).for_each(|region| region.set_word(word, value));
        for role in ["engine-0", "detokenizer-0", "tokenizer-0", "frontend-0"] {
            let pid = server.role(role).expect("it runs").pid;
            kill(pid, Signal::SIGKILL);
            wait_until("it is dead", PATIENCE, || (!pinion_testkit::is_alive(pid)).then_some(()));
        }
        wait_until("the service is healthy", PATIENCE, || {
            let health = server.request("GET", "/health", &[], b"").ok()?;
            (health.status() == 200 && server.roles().len() == 4).then_some(())
        });
        server.check_serves("as before");
    }
    assert!(server.metric("pinion_mended_headers_total") >= 20.0, "four roles and the launcher");
    assert!(server.metric("pinion_restarts_total") <= 20.0, "four deaths in each round, and few in vain");
    server.stop();
}

#[test]
fn the_real_model_goes_on_word_for_word() {
    let Some(model) = demo_model() else {
        println!("skipped: deploy/demo-model is not complete");
        return;
    };
    let server =
        Server::start(&model, &["--dtype", "fp32", "--restart-backoff", "5ms", "--restart-limit", "1000"]);
    let body = |seed: usize| json!({"prompt": "ROMEO:\n", "max_tokens": 40, "temperature": 0.8, "seed": seed, "stream": true});
    let texts: Vec<String> = (0..4).map(|seed| server.ask(Api::Completions, &body(seed)).text).collect();
    let ask = |random: &mut Random| {
        let seed = random.below(texts.len());
        let answer = server.ask(Api::Completions, &body(seed));
        assert_eq!((&answer.end, &answer.text), (&End::Complete, &texts[seed]), "seed {seed}: {answer:?}");
    };
    Load::run(&server, texts.len(), ask, |load| {
        for (from, to, telling) in EDGES.into_iter().filter(|(from, _, _)| !from.starts_with("tokenizer")) {
            let word = if from == "engine-0" { RingWord::Head } else { RingWord::Unread(telling) };
            load.damage(from, to, word);
        }
        load.is_well();
    });
    server.wait_idle();
    server.stop();
}
