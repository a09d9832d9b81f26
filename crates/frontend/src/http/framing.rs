//! Heads that two readers could understand differently, which hyper lets pass: refused before anything else looks at
//! them, so that a proxy in front and this service never disagree on where a request ends or which host it is for.

use crate::answers::errors::{HttpError, Refusal};
use hyper::header::{CONTENT_ENCODING, EXPECT, HOST, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Method, Version};

/// Lets a request pass whose head has one meaning.
pub(crate) fn check(head: &Parts) -> Result<(), Refusal> {
    if head.method == Method::CONNECT {
        return Err(Refusal::Connect);
    }
    let mut codings = head.headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = |coding: &[u8]| coding.trim_ascii().eq_ignore_ascii_case(b"chunked");
    match (codings.next(), codings.next()) {
        (None, _) => {}
        (Some(only), None) if is_chunked(only.as_bytes()) => {}
        _ => return Err(Refusal::Framing("the only Transfer-Encoding is `chunked`, once")),
    }
    check_host(head)?;
    let is_other = |expected: &[u8]| !expected.eq_ignore_ascii_case(b"100-continue");
    if head.headers.get_all(EXPECT).iter().any(|expected| is_other(expected.as_bytes())) {
        return Err(Refusal::Expectation);
    }
    Ok(())
}

/// One name, as HTTP/1.1 asks for; none does under HTTP/1.0.
fn check_host(head: &Parts) -> Result<(), Refusal> {
    let mut fields = head.headers.get_all(HOST).iter();
    let well_formed = match (fields.next(), fields.next()) {
        (None, _) => head.version != Version::HTTP_11,
        (Some(host), None) => {
            let name = host.as_bytes();
            name.is_empty() || (!name.contains(&b'@') && Authority::try_from(name).is_ok())
        }
        (Some(_), Some(_)) => false,
    };
    if well_formed { Ok(()) } else { Err(Refusal::Framing("a request needs one Host field with one host")) }
}

/// Lets a body pass that is not compressed.
pub(crate) fn check_encoding(headers: &HeaderMap) -> Result<(), Refusal> {
    let plain = |coding: &[u8]| coding.is_empty() || coding.eq_ignore_ascii_case(b"identity");
    let plain = headers.get_all(CONTENT_ENCODING).iter().all(|coding| plain(coding.as_bytes().trim_ascii()));
    if plain { Ok(()) } else { Err(Refusal::Encoding) }
}

/// What hyper writes of its own about a head that it cannot read: a status without a body. `None` for what the service
/// wrote, which has a body or a request id.
pub(crate) fn status_of_bare_refusal(bytes: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(bytes).ok()?;
    let status = text.strip_prefix("HTTP/1.1 ").or_else(|| text.strip_prefix("HTTP/1.0 "))?.get(..3)?;
    let bare = text.find("\r\n\r\n")? + 4 == text.len()
        && text.contains("\r\ncontent-length: 0\r\n")
        && !text.contains("\r\nx-request-id:");
    status.parse().ok().filter(|status| bare && (400..500).contains(status))
}

/// An answer outside hyper, on a connection that closes after it.
pub(crate) fn last_answer(error: &HttpError) -> Vec<u8> {
    let body = error.body();
    let reason = hyper::StatusCode::from_u16(error.status).ok().and_then(|status| status.canonical_reason());
    let retry = error.retry_after_s.map(|seconds| format!("retry-after: {seconds}\r\n")).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\nconnection: close\r\n{retry}content-length: {}\r\n\r\n",
        error.status,
        reason.unwrap_or_default(),
        body.len()
    );
    [head.into_bytes(), body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_without_a_body_is_taken_for_hyper_s() {
        let head = |status: &str, fields: &str| format!("HTTP/1.1 {status}\r\n{fields}\r\n").into_bytes();
        let bare = "connection: close\r\ncontent-length: 0\r\ndate: now\r\n";
        assert_eq!(status_of_bare_refusal(&head("431 Request Header Fields Too Large", bare)), Some(431));
        assert_eq!(status_of_bare_refusal(&head("400 Bad Request", bare)), Some(400));
        for (status, fields) in [
            ("200 OK", bare),
            ("404 Not Found", "content-length: 5\r\n"),
            ("404 Not Found", "content-length: 0\r\nx-request-id: a\r\n"),
        ] {
            assert_eq!(status_of_bare_refusal(&head(status, fields)), None, "{status} {fields}");
        }
        let two = [head("200 OK", bare), head("400 Bad Request", bare)].concat();
        assert_eq!(status_of_bare_refusal(&two), None);
    }
}
