//! What the slots say of requests that are under way here.

use crate::ports::Ports;
use pinion_protocol::RequestId;
use pinion_protocol::frontend_inbox::FinishReason;

/// What a slot says about a request that is under way here.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wish {
    /// End it and say why.
    End(FinishReason),
    /// Its owner is gone.
    Forget,
}

/// `None` if it is to go on.
pub(crate) fn wish(id: RequestId, ports: &impl Ports) -> Option<Wish> {
    match ports.slot(id) {
        Some(state) if state.live && state.generation == id.generation => {
            if state.cancelled {
                Some(Wish::End(FinishReason::Cancelled))
            } else if state.stopped {
                Some(Wish::End(FinishReason::Stop))
            } else {
                None
            }
        }
        Some(_) | None => Some(Wish::Forget),
    }
}
