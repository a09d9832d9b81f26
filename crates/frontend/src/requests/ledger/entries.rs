//! The entries of a ledger by slot, which slots are free, and how many requests are parked. A request changes its place
//! here and nowhere else:
//!
//! ```text
//! insert ──> Parked <── park ── Submitted
//!               └───── submit ─────^
//!            Parked, Submitted ── close ──> Closed       any of them ── take_done ──> free
//! ```

use super::entry::{Entry, Place, Submission};
use crate::requests::outgoing::later;
use pinion_protocol::RequestId;
use std::collections::VecDeque;
use std::time::Duration;

pub(super) struct Entries {
    slots: Vec<Option<Entry>>,
    free: VecDeque<u16>,
    parked: usize,
}

impl Entries {
    pub(super) fn new(count: usize) -> Entries {
        Entries {
            slots: (0..count).map(|_| None).collect(),
            free: (0..count).filter_map(|slot| u16::try_from(slot).ok()).collect(),
            parked: 0,
        }
    }

    /// Slots in all.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Slots that are free.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Requests that wait for a role.
    pub(super) fn parked(&self) -> usize {
        self.parked
    }

    /// The slot of the next request.
    pub(super) fn next_free(&self) -> Option<u16> {
        self.free.front().copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.slots.iter().flatten()
    }

    /// The request, also after it was closed.
    pub(super) fn get(&self, id: RequestId) -> Option<&Entry> {
        self.slots.get(usize::from(id.slot))?.as_ref().filter(|entry| entry.id == id)
    }

    /// The request, also after it was closed.
    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut Entry> {
        self.slots.get_mut(usize::from(id.slot))?.as_mut().filter(|entry| entry.id == id)
    }

    /// The request if its roles may still speak of it.
    pub(super) fn open(&mut self, id: RequestId) -> Option<&mut Entry> {
        self.get_mut(id).filter(|entry| entry.place != Place::Closed)
    }

    /// Gives the slot of `entry`, which [`Entries::next_free`] named, to it. `place` is where the request is.
    pub(super) fn insert(&mut self, mut entry: Entry, place: Place) {
        entry.place = place;
        let slot = self.free.pop_front();
        assert_eq!(slot, Some(entry.id.slot), "a request has the slot that is free");
        self.parked += usize::from(entry.is_parked());
        let at = usize::from(entry.id.slot);
        self.slots[at] = Some(entry);
    }

    /// Its roles have it.
    pub(super) fn submit(&mut self, id: RequestId, submission: Submission) {
        self.put(id, Place::Submitted(submission));
    }

    /// It waits, under the identity `renewed`, for the successor of a role.
    pub(super) fn park(&mut self, id: RequestId, renewed: RequestId) {
        self.put(id, Place::Parked { opened: false });
        if let Some(entry) = self.get_mut(id) {
            entry.id = renewed;
        }
    }

    /// Whether the detokenizer knows a request that is parked.
    pub(super) fn set_opened(&mut self, id: RequestId, opened: bool) {
        if self.get(id).is_some_and(Entry::is_parked) {
            self.put(id, Place::Parked { opened });
        }
    }

    /// It is given up.
    pub(super) fn close(&mut self, id: RequestId) {
        self.put(id, Place::Closed);
    }

    /// The engine's account of a request came.
    pub(super) fn finished(&mut self, id: RequestId, now_ns: u64) {
        if let Some(submission) = self.submission_mut(id) {
            submission.finished_ns = Some(now_ns);
        }
    }

    /// What has lasted since before a pause of this process began `gap` later.
    pub(super) fn excuse_pause(&mut self, gap: Duration, now_ns: u64) {
        for entry in self.slots.iter_mut().flatten() {
            let Place::Submitted(submission) = &mut entry.place else { continue };
            submission.at_ns = later(submission.at_ns, gap, now_ns);
            if let Some(finished_ns) = &mut submission.finished_ns {
                *finished_ns = later(*finished_ns, gap, now_ns);
            }
        }
    }

    /// The engine that finished a request has died.
    pub(super) fn engine_died(&mut self, id: RequestId) {
        if let Some(submission) = self.submission_mut(id) {
            submission.engine_died = true;
        }
    }

    fn submission_mut(&mut self, id: RequestId) -> Option<&mut Submission> {
        match &mut self.get_mut(id)?.place {
            Place::Submitted(submission) => Some(submission),
            Place::Parked { .. } | Place::Closed => None,
        }
    }

    /// Frees the slot of a request that is done, and returns it.
    pub(super) fn take_done(&mut self, id: RequestId) -> Option<Entry> {
        let slot = self.slots.get_mut(usize::from(id.slot))?;
        let entry = slot.take_if(|entry| entry.id == id && entry.is_done())?;
        self.parked -= usize::from(entry.is_parked());
        self.free.push_back(id.slot);
        Some(entry)
    }

    fn put(&mut self, id: RequestId, place: Place) {
        let Some(entry) = self.get_mut(id) else { return };
        let before = std::mem::replace(&mut entry.place, place);
        let is_parked = |place: &Place| matches!(place, Place::Parked { .. });
        self.parked += usize::from(is_parked(&place));
        self.parked -= usize::from(is_parked(&before));
    }
}
