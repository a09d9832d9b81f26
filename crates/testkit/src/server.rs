//! A running service: spawned as an operator would, watched through /proc, and never left behind.

use crate::answer::{Answer, Api};
use crate::events::Events;
use crate::folder::{Folder, fake_model};
use crate::http::{Connection, Response};
use crate::log::Log;
use crate::metrics::Metrics;
use crate::oracle::Oracle;
use crate::port::free_port;
use crate::process::{self, Process, kill};
use crate::wait::{PATIENCE, wait_until};
use nix::sys::signal::Signal;
use pinion_os::process::restore_default;
use serde_json::Value;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Context of the fake model folder, in tokens.
const FAKE_CONTEXT: u32 = 512;
/// Lines of the service's log shown when a test fails.
const LOG_LINES_SHOWN: usize = 60;
/// Part of the log line of a request that ended: there are too many of them to show.
const REQUEST_LINE: &str = " INFO request ";
/// How long killed processes may take to be gone.
const REAP_TIME: Duration = PATIENCE;
/// What lists of processes call an engine that has no work yet.
const SPARE_NAME: &str = "pinion-engine-spare";

/// What is 0 when no request is under way.
const IDLE_METRICS: [&str; 5] = [
    "pinion_request_slots_used",
    "pinion_kv_blocks_used",
    "pinion_requests_running",
    "pinion_requests_waiting",
    "pinion_decode_states",
];
/// Looks in a row that find everything idle.
const IDLE_LOOKS: usize = 5;

/// The launcher's binary of the profile that this test was built with; the roles' stand beside it.
///
/// # Panics
/// If it has not been built.
pub fn launcher_binary() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test.parent().and_then(Path::parent).expect("tests are built into target/<profile>/deps");
    let path = folder.join("pinion");
    assert!(path.is_file(), "{} is missing: run `cargo build --workspace` first", path.display());
    path
}

