//! Reads request bodies with size and time limits, and parses large ones off the reactor thread; large answers are
//! written off it, too.
//!
//! Large bodies share a memory, from their first bytes until they are requests, which slots bound. One that waits for
//! the thread belongs to its connection and goes with it.

use crate::admission::Limits;
use crate::answers::errors::Refusal;
use crate::http::app::App;
use crate::http::budget::{Budget, Share};
use crate::limits::{
    ANSWER_THREADS_MAX, BODY_THREADS_MAX, DISCARD_BYTES_MAX, DISCARD_TIME_MAX, INLINE_BODY_BYTES_MAX,
};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use pinion_protocol::{Fault, FaultCode};
use std::ops::Deref;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// First capacity of a body buffer; a longer body grows it.
const BODY_BUFFER_BYTES: usize = 64 << 10;

/// What large bodies of all connections share.
#[derive(Debug)]
pub struct Intake {
    /// Memory for them.
    pub bytes: Arc<Budget>,
    /// Threads that parse them.
    pub threads: Arc<Semaphore>,
    /// Threads that write large answers: one may take longer than any body.
    pub writers: Arc<Semaphore>,
}

impl Intake {
    /// With this memory, all of it free.
    pub fn new(bytes_max: usize) -> Intake {
        let threads = |count| Arc::new(Semaphore::new(count));
        let (readers, writers) = (threads(BODY_THREADS_MAX), threads(ANSWER_THREADS_MAX));
        Intake { bytes: Budget::new(bytes_max), threads: readers, writers }
    }
}

/// A body, or the part of it that has arrived.
#[derive(Debug)]
pub struct Received {
    bytes: Vec<u8>,
    /// Of the memory for large ones, if it is one.
    share: Option<Share>,
}

impl Received {
    /// Takes more of it. Error: it is large, and the others leave no memory.
    fn push(&mut self, data: &[u8], intake: &Intake) -> Result<(), Fault> {
        let bytes = self.bytes.len() + data.len();
        let is_large = bytes > INLINE_BODY_BYTES_MAX;
        if is_large && !self.share.get_or_insert_with(|| intake.bytes.nothing()).grow_to(bytes) {
            let message =
                "the bodies of other requests leave too little memory for this one; try again later";
            return Err(Fault::new(FaultCode::TooManyRequests, message));
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// Its share, for what it becomes.
    pub(crate) fn take_share(&mut self) -> Option<Share> {
        self.share.take()
    }
}

/// A body that came from elsewhere has no share.
impl From<Vec<u8>> for Received {
    fn from(bytes: Vec<u8>) -> Received {
        Received { bytes, share: None }
    }
}

impl Deref for Received {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads a body up to its limit, in its time. A declared length over the limit is refused unread.
pub(crate) async fn read_body(app: &App, mut body: Incoming) -> Result<Received, Refusal> {
    let limit = app.settings.body_bytes_max;
    let too_large = || {
        let message = format!("the body is larger than {limit} bytes");
        Refusal::from(Fault::new(FaultCode::BodyTooLarge, message))
    };
    let declared = body.size_hint().lower();
    if declared > limit as u64 {
        discard(body);
        return Err(too_large());
    }
    let mut received = Received::from(Vec::with_capacity((declared as usize).min(BODY_BUFFER_BYTES)));
    let collect = async {
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| Refusal::BodyBroken)?.into_data() else { continue };
            if received.len() + data.len() > limit {
                return Err(too_large());
            }
            received.push(&data, &app.intake)?;
        }
        Ok(())
    };
    match tokio::time::timeout(app.settings.body_timeout, collect).await {
        Ok(Ok(())) => Ok(received),
        Ok(Err(refusal)) => {
            if matches!(refusal, Refusal::Fault(_)) {
                discard(body);
            }
            Err(refusal)
        }
        Err(_) => {
            app.metrics.timeouts.add(1);
            Err(Refusal::BodyTimeout)
        }
    }
}

/// Reads a body as what it asks for. A large one is read on the runtime's other thread: its JSON takes milliseconds, in
/// which no stream would get its next chunk.
pub(crate) async fn read<T: Send + 'static>(
    app: &App,
    body: Received,
    admit: impl FnOnce(&[u8], &Limits) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    weighed(app, body.len(), move |limits| admit(&body, limits)).await
}

/// The same for what is no body any more; `bytes` says how much work it is.
pub(crate) async fn weighed<T: Send + 'static>(
    app: &App,
    bytes: usize,
    admit: impl FnOnce(&Limits) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    beside(app, &app.intake.threads, bytes, admit).await
}

/// Writes an answer of about `bytes`: a large one beside the thread that serves the streams.
pub(crate) async fn written<T: Send + 'static>(
    app: &App,
    bytes: usize,
    write: impl FnOnce(&Limits) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    beside(app, &app.intake.writers, bytes, write).await
}

async fn beside<T: Send + 'static>(
    app: &App,
    threads: &Arc<Semaphore>,
    bytes: usize,
    work: impl FnOnce(&Limits) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    if bytes <= INLINE_BODY_BYTES_MAX {
        return work(&app.limits);
    }
    // What waits here is dropped with its client; what the runtime's queue held would not be.
    let thread = threads.clone().acquire_owned().await.expect("it is never closed");
    let limits = app.limits.clone();
    let task = move || {
        let _thread = thread;
        work(&limits)
    };
    match tokio::task::spawn_blocking(task).await {
        Ok(admitted) => admitted,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Fault::new(FaultCode::Unavailable, "the service is shutting down")),
        },
    }
}

/// Throws the rest of a body away for a bounded time, so that the client reads our answer before the
/// connection closes.
pub(crate) fn discard(mut body: Incoming) {
    if body.is_end_stream() {
        return;
    }
    tokio::task::spawn_local(async move {
        let drain = async {
            let mut seen = 0;
            while let Some(Ok(frame)) = body.frame().await {
                seen += frame.data_ref().map_or(0, Bytes::len);
                if seen > DISCARD_BYTES_MAX {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(DISCARD_TIME_MAX, drain).await;
    });
}
