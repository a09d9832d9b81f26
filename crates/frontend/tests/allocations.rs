//! What a token costs on this process's path, in heap allocations: from the record to the bytes that hyper
//! takes. `--nocapture` prints the numbers.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

mod harness;

use harness::{Harness, Options};
use hyper::body::Body;
use pinion_config::SamplingDefaults;
use pinion_frontend::admission::Limits;
use pinion_frontend::admission::tools::CallReading;
use pinion_frontend::answers::openai::{Head, Shape};
use pinion_frontend::answers::sse;
use pinion_frontend::http::body::{AnswerBody, Stream};
use pinion_frontend::observe::metrics::Metrics;
use pinion_frontend::requests::ledger::{Ledger, Origin, Patience, Setup};
use pinion_frontend::requests::outgoing::{Job, Outlet};
use pinion_frontend::requests::request::Form;
use pinion_frontend::requests::ticket::Ticket;
use pinion_frontend::route::Route;
use pinion_protocol::control::Admin;
use pinion_protocol::detokenizer_inbox::TextForm;
use pinion_protocol::frontend_inbox::{kind, put_delta};
use pinion_protocol::limits::GAUGE_COUNT;
use pinion_protocol::tokenizer_inbox::{Prompt, Truncation};
use pinion_protocol::{Claim, Peer, RequestId, Sampling};
use pinion_shm::page::Page;
use pinion_shm::region::{Region, RegionKind};
use pinion_shm::slots::SlotTable;
use pinion_shm::spans::{self, SpanWriter};
use pinion_text::tools::CallFormat;
use pinion_worker::Recorder;
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use tokio::io::AsyncReadExt;

const STREAMS: usize = 64;
const WARM_UP_STEPS: u32 = 64;
const STEPS: u32 = 1000;
const LIMITS: Limits = Limits {
    model: String::new(),
    vocab_size: 1000,
    max_model_len: 4096,
    calls: CallReading::Format(CallFormat::Hermes),
    reasons: false,
    defaults: SamplingDefaults::NONE,
    strict_fields: false,
    pooling: None,
};

struct Nowhere;

impl Outlet for Nowhere {
    fn has_room(&mut self, _: Peer, _: usize) -> bool {
        true
    }

    fn send(&mut self, _: Peer, _: u16, _: &[u8]) -> Result<(), pinion_worker::Overflow> {
        Ok(())
    }

    fn publish(&mut self, _: Peer) -> bool {
        true
    }

    fn order(&mut self, _: u64, _: u64, _: Admin) {}
}

fn ledger() -> Rc<RefCell<Ledger>> {
    let ring = Region::create("pinion-test", RegionKind::Spans, 1, 1, spans::region_words(64)).unwrap();
    let setup = Setup {
        frontend: 0,
        table: SlotTable::create(1, 1, STREAMS).unwrap(),
        status: Page::create(1, 1, GAUGE_COUNT).unwrap(),
        tokenizers: 1,
        detokenizers: 1,
        max_model_len: LIMITS.max_model_len,
        buffer_bytes_max: 1 << 20,
        resume: true,
        patience: Patience { role: std::time::Duration::MAX, text: std::time::Duration::MAX },
        recorder: Rc::new(Recorder::new(SpanWriter::new(ring), None)),
        clock: pinion_os::clock::now_ns,
    };
    Rc::new(RefCell::new(Ledger::new(setup, Rc::new(RefCell::new(Nowhere)), Rc::new(Metrics::default()))))
}

fn open(ledger: &Rc<RefCell<Ledger>>, shape: Shape, fast: bool) -> (RequestId, AnswerBody) {
    let head = Head {
        shape,
        id: "chatcmpl-0123456789abcdef".into(),
        created: 1,
        model: "gpt2".into(),
        include_usage: true,
    };
    let sampling = Sampling { max_tokens: Some(WARM_UP_STEPS + STEPS), ..Sampling::default() };
    let job = Job::Generate {
        claim: Claim::default(),
        sampling: Box::new(sampling),
        prompt: Prompt::Ids(vec![1]).into(),
        truncation: Truncation::Never,
        asked_unix_s: 0,
        stop: Vec::new(),
        form: TextForm::default(),
    };
    let origin = Origin {
        route: Route::Chat,
        label: "r".into(),
        received_ns: 1,
        timings: false,
        siblings: None,
        line: None,
        trace: None,
        continues: false,
    };
    let ticket = Ticket::begin(ledger, origin, job, Form::Events(sse::Writer::new(head, fast))).unwrap();
    let id = ticket.request.borrow().facts.id;
    (id, AnswerBody::Stream(Stream::new(vec![ticket])))
}

