//! The end of a process as an event. Alone in its program: a child holds what its parent has open until it calls exec,
//! and the tests of hang-ups beside it would not see theirs.
#![cfg(not(loom))]

use pinion_os::pidfd;
use pinion_shm::doorbell::wait;
use std::os::fd::AsFd;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

#[test]
fn a_pidfd_tells_death() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let death = pidfd::open(child.id()).unwrap();
    assert!(wait(&[death.as_fd()], Duration::from_millis(20)).unwrap().timed_out());
    child.kill().unwrap();
    assert!(wait(&[death.as_fd()], SOON).unwrap().readable == 1);
    child.wait().unwrap();
    assert!(!wait(&[death.as_fd()], SOON).unwrap().timed_out(), "still told after the reaping");
    assert!(pidfd::open(child.id()).is_err(), "reaped");
}
