//! Start, drain and end: what an operator and a process manager see.

use pinion_testkit::{Answer, Api, Connection, End, Events, Folder, PATIENCE, Server, Signal};
use pinion_testkit::{
    cpus_allowed, descriptor_count, fake_model, free_port, is_alive, kill, run_to_end, wait_until,
};
use serde_json::json;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Exit codes as docs/OPERATIONS.md has them.
const EXIT_PORT: i32 = 4;
const EXIT_DRAIN_CUT: i32 = 7;

/// Starts that are watched until one is seen from its beginning.
const STARTS: usize = 10;

/// Process name to CPUs, from the table printed at start.
fn printed_plan(log: &str) -> BTreeMap<String, String> {
    let table = log.lines().skip_while(|line| !line.starts_with("process ")).skip(1);
    let rows = table.map_while(|line| {
        let mut words = line.split_whitespace();
        let (name, cpus) = (words.next()?, words.next()?);
        name.contains('-').then(|| (name.to_owned(), cpus.to_owned()))
    });
    rows.collect()
}

/// The roles are separate processes, each on the CPUs of the plan.
fn check_affinity(flags: &[&str], expected: &[(&str, &str)]) {
    let server = Server::fake(flags);
    let plan = printed_plan(&server.stderr_text());
    let roles = server.roles();
    let names: Vec<&str> = roles.iter().map(|role| role.name.as_str()).collect();
    let wanted = ["pinion-detokenizer-0", "pinion-engine-0", "pinion-frontend-0", "pinion-tokenizer-0"];
    assert_eq!(names, wanted, "{flags:?}");
    for role in &roles {
        let name = role.name.trim_start_matches("pinion-");
        assert_eq!(plan.get(name), cpus_allowed(role.pid).as_ref(), "{flags:?}: {name}\n{plan:?}");
    }
    for (name, cpus) in expected {
        assert_eq!(plan.get(*name).map(String::as_str), Some(*cpus), "{flags:?}");
    }
    server.check_serves("pinned");
    server.stop();
}

/// How long the kernels' threads spin is the plan's to say, unless the launcher's environment does.
#[test]
fn the_engines_spins_are_those_of_the_environment_where_it_has_some() {
    let spins = |variables: &[(&str, &str)]| {
        let server = Server::fake_with(&["--no-step-spin"], variables);
        let engine = server.role("engine-0").expect("the engine runs");
        let bytes = std::fs::read(format!("/proc/{}/environ", engine.pid)).expect("the role lives");
        let all = String::from_utf8_lossy(&bytes).into_owned();
        let said = all.split('\0').filter_map(|variable| variable.strip_prefix("GOMP_SPINCOUNT="));
        let said: Vec<String> = said.map(str::to_owned).collect();
        server.stop();
        said
    };
    assert_eq!(spins(&[]), ["0"]);
    assert_eq!(spins(&[("GOMP_SPINCOUNT", "345")]), ["345"]);
}

/// One CPU of each physical core that this process may use; whole cores as lists.
fn cores() -> Vec<String> {
    let own = cpus_allowed(std::process::id()).expect("an own status");
    let all: Vec<usize> = own
        .split(',')
        .flat_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.parse::<usize>().expect("a CPU list has numbers");
            number(first)..=number(last)
        })
        .collect();
    let mut cores: Vec<String> = Vec::new();
    for cpu in all {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let siblings = std::fs::read_to_string(path).map_or(cpu.to_string(), |text| text.trim().to_owned());
        if !cores.contains(&siblings) {
            cores.push(siblings);
        }
    }
    cores
}

#[test]
fn every_role_runs_where_the_plan_says() {
    check_affinity(&["--pin"], &[]);
    check_affinity(&["--no-pin"], &[]);
    let cores = cores();
    if let [first, .., last] = cores.as_slice() {
        let flags = ["--cpus-engine", last, "--cpus-frontend", first];
        check_affinity(&flags, &[("engine-0", last.as_str()), ("frontend-0", first.as_str())]);
    } else {
        println!("one core only: explicit sets are not checked");
    }
}

#[test]
fn no_connection_is_taken_before_the_service_can_answer() {
    // The test may get its turn so late that all is over.
    let early = (0..STARTS).any(|_| a_start_is_watched());
    assert!(early, "{STARTS} first attempts were made after the service had started");
}

/// Knocks until the door opens. Gives whether it was closed before.
fn a_start_is_watched() -> bool {
    let folder = fake_model(512);
    let port = free_port().to_string();
    let address: SocketAddr = format!("127.0.0.1:{port}").parse().expect("an address");
    let mut server = Server::launch(folder.path(), &["--backend", "fake", "--port", &port]);
    let mut refused = 0;
    let health = wait_until("a connection is accepted", PATIENCE, || match Connection::open(address) {
        Ok(mut connection) => {
            connection.request("GET", "/ready", &[], b"").expect("an accepted connection takes a request");
            Some(connection.response().expect("an accepted connection is answered").status())
        }
        Err(_) => {
            refused += 1;
            None
        }
    });
    assert_eq!(health, 200, "the first that is let in finds the service ready");
    server.wait_ready();
    server.check_serves("let in");
    server.stop();
    refused > 0
}

