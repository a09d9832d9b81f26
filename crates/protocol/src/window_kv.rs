//! How much KV layers that see a window keep: docs/design/0020-window-kv.md.

use crate::limits::DRAFT_STEP_ROWS_MAX;
use serde::{Deserialize, Serialize};

/// What layers with a window keep, where they do not keep whole contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowKv {
    /// Positions that a query of these layers sees, its own included.
    pub tokens: u32,
    /// Window blocks in the pool; each holds what these layers know of one block's tokens.
    pub blocks: u32,
}

/// Most window blocks of `block_size` tokens that a sequence holds between two steps, and for a step of one row with
/// its drafts: for the window of `window` tokens, for the position before it, which is seen when the last token is
/// computed again, and for the positions that are written.
pub fn window_blocks_of_sequence(window: u32, block_size: u32) -> u32 {
    window.saturating_add(DRAFT_STEP_ROWS_MAX).div_ceil(block_size).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blocks_of_a_sequence_hold_the_window_wherever_it_begins() {
        for block_size in [1, 3, 16, 64] {
            for window in [1, 2, 15, 16, 17, 512, 1024] {
                let most = (0..4 * block_size + window).map(|computed| {
                    let first = (computed as i64 - i64::from(window)).max(0) as u32;
                    (computed + DRAFT_STEP_ROWS_MAX).div_ceil(block_size) - first / block_size
                });
                let held = most.max().expect("there are some");
                assert!(
                    held <= window_blocks_of_sequence(window, block_size),
                    "{window} {block_size}: {held}"
                );
            }
        }
        assert_eq!(window_blocks_of_sequence(512, 16), 34);
        assert_eq!(window_blocks_of_sequence(u32::MAX, 1), u32::MAX);
    }
}
