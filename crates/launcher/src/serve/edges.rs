//! Corrupt edges: one end is restarted, and with it the edge is made anew, by the usual path of recovery.

use super::{MS_NS, Service, Stage};
use crate::corrupt::CorruptEdge;
use crate::ending::Ending;
use pinion_config::Exit;
use pinion_os::clock;

impl Service {
    /// A role has found an edge corrupt. Each life of an edge counts once, whoever reports it first; of one that is already
    /// replaced nothing is left to do.
    pub(super) fn corrupt(&mut self, edge: &CorruptEdge) -> Result<(), Ending> {
        let now_ns = clock::now_ns();
        let Some(victim) = self.wiring.condemn(edge, now_ns) else { return Ok(()) };
        let CorruptEdge { from, to, what, .. } = edge;
        if matches!(self.stage, Stage::Starting) {
            let reason =
                format!("the edge from {from} to {to} is corrupt ({what}) before it was used; start again");
            return Err(Ending::new(Exit::Start, reason));
        }
        tracing::error!(%from, %to, what, restarting = %victim, "edge is corrupt; restarting one end to replace it");
        let start_timeout_ns = self.config.lifecycle.start_timeout_ms * MS_NS;
        for member in self.members.iter_mut().filter(|member| member.peer == victim && member.lives()) {
            member.kill();
            // As with a role that is stuck: its end is reported like any other, and takes as long as it takes.
            member.ready = false;
            member.start_deadline_ns = now_ns + start_timeout_ns;
        }
        Ok(())
    }
}
