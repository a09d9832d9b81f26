//! CPU plans of made-up machines.

use pinion_config::{Cpu, CpuPlan, Machine, PlanRequest, plan};
use pinion_protocol::{Peer, Role};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const ROLES: [Role; 4] = [Role::Engine, Role::Detokenizer, Role::Tokenizer, Role::Frontend];

fn request() -> PlanRequest {
    let counts = ROLES.map(|role| (role, 1)).into();
    PlanRequest {
        counts,
        sets: BTreeMap::new(),
        engine_threads: None,
        thread_cap: true,
        spin_us: 20,
        step_spin: true,
        thread_team: true,
        pin: true,
    }
}

fn with_sets(sets: &[(Role, &[usize])]) -> PlanRequest {
    let sets = sets.iter().map(|(role, cpus)| (*role, cpus.iter().copied().collect())).collect();
    PlanRequest { sets, ..request() }
}

/// Cores of the given (CPU numbers, speed, node).
fn machine(cores: &[(&[usize], Option<u64>, usize)]) -> Machine {
    let mut cpus = Vec::new();
    for (cores_cpus, speed, node) in cores {
        for &id in *cores_cpus {
            cpus.push(Cpu { id, package: *node, core: cores_cpus[0], speed: *speed, node: *node });
        }
    }
    cpus.sort_by_key(|cpu| cpu.id);
    Machine { cpus, ..Machine::uniform(1, 1) }
}

/// "engine / detokenizer / tokenizer / frontend": CPUs, `*` if owned, `xN` threads if not 1; then the unused.
fn sketch(plan: &CpuPlan) -> String {
    let mut parts: Vec<String> = plan
        .placements
        .iter()
        .map(|p| {
            let cpus = p.cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            let threads = if p.threads == 1 { String::new() } else { format!("x{}", p.threads) };
            format!("{cpus}{}{threads}", if p.owned { "*" } else { "" })
        })
        .collect();
    if !plan.unused.is_empty() {
        parts.push(format!(
            "unused {}",
            plan.unused.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        ));
    }
    parts.join(" / ")
}

#[test]
fn made_up_machines() {
    let hybrid: Vec<(Vec<usize>, Option<u64>, usize)> = (0..8)
        .map(|core| (vec![2 * core, 2 * core + 1], Some(5_200_000), 0))
        .chain((16..24).map(|cpu| (vec![cpu], Some(3_900_000), 0)))
        .collect();
    let hybrid: Vec<(&[usize], Option<u64>, usize)> =
        hybrid.iter().map(|(c, s, n)| (&c[..], *s, *n)).collect();
    let cases: Vec<(&str, Machine, &str)> = vec![
        ("1 core", Machine::uniform(1, 1), "0 / 0 / 0 / 0"),
        ("1 core with SMT", Machine::uniform(1, 2), "0,1 / 0,1 / 0,1 / 0,1"),
        ("2 cores", Machine::uniform(2, 1), "0,1x2 / 0 / 0 / 0"),
        ("3 cores", Machine::uniform(3, 1), "0,1,2x3 / 0 / 0 / 0"),
        ("4 cores with SMT", Machine::uniform(4, 2), "2,3,4,5,6,7*x3 / 0,1 / 0,1 / 0,1"),
        ("5 cores", Machine::uniform(5, 1), "1,2,3,4*x4 / 0 / 0 / 0"),
        ("6 cores", Machine::uniform(6, 1), "3,4,5*x3 / 1* / 0* / 2*"),
        ("8 cores", Machine::uniform(8, 1), "3,4,5,6,7*x5 / 1* / 0* / 2*"),
        (
            "hybrid, 8 fast with SMT and 8 slow",
            machine(&hybrid),
            "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15*x8 / 22* / 21* / 23* / unused 16,17,18,19,20",
        ),
        (
            "one fast core among slow ones is no reason to leave the slow ones idle",
            machine(&[(&[0], Some(50), 0), (&[1], Some(30), 0), (&[2], Some(30), 0), (&[3], Some(30), 0)]),
            "0,2,3*x3 / 1 / 1 / 1",
        ),
        (
            "a core that boosts a little higher is not another class",
            machine(&[(&[0], Some(50), 0), (&[1], Some(48), 0), (&[2], Some(48), 0), (&[3], Some(48), 0)]),
            "0,2,3*x3 / 1 / 1 / 1",
        ),
        (
            "cgroup's subset, one sibling of a pair missing",
            machine(&[(&[3, 11], None, 0), (&[4], None, 0), (&[5, 13], None, 0)]),
            "3,4,5,11,13x3 / 3,11 / 3,11 / 3,11",
        ),
        (
            "2 NUMA nodes",
            machine(&[
                (&[0], None, 0),
                (&[1], None, 0),
                (&[2], None, 0),
                (&[3], None, 0),
                (&[4], None, 1),
                (&[5], None, 1),
                (&[6], None, 1),
                (&[7], None, 1),
            ]),
            "4,5,6,7*x4 / 2* / 1* / 3* / unused 0",
        ),
    ];
    for (name, machine, expected) in cases {
        assert_eq!(sketch(&plan(&machine, &request()).unwrap()), expected, "{name}");
    }
}

