//! Requests whose text must follow a grammar: those that wait for it to be compiled, and the masks of those that run.
//!
//! Both threads are in `pinion_grammar`; here is what the loop posts to them and finds there. A request reaches the
//! scheduler only with its grammar compiled and its first mask computed. From then on every committed token is posted,
//! and the mask of the next is computed while the model runs the step that needs it. Matchers follow committed tokens
//! and nothing else, so a preemption does not touch them; and no step is launched ahead of a token that a grammar waits
//! for.

use pinion_grammar::{Constraint, Grammars, Mask};
use pinion_model::{MaskState, TokenMask};
use pinion_protocol::engine_inbox::Admit;
use pinion_protocol::{Fault, FaultCode, RequestId, Sampling};
use pinion_scheduler::Event;
use std::collections::HashMap;
use std::sync::Arc;

/// The mask of one request, as the model reads it.
#[derive(Debug)]
struct RowMask(Arc<Constraint>);

impl TokenMask for RowMask {
    fn read(&self, index: u64, bits: &mut Vec<u32>) -> MaskState {
        match self.0.read(index, bits) {
            Mask::Ready => MaskState::Ready,
            Mask::Complete => MaskState::Complete,
            Mask::Late => MaskState::Late,
            Mask::Failed => MaskState::Failed,
        }
    }
}

/// A running request's grammar, twice: for its thread, and as the model takes it.
struct Followed {
    constraint: Arc<Constraint>,
    mask: Arc<dyn TokenMask>,
}

/// A request whose grammar is not there yet.
struct Waiting {
    admit: Admit,
    /// Its grammar is with the thread.
    ordered: bool,
}

/// See the module's head.
pub(crate) struct Constraints {
    threads: Option<Grammars>,
    /// Requests whose grammars are being compiled.
    waiting: Vec<Waiting>,
    waiting_max: usize,
    running: HashMap<RequestId, Followed>,
}

impl Constraints {
    pub(crate) fn new(requests_max: usize) -> Constraints {
        Constraints {
            threads: None,
            waiting: Vec::new(),
            waiting_max: requests_max,
            running: HashMap::with_capacity(requests_max),
        }
    }

    pub(crate) fn set_threads(&mut self, threads: Grammars) {
        self.threads = Some(threads);
    }

    /// Whether the request is here, with its grammar ready or not.
    pub(crate) fn has(&self, id: RequestId) -> bool {
        self.running.contains_key(&id) || self.waiting.iter().any(|waiting| waiting.admit.id == id)
    }

    /// Requests that wait for their grammars.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a request waits for its grammar.
    pub(crate) fn compiles(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes a request whose grammar is to be compiled; it comes back from [`Constraints::next_compiled`].
    pub(crate) fn order(&mut self, admit: Admit) -> Result<(), Fault> {
        if self.threads.is_none() {
            let message = "this engine was started without a thread for grammars";
            return Err(Fault::new(FaultCode::Internal, message));
        }
        if self.waiting.len() >= self.waiting_max {
            return Err(Fault::new(FaultCode::TooManyRequests, "too many grammars wait to be compiled"));
        }
        self.waiting.push(Waiting { admit, ordered: false });
        self.order_waiting().inspect_err(|_| _ = self.waiting.pop())
    }

    /// Orders what waits, as far as the thread's queue has room: it holds as many as can wait, but also what was
    /// ordered for requests that are gone, such as all of a dead detokenizer, which come again meanwhile.
    fn order_waiting(&mut self) -> Result<(), Fault> {
        let Some(threads) = &self.threads else { return Ok(()) };
        for Waiting { admit, ordered } in self.waiting.iter_mut().filter(|waiting| !waiting.ordered) {
            let Some(grammar) = &admit.sampling.grammar else { continue };
            let resumed = admit.ids.get(admit.prompt_tokens as usize..).unwrap_or_default();
            let Sampling { reasoning, continues, .. } = admit.sampling;
            let grammar = (grammar.clone(), reasoning, continues);
            *ordered = threads.order(admit.id, grammar, resumed.to_vec())?;
            if !*ordered {
                break;
            }
        }
        Ok(())
    }

    /// The next request whose grammar is ready, or has failed. Those that were dropped meanwhile do not come.
    pub(crate) fn next_compiled(&mut self) -> Option<(Admit, Result<Arc<Constraint>, Fault>)> {
        loop {
            let (id, compiled) = self.threads.as_ref()?.next_compiled()?;
            // The thread has taken one at least. It cannot be gone: it has just answered.
            let _ = self.order_waiting();
            if let Some(at) = self.waiting.iter().position(|waiting| waiting.admit.id == id) {
                return Some((self.waiting.swap_remove(at).admit, compiled));
            }
        }
    }

    /// The request is with the scheduler now.
    pub(crate) fn start(&mut self, id: RequestId, constraint: Arc<Constraint>) {
        let mask = Arc::new(RowMask(constraint.clone()));
        self.running.insert(id, Followed { constraint, mask });
    }

    /// The mask of a request; most have none.
    pub(crate) fn mask(&self, id: RequestId) -> Option<&Arc<dyn TokenMask>> {
        self.followed(id).map(|followed| &followed.mask)
    }

    fn followed(&self, id: RequestId) -> Option<&Followed> {
        if self.running.is_empty() { None } else { self.running.get(&id) }
    }

    /// A token was committed.
    pub(crate) fn committed(&self, event: &Event) {
        if let (Some(threads), Some(followed)) = (&self.threads, self.followed(event.id))
            && !event.last
        {
            threads.advance(&followed.constraint, event.token);
        }
    }

    /// The request has ended or was cancelled.
    pub(crate) fn forget(&mut self, id: RequestId) {
        if !self.running.is_empty()
            && let Some(followed) = self.running.remove(&id)
            && let Some(threads) = &self.threads
        {
            threads.release(followed.constraint);
        }
    }

    /// Drops the requests that `gone` names and that wait for their grammars.
    pub(crate) fn discard_where(&mut self, gone: impl Fn(RequestId) -> bool) {
        self.waiting.retain(|waiting| !gone(waiting.admit.id));
    }
}
