//! The client that measures: one connection per request, every body frame stamped at its arrival and kept unread.
//! Events are taken apart after the run, by [`crate::answer`], so that reading one answer never delays another's time
//! stamp.
//!
//! It is async, unlike `pinion_client`: thousands of answers are open at once, and a thread for each would take cores
//! from the server and put the scheduler's delay into every stamp. What is not measured goes through [`crate::ask`].

use crate::target::Target;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use pinion_os::clock::now_ns;
use std::time::Duration;
use tokio::net::TcpStream;

/// Largest answer that is kept: a longer one counts as an error.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// One answer as it came. Times are CLOCK_MONOTONIC nanoseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    /// When the connection was asked for.
    pub sent_ns: u64,
    /// 0 if no head came.
    pub status: u16,
    /// Time and end within `body` of each frame.
    pub frames: Vec<(u64, usize)>,
    /// After this number the client disconnects.
    pub frames_max: Option<usize>,
    pub body: Vec<u8>,
    /// When the last byte, or the failure, was there.
    pub end_ns: u64,
    /// What ended it early: `connect`, `timeout`, `broken`, `too large`.
    pub failure: Option<&'static str>,
    /// This client went away in the middle, as it was told to.
    pub left: bool,
}

/// Sends one request and collects the answer, or its first `frames_max` frames: then the connection is closed. Never
/// fails: a failure is a part of the reply.
pub(crate) async fn exchange(
    target: &Target,
    path: &str,
    body: Bytes,
    limit: Duration,
    frames_max: Option<usize>,
) -> Reply {
    let mut reply = Reply { sent_ns: now_ns(), frames_max, ..Reply::default() };
    let answered = collect(target, path, body, &mut reply);
    match tokio::time::timeout(limit, answered).await {
        Err(_) => reply.failure = Some("timeout"),
        Ok(Err(failure)) => reply.failure = Some(failure),
        Ok(Ok(())) => {}
    }
    reply.end_ns = now_ns();
    reply
}

async fn collect(target: &Target, path: &str, body: Bytes, reply: &mut Reply) -> Result<(), &'static str> {
    let stream = TcpStream::connect(&target.authority).await.map_err(|_| "connect")?;
    stream.set_nodelay(true).map_err(|_| "connect")?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|_| "connect")?;
    let driver = tokio::spawn(connection);
    let mut request = Request::post(format!("{}{path}", target.prefix))
        .header(header::HOST, &target.authority)
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(key) = &target.key {
        request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
    }
    let request = request.body(Full::new(body)).map_err(|_| "malformed request")?;
    let response = sender.send_request(request).await.map_err(|_| "broken")?;
    reply.status = response.status().as_u16();
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        let now = now_ns();
        let Ok(data) = frame.map_err(|_| "broken")?.into_data() else { continue };
        if reply.body.len() + data.len() > ANSWER_BYTES_MAX {
            return Err("too large");
        }
        reply.body.extend_from_slice(&data);
        reply.frames.push((now, reply.body.len()));
        if reply.frames_max == Some(reply.frames.len()) {
            reply.left = true;
            break;
        }
    }
    driver.abort();
    Ok(())
}

/// A runtime of one thread: the client must not take cores from what it measures.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| format!("no runtime: {error}"))
}
