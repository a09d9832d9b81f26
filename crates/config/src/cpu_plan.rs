//! [`CpuPlan`]: which role runs on which CPUs. Pure over a [`Machine`] value.
//!
//! The unit is a whole physical core, so SMT siblings never serve two roles. The rules, in order:
//! 1. A `--cpus-<role>` set is taken as it stands.
//! 2. One core left: all remaining roles share it. No core left: they share the lowest-numbered one with
//!    the role that has it.
//! 3. The engine does the heavy work: it gets the fastest cores, highest-numbered first, of one NUMA node
//!    (weights and KV stay local). Cores below four fifths of the fastest speed are kept from it, because an
//!    evenly split kernel waits for its slowest thread, unless the fast ones are under a third of the node.
//! 4. With at most three cores the engine gets all that it wants, and the light roles (frontend, tokenizer,
//!    detokenizer) share the lowest-numbered core with it: a core of its own for them would cost the engine more
//!    than they do. Measured with two cores: 1.4 to 1.8 times the throughput.
//! 5. With more the light roles take cores that the engine does not want; if those
//!    are too few, one core each out of the engine's share as long as that leaves it at least half of all,
//!    otherwise they share a quarter of all cores, and at least one.
//! 6. The process that publishes KV events shares the cores of the first tokenizer: it has little to do.
//! 7. A process that owns its cores may spin for work; one that shares a core sleeps at once. The engine's threads spin
//!    for each other within a step in both cases, unless a cgroup quota counts that time.

use crate::cpu_set::show_cpu_set;
use crate::machine::Machine;
use pinion_protocol::{Peer, Role};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// With this number of cores or fewer all roles share them.
const SHARED_CORES_MAX: usize = 3;
/// Roles in the order in which they choose among what the engine leaves: the nearest to the client first.
const LIGHT_ROLES: [Role; 3] = [Role::Frontend, Role::Detokenizer, Role::Tokenizer];

/// Where one process runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The process.
    pub peer: Peer,
    /// Its CPUs, ascending; whole cores.
    pub cpus: Vec<usize>,
    /// No other process of the plan runs on any of them.
    pub owned: bool,
    /// Threads that it may keep busy.
    pub threads: u32,
    /// How long it may spin before it sleeps, in µs.
    pub spin_us: u32,
    /// Its threads may spin for each other within a step.
    pub step_spin: bool,
    /// The engine's kernels run on threads of its own, not libgomp's. Older recordings do not say it.
    #[serde(default)]
    pub thread_team: bool,
    /// A CPU for each of the engine's threads, one of each core, where it owns as many cores as it has threads; else
    /// none, and they run anywhere on `cpus`. Older recordings do not say it.
    #[serde(default)]
    pub thread_cpus: Vec<usize>,
}

impl Placement {
    /// How long a thread of the engine spins for the others within a step before it sleeps, in µs. On shared cores that
    /// is about as long as a sleep and a wake-up take, and longer than nearly every gap within a step; on its own cores
    /// it reaches from a step to the next.
    pub fn step_spin_us(&self) -> u32 {
        match (self.step_spin, self.spin_us) {
            (false, _) => 0,
            (true, 0) => 100,
            (true, _) => 1000,
        }
    }
}

/// Where every process runs. [`std::fmt::Display`] gives the table printed at start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuPlan {
    /// In start order.
    pub placements: Vec<Placement>,
    /// CPUs in the allowed set that no process uses.
    pub unused: Vec<usize>,
}

impl CpuPlan {
    /// The placement of this peer.
    pub fn placement(&self, peer: Peer) -> Option<&Placement> {
        self.placements.iter().find(|p| p.peer == peer)
    }
}

/// What the plan is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRequest {
    /// Processes of each role.
    pub counts: BTreeMap<Role, u16>,
    /// Sets that the operator named.
    pub sets: BTreeMap<Role, BTreeSet<usize>>,
    /// Threads of the engine; absent: one per core of its set.
    pub engine_threads: Option<u32>,
    /// The engine has no more threads than CPUs. Off, it has `engine_threads`, or one for each CPU of the machine.
    pub thread_cap: bool,
    /// Spin time of processes that own their cores, in µs.
    pub spin_us: u32,
    /// The engine's threads spin for each other within a step, where nothing speaks against it.
    pub step_spin: bool,
    /// The engine's kernels run on threads of its own.
    pub thread_team: bool,
    /// Pin at all. Without it every process may run on every allowed CPU, and none owns a core.
    pub pin: bool,
}

