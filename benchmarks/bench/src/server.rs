//! A server that is started for a measurement and ended after it.

use crate::ask;
use crate::target::Target;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pinion_os::port::free_port;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Between two looks at a server that starts or ends.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The same for most: [`Server::stop_limit`].
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// What stands for the port in a command.
const PORT_MARK: &str = "{port}";
/// What Pinion says of a flag that it does not know.
const UNKNOWN_FLAG: &str = "no such flag";

/// Why there is no server.
#[derive(Debug)]
pub(crate) enum StartFault {
    /// It does not know one of its flags: an older version.
    UnknownFlag(String),
    Failed(String),
}

impl std::fmt::Display for StartFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (StartFault::UnknownFlag(text) | StartFault::Failed(text)) = self;
        f.write_str(text)
    }
}

/// A running server. It is ended on drop.
pub(crate) struct Server {
    child: Child,
    pub target: Target,
    /// As it was run, with its port.
    pub command: String,
    /// How long it may take to end after SIGTERM before it is killed.
    pub stop_limit: Duration,
}

impl Server {
    /// Runs `command` through the shell with `{port}` replaced, both outputs into `log`, and waits until it serves.
    pub(crate) fn start(
        command: &str,
        log: &Path,
        limit: Duration,
        key: Option<&str>,
    ) -> Result<Server, StartFault> {
        let failed = |message: String| StartFault::Failed(message);
        if !command.contains(PORT_MARK) {
            return Err(failed(format!("the server command needs {PORT_MARK} where its port stands")));
        }
        let port = free_port().ok_or_else(|| failed("loopback has no free port".to_owned()))?;
        let command = command.replace(PORT_MARK, &port.to_string());
        let target = Target::parse(&format!("http://127.0.0.1:{port}"), key).map_err(failed)?;
        let open = || File::create(log).map_err(|error| failed(format!("{}: {error}", log.display())));
        let spawned = Command::new("sh")
            .arg("-c")
            .arg(format!("exec {command}"))
            .stdin(Stdio::null())
            .stdout(open()?)
            .stderr(File::options().append(true).open(log).map_err(|error| failed(error.to_string()))?)
            .spawn();
        let child = spawned.map_err(|error| failed(format!("cannot start the server: {error}")))?;
        let mut server = Server { child, target, command, stop_limit: STOP_LIMIT };
        server.wait_ready(log.to_owned(), limit)?;
        Ok(server)
    }

    fn wait_ready(&mut self, log: PathBuf, limit: Duration) -> Result<(), StartFault> {
        let deadline = Instant::now() + limit;
        let tail = || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(8)..].join("\n")
        };
        while !is_ready(&self.target) {
            if let Ok(Some(status)) = self.child.try_wait() {
                let (text, command) = (tail(), &self.command);
                if let Some(line) = text.lines().find(|line| line.contains(UNKNOWN_FLAG)) {
                    return Err(StartFault::UnknownFlag(line.trim().to_owned()));
                }
                return Err(StartFault::Failed(format!("`{command}` ended with {status}:\n{text}")));
            }
            if Instant::now() > deadline {
                let message = format!("`{}` does not serve after {limit:?}:\n{}", self.command, tail());
                return Err(StartFault::Failed(message));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        Ok(())
    }
}

