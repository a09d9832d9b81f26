//! Reads request bodies with size and time limits, and parses large ones off the reactor thread.

use crate::admission::Limits;
use crate::answers::errors::Refusal;
use crate::http::app::App;
use crate::limits::{DISCARD_BYTES_MAX, DISCARD_TIME_MAX, INLINE_BODY_BYTES_MAX};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use pinion_protocol::{Fault, FaultCode};

/// First capacity of a body buffer; a longer body grows it.
const BODY_BUFFER_BYTES: usize = 64 << 10;

/// Reads a body up to its limit, in its time. A declared length over the limit is refused unread.
pub(crate) async fn read_body(app: &App, mut body: Incoming) -> Result<Vec<u8>, Refusal> {
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
    let mut bytes = Vec::with_capacity((declared as usize).min(BODY_BUFFER_BYTES));
    let collect = async {
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| Refusal::BodyBroken)?.into_data() else { continue };
            if bytes.len() + data.len() > limit {
                return Err(too_large());
            }
            bytes.extend_from_slice(&data);
        }
        Ok(())
    };
    match tokio::time::timeout(app.settings.body_timeout, collect).await {
        Ok(Ok(())) => Ok(bytes),
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
    body: Vec<u8>,
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
    if bytes <= INLINE_BODY_BYTES_MAX {
        return admit(&app.limits);
    }
    let limits = app.limits.clone();
    match tokio::task::spawn_blocking(move || admit(&limits)).await {
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
