//! Penalties, biases and banned ids as changes of single logits, which the sampler kernel makes before it draws.
//!
//! What [`Shaper`](crate::shaping) does in walks over the row's tokens comes here as one entry for each id, so that the
//! kernel can make all of them at once. Nothing is kept from step to step. A row that stands on a token which the step
//! before draws lacks that one; the kernel, which finds it in the lane's place, adds it.

use crate::Shaping;
use pinion_cuda::{CHANGE_BYTES, LogitChange, RowChanges};

/// The changes of a step's rows.
#[derive(Debug)]
pub(crate) struct Changes {
    all: Vec<Entry>,
    /// Most changes of a step.
    capacity: usize,
    /// Where an id's entry is in `all`, from 1; all 0 between two rows.
    places: Vec<u32>,
}

#[derive(Debug, Default)]
struct Entry {
    change: LogitChange,
    is_biased: bool,
}

impl Changes {
    /// With room for `capacity` changes a step.
    pub(crate) fn new(capacity: usize, vocab: u32) -> Changes {
        Changes { all: Vec::with_capacity(capacity), capacity, places: vec![0; vocab as usize] }
    }

    /// Begins a step.
    pub(crate) fn clear(&mut self) {
        self.all.clear();
    }

    /// Adds a row, which may stand on a future token. `None` if the kernel cannot make its changes: there is no room
    /// for them, or some have an order.
    pub(crate) fn add(&mut self, shaping: &Shaping<'_>, is_ahead: bool) -> Option<RowChanges> {
        let begin = self.all.len();
        let added = self.add_all(shaping);
        for entry in &self.all[begin..] {
            self.places[entry.change.id as usize] = 0;
        }
        if added.is_none() {
            self.all.truncate(begin);
        }
        added.map(|()| RowChanges {
            begin: begin as u32,
            count: (self.all.len() - begin) as u32,
            repetition_penalty: shaping.repetition_penalty,
            frequency_penalty: shaping.frequency_penalty,
            presence_penalty: shaping.presence_penalty,
            recalls_last: is_ahead && shaping.reads_output(),
        })
    }

    fn add_all(&mut self, shaping: &Shaping<'_>) -> Option<()> {
        if shaping.repetition_penalty != 1.0 {
            for &id in shaping.prompt.iter().chain(shaping.output) {
                self.change(id, |entry| entry.change.is_recalled = true)?;
            }
        }
        if shaping.frequency_penalty != 0.0 || shaping.presence_penalty != 0.0 {
            for &id in shaping.output {
                self.change(id, |entry| entry.change.count += 1)?;
            }
        }
        for &(id, bias) in shaping.bias {
            let mut is_second = false;
            self.change(id, |entry| {
                is_second = std::mem::replace(&mut entry.is_biased, true);
                entry.change.bias = bias;
            })?;
            if is_second {
                return None;
            }
        }
        for &id in shaping.banned_ids.iter().chain(shaping.banned_ends) {
            self.change(id, |entry| entry.change.is_banned = true)?;
        }
        Some(())
    }

    /// Changes the entry of `id`, made if there is none. Ids outside the vocabulary are skipped. `None` without room.
    fn change(&mut self, id: u32, change: impl FnOnce(&mut Entry)) -> Option<()> {
        let Some(place) = self.places.get_mut(id as usize) else { return Some(()) };
        if *place == 0 {
            if self.all.len() == self.capacity {
                return None;
            }
            let entry = Entry { change: LogitChange { id, ..LogitChange::default() }, is_biased: false };
            self.all.push(entry);
            *place = self.all.len() as u32;
        }
        change(&mut self.all[*place as usize - 1]);
        Some(())
    }

    /// Bytes that all of them take.
    pub(crate) fn bytes(&self) -> usize {
        self.all.len() * CHANGE_BYTES
    }

    /// Writes all of them; gives how many bytes they take.
    pub(crate) fn write(&self, bytes: &mut [u8]) -> usize {
        for (entry, to) in self.all.iter().zip(bytes.chunks_exact_mut(CHANGE_BYTES)) {
            entry.change.write(to);
        }
        self.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_entry_whatever_changes_it() {
        let mut changes = Changes::new(8, 10);
        let shaping = Shaping {
            prompt: &[3, 4, 3, 99],
            output: &[4, 4, 5],
            repetition_penalty: 1.5,
            frequency_penalty: 0.5,
            presence_penalty: 0.25,
            bias: &[(4, 2.0), (7, -1.0)],
            banned_ids: &[5, 8],
            banned_ends: &[8, 5],
            mask: None,
        };
        for begin in [0, 5] {
            let row = changes.add(&shaping, false);
            if begin == 0 {
                assert_eq!(row.map(|row| (row.begin, row.count)), Some((0, 5)));
            } else {
                assert_eq!(row, None, "eight have room, ten would be needed");
            }
        }
        assert_eq!(changes.all.len(), 5, "what did not fit is not there");
        let all: Vec<LogitChange> = changes.all.iter().map(|entry| entry.change).collect();
        let change = |id| LogitChange { id, ..LogitChange::default() };
        let recalled = |id, count| LogitChange { is_recalled: true, count, ..change(id) };
        assert_eq!(
            all,
            [
                recalled(3, 0),
                LogitChange { bias: 2.0, ..recalled(4, 2) },
                LogitChange { is_banned: true, ..recalled(5, 1) },
                LogitChange { bias: -1.0, ..change(7) },
                LogitChange { is_banned: true, ..change(8) },
            ]
        );
        assert!(changes.places.iter().all(|place| *place == 0));
        // Two biases of one id are added one after the other, with a rounding between them.
        let twice = Shaping { bias: &[(2, 1.0), (2, 1e-9)], ..Shaping::OFF };
        assert_eq!(changes.add(&twice, false), None);
        changes.clear();
        assert_eq!(
            changes.add(&Shaping::OFF, true).map(|row| (row.count, row.recalls_last)),
            Some((0, false))
        );
        let penalised = Shaping { presence_penalty: 0.5, ..Shaping::OFF };
        for is_ahead in [false, true] {
            let row = changes.add(&penalised, is_ahead);
            assert_eq!(row.map(|row| (row.count, row.recalls_last)), Some((0, is_ahead)));
        }
        assert!(changes.places.iter().all(|place| *place == 0));
    }
}
