//! `pinion trace`: asks a running service for a trace and writes it to a file. A small HTTP client of its own: one
//! request, one answer, in pieces, each of which must come in time.

use pinion_config::{Exit, TraceCommand};
use pinion_worker::telemetry;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
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
            // The trace is written, whether anybody reads that or not.
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
    let body = format!("{{\"seconds\":{}}}", command.seconds);
    let key = command.key.as_ref().map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    write!(
        stream,
        "POST /debug/trace HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{key}Content-Length: {}\r\n\r\n{body}",
        command.address,
        body.len()
    )?;
    if command.seconds > 0 {
        telemetry::say(&format!("recording for {} s", command.seconds));
    }
    let mut answer = BufReader::new(stream);
    let chunked = read_head(&mut answer)?;
    // Only now: a service that refuses leaves an older trace alone.
    let cannot_write = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot write {}: {error}", command.out.display()))
    };
    let mut out = BufWriter::new(File::create(&command.out).map_err(cannot_write)?);
    let bytes = if chunked { copy_chunks(&mut answer, &mut out)? } else { io::copy(&mut answer, &mut out)? };
    out.flush().map_err(cannot_write)?;
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

/// Whether the body comes in chunks. Errors: a status other than 200, with what the service says.
fn read_head(answer: &mut impl BufRead) -> io::Result<bool> {
    let mut head = answer.take(HEAD_BYTES_MAX);
    let (mut status, mut chunked, mut line) = (String::new(), false, String::new());
    head.read_line(&mut status)?;
    loop {
        line.clear();
        if head.read_line(&mut line)? == 0 {
            return Err(broken("the head ends early"));
        }
        if line == "\r\n" {
            break;
        }
        let line = line.to_ascii_lowercase();
        chunked |= line.starts_with("transfer-encoding:") && line.contains("chunked");
    }
    if status.split(' ').nth(1) == Some("200") {
        return Ok(chunked);
    }
    let mut text = String::new();
    answer.take(ERROR_BYTES_MAX).read_to_string(&mut text)?;
    Err(io::Error::other(format!("{}: {}", status.trim(), text.trim())))
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
    use std::path::Path;

    /// What `fetch` says of one answer.
    fn fetched(answer: &'static str, out: &Path) -> io::Result<u64> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let service = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 1024];
            let _ = stream.read(&mut asked).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let fetched = fetch(&TraceCommand { out: out.to_owned(), seconds: 0, address, key: None });
        service.join().unwrap();
        fetched
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
