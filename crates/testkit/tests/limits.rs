//! Limits of the system that are too low for the service: a message that names what was refused and the limit, exit code
//! 1, and nothing left. Limits that are high enough: it serves and survives the death of its engine. And signals that mean nothing
//! to it.

use pinion_testkit::{
    PATIENCE, Server, Signal, fake_model, kill, launcher_binary, run_binary_to_end, run_under_to_end,
    wait_until,
};
use std::path::Path;

/// Exit code as docs/OPERATIONS.md has it.
const EXIT_SYSTEM: i32 = 1;

#[test]
fn a_limit_that_is_too_low_is_named() {
    let model = fake_model(512);
    let binary = launcher_binary();
    let binary = binary.to_str().expect("the target folder has a UTF-8 name");
    for (limit, words) in [
        ("ulimit -n 12", ["Too many open files", "ulimit -n"]),
        ("ulimit -n 24", ["Too many open files", "ulimit -n"]),
        ("ulimit -f 8", ["File too large", "ulimit -f"]),
    ] {
        let line = format!(r#"{limit}; exec "$0" "$@""#);
        let arguments =
            ["-c", &line, binary, "serve", "--backend", "fake", "--model", model.text(), "--port", "0"];
        let ended = run_binary_to_end(Path::new("/bin/sh"), &arguments, &[], PATIENCE);
        assert_eq!(ended.code, Some(EXIT_SYSTEM), "{limit}: {ended:?}");
        for word in words {
            assert!(ended.stderr.contains(word), "{limit}: no {word:?} in {}", ended.stderr);
        }
        assert_eq!((ended.left.len(), ended.files.len()), (0, 0), "{limit}: {ended:?}");
    }
}

/// A log that reaches its limit loses lines; the service goes on.
#[test]
fn a_log_file_at_its_limit_ends_nothing() {
    let folder = pinion_testkit::Folder::new();
    // Shared memory needs 64 MiB or so; the log is at its limit because the file is that long already.
    let log = folder.path().join("log");
    let blocks: u64 = 256 << 10;
    let file = std::fs::File::create(&log).expect("a file can be made");
    file.set_len(blocks * 1024 - 10).expect("a file may have holes");
    let line = format!(r#"ulimit -f $(( {blocks} * 1024 / 512 )); exec "$0" "$@" 2>>{}"#, log.display());
    let server = Server::fake_by_shell(&line, std::process::Stdio::null(), &[]);
    server.check_serves("with a log that is full");
    let health = server.get("/health");
    assert_eq!((health.status(), health.json()["log"]["status"].as_str()), (200, Some("losing")));
    server.stop();
}

#[test]
fn signals_of_others_are_passed_over_and_quit_drains() {
    let mut server = Server::fake(&[]);
    for signal in [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGALRM] {
        server.signal(signal);
        server.check_serves("a signal later");
    }
    server.signal(Signal::SIGQUIT);
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0), "{}", server.stderr_text());
}

#[test]
fn health_tells_of_a_launcher_that_stands_still() {
    let server = Server::fake(&[]);
    assert_eq!(server.get("/health").status(), 200);
    server.signal(Signal::SIGSTOP);
    let problems = wait_until("health says so", PATIENCE, || {
        let health = server.get("/health");
        (health.status() == 503).then(|| health.json()["problems"].to_string())
    });
    assert!(problems.contains("launcher"), "{problems}");
    server.check_serves("what needs no launcher goes on");
    server.signal(Signal::SIGCONT);
    wait_until("health is 200 again", PATIENCE, || (server.get("/health").status() == 200).then_some(()));
    server.stop();
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Serves, loses its engine, serves again, and stops cleanly. Returns the log.
fn check_serves_under(wrapper: &[&str], flags: &[&str]) -> String {
    let folder = fake_model(512);
    open_to_all(folder.path());
    let flags = [&["--backend", "fake", "--restart-backoff", "1ms"], flags].concat();
    let mut server = Server::launch_under(wrapper, folder.path(), &flags);
    server.wait_ready();
    server.check_serves("before");
    let before = server.role("engine-0").expect("it runs").pid;
    kill(before, Signal::SIGKILL);
    wait_until("the engine is back", PATIENCE, || {
        let back = server.role("engine-0").is_some_and(|role| role.pid != before);
        (back && server.get("/ready").status() == 200).then_some(())
    });
    server.check_serves("after");
    let log = server.stderr_text();
    server.stop();
    log
}

fn open_to_all(folder: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).expect("an own folder");
}

fn check_ends_under(wrapper: &[&str], flags: &[&str], says: &[&str]) {
    let folder = fake_model(512);
    open_to_all(folder.path());
    let flags = [&["serve", "--model", folder.text(), "--backend", "fake", "--port", "0"], flags].concat();
    let ended = run_under_to_end(wrapper, &flags, PATIENCE);
    assert_eq!(ended.code, Some(EXIT_SYSTEM), "{wrapper:?}: {}", ended.stderr);
    for part in says {
        assert!(ended.stderr.contains(part), "{wrapper:?} does not say {part:?}: {}", ended.stderr);
    }
    assert!(!ended.stderr.contains("panicked"), "{wrapper:?}: {}", ended.stderr);
    assert_eq!(ended.left, [], "{wrapper:?}");
}

#[test]
fn few_descriptors_are_enough() {
    check_serves_under(&["prlimit", "--nofile=64"], &[]);
}

#[test]
fn one_cpu_is_enough() {
    check_serves_under(&["taskset", "-c", "0"], &[]);
}

#[test]
fn too_little_address_space_is_named() {
    check_ends_under(&["prlimit", "--as=16777216"], &[], &["emory"]);
}

#[test]
fn closed_standard_streams_change_nothing() {
    for closed in ["<&-", ">&-", "<&- >&-"] {
        let script = format!("exec \"$@\" {closed}");
        check_serves_under(&["sh", "-c", &script, "sh"], &[]);
    }
}

#[test]
fn a_launcher_without_capabilities_and_without_locked_memory_serves() {
    if !is_root() {
        return; // It runs as such a user already: every other test shows it.
    }
    let drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    let log = check_serves_under(&[drop.as_slice(), &["prlimit", "--memlock=0:0"]].concat(), &[]);
    assert!(log.contains("memory not locked"), "{log}");
}

#[test]
fn no_dev_shm_is_needed() {
    if !is_root() {
        return; // Only root may take it away.
    }
    check_serves_under(&["unshare", "--mount", "sh", "-c", "umount -l /dev/shm; exec \"$@\"", "sh"], &[]);
}
