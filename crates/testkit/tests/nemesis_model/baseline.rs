//! What the processes hold while nothing is asked for: before the faults and after them.

use pinion_testkit::{PATIENCE, Process, Server, descriptor_count, wait_until};
use std::collections::BTreeMap;

/// A process may have this many descriptors more than before.
const DESCRIPTORS_MORE: usize = 2;
/// Its anonymous memory may be larger by a quarter and by this number of KiB.
const MEMORY_MORE_KIB: u64 = 8 << 10;

/// Held by one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    anonymous_kib: u64,
}

/// Held by each process of an idle service, by name.
#[derive(Debug)]
pub(crate) struct Baseline(BTreeMap<String, Held>);

impl Baseline {
    /// Waits until no request is under way, every role has its process, and so has the spare engine if there is one.
    pub(crate) fn of(server: &Server, roles: &[String], has_spare: bool) -> Baseline {
        wait_until("every role has a process", PATIENCE, || {
            let complete = roles.iter().all(|role| server.role(role).is_some());
            (complete && server.spare().is_some() == has_spare).then_some(())
        });
        server.wait_idle();
        let metrics = server.metrics();
        let total = |name: &str| metrics.total(name).unwrap_or_else(|| panic!("/metrics has no {name}"));
        let blocks = |state: &str| total(&format!("pinion_kv_blocks_{state}"));
        assert_eq!(blocks("used") + blocks("cached") + blocks("free"), blocks("total"), "KV blocks");
        assert_eq!(total("pinion_malformed_records_total"), 0.0);
        wait_until("the rings are empty", PATIENCE, || {
            (server.metric("pinion_ring_used_bytes") == 0.0).then_some(())
        });
        // A process exists before it has read its model: what it holds counts once it no longer grows.
        let mut before = Baseline::read(server);
        wait_until("no process grows", PATIENCE, || {
            std::thread::sleep(std::time::Duration::from_millis(500));
            let now = Baseline::read(server);
            let is_steady = now.0 == before.0;
            before = now;
            is_steady.then_some(())
        });
        before
    }

    /// Held now, with no wait.
    fn read(server: &Server) -> Baseline {
        let launcher = Process { name: "pinion".to_owned(), pid: server.pid() };
        let processes = server.roles().into_iter().chain(server.spare()).chain([launcher]);
        Baseline(processes.map(|process| (process.name.clone(), Held::by(process.pid))).collect())
    }

    /// Whether a process holds more than it did, but for what the bounds allow. Connections may still be closing, so
    /// the service has time to come down to it.
    pub(crate) fn check(&self, server: &Server, roles: &[String], has_spare: bool) {
        let mut over = Vec::new();
        for _ in 0..20 {
            let now = Baseline::of(server, roles, has_spare);
            let names = |baseline: &Baseline| baseline.0.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(self), names(&now), "processes before and after");
            let pairs = self.0.iter().zip(now.0.values());
            over = pairs
                .filter(|((_, before), now)| now.is_above(before))
                .map(|(a, b)| format!("{a:?}: now {b:?}"))
                .collect();
            if over.is_empty() {
                println!("before {:?}\nafter  {:?}", self.0, now.0);
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(250));
        }
        panic!("processes hold more than before the faults: {over:#?}");
    }
}

impl Held {
    fn by(pid: u32) -> Held {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        Held { descriptors: descriptor_count(pid), anonymous_kib: kib.unwrap_or_default() }
    }

    fn is_above(self, before: &Held) -> bool {
        let memory_max = before.anonymous_kib + before.anonymous_kib / 4 + MEMORY_MORE_KIB;
        self.descriptors > before.descriptors + DESCRIPTORS_MORE || self.anonymous_kib > memory_max
    }
}