/// A stream that has begun.
fn begin(server: &Server, prompt: &str, tokens: usize) -> Events {
    let body = json!({"prompt": prompt, "max_tokens": tokens, "stream": true});
    server.begin(Api::Completions, &[body]).remove(0)
}

#[test]
fn the_first_signal_lets_streams_finish() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut server = Server::fake(&["--fake-step-us", "15000"]);
        let oracle = server.oracle();
        let stream = begin(&server, "let me finish", 200);
        server.signal(signal);
        let answer = Answer::of_events(Api::Completions, stream);
        assert_eq!(answer.end, End::Complete, "{signal}: {answer:?}");
        assert_eq!(answer.text, oracle.text(&oracle.encode("let me finish"), 200), "{signal}");
        assert_eq!(server.wait_exit(PATIENCE).code(), Some(0), "{signal}");
        assert_eq!(server.processes(), [], "{signal}");
        assert_eq!(server.temporary_files(), [""; 0], "{signal}");
    }
}

#[test]
fn the_second_signal_and_the_drain_deadline_cut() {
    for (name, flags, signals) in
        [("second signal", ["--drain-timeout", "60s"], 2), ("deadline", ["--drain-timeout", "500ms"], 1)]
    {
        // A step takes so long that the stream cannot be complete.
        let mut server = Server::fake(&[&flags[..], &["--fake-step-us", "250000"]].concat());
        let stream = begin(&server, "cut me", 500);
        for _ in 0..signals {
            server.signal(Signal::SIGTERM);
            wait_until("it drains", PATIENCE, || server.stderr_text().contains("draining").then_some(()));
            // Signals that come together are one.
            std::thread::sleep(Duration::from_secs(1));
        }
        let answer = Answer::of_events(Api::Completions, stream);
        assert_ne!(answer.end, End::Complete, "{name}");
        assert_eq!(server.wait_exit(PATIENCE).code(), Some(EXIT_DRAIN_CUT), "{name}");
        assert_eq!(server.processes(), [], "{name}");
    }
}

/// Its requests have ended when its last bytes are in a buffer of the frontend, in front of a full socket.
#[test]
fn an_answer_that_is_read_late_is_complete_or_counts_as_cut() {
    const CHOICES: u32 = 128;
    for (timeout, code) in [("10m", 0), ("500ms", EXIT_DRAIN_CUT)] {
        let mut server = Server::fake(&["--max-inflight", "128", "--drain-timeout", timeout]);
        let body =
            json!({"prompt": "much", "n": CHOICES, "max_tokens": 160, "logprobs": 20, "ignore_eos": true});
        let mut reader = server.connect();
        reader.request("POST", "/v1/completions", &[], body.to_string().as_bytes()).expect("it is taken");
        wait_until("the answer is made and handed over", PATIENCE, || {
            let made = server.metric("pinion_requests_finished_total") >= f64::from(CHOICES);
            (made && server.metric("pinion_request_slots_used") == 0.0).then_some(())
        });
        let _idle = server.connect();
        server.signal(Signal::SIGTERM);
        wait_until("it drains", PATIENCE, || server.stderr_text().contains("draining").then_some(()));
        if code == 0 {
            // Much longer than a frontend with nothing to wait for takes to end.
            std::thread::sleep(Duration::from_secs(1));
            let answer = reader.response().expect("all of it comes");
            assert!(answer.body.len() > 5 << 20, "{} bytes may fit into the socket", answer.body.len());
            assert_eq!(answer.json()["choices"].as_array().map(Vec::len), Some(CHOICES as usize));
        }
        assert_eq!(server.wait_exit(PATIENCE).code(), Some(code), "{timeout}");
        assert!(reader.response().is_err(), "{timeout}: nothing more comes, or not all of it");
        assert_eq!(server.processes(), [], "{timeout}");
    }
}

#[test]
fn a_role_that_dies_in_the_drain_is_not_waited_for() {
    for name in ["engine-0", "detokenizer-0"] {
        let mut server = Server::fake(&["--fake-step-us", "250000", "--drain-timeout", "10m"]);
        let stream = begin(&server, "lost", 500);
        server.signal(Signal::SIGTERM);
        wait_until("it drains", PATIENCE, || server.stderr_text().contains("draining").then_some(()));
        kill(server.role(name).expect("it runs until the end").pid, Signal::SIGKILL);
        let answer = Answer::of_events(Api::Completions, stream);
        assert_eq!(answer.end, End::Error("role_restarted".to_owned()), "{name}");
        assert_eq!(server.wait_exit(PATIENCE).code(), Some(EXIT_DRAIN_CUT), "{name}");
        assert_eq!(server.processes(), [], "{name}");
    }
}

