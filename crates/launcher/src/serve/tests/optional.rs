//! The events role, which no request needs: whatever becomes of it, the service goes on.

use super::*;
use crate::member::MemberState;
use pinion_config::KvEvents;
use pinion_protocol::status::Phase;

const EVENTS: Peer = Peer { role: Role::Events, index: 0 };

/// A service of one events role, in which each other role's second death would be its end.
fn events_service(main: RoleMain) -> Service {
    let mut config = config();
    (config.lifecycle.restart_limit, config.lifecycle.restart_backoff_ms) = (0, 0);
    let publish = (config.host, 0_u16).into();
    config.kv_events = Some(KvEvents { publish, replay: None, topic: String::new() });
    service_of(EVENTS, config, Host::Threads(main))
}

fn phase(service: &Service) -> Option<Phase> {
    Phase::from_word(service.wiring.page(EVENTS).get(Gauge::Phase as usize))
}

#[test]
fn it_may_die_more_often_than_the_limit_allows() {
    let mut service = events_service(dies_at_once);
    is_ended(&mut service);
    for _ in 0..20 {
        service.on_role_death(0, ExitStatus::from_raw(9), false);
        assert!(matches!(service.stage, Stage::Serving));
    }
    assert!(
        !service.members[0].restart_is_due(clock::now_ns()),
        "no limit ends it, so it must not be at once"
    );
}

/// Its start timeout was the end of the service.
#[test]
fn a_successor_that_is_late_is_killed_and_started_again() {
    let mut service = events_service(hangs);
    for round in 1..=4 {
        assert_eq!((service.members[0].epoch(), service.members[0].state()), (round, MemberState::Starting));
        let late_ns = clock::now_ns() + 2 * service.config.lifecycle.start_timeout_ms * MS_NS;
        service.check_start_deadlines(late_ns).expect("the service goes on");
        assert_eq!(service.members[0].state(), MemberState::Killed);
        let Ok(Some(RoleEvent::Ended { status, was_standby })) = service.members[0].poll(&service.wiring)
        else {
            panic!("its end is not reported")
        };
        service.ended(0, status, was_standby).expect("the service goes on");
        assert_eq!(phase(&service), Some(Phase::Restarting), "/metrics tells it");
        service.restart_due(clock::now_ns() + 10_000 * MS_NS).expect("it is started again");
    }
}

/// No memory, no descriptor, no program: each was the end of the service.
#[test]
fn one_that_cannot_be_started_is_tried_again_for_ever() {
    let mut service = events_service(dies_at_once);
    is_ended(&mut service);
    service.ended(0, ExitStatus::from_raw(9), false).unwrap();
    let nowhere = Host::Processes { folder: "/nonexistent".into(), profile: None, confined: true };
    let host = std::mem::replace(&mut service.host, nowhere);
    let mut now_ns = clock::now_ns();
    for attempt in 0..20 {
        assert!(service.members[0].restart_is_due(now_ns), "attempt {attempt}");
        service.restart_due(now_ns).expect("the service goes on");
        assert!(!service.members[0].restart_is_due(now_ns), "the next one is put off");
        assert_eq!((phase(&service), service.restarts), (Some(Phase::Restarting), 0));
        now_ns += 5_000 * MS_NS;
    }
    service.host = host;
    service.restart_due(now_ns).unwrap();
    assert!(service.members[0].lives());
    assert_eq!(service.restarts, 1);
}

/// It is ready long before an engine that loads its weights, and it is what a lack of memory ends first. What keeps it
/// from its first start is the operator's to know.
#[test]
fn while_the_service_starts_it_may_die_once_it_has_served() {
    for (has_served, goes_on) in [(false, false), (true, true)] {
        let mut service = events_service(dies_at_once);
        is_ended(&mut service);
        service.stage = Stage::Starting;
        let phase = if has_served { Phase::Ready } else { Phase::Starting };
        service.wiring.page(EVENTS).set(Gauge::Phase as usize, phase as u64);
        let ended = service.ended(0, ExitStatus::from_raw(9), false);
        assert_eq!(ended.is_ok(), goes_on, "{ended:?}");
        if goes_on {
            assert!(service.advance().unwrap().is_none());
            assert_eq!(service.members[0].epoch(), 2, "it is started again");
            assert!(matches!(service.stage, Stage::Starting), "which the service waits for");
        }
    }
}
