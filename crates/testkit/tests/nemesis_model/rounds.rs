//! Clients and faults together: rounds under load, deaths while the service starts, deaths while it drains.

use super::baseline::Baseline;
use super::faults::{Fault, Round, rounds};
use super::reference::{CLIENTS, FLAGS, Losses, Reference};
use super::reply::{ask, receive, send};
use pinion_testkit::{End, PATIENCE, Random, Server, Signal, kill, wait_until};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

const ANY_NUMBER_OF_DEATHS: [&str; 4] = ["--restart-backoff", "0ms", "--restart-limit", "100000"];
const EXIT_OK: i32 = 0;
const EXIT_START_FAILED: i32 = 5;
const EXIT_CUT: i32 = 7;
/// Longest time from the launcher's start to the death of a role.
const START_MS_MAX: usize = 900;
/// Longest time from the signal to drain to the death of a role.
const DRAIN_MS_MAX: usize = 400;

/// What clients and the nemesis know of each other.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Deaths of frontends, each counted before it happens and after it.
    frontend_deaths_begun: AtomicUsize,
    frontend_deaths_done: AtomicUsize,
    /// Whether the fault of this round may end a request with an error.
    may_give_up: AtomicBool,
    /// Answers of each client.
    answers: [AtomicUsize; CLIENTS],
    complete: AtomicUsize,
    cut: AtomicUsize,
    given_up: AtomicUsize,
}

/// Runs these rounds of a seed under clients that ask without a pause.
pub(crate) fn under_load(
    model: &Path,
    reference: &Reference,
    flags: &[&str],
    seed: u64,
    numbers: Range<usize>,
) {
    let flags = [&FLAGS[..], &ANY_NUMBER_OF_DEATHS, flags].concat();
    let server = Server::start(model, &flags);
    let roles = role_names(&server);
    let has_spare = !flags.contains(&"--no-spare-engine");
    reference.check_all(&server);
    let before = Baseline::of(&server, &roles, has_spare);
    let shared = Shared::default();
    std::thread::scope(|scope| {
        let (server, shared) = (&server, &shared);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|index| scope.spawn(move || client(server, reference, shared, seed, index)))
            .collect();
        let fails = || clients.iter().any(|client| client.is_finished());
        let rounds = rounds(seed, numbers.end, &roles, has_spare);
        for (number, round) in rounds.iter().enumerate().skip(numbers.start) {
            println!("round {number}: {} after {:?}", round.fault, round.pause);
            if !overcome(server, shared, &roles, round, &fails) {
                break;
            }
        }
        shared.stop.store(true, SeqCst);
        clients.into_iter().for_each(|client| client.join().expect("a client's thread"));
    });
    let [complete, cut, given_up] = [&shared.complete, &shared.cut, &shared.given_up].map(|n| n.load(SeqCst));
    println!("{complete} answers complete, {cut} cut, {given_up} given up; {} restarts", restarts(&server));
    let count = numbers.len();
    let shows = complete > CLIENTS * count && restarts(&server) >= count as f64 / 2.0;
    assert!(shows, "the rounds show nothing: too few answers or restarts");
    reference.check_all(&server);
    before.check(&server, &roles, has_spare);
    server.stop();
}

/// One round: waits, strikes, and waits until the service has overcome it and each client has an answer to a request
/// that it sent afterwards. So no request meets two rounds. False if a client has failed meanwhile.
fn overcome(
    server: &Server,
    shared: &Shared,
    roles: &[String],
    round: &Round,
    fails: &dyn Fn() -> bool,
) -> bool {
    std::thread::sleep(round.pause);
    let ends_a_frontend = usize::from(round.fault.ends_a_frontend());
    shared.may_give_up.store(matches!(round.fault, Fault::KillSuccessors { .. }), SeqCst);
    shared.frontend_deaths_begun.fetch_add(ends_a_frontend, SeqCst);
    round.fault.strike(server);
    wait_until("every role runs again", PATIENCE, || {
        let health = server.request("GET", "/health", &[], b"").ok()?;
        (health.status() == 200 && role_names(server) == roles).then_some(())
    });
    shared.frontend_deaths_done.fetch_add(ends_a_frontend, SeqCst);
    let seen: Vec<usize> = shared.answers.iter().map(|count| count.load(SeqCst)).collect();
    wait_until("each client has an answer to a new request", PATIENCE, || {
        let moved = |(now, seen): (&AtomicUsize, &usize)| now.load(SeqCst) >= seen + 2;
        (fails() || shared.answers.iter().zip(&seen).all(moved)).then_some(())
    });
    !fails()
}

fn client(server: &Server, reference: &Reference, shared: &Shared, seed: u64, index: usize) {
    let mut random = Random::new(seed ^ (index as u64 + 1) << 32);
    while !shared.stop.load(SeqCst) {
        let kind = random.below(reference.kinds.len());
        let done_before = shared.frontend_deaths_done.load(SeqCst);
        let reply = ask(server, &reference.kinds[kind]);
        // A request that saw its role die twice without a token between is given up.
        let errors: &[&str] = if shared.may_give_up.load(SeqCst) { &["role_restarted"] } else { &[] };
        let losses = Losses { cut: shared.frontend_deaths_begun.load(SeqCst) > done_before, errors };
        reference.check(kind, &reply, losses);
        match reply.end {
            End::Complete => shared.complete.fetch_add(1, SeqCst),
            End::Cut(_) => shared.cut.fetch_add(1, SeqCst),
            End::Error(_) => shared.given_up.fetch_add(1, SeqCst),
        };
        shared.answers[index].fetch_add(1, SeqCst);
    }
}

