//! Successors that cannot be started, and what the page of a role that is gone says.

use super::*;
use pinion_config::Exit;
use pinion_protocol::status::Phase;

/// A service whose tokenizer has just died and is due, under a host that starts no process: `folder` is in its way.
fn restarting_from(folder: &str, restart_limit: u32) -> Service {
    let mut config = config();
    (config.lifecycle.restart_limit, config.lifecycle.restart_backoff_ms) = (restart_limit, 100);
    let mut service = service(config, Host::Threads(dies_at_once as RoleMain));
    is_ended(&mut service);
    service.ended(0, ExitStatus::from_raw(9), false).unwrap();
    service.host = Host::Processes { folder: folder.into(), profile: None, confined: true };
    service
}

/// A name that the kernel refuses stands for what it may refuse for a moment: processes, memory, descriptors. Each was
/// the end of the service.
#[test]
fn a_start_that_the_system_refuses_counts_as_a_death_and_is_tried_again() {
    let mut service = restarting_from(&"x".repeat(5000), 3);
    let mut now_ns = clock::now_ns();
    for attempt in 2..=3 {
        service.restart_due(now_ns).expect("the service goes on");
        assert!(matches!(service.stage, Stage::Serving), "attempt {attempt}");
        let phase = service.wiring.page(TOKENIZER).get(Gauge::Phase as usize);
        assert_eq!(Phase::from_word(phase), Some(Phase::Restarting));
        assert!(!service.members[0].restart_is_due(now_ns), "it backs off");
        now_ns += 1_000 * MS_NS;
        assert!(service.members[0].restart_is_due(now_ns), "it is tried again");
    }
    let refused = std::mem::replace(&mut service.host, Host::Threads(dies_at_once as RoleMain));
    service.restart_due(now_ns).unwrap();
    assert!(service.members[0].lives(), "once it can be started, it is");
    is_ended(&mut service);
    service.host = refused;
    service.members[0].restart_at(now_ns);
    let failure = service.restart_due(now_ns).expect_err("the fourth within a minute");
    assert!(failure.reason.contains("cannot start tokenizer-0"), "{failure:?}");
}

#[test]
fn a_program_that_is_missing_ends_the_service_at_once() {
    let mut service = restarting_from("/nonexistent", 100);
    let failure = service.restart_due(clock::now_ns()).expect_err("it will not come by itself");
    assert_eq!(failure.code, Exit::Start, "{failure:?}");
}

/// `/metrics` went on showing the queue and the last step of an engine that was gone.
#[test]
fn what_a_role_was_doing_ends_with_it() {
    let mut service = service(config(), Host::Threads(dies_at_once as RoleMain));
    is_ended(&mut service);
    let gauges = [Gauge::OldestWaitingNs, Gauge::WindowBlocksUsed, Gauge::LastStepNs, Gauge::StepBudgetNs];
    gauges.iter().for_each(|gauge| service.wiring.page(TOKENIZER).set(*gauge as usize, 7));
    service.wiring.page(TOKENIZER).set(Gauge::Steps as usize, 7);
    service.ended(0, ExitStatus::from_raw(9), false).unwrap();
    let page = service.wiring.page(TOKENIZER);
    assert_eq!(gauges.map(|gauge| page.get(gauge as usize)), [0; 4]);
    assert_eq!(page.get(Gauge::Steps as usize), 7, "a count goes on");
}