/// What is wrong with a request: a role's set, or (`threads`) the engine's number of threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanFault {
    /// Whose set or threads.
    pub role: Role,
    /// The fault is `engine_threads`, not a set.
    pub threads: bool,
    /// Why.
    pub reason: String,
}

/// One physical core, as far as it is allowed to us.
#[derive(Clone, Debug)]
struct Core {
    cpus: Vec<usize>,
    speed: Option<u64>,
    node: usize,
}

/// Makes the plan, or says everything that is wrong with the request.
pub fn plan(machine: &Machine, request: &PlanRequest) -> Result<CpuPlan, Vec<PlanFault>> {
    let cores = cores_of(machine);
    let mut faults = check_sets(&cores, request);
    if !faults.is_empty() {
        return Err(faults);
    }
    let named: BTreeSet<usize> = request.sets.values().flatten().copied().collect();
    let mut free = cores.clone();
    free.retain(|core| core.cpus.iter().all(|cpu| !named.contains(cpu)));
    if let (Some(quota), true) = (machine.quota_cpus, named.is_empty()) {
        keep_best(&mut free, quota);
    }
    let mut homes: BTreeMap<Peer, Vec<Core>> = BTreeMap::new();
    for (&role, set) in &request.sets {
        let mine = cores.iter().filter(|core| set.contains(&core.cpus[0])).cloned().collect::<Vec<_>>();
        spread(&peers(request, role), mine, &mut homes);
    }
    if free.is_empty() {
        free.extend(cores.first().cloned());
    }
    place_unnamed(request, free, &mut homes);
    place_events(request, &mut homes);
    let mut plan = finish(machine, request, &homes);
    if let Some(reason) = too_many_threads(request, &plan) {
        faults.push(PlanFault { role: Role::Engine, threads: true, reason });
        return Err(faults);
    }
    plan.placements.sort_by_key(|p| (start_order(p.peer.role), p.peer.index));
    Ok(plan)
}

fn start_order(role: Role) -> usize {
    Role::SPAWNED.iter().position(|&r| r == role).unwrap_or(usize::MAX)
}

/// Cores in ascending order of their first CPU.
fn cores_of(machine: &Machine) -> Vec<Core> {
    let mut cores: BTreeMap<(usize, usize), Core> = BTreeMap::new();
    for cpu in &machine.cpus {
        let core = cores.entry((cpu.package, cpu.core)).or_insert_with(|| Core {
            cpus: Vec::new(),
            speed: cpu.speed,
            node: cpu.node,
        });
        core.cpus.push(cpu.id);
        core.speed = core.speed.max(cpu.speed);
    }
    let mut cores: Vec<Core> = cores.into_values().collect();
    cores.iter_mut().for_each(|core| core.cpus.sort_unstable());
    cores.sort_by_key(|core| core.cpus[0]);
    cores
}

fn check_sets(cores: &[Core], request: &PlanRequest) -> Vec<PlanFault> {
    let allowed: BTreeSet<usize> = cores.iter().flat_map(|c| c.cpus.iter().copied()).collect();
    let mut faults = Vec::new();
    for (&role, set) in &request.sets {
        let mut fault = |reason| faults.push(PlanFault { role, threads: false, reason });
        if set.is_empty() {
            fault("the set is empty".to_owned());
        }
        let outside: Vec<usize> = set.difference(&allowed).copied().collect();
        if !outside.is_empty() {
            let all = show_cpu_set(allowed.iter().copied());
            fault(format!("CPU {} is not in the allowed set {all}", show_cpu_set(outside)));
        }
        for core in cores {
            let inside = core.cpus.iter().filter(|c| set.contains(c)).count();
            if inside > 0 && inside < core.cpus.len() {
                let siblings = show_cpu_set(core.cpus.iter().copied());
                fault(format!("CPUs {siblings} are SMT siblings of one core: name all of them or none"));
            }
        }
        for (other, other_set) in request.sets.range(..role) {
            let both: Vec<usize> = set.intersection(other_set).copied().collect();
            if !both.is_empty() {
                fault(format!("CPU {} is also in --cpus-{}", show_cpu_set(both), other.name()));
            }
        }
    }
    faults
}

