//! What subscribers of `--kv-events` know of the prefix cache is what it holds: under load that evicts, after the
//! publisher and the engine have died, for those that come late, and after the cache was emptied. Nothing that the
//! publisher does or suffers reaches the engine.

use pinion_testkit::{
    KvSubscriber, PATIENCE, Process, Random, RegionKind, RingWord, Server, SharedRegion, Signal, free_port,
    kill, kv_replay, wait_until,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

const BLOCK: usize = 16;
const SEED: u64 = 41_077;
const QUIET: Duration = Duration::from_millis(300);
const SHORT: Duration = Duration::from_millis(20);

/// A service that publishes, at these ports.
fn server(publish: u16, replay: u16, flags: &[&str]) -> Server {
    let [publish, replay] = [publish, replay].map(|port| format!("tcp://127.0.0.1:{port}"));
    let mut all = vec!["--kv-events", &publish, "--kv-events-replay", &replay, "--block-size", "16"];
    // Copies of beginnings of blocks are not told, and would count as found.
    all.extend_from_slice(&["--no-prefix-partial", "--restart-backoff", "20ms"]);
    all.extend_from_slice(flags);
    Server::fake(&all)
}

/// One completion of `tokens` tokens; how many of its prompt's were cached.
fn complete(server: &Server, prompt: &str, tokens: usize) -> usize {
    let body = json!({"prompt": prompt, "max_tokens": tokens, "ignore_eos": true});
    let response = server.post("/v1/completions", &body);
    assert_eq!(response.status(), 200, "{}", response.text());
    let answer: Value = response.json();
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count") as usize
}

/// Every text of whole blocks that these requests leave in a cache with room for all.
fn texts(server: &Server, requests: &[(String, usize)]) -> Vec<Vec<u32>> {
    let oracle = server.oracle();
    let mut texts = BTreeSet::new();
    for (prompt, tokens) in requests {
        let mut ids = oracle.encode(prompt);
        ids.extend(oracle.ids(&ids, *tokens));
        // The last token is never computed.
        texts.extend((1..=(ids.len() - 1) / BLOCK).map(|blocks| ids[..blocks * BLOCK].to_vec()));
    }
    texts.into_iter().collect()
}

fn prompt(random: &mut Random) -> String {
    let common = ["tell me about the sea, ", "write a program that "][random.below(2)];
    let repeats = random.between(1, 6) as usize;
    format!("{}{}", common.repeat(repeats), random.below(4))
}

/// What the subscriber, one that comes now, and one that asks for everything again know is the same.
fn all_agree(subscriber: &mut KvSubscriber, publish: u16, replay: u16) {
    let mut late = KvSubscriber::new(publish, "");
    wait_until("a late one is told the same", PATIENCE, || {
        late.listen(SHORT);
        subscriber.listen(SHORT);
        (late.last.is_some() && late.last == subscriber.last).then_some(())
    });
    assert_eq!(late.texts(), subscriber.texts());
    let mut asker = KvSubscriber::new(publish, "");
    kv_replay(replay, 0).iter().for_each(|batch| asker.apply(batch));
    subscriber.listen_until("it has heard what the answer has", |subscriber| subscriber.last >= asker.last);
    assert_eq!((asker.last, asker.texts()), (subscriber.last, subscriber.texts()));
}

#[test]
fn subscribers_know_the_cache_through_deaths() {
    let (publish, replay) = (free_port(), free_port());
    let server = server(publish, replay, &["--kv-events-topic", "kv@pod@model"]);
    let mut subscriber = KvSubscriber::new(publish, "kv@");
    let mut other_topic = KvSubscriber::new(publish, "other");
    let mut random = Random::new(SEED);
    let mut requests = Vec::new();
    let mut ask = |requests: &mut Vec<(String, usize)>| {
        for _ in 0..6 {
            let request = (prompt(&mut random), random.between(1, 40) as usize);
            complete(&server, &request.0, request.1);
            requests.push(request);
        }
    };
    let mut check = |requests: &[(String, usize)], connections: usize| {
        let expected = texts(&server, requests);
        subscriber.listen_until("everything is told", |subscriber| subscriber.texts() == expected);
        all_agree(&mut subscriber, publish, replay);
        assert_eq!(subscriber.connections, connections);
        subscriber.last.expect("it has heard something")
    };

    ask(&mut requests);
    check(&requests, 1);

    let publisher = server.role("events-0").expect("it runs");
    kill(publisher.pid, Signal::SIGKILL);
    ask(&mut requests);
    wait_until("its successor serves", PATIENCE, || {
        server.role("events-0").filter(|successor| successor.pid != publisher.pid)
    });
    assert_eq!(server.get("/ready").status(), 200, "no request needs it");
    let before = check(&requests, 2);

    let engine = server.role("engine-0").expect("it runs");
    kill(engine.pid, Signal::SIGKILL);
    requests.clear();
    check(&requests, 2);
    ask(&mut requests);
    let last = check(&requests, 2);
    assert!(last > before, "the numbers go on");

    other_topic.listen(QUIET);
    assert_eq!((other_topic.connections, other_topic.batches), (1, 0));
    wait_until("the others are gone", PATIENCE, || {
        (server.metric("pinion_kv_event_subscribers") == 1.0).then_some(())
    });
    assert_eq!(server.metric("pinion_kv_event_batches_total") as u64, last + 1);
    server.stop();
}

/// One router knows several replicas, and they restart. The subscriber checks each name against the token ids.
#[test]
fn replicas_name_equal_blocks_alike_in_any_order_and_after_a_restart() {
    let ports = [(); 2].map(|()| (free_port(), free_port()));
    let servers = ports.map(|(publish, replay)| server(publish, replay, &[]));
    let mut subscribers = ports.map(|(publish, _)| KvSubscriber::new(publish, ""));
    let mut random = Random::new(SEED);
    let mut requests: Vec<(String, usize)> = (0..12).map(|_| (prompt(&mut random), 20)).collect();
    let expected = texts(&servers[0], &requests);
    let mut names = Vec::new();
    for (server, subscriber) in servers.iter().zip(&mut subscribers) {
        // The second one gets them in the other order, and again after its engine has died.
        requests.reverse();
        requests.iter().for_each(|(prompt, tokens)| _ = complete(server, prompt, *tokens));
        subscriber.listen_until("everything is told", |subscriber| subscriber.texts() == expected);
        names.push(subscriber.names());
    }
    kill(engine(&servers[1]).pid, Signal::SIGKILL);
    subscribers[1].listen_until("its cache is gone", |subscriber| subscriber.texts().is_empty());
    requests.rotate_left(3);
    requests.iter().for_each(|(prompt, tokens)| _ = complete(&servers[1], prompt, *tokens));
    subscribers[1].listen_until("everything is told", |subscriber| subscriber.texts() == expected);
    names.push(subscribers[1].names());
    assert!(names[0].len() > 5 && names[0] == names[1] && names[1] == names[2], "{names:?}");
    servers.into_iter().for_each(Server::stop);
}

fn engine(server: &Server) -> Process {
    server.role("engine-0").expect("it runs")
}

/// The publisher, once it is another process than `before`.
fn publisher_after(server: &Server, before: u32) -> Process {
    wait_until("another publisher serves", PATIENCE, || {
        server.role("events-0").filter(|publisher| publisher.pid != before)
    })
}

/// Whether /metrics shows the publisher in this phase.
fn is_in(server: &Server, phase: &str) -> bool {
    let series = format!("pinion_role_phase{{role=\"events-0\",phase=\"{phase}\"}}");
    server.metrics().samples.get(&series) == Some(&1.0)
}

fn ring_to_publisher(server: &Server) -> Option<SharedRegion> {
    SharedRegion::find(server.pid(), RegionKind::Ring, "pinion-engine-0-events-0").pop()
}

#[test]
fn one_process_and_channels_tell_the_same() {
    for flags in [&["--in-process"][..], &["--ipc", "channel"]] {
        let (publish, replay) = (free_port(), free_port());
        let server = server(publish, replay, flags);
        let mut subscriber = KvSubscriber::new(publish, "");
        let requests = ["the sea is wide and blue and deep", "the sea is wide and blue and cold"];
        let requests = requests.map(|prompt| (prompt.to_owned(), 20));
        for (prompt, tokens) in &requests {
            complete(&server, prompt, *tokens);
        }
        let expected = texts(&server, &requests);
        subscriber.listen_until("everything is told", |subscriber| subscriber.texts() == expected);
        all_agree(&mut subscriber, publish, replay);
        server.stop();
    }
}

/// What a stranger could do to it must not reach the requests.
#[test]
fn the_publisher_has_one_ring_and_no_slot_of_a_request() {
    let (publish, replay) = (free_port(), free_port());
    let server = server(publish, replay, &[]);
    let regions = |role: &str| {
        let pid = server.role(role).expect("it runs").pid;
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
        let of = |name: &str| maps.lines().filter(|line| line.contains(&format!("memfd:{name}"))).count();
        [of("pinion-slots"), of("pinion-engine-0-events-0"), of("pinion-engine-0-detokenizer-0")]
    };
    let [slots, own, others] = regions("events-0");
    assert!(own > 0 && (slots, others) == (0, 0), "{slots} {own} {others}");
    let [slots, own, others] = regions("detokenizer-0");
    assert!(slots > 0 && own == 0 && others > 0, "{slots} {own} {others}");
    let before = server.role("events-0").expect("it runs").pid;
    kill(server.role("frontend-0").expect("it runs").pid, Signal::SIGKILL);
    wait_until("the frontend's successor serves", PATIENCE, || {
        let ready = server.request("GET", "/ready", &[], b"").ok()?;
        (ready.status() == 200).then_some(())
    });
    assert_eq!(regions("events-0")[0], 0, "nor does it get the new table");
    assert_eq!(server.role("events-0").map(|now| now.pid), Some(before));
    server.stop();
}

/// No limit of restarts counts these deaths, and no end of the ring is the engine's.
#[test]
fn the_engine_outlives_whatever_becomes_of_the_publisher() {
    let (publish, replay) = (free_port(), free_port());
    let server = server(publish, replay, &["--restart-limit", "0"]);
    let engine_before = engine(&server).pid;
    let mut subscriber = KvSubscriber::new(publish, "");
    let mut requests = Vec::new();
    for round in 0..6 {
        let before = server.role("events-0").expect("it runs").pid;
        if round % 2 == 0 {
            kill(before, Signal::SIGKILL);
        } else {
            // Its reader finds that the writer cannot have written so much.
            ring_to_publisher(&server).expect("the ring is there").damage_ring(RingWord::Head);
        }
        publisher_after(&server, before);
        requests.push((format!("round {round} of a text with several blocks"), 20));
        complete(&server, &requests[round].0, 20);
        let expected = texts(&server, &requests);
        subscriber.listen_until("everything is told", |subscriber| subscriber.texts() == expected);
    }
    assert_eq!(engine(&server).pid, engine_before);
    assert_eq!(server.metric("pinion_corrupt_edges_total"), 3.0);
    server.stop();
}

/// What connects to a port is not always who should: a scanner, a probe, a client of HTTP.
#[test]
fn many_that_speak_something_else_fill_no_log() {
    const STRANGERS: usize = 300;
    let (publish, replay) = (free_port(), free_port());
    let server = server(publish, replay, &[]);
    let begin = Instant::now();
    for stranger in 0..STRANGERS {
        let port = [publish, replay][stranger % 2];
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("it has a time");
        stream.write_all(&[b'x'; 64]).expect("it is connected");
        // A greeting perhaps, and its end.
        while matches!(stream.read(&mut [0; 64]), Ok(1..)) {}
    }
    wait_until("they are counted", PATIENCE, || {
        (server.metric("pinion_kv_event_connections_closed_total") == STRANGERS as f64).then_some(())
    });
    let lines = server.stderr_text().matches("it does not speak ZMTP 3").count();
    assert!(lines > 0 && lines as u64 <= 1 + begin.elapsed().as_secs() / 10, "{lines} lines");
    server.stop();
}

/// The launcher gets no descriptor meanwhile: neither a ring nor a process can be made.
#[test]
fn requests_are_served_while_the_publisher_cannot_be_started() {
    let (publish, replay) = (free_port(), free_port());
    let server = server(publish, replay, &["--no-spare-engine"]);
    let mut subscriber = KvSubscriber::new(publish, "");
    let limit = |soft: &str| {
        let pid = server.pid().to_string();
        let set = Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={soft}:")]).status();
        assert!(set.expect("util-linux is there").success());
    };
    let before = server.role("events-0").expect("it runs").pid;
    limit("16");
    kill(before, Signal::SIGKILL);
    let mut requests = Vec::new();
    wait_until("several starts have failed", PATIENCE, || {
        requests.push((format!("round {} of a text with several blocks", requests.len()), 20));
        complete(&server, &requests[requests.len() - 1].0, 20);
        assert_eq!(server.get("/ready").status(), 200);
        (server.stderr_text().matches("cannot restart it").count() > 3).then_some(())
    });
    assert!(is_in(&server, "restarting"), "/metrics tells it");
    assert_eq!(server.role("events-0"), None);
    limit("1024");
    publisher_after(&server, before);
    let expected = texts(&server, &requests);
    subscriber.listen_until("everything is told", |subscriber| subscriber.texts() == expected);
    all_agree(&mut subscriber, publish, replay);
    server.stop();
}

/// What the reader writes is seen wrong by the engine, and what the writer writes by the publisher. Neither says
/// anything about requests: balancers took a replica away that served as before.
#[test]
fn a_damaged_ring_to_the_publisher_is_no_reason_to_be_unready() {
    let (publish, replay) = (free_port(), free_port());
    // The ring is replaced when the publisher is restarted, which is put off: here it stays damaged meanwhile.
    let server = server(publish, replay, &["--restart-backoff", "5s"]);
    let mut before = server.role("events-0").expect("it runs").pid;
    kill(before, Signal::SIGKILL);
    for word in [RingWord::Tail, RingWord::Head] {
        before = publisher_after(&server, before).pid;
        wait_until("it reads its ring", PATIENCE, || is_in(&server, "ready").then_some(()));
        ring_to_publisher(&server).expect("the ring is there").damage_ring(word);
        if word == RingWord::Tail {
            // Its writer looks when it has something to say, and its reader would write the word again.
            complete(&server, "a text with several blocks", 20);
        }
        let check = || {
            assert_eq!(server.get("/ready").status(), 200, "{word:?}");
            assert_eq!(server.get("/health").status(), 200, "{word:?}");
        };
        wait_until("the publisher is down", PATIENCE, || {
            check();
            is_in(&server, "restarting").then_some(())
        });
        for _ in 0..20 {
            check();
            std::thread::sleep(SHORT);
        }
        assert!(is_in(&server, "restarting"), "the ring is damaged still");
        complete(&server, "requests are served", 20);
    }
    publisher_after(&server, before);
    assert_eq!(server.metric("pinion_corrupt_edges_total"), 2.0);
    server.stop();
}

/// The ring to it is full, and the changes wait in the engine, where most of them cancel out.
#[test]
fn a_publisher_that_stands_still_holds_nothing_up_and_misses_nothing() {
    stands_still("ring");
}

/// Records of requests are sent over sockets then, and a send waits for a reader that stands still.
#[test]
fn a_publisher_that_stands_still_holds_no_channel_up() {
    stands_still("channel");
}

/// The engine has changes to tell that its ring does not take, and no work.
fn assert_sleeps(server: &Server) {
    server.wait_idle();
    let sleeps = || server.metrics().samples["pinion_role_sleeps_total{role=\"engine-0\"}"];
    // Longer and longer, until each is as long as the longest.
    std::thread::sleep(Duration::from_millis(300));
    let before = sleeps();
    std::thread::sleep(Duration::from_secs(2));
    let count = sleeps() - before;
    assert!((1.0..100.0).contains(&count), "{count} sleeps in two seconds");
}

fn stands_still(ipc: &str) {
    let (publish, replay) = (free_port(), free_port());
    let small = ["--max-num-seqs", "8", "--max-num-batched-tokens", "64", "--kv-cache-tokens", "4096"];
    let server = server(publish, replay, &[&small[..], &["--stuck-timeout", "10m", "--ipc", ipc]].concat());
    let mut subscriber = KvSubscriber::new(publish, "");
    let publisher = server.role("events-0").expect("it runs");
    kill(publisher.pid, Signal::SIGSTOP);
    let ring = ring_to_publisher(&server).expect("the ring is there");
    let mut unread = Vec::new();
    for round in 0..80 {
        let prompt = format!("{round} {}", "lorem ipsum dolor ".repeat(20));
        assert_eq!(complete(&server, &prompt, 4), 0);
        unread.push(ring.unread_words());
    }
    let full = unread[79];
    assert!(unread[0] < full && unread[60..].iter().all(|words| *words == full), "{unread:?}");
    assert_sleeps(&server);
    kill(publisher.pid, Signal::SIGCONT);
    // It was evicted meanwhile, and is told last.
    let again = format!("0 {}", "lorem ipsum dolor ".repeat(20));
    assert_eq!(complete(&server, &again, 4), 0);
    let left = texts(&server, &[(again, 4)]);
    subscriber.listen_until("its blocks are told", |subscriber| {
        let known = subscriber.texts();
        left.iter().all(|text| known.contains(text))
    });
    for round in 1..80 {
        let prompt = format!("{round} {}", "lorem ipsum dolor ".repeat(20));
        let expected = subscriber.cached_tokens(&server.oracle().encode(&prompt));
        assert!(expected == 0 || round > 60, "round {round} is evicted");
        assert!(expected > 0 || round < 75, "round {round} is cached");
    }
    assert_eq!(server.role("events-0").map(|now| now.pid), Some(publisher.pid));
    assert_eq!(server.metric("pinion_restarts_total"), 0.0);
    all_agree(&mut subscriber, publish, replay);
    server.stop();
}

#[test]
fn what_is_known_under_eviction_is_what_a_prompt_finds() {
    let (publish, replay) = (free_port(), free_port());
    let server = server(publish, replay, &["--kv-cache-tokens", "768", "--max-model-len", "512"]);
    let mut subscriber = KvSubscriber::new(publish, "");
    let mut random = Random::new(SEED);
    let (mut found, mut evicted, mut before) = (0, 0, BTreeSet::new());
    for round in 0..30 {
        let prompt = format!("{} {}", prompt(&mut random), "x".repeat(random.between(0, 200) as usize));
        let expected = subscriber.cached_tokens(&server.oracle().encode(&prompt));
        let tokens = random.between(1, 30) as usize;
        assert_eq!(complete(&server, &prompt, tokens), expected, "round {round}, seed {SEED}");
        found += usize::from(expected > 0);
        // What it leaves is not evicted yet, and is told after what it has evicted.
        let left = texts(&server, &[(prompt, tokens)]);
        subscriber.listen_until("its blocks are told", |subscriber| {
            let known = subscriber.texts();
            left.iter().all(|text| known.contains(text))
        });
        let known: BTreeSet<_> = subscriber.texts().into_iter().collect();
        assert!(known.len() <= 768 / BLOCK);
        evicted += before.difference(&known).count();
        before = known;
    }
    assert!(found > 5 && evicted > 20, "{found} prompts were found and {evicted} blocks evicted");
    all_agree(&mut subscriber, publish, replay);

    assert_eq!(server.post("/reset_prefix_cache", &json!({})).status(), 200);
    subscriber.listen_until("the cache is empty", |subscriber| subscriber.texts().is_empty());
    all_agree(&mut subscriber, publish, replay);
    server.stop();
}