#[test]
fn named_sets() {
    use Role::*;
    let smt = Machine::uniform(4, 2);
    let cases: Vec<(PlanRequest, &str)> = vec![
        (with_sets(&[(Engine, &[0, 1, 2, 3])]), "0,1,2,3*x2 / 4,5,6,7 / 4,5,6,7 / 4,5,6,7"),
        (with_sets(&[(Frontend, &[6, 7])]), "0,1,2,3,4,5x3 / 0,1 / 0,1 / 6,7*"),
        (
            with_sets(&[
                (Engine, &[6, 7]),
                (Frontend, &[0, 1]),
                (Tokenizer, &[2, 3]),
                (Detokenizer, &[4, 5]),
            ]),
            "6,7* / 4,5* / 2,3* / 0,1*",
        ),
        // nothing is left for the others: they share the lowest core, and none of them spins
        (with_sets(&[(Engine, &[0, 1, 2, 3, 4, 5, 6, 7])]), "0,1,2,3,4,5,6,7x4 / 0,1 / 0,1 / 0,1"),
    ];
    for (request, expected) in cases {
        assert_eq!(sketch(&plan(&smt, &request).unwrap()), expected, "{:?}", request.sets);
    }
    let mut several = with_sets(&[(Frontend, &[0, 1, 2, 3])]);
    several.counts.insert(Frontend, 2);
    let got = plan(&smt, &several).unwrap();
    assert_eq!(got.placement(Peer::new(Frontend, 0)).unwrap().cpus, [0, 1]);
    assert_eq!(got.placement(Peer::new(Frontend, 1)).unwrap().cpus, [2, 3]);
}

#[test]
fn bad_sets_are_named_one_by_one() {
    use Role::*;
    let sets: &[(Role, &[usize])] = &[(Engine, &[2, 3, 4]), (Frontend, &[4, 5, 99]), (Tokenizer, &[])];
    let faults = plan(&Machine::uniform(4, 2), &with_sets(sets)).unwrap_err();
    let mut got: Vec<(&str, &str)> = faults.iter().map(|f| (f.role.name(), f.reason.as_str())).collect();
    got.sort_unstable();
    let expected = [
        ("engine", "CPU 4 is also in --cpus-frontend"),
        ("engine", "CPUs 4-5 are SMT siblings of one core: name all of them or none"),
        ("frontend", "CPU 99 is not in the allowed set 0-7"),
        ("tokenizer", "the set is empty"),
    ];
    assert_eq!(got, expected);
}

