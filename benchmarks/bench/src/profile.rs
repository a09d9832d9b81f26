//! `profile`: a few requests against a service under each profiler in turn, in a process of its own. Nothing is
//! measured here and no result is written; measured runs never have a profiler.
//!
//! Every tool writes below one folder, `<tool>/<backend>/<role>/`, as `pinion serve --profile-dir` lays it out, and one
//! `profile_manifest.json` says what was run, how, and which files came of it.

use crate::ask;
use crate::machine::Origin;
use crate::online::{Plan, ServerArgs, WorkArgs};
use crate::results::write_whole;
use crate::server::{Server, ServerFacts};
use crate::target::Target;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MANIFEST: &str = "profile_manifest.json";
/// Profilers write their reports while the service ends; it gives them a minute.
const STOP_LIMIT: Duration = Duration::from_secs(90);

/// What looks at the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tool {
    /// nsys or else perf, where one is on PATH, then torch and trace.
    Auto,
    /// Nsight Systems around every role, with NVTX ranges.
    Nsys,
    /// `perf record` around every role.
    Perf,
    /// libtorch's trace of the engine's operations.
    Torch,
    /// The service's own timeline of all processes, as `pinion trace` gets it.
    Trace,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    work: WorkArgs,
    /// Tools, one service each.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "auto")]
    tools: Vec<Tool>,
    /// Requests under each tool; --requests is for measured runs.
    #[arg(long, default_value_t = 32)]
    profile_requests: usize,
    /// Folder of the profiles.
    #[arg(long, default_value = "profiles")]
    out: PathBuf,
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Tool::Auto => "auto",
            Tool::Nsys => "nsys",
            Tool::Perf => "perf",
            Tool::Torch => "torch",
            Tool::Trace => "trace",
        }
    }

    /// What is added to the command of the service.
    fn flags(self, out: &str) -> Result<String, String> {
        let out = shlex::try_quote(out).map_err(|error| error.to_string())?;
        Ok(match self {
            Tool::Auto | Tool::Trace => String::new(),
            Tool::Nsys => format!(" --profile nsys --nvtx --profile-dir {out}"),
            Tool::Perf | Tool::Torch => format!(" --profile {} --profile-dir {out}", self.name()),
        })
    }
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let runs = |file: PathBuf| {
        std::fs::metadata(file).is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&path).any(|folder| runs(folder.join(program)))
}

/// The tools to run, and a line about those that cannot be.
fn chosen(asked: &[Tool], is_there: &dyn Fn(&str) -> bool) -> (Vec<Tool>, Option<&'static str>) {
    let (mut tools, mut line) = (Vec::new(), None);
    for tool in asked {
        match tool {
            Tool::Auto => {
                let wrapper = [Tool::Nsys, Tool::Perf].into_iter().find(|tool| is_there(tool.name()));
                if wrapper.is_none() {
                    line = Some("neither nsys nor perf is on PATH: processes are not profiled");
                }
                tools.extend(wrapper);
                tools.extend([Tool::Torch, Tool::Trace]);
            }
            one => tools.push(*one),
        }
    }
    (tools, line)
}

pub(crate) fn run(args: &ProfileArgs) -> Result<(), String> {
    let command = args.server.serve.as_deref();
    let command = command.ok_or("say --serve COMMAND: each tool has a service of its own")?;
    let plan = Plan::small(&args.work, args.profile_requests)?;
    let (tools, line) = chosen(&args.tools, &is_on_path);
    if let Some(line) = line {
        eprintln!("{line}");
    }
    std::fs::create_dir_all(&args.out).map_err(|error| format!("{}: {error}", args.out.display()))?;
    let out = std::path::absolute(&args.out).map_err(|error| error.to_string())?;
    let words: Vec<String> = std::env::args().collect();
    let point = plan.points.first().copied().ok_or("no scale, rate or number of streams")?;
    let mut manifest = json!({
        "meta": {
            "origin": Origin::here(&words),
            "tools": tools.iter().map(|tool| tool.name()).collect::<Vec<_>>(),
            "requests": args.profile_requests,
            "arrivals_per_s": point.rate_per_s,
            "notes": plan.notes(),
            "note": "taken under profilers: no figure in here is a result",
        },
        "runs": [],
    });
    let (mut runs, mut failed) = (Vec::new(), Vec::new());
    for tool in tools {
        eprintln!("{}: {} requests", tool.name(), args.profile_requests);
        let stage = Stage { tool, command, out: &out, server: &args.server };
        let began = Instant::now();
        let outcome = stage.run(&plan);
        if let Err(error) = &outcome {
            eprintln!("{}: {error}", tool.name());
            failed.push(tool.name());
        }
        runs.extend(stage.records(outcome.err(), began.elapsed()));
    }
    manifest["runs"] = Value::from(runs);
    write_whole(&out.join(MANIFEST), format!("{manifest:#}\n").as_bytes())?;
    for files in manifest["runs"].as_array().into_iter().flatten().filter_map(|run| run["files"].as_array()) {
        files.iter().filter_map(Value::as_str).for_each(|file| println!("{}", out.join(file).display()));
    }
    println!("{}", out.join(MANIFEST).display());
    if failed.is_empty() { Ok(()) } else { Err(format!("no profile by {}", failed.join(", "))) }
}

