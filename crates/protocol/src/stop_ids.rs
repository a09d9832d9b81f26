//! The tokens that end a model's texts.

use crate::limits::MODEL_STOP_IDS_MAX;
use serde::{Deserialize, Serialize};

/// Token ids of which each one ends a text: a model has several where a chat ends with another token than a document.
/// No id is in it twice, and the first is the one that stands for the end where only one can.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u32>", into = "Vec<u32>")]
pub struct StopIds {
    ids: [u32; MODEL_STOP_IDS_MAX],
    count: usize,
}

/// More different ids than a model may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyStopIds;

impl std::fmt::Display for TooManyStopIds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a model may have at most {MODEL_STOP_IDS_MAX} end-of-sequence ids")
    }
}

impl std::error::Error for TooManyStopIds {}

impl StopIds {
    /// No token ends a text.
    pub const NONE: StopIds = StopIds { ids: [0; MODEL_STOP_IDS_MAX], count: 0 };

    /// This one ends it.
    pub const fn one(id: u32) -> StopIds {
        let mut set = StopIds::NONE;
        set.ids[0] = id;
        set.count = 1;
        set
    }

    /// The set of these ids, in this order.
    ///
    /// # Errors
    /// There are more than [`MODEL_STOP_IDS_MAX`] different ones.
    pub fn of(ids: impl IntoIterator<Item = u32>) -> Result<StopIds, TooManyStopIds> {
        let mut set = StopIds::NONE;
        for id in ids {
            set.insert(id)?;
        }
        Ok(set)
    }

    fn insert(&mut self, id: u32) -> Result<(), TooManyStopIds> {
        if self.contains(id) {
            return Ok(());
        }
        *self.ids.get_mut(self.count).ok_or(TooManyStopIds)? = id;
        self.count += 1;
        Ok(())
    }

    /// Whether `id` ends a text.
    pub fn contains(&self, id: u32) -> bool {
        self.as_slice().contains(&id)
    }

    /// All of them.
    pub fn as_slice(&self) -> &[u32] {
        &self.ids[..self.count]
    }

    /// The one that stands for the end where only one can.
    pub fn first(&self) -> Option<u32> {
        self.as_slice().first().copied()
    }
}

impl Default for StopIds {
    fn default() -> StopIds {
        StopIds::NONE
    }
}

impl From<StopIds> for Vec<u32> {
    fn from(set: StopIds) -> Vec<u32> {
        set.as_slice().to_vec()
    }
}

impl TryFrom<Vec<u32>> for StopIds {
    type Error = TooManyStopIds;

    fn try_from(ids: Vec<u32>) -> Result<StopIds, TooManyStopIds> {
        StopIds::of(ids)
    }
}

impl std::fmt::Debug for StopIds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.as_slice()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_count_once_and_keep_their_order() {
        let set = StopIds::of([7, 3, 7, 0]).unwrap();
        assert_eq!((set.as_slice(), set.first()), (&[7, 3, 0][..], Some(7)));
        assert!(set.contains(0) && !set.contains(1));
        assert!(!StopIds::NONE.contains(0), "room that is not used holds no id");
        assert_eq!(StopIds::of([5]), Ok(StopIds::one(5)));
    }

    #[test]
    fn the_set_is_bounded() {
        let most = MODEL_STOP_IDS_MAX as u32;
        assert!(StopIds::of(0..most).is_ok());
        assert_eq!(StopIds::of(0..=most), Err(TooManyStopIds));
        assert!(StopIds::of((0..most).chain(0..most)).is_ok());
    }
}
