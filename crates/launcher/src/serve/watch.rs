//! Roles that die, hang or start too slowly, edges that are corrupt, and the restarts that mend both.

use super::{MS_NS, OWN_PAUSE_NS, STOP_TIMEOUT_NS, Service, Stage, wait};
use crate::corrupt::CorruptEdge;
use crate::ending::{Ending, memory_hint, start_failure};
use crate::member::{Member, MemberState};
use crate::restart::Verdict;
use crate::spare::Spare;
use pinion_config::Exit;
use pinion_os::clock;
use pinion_protocol::control::{DeathCause, ToRole};
use pinion_protocol::status::{EXIT_MEMORY_LIMIT, Gauge, Phase, Reading};
use pinion_protocol::{Peer, Role};
use std::process::ExitStatus;

/// The least back-off of a role without a limit of restarts: they go on for ever.
const ENDLESS_BACKOFF_NS_MIN: u64 = 10 * MS_NS;

impl Service {
    /// The process of a role has ended.
    pub(super) fn ended(
        &mut self,
        index: usize,
        status: ExitStatus,
        was_standby: bool,
    ) -> Result<(), Ending> {
        let peer = self.members[index].peer;
        match self.stage {
            Stage::Starting if !self.may_fail(index) => {
                let word = self.wiring.page(peer).get(Gauge::Reading as usize);
                Err(start_failure(peer, status, Reading::from_word(word), &self.config))
            }
            Stage::Stopping { .. } => {
                if !status.success() {
                    tracing::warn!(%peer, %status, "ended while stopping");
                }
                Ok(())
            }
            Stage::Draining { .. } => {
                // Only frontends leave by themselves.
                if !status.success() || peer.role != Role::Frontend {
                    tracing::warn!(%peer, %status, "ended while draining");
                    // A frontend says by its exit code whether it had to cut answers; one that died says nothing.
                    self.cut_short |= peer.role == Role::Frontend;
                    // It is not restarted: requests must not wait for it until the deadline.
                    let cause = self.members[index].take_cause();
                    self.tell_others(peer, &ToRole::PeerLost { peer, cause });
                }
                Ok(())
            }
            Stage::Starting | Stage::Serving | Stage::Leaving { .. } => {
                self.on_role_death(index, status, was_standby);
                Ok(())
            }
        }
    }

    /// A role died while the service runs: reports it to the others at once, and plans its restart.
    pub(super) fn on_role_death(&mut self, index: usize, status: ExitStatus, was_standby: bool) {
        let now_ns = (self.clock)();
        let peer = self.members[index].peer;
        let backoff_ns = self.backoff_ns(peer.role);
        let page = self.wiring.page(peer);
        page.set(Gauge::Phase as usize, Phase::Restarting as u64);
        for gauge in [
            Gauge::KvBlocksUsed,
            Gauge::RequestsRunning,
            Gauge::RequestsWaiting,
            Gauge::RequestsDeferred,
            Gauge::DecodeStates,
            Gauge::KvEventSubscribers,
            Gauge::CorruptEdges,
            Gauge::OldestWaitingNs,
            Gauge::WindowBlocksUsed,
            Gauge::LastStepNs,
            Gauge::StepBudgetNs,
        ] {
            page.set(gauge as usize, 0);
        }
        let cause = self.members[index].take_cause();
        self.tell_others(peer, &ToRole::PeerLost { peer, cause });
        // One request has reached the memory limit, and it is rejected now; the service does not end for the others.
        let has_limit = !peer.role.is_optional() && status.code() != Some(EXIT_MEMORY_LIMIT);
        let limit = has_limit.then_some(self.config.lifecycle.restart_limit);
        let member = &mut self.members[index];
        let verdict = if was_standby {
            // The role has not lived since the death that was counted.
            Verdict::RestartAt { ns: now_ns }
        } else {
            member.policy.died(now_ns, backoff_ns, limit)
        };
        match verdict {
            Verdict::RestartAt { ns } => {
                let in_ms = (ns - now_ns) / MS_NS;
                tracing::warn!(%peer, %status, in_ms, "role died; restarting it");
                member.restart_at(ns);
            }
            Verdict::GiveUp { deaths } => self.shut_down(Ending::new(
                Exit::RestartLimit,
                format!(
                    "{peer} died {deaths} times within a minute ({status}); giving up{}",
                    memory_hint(status)
                ),
            )),
        }
    }

    /// Looks for roles that should be ready by now. An optional one that has served before is started again.
    pub(super) fn check_start_deadlines(&mut self, now_ns: u64) -> Result<(), Ending> {
        let timeout_ms = self.config.lifecycle.start_timeout_ms;
        for index in 0..self.members.len() {
            if !self.members[index].is_late(now_ns) {
                continue;
            }
            let peer = self.members[index].peer;
            if !self.may_fail(index) {
                let reason = format!("{peer} was not ready within {timeout_ms} ms (--start-timeout)");
                return Err(Ending::new(Exit::Start, reason));
            }
            // One that was killed before is gone when the kernel says so.
            if self.members[index].state() == MemberState::Starting {
                tracing::warn!(
                    %peer,
                    "not ready within {timeout_ms} ms (--start-timeout); killing it; requests are served without it"
                );
                self.members[index].kill();
            }
        }
        Ok(())
    }

