//! Limits of the system that are too low for the service: a message that names what was refused and the limit, exit
//! code 1, and nothing left. Limits that are high enough: it serves and survives the death of its engine. And signals
//! that mean nothing to it.

use pinion_os::fdpass;
use pinion_testkit::{
    Api, End, Folder, PATIENCE, Server, Signal, demo_model, fake_model, kill, launcher_binary,
    run_binary_to_end, run_under_to_end, wait_until,
};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Exit codes as docs/OPERATIONS.md has them.
const EXIT_SYSTEM: i32 = 1;
const EXIT_CONFIGURATION: i32 = 2;
const EXIT_START: i32 = 5;

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
    // A thread of its own finds that a line cannot be written.
    wait_until("health tells of it", PATIENCE, || {
        let health = server.get("/health");
        assert_eq!(health.status(), 200, "{}", health.text());
        (health.json()["log"]["status"] == "losing").then_some(())
    });
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

/// A folder that every user may read.
fn open_model() -> Folder {
    let folder = fake_model(512);
    open_to_all(folder.path());
    folder
}

fn open_to_all(folder: &Path) {
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).expect("an own folder");
}

/// Serves, loses its engine, serves again, and stops cleanly. Returns the log.
fn check_serves_under(wrapper: &[&str], flags: &[&str]) -> String {
    let folder = open_model();
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

fn check_ends_under(wrapper: &[&str], flags: &[&str], says: &[&str]) -> Option<i32> {
    let folder = open_model();
    let flags = [&["serve", "--model", folder.text(), "--backend", "fake", "--port", "0"], flags].concat();
    let ended = run_under_to_end(wrapper, &flags, PATIENCE);
    for part in says {
        assert!(ended.stderr.contains(part), "{wrapper:?} does not say {part:?}: {}", ended.stderr);
    }
    assert!(!ended.stderr.contains("panicked"), "{wrapper:?}: {}", ended.stderr);
    assert_eq!(ended.left, [], "{wrapper:?}");
    ended.code
}

fn strs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// A user that owns nothing, as which root may start the service.
struct Stranger {
    user: u32,
    /// Makes libtorch readable to every user where only root can read it: a script that runs its arguments.
    opens_libraries: String,
    _hold: Folder,
}

impl Stranger {
    /// None, with a word why, if this is not root or others may not run the binaries where they stand.
    fn new(user: u32) -> Option<Stranger> {
        if !is_root() {
            println!("skipped: only root may start the service as another user");
            return None;
        }
        let hold = Folder::new();
        open_to_all(hold.path());
        let stranger = Stranger { user, opens_libraries: opens_libraries(hold.text()), _hold: hold };
        // The engine, which is linked with libtorch, says that it is no program to be started by hand.
        let wrapper = stranger.wrapper(&["sh", "-c", "exec \"$0-engine\""]);
        let ended = run_under_to_end(&strs(&wrapper), &[], PATIENCE);
        if !ended.stderr.contains("pinion serve") {
            println!("skipped: others may not run {}: {}", launcher_binary().display(), ended.stderr);
            return None;
        }
        Some(stranger)
    }

    /// What starts a program as this user, through `inner`.
    fn wrapper(&self, inner: &[&str]) -> Vec<String> {
        let user = self.user;
        let script = format!(
            "{}\nexec setpriv --reuid={user} --regid={user} --clear-groups \"$@\"",
            self.opens_libraries
        );
        let outer = ["unshare", "--mount", "sh", "-c", &script, "sh"].map(str::to_owned);
        outer.into_iter().chain(inner.iter().map(|word| (*word).to_owned())).collect()
    }
}

/// In a mount namespace of its own: an open folder in the place of the first that is closed to others above libtorch
/// and the libraries beside it, and in it nothing but those. Nothing to do where none is closed.
fn opens_libraries(hold: &str) -> String {
    let server = Server::fake(&[]);
    let engine = server.role("engine-0").expect("it runs").pid;
    let maps = std::fs::read_to_string(format!("/proc/{engine}/maps")).expect("root reads it");
    server.stop();
    let mapped =
        |line: &str| Path::new(line.split_whitespace().last()?).ancestors().nth(3).map(Path::to_owned);
    let Some(site) = maps.lines().filter(|line| line.ends_with("/libtorch_cpu.so")).find_map(mapped) else {
        return String::new();
    };
    let is_closed = |folder: &&Path| {
        std::fs::metadata(folder).is_ok_and(|folder| folder.permissions().mode() & 0o001 == 0)
    };
    let Some(closed) = site.ancestors().filter(is_closed).last() else { return String::new() };
    format!(
        r#"site='{}' closed='{}' hold='{hold}'
mount --bind "$site" "$hold" && mount -t tmpfs -o mode=755 none "$closed" && mkdir -p "$site" || exit 1
for folder in "$hold"/*/; do
    mkdir -p "$site/${{folder#"$hold"/}}" && mount --bind "$folder" "$site/${{folder#"$hold"/}}" || exit 1
done"#,
        site.display(),
        closed.display()
    )
}

/// A control group of this test, removed on drop.
struct ControlGroup {
    folder: PathBuf,
    is_unified: bool,
}

impl ControlGroup {
    /// None, with a word why, if it cannot be made or has no such limit.
    fn new(controller: &str, limit: &str) -> Option<ControlGroup> {
        let root = Path::new("/sys/fs/cgroup");
        let is_unified = root.join("cgroup.controllers").is_file();
        let parent = if is_unified { root.to_owned() } else { root.join(controller) };
        let folder = parent.join(format!("pinion-test-{}-{controller}", std::process::id()));
        let made = std::fs::create_dir(&folder);
        if made.is_err() || !folder.join(limit).is_file() {
            println!("skipped: no control group with {limit} can be made in {}: {made:?}", parent.display());
            let _ = std::fs::remove_dir(&folder);
            return None;
        }
        Some(ControlGroup { folder, is_unified })
    }

    fn limit(&self, name: &str, value: &str) {
        std::fs::write(self.folder.join(name), value).expect("an own control group");
    }

    /// What starts a program within it.
    fn wrapper(&self) -> Vec<String> {
        let script = format!("echo $$ >'{}/cgroup.procs' && exec \"$@\"", self.folder.display());
        ["sh", "-c", &script, "sh"].map(str::to_owned).into()
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = std::fs::remove_dir(&self.folder);
            return;
        }
        // The kernel may still count a process that has just ended.
        wait_until("the control group is empty", PATIENCE, || std::fs::remove_dir(&self.folder).ok());
    }
}

#[test]
fn few_descriptors_are_enough() {
    check_serves_under(&["prlimit", "--nofile=64"], &[]);
}

/// The kernel counts the descriptors that are on their way for each user: more than the limit, by any program, and no
/// process without capabilities sends one. They are taken soon, and the service starts then.
#[test]
fn a_start_waits_for_descriptors_on_their_way() {
    let (to, from) = fdpass::pair().expect("a socket pair");
    let file = std::fs::File::open("/dev/null").expect("it exists");
    for _ in 0..8 {
        fdpass::send(to.as_fd(), b"x", &[file.as_fd(); 32]).expect("there is room for eight messages");
    }
    let taken = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        drop((to, from));
    });
    let drop: &[&str] = if is_root() { &["setpriv", "--bounding-set=-all", "--inh-caps=-all"] } else { &[] };
    check_serves_under(&[drop, &["prlimit", "--nofile=64"]].concat(), &[]);
    taken.join().expect("it only sleeps");
}

#[test]
fn one_cpu_is_enough() {
    check_serves_under(&["taskset", "-c", "0"], &[]);
}

#[test]
fn too_little_address_space_is_named() {
    let code = check_ends_under(&["prlimit", "--as=16777216"], &[], &["emory"]);
    assert_eq!(code, Some(EXIT_SYSTEM));
}

/// The launcher fits, and what cannot be mapped is libtorch.
#[test]
fn too_little_address_space_for_libtorch_is_named() {
    let Some(model) = demo_model() else {
        println!("skipped: deploy/demo-model is not complete");
        return;
    };
    let model = model.to_str().expect("the model's folder has a UTF-8 name");
    let flags = ["serve", "--model", model, "--dtype", "fp32", "--port", "0"];
    let ended = run_under_to_end(&["prlimit", "--as=268435456"], &flags, PATIENCE);
    assert_eq!(ended.code, Some(EXIT_START), "{}", ended.stderr);
    for part in ["engine-0 could not be loaded: libtorch", "ulimit -v"] {
        assert!(ended.stderr.contains(part), "does not say {part:?}: {}", ended.stderr);
    }
    assert_eq!(ended.left, []);
}

#[test]
fn closed_standard_streams_change_nothing() {
    for closed in ["<&-", ">&-", "<&- >&-"] {
        let script = format!("exec \"$@\" {closed}");
        check_serves_under(&["sh", "-c", &script, "sh"], &[]);
    }
}

/// Roles that start later run elsewhere.
#[test]
fn a_working_folder_that_is_gone_changes_nothing() {
    let folder = Folder::new();
    let gone = format!("{}/gone", folder.text());
    let script = "mkdir \"$0\" && cd \"$0\" && rmdir \"$0\" && exec \"$@\"";
    check_serves_under(&["sh", "-c", script, &gone], &[]);
    let Some(model) = demo_model() else {
        println!("skipped in part: deploy/demo-model is not complete");
        return;
    };
    let mut server = Server::launch_under(&["sh", "-c", script, &gone], &model, &["--dtype", "fp32"]);
    server.wait_ready();
    let before = server.role("engine-0").expect("it runs").pid;
    kill(before, Signal::SIGKILL);
    let body = serde_json::json!({"prompt": "ROMEO:\n", "max_tokens": 4});
    assert_eq!(server.ask(Api::Completions, &body).end, End::Complete);
    assert_ne!(server.role("engine-0").map(|role| role.pid), Some(before));
    server.stop();
}

#[test]
fn a_launcher_without_capabilities_and_without_locked_memory_serves() {
    if !is_root() {
        println!("skipped: every other test runs as such a user already");
        return;
    }
    let drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    let log = check_serves_under(&[drop.as_slice(), &["prlimit", "--memlock=0:0"]].concat(), &[]);
    assert!(log.contains("memory not locked"), "{log}");
}

#[test]
fn any_user_serves() {
    let Some(stranger) = Stranger::new(65_534) else { return };
    let log = check_serves_under(&strs(&stranger.wrapper(&["prlimit", "--memlock=0:0"])), &[]);
    assert!(log.contains("memory not locked"), "{log}");
}

/// The least that serves is not known, but that each limit below it ends with the same words.
#[test]
fn a_limit_on_processes_that_is_too_low_is_named() {
    // A user with no other process: the limit is on all that the user has.
    let user = 100_000 + std::process::id();
    let Some(stranger) = Stranger::new(user) else { return };
    let (mut refused, mut most) = (0, 1);
    loop {
        let limit = format!("--nproc={most}");
        let folder = open_model();
        let flags = ["--backend", "fake", "--no-spare-engine"];
        let wrapper = stranger.wrapper(&["prlimit", &limit]);
        let mut server = Server::launch_under(&strs(&wrapper), folder.path(), &flags);
        let Err(status) = server.wait_ready_or_end() else {
            server.check_serves("within the limit");
            server.stop();
            break;
        };
        let log = server.stderr_text();
        assert_eq!(status.code(), Some(EXIT_SYSTEM), "{most} processes: {log}");
        assert!(log.contains("ulimit -u") && !log.contains("panicked"), "{most} processes: {log}");
        (refused, most) = (refused + 1, most + 1);
        assert!(most < 64, "no limit is high enough");
    }
    assert!(refused > 4, "{refused} limits were refused: fewer than the service has processes");
}

/// Control groups of this machine, version 1 or 2, in which a test may make its own.
#[test]
fn limits_of_a_control_group_are_named_or_enough() {
    let Some(groups) = ControlGroup::new("pids", "pids.max") else { return };
    groups.limit("pids.max", "4");
    let ended = check_ends_under(&strs(&groups.wrapper()), &["--no-spare-engine"], &["pids.max"]);
    assert_eq!(ended, Some(EXIT_SYSTEM));
    groups.limit("pids.max", "64");
    check_serves_under(&strs(&groups.wrapper()), &[]);

    let name = if groups.is_unified { "memory.max" } else { "memory.limit_in_bytes" };
    let Some(groups) = ControlGroup::new("memory", name) else { return };
    groups.limit(name, &(512 << 20).to_string());
    check_serves_under(&strs(&groups.wrapper()), &[]);
    // Too little for its rings, as the configuration says. Where it is not told of the group, the kernel kills a role
    // while it starts, or the launcher is refused memory.
    groups.limit(name, &(12 << 20).to_string());
    let folder = open_model();
    let flags = ["serve", "--model", folder.text(), "--backend", "fake", "--port", "0"];
    let ended = run_under_to_end(&strs(&groups.wrapper()), &flags, PATIENCE);
    let is_named = ended.code == Some(EXIT_CONFIGURATION) && ended.stderr.contains("the rings take");
    let killed = ended.code.is_none() && ended.stderr.is_empty();
    assert!(is_named || killed || matches!(ended.code, Some(EXIT_SYSTEM | EXIT_START)), "{ended:?}");
    assert_eq!(ended.left, []);
}

#[test]
fn no_dev_shm_is_needed() {
    if !is_root() {
        println!("skipped: only root may take it away");
        return;
    }
    check_serves_under(&["unshare", "--mount", "sh", "-c", "umount -l /dev/shm; exec \"$@\"", "sh"], &[]);
}