/// Keeps the best cores, as many as hold `quota` CPUs together, and at least one.
fn keep_best(cores: &mut Vec<Core>, quota: usize) {
    let mut left = quota;
    let mut best: Vec<Core> = cores.clone();
    best.sort_by_key(rank);
    best.retain(|core| {
        let fits = core.cpus.len() <= left;
        left -= if fits { core.cpus.len() } else { 0 };
        fits
    });
    if best.is_empty() {
        best.extend(cores.last().cloned());
    }
    best.sort_by_key(|core| core.cpus[0]);
    *cores = best;
}

/// Best first: fastest, then highest-numbered. An unknown speed counts as full.
fn rank(core: &Core) -> (std::cmp::Reverse<u64>, std::cmp::Reverse<usize>) {
    (std::cmp::Reverse(core.speed.unwrap_or(u64::MAX)), std::cmp::Reverse(core.cpus[0]))
}

fn peers(request: &PlanRequest, role: Role) -> Vec<Peer> {
    (0..request.counts.get(&role).copied().unwrap_or(0)).map(|index| Peer::new(role, index)).collect()
}

/// Gives each peer its share of the cores, or all of them to all if there are not enough.
fn spread(peers: &[Peer], cores: Vec<Core>, homes: &mut BTreeMap<Peer, Vec<Core>>) {
    for (i, &peer) in peers.iter().enumerate() {
        let share = if cores.len() >= peers.len() {
            cores[i * cores.len() / peers.len()..(i + 1) * cores.len() / peers.len()].to_vec()
        } else {
            cores.clone()
        };
        homes.insert(peer, share);
    }
}

/// Rules 2 to 5 for the roles without a named set. `free` is not empty.
fn place_unnamed(request: &PlanRequest, mut free: Vec<Core>, homes: &mut BTreeMap<Peer, Vec<Core>>) {
    let unnamed = |role: &Role| !request.sets.contains_key(role);
    let light: Vec<Peer> =
        LIGHT_ROLES.iter().filter(|r| unnamed(r)).flat_map(|&r| peers(request, r)).collect();
    let engines = if unnamed(&Role::Engine) { peers(request, Role::Engine) } else { Vec::new() };
    if free.len() == 1 || light.is_empty() || engines.is_empty() {
        let everyone: Vec<Peer> = engines.iter().chain(&light).copied().collect();
        if engines.is_empty() && free.len() > light.len() {
            free.sort_by_key(rank);
            free.truncate(light.len());
        } else if light.is_empty() {
            free = split_for_engine(free).0;
        }
        return spread(&everyone, free, homes);
    }
    let total = free.len();
    if total <= SHARED_CORES_MAX {
        let lowest = free[..1].to_vec();
        let (mut engine_cores, unwanted) = split_for_engine(free);
        engine_cores.sort_by_key(|core| core.cpus[0]);
        spread(&engines, engine_cores, homes);
        return spread(&light, if unwanted.is_empty() { lowest } else { unwanted }, homes);
    }
    let (mut engine_cores, mut others) = split_for_engine(free);
    let wanted = if total >= 2 * light.len() || others.len() >= light.len() {
        light.len()
    } else {
        (total / 4).max(others.len()).max(1)
    };
    while others.len() < wanted {
        others.extend(engine_cores.pop());
    }
    let node = engine_cores.first().map(|core| core.node);
    others.sort_by_key(|core| (Some(core.node) != node, rank(core)));
    others.truncate(wanted);
    engine_cores.sort_by_key(|core| core.cpus[0]);
    spread(&engines, engine_cores, homes);
    spread(&light, others, homes);
}

/// Rule 6.
fn place_events(request: &PlanRequest, homes: &mut BTreeMap<Peer, Vec<Core>>) {
    for peer in peers(request, Role::Events) {
        if let Some(shared) = homes.get(&Peer::new(Role::Tokenizer, 0)).cloned() {
            homes.entry(peer).or_insert(shared);
        }
    }
}

