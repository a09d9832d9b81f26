//! Roles under a profiler: a stand-in `nsys` or `perf` on PATH sees every role started, told to record and to stop; the
//! roles are watched, restarted and ended as without it, and what came of it is written down. libtorch's own profiler
//! is the real one.

use pinion_testkit::{
    Folder, PATIENCE, Server, Signal, fake_model, fixture_model, is_alive, kill, run_to_end, wait_until,
};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A profiler that stands between launcher and role.
struct Tool {
    name: &'static str,
    /// Does what the tool does as far as the launcher can see: runs the program, passes standard input and the exit
    /// code on, and writes a report at the end. What it is told goes into a log, one line each, beginning with the
    /// word.
    stand_in: &'static str,
    /// The first word of its arguments, which begins a line for each role.
    verb: &'static str,
    /// Words by which one role's recording starts and stops.
    words: [&'static str; 2],
    report: &'static str,
    /// The words are in the log when the order is answered; else when the role has ended.
    logs_at_once: bool,
}

const NSYS: Tool = Tool {
    name: "nsys",
    stand_in: r#"#!/bin/sh
word=$1; shift
if [ "$word" != profile ]; then
    echo "$word $*" >> "$STAND_IN_LOG"
    [ "$(wc -l < "$STAND_IN_LOG")" -lt 99 ]
    exit
fi
while [ "${1#--}" != "$1" ]; do
    case $1 in --output=*) output=${1#--output=};; --session-new=*) echo "profile $1" >> "$STAND_IN_LOG";; esac
    shift
done
"$@" <&0
code=$?
echo report > "$output.nsys-rep"
exit $code
"#,
    verb: "profile",
    words: ["start", "stop"],
    report: "report.nsys-rep",
    logs_at_once: true,
};

const PERF: Tool = Tool {
    name: "perf",
    // The pipe is held open as perf holds it, and read when the role has ended: a reader beside it would outlive a
    // kill.
    stand_in: r#"#!/bin/sh
word=$1; shift
while [ "$1" != -- ]; do
    case $1 in --output=*) output=${1#--output=};; --control=fifo:*) control=${1#--control=fifo:};; esac
    shift
done
shift
echo "$word $output" >> "$STAND_IN_LOG"
exec 3<>"$control"
"$@" <&0 3>&-
code=$?
dd iflag=nonblock bs=4096 count=1 <&3 >> "$STAND_IN_LOG" 2>/dev/null
echo samples > "$output"
exit $code
"#,
    verb: "record",
    words: ["enable", "disable"],
    report: "perf.data",
    logs_at_once: false,
};

struct Rig {
    tool: &'static Tool,
    folder: Folder,
    path: String,
    log: String,
}

impl Rig {
    fn new(tool: &'static Tool) -> Rig {
        println!("{}", tool.name);
        let folder = Folder::new();
        folder.write(tool.name, tool.stand_in);
        let program = folder.path().join(tool.name);
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, executable).expect("a folder of our own");
        let path = format!("{}:/usr/bin:/bin", folder.text());
        let log = folder.path().join("log").display().to_string();
        Rig { tool, folder, path, log }
    }

    fn start(&self) -> Server {
        let profiles = self.folder.path().join("profiles").display().to_string();
        let flags = ["--profile", self.tool.name, "--profile-dir", &profiles, "--fake-step-us", "500"];
        Server::fake_with(&flags, &[("PATH", &self.path), ("STAND_IN_LOG", &self.log)])
    }

    fn said(&self, word: &str) -> usize {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().filter(|line| line.split(' ').next() == Some(word)).count()
    }

    fn manifest(&self) -> Value {
        manifest(&self.folder.path().join("profiles"))
    }
}

fn manifest(profiles: &Path) -> Value {
    let text = std::fs::read_to_string(profiles.join("profile_manifest.json")).expect("a manifest");
    serde_json::from_str(&text).expect("JSON")
}

/// The role itself, which is its wrapper's child.
fn role(server: &Server, name: &str) -> Option<u32> {
    let wrapped = |pid: u32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let program = command.split(|byte| *byte == 0).next()?;
        program.ends_with(name.as_bytes()).then_some(pid)
    };
    server.processes().into_iter().find_map(|process| wrapped(process.pid))
}

fn order(server: &Server, path: &str) {
    let response = server.post(path, &json!({}));
    assert_eq!(response.status(), 200, "{path}: {}", response.text());
}

#[test]
fn every_role_is_started_told_and_written_down() {
    for tool in [&NSYS, &PERF] {
        check_wrapped(&Rig::new(tool));
    }
}

