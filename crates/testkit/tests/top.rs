//! `pinion top` over a running service: one look for scripts, and a terminal that is left as it was.

use nix::pty::openpty;
use pinion_testkit::{Api, PATIENCE, Server, launcher_binary, run_to_end, wait_until};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

#[test]
fn one_look_has_the_figures_of_the_service() {
    let server = Server::fake_with(&[], &[("PINION_API_KEY", "k")]);
    let url = format!("http://{}", server.address());
    let body = json!({"prompt": "hello", "max_tokens": 12, "ignore_eos": true}).to_string();
    let key = [("Authorization", "Bearer k"), ("Content-Type", "application/json")];
    let answer = server.request("POST", "/v1/completions", &key, body.as_bytes()).expect("an answer");
    assert_eq!(answer.status(), 200);
    let looked = || {
        let ended = run_to_end(&["top", &url, "--api-key", "k"], &[], PATIENCE);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{}", ended.stderr);
        ended.stdout
    };
    // The status pages are a turn behind.
    let text = wait_until("the request is counted", PATIENCE, || {
        let text = looked();
        (text.contains(" finished=1 ") && text.contains(" running=0 ")).then_some(text)
    });
    let first = text.lines().next().expect("a line");
    let pairs: BTreeMap<&str, &str> = first.split(' ').filter_map(|pair| pair.split_once('=')).collect();
    assert_eq!((pairs["state"], pairs["running"], pairs["waiting"]), ("\"serving\"", "0", "0"), "{text}");
    assert_eq!(pairs["model"], format!("{:?}", server.model()));
    for name in ["generated_tokens_per_s", "kv_blocks", "slots", "ttft_p50_ms", "itl_p99_ms"] {
        assert!(pairs[name].parse::<f64>().is_ok_and(|number| number >= 0.0), "{name} in {text}");
    }
    for role in ["engine-0", "frontend-0", "tokenizer-0", "detokenizer-0"] {
        assert!(text.contains(&format!("\nrole={role} phase=ready")), "{role} in {text}");
    }
    let slow = text.lines().find(|line| line.starts_with("slow=")).expect("the request");
    assert!(slow.contains("route=/v1/completions tokens=12 reason=length"), "{slow}");

    drop(server);
    let ended = run_to_end(&["top", &url, "--once"], &[], PATIENCE);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{}", ended.stderr);
    assert!(
        ended.stderr.starts_with("pinion: error: ") && ended.stderr.contains("does not answer"),
        "{}",
        ended.stderr
    );
}

/// Does not outlive the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_terminal_is_drawn_again_until_q_and_left_as_it_was() {
    let server = Server::fake(&[]);
    let url = format!("http://{}", server.address());
    let pair = openpty(None, None).expect("there are pseudo-terminals");
    let flags = || nix::sys::termios::tcgetattr(&pair.slave).expect("a terminal").local_flags;
    let before = flags();
    let slave = || Stdio::from(pair.slave.try_clone().expect("a descriptor"));
    let mut command = Command::new("setsid");
    command.args(["--ctty", "--wait"]).arg(launcher_binary()).args(["top", &url]).env("TERM", "xterm");
    command.env_remove("NO_COLOR").env_remove("PINION_API_KEY");
    let spawned = command.stdin(slave()).stdout(slave()).stderr(slave()).spawn();
    let mut child = Killed(spawned.expect("setsid is there"));
    let mut keys = File::from(pair.master.try_clone().expect("a descriptor"));
    let (mut reader, screen) = (File::from(pair.master), Arc::new(Mutex::new(String::new())));
    let shown = screen.clone();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = reader.read(&mut bytes) {
            shown.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    });
    let text = || screen.lock().unwrap().clone();
    wait_until("it is drawn", PATIENCE, || text().contains("KV cache").then_some(()));
    assert_ne!(flags(), before, "keys come one by one");
    server.ask(Api::Completions, &json!({"prompt": "hello", "max_tokens": 5, "ignore_eos": true}));
    wait_until("it is drawn again with the request", PATIENCE, || {
        text().contains("1 finished").then_some(())
    });
    assert!(text().contains("\x1b[32mserving\x1b[0m"), "{}", text());
    keys.write_all(b"xq").expect("the terminal takes keys");
    let status = wait_until("it ends", PATIENCE, || child.0.try_wait().expect("an own child"));
    assert_eq!(status.code(), Some(0), "{}", text());
    wait_until("the first screen is back", PATIENCE, || text().ends_with("\x1b[?1049l").then_some(()));
    assert_eq!(flags(), before);
}
