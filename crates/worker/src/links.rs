//! All of a role's edges, and the slot tables to look requests up in.

use crate::channel::EdgeEnd;
use crate::edge::{Inbox, Outbox};
use pinion_protocol::control::FromRole;
use pinion_protocol::{Peer, RequestId};
use pinion_shm::page::Page;
use pinion_shm::region::Region;
use pinion_shm::slots::{Slot, SlotTable};
use std::net::TcpListener;

/// All of a role's edges.
pub struct Links {
    /// Rings to read, in topology order.
    pub inboxes: Vec<Inbox>,
    /// Rings to write, in topology order.
    pub outboxes: Vec<Outbox>,
    /// The bound listening socket, for frontends, which listens only after `ControlEvent::Open`; for the events role
    /// that of subscribers.
    pub listener: Option<TcpListener>,
    /// For the events role: where replays are asked for, if they can be.
    pub replay_listener: Option<TcpListener>,
    /// For frontends: the status pages of every other process, the launcher's included.
    pub pages: Vec<(Peer, Page)>,
    /// Rings of spans: a role's own, and for frontends those of all roles, each with its track.
    pub spans: Vec<(Peer, u16, Region)>,
    slots: Vec<SlotTable>,
}

impl Links {
    pub(crate) fn empty() -> Links {
        Links {
            inboxes: Vec::new(),
            outboxes: Vec::new(),
            listener: None,
            replay_listener: None,
            pages: Vec::new(),
            spans: Vec::new(),
            slots: Vec::new(),
        }
    }

    /// The outbox to `to`, if the topology has that edge.
    pub fn outbox(&mut self, to: Peer) -> Option<&mut Outbox> {
        self.outboxes.iter_mut().find(|outbox| outbox.to == to)
    }

    /// Whether a record waits for room in a ring: a reader that makes room rings no bell.
    pub fn has_backlog(&self) -> bool {
        self.outboxes.iter().any(|outbox| outbox.backlog_bytes() > 0)
    }

    /// Publishes every outbox.
    pub fn publish(&mut self) {
        for outbox in &mut self.outboxes {
            outbox.publish();
        }
    }

    /// The slot that `id` names; `None` if there is no such frontend or slot. The generation is not checked.
    pub fn slot(&self, id: RequestId) -> Option<Slot<'_>> {
        self.slots.get(usize::from(id.frontend))?.slot(usize::from(id.slot))
    }

    /// Whether `id` is still the request that its slot holds.
    pub fn is_current(&self, id: RequestId) -> bool {
        self.slot(id).is_some_and(|slot| {
            let state = slot.state();
            state.live && state.generation == id.generation
        })
    }

    /// Whether `id` can have been given out: there is such a slot, and it is not to have that generation yet. What
    /// names another request is no late record but a corrupt one.
    pub fn is_possible(&self, id: RequestId) -> bool {
        self.slot(id).is_some_and(|slot| slot.state().has_reached(id.generation))
    }

    /// The slot table of frontend `index`.
    pub fn slot_table(&self, index: u16) -> Option<&SlotTable> {
        self.slots.get(usize::from(index))
    }

    /// Adds a slot table: those of the frontends come in the order of their indices.
    pub(crate) fn add_slots(&mut self, table: SlotTable) {
        self.slots.push(table);
    }

    /// Reads from a fresh end in place of the old one, which is returned. `None`: there is no such edge.
    pub(crate) fn replace_inbox(&mut self, inbox: Inbox) -> Option<Inbox> {
        let place = self.inboxes.iter_mut().find(|old| old.from == inbox.from)?;
        Some(std::mem::replace(place, inbox))
    }

    /// Writes to a fresh end in place of the old one. False: there is no such edge.
    pub(crate) fn replace_outbox(&mut self, outbox: Outbox) -> bool {
        let Some(place) = self.outbox(outbox.to) else { return false };
        *place = outbox;
        true
    }

    /// Looks requests up in a fresh slot table of frontend `index`. False: there is no such frontend.
    pub(crate) fn replace_slots(&mut self, index: u16, table: SlotTable) -> bool {
        let Some(place) = self.slots.get_mut(usize::from(index)) else { return false };
        *place = table;
        true
    }

    /// Puts an edge on a channel, if `end` is one.
    pub(crate) fn use_channel(&mut self, end: EdgeEnd) {
        match end {
            EdgeEnd::Read { from, receiver } => {
                if let Some(inbox) = self.inboxes.iter_mut().find(|inbox| inbox.from == from) {
                    inbox.use_channel(receiver);
                }
            }
            EdgeEnd::Write { to, sender } => {
                if let Some(index) = self.outboxes.iter().position(|outbox| outbox.to == to) {
                    let outbox = self.outboxes.remove(index).use_channel(sender);
                    self.outboxes.insert(index, outbox);
                }
            }
            EdgeEnd::Unchanged => {}
        }
    }

    /// Edges that were found corrupt and that have not been replaced yet. One to an optional role is reported like all
    /// others, but the role that writes it is as well as before.
    pub(crate) fn corrupt_count(&self) -> usize {
        let needed = self.outboxes.iter().filter(|outbox| !outbox.to.role.is_optional());
        self.inboxes.iter().filter(|inbox| inbox.is_corrupt()).count()
            + needed.filter(|outbox| outbox.fault().is_some()).count()
    }

    /// The report of a corrupt edge that the launcher does not know yet.
    pub(crate) fn next_report(&mut self) -> Option<FromRole> {
        let inbox = self.inboxes.iter_mut().find_map(Inbox::report);
        inbox.or_else(|| self.outboxes.iter_mut().find_map(Outbox::report))
    }
}
