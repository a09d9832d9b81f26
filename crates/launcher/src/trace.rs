//! `pinion trace`: asks a running service for a trace and writes it to a file, piece by piece as it comes.

use pinion_client::{Answer, Connection, Limit, Request};
use pinion_config::{Exit, TraceCommand};
use pinion_worker::telemetry;
use std::fs::File;
use std::io::{self, BufRead, BufWriter, Read, Write};
use std::path::Path;
use std::time::Duration;

/// A connection is made, and a piece comes, in this time beyond the time recorded.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of an error that is shown.
const ERROR_BYTES_MAX: u64 = 4 << 10;

/// Runs the command and says what came of it.
pub(crate) fn run(command: &TraceCommand) -> Exit {
    match fetch(command) {
        Ok(bytes) => {
            let out = command.out.display();
            // The trace is written, even if nothing reads this line.
            let _ = writeln!(io::stdout(), "{out}: {bytes} bytes; open it at https://ui.perfetto.dev");
            Exit::Ok
        }
        Err(error) => {
            telemetry::say(&format!("pinion: error: no trace from http://{}: {error}", command.address));
            telemetry::flush();
            Exit::System
        }
    }
}

fn fetch(command: &TraceCommand) -> io::Result<u64> {
    let mut connection = Connection::open(&command.address, PATIENCE)?;
    connection.set_limit(Limit::Silence(PATIENCE + Duration::from_secs(command.seconds)));
    let body = format!("{{\"seconds\":{}}}", command.seconds);
    let request = Request::new("POST", &command.address, "/debug/trace").last();
    if connection.send(&request.key(command.key.as_deref()).json(body)) && command.seconds > 0 {
        telemetry::say(&format!("recording for {} s", command.seconds));
    }
    take_answer(connection.answer()?, &command.out)
}

/// Reads the answer into the file `out` and gives its length.
fn take_answer<R: BufRead>(answer: Answer<R>, out: &Path) -> io::Result<u64> {
    let Answer { head, mut body } = answer;
    if head.status != 200 {
        let mut text = Vec::new();
        // A connection that is reset here has said what it could.
        let _ = body.take(ERROR_BYTES_MAX).read_to_end(&mut text);
        let (status, text) = (head.status_line, String::from_utf8_lossy(&text));
        return Err(io::Error::other(format!("{}: {}", status.trim(), text.trim())));
    }
    // Only now: a service that refuses leaves an older trace alone.
    let cannot_write =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot write {}: {error}", out.display()));
    let mut file = BufWriter::new(File::create(out).map_err(cannot_write)?);
    let bytes = io::copy(&mut body, &mut file)?;
    file.flush().map_err(cannot_write)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufReader, ErrorKind};
    use std::net::TcpListener;

    /// What `fetch` says of one answer, which is there before the request is read.
    fn fetched(answer: &'static str, out: &Path) -> io::Result<u64> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let service = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"{\"seconds\":0}") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                asked.extend(byte);
            }
        });
        let fetched = fetch(&TraceCommand { out: out.to_owned(), seconds: 0, address, key: None });
        service.join().unwrap();
        fetched
    }

    /// Gives its bytes, then fails as a connection does that the peer has reset.
    struct Reset(&'static [u8]);

    impl Read for Reset {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(ErrorKind::ConnectionReset.into()),
                count => Ok(count),
            }
        }
    }

    #[test]
    fn an_answer_that_is_there_counts_more_than_a_request_that_was_not_read() {
        let out = std::env::temp_dir().join(format!("pinion-trace-{}.json", std::process::id()));
        let take = |answer: &'static str| {
            let unsent: io::Error = ErrorKind::BrokenPipe.into();
            let reader = BufReader::new(Reset(answer.as_bytes()));
            pinion_client::read_answer(reader, Some(unsent)).and_then(|answer| take_answer(answer, &out))
        };
        for (answer, says) in [
            ("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", "HTTP/1.1 403 Forbidden: no"),
            ("HTTP/1.1 503 Service Unavailable\r\n\r\nsoon", "HTTP/1.1 503 Service Unavailable: soon"),
            ("HTTP/1.1 200 OK\r\n", "broken pipe"),
            ("", "broken pipe"),
        ] {
            assert_eq!(take(answer).expect_err(answer).to_string(), says, "{answer}");
        }
        assert_eq!(take("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap(), 2);
        assert_eq!(std::fs::read(&out).unwrap(), b"{}");
        std::fs::remove_file(&out).unwrap();
    }

    #[test]
    fn what_failed_is_named() {
        let nowhere = Path::new("/no/such/folder/trace.json");
        for (answer, says) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "cannot write /no/such/folder/trace.json: "),
            ("HTTP/1.1 503 Service Unavailable\r\n\r\nsoon", "503 Service Unavailable: soon"),
            ("HTTP/1.1 200 OK\r\n", "the head ends early"),
        ] {
            let error = fetched(answer, nowhere).expect_err(answer).to_string();
            assert!(error.contains(says), "{answer}: {error}");
        }
    }
}