fn check_wrapped(rig: &Rig) {
    let (server, tool) = (rig.start(), rig.tool);
    server.check_serves("under a profiler");
    assert_eq!(rig.said(tool.verb), 4, "one for each role");
    let [start, stop] = tool.words;
    for (path, word, times) in [
        ("/start_profile", start, 4),
        ("/start_profile", start, 4),
        ("/stop_profile", stop, 4),
        ("/stop_profile", stop, 4),
        ("/start_profile", start, 8),
    ] {
        order(&server, path);
        assert!(!tool.logs_at_once || rig.said(word) == times, "{path}: twice is once");
    }
    server.check_serves("and still");
    server.stop();
    assert_eq!((rig.said(start), rig.said(stop)), (8, 4), "twice is once");
    let manifest = rig.manifest();
    assert_eq!(
        (&manifest["meta"]["tool"], &manifest["meta"]["backend"]),
        (&json!(tool.name), &json!("fake"))
    );
    let runs = manifest["runs"].as_array().expect("runs");
    let mut roles: Vec<&str> = runs.iter().filter_map(|run| run["role"].as_str()).collect();
    roles.sort_unstable();
    assert_eq!(roles, ["detokenizer-0", "engine-0", "frontend-0", "tokenizer-0"]);
    for run in runs {
        let folder = format!("{}/fake/{}", tool.name, run["role"].as_str().expect("a role"));
        assert_eq!((&run["output"], &run["error"]), (&json!(folder), &Value::Null), "{run}");
        let mut files = [format!("{folder}/profiler.log"), format!("{folder}/{}", tool.report)];
        files.sort_unstable();
        assert_eq!(run["files"], json!(files));
        assert_eq!(run["log"], json!(format!("{folder}/profiler.log")));
        assert!(run["environment"]["OMP_NUM_THREADS"].is_string(), "{run}");
        assert_eq!((&run["command"][0], &run["command"][1]), (&json!(tool.name), &json!(tool.verb)), "{run}");
    }
}

#[test]
fn a_role_that_dies_under_its_wrapper_comes_back_under_another() {
    for tool in [&NSYS, &PERF] {
        let rig = Rig::new(tool);
        let server = rig.start();
        let victim = role(&server, "pinion-tokenizer").expect("a tokenizer under its wrapper");
        kill(victim, Signal::SIGKILL);
        wait_until("a successor", PATIENCE, || {
            role(&server, "pinion-tokenizer")
                .filter(|pid| *pid != victim && server.get("/ready").status() == 200)
        });
        server.check_serves("again");
        assert_eq!(rig.said(tool.verb), 5);
        server.stop();
        let manifest = rig.manifest();
        let runs = manifest["runs"].as_array().expect("runs");
        let errors: Vec<&Value> = runs.iter().filter(|run| !run["error"].is_null()).collect();
        assert_eq!((runs.len(), errors.len(), &errors[0]["role"]), (5, 1, &json!("tokenizer-0")), "{runs:?}");
    }
}

#[test]
fn no_process_outlives_a_killed_launcher() {
    for tool in [&NSYS, &PERF] {
        let rig = Rig::new(tool);
        let mut server = rig.start();
        let engine = role(&server, "pinion-engine").expect("an engine under its wrapper");
        kill(server.pid(), Signal::SIGKILL);
        server.wait_exit(PATIENCE);
        wait_until("all processes are gone", PATIENCE, || {
            (!is_alive(engine) && server.processes().is_empty()).then_some(())
        });
    }
}

#[test]
fn without_a_profiler_the_orders_say_so() {
    let server = Server::fake(&[]);
    for path in ["/start_profile", "/stop_profile"] {
        let response = server.post(path, &json!({}));
        assert_eq!(response.status(), 400);
        assert!(response.text().contains("--profile"), "{}", response.text());
    }
    server.stop();
}

#[test]
fn a_profiler_that_is_not_there_is_named() {
    let model = fake_model(64);
    let folder = Folder::new();
    for tool in ["nsys", "perf"] {
        let profiles = folder.path().join("profiles").display().to_string();
        let arguments = ["serve", "--model", model.text(), "--port", "0", "--backend", "fake"];
        let arguments = [&arguments[..], &["--profile", tool, "--profile-dir", &profiles]].concat();
        let ended = run_to_end(&arguments, &[("PATH", "/nowhere")], PATIENCE);
        assert!(ended.code.is_some_and(|code| code != 0), "{}", ended.stderr);
        assert!(ended.stderr.contains(&format!("cannot start engine-0: {tool}: ")), "{}", ended.stderr);
        assert!(ended.stderr.contains("on PATH"), "{}", ended.stderr);
    }
}

/// Nothing can be made in /proc, by whomever.
#[test]
fn a_folder_for_profiles_that_cannot_be_made_is_named() {
    let model = fixture_model();
    let arguments = ["serve", "--model", model.text(), "--port", "0", "--dtype", "fp32"];
    let arguments = [&arguments[..], &["--profile", "torch", "--profile-dir", "/proc/profiles"]].concat();
    let ended = run_to_end(&arguments, &[], PATIENCE);
    assert!(ended.code.is_some_and(|code| code != 0), "{}", ended.stderr);
    let says = "cannot start engine-0: --profile-dir: cannot make /proc/profiles/";
    assert!(ended.stderr.contains(says), "{}", ended.stderr);
    assert_eq!(ended.left, []);
}

