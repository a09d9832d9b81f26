//! A server that computes nothing: tokens come on a fixed schedule, each with the time at which it was written. What
//! the client measures against it is the client's own cost. `--stall-ms` holds all streams back once, for the test
//! that a stall shows in every request that it touches.

use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use pinion_os::clock::now_ns;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Chunks that may wait for a slow reader.
const CHUNKS_WAITING_MAX: usize = 64;
const MS_NS: u64 = 1_000_000;

#[derive(Args, Clone, Debug)]
pub(crate) struct NullServerArgs {
    /// Port on the loopback.
    #[arg(long)]
    port: u16,
    /// Time to the first token.
    #[arg(long, default_value_t = 5_000)]
    first_us: u64,
    /// Time between tokens.
    #[arg(long, default_value_t = 5_000)]
    token_us: u64,
    /// When the stall begins, counted from the first request.
    #[arg(long, default_value_t = 0)]
    stall_at_ms: u64,
    /// How long nothing is written; 0 is no stall.
    #[arg(long, default_value_t = 0)]
    stall_ms: u64,
}

struct State {
    args: NullServerArgs,
    /// Time of the first request; 0 before it.
    first_request_ns: AtomicU64,
    tokens: AtomicU64,
}

impl State {
    /// When something due at `due_ns` may be written.
    fn after_stall(&self, due_ns: u64) -> u64 {
        let begin = self.first_request_ns.load(Ordering::Relaxed) + self.args.stall_at_ms * MS_NS;
        let end = begin + self.args.stall_ms * MS_NS;
        if (begin..end).contains(&due_ns) { end } else { due_ns }
    }
}

/// Chunks as a task makes them.
struct Chunks(mpsc::Receiver<Bytes>);

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
    }
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

pub(crate) fn run(args: &NullServerArgs) -> Result<(), String> {
    let state = Arc::new(State {
        args: args.clone(),
        first_request_ns: AtomicU64::new(0),
        tokens: AtomicU64::new(0),
    });
    crate::http::runtime()?.block_on(async move {
        let listener = TcpListener::bind(("127.0.0.1", state.args.port)).await.map_err(|e| e.to_string())?;
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let _ = stream.set_nodelay(true);
            let state = Arc::clone(&state);
            tokio::spawn(async move {
                let service = service_fn(move |request| answer(Arc::clone(&state), request));
                // A client that goes away ends its own connection and nothing else.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    })
}

fn whole(text: String) -> Answer {
    Response::new(Full::new(Bytes::from(text)).boxed())
}

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Result<Answer, hyper::Error> {
    match request.uri().path() {
        "/v1/completions" => {}
        "/v1/models" => return Ok(whole("{\"data\":[{\"id\":\"null\"}]}".to_owned())),
        "/version" => {
            return Ok(whole(
                concat!("{\"version\":\"null-server ", env!("CARGO_PKG_VERSION"), "\"}").to_owned(),
            ));
        }
        "/metrics" => {
            let tokens = state.tokens.load(Ordering::Relaxed);
            return Ok(whole(format!("pinion_engine_generated_tokens_total {tokens}\n")));
        }
        _ => return Ok(whole("{}".to_owned())),
    }
    let body = request.into_body().collect().await?.to_bytes();
    let asked: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let tokens = asked["max_tokens"].as_u64().unwrap_or(16);
    let prompt_tokens = asked["prompt"].as_array().map_or(1, Vec::len);
    let begin_ns = now_ns();
    let _ = state.first_request_ns.compare_exchange(0, begin_ns, Ordering::Relaxed, Ordering::Relaxed);
    let usage = format!("{{\"prompt_tokens\":{prompt_tokens},\"completion_tokens\":{tokens}}}");
    if asked["stream"] != true {
        wait_until(state.after_stall(begin_ns + due_after(&state, tokens - 1))).await;
        state.tokens.fetch_add(tokens, Ordering::Relaxed);
        return Ok(whole(format!("{{\"choices\":[{{\"text\":\"x\"}}],\"usage\":{usage}}}")));
    }
    let (sender, receiver) = mpsc::channel(CHUNKS_WAITING_MAX);
    tokio::spawn(async move {
        for index in 0..tokens {
            wait_until(state.after_stall(begin_ns + due_after(&state, index))).await;
            let finish = if index + 1 == tokens { "\"length\"" } else { "null" };
            let chunk = format!(
                "data: {{\"choices\":[{{\"index\":0,\"text\":\" x\",\"finish_reason\":{finish}}}],\"sent_ns\":{}}}\n\n",
                now_ns()
            );
            state.tokens.fetch_add(1, Ordering::Relaxed);
            if sender.send(Bytes::from(chunk)).await.is_err() {
                return; // the client has left
            }
        }
        let end = format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\ndata: [DONE]\n\n");
        let _ = sender.send(Bytes::from(end)).await;
    });
    Ok(Response::new(Chunks(receiver).boxed()))
}

fn due_after(state: &State, index: u64) -> u64 {
    (state.args.first_us + index * state.args.token_us) * 1000
}

async fn wait_until(due_ns: u64) {
    let wait_ns = due_ns.saturating_sub(now_ns());
    if wait_ns > 0 {
        tokio::time::sleep(Duration::from_nanos(wait_ns)).await;
    }
}
