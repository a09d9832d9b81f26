//! A role's connection to its launcher: what the role reports, and what the launcher said, in order.

use crate::attach::{AttachSet, receive_set};
use crate::channel::EdgeEnd;
use crate::control::RoleEnd;
use crate::edge::Inbox;
use crate::event::ControlEvent;
use crate::start_error::StartError;
use pinion_os::fdpass;
use pinion_protocol::Peer;
use pinion_protocol::control::{FromRole, ToRole};
use pinion_protocol::status::Gauge;
use pinion_shm::page::Page;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// How long a role waits for the ends of its channels before it gives up.
const EDGE_TIMEOUT: Duration = Duration::from_secs(10);

/// See the module's head. The launcher counts its messages on the role's status page, so that a look costs one load.
pub(crate) struct LauncherLink {
    /// Descriptors come over it.
    socket: OwnedFd,
    end: RoleEnd,
    /// The launcher's count at the last look.
    seen: u64,
    events: VecDeque<ControlEvent>,
}

impl LauncherLink {
    /// `status` is the role's page. What the launcher has counted on it so far is not news.
    pub(crate) fn new(socket: OwnedFd, end: RoleEnd, status: &Page) -> LauncherLink {
        let seen = status.get(Gauge::ControlSequence as usize);
        LauncherLink { socket, end, seen, events: VecDeque::new() }
    }

    /// Reports to the launcher.
    pub(crate) fn send(&self, message: &FromRole) {
        self.end.send(message);
    }

    /// Wakes the launcher, which otherwise sees messages at its next look.
    pub(crate) fn wake(&self) -> io::Result<()> {
        fdpass::send(self.socket.as_fd(), &[1], &[])
    }

    /// Whether the launcher said something that the role's loop has not seen.
    pub(crate) fn has_news(&self, status: &Page) -> bool {
        status.get(Gauge::ControlSequence as usize) != self.seen || !self.events.is_empty()
    }

    /// The launcher's count of messages, if it has changed since the last call.
    pub(crate) fn new_count(&mut self, status: &Page) -> Option<u64> {
        let count = status.get(Gauge::ControlSequence as usize);
        (std::mem::replace(&mut self.seen, count) != count).then_some(count)
    }

    /// The next message, if one waits.
    pub(crate) fn next_message(&self) -> io::Result<Option<ToRole>> {
        self.end.next()
    }

    /// The set of descriptors that a message announced.
    pub(crate) fn next_set(&self) -> Result<AttachSet, StartError> {
        receive_set(self.socket.as_fd()).map_err(|error| error.unwrap_or(StartError::Orphan))
    }

    /// The next end of a data edge; `None` if edges are rings.
    pub(crate) fn next_edge(&self) -> Result<Option<EdgeEnd>, StartError> {
        self.end.edge(EDGE_TIMEOUT).map_err(|e| StartError::attach("channel", e))
    }

    /// Adds an event for the role's loop.
    pub(crate) fn push(&mut self, event: ControlEvent) {
        self.events.push_back(event);
    }

    /// The same, ahead of all others.
    pub(crate) fn push_first(&mut self, event: ControlEvent) {
        self.events.push_front(event);
    }

    /// The inbox from `peer` whose replacement waits to be told, ahead of its turn.
    pub(crate) fn take_replaced_inbox(&mut self, peer: Peer) -> Option<Inbox> {
        let is_meant =
            |event: &ControlEvent| matches!(event, ControlEvent::InboxReplaced { from, .. } if *from == peer);
        let at = self.events.iter().position(is_meant)?;
        match self.events.remove(at) {
            Some(ControlEvent::InboxReplaced { old, .. }) => Some(old),
            _ => None,
        }
    }

    /// The next event for the role's loop.
    pub(crate) fn next_event(&mut self) -> Option<ControlEvent> {
        self.events.pop_front()
    }
}
