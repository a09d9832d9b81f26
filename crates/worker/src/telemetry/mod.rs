//! Logs: one subscriber per process, to standard error, a line per event. Nothing logs per token.
//!
//! No thread that logs can block, fail or panic by it: lines go into a bounded `queue`, and one thread of the process
//! writes them (`writer`). What finds no room or cannot be written is dropped and counted, and the next line that is
//! written tells of it. Whatever else a process says on standard error ([`say`]) takes the same way.
//!
//! Where standard error is a terminal, lines are short, and each begins by clearing what is drawn on its own line: the
//! bar of a load, which another process may draw.

mod clock;
mod notice;
mod queue;
#[cfg(test)]
mod tests;
mod writer;

pub use queue::LogPage;

use clock::Clock;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use notice::Format;
use pinion_config::{LogForm, Terminal};
use queue::Queue;
use std::io::{self, IsTerminal};
use std::panic::PanicHookInfo;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// How long the end of a process, or of a thread that panics, waits for its last lines to be written.
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(1);

static QUEUE: LazyLock<Arc<Queue>> = LazyLock::new(|| Arc::new(Queue::new()));
/// The CPUs of the process before it was pinned: a line that is written takes no time of a loop.
static CPUS: OnceLock<CpuSet> = OnceLock::new();
/// The error with which the writer could not be started, if it could not.
static WRITER: OnceLock<Option<io::Error>> = OnceLock::new();
/// The terminal that has the log, if one has.
static TERMINAL: OnceLock<Option<Terminal>> = OnceLock::new();

/// Starts the thread that writes; until then lines wait. Twice is once. Errors: the system does not grant a thread.
pub fn start() -> Result<(), &'static io::Error> {
    let cpus = CPUS.get().copied();
    let start = || writer::start(QUEUE.clone(), io::stderr(), cpus).err();
    WRITER.get_or_init(start).as_ref().map_or(Ok(()), Err)
}

/// Lets the calling thread run where this process could before it was pinned: its work takes no time of a loop.
pub fn unpin_thread() {
    // Where that is refused it runs where the others do.
    CPUS.get().map(|cpus| sched_setaffinity(Pid::from_raw(0), cpus));
}

/// A way into the queue, for one event.
#[derive(Clone, Copy)]
struct Lines(&'static Queue);

impl io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        *self
    }
}

/// Installs the process's subscriber, before the process is pinned, and has panics logged by it. A filter that does not
/// parse falls back to `info` (the config has already refused it, so that only happens across builds). Calling it twice
/// keeps the first.
pub fn install(filter: &str, form: LogForm) {
    if let Ok(cpus) = sched_getaffinity(Pid::from_raw(0)) {
        CPUS.get_or_init(|| cpus);
    }
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(Lines(&QUEUE));
    let builder = builder.log_internal_errors(false);
    let terminal = (form == LogForm::Auto && io::stderr().is_terminal()).then(Terminal::of_process);
    let installed = match (form, terminal) {
        (LogForm::Json, _) => builder.json().flatten_event(true).try_init(),
        (LogForm::Auto | LogForm::Text, None) => builder.with_target(false).with_ansi(false).try_init(),
        (LogForm::Auto | LogForm::Text, Some(terminal)) => {
            let builder = builder.compact().with_target(false).with_timer(Clock);
            builder.with_ansi(terminal.coloured).try_init()
        }
    };
    if installed.is_err() {
        tracing::debug!("a subscriber is already installed");
        return;
    }
    TERMINAL.get_or_init(|| terminal);
    QUEUE.set_format(match (form, terminal) {
        (LogForm::Json, _) => Format::Json,
        (_, None) => Format::Text,
        (_, Some(terminal)) => Format::Short { redraws: terminal.redraws },
    });
    std::panic::set_hook(Box::new(log_panic));
}

/// The standard hook writes to standard error itself, which may block.
fn log_panic(info: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    let place = info.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let message =
        text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    let backtrace = std::backtrace::Backtrace::capture();
    let backtrace = match backtrace.status() {
        std::backtrace::BacktraceStatus::Captured => format!("\n{backtrace}"),
        _ => String::new(),
    };
    tracing::error!("thread '{name}' panicked at {place}: {message}{backtrace}");
    flush();
}

/// Whether something may be drawn again and again on the last line of the log.
pub fn can_redraw() -> bool {
    TERMINAL.get().copied().flatten().is_some_and(|terminal| terminal.redraws)
}

/// Says `text`, one line or several, on standard error, as it is.
pub fn say(text: &str) {
    QUEUE.push(format!("{text}\n").as_bytes());
}

/// Shows on a status page, under the process's name, what becomes of its log. The first call of a process counts.
pub fn show_on(process: String, page: LogPage) {
    QUEUE.show_on(process, page);
}

/// Gives the last lines a moment to be written. Called before a process ends.
pub fn flush() {
    match start() {
        Ok(()) => QUEUE.flush(LAST_LINES_TIMEOUT),
        Err(_) => writer::write_now(&io::stderr(), &QUEUE),
    }
}
