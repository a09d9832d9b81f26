//! Profilers of roles: each role process is started by `nsys profile` or `perf record`, which begins to record when
//! it is told to, and what came of it is written down in `profile_manifest.json`. libtorch's profiler needs no program
//! around a role: the engine gets a command like any other ([`crate::admin`]), and only the manifest is made here.
//!
//! A wrapper is the launcher's child and the role is the wrapper's. The wrapper dies with the launcher, the role with
//! its wrapper; the role's end is the wrapper's, which passes its exit code on once the report is written. Standard
//! input, by which a role is handed its descriptors, goes through the wrapper untouched.
//!
//! Start and stop: perf reads "enable" and "disable" from a pipe with a name in the role's folder; nsys is told by
//! `nsys start` and `nsys stop`, which are never waited for but looked at in every turn. Both may be given twice.

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use pinion_config::{Backend, Config, Observe, Profiler};
use pinion_os::clock;
use pinion_protocol::{Peer, Role};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// Samples a second of `perf record`: no multiple of what a timer would do.
const PERF_HZ: &str = "499";

/// One start of one role under the profiler.
struct Run {
    peer: Peer,
    folder: PathBuf,
    command: Vec<String>,
    environment: BTreeMap<String, String>,
    session: String,
    error: Option<String>,
}

/// An error that names what it is about.
fn about(error: io::Error, what: String) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// The profiler of a service.
pub struct Profile {
    profiler: Profiler,
    backend: Backend,
    observe: Observe,
    began_unix_s: u64,
    runs: RefCell<Vec<Run>>,
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} into {}", self.profiler.name(), self.observe.profile_dir.display())
    }
}

impl Profile {
    /// What the config asks for, if it does.
    pub fn of(config: &Config) -> Option<Profile> {
        let profiler = config.observe.profiler?;
        Some(Profile {
            profiler,
            backend: config.backend,
            observe: config.observe.clone(),
            began_unix_s: clock::unix_s(),
            runs: RefCell::new(Vec::new()),
        })
    }