/// A command with a clean environment and an own TMPDIR. `wrapper` is a program with its arguments that becomes the
/// binary, such as prlimit(1).
fn command(wrapper: &[&str], binary: &Path, arguments: &[&str], scratch: &Folder) -> Command {
    let mut command = match wrapper {
        [] => Command::new(binary),
        [program, rest @ ..] => {
            let mut command = Command::new(program);
            command.args(rest).arg(binary);
            command
        }
    };
    // A script that runs the tests in the background has them ignore these, and the launcher would, too.
    for signal in [Signal::SIGINT, Signal::SIGQUIT] {
        restore_default(signal).expect("a signal has a default");
    }
    for (name, _) in std::env::vars_os() {
        if ["PINION_", "OTEL_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    // Also where there is a GPU: what a test expects is the CPU's, unless its flags ask for another device.
    command.env_remove("RUST_LOG").env("TMPDIR", scratch.path()).env("PINION_DEVICE", "cpu");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn mark_of(scratch: &Folder) -> String {
    format!("TMPDIR={}", scratch.text())
}

/// How a run of `pinion` ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; `None` after a signal.
    pub code: Option<i32>,
    /// All of stdout.
    pub stdout: String,
    /// All of stderr.
    pub stderr: String,
    /// Processes that outlived it.
    pub left: Vec<Process>,
    /// Files that it left in its TMPDIR.
    pub files: Vec<String>,
}

/// Runs `pinion` with these arguments and variables to its end.
///
/// # Panics
/// If it has not ended after `limit`; it is killed then.
pub fn run_to_end(arguments: &[&str], variables: &[(&str, &str)], limit: Duration) -> Ended {
    run_binary_to_end(&launcher_binary(), arguments, variables, limit)
}

/// The same under a program that becomes it.
///
/// # Panics
/// As [`run_to_end`].
pub fn run_under_to_end(wrapper: &[&str], arguments: &[&str], limit: Duration) -> Ended {
    let scratch = Folder::new();
    end_of(command(wrapper, &launcher_binary(), arguments, &scratch), &scratch, limit)
}

/// The same with a launcher at another place.
///
/// # Panics
/// As [`run_to_end`].
pub fn run_binary_to_end(
    binary: &Path,
    arguments: &[&str],
    variables: &[(&str, &str)],
    limit: Duration,
) -> Ended {
    let scratch = Folder::new();
    let mut command = command(&[], binary, arguments, &scratch);
    command.envs(variables.iter().copied());
    end_of(command, &scratch, limit)
}

fn end_of(mut command: Command, scratch: &Folder, limit: Duration) -> Ended {
    let mut child = command.spawn().expect("pinion can be started");
    let stdout = Log::of(child.stdout.take().expect("stdout is piped"));
    let stderr = Log::of(child.stderr.take().expect("stderr is piped"));
    let status = wait_for_exit(&mut child, limit).unwrap_or_else(|| {
        kill(child.id(), Signal::SIGKILL);
        panic!("{command:?} still runs after {limit:?}\n{}", stderr.text())
    });
    let left = process::marked(&mark_of(scratch));
    left.iter().for_each(|process| kill(process.pid, Signal::SIGKILL));
    wait_until("the output is complete", REAP_TIME, || {
        (stdout.is_complete() && stderr.is_complete()).then_some(())
    });
    let (stdout, stderr, files) = (stdout.text(), stderr.text(), scratch.entries());
    Ended { code: status.code(), stdout, stderr, left, files }
}

fn wait_for_exit(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let deadline = std::time::Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().expect("an own child can be waited for") {
            return Some(status);
        }
        if std::time::Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A service. Dropping it kills it and checks that no process is left.
pub struct Server {
    child: Child,
    log: Log,
    scratch: Folder,
    model_folder: PathBuf,
    /// Kept until the service is gone.
    _own_model: Option<Folder>,
    ready: Option<(SocketAddr, String)>,
}

impl Server {
    /// Starts `pinion serve --port 0 --model FOLDER` with more flags, and waits until it is ready.
    pub fn start(model_folder: &Path, flags: &[&str]) -> Server {
        let mut server = Server::launch(model_folder, flags);
        server.wait_ready();
        server
    }

    /// The fake backend over a folder that the kit makes (one token per byte, context 512).
    pub fn fake(flags: &[&str]) -> Server {
        Server::fake_with(flags, &[])
    }

    /// The same with environment variables.
    pub fn fake_with(flags: &[&str], variables: &[(&str, &str)]) -> Server {
        let folder = fake_model(FAKE_CONTEXT);
        let flags = [&["--backend", "fake"], flags].concat();
        let mut server = Server::launch_with(folder.path(), &flags, variables);
        server._own_model = Some(folder);
        server.wait_ready();
        server
    }

    /// The fake backend, where no process of the service has more than this many descriptors. `prlimit` is a part of
    /// util-linux; it replaces itself by the launcher.
    pub fn fake_with_descriptors(count: u32, flags: &[&str]) -> Server {
        let folder = fake_model(FAKE_CONTEXT);
        let flags = [&["--backend", "fake"], flags].concat();
        let limit = format!("--nofile={count}:{count}");
        let mut server = Server::launch_under(&["prlimit", &limit], folder.path(), &flags);
        server._own_model = Some(folder);
        server.wait_ready();
        server
    }

    /// Starts without waiting. A `--port` among the flags wins over the kernel's choice.
    pub fn launch(model_folder: &Path, flags: &[&str]) -> Server {
        Server::launch_with(model_folder, flags, &[])
    }

    /// The same with environment variables.
    pub fn launch_with(model_folder: &Path, flags: &[&str], variables: &[(&str, &str)]) -> Server {
        Server::launch_as(&[], model_folder, flags, variables)
    }

    /// The same under a program that becomes it, such as prlimit(1).
    pub fn launch_under(wrapper: &[&str], model_folder: &Path, flags: &[&str]) -> Server {
        Server::launch_as(wrapper, model_folder, flags, &[])
    }

    fn launch_as(
        wrapper: &[&str],
        model_folder: &Path,
        flags: &[&str],
        variables: &[(&str, &str)],
    ) -> Server {
        let scratch = Folder::new();
        let model = model_folder.to_str().expect("model folders have UTF-8 names");
        let mut arguments = vec!["serve", "--model", model];
        if !flags.contains(&"--port") {
            arguments.extend(["--port", "0"]);
        }
        arguments.extend(flags);
        let mut command = command(wrapper, &launcher_binary(), &arguments, &scratch);
        let mut child = command.envs(variables.iter().copied()).spawn().expect("pinion can be started");
        let log = Log::of(child.stderr.take().expect("stderr is piped"));
        drop(Log::of(child.stdout.take().expect("stdout is piped")));
        Server { child, log, scratch, model_folder: model_folder.to_owned(), _own_model: None, ready: None }
    }

    /// The fake backend, started by this line of shell, in which `"$0" "$@"` is the command, with its standard error
    /// where `stderr` says. Nothing is read of that; it is ready when it says so on its port.
    pub fn fake_by_shell(line: &str, stderr: Stdio, flags: &[&str]) -> Server {
        let (scratch, model) = (Folder::new(), fake_model(FAKE_CONTEXT));
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let (binary, port) = (launcher_binary(), address.port().to_string());
        let binary = binary.to_str().expect("the target folder has a UTF-8 name");
        let arguments =
            ["-c", line, binary, "serve", "--backend", "fake", "--model", model.text(), "--port", &port];
        let mut command = command(&[], Path::new("/bin/sh"), &[&arguments, flags].concat(), &scratch);
        let child = command.stdout(Stdio::null()).stderr(stderr).spawn().expect("there is a shell");
        let (log, model_folder) = (Log::none(), model.path().to_owned());
        let mut server = Server { child, log, scratch, model_folder, _own_model: Some(model), ready: None };
        wait_until("the service is ready", PATIENCE, || {
            let gone = server.child.try_wait().expect("an own child can be waited for");
            assert!(gone.is_none(), "the service ended before it was ready: {gone:?}");
            let mut connection = Connection::open(address).ok()?;
            connection.request("GET", "/ready", &[], b"").ok()?;
            (connection.response().ok()?.status() == 200).then_some(())
        });
        server.ready = Some((address, String::new()));
        let version = server.get("/version").json();
        server.ready = version["model"].as_str().map(|model| (address, model.to_owned()));
        server
    }

    /// Waits for the line that says that it is ready.
    ///
    /// # Panics
    /// If it ends before.
    pub fn wait_ready(&mut self) {
        if let Err(status) = self.wait_ready_or_end() {
            panic!("the service ended before it was ready ({status}):\n{}", self.log.text());
        }
    }

    /// Waits until it is ready, or has ended before it was.
    pub fn wait_ready_or_end(&mut self) -> Result<(), ExitStatus> {
        let found = wait_until("the service is ready or gone", PATIENCE, || {
            let text = self.log.text();
            let line = text.lines().find_map(|line| line.strip_prefix("pinion is ready: http://"));
            let parsed = line.and_then(|line| {
                let (address, model) = line.split_once(" serves ")?;
                Some((address.parse().ok()?, model.to_owned()))
            });
            let gone = self.child.try_wait().expect("an own child can be waited for");
            parsed.map(Ok).or(gone.map(Err))
        });
        self.ready = Some(found.inspect_err(|_| self.wait_whole_log(PATIENCE))?);
        Ok(())
    }

    /// A process that has ended may have written a line that is not read yet.
    fn wait_whole_log(&self, limit: Duration) {
        wait_until("every process has closed the log", limit, || self.log.is_complete().then_some(()));
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.ready.as_ref().expect("the service is ready").0
    }

    /// The name under which it serves its model.
    pub fn model(&self) -> &str {
        &self.ready.as_ref().expect("the service is ready").1
    }

    /// Knows what the fake backend must answer here.
    pub fn oracle(&self) -> Oracle {
        Oracle::of(&self.model_folder)
    }

    /// The launcher's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The living role processes, by name.
    pub fn roles(&self) -> Vec<Process> {
        // One that is about to be another program is still called as the launcher is.
        let is_role = |process: &Process| process.name.starts_with("pinion-") && process.name != SPARE_NAME;
        process::children(self.pid()).into_iter().filter(is_role).collect()
    }

    /// The process that waits to be the engine, if there is one.
    pub fn spare(&self) -> Option<Process> {
        process::children(self.pid()).into_iter().find(|process| process.name == SPARE_NAME)
    }

    /// The role process of this name, such as `engine-0`; `None` while it is down.
    pub fn role(&self, name: &str) -> Option<Process> {
        self.roles().into_iter().find(|process| process.name == format!("pinion-{name}"))
    }

    /// All that it and its roles have written to stderr.
    pub fn stderr_text(&self) -> String {
        self.log.text()
    }

    /// Signals the launcher.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Waits for the launcher's end, and until its log is here to its last line.
    pub fn wait_exit(&mut self, limit: Duration) -> ExitStatus {
        let status = wait_for_exit(&mut self.child, limit)
            .unwrap_or_else(|| panic!("the launcher still runs after {limit:?}"));
        self.wait_whole_log(limit);
        status
    }

    /// Every process that belongs to this service, whatever its parent is now.
    pub fn processes(&self) -> Vec<Process> {
        process::marked(&mark_of(&self.scratch))
    }

    /// Names of what lies in its TMPDIR.
    pub fn temporary_files(&self) -> Vec<String> {
        self.scratch.entries()
    }

    /// Opens a connection.
    pub fn connect(&self) -> Connection {
        Connection::open(self.address()).expect("the service accepts connections")
    }

    /// Sends one request on a new connection.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Response> {
        let mut connection = Connection::open(self.address())?;
        // A service may answer and close before it has read all of this; only without an answer it matters.
        let wrote = connection.request(method, path, fields, body);
        connection.response().map_err(|error| wrote.err().unwrap_or(error))
    }

    /// `GET path`.
    pub fn get(&self, path: &str) -> Response {
        self.request("GET", path, &[], b"").unwrap_or_else(|error| panic!("GET {path}: {error}"))
    }

    /// `POST path` with a JSON body.
    pub fn post(&self, path: &str, body: &Value) -> Response {
        let bytes = body.to_string();
        self.request("POST", path, &[], bytes.as_bytes())
            .unwrap_or_else(|error| panic!("POST {path}: {error}"))
    }

    /// Asks for text, streamed if the body says `"stream": true`. A frontend may die with the connection in its hands:
    /// then the answer is [`Cut`](crate::End::Cut).
    pub fn ask(&self, api: Api, body: &Value) -> Answer {
        let mut connection = self.connect();
        // A write that fails leaves what the service has answered before.
        let _ = connection.request("POST", api.path(), &[], body.to_string().as_bytes());
        Answer::read(api, body["stream"] == true, connection)
    }

    /// Asks for streams of events and waits until each has begun: its first token is there, and the rest comes.
    pub fn begin(&self, api: Api, bodies: &[Value]) -> Vec<Events> {
        let ask = |body: &Value| {
            let mut connection = self.connect();
            connection
                .request("POST", api.path(), &[], body.to_string().as_bytes())
                .expect("the service reads requests");
            connection
        };
        let asked: Vec<Connection> = bodies.iter().map(ask).collect();
        let begun = |mut connection: Connection| {
            let head = connection.head().expect("an answer begins");
            assert_eq!(head.status, 200, "a stream begins");
            Events::new(connection, head)
        };
        asked.into_iter().map(begun).collect()
    }

    /// Scrapes `/metrics`.
    pub fn metrics(&self) -> Metrics {
        let response = self.get("/metrics");
        assert_eq!(response.status(), 200);
        Metrics::parse(&response.text()).expect("/metrics is in Prometheus' format")
    }

    /// Sum of a metric over its labels.
    pub fn metric(&self, name: &str) -> f64 {
        self.metrics().total(name).unwrap_or_else(|| panic!("/metrics has no {name}"))
    }

    /// Waits until no request holds a slot, a KV block or a decode state. Each look is a connection of its own,
    /// so several in a row see every frontend where there is more than one.
    pub fn wait_idle(&self) {
        let deadline = std::time::Instant::now() + PATIENCE;
        let mut idle_looks = 0;
        while idle_looks < IDLE_LOOKS {
            let metrics = self.metrics();
            let value = |name: &str| metrics.total(name).unwrap_or_else(|| panic!("/metrics has no {name}"));
            let in_use: Vec<_> =
                IDLE_METRICS.map(|name| (name, value(name))).into_iter().filter(|m| m.1 != 0.0).collect();
            if in_use.is_empty() {
                idle_looks += 1;
                continue;
            }
            idle_looks = 0;
            assert!(std::time::Instant::now() < deadline, "still in use after {PATIENCE:?}: {in_use:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks for the oracle's text and checks it: the service serves.
    pub fn check_serves(&self, prompt: &str) {
        let oracle = self.oracle();
        let body = serde_json::json!({"model": self.model(), "prompt": prompt, "max_tokens": 8});
        let answer = self.ask(Api::Completions, &body);
        assert_eq!((answer.status, &answer.end), (200, &crate::End::Complete), "{answer:?}");
        assert_eq!(answer.text, oracle.text(&oracle.encode(prompt), 8));
    }

    /// Ends it as an operator would, and checks that it ends well: exit code 0, no process, no file.
    pub fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.wait_exit(PATIENCE);
        assert_eq!(status.code(), Some(0), "after SIGTERM with nothing in flight");
        assert_eq!(self.processes(), [], "processes left after a clean stop");
        assert_eq!(self.temporary_files(), [""; 0], "files left after a clean stop");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        kill(self.child.id(), Signal::SIGKILL);
        let reaped = wait_for_exit(&mut self.child, REAP_TIME).is_some();
        let deadline = std::time::Instant::now() + REAP_TIME;
        let mut left = self.processes();
        while !left.is_empty() && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
            left = self.processes();
        }
        left.iter().for_each(|process| kill(process.pid, Signal::SIGKILL));
        if std::thread::panicking() {
            let text = self.log.text();
            let lines: Vec<&str> = text.lines().filter(|line| !line.contains(REQUEST_LINE)).collect();
            eprintln!("--- end of the service's log");
            lines
                .iter()
                .skip(lines.len().saturating_sub(LOG_LINES_SHOWN))
                .for_each(|line| eprintln!("{line}"));
            eprintln!("---");
        } else {
            assert!(reaped && left.is_empty(), "processes left after SIGKILL of the launcher: {left:?}");
        }
    }
}