/// Tokens that the tiny model is asked for at a time: far within its context.
const TOKENS: u64 = 60;
/// As the engine has it.
const TRACED_STEPS_MAX: u64 = 512;

fn generate(server: &Server, prompt: &str) {
    let body = json!({"prompt": prompt, "max_tokens": TOKENS, "ignore_eos": true, "temperature": 0});
    assert_eq!(server.post("/v1/completions", &body).status(), 200);
}

/// A trace in Chrome's format.
struct Trace(Vec<Value>);

impl Trace {
    fn read(path: &Path) -> Trace {
        let text = std::fs::read_to_string(path).expect("a trace");
        let mut trace: Value = serde_json::from_str(&text).expect("JSON");
        let Value::Array(mut events) = trace["traceEvents"].take() else { panic!("no events") };
        events.retain(|event| event["ph"] == "X" && event["dur"].is_number() && event["ts"].is_number());
        Trace(events)
    }

    /// Begin and end of each event of this name, in µs.
    fn times(&self, name: &str) -> Vec<(f64, f64)> {
        let named = self.0.iter().filter(|event| event["name"] == name);
        let number = |event: &Value, key: &str| event[key].as_f64().expect("a number");
        named.map(|event| (number(event, "ts"), number(event, "ts") + number(event, "dur"))).collect()
    }

    fn count(&self, name: &str) -> usize {
        self.times(name).len()
    }
}

/// An operation of libtorch that each step has: with our own kernels the products are libtorch's where the weights are
/// fp32.
fn each_step_has(backend: &str) -> &'static str {
    if backend == "native" { "mkldnn::_linear_pointwise" } else { "aten::layer_norm" }
}

/// A prompt and the decodes after it, each in a range of its name with the sampling in it. With overlap the loop has a
/// thread of its own, which is not traced.
fn check_ranges(trace: &Trace, operation: &str, steps: usize, has_loop: bool) {
    assert_eq!((trace.count("pinion.prefill"), trace.count("pinion.decode")), (1, steps - 1));
    let ranges = [trace.times("pinion.prefill"), trace.times("pinion.decode")].concat();
    let inner = [trace.times(operation), trace.times("pinion.sample")].concat();
    assert_eq!(trace.count("pinion.sample"), steps);
    for (begin, end) in inner {
        let within = ranges.iter().filter(|range| range.0 <= begin && end <= range.1).count();
        assert_eq!(within, 1, "what a step does is in its range: {begin} to {end}");
    }
    let published = trace.times("pinion.publish");
    assert_eq!(published.len(), if has_loop { steps } else { 0 });
    assert!(
        published.iter().all(|(begin, end)| ranges.iter().all(|range| range.1 <= *begin || *end <= range.0))
    );
}

#[test]
fn the_engine_traces_the_operations_of_libtorch() {
    for (overlap, backend) in [("--no-overlap", "native"), ("--overlap", "native"), ("--no-overlap", "torch")]
    {
        println!("{overlap} {backend}");
        let (model, folder) = (fixture_model(), Folder::new());
        let profiles = folder.text();
        let tool = ["--profile", "torch", "--profile-dir", profiles];
        let flags = [&tool[..], &["--dtype", "fp32", "--backend", backend, overlap]].concat();
        let server = Server::start(model.path(), &flags);
        let of_engine = format!("torch/{backend}/engine-0");
        let engine = folder.path().join(&of_engine);
        generate(&server, "once");
        order(&server, "/start_profile");
        order(&server, "/start_profile");
        generate(&server, "nothing of this is cached");
        order(&server, "/stop_profile");
        generate(&server, "once");
        order(&server, "/stop_profile");
        let trace = Trace::read(&engine.join("trace.json"));
        let operation = each_step_has(backend);
        let (found, steps) = (trace.count(operation), TOKENS as usize);
        assert!(
            found >= steps && found.is_multiple_of(steps),
            "{operation} {found} times in {steps} steps: what lies outside is not traced"
        );
        check_ranges(&trace, operation, steps, overlap == "--no-overlap");

        // A trace that is not ended: after a bound it ends by itself.
        order(&server, "/start_profile");
        let second = engine.join("trace-2.json");
        for _ in 0..=TRACED_STEPS_MAX / TOKENS + 1 {
            generate(&server, "once");
        }
        wait_until("the trace is written", PATIENCE, || second.is_file().then_some(()));
        order(&server, "/stop_profile");

        // And one that is under way when the service ends.
        order(&server, "/start_profile");
        generate(&server, "once");
        server.stop();
        assert!(Trace::read(&engine.join("trace-3.json")).count(operation) >= steps);
        let manifest = manifest(folder.path());
        assert_eq!(manifest["meta"]["tool"], json!("torch"));
        let runs = manifest["runs"].as_array().expect("runs");
        assert_eq!((runs.len(), &runs[0]["role"], &runs[0]["error"]), (1, &json!("engine-0"), &Value::Null));
        let names = ["trace-2.json", "trace-3.json", "trace.json"].map(|name| format!("{of_engine}/{name}"));
        assert_eq!(runs[0]["files"], json!(names));
    }
}