/// One step's delta record for all streams, then each body is polled as hyper does: until it is pending.
fn step(
    ledger: &Rc<RefCell<Ledger>>,
    streams: &mut [(RequestId, AnswerBody)],
    record: &mut Vec<u8>,
    sequence: u32,
) -> usize {
    record.clear();
    for (id, _) in streams.iter() {
        put_delta(record, *id, sequence, &[sequence], " wörd\n", 0);
    }
    ledger.borrow_mut().take(kind::DELTAS, record, 1).expect("the record is sound");
    let mut context = Context::from_waker(Waker::noop());
    let mut bytes = 0;
    for (_, body) in streams.iter_mut() {
        while let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(&mut context) {
            bytes += frame.unwrap().unwrap().into_data().unwrap().len();
        }
    }
    bytes
}

fn allocations_per_token(shape: Shape, fast: bool) -> f64 {
    let ledger = ledger();
    let mut streams: Vec<_> = (0..STREAMS).map(|_| open(&ledger, shape, fast)).collect();
    let mut record = Vec::new();
    for sequence in 0..WARM_UP_STEPS {
        assert!(step(&ledger, &mut streams, &mut record, sequence) > 0);
    }
    let mut bytes = 0;
    let measured = allocation_counter::measure(|| {
        for sequence in WARM_UP_STEPS..WARM_UP_STEPS + STEPS {
            bytes += step(&ledger, &mut streams, &mut record, sequence);
        }
    });
    let tokens = STREAMS as f64 * f64::from(STEPS);
    let per_token = measured.count_total as f64 / tokens;
    println!(
        "{shape:?}, fast {fast}: {per_token:.4} allocations and {:.0} bytes written per token",
        bytes as f64 / tokens
    );
    per_token
}

#[test]
fn a_token_costs_next_to_no_allocation_on_the_fast_path() {
    for shape in [Shape::Completions, Shape::Chat] {
        let fast = allocations_per_token(shape, true);
        assert!(fast <= 0.01, "{shape:?}: {fast} allocations per token");
    }
}

#[test]
fn the_plain_path_does_allocate_so_the_measurement_measures() {
    assert!(allocations_per_token(Shape::Chat, false) >= 1.0);
}

/// Opens streams over real sockets; what they receive is counted, into buffers that do not grow.
async fn open_sockets(h: &Harness, received: &Rc<Cell<usize>>) -> Vec<RequestId> {
    let mut ids = Vec::new();
    for _ in 0..STREAMS {
        let body = r#"{"messages":[{"role":"user","content":"hi"}],"stream":true}"#;
        let mut client = h.post_raw("/v1/chat/completions", body).await;
        ids.push(h.submit().await.id);
        let received = received.clone();
        tokio::task::spawn_local(async move {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(count @ 1..) = client.read(&mut buffer).await {
                received.set(received.get() + count);
            }
        });
    }
    ids
}

/// Sends steps, each when all clients have the one before.
async fn socket_steps(
    h: &Harness,
    ids: &[RequestId],
    record: &mut Vec<u8>,
    received: &Cell<usize>,
    steps: std::ops::Range<u32>,
) {
    for sequence in steps {
        record.clear();
        for id in ids {
            put_delta(record, *id, sequence, &[sequence], " wörd\n", 0);
        }
        // A chunk of this text has more bytes than this, and less than twice as many.
        let wanted = received.get() + ids.len() * 180;
        h.take(kind::DELTAS, record);
        while received.get() < wanted {
            tokio::task::yield_now().await;
        }
    }
}

#[test]
fn a_token_costs_next_to_no_allocation_through_hyper_to_the_socket() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let tasks = tokio::task::LocalSet::new();
    let (received, mut record) = (Rc::new(Cell::new(0)), Vec::new());
    let (h, ids) = tasks.block_on(&runtime, async {
        let h = Harness::new(Options { slots: STREAMS, ..Options::default() }).await;
        let ids = open_sockets(&h, &received).await;
        socket_steps(&h, &ids, &mut record, &received, 0..WARM_UP_STEPS).await;
        (h, ids)
    });
    let measured = allocation_counter::measure(|| {
        let steps = WARM_UP_STEPS..WARM_UP_STEPS + STEPS;
        tasks.block_on(&runtime, socket_steps(&h, &ids, &mut record, &received, steps));
    });
    let per_token = measured.count_total as f64 / (STREAMS as f64 * f64::from(STEPS));
    println!("through hyper and the socket: {per_token:.4} allocations per token");
    assert!(per_token <= 0.05, "the design allows 1, the code is far below it");
}
