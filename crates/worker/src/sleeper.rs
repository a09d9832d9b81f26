//! How a role sleeps: it spins if the plan says so, then waits for its doorbell. What lies between two sleeps is a turn
//! of its loop, which the pause observer measures.

use crate::pauses::Pauses;
use crate::recorder::Recorder;
use pinion_os::clock::Clock;
use pinion_shm::doorbell::{self, Doorbell};
use pinion_shm::page::Page;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The longest any sleep lasts, so that a heartbeat is never older than this in an idle role.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// See the module's head.
pub(crate) struct Sleeper {
    clock: Clock,
    doorbell: Doorbell,
    spin_ns: u64,
    pauses: Pauses,
}

impl Sleeper {
    pub(crate) fn new(clock: Clock, doorbell: Doorbell, spin_ns: u64, pauses: Pauses) -> Sleeper {
        Sleeper { clock, doorbell, spin_ns, pauses }
    }

    /// The eventfd that peers ring.
    pub(crate) fn doorbell_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.fd()
    }

    /// Empties the doorbell.
    pub(crate) fn drain_doorbell(&self) {
        self.doorbell.drain();
    }

    /// A turn of the loop ends here.
    pub(crate) fn turn(&mut self, now_ns: u64, status: &Page, recorder: &Recorder) {
        self.pauses.turn(now_ns, status, recorder);
    }

    /// What lies between the last turn and now was sleep.
    pub(crate) fn slept(&mut self) {
        self.pauses.slept((self.clock)());
    }

    /// This much of the turn under way passed in something that is watched elsewhere: it is no pause.
    pub(crate) fn excuse(&mut self, ns: u64) {
        self.pauses.excuse(ns);
    }

    /// Spins for the planned time, until `has_input`. Whether it has.
    pub(crate) fn spin(&self, has_input: impl Fn() -> bool) -> bool {
        if self.spin_ns == 0 {
            return false;
        }
        let end_ns = (self.clock)() + self.spin_ns;
        while (self.clock)() < end_ns {
            if has_input() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Waits for the doorbell, at most `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) {
        if let Err(error) = doorbell::wait(&[self.doorbell.fd()], timeout.min(SLEEP_MAX)) {
            tracing::error!(%error, "cannot wait on the doorbell");
        }
    }
}