    /// The command that starts `role` under the profiler, with `variables` in its environment; `None` if nothing stands
    /// between launcher and role.
    pub(crate) fn wrap(
        &self,
        peer: Peer,
        role: &Path,
        variables: &[(&'static str, String)],
    ) -> io::Result<Option<Command>> {
        if !self.profiler.wraps() && peer.role != Role::Engine {
            return Ok(None);
        }
        let folder = self.observe.profile_folder(self.backend, peer).expect("there is a profiler");
        fs::create_dir_all(&folder)
            .map_err(|error| about(error, format!("--profile-dir: cannot make {}", folder.display())))?;
        let times = self.runs.borrow().iter().filter(|run| run.peer == peer).count();
        let suffix = if times == 0 { String::new() } else { format!("-{}", times + 1) };
        let session = format!("pinion-{}-{peer}{suffix}", std::process::id());
        let arguments = match self.profiler {
            Profiler::Nsys => nsys_arguments(&folder.join(format!("report{suffix}")), &session),
            Profiler::Perf => {
                let pipe = control_pipe(&folder);
                if let Err(error) = fs::remove_file(&pipe)
                    && error.kind() != io::ErrorKind::NotFound
                {
                    return Err(error);
                }
                mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR)?;
                perf_arguments(&folder.join(format!("perf{suffix}.data")), &pipe)
            }
            Profiler::Torch => Vec::new(),
        };
        let mut wrapper = None;
        let mut words = Vec::new();
        if self.profiler.wraps() {
            let mut command = Command::new(self.profiler.name());
            command.args(&arguments).arg(role);
            let log = File::create(folder.join(format!("profiler{suffix}.log")))?;
            command.stdout(Stdio::from(log));
            pinion_os::process::dies_with_parent(&mut command);
            words.push(self.profiler.name().to_owned());
            words.extend(arguments);
            wrapper = Some(command);
        }
        words.push(role.display().to_string());
        self.runs.borrow_mut().push(Run {
            peer,
            folder,
            command: words,
            environment: variables.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
            session,
            error: None,
        });
        Ok(wrapper)
    }

    /// A role, or its start, has ended.
    pub(crate) fn ended(&self, peer: Peer, how: &str) {
        let mut runs = self.runs.borrow_mut();
        if let Some(run) = runs.iter_mut().rev().find(|run| run.peer == peer) {
            run.error = Some(how.to_owned());
        }
    }

    /// Tells the latest run of each role to record, or not to. Gives what must end well before that is done.
    fn tell(&self, starts: bool) -> io::Result<Vec<Child>> {
        let runs = self.runs.borrow();
        let mut latest: BTreeMap<Peer, &Run> = BTreeMap::new();
        for run in runs.iter() {
            latest.insert(run.peer, run);
        }
        let mut under_way = Vec::new();
        for run in latest.values() {
            match self.profiler {
                Profiler::Nsys => {
                    let word = if starts { "start" } else { "stop" };
                    let mut command = Command::new(self.profiler.name());
                    command.arg(word).arg(format!("--session={}", run.session)).stdin(Stdio::null());
                    command.stdout(Stdio::null());
                    pinion_os::process::dies_with_parent(&mut command);
                    under_way.push(command.spawn()?);
                }
                Profiler::Perf => {
                    let word: &[u8] = if starts { b"enable\n" } else { b"disable\n" };
                    let mut options = OpenOptions::new();
                    // A profiler that does not listen is an error and not a wait.
                    options.write(true).custom_flags(nix::libc::O_NONBLOCK);
                    options.open(control_pipe(&run.folder))?.write_all(word)?;
                }
                // The engine gets the launcher's command.
                Profiler::Torch => {}
            }
        }
        Ok(under_way)
    }

    /// Writes down what was started, how, and which files came of it.
    pub(crate) fn write_manifest(&self) {
        let (runs, root) = (self.runs.borrow(), &self.observe.profile_dir);
        let manifest = json!({
            "meta": {
                "tool": self.profiler.name(),
                "backend": self.backend.name(),
                "version": env!("CARGO_PKG_VERSION"),
                "launcher_pid": std::process::id(),
                "began_unix_s": self.began_unix_s,
                "ended_unix_s": clock::unix_s(),
            },
            "runs": runs.iter().map(|run| run.to_json(root)).collect::<Vec<Value>>(),
        });
        let path = root.join("profile_manifest.json");
        let written = fs::create_dir_all(root).and_then(|()| fs::write(&path, format!("{manifest:#}\n")));
        if let Err(error) = written {
            tracing::error!(path = %path.display(), %error, "cannot write what was profiled");
        }
    }
}

impl Run {
    fn to_json(&self, root: &Path) -> Value {
        let shown = |path: &Path| path.strip_prefix(root).unwrap_or(path).display().to_string();
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        // The control pipe is no result.
        let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        let mut files: Vec<String> = files.map(|entry| shown(&entry.path())).collect();
        files.sort_unstable();
        json!({
            "role": self.peer.to_string(),
            "command": self.command,
            "environment": self.environment,
            "output": shown(&self.folder),
            "log": files.iter().find(|name| name.ends_with(".log")),
            "error": self.error,
            "files": files,
        })
    }
}

fn control_pipe(folder: &Path) -> PathBuf {
    folder.join("control")
}

fn nsys_arguments(output: &Path, session: &str) -> Vec<String> {
    let output = format!("--output={}", output.display());
    let session = format!("--session-new={session}");
    // Nothing is recorded before `nsys start`; `nsys stop` writes a report and lets the role go on.
    ["profile", "--start-later=true", "--kill=none", "--wait=all", "--trace=cuda,nvtx,osrt", "--sample=none"]
        .into_iter()
        .chain(["--cpuctxsw=none", "--cuda-graph-trace=node", "--force-overwrite=true"])
        .map(str::to_owned)
        .chain([session, output])
        .collect()
}

fn perf_arguments(output: &Path, pipe: &Path) -> Vec<String> {
    let control = format!("--control=fifo:{}", pipe.display());
    let output = format!("--output={}", output.display());
    ["record", "--delay=-1", "--call-graph=fp", "--freq", PERF_HZ]
        .into_iter()
        .map(str::to_owned)
        .chain([control, output, "--".to_owned()])
        .collect()
}

/// The answer for an operator.
pub(crate) type Outcome = Result<(), String>;

/// A start or stop that is under way.
struct Pending {
    asker: Peer,
    number: u64,
    deadline_ns: u64,
    children: Vec<Child>,
}

/// Whether the profilers record, and the command that is changing it.
#[derive(Default)]
pub(crate) struct Recording {
    on: bool,
    pending: Option<Pending>,
}

impl Recording {
    /// An operator wants recording to start or to stop. The outcome, unless it is not known yet.
    pub(crate) fn order(
        &mut self,
        profile: Option<&Profile>,
        starts: bool,
        (asker, number, deadline_ns): (Peer, u64, u64),
    ) -> Option<Outcome> {
        let Some(profile) = profile else {
            return Some(Err("the service was not started with --profile".to_owned()));
        };
        if self.pending.is_some() {
            return Some(Err("a start or stop of the profiler is under way".to_owned()));
        }
        if self.on == starts {
            return Some(Ok(()));
        }
        match profile.tell(starts) {
            Ok(children) if children.is_empty() => {
                self.on = starts;
                Some(Ok(()))
            }
            Ok(children) => {
                self.pending = Some(Pending { asker, number, deadline_ns, children });
                None
            }
            Err(error) => Some(Err(format!("cannot tell the profiler: {error}"))),
        }
    }

    /// Looks at the command in flight. Returns its frontend, its number and its result once that is known.
    pub(crate) fn look(&mut self, now_ns: u64) -> Option<(Peer, u64, Outcome)> {
        let pending = self.pending.as_mut()?;
        let mut bad: Option<ExitStatus> = None;
        pending.children.retain_mut(|child| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                bad = bad.or((!status.success()).then_some(status));
                false
            }
            Err(_) => false,
        });
        let outcome = match bad {
            Some(status) => Err(format!("the profiler refused: {status}")),
            None if pending.children.is_empty() => Ok(()),
            None if now_ns > pending.deadline_ns => Err("the profiler did not answer in time".to_owned()),
            None => return None,
        };
        let Pending { asker, number, mut children, .. } = self.pending.take()?;
        for child in &mut children {
            // No client waits for it; it is reaped, and ends at the latest with the launcher.
            let _ = child.kill().and_then(|()| child.try_wait());
        }
        if outcome.is_ok() {
            self.on = !self.on;
        }
        Some((asker, number, outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_profiler_an_order_is_refused_in_words() {
        let peer = Peer::new(pinion_protocol::Role::Frontend, 0);
        let outcome = Recording::default().order(None, true, (peer, 1, 0));
        assert!(outcome.is_some_and(|outcome| outcome.is_err_and(|reason| reason.contains("--profile"))));
    }
}
