//! What /proc tells about processes.

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::fs;

/// A process as its parent's list shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Name of its first argument, such as `pinion-engine-0`.
    pub name: String,
    /// Its id.
    pub pid: u32,
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted");
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// State letter and parent of a process.
fn state_and_parent(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold anything.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

/// Whether the process exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    state_and_parent(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// Living children, by name.
pub(crate) fn children(parent: u32) -> Vec<Process> {
    let mut found: Vec<Process> = pids()
        .filter(|&pid| {
            state_and_parent(pid).is_some_and(|(state, of)| of == parent && !matches!(state, 'Z' | 'X'))
        })
        .filter_map(|pid| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let first = command.split(|&b| b == 0).next()?;
            let name = String::from_utf8_lossy(first).rsplit('/').next()?.to_owned();
            Some(Process { name, pid })
        })
        .collect();
    found.sort();
    found
}

/// Every process that inherited the environment entry `mark`. Zombies have no environment.
pub(crate) fn marked(mark: &str) -> Vec<Process> {
    let has_mark = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&b| b == 0).any(|entry| entry == mark.as_bytes())
    };
    let name = |pid| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned();
    pids().filter(has_mark).map(|pid| Process { name: name(pid), pid }).collect()
}

/// The CPUs that the process may run on, in the kernel's list form; `None` if it is gone.
pub fn cpus_allowed(pid: u32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(line.trim().to_owned())
}

/// Open descriptors of a living process.
pub fn descriptor_count(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Sends a signal; a process that is gone already is fine.
pub fn kill(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("process ids are small"));
    match nix::sys::signal::kill(pid, signal) {
        Ok(()) | Err(nix::Error::ESRCH) => {}
        Err(error) => panic!("cannot send {signal} to {pid}: {error}"),
    }
}
