//! The engine's two threads: one compiles, one follows texts token by token. The loop only posts to them and looks.

use crate::constraint::Constraint;
use crate::limits::{CACHED_MAX, STACK_BYTES};
use crate::matcher::Matcher;
use crate::vocabulary::{Vocabulary, Words};
use pinion_protocol::{Fault, FaultCode, Grammar, Reasoning, RequestId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::Builder;

/// A grammar on its way to the thread that compiles.
struct Order {
    id: RequestId,
    grammar: Grammar,
    reasoning: Reasoning,
    continues: bool,
    resumed: Vec<u32>,
}

/// What the other thread is told.
enum Step {
    Advance(Arc<Constraint>, u32),
    /// The request has ended; its matcher's memory is freed on a thread that no request waits for.
    Retire(Arc<Constraint>),
}

/// A compiled grammar, or why there is none.
pub type Compiled = (RequestId, Result<Arc<Constraint>, Fault>);

/// The engine's side of both threads. They end when it is dropped.
pub struct Grammars {
    orders: SyncSender<Order>,
    compiled: Receiver<Compiled>,
    steps: SyncSender<Step>,
}

impl Grammars {
    /// Starts the threads. `words` runs in one of them, so that the start of the engine does not wait for it. Queues
    /// have room for `requests_max` requests.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(
        words: impl FnOnce() -> Result<Words, String> + Send + 'static,
        requests_max: usize,
    ) -> std::io::Result<Grammars> {
        let (orders, ordered) = sync_channel(requests_max);
        let (done, compiled) = sync_channel(requests_max);
        // Each request has one token and one end outstanding, at most.
        let (steps, stepped) = sync_channel(2 * requests_max);
        let compile = move || {
            let vocabulary = words().and_then(Vocabulary::new);
            if let Err(reason) = &vocabulary {
                tracing::warn!(%reason, "grammars cannot be used");
            }
            compile_all(&vocabulary, &ordered, &done);
        };
        Builder::new().name("grammar-compile".to_owned()).stack_size(STACK_BYTES).spawn(compile)?;
        let follow = move || follow_all(&stepped);
        Builder::new().name("grammar-mask".to_owned()).stack_size(STACK_BYTES).spawn(follow)?;
        Ok(Grammars { orders, compiled, steps })
    }

    /// Orders a grammar, for a text that may begin with reasoning, may go on with a prompt's, and does begin with the
    /// tokens `resumed`. The answer comes from [`Grammars::next_compiled`]. False: there is no room now.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn order(
        &self,
        id: RequestId,
        (grammar, reasoning, continues): (Grammar, Reasoning, bool),
        resumed: Vec<u32>,
    ) -> Result<bool, Fault> {
        match self.orders.try_send(Order { id, grammar, reasoning, continues, resumed }) {
            Ok(()) => Ok(true),
            Err(TrySendError::Full(_)) => Ok(false),
            Err(TrySendError::Disconnected(_)) => {
                Err(Fault::new(FaultCode::Internal, "the thread that compiles grammars is gone"))
            }
        }
    }

    /// The next grammar that is ready. Never waits.
    pub fn next_compiled(&self) -> Option<Compiled> {
        self.compiled.try_recv().ok()
    }

    /// The text goes on with `token`. Never waits.
    pub fn advance(&self, constraint: &Arc<Constraint>, token: u32) {
        constraint.ask();
        if self.steps.try_send(Step::Advance(constraint.clone(), token)).is_err() {
            constraint.fail();
        }
    }

    /// The request has ended. Never waits.
    pub fn release(&self, constraint: Arc<Constraint>) {
        // If there is no room it is freed with its last handle, which only comes later.
        let _ = self.steps.try_send(Step::Retire(constraint));
    }
}

fn compile_all(
    vocabulary: &Result<Arc<Vocabulary>, String>,
    orders: &Receiver<Order>,
    done: &SyncSender<Compiled>,
) {
    let mut known: VecDeque<(Grammar, Matcher)> = VecDeque::with_capacity(CACHED_MAX);
    while let Ok(Order { id, grammar, reasoning, continues, resumed }) = orders.recv() {
        let name = grammar.field.name();
        let matcher = match known.iter().find(|(known, _)| *known == grammar) {
            Some((_, matcher)) => Ok(matcher.fork()),
            None => vocabulary.as_ref().map_err(Clone::clone).and_then(|vocabulary| {
                let matcher = vocabulary.compile(&grammar)?;
                if known.len() == CACHED_MAX {
                    known.pop_front();
                }
                known.push_back((grammar, matcher.fork()));
                Ok(matcher)
            }),
        };
        let matcher = matcher.map(|matcher| matcher.behind(reasoning).continuing(continues));
        let constraint = matcher.and_then(|matcher| Constraint::new(matcher, &resumed)).map(Arc::new);
        let answer = constraint.map_err(|reason| Fault::field(name, format!("{name}: {reason}")));
        if done.send((id, answer)).is_err() {
            return;
        }
    }
}

fn follow_all(steps: &Receiver<Step>) {
    let mut scratch = Vec::new();
    while let Ok(step) = steps.recv() {
        match step {
            Step::Advance(constraint, token) => {
                if let Err(reason) = constraint.advance(token, &mut scratch) {
                    tracing::warn!(%reason, "a text cannot follow its grammar any further");
                }
            }
            Step::Retire(constraint) => constraint.retire(),
        }
    }
}
