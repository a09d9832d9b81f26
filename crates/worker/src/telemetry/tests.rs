//! The queue and its writer over pipes and files that do what an operator's log may do.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use super::notice::Format;
use super::queue::{LogPage, Queue};
use super::writer;
use pinion_protocol::limits::LOG_BUFFER_BYTES;
use pinion_shm::doorbell;
use pinion_shm::page::Page;
use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const LINE_BYTES: usize = 100;

fn start(output: impl AsFd + Send + 'static) -> (Arc<Queue>, Page) {
    let queue = Arc::new(Queue::new());
    writer::start(queue.clone(), output, None).unwrap();
    let page = Page::create(1, 1, 2).unwrap();
    queue.show_on("test-0".to_owned(), LogPage { page: page.clone(), dropped_word: 0, losing_word: 1 });
    (queue, page)
}

fn line(number: usize) -> String {
    format!("{number:0>width$}\n", width = LINE_BYTES - 1)
}

fn wait(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The next lines, each of which must come in time.
fn read_lines(reader: &mut BufReader<PipeReader>, count: usize) -> Vec<String> {
    let lines = (0..count).map(|_| {
        if reader.buffer().is_empty() {
            let ready = doorbell::wait(&[reader.get_ref().as_fd()], PATIENCE).unwrap();
            assert!(!ready.timed_out(), "no line came");
        }
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        line
    });
    lines.collect()
}

fn pipe() -> (BufReader<PipeReader>, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    (BufReader::new(reader), writer)
}

#[test]
fn lines_come_out_in_order_and_whole() {
    let (mut reader, output) = pipe();
    let (queue, page) = start(output);
    (0..10).for_each(|number| queue.push(line(number).as_bytes()));
    queue.flush(PATIENCE);
    assert_eq!(read_lines(&mut reader, 10), (0..10).map(line).collect::<Vec<_>>());
    assert_eq!((page.get(0), page.get(1)), (0, 0));
}

/// The writer hangs in a full pipe: threads that log continue, lines without room are counted, and the reader learns
/// how many are missing and where.
#[test]
fn an_unread_pipe_blocks_no_writer_and_what_is_missing_is_told() {
    let short = Format::Short { redraws: false };
    for (format, level) in
        [(Format::Text, " WARN "), (Format::Json, "\"level\":\"WARN\""), (short, "Z  WARN ")]
    {
        let (mut reader, output) = pipe();
        let (queue, page) = start(output);
        queue.set_format(format);
        let pushed = 10 * LOG_BUFFER_BYTES / LINE_BYTES;
        (0..pushed).for_each(|number| queue.push(line(number).as_bytes()));
        let dropped = page.get(0);
        assert!(dropped > 0 && page.get(1) == 1, "ten times the buffer finds room");
        queue.flush(Duration::from_millis(10));
        let (mut kept, mut told, mut last) = (0, 0, None);
        while kept + told < pushed as u64 {
            let line = read_lines(&mut reader, 1).remove(0);
            if let Some((_, count)) = line.split_once("lines=").or_else(|| line.split_once("\"lines\":")) {
                assert!(line.contains(level) && line.contains("test-0"), "{line}");
                told += count.trim_end_matches(['}', '\n']).parse::<u64>().unwrap();
            } else {
                let number = line.trim_end().parse::<usize>().unwrap();
                assert!(last < Some(number), "{last:?} {number}");
                (kept, last) = (kept + 1, Some(number));
            }
        }
        assert_eq!((kept + dropped, told), (pushed as u64, dropped), "{format:?}");
        wait("lines go through again", || page.get(1) == 0);
        queue.push(b"after\n");
        assert_eq!(read_lines(&mut reader, 1), ["after\n"]);
        assert_eq!(page.get(0), dropped);
    }
}

/// On a terminal the row of a line may hold what was drawn there.
#[test]
fn a_short_line_clears_its_row() {
    for (format, line) in [
        (Format::Short { redraws: true }, "\r\u{1b}[Kshort\n"),
        (Format::Short { redraws: false }, "short\n"),
        (Format::Text, "short\n"),
    ] {
        let (mut reader, output) = pipe();
        let (queue, _) = start(output);
        queue.set_format(format);
        queue.push(b"short\n");
        assert_eq!(read_lines(&mut reader, 1), [line], "{format:?}");
    }
}

#[test]
fn a_closed_pipe_and_a_full_disk_lose_lines_and_nothing_else() {
    let (reader, pipe) = std::io::pipe().unwrap();
    drop(reader);
    let full = File::options().write(true).open("/dev/full").unwrap();
    for (queue, page) in [start(pipe), start(full)] {
        for number in 0..3 {
            queue.push(line(number).as_bytes());
            queue.flush(PATIENCE);
        }
        assert_eq!((page.get(0), page.get(1)), (3, 1));
    }
}

#[test]
fn a_line_that_never_fits_is_dropped_alone() {
    let (mut reader, output) = pipe();
    let (queue, page) = start(output);
    queue.push(&vec![b'x'; LOG_BUFFER_BYTES + 1]);
    assert_eq!(page.get(0), 1);
    queue.push(b"next\n");
    let lines = read_lines(&mut reader, 2);
    assert!(lines[0].contains("lines=1"), "{lines:?}");
    assert_eq!(lines[1], "next\n");
}

#[test]
fn a_flush_of_an_unread_log_ends() {
    let (_reader, output) = std::io::pipe().unwrap();
    let (queue, _) = start(output);
    (0..LOG_BUFFER_BYTES / LINE_BYTES).for_each(|number| queue.push(line(number).as_bytes()));
    queue.flush(Duration::from_millis(20));
}
