//! Whether the service serves, from what every role's status page says. No token is generated for it.
//!
//! A role is well if its phase is right and its heartbeat is young. *Health* is about roles that are there and
//! move; *readiness* is about taking new requests.

use crate::limits::{HEARTBEAT_AGE_MAX, LAUNCHER_AGE_MAX};
use pinion_protocol::status::{Gauge, LauncherGauge, Phase};
use pinion_protocol::{Peer, Role};
use pinion_shm::page::Page;

/// The status pages of the other processes.
pub struct Health {
    /// Every other process, the launcher included.
    pub pages: Vec<(Peer, Page)>,
}

impl Health {
    /// Age of a page's heartbeat in nanoseconds.
    pub fn heartbeat_age_ns(page: &Page, now_ns: u64) -> u64 {
        now_ns.saturating_sub(gauge(page, Gauge::HeartbeatNs))
    }

    /// The phase that a role's page shows.
    pub fn phase(page: &Page) -> Option<Phase> {
        Phase::from_word(gauge(page, Gauge::Phase))
    }

    /// The status pages of one role's processes.
    pub(crate) fn pages_of(&self, role: Role) -> impl Iterator<Item = (Peer, &Page)> {
        let of_role = self.pages.iter().filter(move |(peer, _)| peer.role == role);
        of_role.map(|(peer, page)| (*peer, page))
    }

    /// A gauge summed over a role's processes.
    pub(crate) fn sum(&self, role: Role, of: Gauge) -> u64 {
        self.pages_of(role).map(|(_, page)| gauge(page, of)).sum()
    }

    /// The roles that requests need, each with its page. Other frontends do not count.
    fn needed(&self) -> impl Iterator<Item = &(Peer, Page)> {
        let is_needed = |role: Role| !matches!(role, Role::Launcher | Role::Frontend) && !role.is_optional();
        self.pages.iter().filter(move |(peer, _)| is_needed(peer.role))
    }

    /// What is wrong with the roles, one line each; empty is healthy.
    pub fn problems(&self, down: &[Peer], now_ns: u64) -> Vec<String> {
        let mut problems: Vec<String> = down.iter().map(|peer| format!("{peer} is down")).collect();
        for (peer, page) in self.needed().filter(|(peer, _)| !down.contains(peer)) {
            match Health::phase(page) {
                Some(Phase::Ready | Phase::Draining) => {}
                Some(phase) => problems.push(format!("{peer} is {}", format!("{phase:?}").to_lowercase())),
                None => problems.push(format!("{peer} is in an unknown phase")),
            }
            let age_ns = Health::heartbeat_age_ns(page, now_ns);
            if u128::from(age_ns) > HEARTBEAT_AGE_MAX.as_nanos() {
                problems.push(format!("{peer} has not moved for {:.1} s", age_ns as f64 / 1e9));
            }
        }
        for (peer, page) in self.pages.iter().filter(|(peer, _)| !peer.role.is_optional()) {
            let is_launcher = peer.role == Role::Launcher;
            let age_ns = Health::heartbeat_age_ns(page, now_ns);
            if is_launcher && u128::from(age_ns) > LAUNCHER_AGE_MAX.as_nanos() {
                let age_s = age_ns as f64 / 1e9;
                problems.push(format!(
                    "the {peer} has not moved for {age_s:.1} s: no role is restarted meanwhile"
                ));
            }
            let corrupt = gauge(page, Gauge::CorruptEdges);
            if !is_launcher && corrupt > 0 {
                problems.push(format!("{peer} has {corrupt} corrupt edges, which wait to be replaced"));
            }
        }
        problems
    }

    /// What became of each process's log: the lines that it dropped, and whether it is losing them now.
    pub fn logs(&self) -> impl Iterator<Item = (Peer, u64, bool)> {
        self.pages.iter().map(|(peer, page)| {
            let [dropped, losing] = match peer.role {
                Role::Launcher => {
                    [LauncherGauge::LogLinesDropped as usize, LauncherGauge::LogLosing as usize]
                }
                _ => [Gauge::LogLinesDropped as usize, Gauge::LogLosing as usize],
            };
            (*peer, word(page, dropped), word(page, losing) > 0)
        })
    }