/// The cores that the engine wants, best first, and the rest.
fn split_for_engine(mut free: Vec<Core>) -> (Vec<Core>, Vec<Core>) {
    free.sort_by_key(rank);
    let fastest = free.iter().filter_map(|core| core.speed).max().unwrap_or(0);
    let fast =
        |core: &Core| core.speed.is_none_or(|speed| speed.saturating_mul(5) >= fastest.saturating_mul(4));
    let mut fast_per_node: BTreeMap<usize, usize> = BTreeMap::new();
    for core in free.iter().filter(|core| fast(core)) {
        *fast_per_node.entry(core.node).or_default() += 1;
    }
    let Some((&node, &fast_count)) = fast_per_node.iter().max_by_key(|&(&node, &count)| (count, node)) else {
        return (free, Vec::new());
    };
    let in_node = free.iter().filter(|core| core.node == node).count();
    let fast_only = fast_count * 3 >= in_node;
    free.into_iter().partition(|core| core.node == node && (fast(core) || !fast_only))
}

/// Rule 7, thread caps, and what remains unused.
fn finish(machine: &Machine, request: &PlanRequest, homes: &BTreeMap<Peer, Vec<Core>>) -> CpuPlan {
    let allowed: Vec<usize> = machine.cpus.iter().map(|cpu| cpu.id).collect();
    let mut users: BTreeMap<usize, usize> = BTreeMap::new();
    for cpu in homes.values().flatten().flat_map(|core| &core.cpus) {
        *users.entry(*cpu).or_default() += 1;
    }
    let quota_counts = machine.quota_cpus.is_some_and(|quota| quota < machine.cpus.len());
    let step_spin = request.step_spin && request.pin && !quota_counts;
    let place = |(&peer, cores): (&Peer, &Vec<Core>)| {
        let mut cpus: Vec<usize> = cores.iter().flat_map(|core| core.cpus.iter().copied()).collect();
        let owned = request.pin && cpus.iter().all(|cpu| users.get(cpu) == Some(&1));
        let threads = match peer.role {
            Role::Engine => {
                let own = if request.thread_cap { cores.len() } else { machine.cpus.len() };
                request.engine_threads.unwrap_or(own as u32)
            }
            Role::Launcher | Role::Frontend | Role::Tokenizer | Role::Detokenizer | Role::Events => 1,
        };
        if !request.pin {
            cpus = allowed.clone();
        }
        cpus.sort_unstable();
        let spin_us = if owned { request.spin_us } else { 0 };
        let step_spin = step_spin && threads > 1 && threads as usize <= cpus.len();
        let is_paired = owned && peer.role == Role::Engine && threads as usize == cores.len();
        let mut thread_cpus: Vec<usize> =
            if is_paired { cores.iter().map(|core| core.cpus[0]).collect() } else { Vec::new() };
        thread_cpus.sort_unstable();
        let thread_team = request.thread_team && peer.role == Role::Engine;
        Placement { peer, cpus, owned, threads, spin_us, step_spin, thread_team, thread_cpus }
    };
    let placements: Vec<Placement> = homes.iter().map(place).collect();
    let used: BTreeSet<usize> = placements.iter().flat_map(|p| p.cpus.iter().copied()).collect();
    let unused = allowed.into_iter().filter(|cpu| !used.contains(cpu)).collect();
    CpuPlan { placements, unused }
}

fn too_many_threads(request: &PlanRequest, plan: &CpuPlan) -> Option<String> {
    let threads = request.engine_threads.filter(|_| request.thread_cap)?;
    let engine = plan.placements.iter().find(|p| p.peer.role == Role::Engine)?;
    (threads as usize > engine.cpus.len()).then(|| {
        let cpus = show_cpu_set(engine.cpus.iter().copied());
        let count = engine.cpus.len();
        format!("{threads} threads on {count} CPU(s) ({cpus}) wait for each other; give the engine more with --cpus-engine")
    })
}

impl std::fmt::Display for CpuPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:<16} {:<14} {:>7}  {:>7}  cores", "process", "cpus", "threads", "spin_us")?;
        for p in &self.placements {
            let cpus = show_cpu_set(p.cpus.iter().copied());
            let cores = if p.owned { "own" } else { "shared" };
            write!(f, "\n{:<16} {cpus:<14} {:>7}  {:>7}  {cores}", p.peer.to_string(), p.threads, p.spin_us)?;
        }
        if !self.unused.is_empty() {
            write!(f, "\n{:<16} {}", "unused", show_cpu_set(self.unused.iter().copied()))?;
        }
        Ok(())
    }
}
