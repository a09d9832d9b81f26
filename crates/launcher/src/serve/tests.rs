//! Deaths that come at bad moments, with children that are no roles.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

mod by_hand;
mod optional;
mod restarts;

use super::{MS_NS, SAME_SIGNAL_NS, Service, Stage, TICK};
use crate::admin::Orders;
use crate::corrupt::CorruptEdge;
use crate::host::{Host, RoleMain};
use crate::member::Member;
use crate::notify::Notifier;
use crate::profile::Recording;
use crate::role_event::RoleEvent;
use crate::wiring::Wiring;
use pinion_config::{Backend, Config, Machine, ModelFacts, Topology};
use pinion_os::clock;
use pinion_protocol::control::{DeathCause, ToRole};
use pinion_protocol::status::Gauge;
use pinion_protocol::{Peer, Role, StopIds};
use pinion_shm::doorbell;
use pinion_worker::{ControlEvent, Session};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const TOKENIZER: Peer = Peer { role: Role::Tokenizer, index: 0 };

/// A service that needs no model and takes any port.
pub(crate) fn config() -> Config {
    let facts = ModelFacts {
        max_context: 64,
        default_context: 64,
        vocab_size: 257,
        stop_ids: StopIds::NONE,
        layers: 1,
        kv_heads: 1,
        head_dim: 1,
        hidden: 1,
        window: None,
    };
    let machine = Machine::uniform(1, 1);
    let mut config = Config::with_defaults(Path::new("/"), facts, Backend::Fake, &machine).unwrap();
    (config.port, config.pin, config.jitter_control) = (0, false, false);
    config
}

/// A service of one tokenizer that is ready, or as good as.
fn service(config: Config, host: Host) -> Service {
    service_of(TOKENIZER, config, host)
}

/// The same with another role.
fn service_of(peer: Peer, config: Config, host: Host) -> Service {
    let topology = Topology::new(&config);
    let (listener, address) = crate::port::bind_port((config.host, config.port).into(), "--port").unwrap();
    let wiring = Wiring::new(&config, &topology, listener).unwrap();
    let processes = topology.processes.into_iter().filter(|process| process.peer == peer);
    let (now_ns, start_timeout_ns) = (clock::now_ns(), config.lifecycle.start_timeout_ms * MS_NS);
    let mut service = Service {
        config,
        clock: clock::now_ns,
        host,
        address,
        wiring,
        members: processes.map(|process| Member::new(process, start_timeout_ns, clock::now_ns)).collect(),
        spare: None,
        orders: Orders::default(),
        recording: Recording::default(),
        notifier: Notifier::default(),
        stage: Stage::Serving,
        restarts: 0,
        unannounced: Vec::new(),
        cut_short: false,
        signalled_ns: None,
        reason: None,
        turned_ns: now_ns,
        silent_from_ns: now_ns,
    };
    service.spawn(0).unwrap();
    service
}

/// A folder in which the tokenizer's binary is a program that sleeps.
fn sleepers() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("pinion-sleepers-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let binary = folder.join("pinion-tokenizer");
    write_program(&binary, "exec sleep 100");
    folder
}

/// Writes a shell program. Another process does it: a child that another test forks here would keep the file open for
/// writing until it calls exec, and such a program cannot be started (ETXTBSY).
pub(crate) fn write_program(path: &Path, text: &str) {
    let write = r##"printf '#!/bin/sh\n%s\n' "$1" >"$0" && chmod 700 "$0""##;
    assert!(Command::new("sh").args(["-c", write]).arg(path).arg(text).status().unwrap().success());
}

/// Gigabytes take longer to give back than a turn of the loop: a role that was killed because it hung took the service
/// along, as one that is not ready long after its start.
#[test]
fn a_role_that_is_killed_may_take_its_time_to_be_gone() {
    let folder = sleepers();
    let mut service =
        service(config(), Host::Processes { folder: folder.clone(), profile: None, confined: true });
    service.members[0].become_ready();
    let late_ns = clock::now_ns() + 1000 * service.config.lifecycle.start_timeout_ms * MS_NS;
    (service.turned_ns, service.silent_from_ns) = (late_ns, 0);
    service.kill_stuck(late_ns);
    assert!(!service.members[0].is_ready(), "its heartbeat is old");
    // What it said last may lie there unread.
    assert!(service.members[0].start_fd().is_none(), "each wait would end at once until it is gone");
    // Its end has not been looked at yet.
    assert!(service.members[0].lives());
    service.check_start_deadlines(clock::now_ns()).expect("a killed role has the start timeout to be gone");
    service.kill_all();
    std::fs::remove_dir_all(folder).unwrap();
}

