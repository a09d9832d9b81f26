//! What strikes the processes, drawn from a seed before anything runs.

use pinion_testkit::{PATIENCE, Process, Random, Server, Signal, kill, wait_until};
use std::fmt;
use std::time::{Duration, Instant};

/// Signals that end a process at once, as the kernel, a failed check or an operator does.
const DEADLY: [Signal; 4] = [Signal::SIGKILL, Signal::SIGSEGV, Signal::SIGABRT, Signal::SIGBUS];
/// Between two looks for a successor: it is to be found while it starts.
const SUCCESSOR_LOOK: Duration = Duration::from_micros(200);

/// One fault. Roles are named as in [`Server::role`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill {
        role: String,
        signal: Signal,
    },
    Pause {
        role: String,
        ms: u64,
    },
    PauseThenKill {
        role: String,
        ms: u64,
    },
    /// All of them at once.
    KillSeveral {
        roles: Vec<String>,
        signal: Signal,
    },
    KillSpare,
    /// The role, then this number of successors while they start.
    KillSuccessors {
        role: String,
        successors: usize,
    },
}

/// A fault, and how long after the one before has been overcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    pub(crate) pause: Duration,
    pub(crate) fault: Fault,
}

/// The rounds of a seed. Each run of `FAULT_KINDS` rounds has every kind of fault once.
pub(crate) fn rounds(seed: u64, count: usize, roles: &[String], has_spare: bool) -> Vec<Round> {
    let mut random = Random::new(seed);
    let mut deck: Vec<usize> = Vec::new();
    let mut rounds = Vec::new();
    while rounds.len() < count {
        if deck.is_empty() {
            deck = (0..FAULT_KINDS).filter(|&kind| has_spare || kind != SPARE).collect();
        }
        let kind = deck.swap_remove(random.below(deck.len()));
        let pause = Duration::from_millis(random.below(120) as u64);
        rounds.push(Round { pause, fault: draw(&mut random, kind, roles) });
    }
    rounds
}

/// Kinds of faults; the first ones are one for each deadly signal.
pub(crate) const FAULT_KINDS: usize = DEADLY.len() + 7;
const SPARE: usize = FAULT_KINDS - 1;

fn draw(random: &mut Random, kind: usize, roles: &[String]) -> Fault {
    let role = roles[random.below(roles.len())].clone();
    let ms = random.between(50, 2000);
    let signal = random.pick(&DEADLY);
    let light = || roles.iter().filter(|name| !name.starts_with("engine")).cloned().collect();
    if let Some(&signal) = DEADLY.get(kind) {
        return Fault::Kill { role, signal };
    }
    match kind - DEADLY.len() {
        0 => Fault::Pause { role, ms },
        1 => Fault::PauseThenKill { role, ms },
        2 => {
            let others: Vec<&String> = roles.iter().filter(|name| **name != role).collect();
            let other = random.pick(&others).clone();
            Fault::KillSeveral { roles: vec![role, other], signal }
        }
        3 => Fault::KillSeveral { roles: light(), signal },
        4 => Fault::KillSeveral { roles: roles.to_vec(), signal },
        5 => Fault::KillSuccessors { role, successors: 1 + random.below(3) },
        _ => Fault::KillSpare,
    }
}

impl Fault {
    /// Whether a frontend dies, and with it its connections.
    pub(crate) fn ends_a_frontend(&self) -> bool {
        let is_frontend = |role: &String| role.starts_with("frontend");
        match self {
            Fault::Kill { role, .. }
            | Fault::PauseThenKill { role, .. }
            | Fault::KillSuccessors { role, .. } => is_frontend(role),
            Fault::KillSeveral { roles, .. } => roles.iter().any(is_frontend),
            Fault::Pause { .. } | Fault::KillSpare => false,
        }
    }

    /// Lets it happen; returns when it is done, not when it has been overcome.
    pub(crate) fn strike(&self, server: &Server) {
        match self {
            Fault::Kill { role, signal } => kill(find(server, role).pid, *signal),
            Fault::Pause { role, ms } => {
                pause(server, role, *ms, Signal::SIGCONT);
            }
            Fault::PauseThenKill { role, ms } => {
                pause(server, role, *ms, Signal::SIGKILL);
            }
            Fault::KillSeveral { roles, signal } => {
                let found: Vec<Process> = roles.iter().map(|role| find(server, role)).collect();
                found.iter().for_each(|process| kill(process.pid, *signal));
            }
            Fault::KillSpare => {
                let spare = wait_until("a spare engine waits", PATIENCE, || server.spare());
                kill(spare.pid, Signal::SIGKILL);
            }
            Fault::KillSuccessors { role, successors } => {
                let mut found = find(server, role);
                kill(found.pid, Signal::SIGKILL);
                for _ in 0..*successors {
                    found = successor(server, role, found.pid);
                    kill(found.pid, Signal::SIGKILL);
                }
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Kill { role, signal } => write!(out, "{signal} to {role}"),
            Fault::Pause { role, ms } => write!(out, "{role} stops for {ms} ms"),
            Fault::PauseThenKill { role, ms } => write!(out, "{role} stops for {ms} ms and dies"),
            Fault::KillSeveral { roles, signal } => write!(out, "{signal} to {}", roles.join(", ")),
            Fault::KillSpare => write!(out, "the spare engine dies"),
            Fault::KillSuccessors { role, successors } => {
                write!(out, "{role} dies, and {successors} successors while they start")
            }
        }
    }
}

fn find(server: &Server, role: &str) -> Process {
    wait_until(&format!("{role} runs"), PATIENCE, || server.role(role))
}

fn pause(server: &Server, role: &str, ms: u64, then: Signal) {
    let process = find(server, role);
    kill(process.pid, Signal::SIGSTOP);
    std::thread::sleep(Duration::from_millis(ms));
    kill(process.pid, then);
}

fn successor(server: &Server, role: &str, old: u32) -> Process {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = server.role(role).filter(|found| found.pid != old) {
            return found;
        }
        assert!(Instant::now() < deadline, "{role} has no successor after {PATIENCE:?}");
        std::thread::sleep(SUCCESSOR_LOOK);
    }
}
