//! One request to the server, over a connection of its own.

use pinion_client::{Answer, Connection, Limit, Request};
use pinion_config::ServerUrl;
use std::io;
use std::time::Duration;

/// A connection is made, and a request written, in this time.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a body that is taken whole.
const BODY_BYTES_MAX: u64 = 16 << 20;

/// What is asked.
pub(crate) struct Question<'a> {
    pub(crate) url: &'a ServerUrl,
    pub(crate) path: &'a str,
    pub(crate) key: Option<&'a str>,
    /// With one it is a POST of JSON.
    pub(crate) body: Option<&'a str>,
    /// How long the server may be silent.
    pub(crate) patience: Duration,
}

/// A connection to the server. Errors: the last address' reason.
pub(crate) fn connect(url: &ServerUrl) -> io::Result<Connection> {
    Connection::open(&url.authority, CONNECT_PATIENCE)
}

/// Sends the request and reads the head of the answer.
pub(crate) fn ask(mut connection: Connection, question: &Question<'_>) -> io::Result<Answer<Connection>> {
    connection.set_limit(Limit::Silence(question.patience));
    connection.send(&request(question));
    connection.answer()
}

/// The same, and the whole answer: its status and its text, up to a bound.
pub(crate) fn ask_whole(question: &Question<'_>) -> io::Result<(u16, String)> {
    let answer = connect(question.url).and_then(|connection| ask(connection, question))?;
    Ok((answer.head.status, text(answer)?))
}

/// The body of an answer, up to a bound.
pub(crate) fn text(answer: Answer<Connection>) -> io::Result<String> {
    answer.body.text(BODY_BYTES_MAX)
}

fn request(question: &Question<'_>) -> Request {
    let method = if question.body.is_some() { "POST" } else { "GET" };
    let path = format!("{}{}", question.url.base, question.path);
    let request = Request::new(method, &question.url.authority, &path).last().field("Accept", "*/*");
    let request = request.key(question.key);
    match question.body {
        Some(body) => request.json(body),
        None => request,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_its_key_and_its_body() {
        let url = ServerUrl::parse("http://h:1/base/v1").unwrap();
        let asked = |key, body| {
            let patience = Duration::ZERO;
            let question = Question { url: &url, path: "/v1/x", key, body, patience };
            String::from_utf8(request(&question).bytes()).unwrap()
        };
        assert!(asked(None, None).starts_with("GET /base/v1/x HTTP/1.1\r\nHost: h:1\r\n"));
        let post = asked(Some("k"), Some("{}"));
        assert!(post.starts_with("POST /base/v1/x ") && post.contains("\r\nAuthorization: Bearer k\r\n"));
        assert!(post.ends_with("Content-Length: 2\r\n\r\n{}"), "{post}");
    }
}