/// `/health` says so, or, where there is none, `/v1/models` answers.
fn is_ready(target: &Target) -> bool {
    match ask::get(target, "/health") {
        Ok((200, _)) => true,
        Ok((404 | 405, _)) => ask::text(target, "/v1/models").is_some(),
        _ => false,
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Ok(pid) = i32::try_from(self.child.id()).map(Pid::from_raw) else { return };
        if kill(pid, Signal::SIGTERM).is_ok() {
            let deadline = Instant::now() + self.stop_limit;
            while Instant::now() < deadline {
                if !matches!(self.child.try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
            eprintln!("the server did not end in {:?} after SIGTERM; killing it", self.stop_limit);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the server is asked about itself once.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ServerFacts {
    /// How it was started, if it was started here.
    pub command: Option<String>,
    pub url: String,
    pub model: String,
    /// What it says of its version, or what its version command printed; absent in results of older versions where
    /// it had no `/version`.
    pub version: Option<serde_json::Value>,
}

/// Where servers say their version: path and field. Pinion, vLLM; llama-server; SGLang; TGI; Ollama.
const VERSIONS: [(&str, Option<&str>); 6] = [
    ("/version", None),
    ("/props", Some("build_info")),
    ("/server_info", Some("version")),
    ("/get_server_info", Some("version")),
    ("/info", Some("version")),
    ("/api/version", Some("version")),
];

/// A version that says something.
fn told(value: serde_json::Value) -> Option<serde_json::Value> {
    let is_empty = match &value {
        serde_json::Value::Null => true,
        serde_json::Value::String(text) => text.trim().is_empty(),
        serde_json::Value::Array(items) => items.is_empty(),
        serde_json::Value::Object(fields) => fields.is_empty(),
        serde_json::Value::Bool(_) | serde_json::Value::Number(_) => false,
    };
    (!is_empty).then_some(value)
}

/// The first line that a version command prints.
fn printed_version(command: &str) -> Result<serde_json::Value, String> {
    let fault = |why: String| format!("`{command}`, which prints a version: {why}");
    let output = Command::new("sh").arg("-c").arg(command).stdin(Stdio::null()).output();
    let output = output.map_err(|error| fault(error.to_string()))?;
    if !output.status.success() {
        return Err(fault(format!("{} {}", output.status, String::from_utf8_lossy(&output.stderr).trim())));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    line.map(serde_json::Value::from).ok_or_else(|| fault("it printed nothing".to_owned()))
}

impl ServerFacts {
    /// `model` is the name to send; without one the first of `/v1/models` is taken.
    pub(crate) fn ask(target: &Target, command: Option<&str>, model: Option<&str>) -> Result<Self, String> {
        let json = |path| ask::text(target, path).and_then(|text| serde_json::from_str(&text).ok());
        let models: Option<serde_json::Value> = json("/v1/models");
        let listed = models.as_ref().and_then(|models| models["data"][0]["id"].as_str());
        let Some(model) = model.or(listed) else {
            return Err(format!(
                "{}/v1/models lists no model; is a server there? say --model NAME",
                target.url()
            ));
        };
        Ok(ServerFacts {
            command: command.map(str::to_owned),
            url: target.url(),
            model: model.to_owned(),
            version: VERSIONS.into_iter().find_map(|(path, field)| {
                let answer = json(path)?;
                told(field.map_or(answer.clone(), |field| answer[field].clone()))
            }),
        })
    }

    /// The same with a version that is known: a figure without one cannot be measured again. `command` prints it for
    /// a server that does not say it.
    pub(crate) fn with_version(mut self, command: Option<&str>) -> Result<Self, String> {
        if let (None, Some(command)) = (&self.version, command) {
            self.version = Some(printed_version(command)?);
        }
        if self.version.is_some() {
            return Ok(self);
        }
        let paths = VERSIONS.map(|(path, _)| path).join(", ");
        Err(format!(
            "{} does not say its version (looked at {paths}): give `version`, a command that prints it, beside its \
             server in the scenario",
            self.url
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(version: Option<&str>) -> ServerFacts {
        ServerFacts { version: version.map(serde_json::Value::from), ..ServerFacts::default() }
    }

    #[test]
    fn a_peer_without_a_version_is_refused() {
        let fault = facts(None).with_version(None).expect_err("refused");
        assert!(fault.contains("does not say its version") && fault.contains("/props"), "{fault}");
        for (command, why) in
            [("true", "it printed nothing"), ("echo no such build >&2; false", "no such build")]
        {
            let fault = facts(None).with_version(Some(command)).expect_err("refused");
            assert!(fault.contains(why), "{fault}");
        }
        let printed = facts(None).with_version(Some("echo; echo ' b1234 '; echo more")).expect("a version");
        assert_eq!(printed.version, Some("b1234".into()));
        // What the server says itself counts more.
        assert_eq!(
            facts(Some("2")).with_version(Some("echo 1")).expect("a version").version,
            Some("2".into())
        );
    }

    #[test]
    fn an_empty_answer_is_no_version() {
        for nothing in ["null", "\"\"", "\" \"", "{}", "[]"] {
            assert_eq!(told(serde_json::from_str(nothing).expect("JSON")), None, "{nothing}");
        }
        assert!(told(serde_json::json!({"version": "0.11.0"})).is_some());
    }
}
