//! Roles under a profiler: a stand-in `nsys` on PATH sees every role started, told to record and to stop; the roles
//! are watched, restarted and ended as without it, and what came of it is written down.

use pinion_testkit::{Folder, Server, Signal, is_alive, kill, wait_until};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

/// Does what nsys does as far as the launcher can see: runs the program, passes standard input and the exit code on, and
/// writes a report at the end. `start` and `stop` are written down.
const STAND_IN: &str = r#"#!/bin/sh
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
"#;

struct Rig {
    folder: Folder,
    path: String,
    log: String,
}

impl Rig {
    fn new() -> Rig {
        let folder = Folder::new();
        folder.write("nsys", STAND_IN);
        let program = folder.path().join("nsys");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, executable).expect("a folder of our own");
        let path = format!("{}:/usr/bin:/bin", folder.text());
        let log = folder.path().join("log").display().to_string();
        Rig { folder, path, log }
    }

    fn profiles(&self) -> String {
        self.folder.path().join("profiles").display().to_string()
    }

    fn start(&self) -> Server {
        let flags = ["--profile", "nsys", "--profile-dir", &self.profiles(), "--fake-step-us", "500"];
        Server::fake_with(&flags, &[("PATH", &self.path), ("STAND_IN_LOG", &self.log)])
    }

    fn said(&self, word: &str) -> usize {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().filter(|line| line.split(' ').next() == Some(word)).count()
    }

    fn manifest(&self) -> Value {
        let path = self.folder.path().join("profiles/profile_manifest.json");
        serde_json::from_str(&std::fs::read_to_string(path).expect("a manifest")).expect("JSON")
    }
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

#[test]
fn every_role_is_started_told_and_written_down() {
    let rig = Rig::new();
    let server = rig.start();
    server.check_serves("under a profiler");
    assert_eq!(rig.said("profile"), 4, "one for each role");
    for (path, word, times) in [
        ("/start_profile", "start", 4),
        ("/start_profile", "start", 4),
        ("/stop_profile", "stop", 4),
        ("/stop_profile", "stop", 4),
        ("/start_profile", "start", 8),
    ] {
        assert_eq!(server.post(path, &json!({})).status(), 200, "{path}");
        assert_eq!(rig.said(word), times, "{path}: twice is once");
    }
    server.check_serves("and still");
    server.stop();
    let manifest = rig.manifest();
    assert_eq!((&manifest["meta"]["tool"], &manifest["meta"]["backend"]), (&json!("nsys"), &json!("fake")));
    let runs = manifest["runs"].as_array().expect("runs");
    let mut roles: Vec<&str> = runs.iter().filter_map(|run| run["role"].as_str()).collect();
    roles.sort_unstable();
    assert_eq!(roles, ["detokenizer-0", "engine-0", "frontend-0", "tokenizer-0"]);
    for run in runs {
        let folder = format!("nsys/fake/{}", run["role"].as_str().expect("a role"));
        assert_eq!((&run["output"], &run["error"]), (&json!(folder), &Value::Null), "{run}");
        assert_eq!(
            run["files"],
            json!([format!("{folder}/profiler.log"), format!("{folder}/report.nsys-rep")])
        );
        assert_eq!(run["log"], json!(format!("{folder}/profiler.log")));
        assert!(run["environment"]["OMP_NUM_THREADS"].is_string() && run["command"][1] == "profile", "{run}");
    }
}

#[test]
fn a_role_that_dies_under_its_wrapper_comes_back_under_another() {
    let rig = Rig::new();
    let server = rig.start();
    let victim = role(&server, "pinion-tokenizer").expect("a tokenizer under its wrapper");
    kill(victim, Signal::SIGKILL);
    wait_until("a successor", PATIENCE, || {
        role(&server, "pinion-tokenizer").filter(|pid| *pid != victim && server.get("/ready").status() == 200)
    });
    server.check_serves("again");
    assert_eq!(rig.said("profile"), 5);
    server.stop();
    let manifest = rig.manifest();
    let runs = manifest["runs"].as_array().expect("runs");
    let errors: Vec<&Value> = runs.iter().filter(|run| !run["error"].is_null()).collect();
    assert_eq!((runs.len(), errors.len(), &errors[0]["role"]), (5, 1, &json!("tokenizer-0")), "{runs:?}");
}

#[test]
fn nobody_outlives_a_launcher_that_is_killed() {
    let rig = Rig::new();
    let mut server = rig.start();
    let engine = role(&server, "pinion-engine").expect("an engine under its wrapper");
    kill(server.pid(), Signal::SIGKILL);
    server.wait_exit(PATIENCE);
    wait_until("everybody is gone", PATIENCE, || {
        (!is_alive(engine) && server.processes().is_empty()).then_some(())
    });
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