    /// Whether the service goes on whatever becomes of this role: no request needs it, and it has served before. What
    /// keeps it from its first start ends the service's start: its options may be wrong.
    pub(super) fn may_fail(&self, index: usize) -> bool {
        let member = &self.members[index];
        let phase = self.wiring.page(member.peer).get(Gauge::Phase as usize);
        let has_served = !matches!(self.stage, Stage::Starting)
            || member.epoch() > 1
            || Phase::from_word(phase) == Some(Phase::Ready);
        member.peer.role.is_optional() && has_served
    }

    /// Kills roles whose loop has not turned for `--stuck-timeout`, so that they are restarted.
    pub(super) fn kill_stuck(&mut self, now_ns: u64) {
        if now_ns - std::mem::replace(&mut self.turned_ns, now_ns) > OWN_PAUSE_NS {
            self.silent_from_ns = now_ns;
        }
        let limit_ns = self.config.lifecycle.stuck_timeout_ms * MS_NS;
        for member in self.members.iter_mut().filter(|member| limit_ns > 0 && member.is_ready()) {
            let beat_ns = self.wiring.page(member.peer).get(Gauge::HeartbeatNs as usize);
            let silent_ns = now_ns.saturating_sub(beat_ns.max(self.silent_from_ns));
            if silent_ns > limit_ns {
                tracing::error!(peer = %member.peer, silent_ms = silent_ns / MS_NS, "stuck; killing it");
                member.kill();
            }
        }
    }

    /// Kills a warm standby that was promoted and has not attached in time: it may be stopped or in swap. The role is
    /// then started without one.
    pub(super) fn kill_late_standby(&mut self, now_ns: u64) {
        for member in self.members.iter_mut().filter(|member| member.is_late_standby(now_ns)) {
            tracing::error!(peer = %member.peer, "standby did not attach in time; killing it");
            member.kill();
        }
    }

    /// Keeps a warm standby while every role serves; one that starts would take CPU from a restarting role.
    pub(super) fn keep_spare(&mut self, now_ns: u64) {
        if let Some(spare) = &mut self.spare
            && self.members.iter().filter(|member| !member.peer.role.is_optional()).all(Member::is_ready)
        {
            spare.fill(now_ns, &self.host);
        }
    }

    /// Announces each restarted role once none that forwards to it holds links to its predecessor: a frontend that
    /// knows of the restart may have another role forward something, which must not go to a ring without a reader.
    /// Others are not waited for, however long they stand still.
    pub(super) fn announce(&mut self) {
        for peer in std::mem::take(&mut self.unannounced) {
            let Some(index) = self.members.iter().position(|member| member.peer == peer && member.is_ready())
            else {
                continue;
            };
            let concerned = |member: &&Member| member.peer == peer || forwards(member.peer.role, peer.role);
            if self.members.iter().filter(concerned).any(|member| member.has_old_links(&self.wiring)) {
                self.unannounced.push(peer);
                continue;
            }
            self.tell_others(peer, &ToRole::PeerReady { peer });
            if peer.role == Role::Frontend {
                self.members[index].tell(&self.wiring, &ToRole::Open);
                if matches!(self.stage, Stage::Leaving { .. }) {
                    self.members[index].tell(&self.wiring, &ToRole::Leaving);
                }
            }
        }
    }

    pub(super) fn restart_due(&mut self, now_ns: u64) -> Result<(), Ending> {
        for index in 0..self.members.len() {
            if !self.members[index].restart_is_due(now_ns) {
                continue;
            }
            if let Err(failure) = self.restart(index) {
                self.put_off(index, failure, now_ns)?;
            }
        }
        Ok(())
    }

    fn restart(&mut self, index: usize) -> Result<(), Ending> {
        let peer = self.members[index].peer;
        self.wiring.renew(peer).map_err(|e| Ending::system("cannot renew shared memory", e))?;
        for other in self.members.iter_mut().filter(|member| member.peer != peer) {
            if let Err(error) = other.reattach(&self.wiring, peer) {
                tracing::error!(peer = %other.peer, %error, "cannot hand over new links; killing it");
                other.kill();
            }
        }
        self.spawn(index)?;
        self.restarts += 1;
        if matches!(self.stage, Stage::Starting) {
            // The others have not died: they are starting, and nothing announces them.
            return Ok(());
        }
        // It does not know of roles that died before its start; PeerReady follows for each.
        let missing: Vec<Peer> =
            self.members.iter().filter(|m| !m.is_ready() && m.peer != peer).map(|m| m.peer).collect();
        for peer in missing {
            self.members[index].tell(&self.wiring, &ToRole::PeerLost { peer, cause: DeathCause::Unknown });
        }
        Ok(())
    }

