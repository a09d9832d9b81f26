//! A sequence's drafts: how many it proposes, their rows, and which of them became tokens.

use super::{Progress, Sequence};
use crate::kv::BlockPool;
use crate::plan::PlanRow;
use crate::speculation::Speculation;

impl Sequence {
    /// Whether the host must know a token in flight before the next one can be sampled. Biases and banned ids depend on
    /// the number of tokens only. Penalties depend on the tokens, but the model has the last one before the host does.
    /// Which drafts become tokens decides where the next row stands; and where there is something to propose behind a
    /// token in flight (`may_draft`: there is room for it), proposing it saves more than waiting costs.
    pub(crate) fn waits_for_token(&self, may_draft: bool) -> bool {
        let drafts =
            || self.tokens.drafts() > 0 || may_draft && self.wanted_drafts() > 0 && self.tokens.repeats();
        self.in_flight > 0 && (self.sampling.waits_for_output() || drafts())
    }

    /// Drafts worth their rows.
    fn wanted_drafts(&self) -> u32 {
        self.speculation.as_ref().map_or(0, |speculation| speculation.wanted(self.generated()))
    }

    /// Proposes up to `most` drafts behind its last token, for which it is about to get a decode row. Takes at most
    /// `spare` blocks for them. Gives how many there are.
    pub(crate) fn draft(&mut self, most: u32, spare: u32, pool: &mut BlockPool) -> u32 {
        if self.in_flight > 0 || self.progress != Progress::Sampled {
            return 0;
        }
        // The row itself samples a token, and each draft stands for one more.
        let left = self.length_max.saturating_sub(self.len() + 1);
        let room = self.blocks.token_room_with(spare).saturating_sub(self.len());
        let most = self.wanted_drafts().min(most).min(left).min(room);
        let count = self.tokens.propose(most);
        assert!(self.blocks.grow(self.len() + count, pool), "there are enough blocks");
        self.blocks.cover_window(self.len() + count, pool);
        if let Some(speculation) = &mut self.speculation {
            speculation.propose(count);
        }
        count
    }

    /// The row of its `number`-th draft, from 1, which verifies what comes behind it.
    pub(crate) fn draft_row(&mut self, key: u32, number: u32) -> PlanRow {
        let row = self.row(key, 1);
        PlanRow {
            start: row.start + number,
            draw: row.draw.map(|draw| draw + number),
            draft: number,
            first: false,
            ..row
        }
    }

    /// Whether a row stands on tokens alone: its draft, if it has one, and those before it were sampled.
    pub(crate) fn stands(&self, row: &PlanRow) -> bool {
        row.draft <= self.speculation.as_ref().map_or(0, Speculation::accepted)
    }

    /// Appends a sampled token. Whether it was a draft.
    pub(crate) fn push(&mut self, token: u32) -> bool {
        let verified = self.tokens.drafts() > 0;
        let accepted = self.tokens.push(token);
        let generated = self.generated();
        if let Some(speculation) = self.speculation.as_mut().filter(|_| verified) {
            speculation.learn(accepted, generated);
        }
        accepted
    }
}