    /// Whether every role takes new work.
    pub fn all_ready(&self) -> bool {
        let sound = |page| gauge(page, Gauge::CorruptEdges) == 0;
        self.needed().all(|(_, page)| Health::phase(page) == Some(Phase::Ready) && sound(page))
    }
}

/// A gauge of a role's page.
pub fn gauge(page: &Page, gauge: Gauge) -> u64 {
    word(page, gauge as usize)
}

/// A word of a page; 0 where the page has none.
pub(crate) fn word(page: &Page, index: usize) -> u64 {
    if index < page.len() { page.get(index) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_protocol::limits::GAUGE_COUNT;

    const SECOND: u64 = 1_000_000_000;

    fn page(phase: Phase, heartbeat_ns: u64) -> Page {
        let page = Page::create(1, 1, GAUGE_COUNT).unwrap();
        page.set(Gauge::Phase as usize, phase as u64);
        page.set(Gauge::HeartbeatNs as usize, heartbeat_ns);
        page
    }

    /// It restarts roles that die: without it the next death ends the service.
    #[test]
    fn a_launcher_that_stands_still_is_told() {
        let now = 100 * SECOND;
        let launcher = Peer::new(Role::Launcher, 0);
        for (heartbeat, problems) in [(now, 0), (now - 2 * SECOND, 0), (now - 4 * SECOND, 1)] {
            let health = Health { pages: vec![(launcher, page(Phase::Starting, heartbeat))] };
            assert_eq!(health.problems(&[], now).len(), problems, "{heartbeat}");
        }
    }

    #[test]
    fn each_process_says_what_became_of_its_log() {
        let of = |role, dropped: usize, losing: usize| {
            let page = page(Phase::Ready, 0);
            page.set(dropped, 3);
            page.set(losing, 1);
            (Peer::new(role, 0), page)
        };
        let pages = vec![
            of(Role::Launcher, LauncherGauge::LogLinesDropped as usize, LauncherGauge::LogLosing as usize),
            of(Role::Engine, Gauge::LogLinesDropped as usize, Gauge::LogLosing as usize),
        ];
        let health = Health { pages };
        assert!(health.logs().all(|(_, dropped, losing)| (dropped, losing) == (3, true)));
    }

    #[test]
    fn a_dead_a_stuck_and_a_restarting_role_are_told_and_a_busy_one_is_not() {
        let now = 100 * SECOND;
        let engine = Peer::new(Role::Engine, 0);
        let table = [
            (Phase::Ready, now - SECOND, vec![], 0, true),
            (Phase::Ready, now - 9 * SECOND, vec![], 0, true),
            (Phase::Ready, now - 11 * SECOND, vec![], 1, true),
            (Phase::Restarting, now, vec![], 1, false),
            (Phase::Draining, now, vec![], 0, false),
            (Phase::Ready, now, vec![engine], 1, true),
        ];
        for (phase, heartbeat, down, problems, ready) in table {
            let health = Health { pages: vec![(engine, page(phase, heartbeat))] };
            assert_eq!(health.problems(&down, now).len(), problems, "{phase:?} {heartbeat} {down:?}");
            assert_eq!(health.all_ready(), ready, "{phase:?}");
        }
    }

    #[test]
    fn a_role_that_no_request_needs_is_not_missed() {
        let now = 100 * SECOND;
        for phase in [Phase::Starting, Phase::Ready, Phase::Stopped, Phase::Restarting] {
            let page = page(phase, 0);
            page.set(Gauge::CorruptEdges as usize, 1);
            let health = Health { pages: vec![(Peer::new(Role::Events, 0), page)] };
            assert!(health.problems(&[], now).is_empty() && health.all_ready(), "{phase:?}");
        }
    }

    #[test]
    fn a_corrupt_edge_is_told_until_it_is_replaced() {
        for role in [Role::Engine, Role::Frontend] {
            let (now, page) = (100 * SECOND, page(Phase::Ready, 100 * SECOND));
            let health = Health { pages: vec![(Peer::new(role, 0), page.clone())] };
            page.set(Gauge::CorruptEdges as usize, 1);
            assert_eq!(health.problems(&[], now).len(), 1, "{role:?}");
            assert_eq!(health.all_ready(), role == Role::Frontend);
            page.set(Gauge::CorruptEdges as usize, 0);
            assert!(health.problems(&[], now).is_empty() && health.all_ready(), "{role:?}");
        }
    }
}
