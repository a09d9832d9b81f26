//! Where the launcher starts roles in a simulation: a thread that only holds the role's place, so that the launcher
//! sees it live and end. The role itself runs in the simulation's thread, over the socket that the launcher gave it.

use pinion_protocol::Peer;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A thread starts within this time, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// A role that was started and is not attached yet.
pub(crate) struct Started {
    peer: Peer,
    pub(crate) socket: OwnedFd,
    /// For the launcher the role lives until this is used or dropped.
    pub(crate) place: Sender<ExitCode>,
}

static STARTED: Mutex<Vec<Started>> = Mutex::new(Vec::new());
static ONE_MORE: Condvar = Condvar::new();
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Held by a run: the places are those of the process.
pub(crate) fn enter() -> MutexGuard<'static, ()> {
    let entered = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    STARTED.lock().unwrap_or_else(PoisonError::into_inner).clear();
    entered
}

/// What the launcher calls in the thread of a role.
pub(crate) fn hold_place(peer: Peer, socket: OwnedFd) -> ExitCode {
    let (place, left) = channel();
    STARTED.lock().unwrap_or_else(PoisonError::into_inner).push(Started { peer, socket, place });
    ONE_MORE.notify_all();
    left.recv().unwrap_or(ExitCode::FAILURE)
}

/// The role `peer`, which the launcher has just started.
pub(crate) fn take(peer: Peer) -> Started {
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(at) = started.iter().position(|role| role.peer == peer) {
            return started.swap_remove(at);
        }
        let (waited, timeout) =
            ONE_MORE.wait_timeout(started, PATIENCE).unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "the launcher started {peer} and its thread did not come");
        started = waited;
    }
}
