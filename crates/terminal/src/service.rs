//! A server for the time of a chat: `pinion serve` on a free port of loopback.

use crate::End;
use crate::screen::Screen;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pinion_config::{Exit, ServerUrl, reason_in};
use pinion_os::process::dies_with_parent;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// With what the ready line begins, up to the address; docs/OPERATIONS.md has it for scripts.
const READY: &str = "pinion is ready: ";
/// How long the server may take to leave.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A server of our own; dropping it stops it.
pub(crate) struct Service {
    child: Child,
    pub(crate) url: ServerUrl,
}

impl Service {
    /// Starts it and waits until it is ready. Loading and downloading take as long as they take: the server ends by
    /// itself when it cannot go on.
    pub(crate) fn start(model: &str, flags: &[String], screen: Screen) -> Result<Service, End> {
        let program = std::env::current_exe().unwrap_or_default().with_file_name("pinion");
        let mut command = Command::new(&program);
        command.args(["serve", "--model", model, "--host", "127.0.0.1", "--port", "0"]).args(flags);
        // Ctrl-C goes to the whole process group: it stops an answer, not the server.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        dies_with_parent(&mut command);
        let mut child = command
            .spawn()
            .map_err(|error| End::system(format!("cannot start {}: {error}", program.display())))?;
        screen.note(&format!("starting a server for {model}"));
        let lines = lines_of(&mut child);
        let mut said = Vec::new();
        while let Ok(line) = lines.recv() {
            if let Some(url) = ready(&line) {
                return Ok(Service { child, url });
            }
            if is_download(&line) {
                screen.note(&line);
            }
            said.push(line);
        }
        Err(ended(child, &said))
    }
}

/// The lines of its log; read to the end, so that the server never waits for a reader.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let (sender, lines) = channel();
    if let Some(stream) = child.stderr.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
                // After it is ready its log is not wanted.
                let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
            }
        });
    }
    lines
}

/// The address in `pinion is ready: http://ADDRESS serves NAME`.
fn ready(line: &str) -> Option<ServerUrl> {
    let (address, _) = line.strip_prefix(READY)?.split_once(" serves ")?;
    ServerUrl::parse(address).ok()
}

/// What `pinion-pull` says of its progress.
fn is_download(line: &str) -> bool {
    line.contains('%') && line.contains("/s")
}

/// The server is gone before it was ready: what it said last is the reason.
fn ended(mut child: Child, said: &[String]) -> End {
    let code = child.wait().ok().and_then(|status| status.code());
    let exit = code.and_then(|code| Exit::ALL.into_iter().find(|exit| i32::from(exit.code()) == code));
    let reason =
        said.iter().rev().find(|line| !line.trim().is_empty()).map_or("it does not say why", String::as_str);
    End {
        code: exit.filter(|exit| *exit != Exit::Ok).unwrap_or(Exit::Start),
        reason: format!("the server did not start: {}", reason_in(reason)),
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.child.id() as i32);
        // The second signal stops at once: no other client has a request here.
        for signal in [Signal::SIGTERM, Signal::SIGTERM] {
            let _ = kill(pid, signal);
            let deadline = Instant::now() + STOP_PATIENCE / 2;
            while Instant::now() < deadline {
                if !matches!(self.child.try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(LOOK_AGAIN);
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_has_the_address() {
        let url = ready("pinion is ready: http://127.0.0.1:4321 serves demo-model").unwrap();
        assert_eq!(url.to_string(), "http://127.0.0.1:4321");
        assert_eq!(ready("pinion is ready"), None);
        assert_eq!(ready("2026-01-01 INFO ready: gpt2 f32"), None);
    }

    #[test]
    fn a_server_that_ends_gives_its_code_and_its_last_word() {
        let child = || Command::new("/bin/sh").args(["-c", "exit 3"]).spawn().unwrap();
        let end = ended(child(), &["first".to_owned(), "/m: no such folder".to_owned(), String::new()]);
        assert_eq!(
            (end.code, end.reason.as_str()),
            (Exit::Model, "the server did not start: /m: no such folder")
        );
        assert!(ended(child(), &[]).reason.ends_with("it does not say why"));
    }
}
