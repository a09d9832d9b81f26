//! What the pages about this service are made from, at one moment.

use crate::observe::health::{Health, gauge, word};
use crate::observe::metrics::Metrics;
use pinion_config::Topology;
use pinion_protocol::status::{Gauge, LauncherGauge};
use pinion_protocol::{Peer, Role};
use pinion_shm::page::Page;

/// The service at `now_ns`.
pub(crate) struct View<'a> {
    /// What the other processes say about themselves.
    pub(crate) health: &'a Health,
    /// What this process counts.
    pub(crate) metrics: &'a Metrics,
    /// The processes and rings, for labels.
    pub(crate) topology: &'a Topology,
    /// What does not change while the service runs.
    pub(crate) constants: Constants<'a>,
    /// The accepted requests of this frontend.
    pub(crate) slots: Slots,
    /// CLOCK_MONOTONIC ns.
    pub(crate) now_ns: u64,
}

/// What does not change while the service runs.
pub(crate) struct Constants<'a> {
    /// Index of this frontend.
    pub(crate) frontend: u16,
    /// The served model's name.
    pub(crate) model: &'a str,
    /// Tokens of prompt and answer together.
    pub(crate) max_model_len: u32,
    /// Tokens in one KV block.
    pub(crate) block_size: u32,
    /// KV blocks in the engine's pool.
    pub(crate) kv_blocks: u32,
    /// Requests that an engine runs at a time.
    pub(crate) running_max: u32,
    /// Show the `vllm:*` families.
    pub(crate) vllm_metrics: bool,
    /// Unix seconds of the start.
    pub(crate) started_unix_s: u64,
}

/// The accepted requests of this frontend.
pub(crate) struct Slots {
    /// Slots in use.
    pub(crate) used: usize,
    /// Slots in all.
    pub(crate) total: usize,
    /// New requests are refused for good.
    pub(crate) draining: bool,
    /// Roles that are dead and not yet replaced.
    pub(crate) down: Vec<Peer>,
}

impl<'a> View<'a> {
    /// The status pages of one role's processes.
    pub(crate) fn pages(&self, role: Role) -> impl Iterator<Item = (Peer, &'a Page)> + 'a {
        self.health.pages_of(role)
    }

    /// The pages of all roles but the launcher.
    pub(crate) fn role_pages(&self) -> impl Iterator<Item = (Peer, &'a Page)> + 'a {
        let spawned = self.health.pages.iter().filter(|(peer, _)| peer.role != Role::Launcher);
        spawned.map(|(peer, page)| (*peer, page))
    }

    /// A gauge summed over a role's processes.
    pub(crate) fn sum(&self, role: Role, gauge: Gauge) -> u64 {
        self.health.sum(role, gauge)
    }

    /// The largest value of a gauge of the engines.
    pub(crate) fn longest_ns(&self, of: Gauge) -> u64 {
        self.pages(Role::Engine).map(|(_, page)| gauge(page, of)).max().unwrap_or(0)
    }

    pub(crate) fn launcher_page(&self) -> Option<&'a Page> {
        self.pages(Role::Launcher).next().map(|(_, page)| page)
    }

    /// A gauge of the launcher; 0 where its page is missing.
    pub(crate) fn launcher(&self, gauge: LauncherGauge) -> u64 {
        self.launcher_page().map_or(0, |page| word(page, gauge as usize))
    }
}
