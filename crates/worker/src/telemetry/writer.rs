//! The thread that writes the log. It is the only one of its process that may block in a write to standard error.

use super::queue::{Missing, Queue};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::unistd::Pid;
use pinion_protocol::limits::LOG_BUFFER_BYTES;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

/// A file description may be non-blocking because another program made it so: this is how often it is tried again.
const RETRY_MS: u16 = 1000;

/// Starts the thread. It takes no signal, so that those of the launcher go where they are waited for.
pub(super) fn start(
    queue: Arc<Queue>,
    output: impl AsFd + Send + 'static,
    cpus: Option<CpuSet>,
) -> io::Result<()> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = std::thread::Builder::new().name("log".to_owned());
    let started = thread.spawn(move || {
        // Where that is refused it runs where the others do.
        cpus.map(|cpus| sched_setaffinity(Pid::from_raw(0), &cpus));
        write_for_ever(&queue, &output)
    });
    before.thread_set_mask()?;
    started.map(drop)
}

fn write_for_ever(queue: &Queue, output: &impl AsFd) -> ! {
    let mut batch = Vec::with_capacity(LOG_BUFFER_BYTES);
    let mut notice = String::new();
    let mut line_is_cut = false;
    loop {
        let Missing { before, after } = queue.take(&mut batch);
        let mut untold = before + after;
        let mut tell = |count: u64, line_is_cut: &mut bool| {
            if count > 0 {
                queue.notice(count, &mut notice);
                untold -= if write_lines(output, notice.as_bytes(), line_is_cut) == notice.len() {
                    count
                } else {
                    0
                };
            }
        };
        tell(before, &mut line_is_cut);
        let written = write_lines(output, &batch, &mut line_is_cut);
        if written == batch.len() {
            tell(after, &mut line_is_cut);
        }
        queue.written(&batch[written..], untold);
        batch.clear();
    }
}

/// Writes whole lines, after the end of one that was cut before. How many bytes were written.
fn write_lines(output: &impl AsFd, lines: &[u8], line_is_cut: &mut bool) -> usize {
    if *line_is_cut && write_all(output, b"\n") == 0 {
        return 0;
    }
    let written = write_all(output, lines);
    *line_is_cut = written > 0 && lines[written - 1] != b'\n';
    written
}

/// Writes as much as the system takes; how many bytes that is.
fn write_all(output: &impl AsFd, bytes: &[u8]) -> usize {
    let mut written = 0;
    while written < bytes.len() {
        match nix::unistd::write(output, &bytes[written..]) {
            Ok(0) => break,
            Ok(count) => written += count,
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                let fd = PollFd::new(output.as_fd(), PollFlags::POLLOUT);
                // Whatever it says, the next write tells.
                let _ = poll(&mut [fd], PollTimeout::from(RETRY_MS));
            }
            Err(_) => break,
        }
    }
    written
}

/// Writes the first lines that wait as far as that needs no waiting, for a process that has no thread for it.
pub(super) fn write_now(output: &impl AsFd, queue: &Queue) {
    // A pipe that can be written takes this much at once.
    const AT_ONCE_BYTES: usize = 4096;
    let mut fd = [PollFd::new(output.as_fd(), PollFlags::POLLOUT)];
    if queue.is_empty() || !poll(&mut fd, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
        return;
    }
    let mut batch = Vec::new();
    queue.take(&mut batch);
    // The process ends for want of a thread; a log that cannot be written either changes nothing.
    let _ = nix::unistd::write(output, &batch[..batch.len().min(AT_ONCE_BYTES)]);
}
