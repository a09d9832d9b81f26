//! Corrupt edges: one end is restarted, and with it the edge is made anew, by the usual path of recovery.

use super::{Service, Stage};
use crate::corrupt::CorruptEdge;
use crate::ending::Ending;
use crate::member::Member;
use pinion_config::Exit;

impl Service {
    /// Restarts one end of an edge that a role has found corrupt. Both ends may report it: an edge counts once, and one
    /// that is already replaced is ignored.
    pub(super) fn corrupt(&mut self, edge: &CorruptEdge) -> Result<(), Ending> {
        let now_ns = (self.clock)();
        let Some(victim) = self.wiring.condemn(edge, now_ns) else { return Ok(()) };
        let CorruptEdge { from, to, what, .. } = edge;
        if matches!(self.stage, Stage::Starting) {
            let reason =
                format!("the edge from {from} to {to} is corrupt ({what}) before it was used; start again");
            return Err(Ending::new(Exit::Start, reason));
        }
        tracing::error!(%from, %to, what, restarting = %victim, "edge is corrupt; restarting one end to replace it");
        self.members.iter_mut().filter(|member| member.peer == victim).for_each(Member::condemn);
        Ok(())
    }
}
