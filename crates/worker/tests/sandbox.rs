//! What a role must not do, tried from within the sandbox of each: this test binary again, confined as the role is.
#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

use nix::mount::{MsFlags, mount};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, sendmsg, sendto, socket,
};
use nix::unistd::{Uid, getppid, setuid};
use pinion_config::{Backend, Config, Machine, ModelFacts, OtlpTraces};
use pinion_protocol::{Peer, Role, StopIds};
use std::collections::BTreeMap;
use std::io::{ErrorKind, IoSlice, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

const ROLE: &str = "SANDBOX_TEST_ROLE";
const FOLDER: &str = "SANDBOX_TEST_FOLDER";
const ROLES: [Role; 4] = [Role::Frontend, Role::Tokenizer, Role::Engine, Role::Detokenizer];
const DONE: &str = "allowed";

fn config(folder: &Path, records: bool) -> Config {
    let facts = ModelFacts {
        max_context: 64,
        default_context: 64,
        vocab_size: 257,
        stop_ids: StopIds::NONE,
        layers: 1,
        kv_heads: 1,
        head_dim: 1,
        hidden: 1,
        window: None,
    };
    let machine = Machine::uniform(1, 1);
    let mut config =
        Config::with_defaults(&folder.join("model"), facts, Backend::Fake, &machine).expect("defaults fit");
    config.observe.record = records.then(|| folder.join("records/tape"));
    config
}

/// A collector of spans at this address.
fn collector(address: SocketAddr) -> OtlpTraces {
    OtlpTraces {
        authority: address.to_string(),
        host: address.ip().to_string(),
        port: address.port(),
        path: "/v1/traces".to_owned(),
        addresses: vec![address],
        resource: Vec::new(),
    }
}

fn tried<T>(name: &str, outcome: Result<T, impl std::fmt::Display>) {
    let word = outcome.map_or_else(|error| error.to_string(), |_| DONE.to_owned());
    // In one piece and on a line of its own: the test harness writes to the same place.
    std::io::stdout().write_all(format!("\n{name}={word}\n").as_bytes()).unwrap();
}

/// The other side of the tests: does nothing unless it is told which role it is.
#[test]
fn confined() {
    let Some(role) = std::env::var_os(ROLE).map(|name| name.into_string().unwrap()) else { return };
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let (role, more) = role.split_once('+').unwrap_or((role.as_str(), ""));
    let role = ROLES.into_iter().find(|known| known.name() == role).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = config(&folder, more == "record");
    config.observe.otlp = (more == "otlp").then(|| collector(listener.local_addr().unwrap()));
    pinion_worker::confine(Peer::new(role, 0), &config);
    tried("connect elsewhere", other.local_addr().and_then(TcpStream::connect));
    try_fast_open(&other.local_addr().unwrap().into());
    try_work(&folder, &listener);
    try_files(&folder);
    try_others(&listener);
}

fn try_work(folder: &Path, listener: &TcpListener) {
    tried("read the model", std::fs::read(folder.join("model/config.json")));
    tried("read a linked file", std::fs::read(folder.join("model/linked.json")));
    let thread = std::thread::Builder::new().spawn(|| vec![1_u8; 32 << 20].len());
    tried("start a thread", thread.map(|thread| thread.join().unwrap()));
    tried("record", std::fs::write(folder.join("records/tape"), b"x"));
    let accepted = match listener.accept() {
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    };
    tried("accept", accepted);
}

fn try_files(folder: &Path) {
    tried("read another file", std::fs::read("/etc/passwd"));
    tried("list a folder", std::fs::read_dir("/").map(Iterator::count));
    let mut append = std::fs::OpenOptions::new();
    tried("write the model", append.append(true).open(folder.join("model/config.json")));
    tried("make a file", std::fs::File::create(folder.join("made")));
    tried("remove a file", std::fs::remove_file(folder.join("victim")));
    tried("make a folder", std::fs::create_dir(folder.join("made-folder")));
    tried("its own status", std::fs::read_to_string("/proc/self/status"));
}

fn try_others(listener: &TcpListener) {
    let parent = getppid();
    tried("execute", Command::new("/bin/true").status());
    // Without fork this does not come to look for the program.
    let missing = match Command::new("/nowhere/at/all").spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map(drop),
    };
    tried("fork", missing);
    tried("connect", listener.local_addr().and_then(TcpStream::connect));
    tried("listen", TcpListener::bind("127.0.0.1:0"));
    tried("use datagrams", a_socket(AddressFamily::Inet, SockType::Datagram));
    tried("use sockets in files", a_socket(AddressFamily::Unix, SockType::Stream));
    tried("signal the parent", kill(parent, Signal::SIGCONT));
    tried("trace the parent", ptrace::attach(parent));
    tried("mount", mount(None::<&str>, "/tmp", Some("tmpfs"), MsFlags::empty(), None::<&str>));
    tried("change the user", setuid(Uid::from_raw(65534)));
    tried("its parent's memory", std::fs::File::open(format!("/proc/{parent}/mem")));
}