/// Kills a role at a random moment of each start. The service is then ready and serves, or it ends with the exit code
/// that says that a role failed to start.
pub(crate) fn deaths_in_a_start(model: &Path, reference: &Reference, seed: u64, count: usize) {
    let mut random = Random::new(seed);
    let (mut served, mut ended) = (0, 0);
    for number in 0..count {
        let moment = Duration::from_millis(random.below(START_MS_MAX) as u64);
        let role = random.pick(&["engine-0", "tokenizer-0", "detokenizer-0", "frontend-0"]);
        let signal = random.pick(&[Signal::SIGKILL, Signal::SIGABRT, Signal::SIGSEGV]);
        println!("start {number}: {signal} to {role} after {moment:?}");
        let mut server = Server::launch(model, &FLAGS);
        std::thread::sleep(moment);
        let victim = wait_until("the role has a process", PATIENCE, || {
            let gone = !pinion_testkit::is_alive(server.pid());
            server.role(role).map(Some).or(gone.then_some(None))
        });
        victim.into_iter().for_each(|process| kill(process.pid, signal));
        match server.wait_ready_or_end() {
            Ok(()) => {
                wait_until("the service serves", PATIENCE, || {
                    let ready = server.request("GET", "/ready", &[], b"").ok()?;
                    (ready.status() == 200).then_some(())
                });
                let kind = random.below(reference.kinds.len());
                reference.check(kind, &ask(&server, &reference.kinds[kind]), Losses::NONE);
                server.stop();
                served += 1;
            }
            Err(status) => {
                assert_eq!(status.code(), Some(EXIT_START_FAILED), "{}", server.stderr_text());
                assert_eq!((server.processes(), server.temporary_files()), (vec![], vec![]), "left behind");
                ended += 1;
            }
        }
    }
    println!("{served} starts served, {ended} ended");
}

/// Kills a role at a random moment of each drain under open requests. Each has one end, and the exit code is one that
/// says whether any was cut.
pub(crate) fn deaths_in_a_drain(model: &Path, reference: &Reference, seed: u64, count: usize) {
    const VICTIMS: [&str; 4] = ["engine-0", "detokenizer-0", "tokenizer-0", "frontend-0"];
    let mut random = Random::new(seed);
    for number in 0..count {
        let role = VICTIMS[number % VICTIMS.len()];
        let moment = Duration::from_millis(random.below(DRAIN_MS_MAX) as u64);
        let kinds: Vec<usize> = (0..CLIENTS).map(|_| random.below(reference.kinds.len())).collect();
        println!("drain {number}: {role} dies {moment:?} after the signal");
        let mut server = Server::start(model, &FLAGS);
        let ends = std::thread::scope(|scope| {
            let server = &server;
            let losses = Losses { cut: role == "frontend-0", errors: &["role_restarted", "unavailable"] };
            let slots: u64 = kinds.iter().map(|&kind| reference.kinds[kind].slots()).sum();
            let clients: Vec<_> = kinds
                .iter()
                .map(|&kind| {
                    let sent = send(server, &reference.kinds[kind]);
                    scope.spawn(move || {
                        let reply = receive(&reference.kinds[kind], sent);
                        reference.check(kind, &reply, losses);
                        reply.end
                    })
                })
                .collect();
            wait_until("the frontend has taken every request", PATIENCE, || {
                let metrics = server.metrics();
                let counts = ["pinion_request_slots_used", "pinion_requests_finished_total"];
                let taken: f64 = counts.iter().filter_map(|name| metrics.total(name)).sum();
                (taken >= slots as f64).then_some(())
            });
            let victim = server.role(role).expect("every role runs").pid;
            server.signal(Signal::SIGTERM);
            std::thread::sleep(moment);
            kill(victim, Signal::SIGKILL);
            clients.into_iter().map(|client| client.join().expect("a client's thread")).collect::<Vec<End>>()
        });
        let code = server.wait_exit(PATIENCE).code();
        println!("exit code {code:?}: {ends:?}");
        let is_lossless = ends.iter().all(|end| *end == End::Complete);
        // What a frontend held when it died is not known, so such a drain counts as cut even if nothing was.
        let is_right = match code {
            Some(EXIT_CUT) => !is_lossless || role.starts_with("frontend"),
            Some(EXIT_OK) => is_lossless,
            _ => false,
        };
        assert!(is_right, "{code:?} after {ends:?}\n{}", server.stderr_text());
        assert_eq!((server.processes(), server.temporary_files()), (vec![], vec![]), "left behind");
    }
}

fn role_names(server: &Server) -> Vec<String> {
    let name = |name: String| name.strip_prefix("pinion-").map(str::to_owned).expect("roles are called so");
    server.roles().into_iter().map(|role| name(role.name)).collect()
}

fn restarts(server: &Server) -> f64 {
    server.metric("pinion_restarts_total")
}
