//! What the running roles may do, as the kernel tells it. What they are refused is tried from within in
//! `worker/tests/sandbox.rs`.

use pinion_testkit::{PATIENCE, Process, Server, Signal, demo_model, kill, wait_until};
use std::os::unix::fs::PermissionsExt;

/// With it a process empties the bounding set of its children.
const SETPCAP: u64 = 1 << 8;
/// Where the launcher has it and may not lift RLIMIT_MEMLOCK, its children keep it.
const IPC_LOCK: u64 = 1 << 14;
const SYS_RESOURCE: u64 = 1 << 24;

fn status(pid: u32, name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel tells it");
    line.trim_start_matches(':').trim().to_owned()
}

fn capabilities(pid: u32, set: &str) -> u64 {
    u64::from_str_radix(&status(pid, set), 16).expect("sets are hexadecimal")
}

fn oom_score(pid: u32) -> i32 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("it lives");
    text.trim().parse().expect("a number")
}

fn check_started_without_privileges(process: &Process, launcher: u64) {
    let name = &process.name;
    assert_eq!(status(process.pid, "NoNewPrivs"), "1", "{name}");
    let kept = if launcher & SYS_RESOURCE == 0 { IPC_LOCK & launcher } else { 0 };
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(capabilities(process.pid, set) & !kept, 0, "{name}: {set}");
    }
    if launcher & SETPCAP != 0 {
        assert_eq!(capabilities(process.pid, "CapBnd") & !kept, 0, "{name}");
    }
}

fn check_confined(server: &Server) {
    let launcher = capabilities(server.pid(), "CapEff");
    for role in server.roles() {
        check_started_without_privileges(&role, launcher);
        assert_eq!(status(role.pid, "Seccomp"), "2", "{}", role.name);
        assert!(oom_score(role.pid) > oom_score(server.pid()), "{}", role.name);
    }
    let spare = wait_until("a spare waits", PATIENCE, || server.spare());
    check_started_without_privileges(&spare, launcher);
}

#[test]
fn roles_their_successors_and_the_spare_have_no_privileges() {
    let server = Server::fake(&["--restart-backoff", "1ms"]);
    check_confined(&server);
    for name in ["engine-0", "tokenizer-0", "detokenizer-0", "frontend-0"] {
        let before = server.role(name).expect("it runs").pid;
        kill(before, Signal::SIGKILL);
        wait_until("its successor serves", PATIENCE, || {
            let ready = server.request("GET", "/ready", &[], b"").is_ok_and(|answer| answer.status() == 200);
            server.role(name).filter(|role| role.pid != before && ready)
        });
    }
    check_confined(&server);
    server.check_serves("confined");
    server.stop();
}

#[test]
fn a_real_model_serves_in_the_sandbox() {
    let Some(folder) = demo_model() else { return };
    let server = Server::start(&folder, &["--dtype", "fp32"]);
    check_confined(&server);
    let body = serde_json::json!({"prompt": "Be not afeard", "max_tokens": 4, "regex": "[a-z ]+"});
    assert_eq!(server.post("/v1/completions", &body).status(), 200);
    let log = server.stderr_text();
    assert!(!log.contains("not fenced") && !log.contains("not filtered"), "{log}");
    server.stop();
}

#[test]
fn shared_memory_is_its_users_alone() {
    let server = Server::fake(&[]);
    let folder = format!("/proc/{}/fd", server.pid());
    let mut seen = 0;
    for entry in std::fs::read_dir(&folder).expect("the launcher stays open to its user").flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        if target.to_string_lossy().starts_with("/memfd:pinion-") {
            let mode = std::fs::metadata(entry.path()).expect("it is open").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", target.display());
            seen += 1;
        }
    }
    assert!(seen > 8, "rings, pages and slot tables: {seen}");
    server.stop();
}

#[test]
fn without_the_sandbox_roles_keep_what_the_launcher_has_and_the_log_says_so() {
    let server = Server::fake(&["--no-sandbox"]);
    let expected = capabilities(server.pid(), "CapEff");
    for role in server.roles() {
        assert_eq!(status(role.pid, "Seccomp"), status(server.pid(), "Seccomp"), "{}", role.name);
        assert_eq!(status(role.pid, "NoNewPrivs"), status(server.pid(), "NoNewPrivs"), "{}", role.name);
        assert_eq!(capabilities(role.pid, "CapEff"), expected, "{}", role.name);
    }
    assert!(server.stderr_text().contains("--no-sandbox"), "{}", server.stderr_text());
    server.check_serves("open");
    server.stop();
}
