//! Where the launcher starts roles in a simulation: each waits here until the simulation runs it, over the socket that
//! the launcher gave it.

use pinion_launcher::{Host, RoleEnd};
use pinion_protocol::Peer;
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// A role that was started and is not attached yet.
pub(crate) struct Started {
    pub(crate) peer: Peer,
    pub(crate) socket: OwnedFd,
    pub(crate) end: RoleEnd,
}

/// The roles that were started and not taken.
#[derive(Clone, Default)]
pub(crate) struct Places(Rc<RefCell<Vec<Started>>>);

impl Places {
    /// What a launcher starts roles with.
    pub(crate) fn host(&self) -> Host {
        let places = self.clone();
        Host::Caller(Rc::new(move |peer, socket, end| {
            places.0.borrow_mut().push(Started { peer, socket, end });
        }))
    }

    /// The role `peer`, which the launcher has just started.
    pub(crate) fn take(&self, peer: Peer) -> Started {
        let mut started = self.0.borrow_mut();
        // Of a role that was started again before it was taken, the last.
        let at = started.iter().rposition(|role| role.peer == peer);
        started.swap_remove(at.unwrap_or_else(|| panic!("the launcher says that it started {peer}")))
    }
}