/// One service under one tool.
struct Stage<'a> {
    tool: Tool,
    command: &'a str,
    out: &'a Path,
    server: &'a ServerArgs,
}

impl Stage<'_> {
    fn folder(&self) -> PathBuf {
        self.out.join(self.tool.name())
    }

    fn log(&self) -> PathBuf {
        self.folder().join("service.log")
    }

    fn run(&self, plan: &Plan) -> Result<(), String> {
        let fault = |error: std::io::Error| format!("{}: {error}", self.folder().display());
        std::fs::create_dir_all(self.folder()).map_err(fault)?;
        // Of an earlier tool: what is there after this one shall be this one's.
        let _ = std::fs::remove_file(self.out.join(MANIFEST));
        let flags = self.tool.flags(&self.out.display().to_string())?;
        let limit = Duration::from_secs(self.server.ready_timeout_s);
        let started = Server::start(
            &format!("{}{flags}", self.command),
            &self.log(),
            limit,
            self.server.api_key.as_deref(),
        );
        let mut server = started.map_err(|fault| fault.to_string())?;
        server.stop_limit = STOP_LIMIT;
        let target = server.target.clone();
        let facts = ServerFacts::ask(&target, Some(&server.command), self.server.model.as_deref())?;
        let profiles = self.tool != Tool::Trace;
        let begin = || if profiles { post(&target, "/start_profile").map(|_| ()) } else { Ok(()) };
        let point = plan.points.first().copied().ok_or("no scale, rate or number of streams")?;
        let sent = plan.send(point, &target, &facts.model, 0, begin)?;
        if profiles {
            post(&target, "/stop_profile")?;
        } else {
            let trace = post(&target, "/debug/trace")?;
            write_whole(&self.folder().join("trace.json"), trace.as_bytes())?;
        }
        drop(server);
        let failed = sent.requests.iter().filter_map(|request| request.outcome.error.as_deref()).next();
        failed.map_or(Ok(()), |error| Err(format!("a request failed: {error}")))
    }

    /// For the manifest: what the service wrote down of its roles, or one record of this tool.
    fn records(&self, error: Option<String>, took: Duration) -> Vec<Value> {
        let shown = |path: PathBuf| path.strip_prefix(self.out).unwrap_or(&path).display().to_string();
        let written = std::fs::read_to_string(self.out.join(MANIFEST)).ok();
        let written: Option<Value> = written.and_then(|text| serde_json::from_str(&text).ok());
        let roles = written.as_ref().and_then(|manifest| manifest["runs"].as_array()).cloned();
        let mut records = roles.unwrap_or_default();
        if records.is_empty() {
            let trace = self.folder().join("trace.json");
            let files: Vec<String> = trace.is_file().then(|| shown(trace)).into_iter().collect();
            records.push(json!({"role": "all", "command": [self.command], "environment": {},
                "output": self.tool.name(), "log": null, "files": files, "error": null}));
        }
        for record in &mut records {
            record["tool"] = json!(self.tool.name());
            record["service_log"] = json!(shown(self.log()));
            record["wall_s"] = json!(took.as_secs_f64());
            if record["error"].is_null() {
                record["error"] = json!(error);
            }
        }
        records
    }
}

/// The answer to a POST without a body; only a 200 counts.
fn post(target: &Target, path: &str) -> Result<String, String> {
    match ask::post(target, path)? {
        (200, text) => Ok(text),
        (status, text) => Err(format!("{path}: http {status} {}", text.trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_that_are_there_are_taken() {
        use Tool::*;
        for (there, asked, expected, says) in [
            (&[][..], vec![Auto], vec![Torch, Trace], true),
            (&["perf"][..], vec![Auto], vec![Perf, Torch, Trace], false),
            (&["perf", "nsys"][..], vec![Auto], vec![Nsys, Torch, Trace], false),
            // If the user names one, the service says why it cannot be.
            (&[][..], vec![Perf, Trace], vec![Perf, Trace], false),
        ] {
            let (tools, line) = chosen(&asked, &|name: &str| there.contains(&name));
            assert_eq!((tools, line.is_some()), (expected, says), "{there:?} {asked:?}");
        }
    }

    #[test]
    fn a_program_is_looked_for_on_path() {
        assert!(is_on_path("sh") && !is_on_path("no-such-program-anywhere"));
    }
}