    /// Plans another start of a role whose last one has failed: what the system refuses it may give a moment later. For
    /// a role that requests need it counts as a death, and a program that is missing or may not be run is final.
    ///
    /// # Errors
    /// The failure, if there is to be no other start.
    fn put_off(&mut self, index: usize, failure: Ending, now_ns: u64) -> Result<(), Ending> {
        let (peer, is_needed) = (self.members[index].peer, !self.may_fail(index));
        if is_needed && failure.code == Exit::Start {
            return Err(failure);
        }
        let meanwhile = if is_needed { "requests wait for it" } else { "requests are served without it" };
        tracing::warn!(%peer, reason = failure.reason, "cannot restart it now; trying again; {meanwhile}");
        if self.members[index].lives() {
            // Its end plans the next start.
            self.members[index].kill();
            return Ok(());
        }
        self.wiring.page(peer).set(Gauge::Phase as usize, Phase::Restarting as u64);
        let backoff_ns = self.backoff_ns(peer.role);
        let limit = is_needed.then_some(self.config.lifecycle.restart_limit);
        let member = &mut self.members[index];
        match member.policy.died(now_ns, backoff_ns, limit) {
            Verdict::RestartAt { ns } => member.restart_at(ns),
            Verdict::GiveUp { .. } => return Err(failure),
        }
        Ok(())
    }

    fn backoff_ns(&self, role: Role) -> u64 {
        let backoff_ns = self.config.lifecycle.restart_backoff_ms * MS_NS;
        if role.is_optional() { backoff_ns.max(ENDLESS_BACKOFF_NS_MIN) } else { backoff_ns }
    }

    /// Which life of this role exists, if one does.
    pub fn life(&self, peer: Peer) -> Option<u32> {
        self.members.iter().find(|member| member.peer == peer && member.lives()).map(Member::epoch)
    }

    /// The state of each role.
    pub fn states(&self) -> impl Iterator<Item = (Peer, MemberState)> + '_ {
        self.members.iter().map(|member| (member.peer, member.state()))
    }

    /// Kills what is left and reaps it, within a bound.
    pub(super) fn kill_all(&mut self) {
        let deadline_ns = clock::now_ns() + STOP_TIMEOUT_NS;
        self.members.iter_mut().for_each(Member::kill);
        self.spare.iter_mut().for_each(Spare::leave);
        let lives = |service: &Service| service.members.iter().any(Member::lives) || service.spare_lives();
        while lives(self) && clock::now_ns() < deadline_ns {
            if let Err(error) = wait(self.member_fds()) {
                tracing::warn!(%error, "cannot wait for killed roles");
            }
            for member in &mut self.members {
                while let Ok(Some(_)) = member.poll(&self.wiring) {}
            }
            self.spare.iter_mut().for_each(|spare| spare.look(clock::now_ns()));
        }
    }

    /// Restarts one end of an edge that a role has found corrupt. Both ends may report it: an edge counts once, and one
    /// that is already replaced is ignored.
    pub(super) fn corrupt(&mut self, edge: &CorruptEdge) -> Result<(), Ending> {
        let now_ns = (self.clock)();
        // The restart of an end that has ended replaces the edge.
        let mut ends = self.members.iter_mut().filter(|member| [edge.from, edge.to].contains(&member.peer));
        if ends.any(Member::has_ended) {
            return Ok(());
        }
        let Some(victim) = self.wiring.condemn(edge, now_ns) else { return Ok(()) };
        let CorruptEdge { from, to, what, .. } = edge;
        let index = self.members.iter().position(|member| member.peer == victim);
        if matches!(self.stage, Stage::Starting) && !index.is_some_and(|index| self.may_fail(index)) {
            let reason =
                format!("the edge from {from} to {to} is corrupt ({what}) before it was used; start again");
            return Err(Ending::new(Exit::Start, reason));
        }
        tracing::error!(%from, %to, what, restarting = %victim, "edge is corrupt; restarting one end to replace it");
        self.members.iter_mut().filter(|member| member.peer == victim).for_each(Member::condemn);
        Ok(())
    }
}

/// Whether requests of others reach `renewed` through this role, or what it says of them depends on what was renewed. A
/// frontend is no such role: it writes for itself alone, and its own new links come ahead of the announcement.
fn forwards(role: Role, renewed: Role) -> bool {
    match renewed {
        Role::Engine => role == Role::Tokenizer,
        Role::Detokenizer => role == Role::Engine,
        // With its old slot table a role takes its new requests for stale ones.
        Role::Frontend => matches!(role, Role::Tokenizer | Role::Engine | Role::Detokenizer),
        // Only frontends write to a tokenizer, and no request needs the events role.
        Role::Tokenizer | Role::Events | Role::Launcher => false,
    }
}
