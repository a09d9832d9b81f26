//! The service needs no temporary folder and no home, when it starts and when a role dies, and it leaves nothing there.

use pinion_testkit::{Folder, PATIENCE, Random, Server, Signal, fake_model, kill, wait_until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SEED: u64 = 7_102;
/// Starts that are killed.
const KILLED_STARTS: usize = 12;
/// Starts that are watched until one is seen from its beginning.
const STARTS_WATCHED: usize = 10;
/// The longest that a start is let alone.
const START_MS_MAX: u64 = 300;

fn replace(server: &Server, role: &str) {
    let old = server.role(role).unwrap_or_else(|| panic!("{role} runs")).pid;
    kill(old, Signal::SIGKILL);
    wait_until(&format!("{role} has a successor"), PATIENCE, || {
        server.role(role).filter(|found| found.pid != old)
    });
    server.check_serves("after a death");
}

fn replace_all(server: &Server) {
    ["tokenizer-0", "detokenizer-0", "engine-0"].into_iter().for_each(|role| replace(server, role));
}

fn check_end(mut server: Server) {
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
}

#[test]
fn no_temporary_folder_and_no_home_are_needed() {
    let folder = Folder::new();
    folder.write("file", "");
    let file = format!("{}/file", folder.text());
    let long = format!("{}/{}", folder.text(), "x".repeat(200));
    std::fs::create_dir(&long).expect("a long name is a name");
    // Nothing can be made in /proc, by whomever.
    for temporary in ["/nonexistent/folder", "/proc", &file, &long, ""] {
        let server = Server::fake_with(&[], &[("TMPDIR", temporary), ("HOME", "/nonexistent")]);
        server.check_serves("without a folder");
        replace_all(&server);
        check_end(server);
    }
}

#[test]
fn a_temporary_folder_that_goes_away_is_not_missed() {
    let folder = Folder::new();
    let temporary = format!("{}/gone", folder.text());
    std::fs::create_dir(&temporary).expect("a folder can be made");
    let server = Server::fake_with(&[], &[("TMPDIR", &temporary)]);
    std::fs::remove_dir(&temporary).expect("nothing is in it");
    replace_all(&server);
    check_end(server);
}

/// Any process that could open the folder could have connected to its sockets, and have been taken for a role.
#[test]
fn nothing_gets_a_name_in_the_temporary_folder() {
    let folder = Folder::new();
    let over = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut seen = Vec::new();
            while !over.load(Ordering::Relaxed) {
                seen.extend(folder.entries());
            }
            seen
        });
        let server = Server::fake_with(&[], &[("TMPDIR", folder.text())]);
        replace(&server, "tokenizer-0");
        check_end(server);
        over.store(true, Ordering::Relaxed);
        watch.join().expect("the watching thread ends")
    });
    assert_eq!(seen, [""; 0]);
}

#[test]
fn a_launcher_that_is_killed_while_it_starts_leaves_nothing() {
    let (model, mut random) = (fake_model(512), Random::new(SEED));
    println!("seed {SEED}");
    for _ in 0..KILLED_STARTS {
        let mut server = Server::launch(model.path(), &["--backend", "fake"]);
        std::thread::sleep(Duration::from_millis(random.between(1, START_MS_MAX)));
        server.signal(Signal::SIGKILL);
        server.wait_exit(PATIENCE);
        wait_until("its processes are gone", PATIENCE, || server.processes().is_empty().then_some(()));
        assert_eq!(server.temporary_files(), [""; 0]);
    }
}

/// A role that does not answer keeps the launcher from nothing: it gives up in time, and it can be told to stop.
#[test]
fn a_role_that_stands_still_at_its_start_holds_up_no_launcher() {
    let model = fake_model(512);
    let mut server = stopped_at_its_start(&model, "10min");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0), "{}", server.stderr_text());

    // The test may get its turn so late that the role is ready.
    let ended = (0..STARTS_WATCHED).find_map(|_| {
        let mut server = stopped_at_its_start(&model, "2s");
        let code = server.wait_ready_or_end().err()?.code();
        Some((code, server.stderr_text()))
    });
    let (code, text) = ended.expect("one of the starts was watched from its beginning");
    assert_eq!(code, Some(5), "{text}");
}

fn stopped_at_its_start(model: &Folder, timeout: &str) -> Server {
    let server = Server::launch(model.path(), &["--backend", "fake", "--start-timeout", timeout]);
    let role = wait_until("a role starts", PATIENCE, || server.role("tokenizer-0"));
    kill(role.pid, Signal::SIGSTOP);
    server
}
