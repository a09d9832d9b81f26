//! HTTP/1.1 towards the collector: one connection, kept open between batches, with a limit on the time of each POST.

use crate::limits::{TRACE_ANSWER_BYTES_MAX, TRACE_POST_TIME_MAX};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use pinion_config::OtlpTraces;
use serde::Deserialize;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Why a batch was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: String,
    pub(super) retry: Retry,
}

/// Whether it may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    Never,
    /// After some time.
    Later,
    /// After the time that the collector says.
    After(Duration),
}

/// What a collector says of a batch that it took.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Taken {
    partial_success: PartialSuccess,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PartialSuccess {
    rejected_spans: Count,
}

/// A 64-bit integer, which is a string in this form of protobuf; a number is read, too.
#[derive(Deserialize)]
#[serde(untagged)]
enum Count {
    Number(u64),
    Text(String),
}

impl Default for Count {
    fn default() -> Self {
        Count::Number(0)
    }
}

/// A collector.
pub(super) struct Connection {
    addresses: Vec<SocketAddr>,
    authority: HeaderValue,
    path: String,
    open: Option<SendRequest<Full<Bytes>>>,
}

impl Connection {
    pub(super) fn new(otlp: &OtlpTraces) -> Connection {
        let authority = HeaderValue::from_str(&otlp.authority);
        Connection {
            addresses: otlp.addresses.clone(),
            authority: authority.unwrap_or(HeaderValue::from_static("localhost")),
            path: otlp.path.clone(),
            open: None,
        }
    }

    /// Sends one batch. Gives the number of spans in it that the collector has rejected.
    pub(super) async fn post(&mut self, body: Bytes) -> Result<u64, Refusal> {
        let posted = async {
            // A collector may close what was open: then it is tried again at once.
            if let Some(open) = self.open.take().filter(|open| !open.is_closed())
                && let Ok(taken) = self.over(open, body.clone()).await
            {
                return Ok(taken);
            }
            let share = TRACE_POST_TIME_MAX / (self.addresses.len() as u32 + 1);
            let open = connect(&mut self.addresses, share).await?;
            self.over(open, body).await
        };
        match timeout(TRACE_POST_TIME_MAX, posted).await {
            Ok(Ok(taken)) => taken,
            Ok(Err(reason)) => Err(Refusal { reason, retry: Retry::Later }),
            Err(_) => {
                let reason = format!("no answer within {} s", TRACE_POST_TIME_MAX.as_secs());
                Err(Refusal { reason, retry: Retry::Later })
            }
        }
    }

    /// The same over this connection, which is kept if it lasts. Errors: it does not.
    async fn over(
        &mut self,
        mut open: SendRequest<Full<Bytes>>,
        body: Bytes,
    ) -> Result<Result<u64, Refusal>, String> {
        let told = |error: hyper::Error| error.to_string();
        open.ready().await.map_err(told)?;
        let request = Request::post(&self.path)
            .header(HOST, &self.authority)
            .header(USER_AGENT, concat!("pinion/", env!("CARGO_PKG_VERSION")))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| error.to_string())?;
        let (head, answer) = open.send_request(request).await.map_err(told)?.into_parts();
        let answer = Limited::new(answer, TRACE_ANSWER_BYTES_MAX).collect().await;
        let answer = answer.map_err(|error| error.to_string())?.to_bytes();
        self.open = Some(open);
        Ok(outcome(head.status, &head.headers, &answer))
    }
}

/// Connects to the first address that answers within its `share` of the time: one that is silent must not keep the
/// others from being tried. The one that answered comes first from then on.
async fn connect(addresses: &mut [SocketAddr], share: Duration) -> Result<SendRequest<Full<Bytes>>, String> {
    let mut reason = "the collector's name had no address at the start".to_owned();
    for index in 0..addresses.len() {
        let address = addresses[index];
        let stream = match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                reason = format!("cannot connect to {address}: {error}");
                continue;
            }
            Err(_) => {
                reason = format!("cannot connect to {address}: no answer within {} ms", share.as_millis());
                continue;
            }
        };
        addresses.rotate_left(index);
        let (open, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // It ends with the other half.
        tokio::spawn(connection);
        return Ok(open);
    }
    Err(reason)
}

/// <https://opentelemetry.io/docs/specs/otlp/#otlphttp-response>
fn outcome(status: StatusCode, headers: &HeaderMap, answer: &[u8]) -> Result<u64, Refusal> {
    if status.is_success() {
        let taken: Taken = serde_json::from_slice(answer).unwrap_or_default();
        return Ok(match taken.partial_success.rejected_spans {
            Count::Number(count) => count,
            Count::Text(text) => text.parse().unwrap_or(0),
        });
    }
    let after = || headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok().map(Duration::from_secs);
    let retry = match status.as_u16() {
        429 | 502 | 503 | 504 => after().map_or(Retry::Later, Retry::After),
        _ => Retry::Never,
    };
    Err(Refusal { reason: format!("the collector answers {}", status.as_u16()), retry })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{Backlog, listen};
    use std::net::{TcpListener, TcpStream};

    const SHARE: Duration = Duration::from_millis(200);

    #[tokio::test]
    async fn an_address_that_is_silent_does_not_keep_the_next_one_from_being_tried() {
        let [silent, taking] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [first, second] = [&silent, &taking].map(|listener| listener.local_addr().unwrap());
        // Once its queue is full it answers no one.
        listen(&silent, Backlog::new(1).unwrap()).unwrap();
        let waiting: Vec<TcpStream> =
            std::iter::from_fn(|| TcpStream::connect_timeout(&first, SHARE).ok()).take(16).collect();
        assert!(waiting.len() < 16);

        let mut addresses = [first, second];
        connect(&mut addresses, SHARE).await.expect("the second one takes it");
        assert_eq!(addresses, [second, first], "the one that answers comes first");
        let reason = connect(&mut [first], SHARE).await.err();
        assert_eq!(reason, Some(format!("cannot connect to {first}: no answer within 200 ms")));
    }

    #[test]
    fn an_answer_says_what_was_taken_and_whether_to_come_back() {
        let answered = |status: u16, answer: &str| {
            outcome(StatusCode::from_u16(status).unwrap(), &HeaderMap::new(), answer.as_bytes())
        };
        for (answer, rejected) in [
            ("", 0),
            ("{}", 0),
            (r#"{"partialSuccess":{"rejectedSpans":"5","errorMessage":"x"}}"#, 5),
            (r#"{"partialSuccess":{"rejectedSpans":7}}"#, 7),
            (r#"{"partialSuccess":{"errorMessage":"a warning"}}"#, 0),
            (r#"{"partialSuccess":{"rejectedSpans":"-1"}}"#, 0),
            ("not JSON", 0),
        ] {
            assert_eq!(answered(200, answer), Ok(rejected), "{answer}");
        }
        for (retry, statuses) in [(Retry::Never, [400, 404, 413, 500]), (Retry::Later, [429, 502, 503, 504])]
        {
            for status in statuses {
                let refusal = answered(status, "{}").unwrap_err();
                assert_eq!(refusal.retry, retry, "{status}");
                assert!(refusal.reason.contains(&status.to_string()));
            }
        }
        let later = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("7"))]);
        let refusal = outcome(StatusCode::TOO_MANY_REQUESTS, &later, b"").unwrap_err();
        assert_eq!(refusal.retry, Retry::After(Duration::from_secs(7)));
    }
}
