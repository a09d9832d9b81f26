//! `pinion trace`: asks a running service for a trace and writes it to a file. A small HTTP client of its own: one
//! request, one answer, in pieces, each of which must come in time.

use pinion_config::{Exit, TraceCommand};
use pinion_worker::telemetry;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

/// A connection is made, and a piece comes, in this time beyond the time recorded.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of the answer's head.
const HEAD_BYTES_MAX: u64 = 64 << 10;
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
    let mut stream = connect(&command.address)?;
    stream.set_read_timeout(Some(PATIENCE + Duration::from_secs(command.seconds)))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let wrote = stream.write_all(request(command).as_bytes());
    if wrote.is_ok() && command.seconds > 0 {
        telemetry::say(&format!("recording for {} s", command.seconds));
    }
    take_answer(stream, wrote, &command.out)
}

fn request(command: &TraceCommand) -> String {
    let body = format!("{{\"seconds\":{}}}", command.seconds);
    let key = command.key.as_ref().map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    format!(
        "POST /debug/trace HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{key}Content-Length: {}\r\n\r\n{body}",
        command.address,
        body.len()
    )
}

/// Reads the answer into the file `out` and gives its length. A service may answer and close before it has read the
/// whole request: then `wrote` is an error, and the answer that is already here says more than it.
fn take_answer(stream: impl Read, wrote: io::Result<()>, out: &Path) -> io::Result<u64> {
    let mut answer = BufReader::new(stream);
    let framing = match (read_head(&mut answer), wrote) {
        (Ok(framing), _) => framing,
        (Err(Unanswered::Refused(text)), _) => return Err(io::Error::other(text)),
        (Err(Unanswered::Broken(_)), Err(error)) | (Err(Unanswered::Broken(error)), Ok(())) => {
            return Err(error);
        }
    };
    // Only now: a service that refuses leaves an older trace alone.
    let cannot_write =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot write {}: {error}", out.display()));
    let mut file = BufWriter::new(File::create(out).map_err(cannot_write)?);
    let bytes = match framing {
        Framing::Chunked => copy_chunks(&mut answer, &mut file)?,
        Framing::Length(length) => match io::copy(&mut answer.take(length), &mut file)? {
            bytes if bytes == length => bytes,
            _ => return Err(broken("the answer ends early")),
        },
        Framing::UntilClose => io::copy(&mut answer, &mut file)?,
    };
    file.flush().map_err(cannot_write)?;
    Ok(bytes)
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the address leads nowhere");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Where the body ends.
enum Framing {
    Chunked,
    Length(u64),
    UntilClose,
}

/// Why there is no body to take.
enum Unanswered {
    /// A status other than 200, with what the service says.
    Refused(String),
    /// No whole head came.
    Broken(io::Error),
}

fn read_head(answer: &mut impl BufRead) -> Result<Framing, Unanswered> {
    let mut head = answer.take(HEAD_BYTES_MAX);
    let (mut status, mut framing, mut line) = (String::new(), Framing::UntilClose, String::new());
    head.read_line(&mut status).map_err(Unanswered::Broken)?;
    loop {
        line.clear();
        if head.read_line(&mut line).map_err(Unanswered::Broken)? == 0 {
            return Err(Unanswered::Broken(broken("the head ends early")));
        }
        if line == "\r\n" {
            break;
        }
        let line = line.to_ascii_lowercase();
        let Some((name, value)) = line.split_once(':') else { continue };
        match (name, value.trim().parse()) {
            ("transfer-encoding", _) if value.contains("chunked") => framing = Framing::Chunked,
            ("content-length", Ok(length)) if matches!(framing, Framing::UntilClose) => {
                framing = Framing::Length(length);
            }
            _ => {}
        }
    }
    if status.split(' ').nth(1) == Some("200") {
        return Ok(framing);
    }
    let mut text = Vec::new();
    // A connection that is reset here has said what it could.
    let _ = answer.take(ERROR_BYTES_MAX).read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    Err(Unanswered::Refused(format!("{}: {}", status.trim(), text.trim())))
}

fn copy_chunks(answer: &mut impl BufRead, out: &mut impl Write) -> io::Result<u64> {
    let (mut total, mut line) = (0, String::new());
    loop {
        line.clear();
        answer.take(64).read_line(&mut line)?;
        let length = u64::from_str_radix(line.trim(), 16).map_err(|_| broken("a piece has no length"))?;
        if length == 0 {
            return Ok(total);
        }
        if io::copy(&mut answer.take(length), out)? != length {
            return Err(broken("it breaks off"));
        }
        total += length;
        line.clear();
        answer.take(2).read_line(&mut line)?;
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
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
            let broken: io::Error = ErrorKind::BrokenPipe.into();
            take_answer(Reset(answer.as_bytes()), Err(broken), &out)
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
