//! What a child process loses before its program runs: capabilities, and every way to get some back.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// `CAP_IPC_LOCK` (capabilities(7)): lock memory beyond RLIMIT_MEMLOCK.
const IPC_LOCK: u32 = 14;
/// More capabilities than any kernel has; the kernel says where its own end.
const CAPABILITIES_MAX: u32 = 64;
/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;

/// The header of capget(2) and capset(2).
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// One half of the three sets.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// The command's process runs without capabilities: the effective, permitted, inheritable and ambient sets are
/// empty, the bounding set too where this process may empty it, and `no_new_privs` keeps exec from giving any.
///
/// The right to lock memory is kept in another form: RLIMIT_MEMLOCK is lifted if this process may do that. Where it has
/// CAP_IPC_LOCK but may not lift the limit, the child keeps that one capability.
pub fn drop_in_child(command: &mut Command) {
    // SAFETY: between fork and exec only system calls are made, which allocate nothing and take no lock.
    unsafe { command.pre_exec(drop_all) };
}

fn drop_all() -> io::Result<()> {
    let held = held()?;
    let unlimited = getrlimit(Resource::RLIMIT_MEMLOCK).is_ok_and(|(soft, _)| soft == RLIM_INFINITY)
        || setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY).is_ok();
    let lock = (1_u64 << IPC_LOCK) & held;
    let kept = if unlimited { 0 } else { lock };
    for capability in (0..CAPABILITIES_MAX).filter(|bit| kept & (1 << bit) == 0) {
        // EPERM without CAP_SETPCAP: then the set stays, and `no_new_privs` keeps it without effect. EINVAL past the
        // last capability.
        if prctl(libc::PR_CAPBSET_DROP, capability.into(), 0).is_err() {
            break;
        }
    }
    for capability in (0..CAPABILITIES_MAX).filter(|bit| kept & (1 << bit) == 0) {
        if prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_LOWER as u64, capability.into()).is_err() {
            break;
        }
    }
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)?;
    set_to(kept)
}

fn prctl(option: libc::c_int, second: u64, third: u64) -> io::Result<()> {
    // SAFETY: the options used here take integers and touch no memory of ours.
    match unsafe { libc::prctl(option, second, third, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The permitted capabilities of the calling thread, a bit each.
fn held() -> io::Result<u64> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut halves = [Half::default(); 2];
    // SAFETY: version 3 of the header has two halves, and both pointers are valid for the call.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, halves.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::from(halves[0].permitted) | u64::from(halves[1].permitted) << 32)
}

fn set_to(kept: u64) -> io::Result<()> {
    let mut header = Header { version: VERSION, pid: 0 };
    let half = |bits: u64| Half { effective: bits as u32, permitted: bits as u32, inheritable: bits as u32 };
    let halves = [half(kept), half(kept >> 32)];
    // SAFETY: as above; the kernel only reads the halves.
    match unsafe { libc::syscall(libc::SYS_capset, &raw mut header, halves.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status_of(command: &mut Command) -> String {
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }

    fn line<'a>(status: &'a str, name: &str) -> &'a str {
        status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim()
    }

    #[test]
    fn a_child_has_no_capabilities_and_gets_none() {
        let show = || {
            let mut command = Command::new("cat");
            command.arg("/proc/self/status");
            command
        };
        let plain = status_of(&mut show());
        let mut command = show();
        drop_in_child(&mut command);
        let confined = status_of(&mut command);
        assert_eq!(line(&confined, "NoNewPrivs:"), "1");
        // A process that may lift its limits needs no capability to lock memory.
        let lifts = u64::from_str_radix(line(&plain, "CapEff:"), 16).unwrap() & (1 << 24) != 0;
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            let bits = u64::from_str_radix(line(&confined, set), 16).unwrap();
            assert_eq!(bits & !(1 << IPC_LOCK), 0, "{set}");
            assert!(!lifts || bits == 0, "{set}");
        }
        let may_drop = u64::from_str_radix(line(&plain, "CapEff:"), 16).unwrap() & (1 << 8) != 0;
        assert!(!may_drop || !lifts || line(&confined, "CapBnd:") == "0000000000000000");
    }
}
