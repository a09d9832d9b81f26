//! `pinion top`: a running service, once a second, until q. Without a terminal, or with `--once`, one look.

use crate::End;
use crate::answer::message_of;
use crate::ask::{Question, ask_whole};
use crate::figures::{Figures, History};
use crate::panel;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use pinion_config::TopCommand;
use serde_json::Value;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_secs(1);
/// The service answers in this time.
const PATIENCE: Duration = Duration::from_secs(5);
/// Looks between two at the slow requests.
const SLOW_PERIODS: u64 = 5;
/// The other screen, without a cursor, and lines that are cut at the edge; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_BELOW: &str = "\x1b[J";

/// Shows it.
pub(crate) fn run(command: &TopCommand) -> Result<(), End> {
    let mut looker = Looker { command, history: History::default(), slow: None, looks: 0 };
    let is_terminal = std::io::stdout().is_terminal();
    if command.once || !is_terminal {
        return once(&mut looker, is_terminal);
    }
    watch(&mut looker).map_err(|error| End::system(format!("the terminal cannot be used: {error}")))
}

/// Two looks, so that there are rates.
fn once(looker: &mut Looker<'_>, is_terminal: bool) -> Result<(), End> {
    looker.look().map_err(End::system)?;
    std::thread::sleep(PERIOD);
    let figures = looker.look().map_err(End::system)?;
    let text = if is_terminal { panel::lines(&figures, false).join("\n") } else { panel::pairs(&figures) };
    // A reader that is gone has seen enough.
    let _ = writeln!(std::io::stdout(), "{text}");
    Ok(())
}

struct Looker<'a> {
    command: &'a TopCommand,
    history: History,
    slow: Option<Value>,
    looks: u64,
}

impl Looker<'_> {
    /// Errors: why there are no figures, for the operator.
    fn look(&mut self) -> Result<Figures, String> {
        let stats = self.get("/stats")?;
        if self.looks.is_multiple_of(SLOW_PERIODS) {
            // It may want a key where /stats wants none: then there is no list.
            self.slow = self.get("/debug/slow").ok();
        }
        self.looks += 1;
        let figures = Figures::of(&stats, &self.history, self.slow.as_ref());
        self.history.add(stats);
        Ok(figures)
    }

    fn get(&self, path: &str) -> Result<Value, String> {
        let url = &self.command.url;
        let key = self.command.key.as_deref();
        let asked = ask_whole(&Question { url, path, key, body: None, patience: PATIENCE });
        let (status, text) = asked.map_err(|error| format!("{url} does not answer: {error}"))?;
        match status {
            200 => serde_json::from_str(&text).map_err(|_| format!("{url}{path} is not that of Pinion")),
            401 => Err(format!("{url} wants a key: set PINION_API_KEY, or give --api-key")),
            _ => Err(format!("{url} answers {status} to {path}: {}", message_of(&text))),
        }
    }
}

/// Draws until q, Ctrl-C or a signal.
fn watch(looker: &mut Looker<'_>) -> std::io::Result<()> {
    let mut set = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| set.add(signal));
    set.thread_block()?;
    let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let stdin = std::io::stdin();
    let _keys = Keys::take()?;
    let coloured = !looker.command.no_colour;
    let mut next = Instant::now();
    loop {
        let text = match looker.look() {
            Ok(figures) => panel::lines(&figures, coloured),
            Err(reason) => vec![reason],
        };
        draw(&text)?;
        next = (next + PERIOD).max(Instant::now());
        loop {
            let left = next.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
            let mut ends = [
                PollFd::new(signals.as_fd(), PollFlags::POLLIN),
                PollFd::new(stdin.as_fd(), PollFlags::POLLIN),
            ];
            if poll(&mut ends, timeout)? == 0 {
                break;
            }
            if ends[0].any().unwrap_or(true) || (ends[1].any().unwrap_or(true) && is_end(&stdin)) {
                return Ok(());
            }
        }
    }
}

/// Whether one of the keys that were pressed, or the end of the input, ends it. Read past the buffer of standard input,
/// which would keep keys from the next wait.
fn is_end(stdin: &impl AsFd) -> bool {
    let mut keys = [0; 64];
    match nix::unistd::read(stdin, &mut keys) {
        Ok(0) | Err(_) => true,
        Ok(count) => keys[..count].iter().any(|key| matches!(key, b'q' | b'Q' | 3 | 4)),
    }
}

fn draw(lines: &[String]) -> std::io::Result<()> {
    let mut text = HOME.to_owned();
    for line in lines {
        text += &format!("{line}\x1b[K\r\n");
    }
    let mut out = std::io::stdout().lock();
    out.write_all((text + CLEAR_BELOW).as_bytes())?;
    out.flush()
}

/// Keys come one by one and are not shown, on the terminal's other screen; all is as before when it is dropped.
struct Keys(Option<Termios>);

impl Keys {
    fn take() -> std::io::Result<Keys> {
        let stdin = std::io::stdin();
        let before = if stdin.is_terminal() { Some(tcgetattr(&stdin)?) } else { None };
        if let Some(before) = &before {
            let mut now = before.clone();
            now.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG);
            tcsetattr(&stdin, SetArg::TCSANOW, &now)?;
        }
        let keys = Keys(before);
        std::io::stdout().write_all(ENTER.as_bytes())?;
        Ok(keys)
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let mut out = std::io::stdout();
        // A terminal that is gone needs no care.
        let _ = out.write_all(LEAVE.as_bytes()).and_then(|()| out.flush());
        if let Some(before) = &self.0 {
            let _ = tcsetattr(std::io::stdin(), SetArg::TCSANOW, before);
        }
    }
}