/// Load balancers look at `/ready` from time to time. Before they have looked, nothing is refused.
#[test]
fn requests_are_served_for_a_time_after_ready_says_no() {
    let mut server = Server::fake(&["--drain-delay", "30m"]);
    let oracle = server.oracle();
    server.signal(Signal::SIGTERM);
    wait_until("/ready says no", PATIENCE, || (server.get("/ready").status() == 503).then_some(()));
    kill(server.role("frontend-0").expect("it serves").pid, Signal::SIGKILL);
    wait_until("a successor of the frontend says no, too", PATIENCE, || {
        let mut connection = Connection::open(server.address()).ok()?;
        connection.request("GET", "/ready", &[], b"").ok()?;
        (connection.response().ok()?.status() == 503).then_some(())
    });
    let answer = server.ask(Api::Completions, &json!({"prompt": "not yet", "max_tokens": 5}));
    assert_eq!((answer.end, answer.text), (End::Complete, oracle.text(&oracle.encode("not yet"), 5)));
    // Signals that come together are one.
    std::thread::sleep(Duration::from_secs(1));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(EXIT_DRAIN_CUT), "the second signal does not wait");
    assert_eq!(server.processes(), []);
}

#[test]
fn the_drain_begins_when_its_delay_is_over() {
    let mut server = Server::fake(&["--drain-delay", "3s"]);
    let begin = Instant::now();
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    assert!(begin.elapsed() >= Duration::from_secs(3), "it ended after {:?}", begin.elapsed());
    assert_eq!(server.processes(), []);
}

#[test]
fn a_supervisor_hears_of_the_start_the_life_and_the_end() {
    let (folder, scratch) = (fake_model(512), Folder::new());
    let path = scratch.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket can be bound");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket takes a timeout");
    let told = || {
        let mut bytes = [0; 512];
        let count = socket.recv(&mut bytes).expect("the launcher says something");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let variables = [("NOTIFY_SOCKET", path.to_str().expect("UTF-8")), ("WATCHDOG_USEC", "900000")];
    let mut server =
        Server::launch_with(folder.path(), &["--backend", "fake", "--drain-delay", "100ms"], &variables);
    let ready = std::iter::from_fn(|| Some(told())).find(|state| state != "WATCHDOG=1").expect("endless");
    server.wait_ready();
    assert_eq!(ready, format!("READY=1\nSTATUS=http://{} serves {}", server.address(), server.model()));
    assert_eq!((told().as_str(), told().as_str()), ("WATCHDOG=1", "WATCHDOG=1"));
    let inherits = |pid| {
        std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|bytes| {
            bytes.split(|byte| *byte == 0).any(|variable| variable.starts_with(b"NOTIFY_SOCKET="))
        })
    };
    assert!(server.roles().iter().all(|role| !inherits(role.pid)), "a role has the launcher's supervisor");
    server.signal(Signal::SIGTERM);
    let states: Vec<String> =
        std::iter::from_fn(|| Some(told())).filter(|state| state != "WATCHDOG=1").take(2).collect();
    for (state, status) in states.iter().zip(["/ready says no; requests are still served", "draining"]) {
        assert!(state.starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC=3"), "{state}");
        assert!(state.ends_with(&format!("STATUS={status}")), "{state}");
    }
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
}

/// As systemd does it: the signal goes to every process of the service.
#[test]
fn a_signal_to_all_processes_is_for_the_launcher() {
    let mut server = Server::fake(&["--fake-step-us", "20000"]);
    let stream = begin(&server, "drain", 100);
    server.roles().iter().for_each(|role| kill(role.pid, Signal::SIGTERM));
    server.signal(Signal::SIGTERM);
    let answer = Answer::of_events(Api::Completions, stream);
    let oracle = server.oracle();
    assert_eq!((answer.end, answer.text), (End::Complete, oracle.text(&oracle.encode("drain"), 100)));
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    assert_eq!(server.processes(), []);
}