/// Connections that are made by sending, of which Landlock is not asked.
fn try_fast_open(elsewhere: &SockaddrStorage) {
    let (flags, bytes) = (MsgFlags::from_bits_retain(nix::libc::MSG_FASTOPEN), b"x");
    let fresh = || socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
    tried("send elsewhere", fresh().and_then(|own| sendto(own.as_raw_fd(), bytes, elsewhere, flags)));
    let slices = [IoSlice::new(bytes)];
    let message = |own: OwnedFd| sendmsg(own.as_raw_fd(), &slices, &[], flags, Some(elsewhere));
    tried("send a message elsewhere", fresh().and_then(message));
}

fn a_socket(family: AddressFamily, kind: SockType) -> nix::Result<OwnedFd> {
    socket(family, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)
}

/// What came of each attempt of a role.
fn attempts(role: &str) -> BTreeMap<String, String> {
    let folder = std::env::temp_dir().join(format!("pinion-sandbox-{}-{role}", std::process::id()));
    // A run that was killed left it, and its process ID comes again.
    let _ = std::fs::remove_dir_all(&folder);
    for name in ["model", "records", "elsewhere"] {
        std::fs::create_dir_all(folder.join(name)).unwrap();
    }
    for name in ["victim", "model/config.json", "elsewhere/blob"] {
        std::fs::write(folder.join(name), b"{}").unwrap();
    }
    std::os::unix::fs::symlink(folder.join("elsewhere/blob"), folder.join("model/linked.json")).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "confined", "--nocapture", "--test-threads", "1"]);
    command.env(ROLE, role).env(FOLDER, &folder);
    pinion_os::privileges::drop_in_child(&mut command);
    let output = command.output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{role}: {}\n{text}{errors}", output.status);
    assert!(folder.join("victim").exists() && !folder.join("made").exists(), "{role} changed a folder");
    std::fs::remove_dir_all(&folder).unwrap();
    text.lines().filter_map(|line| line.split_once('=')).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
}

#[test]
fn a_role_can_do_its_work_and_nothing_else() {
    for role in ROLES {
        let found = attempts(role.name());
        let allowed = |name: &str| found.get(name).expect("it was tried") == DONE;
        for name in ["read the model", "read a linked file", "start a thread"] {
            assert!(allowed(name), "{role:?} must be able to {name}: {found:?}");
        }
        assert_eq!(allowed("accept"), role == Role::Frontend, "{role:?}: {found:?}");
        for name in [
            "record",
            "read another file",
            "list a folder",
            "write the model",
            "make a file",
            "remove a file",
            "make a folder",
            "its own status",
            "execute",
            "fork",
            "connect",
            "connect elsewhere",
            "send elsewhere",
            "send a message elsewhere",
            "use datagrams",
            "use sockets in files",
            "listen",
            "signal the parent",
            "trace the parent",
            "mount",
            "change the user",
            "its parent's memory",
        ] {
            assert!(!allowed(name), "{role:?} can {name}: {found:?}");
        }
    }
}

#[test]
fn an_engine_that_records_writes_there_and_nowhere_else() {
    let found = attempts("engine+record");
    assert_eq!(found["record"], DONE);
    for name in ["write the model", "make a file", "remove a file", "read another file", "execute"] {
        assert_ne!(found[name], DONE, "{name}");
    }
}

#[test]
fn a_frontend_that_sends_spans_connects_to_its_collector_by_tcp() {
    let found = attempts("frontend+otlp");
    for name in ["connect", "accept", "read the model"] {
        assert_eq!(found[name], DONE, "{name}: {found:?}");
    }
    for name in [
        "send elsewhere",
        "send a message elsewhere",
        "use datagrams",
        "use sockets in files",
        "listen",
        "execute",
        "read another file",
    ] {
        assert_ne!(found[name], DONE, "{name}");
    }
    // Landlock tells one port from another since Linux 6.7.
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let numbers: Vec<u32> =
        release.split(['.', '-']).map_while(|number| number.parse().ok()).take(2).collect();
    if numbers >= vec![6, 7] {
        assert_ne!(found["connect elsewhere"], DONE, "{found:?}");
    }
}
