//! What a role runs in: a process of its own, (`--in-process`) a thread of this one, or a simulation's own loop.
//!
//! The thread form is the control of an ablation: the same roles, rings and control messages without process
//! boundaries. A thread cannot be killed, so a role that hangs there is left behind and ends with the process.

use crate::profile::Profile;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pinion_config::{Process, SECRET_VARIABLES, SUPERVISOR_VARIABLES};
use pinion_os::pidfd;
use pinion_os::privileges::drop_in_child;
use pinion_os::process::dies_with_parent;
use pinion_protocol::{Peer, Role};
use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::rc::Rc;
use std::thread::JoinHandle;

/// Exit code of a process whose main thread panicked; a role's thread that panics is reported with the same.
const PANIC_CODE: i32 = 101;

/// Stands for the exit code of a process of which the kernel does not say how it ended.
const UNKNOWN_CODE: i32 = 255;

/// Runs a role on the calling thread, given its name and its end of the descriptor socket.
pub type RoleMain = fn(Peer, OwnedFd) -> ExitCode;

/// Where roles run.
#[derive(Clone)]
pub enum Host {
    /// Each in a process, from binaries in this folder.
    Processes {
        /// Of `pinion-<role>`.
        folder: PathBuf,
        /// Wraps them in a profiler, if there is one.
        profile: Option<Rc<Profile>>,
        /// They lose their capabilities.
        confined: bool,
    },
    /// Each in a thread of this process.
    Threads(RoleMain),
    /// The caller runs them: it gets each one's name, its end of the descriptor socket, and what to end it with.
    Caller(Rc<dyn Fn(Peer, OwnedFd, RoleEnd)>),
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Processes { folder, .. } => write!(f, "processes of {}", folder.display()),
            Host::Threads(_) => write!(f, "threads"),
            Host::Caller(_) => write!(f, "the caller"),
        }
    }
}

/// For the launcher the role of a [`Host::Caller`] lives until this is used or dropped, which is a failure.
#[derive(Debug)]
pub struct RoleEnd {
    exit: Rc<Cell<ExitCode>>,
    /// Hangs up when this is dropped.
    _alive: UnixStream,
}

impl RoleEnd {
    /// The role has ended with this code.
    pub fn end(self, code: ExitCode) {
        self.exit.set(code);
    }
}

/// A living role.
pub(crate) enum Body {
    Process {
        child: Child,
        pidfd: OwnedFd,
    },
    Thread {
        handle: Option<JoinHandle<ExitCode>>,
        /// Hangs up when the thread ends, however it ends.
        ended: UnixStream,
    },
    Caller {
        /// Shared with the [`RoleEnd`] as long as the role lives.
        exit: Rc<Cell<ExitCode>>,
        /// Hangs up with the [`RoleEnd`].
        ended: UnixStream,
    },
}

impl Host {
    /// What roles are started by.
    pub(crate) fn profile(&self) -> Option<&Profile> {
        match self {
            Host::Processes { profile, .. } => profile.as_deref(),
            Host::Threads(_) | Host::Caller(_) => None,
        }
    }

    /// Starts `process` with `socket` as its end of the descriptor socket.
    pub(crate) fn spawn(&self, process: &Process, socket: OwnedFd) -> io::Result<Body> {
        match self {
            Host::Processes { folder, profile, confined } => {
                let binary = folder.join(binary_name(process.peer.role));
                let variables = process.thread_variables();
                let wrapper = match profile {
                    None => None,
                    Some(profile) => profile.wrap(process.peer, &binary, &variables)?,
                };
                let wraps = wrapper.is_some();
                let name = || format!("{}-{}", binary_name(process.peer.role), process.peer.index);
                let mut command = wrapper.unwrap_or_else(|| role_command(&binary, name()));
                if *confined {
                    drop_in_child(&mut command);
                }
                start(&mut command, process, socket).map_err(|error| match error.kind() {
                    kind @ (io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
                        let program = command.get_program().to_string_lossy().into_owned();
                        let missing = wraps && kind == io::ErrorKind::NotFound;
                        let hint = if missing { "; the profiler (--profile) must be on PATH" } else { "" };
                        io::Error::new(kind, format!("{program}: {error}{hint}"))
                    }
                    _ => error,
                })
            }
            Host::Threads(main) => {
                let (ended, alive) = UnixStream::pair()?;
                let (main, peer) = (*main, process.peer);
                let name = format!("{peer}");
                let life = move || {
                    let _alive = alive;
                    main(peer, socket)
                };
                let handle = std::thread::Builder::new().name(name).spawn(life)?;
                Ok(Body::Thread { handle: Some(handle), ended })
            }
            Host::Caller(take) => {
                let (ended, alive) = UnixStream::pair()?;
                let exit = Rc::new(Cell::new(ExitCode::FAILURE));
                take(process.peer, socket, RoleEnd { exit: exit.clone(), _alive: alive });
                Ok(Body::Caller { exit, ended })
            }
        }
    }