/// What nohup(1), a script's shell and other parents leave to what they start.
#[test]
fn signals_that_the_parent_ignores_end_neither_the_service_nor_its_restarts() {
    let line = "trap '' HUP INT QUIT CHLD; exec \"$0\" \"$@\"";
    let flags = ["--fake-step-us", "5000"];
    let mut server = Server::fake_by_shell(line, Stdio::null(), &flags);
    let stream = begin(&server, "terminal", 100);
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
        server.signal(signal);
    }
    let old = server.role("engine-0").expect("it runs").pid;
    kill(old, Signal::SIGKILL);
    let answer = Answer::of_events(Api::Completions, stream);
    let oracle = server.oracle();
    assert_eq!((answer.end, answer.text), (End::Complete, oracle.text(&oracle.encode("terminal"), 100)));
    wait_until("the engine is back", PATIENCE, || server.role("engine-0").filter(|found| found.pid != old));
    server.check_serves("as before");
    let stream = begin(&server, "drain", 100);
    server.signal(Signal::SIGTERM);
    let answer = Answer::of_events(Api::Completions, stream);
    assert_eq!((answer.end, answer.text), (End::Complete, oracle.text(&oracle.encode("drain"), 100)));
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    assert_eq!(server.processes(), []);
}

/// A terminal that goes away, or timeout(1): two signals for one wish.
#[test]
fn signals_that_come_together_are_one() {
    let mut server = Server::fake(&["--fake-step-us", "20000"]);
    let stream = begin(&server, "drain", 100);
    server.signal(Signal::SIGHUP);
    server.signal(Signal::SIGTERM);
    let answer = Answer::of_events(Api::Completions, stream);
    let oracle = server.oracle();
    assert_eq!((answer.end, answer.text), (End::Complete, oracle.text(&oracle.encode("drain"), 100)));
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
}

#[test]
fn a_killed_launcher_leaves_no_process() {
    // A step takes so long that the stream cannot be complete.
    let mut server = Server::fake(&["--fake-step-us", "250000"]);
    let roles = server.roles();
    let stream = begin(&server, "orphans", 500);
    server.signal(Signal::SIGKILL);
    server.wait_exit(PATIENCE);
    wait_until("every role is gone", PATIENCE, || roles.iter().all(|role| !is_alive(role.pid)).then_some(()));
    wait_until("so is a process that was not one yet", PATIENCE, || {
        server.processes().is_empty().then_some(())
    });
    assert_ne!(Answer::of_events(Api::Completions, stream).end, End::Complete);
}

/// The processes of the killed service still have the port for some milliseconds.
#[test]
fn after_a_killed_launcher_the_port_can_be_had_at_once() {
    let (model, port) = (fake_model(512), free_port().to_string());
    let flags = ["--backend", "fake", "--port", &port];
    let mut server = Server::start(model.path(), &flags);
    for _ in 0..10 {
        server.signal(Signal::SIGKILL);
        let next = Server::start(model.path(), &flags);
        drop(std::mem::replace(&mut server, next));
        server.check_serves("on the same port");
    }
    server.stop();
}

#[test]
fn a_port_in_use_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let port = listener.local_addr().expect("a bound socket has an address").port().to_string();
    let folder = fake_model(512);
    let ended =
        run_to_end(&["serve", "--backend", "fake", "--model", folder.text(), "--port", &port], &[], PATIENCE);
    assert_eq!(ended.code, Some(EXIT_PORT), "{ended:?}");
    assert!(ended.stderr.contains(&port), "{ended:?}");
    assert_eq!((ended.left, ended.files), (vec![], vec![]));
}

#[test]
fn restarts_leave_no_descriptor_and_no_file_behind() {
    let flags = ["--restart-backoff", "10ms", "--restart-limit", "100"];
    let server = Server::fake(&flags);
    let restart = |name: &str| {
        let old = server.role(name).unwrap_or_else(|| panic!("{name} runs"));
        kill(old.pid, Signal::SIGKILL);
        wait_until(&format!("{name} is back"), PATIENCE, || {
            server.role(name).filter(|role| role.pid != old.pid)?;
            (server.request("GET", "/ready", &[], b"").ok()?.status() == 200).then_some(())
        });
        wait_until("it serves", PATIENCE, || {
            let body = json!({"prompt": "back", "max_tokens": 2}).to_string();
            let response = server.request("POST", "/v1/completions", &[], body.as_bytes()).ok()?;
            (response.status() == 200).then_some(())
        });
    };
    let roles = ["engine-0", "detokenizer-0", "tokenizer-0", "frontend-0"];
    roles.iter().for_each(|name| restart(name));
    server.wait_idle();
    let spare_waits = || wait_until("a spare waits", PATIENCE, || server.spare());
    spare_waits();
    let count = || -> Vec<usize> {
        std::iter::once(server.pid())
            .chain(server.roles().iter().map(|role| role.pid))
            .map(descriptor_count)
            .collect()
    };
    let before = count();
    for name in roles.iter().chain(&roles).chain(&["engine-0", "engine-0"]) {
        restart(name);
    }
    server.wait_idle();
    spare_waits();
    // Connections of this test that the frontend is about to close may still count.
    wait_until(&format!("descriptors are back at {before:?}"), PATIENCE, || {
        count().iter().zip(&before).all(|(now, before)| *now <= before + 2).then_some(())
    });
    server.check_serves("after all that");
    server.stop();
}