/// It died together with the role whose work it was given: that is one death of the role. A service that allows none,
/// or one, gave up.
#[test]
fn the_end_of_a_spare_that_was_just_given_work_is_no_second_death() {
    let mut config = config();
    config.lifecycle.restart_limit = 0;
    let mut service = service(config, Host::Threads(dies_at_once as RoleMain));
    is_ended(&mut service);
    service.on_role_death(0, ExitStatus::from_raw(0), true);
    assert!(matches!(service.stage, Stage::Serving), "no role has died");
    assert!(service.members[0].restart_is_due(clock::now_ns()), "at once");
    service.on_role_death(0, ExitStatus::from_raw(0), false);
    assert!(matches!(service.stage, Stage::Draining { .. }), "it has answered: this death counts");
}

/// Is a role and does nothing.
fn hangs(peer: Peer, socket: OwnedFd) -> ExitCode {
    let _session = Session::attach_over(peer.role, socket, clock::now_ns);
    std::thread::sleep(Duration::from_secs(600));
    ExitCode::FAILURE
}

/// A thread cannot be killed. It was left behind without an event: it was not replaced, and its requests waited for
/// ever.
#[test]
fn a_thread_that_is_left_behind_has_died() {
    let mut service = service(config(), Host::Threads(hangs as RoleMain));
    service.members[0].become_ready();
    let late_ns = clock::now_ns() + 1000 * service.config.lifecycle.stuck_timeout_ms * MS_NS;
    (service.turned_ns, service.silent_from_ns) = (late_ns, 0);
    service.kill_stuck(late_ns);
    let Service { members, wiring, .. } = &mut service;
    let Ok(Some(RoleEvent::Ended { status, was_standby })) = members[0].poll(wiring) else {
        panic!("its end is not reported")
    };
    assert!(members[0].poll(wiring).unwrap().is_none(), "once");
    service.ended(0, status, was_standby).unwrap();
    assert!(service.members[0].restart_is_due(clock::now_ns()), "it is restarted");
}

/// A drain in which the tokenizer died and every stream was completed ended as one that had cut answers. Frontends know
/// whether they had to, and say so by their exit code; one that dies takes its answers with it.
#[test]
fn a_death_in_a_drain_cuts_what_a_frontend_says_that_it_cut() {
    let failed = ExitStatus::from_raw(1 << 8);
    for (role, status, cut) in [
        (Role::Tokenizer, ExitStatus::from_raw(0), false),
        (Role::Tokenizer, failed, false),
        (Role::Frontend, ExitStatus::from_raw(0), false),
        (Role::Frontend, failed, true),
    ] {
        let mut service = service(config(), Host::Threads(dies_at_once as RoleMain));
        service.drain();
        service.members[0].peer.role = role;
        service.ended(0, status, false).unwrap();
        assert_eq!(service.cut_short, cut, "{role:?} {status}");
    }
}

/// As timeout(1) sends it: to the process and to its group. It cut every stream.
#[test]
fn a_signal_that_comes_twice_at_once_is_one_signal() {
    let mut service = service(config(), Host::Threads(dies_at_once as RoleMain));
    service.clock = || 10 * SAME_SIGNAL_NS;
    assert!(service.signalled().is_none());
    assert!(service.signalled().is_none() && matches!(service.stage, Stage::Draining { .. }), "it drains");
    service.signalled_ns = service.signalled_ns.map(|at_ns| at_ns - SAME_SIGNAL_NS);
    assert!(service.signalled().is_some(), "this one comes later");
}

/// Sixteen of each role and a socket for each that starts: such a service could not start.
#[test]
fn more_roles_than_one_wait_can_watch_are_looked_at_by_turns() {
    let bell = doorbell::Doorbell::create().unwrap();
    super::wait(std::iter::repeat_n(bell.fd(), 2 * (3 * 16 + 1) + 1)).expect("a tick");
}

/// Attaches and is gone.
fn dies_at_once(peer: Peer, socket: OwnedFd) -> ExitCode {
    let attached = Session::attach_over(peer.role, socket, clock::now_ns);
    ExitCode::from(u8::from(attached.is_err()))
}

/// Says why it cannot serve, and is gone.
fn fails(peer: Peer, socket: OwnedFd) -> ExitCode {
    match Session::attach_over(peer.role, socket, clock::now_ns) {
        Ok(session) => session.fail("the model is not there", 3),
        Err(_) => ExitCode::FAILURE,
    }
}

