//! Requests with a grammar: a vocabulary that shows its bytes, and the threads over it.

use super::{EOS, VOCABULARY};
use pinion_engine::Engine;
use pinion_grammar::{Grammars, Words};
use pinion_protocol::{Grammar, GrammarField, GrammarKind, Sampling, StopIds};
use pinion_scheduler::Limits;
use std::sync::mpsc::Receiver;

/// The ids below 256 are bytes, but for the end of sequence; some of the others are pieces, the rest shows nothing.
pub fn words() -> Words {
    let mut bytes = vec![Vec::new(); VOCABULARY as usize];
    (0..=255).for_each(|byte| bytes[usize::from(byte)].push(byte));
    bytes[EOS as usize].clear();
    for (n, piece) in ["ab", "ba", "abc", "{\"", "\":", "12", "true", "yes", "no", "é"].iter().enumerate() {
        bytes[300 + 70 * n] = piece.as_bytes().to_vec();
    }
    Words { bytes, stop_ids: StopIds::one(EOS), marks: None, drops_first_space: false }
}

/// The same from a thread that compiles nothing before `go` says so or is dropped.
pub fn with_late_grammars(engine: Engine, limits: &Limits, go: Receiver<()>) -> Engine {
    let late = move || {
        let _ = go.recv();
        Ok(words())
    };
    engine.with_grammars(Grammars::start(late, limits.max_requests as usize).expect("threads"))
}

/// The engine with the threads.
pub fn with_grammars(engine: Engine, limits: &Limits) -> Engine {
    engine.with_grammars(Grammars::start(|| Ok(words()), limits.max_requests as usize).expect("threads"))
}

/// A request of at most 24 tokens that follows an expression.
pub fn constrained(expression: &str) -> Sampling {
    let grammar =
        Grammar { kind: GrammarKind::Regex, field: GrammarField::GuidedRegex, text: expression.into() };
    Sampling { grammar: Some(grammar), max_tokens: Some(24), ..Sampling::default() }
}
