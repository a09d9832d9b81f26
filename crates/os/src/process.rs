//! What a process is to others: children that do not outlive their parent, also those whose program knows nothing of
//! us, and the name under which lists of processes show it.

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, Signal, signal};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Place of `arg_start`, the address of the arguments, in /proc/self/stat behind the program's name (proc(5), field
/// 48).
const ARG_START_FIELD: usize = 45;

/// The limit that an operator can raise where the system refused something, for the end of a message; empty if there is
/// none that is known to be the cause.
pub fn limit_behind(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE) => "; the limit on open files is too low (ulimit -n)",
        Some(Errno::ENFILE) => "; the machine is out of file descriptors (fs.file-max)",
        Some(Errno::EAGAIN) => {
            "; a limit on processes (ulimit -u, pids.max of the control group) or on memory (ulimit -v) is reached"
        }
        Some(Errno::EFBIG) => "; the limit on file sizes is too low for shared memory (ulimit -f)",
        _ => "",
    }
}

/// Makes a write beyond `ulimit -f` an error, for this process and all that it starts, where it would end them without
/// a word.
pub fn survive_file_limit() -> io::Result<()> {
    // SAFETY: the signal is ignored; no code of ours runs in a signal handler.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }?;
    Ok(())
}

/// Gives the signal its default effect, for this process and all that it starts: a parent may have left it ignored.
pub fn restore_default(restored: Signal) -> io::Result<()> {
    // SAFETY: no code of ours runs in a signal handler.
    unsafe { signal(restored, SigHandler::SigDfl) }?;
    Ok(())
}

/// Whether this process ignores the signal, as it may since its start: nohup(1) and shells leave that to what they
/// start.
pub fn ignores(signal: Signal) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action the call only writes the old one to the memory that it is given.
    let asked = unsafe { libc::sigaction(signal as libc::c_int, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: the call has succeeded, so the action is written.
    asked == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// The kernel ends the command's process when the thread that starts it ends. It outlives an exec, not a fork.
pub fn dies_with_parent(command: &mut Command) {
    let set = || nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from);
    // SAFETY: between fork and exec only one system call is made, which allocates nothing and takes no lock.
    unsafe { command.pre_exec(set) };
}

/// Shows this process under another name where its first argument is shown, as by `ps`: the kernel reads it from this
/// process's memory. Errors: the name is longer than that argument, or it is not where the kernel says.
pub fn rename(name: &str) -> io::Result<()> {
    let wrong = |what: &'static str| io::Error::new(io::ErrorKind::InvalidInput, what);
    let arguments = std::fs::read("/proc/self/cmdline")?;
    let now = arguments.split(|byte| *byte == 0).next().unwrap_or_default();
    let mut wanted = name.as_bytes().to_vec();
    if name.contains('\0') || wanted.len() > now.len() {
        return Err(wrong("the name does not fit in the place of the first argument"));
    }
    wanted.resize(now.len(), 0);
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The program's name stands in parentheses and may hold anything.
    let mut fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let address = fields.nth(ARG_START_FIELD).and_then(|word| word.parse::<u64>().ok());
    let address = address.ok_or_else(|| wrong("the kernel does not say where the arguments are"))?;
    let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem")?;
    let mut found = vec![0; now.len()];
    memory.read_exact_at(&mut found, address)?;
    if found != now {
        return Err(wrong("the arguments are not where the kernel says"));
    }
    // No reference to these bytes exists: the standard library copies arguments out of them.
    memory.write_all_at(&wanted, address)
}

/// Place of `env_start`, the address of the environment that the process was started with, likewise (field 50).
const ENV_START_FIELD: usize = 47;

/// Overwrites the value of a variable in the environment that this process was started with, which /proc/PID/environ
/// shows: what was read of it stays where it was copied to. Nothing is done if there is no such variable.
pub fn wipe_variable(name: &str) -> io::Result<()> {
    let environment = std::fs::read("/proc/self/environ")?;
    let prefix = [name.as_bytes(), b"="].concat();
    let mut at = 0;
    for entry in environment.split(|byte| *byte == 0) {
        if let Some(value) = entry.strip_prefix(prefix.as_slice()) {
            let stat = std::fs::read_to_string("/proc/self/stat")?;
            let mut fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
            let start = fields.nth(ENV_START_FIELD).and_then(|word| word.parse::<u64>().ok());
            let start = start.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
            let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem")?;
            // No reference to these bytes exists: the standard library copies variables out of them.
            return memory.write_all_at(&vec![0; value.len()], start + at + prefix.len() as u64);
        }
        at += entry.len() as u64 + 1;
    }
    Ok(())
}

/// Other processes of the same user may no longer look into this one: no ptrace, no /proc/PID/mem, environ or fd, and
/// no core dump.
pub fn hide() -> io::Result<()> {
    Ok(nix::sys::prctl::set_dumpable(false)?)
}

/// Where memory runs out, the kernel ends processes of a higher score first. Any process may raise its own.
pub fn raise_oom_score(score: u16) -> io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", score.to_string())
}

/// Asks for the CPU's tile registers (AMX), which Linux gives on request only and to all threads of a process. False
/// where there are none.
pub fn ask_for_tiles() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // `ARCH_REQ_XCOMP_PERM` and `XFEATURE_XTILEDATA`.
        const REQUEST: libc::c_ulong = 0x1023;
        const TILE_DATA: libc::c_ulong = 18;
        // SAFETY: the request takes an integer and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) == 0 }
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_may_be_ignored_since_the_start_and_heard_again() {
        assert!(!ignores(Signal::SIGXFSZ));
        survive_file_limit().unwrap();
        assert!(ignores(Signal::SIGXFSZ));
        restore_default(Signal::SIGXFSZ).unwrap();
        assert!(!ignores(Signal::SIGXFSZ));
    }

    #[test]
    fn a_process_is_shown_under_its_new_name() {
        let shown = || std::fs::read("/proc/self/cmdline").unwrap();
        let before = shown();
        let len = before.iter().position(|byte| *byte == 0).unwrap();
        rename(&"x".repeat(len + 1)).expect_err("the next argument stands there");
        rename("a\0b").expect_err("one name, not two");
        assert_eq!(shown(), before);
        for name in ["pinion-engine-0", "p", ""] {
            rename(name).expect("this process may write to its own memory");
            let now = shown();
            assert_eq!(&now[..name.len()], name.as_bytes());
            assert!(now[name.len()..=len].iter().all(|byte| *byte == 0), "{name}: {now:?}");
            assert_eq!(now[len..], before[len..], "{name}: the other arguments");
        }
    }
}