    /// Starts a process that may become `process`, under a name that says so. Errors: roles are no processes here.
    pub(crate) fn spawn_spare(&self, process: &Process, socket: OwnedFd) -> io::Result<Body> {
        let Host::Processes { folder, profile: None, confined } = self else {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "no spare where roles are no plain processes",
            ));
        };
        let binary = binary_name(process.peer.role);
        let mut command = role_command(&folder.join(&binary), format!("{binary}-spare"));
        // A role sees to that itself, as soon as it is loaded.
        dies_with_parent(&mut command);
        if *confined {
            drop_in_child(&mut command);
        }
        start(&mut command, process, socket)
    }
}

fn code_of(code: ExitCode) -> i32 {
    i32::from(code != ExitCode::SUCCESS)
}

fn start(command: &mut Command, process: &Process, socket: OwnedFd) -> io::Result<Body> {
    surround(command, process);
    if std::env::current_dir().is_err() {
        // Libraries fail in a folder that is gone; a path that starts there leads nowhere anyway.
        command.current_dir("/");
    }
    let child = command.stdin(Stdio::from(socket)).spawn()?;
    let pidfd = pidfd::open(child.id())?;
    Ok(Body::Process { child, pidfd })
}

impl Body {
    /// The process that the role runs in.
    pub(crate) fn pid(&self) -> u32 {
        match self {
            Body::Process { child, .. } => child.id(),
            Body::Thread { .. } | Body::Caller { .. } => std::process::id(),
        }
    }

    /// Readable once the role has ended.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Body::Process { pidfd, .. } => pidfd.as_fd(),
            Body::Thread { ended, .. } | Body::Caller { ended, .. } => ended.as_fd(),
        }
    }

    /// How the role ended, if it has; reaps it.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        match self {
            Body::Process { child, .. } => match child.try_wait() {
                Err(error) if error.raw_os_error() == Some(Errno::ECHILD as i32) => {
                    tracing::error!(pid = child.id(), "it has ended, and another has asked the kernel how");
                    Ok(Some(ExitStatus::from_raw(UNKNOWN_CODE << 8)))
                }
                waited => waited,
            },
            Body::Thread { handle, .. } => {
                if handle.as_ref().is_some_and(|handle| !handle.is_finished()) {
                    return Ok(None);
                }
                let code = match handle.take().map(JoinHandle::join) {
                    Some(Ok(code)) => code_of(code),
                    Some(Err(_)) | None => PANIC_CODE,
                };
                Ok(Some(ExitStatus::from_raw(code << 8)))
            }
            Body::Caller { exit, .. } => {
                let has_ended = Rc::strong_count(exit) == 1;
                Ok(has_ended.then(|| ExitStatus::from_raw(code_of(exit.get()) << 8)))
            }
        }
    }

    /// Ends a process now. `false` if this body cannot be ended from outside.
    pub(crate) fn kill(&self) -> bool {
        let Body::Process { child, .. } = self else { return false };
        if let Err(error) = kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL) {
            tracing::warn!(pid = child.id(), %error, "cannot kill");
        }
        true
    }
}

/// `name` is what lists of processes show.
fn role_command(binary: &Path, name: String) -> Command {
    let mut command = Command::new(binary);
    command.arg0(name).stdout(Stdio::null());
    command
}

/// Environment and limits of every role process.
fn surround(command: &mut Command, process: &Process) {
    // Ctrl-C in a terminal goes to the whole process group; only the launcher shall hear it.
    command.process_group(0).envs(process.thread_variables());
    // Roles get their config by descriptor; a secret has no business in their environment, nor has the launcher's
    // supervisor.
    for variable in SECRET_VARIABLES.iter().chain(&SUPERVISOR_VARIABLES) {
        command.env_remove(variable);
    }
}

pub(crate) fn binary_name(role: Role) -> String {
    format!("pinion-{}", role.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As where SIGCHLD is ignored: it was a fault of the system that ended the service at once.
    #[test]
    fn an_end_that_the_kernel_has_forgotten_is_an_end() {
        let child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        let pidfd = pidfd::open(child.id()).unwrap();
        assert!(nix::sys::wait::waitpid(pid, None).is_ok());
        let status = Body::Process { child, pidfd }.try_wait().expect("no fault");
        assert!(status.is_some_and(|status| !status.success()), "{status:?}");
    }
}
