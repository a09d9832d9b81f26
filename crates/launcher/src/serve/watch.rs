//! Roles that die, hang or start too slowly, and their successors.

use super::{MS_NS, OWN_PAUSE_NS, Service};
use crate::ending::Ending;
use crate::member::Member;
use crate::restart::Verdict;
use pinion_config::Exit;
use pinion_os::clock;
use pinion_protocol::control::ToRole;
use pinion_protocol::status::{EXIT_MEMORY_LIMIT, Gauge, Phase};
use pinion_protocol::{Peer, Role};

impl Service {
    /// A role died under traffic: tell the others at once, and plan its successor.
    pub(super) fn bury(&mut self, index: usize, status: std::process::ExitStatus) {
        let now_ns = clock::now_ns();
        let peer = self.members[index].peer;
        let backoff_ns = self.config.lifecycle.restart_backoff_ms * MS_NS;
        let page = self.wiring.page(peer);
        page.set(Gauge::Phase as usize, Phase::Restarting as u64);
        for gauge in [
            Gauge::KvBlocksUsed,
            Gauge::RequestsRunning,
            Gauge::RequestsWaiting,
            Gauge::DecodeStates,
            Gauge::CorruptEdges,
        ] {
            page.set(gauge as usize, 0);
        }
        self.tell_others(peer, &ToRole::PeerLost { peer });
        // A request did that, which is given up now; it must not end the service for the others.
        let limit = match status.code() {
            Some(EXIT_MEMORY_LIMIT) => u32::MAX,
            _ => self.config.lifecycle.restart_limit,
        };
        let member = &mut self.members[index];
        let verdict = match member.answers_by_ns.take() {
            // The role has not lived since the death that was counted.
            Some(_) => Verdict::RestartAt { ns: now_ns },
            None => member.policy.died(now_ns, backoff_ns, limit),
        };
        match verdict {
            Verdict::RestartAt { ns } => {
                let in_ms = (ns - now_ns) / MS_NS;
                tracing::warn!(%peer, %status, in_ms, "role died; restarting it");
                self.members[index].restart_at_ns = Some(ns);
            }
            Verdict::GiveUp { deaths } => self.wind_up(Ending::new(
                Exit::RestartLimit,
                format!("{peer} died {deaths} times within a minute ({status}); giving up"),
            )),
        }
    }

    pub(super) fn check_start_deadlines(&self, now_ns: u64) -> Result<(), Ending> {
        let late = |member: &&Member| member.lives() && !member.ready && now_ns > member.start_deadline_ns;
        match self.members.iter().find(late) {
            Some(member) => Err(Ending::new(
                Exit::Start,
                format!(
                    "{} was not ready within {} ms (--start-timeout)",
                    member.peer, self.config.lifecycle.start_timeout_ms
                ),
            )),
            None => Ok(()),
        }
    }

    /// A loop that no longer turns is as good as dead; killing it makes it one that comes back.
    pub(super) fn kill_stuck(&mut self, now_ns: u64) {
        if now_ns - std::mem::replace(&mut self.turned_ns, now_ns) > OWN_PAUSE_NS {
            self.silent_from_ns = now_ns;
        }
        let limit_ns = self.config.lifecycle.stuck_timeout_ms * MS_NS;
        let start_timeout_ns = self.config.lifecycle.start_timeout_ms * MS_NS;
        for member in self.members.iter_mut().filter(|member| limit_ns > 0 && member.ready) {
            let beat_ns = self.wiring.page(member.peer).get(Gauge::HeartbeatNs as usize);
            let silent_ns = now_ns.saturating_sub(beat_ns.max(self.silent_from_ns));
            if silent_ns > limit_ns {
                tracing::error!(peer = %member.peer, silent_ms = silent_ns / MS_NS, "stuck; killing it");
                member.kill();
                // Its end is reported like any other; it is not looked at again before its successor is ready. What it
                // held is freed before that, and takes as long as it takes: a start that is late is something else.
                member.ready = false;
                member.start_deadline_ns = now_ns + start_timeout_ns;
            }
        }
    }

    /// A spare may be stopped or lost in swap: whoever was given its work must show that it has taken it. It is killed, and
    /// its successor is started as if there were no spare.
    pub(super) fn kill_unanswering(&mut self, now_ns: u64) {
        for member in &mut self.members {
            if member.answers_by_ns.is_some_and(|by_ns| now_ns > by_ns) {
                tracing::error!(peer = %member.peer, "the spare does not take its work; killing it");
                member.kill();
                member.answers_by_ns = Some(u64::MAX);
            }
        }
    }

    /// Sees to it that a spare waits while everybody serves; one that starts would take CPU from a successor.
    pub(super) fn keep_spare(&mut self, now_ns: u64) {
        if let Some(spare) = &mut self.spare
            && self.members.iter().all(|member| member.ready)
        {
            spare.fill(now_ns, &self.host);
        }
    }

    /// Tells the others of successors that are ready, once nobody holds links to their predecessors any more: who hears
    /// of a successor may send it something by way of a third, and that must not end in a ring that nobody reads.
    pub(super) fn announce(&mut self) {
        if self.unannounced.is_empty() || self.members.iter().any(|member| member.has_old_links(&self.wiring))
        {
            return;
        }
        for peer in std::mem::take(&mut self.unannounced) {
            let Some(index) = self.members.iter().position(|member| member.peer == peer && member.ready)
            else {
                continue;
            };
            self.tell_others(peer, &ToRole::PeerReady { peer });
            if peer.role == Role::Frontend {
                self.members[index].tell(&self.wiring, &ToRole::Open);
            }
        }
    }

    pub(super) fn restart_due(&mut self, now_ns: u64) -> Result<(), Ending> {
        for index in 0..self.members.len() {
            if self.members[index].restart_at_ns.is_none_or(|at_ns| now_ns < at_ns) {
                continue;
            }
            let peer = self.members[index].peer;
            self.wiring.renew(peer).map_err(|e| Ending::system("cannot renew shared memory", e))?;
            self.restarts += 1;
            for other in self.members.iter_mut().filter(|member| member.peer != peer) {
                if let Err(error) = other.reattach(&self.wiring, peer) {
                    tracing::error!(peer = %other.peer, %error, "cannot hand over new links; killing it");
                    other.kill();
                }
            }
            self.spawn(index)?;
            // What died before it was born it has not heard of; that it is back it will hear.
            let missing: Vec<Peer> =
                self.members.iter().filter(|m| !m.ready && m.peer != peer).map(|m| m.peer).collect();
            for peer in missing {
                self.members[index].tell(&self.wiring, &ToRole::PeerLost { peer });
            }
        }
        Ok(())
    }
}
