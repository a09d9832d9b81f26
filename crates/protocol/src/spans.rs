//! The names of what processes do: one list for the trace (`/debug/trace`) and for NVTX ranges, so that both tools show
//! the same words. A request's own parts are in [`crate::names::Part`]; here they only get a number.

use crate::ids::{RequestId, Role};
use crate::names::Part;
use std::ffi::CStr;

/// Spans that a process's ring keeps; a power of two. With 64 bytes each the ring has 1 MiB.
pub const SPANS_KEPT: usize = 16_384;

/// Something that a process spends time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanName {
    /// Engine: one turn of the loop that had work.
    EngineStep,
    /// Engine: choosing the step's rows.
    EnginePlan,
    /// Model: a step that computes prompt tokens, decodes beside them included.
    Prefill,
    /// Model: a step of decodes only.
    Decode,
    /// Model: a step of decodes only, as one replay of a graph captured before ready.
    GraphReplay,
    /// Engine: applying the results and sending what came of them.
    EngineCommit,
    /// Engine: the last part of that, the sending: into the rings of other processes, which it wakes.
    EnginePublish,
    /// Tokenizer: one request.
    Tokenize,
    /// Detokenizer: one step's record.
    Detokenize,
    /// Frontend: from a complete body to the submitted request.
    FrontendAdmit,
    /// Frontend: records of other roles taken in one turn.
    FrontendRecords,
    /// Frontend: one write to a socket.
    FrontendWrite,
    /// Any loop: a turn that took long (`--pause-warn-ms`).
    Pause,
    /// A part of a request's life, written by its frontend when the request has ended.
    Request(Part),
}

/// Number of the first part.
const PARTS: u32 = 64;

impl SpanName {
    /// All but the parts, in the order of their numbers from 1.
    pub const OWN: [SpanName; 13] = [
        SpanName::EngineStep,
        SpanName::EnginePlan,
        SpanName::Prefill,
        SpanName::Decode,
        SpanName::GraphReplay,
        SpanName::EngineCommit,
        SpanName::EnginePublish,
        SpanName::Tokenize,
        SpanName::Detokenize,
        SpanName::FrontendAdmit,
        SpanName::FrontendRecords,
        SpanName::FrontendWrite,
        SpanName::Pause,
    ];

    /// Its number in a span.
    pub fn word(self) -> u32 {
        match self {
            SpanName::Request(part) => PARTS + part as u32,
            own => SpanName::OWN.iter().position(|name| *name == own).map_or(0, |index| index as u32 + 1),
        }
    }

    /// The name with this number.
    pub fn from_word(word: u32) -> Option<SpanName> {
        if let Some(part) = word.checked_sub(PARTS) {
            return Part::ALL.get(part as usize).map(|part| SpanName::Request(*part));
        }
        SpanName::OWN.get((word as usize).checked_sub(1)?).copied()
    }

    /// As tools show it. Parts of requests are no ranges of a thread and have none; that a turn was a pause is only
    /// known when it is over, so there NVTX gets a mark and no range.
    pub fn range(self) -> Option<&'static CStr> {
        Some(match self {
            SpanName::EngineStep => c"pinion.engine.step",
            SpanName::EnginePlan => c"pinion.engine.plan",
            SpanName::Prefill => c"pinion.prefill",
            SpanName::Decode => c"pinion.decode",
            SpanName::GraphReplay => c"pinion.decode.graph_replay",
            SpanName::EngineCommit => c"pinion.engine.commit",
            SpanName::EnginePublish => c"pinion.engine.publish",
            SpanName::Tokenize => c"pinion.tokenize",
            SpanName::Detokenize => c"pinion.detokenize",
            SpanName::FrontendAdmit => c"pinion.frontend.admit",
            SpanName::FrontendRecords => c"pinion.frontend.records",
            SpanName::FrontendWrite => c"pinion.frontend.write",
            SpanName::Pause => c"pinion.pause",
            SpanName::Request(_) => return None,
        })
    }

    /// The name as text; a part has its own.
    pub fn name(self) -> &'static str {
        match self {
            SpanName::Request(part) => part.name(),
            own => own.range().and_then(|name| name.to_str().ok()).unwrap_or_default(),
        }
    }

    /// What its two arguments mean; empty where there is none.
    pub fn arguments(self) -> [&'static str; 2] {
        match self {
            SpanName::EngineStep => ["step", "rows"],
            SpanName::EnginePlan => ["running", "waiting"],
            SpanName::Prefill | SpanName::Decode | SpanName::GraphReplay => ["rows", "prefill_tokens"],
            SpanName::EngineCommit | SpanName::EnginePublish => ["rows", "ended"],
            SpanName::Tokenize => ["request", "prompt_tokens"],
            SpanName::Detokenize => ["events", "deltas"],
            SpanName::FrontendAdmit => ["request", "body_bytes"],
            SpanName::FrontendRecords => ["records", ""],
            SpanName::FrontendWrite => ["bytes", ""],
            SpanName::Pause => ["paused_us", ""],
            SpanName::Request(_) => ["request", "detail"],
        }
    }
}

/// Threads of a role that write spans, each into a ring of its own: the loop, and the engine's model.
pub fn track_count(role: Role) -> u16 {
    match role {
        Role::Engine => 2,
        Role::Frontend | Role::Tokenizer | Role::Detokenizer => 1,
        Role::Launcher | Role::Events => 0,
    }
}

/// What a track shows, as tools name its thread.
pub fn track_name(track: u16) -> &'static str {
    if track == 0 { "loop" } else { "model" }
}

/// A request as a span's argument.
pub fn request_word(id: RequestId) -> u64 {
    u64::from(id.frontend) << 48 | u64::from(id.slot) << 32 | u64::from(id.generation)
}

/// The request of [`request_word`].
pub fn request_of(word: u64) -> RequestId {
    RequestId { frontend: (word >> 48) as u16, slot: (word >> 32) as u16, generation: word as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_one_to_one() {
        let parts = Part::ALL.map(SpanName::Request);
        let mut names = std::collections::BTreeSet::new();
        for name in SpanName::OWN.into_iter().chain(parts) {
            assert_eq!(SpanName::from_word(name.word()), Some(name));
            assert!(!name.name().is_empty() && names.insert(name.name()), "{name:?}");
        }
        for word in [0, SpanName::OWN.len() as u32 + 1, 63, 64 + Part::ALL.len() as u32, u32::MAX] {
            assert_eq!(SpanName::from_word(word), None, "{word}");
        }
        let id = RequestId { frontend: 3, slot: 70, generation: u32::MAX };
        assert_eq!(request_of(request_word(id)), id);
    }
}