/// What a role said last was lost where the launcher saw its end first: an exit code said less than it could, and with
/// `--device auto` the CPU was not tried.
#[test]
fn the_last_words_of_a_role_are_told_before_its_end() {
    let mut service = service(config(), Host::Threads(fails as RoleMain));
    let deadline_ns = clock::now_ns() + 60_000 * MS_NS;
    while !service.members[0].has_ended() {
        assert!(clock::now_ns() < deadline_ns, "it does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    service.members[0].kill();
    let Service { members, wiring, .. } = &mut service;
    let told = members[0].poll(wiring).unwrap();
    let Some(RoleEvent::Failed { reason, exit_code: 3 }) = told else { panic!("{told:?}") };
    assert_eq!(reason, "the model is not there");
    let told = members[0].poll(wiring).unwrap();
    let Some(RoleEvent::Ended { status, was_standby: false }) = told else { panic!("{told:?}") };
    assert_eq!(status.signal(), None, "one that has ended is not killed");
    assert!(members[0].poll(wiring).unwrap().is_none(), "once");
}

/// The edge is made anew with the successor: another end of it is not killed for that.
#[test]
fn a_report_of_an_edge_whose_end_has_ended_changes_nothing() {
    let mut service = service(config(), Host::Threads(dies_at_once as RoleMain));
    let edge = CorruptEdge {
        from: FRONTEND,
        to: service.members[0].peer,
        epoch: 1,
        suspect: FRONTEND,
        what: "a test".to_owned(),
    };
    let deadline_ns = clock::now_ns() + 60_000 * MS_NS;
    while !service.members[0].has_ended() {
        assert!(clock::now_ns() < deadline_ns, "it does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    service.corrupt(&edge).unwrap();
    assert_eq!(service.members[0].take_cause(), DeathCause::Unknown, "its end is its own");
    assert!(service.wiring.condemn(&edge, 1).is_some(), "the report was left alone");
}

/// New links were queued for it, and it died between its attaching and the launcher's look: the failed send ended the
/// service.
#[test]
fn a_role_that_dies_with_links_queued_is_a_role_that_died() {
    let mut service = service(config(), Host::Threads(dies_at_once as RoleMain));
    let Service { members, wiring, .. } = &mut service;
    members[0].reattach(wiring, Peer::new(Role::Engine, 0)).unwrap();
    let deadline_ns = clock::now_ns() + 60_000 * MS_NS;
    let event = loop {
        assert!(clock::now_ns() < deadline_ns, "it does not end");
        let fds: Vec<_> = members[0].death_fd().into_iter().collect();
        doorbell::wait(&fds, TICK).unwrap();
        if let Some(event) = members[0].poll(wiring).expect("its end is no fault of the system") {
            break event;
        }
    };
    assert!(matches!(event, RoleEvent::Ended { .. }), "{event:?}");
}

const ENGINE: Peer = Peer { role: Role::Engine, index: 0 };
const FRONTEND: Peer = Peer { role: Role::Frontend, index: 0 };

/// Looks at the members until `done`.
fn poll_until(service: &mut Service, what: &str, mut done: impl FnMut(&Service, Option<&RoleEvent>) -> bool) {
    let deadline_ns = clock::now_ns() + 60_000 * MS_NS;
    loop {
        assert!(clock::now_ns() < deadline_ns, "{what}: not in time");
        let event = service.members[0].poll(&service.wiring).unwrap();
        if done(service, event.as_ref()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_ended(service: &mut Service) {
    poll_until(service, "its end", |_, event| matches!(event, Some(RoleEvent::Ended { .. })));
}

fn is_ready(service: &mut Service) {
    poll_until(service, "a start", |_, event| matches!(event, Some(RoleEvent::Ready { .. })));
}

/// Says whether its first event is of the slot table.
fn takes_two_sets(peer: Peer, socket: OwnedFd) -> ExitCode {
    let mut session = Session::attach_over(peer.role, socket, clock::now_ns).unwrap();
    let deadline_ns = clock::now_ns() + 60_000 * MS_NS;
    while session.status.get(Gauge::ControlSequence as usize) < 2 && clock::now_ns() < deadline_ns {
        std::thread::sleep(Duration::from_millis(1));
    }
    let first = session.control();
    ExitCode::from(u8::from(!matches!(first, Some(ControlEvent::SlotsReplaced { frontend: 0 }))))
}

/// An engine and a frontend died together. What a detokenizer did because of the one, it did with the new ring of the
/// other and the old slot table: openings of the new life were stale in its eyes.
#[test]
fn of_a_new_slot_table_a_role_hears_before_anything_else() {
    let mut service = service(config(), Host::Threads(takes_two_sets as RoleMain));
    let Service { members, wiring, .. } = &mut service;
    for peer in [ENGINE, FRONTEND] {
        wiring.renew(peer).unwrap();
        members[0].reattach(wiring, peer).unwrap();
    }
    poll_until(&mut service, "its end", |_, event| match event {
        Some(RoleEvent::Ended { status, .. }) => {
            assert!(status.success(), "it heard of another thing first");
            true
        }
        _ => false,
    });
}

/// Turns its loop, and is never idle.
fn is_never_idle(peer: Peer, socket: OwnedFd) -> ExitCode {
    let mut session = Session::attach_over(peer.role, socket, clock::now_ns).unwrap();
    session.ready("");
    loop {
        if let Some(ControlEvent::Stop) = session.control() {
            return session.stop();
        }
        std::thread::yield_now();
    }
}

/// Roles once wrote their heartbeat only before they slept: a tokenizer that never slept was killed as stuck.
#[test]
fn a_role_that_is_always_busy_is_not_stuck() {
    let mut service = service(config(), Host::Threads(is_never_idle as RoleMain));
    is_ready(&mut service);
    let before_ns = clock::now_ns();
    poll_until(&mut service, "a heartbeat", |service, _| {
        service.wiring.page(TOKENIZER).get(Gauge::HeartbeatNs as usize) > before_ns
    });
    service.members[0].tell(&service.wiring, &ToRole::Stop);
    poll_until(&mut service, "its end", |_, event| matches!(event, Some(RoleEvent::Ended { .. })));
}

/// How far the test with [`stalls`] is.
static STOOD: AtomicU32 = AtomicU32::new(0);

/// Is ready, and takes nothing before the test says so; then all, until it says so again; then writes to the engine. A
/// successor takes all at once.
fn stalls(peer: Peer, socket: OwnedFd) -> ExitCode {
    let mut session = Session::attach_over(peer.role, socket, clock::now_ns).unwrap();
    session.ready("");
    let first = session.epoch() == 1;
    while first && STOOD.load(Ordering::Relaxed) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (mut back, mut stops) = (0, false);
    while !stops && (!first || STOOD.load(Ordering::Relaxed) == 1) {
        while let Some(event) = session.control() {
            back += u64::from(matches!(event, ControlEvent::PeerReady(ENGINE)));
            stops |= matches!(event, ControlEvent::Stop);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let outbox = session.links.outbox(ENGINE).unwrap();
    outbox.send(1, &[0; 8]).unwrap();
    outbox.publish();
    ExitCode::from(u8::from(back == 0))
}

/// A stalled role once got sixty-four messages and no more, and of new links the descriptors without the message: from
/// then on it was one set behind, at a ring without a reader. Its successor got no message at all.
#[test]
fn a_stalled_role_gets_every_message_when_it_reads_again() {
    let mut service = service(config(), Host::Threads(stalls as RoleMain));
    is_ready(&mut service);
    let die_and_return = |service: &mut Service| {
        for _ in 0..40 {
            let Service { members, wiring, .. } = &mut *service;
            wiring.renew(ENGINE).unwrap();
            members[0].tell(wiring, &ToRole::PeerLost { peer: ENGINE, cause: DeathCause::Unknown });
            members[0].reattach(wiring, ENGINE).unwrap();
            members[0].tell(wiring, &ToRole::PeerReady { peer: ENGINE });
        }
    };
    die_and_return(&mut service);
    assert!(service.members[0].has_old_links(&service.wiring));
    STOOD.store(1, Ordering::Relaxed);
    poll_until(&mut service, "all sent", |service, _| !service.members[0].has_old_links(&service.wiring));
    assert_eq!(service.wiring.waiting_bytes(TOKENIZER, ENGINE), 0);
    die_and_return(&mut service);
    poll_until(&mut service, "all sent", |service, _| !service.members[0].has_old_links(&service.wiring));
    STOOD.store(2, Ordering::Relaxed);
    poll_until(&mut service, "its end", |_, event| matches!(event, Some(RoleEvent::Ended { .. })));
    assert!(service.wiring.waiting_bytes(TOKENIZER, ENGINE) > 0, "it writes to a ring without a reader");

    // The predecessor does not read what is sent now.
    service.wiring.page(TOKENIZER).set(Gauge::ControlSequence as usize, 1000);
    service.wiring.renew(TOKENIZER).unwrap();
    service.spawn(0).unwrap();
    is_ready(&mut service);
    let Service { members, wiring, .. } = &mut service;
    members[0].tell(wiring, &ToRole::PeerReady { peer: ENGINE });
    members[0].tell(wiring, &ToRole::Stop);
    poll_until(&mut service, "its successor reads", |_, event| match event {
        Some(RoleEvent::Ended { status, .. }) => {
            assert!(status.success());
            true
        }
        _ => false,
    });
}