#[test]
fn threads_quota_and_no_pin() {
    let eight = Machine::uniform(8, 1);
    let asked = PlanRequest { engine_threads: Some(2), ..request() };
    assert_eq!(sketch(&plan(&eight, &asked).unwrap()), "3,4,5,6,7*x2 / 1* / 0* / 2*");
    let faults = plan(&Machine::uniform(1, 1), &asked).unwrap_err();
    assert!(faults.len() == 1 && faults[0].threads, "{faults:?}");
    let uncapped = PlanRequest { thread_cap: false, ..request() };
    let got = plan(&eight, &uncapped).unwrap();
    assert_eq!(sketch(&got), "3,4,5,6,7*x8 / 1* / 0* / 2*");
    assert!(
        got.placements.iter().all(|p| !p.step_spin),
        "threads that share a CPU do not spin for each other"
    );
    let got = plan(&Machine::uniform(1, 1), &PlanRequest { thread_cap: false, ..asked }).unwrap();
    assert!(sketch(&got).starts_with("0x2 /"), "{}", sketch(&got));
    let loose = PlanRequest { pin: false, ..request() };
    let got = plan(&Machine::uniform(4, 1), &loose).unwrap();
    assert_eq!(sketch(&got), "0,1,2,3x3 / 0,1,2,3 / 0,1,2,3 / 0,1,2,3");
    assert!(got.placements.iter().all(|p| p.spin_us == 0 && !p.step_spin));
    let quota = Machine { quota_cpus: Some(4), ..eight };
    let limited = plan(&quota, &request()).unwrap();
    assert_eq!(sketch(&limited), "5,6,7*x3 / 4 / 4 / 4 / unused 0,1,2,3");
    assert!(limited.placements.iter().all(|p| !p.step_spin), "a quota counts the time spent spinning");
}

#[test]
fn threads_have_a_cpu_of_each_core_where_the_engine_owns_them() {
    let of_engine = |machine: &Machine, request: &PlanRequest| {
        let got = plan(machine, request).unwrap();
        assert!(got.placements.iter().all(|p| p.peer.role == Role::Engine || p.thread_cpus.is_empty()));
        got.placements.into_iter().find(|p| p.peer.role == Role::Engine).unwrap()
    };
    let own = of_engine(&Machine::uniform(8, 1), &request());
    assert_eq!((own.thread_cpus, own.spin_us), (vec![3, 4, 5, 6, 7], 20));
    let siblings = of_engine(&Machine::uniform(8, 2), &request());
    assert_eq!(siblings.thread_cpus, [6, 8, 10, 12, 14], "one of each core: {:?}", siblings.cpus);
    let shared = of_engine(&Machine::uniform(2, 1), &request());
    assert_eq!((shared.thread_cpus, shared.threads), (vec![], 2));
    let fewer = of_engine(&Machine::uniform(8, 1), &PlanRequest { engine_threads: Some(2), ..request() });
    assert!(fewer.thread_cpus.is_empty(), "the two may use all five cores");
    let loose = of_engine(&Machine::uniform(8, 1), &PlanRequest { pin: false, ..request() });
    assert!(loose.thread_cpus.is_empty() && loose.thread_team);
    let libgomp = of_engine(&Machine::uniform(8, 1), &PlanRequest { thread_team: false, ..request() });
    assert!(!libgomp.thread_team);
}

#[test]
fn a_step_spins_longer_on_cores_of_its_own() {
    let spin_us = |machine: &Machine, request: &PlanRequest| {
        let got = plan(machine, request).unwrap();
        got.placements.iter().find(|p| p.peer.role == Role::Engine).unwrap().step_spin_us()
    };
    assert_eq!(spin_us(&Machine::uniform(8, 1), &request()), 1000);
    assert_eq!(spin_us(&Machine::uniform(2, 1), &request()), 100, "shared cores");
    assert_eq!(spin_us(&Machine::uniform(1, 1), &request()), 0, "one thread");
    assert_eq!(spin_us(&Machine::uniform(8, 1), &PlanRequest { step_spin: false, ..request() }), 0);
}

