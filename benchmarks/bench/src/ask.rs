//! What a server is asked beside a measurement: its health, models, counters, profilers.

use crate::target::Target;
use pinion_client::{Connection, Limit, Request};
use std::io;
use std::time::{Duration, Instant};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// GET; status and text. Errors: why there is no answer.
pub(crate) fn get(target: &Target, path: &str) -> Result<(u16, String), String> {
    exchange(target, path, &request(target, "GET", path))
}

/// POST without a body; as [`get`].
pub(crate) fn post(target: &Target, path: &str) -> Result<(u16, String), String> {
    exchange(target, path, &request(target, "POST", path).json(""))
}

/// The text of a GET, where only a 200 counts.
pub(crate) fn text(target: &Target, path: &str) -> Option<String> {
    let (status, text) = get(target, path).ok()?;
    (status == 200).then_some(text)
}

fn request(target: &Target, method: &str, path: &str) -> Request {
    let path = format!("{}{path}", target.prefix);
    Request::new(method, &target.authority, &path).last().key(target.key.as_deref())
}

fn exchange(target: &Target, path: &str, request: &Request) -> Result<(u16, String), String> {
    let ask = || -> io::Result<(u16, String)> {
        let mut connection = Connection::open(&target.authority, PATIENCE)?;
        connection.set_limit(Limit::Deadline(Instant::now() + PATIENCE));
        connection.send(request);
        let answer = connection.answer()?;
        Ok((answer.head.status, answer.body.text(ANSWER_BYTES_MAX)?))
    };
    ask().map_err(|error| format!("{}{path}: {error}", target.url()))
}
