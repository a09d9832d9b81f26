//! API keys over the real processes: asked for before and after a restart, and nowhere to be found.

use pinion_testkit::{PATIENCE, Process, Server, Signal, kill, wait_until};
use serde_json::json;
use std::os::unix::fs::FileExt;

const KEY: &str = "sk-nobody-may-see-this";

fn status(server: &Server, path: &str, fields: &[(&str, &str)]) -> u16 {
    let body = json!({"prompt": "hi", "max_tokens": 2}).to_string();
    let method = if path.starts_with("/v1/completions") { "POST" } else { "GET" };
    server.request(method, path, fields, body.as_bytes()).expect("an answer").status()
}

/// What /proc shows of a process to others of its user.
fn is_clean(process: &Process) -> bool {
    ["cmdline", "environ"].iter().all(|file| {
        let bytes = std::fs::read(format!("/proc/{}/{file}", process.pid)).expect("the role lives");
        !String::from_utf8_lossy(&bytes).contains(KEY)
    })
}

/// Whether the key lies anywhere in what a process may write; `None` where this user may not look.
fn holds_the_key(pid: u32) -> Option<bool> {
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).ok()?;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    for line in maps.lines().filter(|line| line.contains(" rw-p ")) {
        let (start, rest) = line.split_once('-').expect("a range");
        let number = |text: &str| u64::from_str_radix(text, 16).expect("addresses are hexadecimal");
        let (start, end) = (number(start), number(rest.split(' ').next().unwrap_or_default()));
        let mut bytes = vec![0; usize::try_from(end - start).expect("a mapping fits memory")];
        let readable = memory.read_exact_at(&mut bytes, start).is_ok();
        if readable && bytes.windows(KEY.len()).any(|window| window == KEY.as_bytes()) {
            return Some(true);
        }
    }
    Some(false)
}

fn check(server: &Server) {
    let bearer = format!("Bearer {KEY}");
    assert_eq!(status(server, "/v1/completions", &[("authorization", &bearer)]), 200);
    assert_eq!(status(server, "/v1/completions", &[("authorization", "Bearer sk-wrong")]), 401);
    assert_eq!(status(server, "/v1/models", &[]), 401);
    for path in ["/health", "/ready", "/live", "/metrics", "/version"] {
        assert_eq!(status(server, path, &[]), 200, "{path}");
    }
    let spare = wait_until("a spare waits", PATIENCE, || server.spare());
    for role in server.roles().into_iter().chain([spare]) {
        assert!(is_clean(&role), "{role:?} shows the key");
    }
    let launcher = Process { pid: server.pid(), name: "pinion".to_owned() };
    assert!(is_clean(&launcher), "the launcher shows the key");
    assert!(!server.stderr_text().contains("sk-"), "{}", server.stderr_text());
}

#[test]
fn a_key_is_asked_for_also_after_a_restart_and_no_role_or_log_shows_it() {
    let server =
        Server::fake_with(&["--log", "trace", "--restart-backoff", "1ms"], &[("PINION_API_KEY", KEY)]);
    assert_eq!(server.roles().len(), 4);
    // No client has sent the key yet. An engine's memory takes long to read, and it never gets the keys.
    for role in server.roles().into_iter().filter(|role| !role.name.contains("engine")) {
        assert_ne!(holds_the_key(role.pid), Some(true), "{}", role.name);
    }
    check(&server);
    let victim = server.role("frontend-0").expect("it runs");
    kill(victim.pid, Signal::SIGKILL);
    wait_until("the frontend is back", PATIENCE, || {
        let role = server.role("frontend-0").filter(|role| role.pid != victim.pid)?;
        let request = server.request("GET", "/ready", &[], b"");
        request.ok().filter(|response| response.status() == 200).map(|_| role)
    });
    check(&server);
    server.stop();
}

#[test]
fn a_service_that_strangers_can_reach_without_a_key_says_so() {
    for (host, key, warns) in
        [("0.0.0.0", None, true), ("0.0.0.0", Some(KEY), false), ("127.0.0.1", None, false)]
    {
        let variables: Vec<(&str, &str)> = key.map(|key| ("PINION_API_KEY", key)).into_iter().collect();
        let server = Server::fake_with(&["--host", host], &variables);
        let says = || server.stderr_text().contains("without --api-key");
        if warns {
            wait_until("the frontend warns", PATIENCE, || says().then_some(()));
        } else {
            assert!(!says(), "{host} {key:?}\n{}", server.stderr_text());
        }
        server.stop();
    }
}
