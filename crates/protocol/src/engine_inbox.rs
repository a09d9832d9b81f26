//! What an engine receives: admitted requests, from tokenizers.

use crate::claim::Claim;
use crate::ids::RequestId;
use crate::sampling::{Sampling, SamplingRecord};
use crate::wire::{Cursor, Malformed, put, put_ids};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Record kinds of this inbox.
pub mod kind {
    /// [`super::Admit`].
    pub const ADMIT: u16 = 1;
}

/// A request whose prompt is tokens now. The tokenizer has checked that it fits the context and that
/// every id is in the vocabulary; the engine checks again, and checks the ids in `sampling` too.
#[derive(Clone, Debug, PartialEq)]
pub struct Admit {
    /// Whose it is.
    pub id: RequestId,
    /// Its claim on the engine.
    pub claim: Claim,
    /// How to draw; `max_tokens` is present and fits the context.
    pub sampling: Sampling,
    /// Prompt ids, then the ids already generated before a restart.
    pub ids: Vec<u32>,
    /// How many of `ids` are the prompt.
    pub prompt_tokens: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    id: RequestId,
    claim: Claim,
    /// Its lists follow this header.
    sampling: SamplingRecord,
    id_count: u32,
    prompt_tokens: u32,
}

impl Admit {
    /// Replaces `out` by the record's payload; its kind is [`kind::ADMIT`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        let header = Header {
            id: self.id,
            claim: self.claim,
            sampling: (&self.sampling).into(),
            id_count: self.ids.len() as u32,
            prompt_tokens: self.prompt_tokens,
        };
        put(out, &header);
        self.sampling.put_lists(out);
        put_ids(out, &self.ids);
    }

    /// Checks and copies a record. Errors: an unknown kind, lengths that do not add up, no prompt at all.
    pub fn decode(record_kind: u16, payload: &[u8]) -> Result<Admit, Malformed> {
        if record_kind != kind::ADMIT {
            return Err(Malformed("engine record kind"));
        }
        let mut cursor = Cursor(payload);
        let header: Header = cursor.take("admit header")?;
        let sampling = header.sampling.decode(&mut cursor)?;
        let ids = cursor.ids(header.id_count as usize, "admitted ids")?;
        cursor.end("admit tail")?;
        if header.prompt_tokens == 0 || header.prompt_tokens > header.id_count {
            return Err(Malformed("admitted prompt length"));
        }
        let claim = header.claim.checked()?;
        Ok(Admit { id: header.id, claim, sampling, ids, prompt_tokens: header.prompt_tokens })
    }
}