#[test]
fn only_the_engine_spins_within_a_step_and_only_with_several_threads() {
    for (cores, spins) in [(1, false), (2, true), (8, true)] {
        let got = plan(&Machine::uniform(cores, 1), &request()).unwrap();
        for p in &got.placements {
            assert_eq!(p.step_spin, spins && p.peer.role == Role::Engine, "{cores} cores: {p:?}");
        }
        let off = plan(&Machine::uniform(cores, 1), &PlanRequest { step_spin: false, ..request() }).unwrap();
        assert!(off.placements.iter().all(|p| !p.step_spin));
    }
}

#[test]
fn the_table_at_start() {
    let text = plan(&Machine::uniform(4, 1), &request()).unwrap().to_string();
    let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["process", "cpus", "threads", "spin_us", "cores"]);
    assert_eq!(lines[1], ["engine-0", "1-3", "3", "20", "own"]);
    assert_eq!(lines[4], ["frontend-0", "0", "1", "0", "shared"]);
}

/// Any machine: cores of 1 or 2 siblings, some CPUs missing, up to 3 speeds and 2 nodes, numbered at random.
fn any_machine() -> impl Strategy<Value = Machine> {
    let core = (
        1_usize..=2,
        prop_oneof![Just(None), Just(Some(30_u64)), Just(Some(45)), Just(Some(50))],
        0_usize..2,
    );
    (prop::collection::vec(core, 1..24), any::<prop::sample::Index>()).prop_map(|(cores, turn)| {
        let total: usize = cores.iter().map(|(threads, ..)| threads).sum();
        let turn = turn.index(total);
        let mut cpus = Vec::new();
        for (number, (threads, speed, node)) in cores.into_iter().enumerate() {
            for _ in 0..threads {
                let id = (cpus.len() * 7 + turn) % (7 * total + 1);
                cpus.push(Cpu { id, package: node, core: number, speed, node });
            }
        }
        cpus.sort_by_key(|cpu| cpu.id);
        Machine { cpus, ..Machine::uniform(1, 1) }
    })
}

proptest! {
    #[test]
    fn siblings_stay_together_everyone_runs_and_owners_are_alone(
        machine in any_machine(),
        frontends in 1_u16..5, tokenizers in 1_u16..5, detokenizers in 1_u16..5,
        quota in prop::option::of(1_usize..40), named in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut request = request();
        request.counts.extend([(Role::Frontend, frontends), (Role::Tokenizer, tokenizers), (Role::Detokenizer, detokenizers)]);
        if let Some(index) = named {
            let core = machine.cpus[index.index(machine.cpus.len())];
            let siblings = machine.cpus.iter().filter(|c| (c.package, c.core) == (core.package, core.core)).map(|c| c.id);
            request.sets.insert(ROLES[index.index(4)], siblings.collect());
        }
        let machine = Machine { quota_cpus: quota, ..machine };
        let plan = plan(&machine, &request).unwrap();
        prop_assert_eq!(plan.placements.len(), usize::from(1 + frontends + tokenizers + detokenizers));
        let allowed: BTreeSet<usize> = machine.cpus.iter().map(|c| c.id).collect();
        let mut used = BTreeSet::new();
        for (i, p) in plan.placements.iter().enumerate() {
            prop_assert!(!p.cpus.is_empty() && p.threads >= 1 && p.cpus.iter().all(|c| allowed.contains(c)));
            prop_assert!(p.owned || p.spin_us == 0);
            used.extend(p.cpus.iter().copied());
            for cpu in &machine.cpus {
                let core = machine.cpus.iter().filter(|c| (c.package, c.core) == (cpu.package, cpu.core));
                let inside = core.clone().filter(|c| p.cpus.contains(&c.id)).count();
                prop_assert!(inside == 0 || inside == core.count(), "{} has a part of a core: {}", p.peer, plan);
            }
            for other in &plan.placements[i + 1..] {
                let overlap = p.cpus.iter().any(|c| other.cpus.contains(c));
                prop_assert!(!overlap || !(p.owned || other.owned), "{} and {} overlap: {}", p.peer, other.peer, plan);
            }
        }
        used.extend(plan.unused.iter().copied());
        prop_assert_eq!(used, allowed);
    }
}
