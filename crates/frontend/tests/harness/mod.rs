//! A frontend on a real socket whose other roles are the test: it reads the records that would go to them
//! and writes the records that would come back.

#![allow(clippy::unwrap_used, dead_code, reason = "helpers of tests; each test binary uses some of them")]

pub(crate) mod deaths;

use pinion_api::responses::Store;
use pinion_config::{ApiKeys, Edge, Fairness, Pooling, SamplingDefaults, Topology};
use pinion_frontend::admission::Limits;
use pinion_frontend::admission::tools::CallReading;
use pinion_frontend::http::app::{App, Numbers, Settings};
use pinion_frontend::http::budget::Budget;
use pinion_frontend::http::guard::Guard;
use pinion_frontend::http::intake::Intake;
use pinion_frontend::http::server;
use pinion_frontend::observe::health::Health;
use pinion_frontend::observe::metrics::Metrics;
use pinion_frontend::requests::ledger::{Ledger, Patience, Setup};
use pinion_frontend::requests::orders::Orders;
use pinion_frontend::requests::outgoing::Outlet;
use pinion_os::clock;
use pinion_protocol::control::Admin;
use pinion_protocol::detokenizer_inbox::{self, Open};
use pinion_protocol::frontend_inbox::{FinishReason, Finished, Reject, kind, put_delta};
use pinion_protocol::limits::GAUGE_COUNT;
use pinion_protocol::status::{EDGE_WORDS, Gauge, LauncherGauge, Phase};
use pinion_protocol::tokenizer_inbox::{Submit, TokenizerRecord};
use pinion_protocol::{Fault, Peer, RequestId, Role};
use pinion_shm::page::Page;
use pinion_shm::region::{Region, RegionKind};
use pinion_shm::slots::SlotTable;
use pinion_shm::spans::{self, SpanWriter};
use pinion_text::chat::Described;
use pinion_text::tools::CallFormat;
use pinion_worker::{Overflow, Recorder};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// No test takes so long, also where others keep the cores busy.
const PATIENCE: Duration = Duration::from_secs(120);
/// Of the ledger; tests say what time it is.
pub(crate) const PATIENCE_WITH_ROLES: Patience =
    Patience { role: Duration::from_secs(40), text: Duration::from_secs(20) };
/// Most tests let no role carry out a command.
const ORDER_TIMEOUT: Duration = Duration::from_secs(3);

/// Records that would have gone to other roles.
#[derive(Default)]
pub(crate) struct Sent {
    pub(crate) opens: VecDeque<Open>,
    pub(crate) jobs: VecDeque<TokenizerRecord>,
    /// The tokenizers that they went to.
    pub(crate) turns: Vec<u16>,
    pub(crate) orders: VecDeque<(u64, Admin)>,
    pub(crate) full: bool,
    /// Records that were made all the same while it was.
    pub(crate) refused: usize,
    /// Openings wait in front of a full ring.
    pub(crate) hides_openings: bool,
    pub(crate) panics: bool,
}

impl Outlet for Sent {
    fn has_room(&mut self, _: Peer, _: usize) -> bool {
        !self.full
    }

    fn send(&mut self, to: Peer, kind: u16, payload: &[u8]) -> Result<(), Overflow> {
        assert!(!self.panics, "the test asked for a panic");
        if self.full {
            self.refused += 1;
            return Err(Overflow);
        }
        match to.role {
            Role::Detokenizer => {
                assert_eq!(kind, detokenizer_inbox::kind::OPEN);
                self.opens.push_back(Open::decode(payload).unwrap());
            }
            Role::Tokenizer => {
                self.turns.push(to.index);
                self.jobs.push_back(TokenizerRecord::decode(kind, payload).unwrap());
            }
            other => panic!("record for {other:?}"),
        }
        Ok(())
    }

    fn publish(&mut self, to: Peer) -> bool {
        to.role != Role::Detokenizer || !self.hides_openings
    }

    fn order(&mut self, number: u64, _deadline_ns: u64, admin: Admin) {
        self.orders.push_back((number, admin));
    }
}

/// What a test may change.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) slots: usize,
    pub(crate) settings: Settings,
    pub(crate) buffer_bytes_max: usize,
    pub(crate) resume: bool,
    pub(crate) tokenizers: u16,
    pub(crate) responses_store_bytes: usize,
    pub(crate) reasons: bool,
    pub(crate) strict_fields: bool,
    pub(crate) pooling: Option<Pooling>,
    pub(crate) vectors_bytes: usize,
    pub(crate) answers_bytes: usize,
    pub(crate) bodies_bytes: usize,
    pub(crate) defaults: SamplingDefaults,
    pub(crate) template: Described,
}

impl Default for Options {
    fn default() -> Self {
        let long = PATIENCE;
        let settings = Settings {
            body_bytes_max: 64 << 10,
            body_timeout: long,
            header_timeout: long,
            idle_timeout: long,
            write_timeout: long,
            fast_sse: true,
            api_keys: ApiKeys::default(),
            fairness: Fairness::default(),
            cors_origins: Vec::new(),
            guard: Guard::of(false, false, Vec::new(), Vec::new()),
            keep_alive: None,
            vllm_metrics: true,
            root_path: String::new(),
            ui: true,
            access_log: false,
            profiled: false,
            block_size: 16,
            kv_blocks: 64,
            running_max: 8,
        };
        let (reasons, defaults) = (false, SamplingDefaults::NONE);
        let (buffer_bytes_max, responses_store_bytes) = (1 << 20, 1 << 20);
        Options {
            slots: 8,
            settings,
            buffer_bytes_max,
            resume: true,
            tokenizers: 1,
            responses_store_bytes,
            reasons,
            strict_fields: false,
            pooling: None,
            vectors_bytes: 1 << 20,
            answers_bytes: 64 << 20,
            bodies_bytes: 1 << 20,
            defaults,
            template: Described::default(),
        }
    }
}

pub(crate) struct Harness {
    pub(crate) app: Rc<App>,
    pub(crate) sent: Rc<RefCell<Sent>>,
    pub(crate) table: SlotTable,
    pub(crate) engine_page: Page,
    pub(crate) address: SocketAddr,
    pub(crate) closing: watch::Sender<bool>,
    /// Records for which the service would have replaced the edge that they came over.
    pub(crate) malformed: Cell<u32>,
}

fn ready_page() -> Page {
    let page = Page::create(1, 1, GAUGE_COUNT).unwrap();
    page.set(Gauge::Phase as usize, Phase::Ready as u64);
    // Never old, however long a test takes.
    page.set(Gauge::HeartbeatNs as usize, u64::MAX);
    page
}

/// Runs a test on the frontend's kind of runtime, with a limit on its time.
pub(crate) fn run<F: Future<Output = ()>>(options: Options, test: impl FnOnce(Harness) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let harness = Harness::new(options).await;
        tokio::time::timeout(PATIENCE, test(harness)).await.expect("the test hangs");
    });
}

impl Harness {
    pub(crate) async fn new(options: Options) -> Harness {
        let table = SlotTable::create(1, 1, options.slots).unwrap();
        let sent = Rc::new(RefCell::new(Sent::default()));
        let metrics = Rc::new(Metrics::default());
        let ring = Region::create("pinion-test", RegionKind::Spans, 1, 1, spans::region_words(1024)).unwrap();
        let recorder = Rc::new(Recorder::new(SpanWriter::new(ring.clone()), None));
        let setup = Setup {
            frontend: 0,
            table: table.clone(),
            status: Page::create(1, 1, GAUGE_COUNT).unwrap(),
            tokenizers: options.tokenizers,
            detokenizers: 1,
            max_model_len: 4096,
            buffer_bytes_max: options.buffer_bytes_max,
            resume: options.resume,
            patience: PATIENCE_WITH_ROLES,
            recorder: recorder.clone(),
            clock: clock::now_ns,
        };
        let launcher_page = Page::create(1, 1, EDGE_WORDS + 64).unwrap();
        launcher_page.set(LauncherGauge::HeartbeatNs as usize, u64::MAX);
        launcher_page.set(EDGE_WORDS, 96);
        launcher_page.set(EDGE_WORDS + 1, 4096);
        let engine_page = ready_page();
        let pages = vec![
            (Peer::new(Role::Launcher, 0), launcher_page),
            (Peer::new(Role::Engine, 0), engine_page.clone()),
            (Peer::new(Role::Tokenizer, 0), ready_page()),
            (Peer::new(Role::Detokenizer, 0), ready_page()),
        ];
        let edge = |from, to| Edge { from: Peer::new(from, 0), to: Peer::new(to, 0), capacity_bytes: 4096 };
        let edges = vec![edge(Role::Frontend, Role::Tokenizer), edge(Role::Tokenizer, Role::Engine)];
        let app = Rc::new(App {
            ledger: Rc::new(RefCell::new(Ledger::new(setup, sent.clone(), metrics.clone()))),
            connections: Rc::default(),
            metrics,
            limits: Limits {
                model: "tiny".to_owned(),
                vocab_size: 1000,
                max_model_len: 4096,
                calls: CallReading::Format(CallFormat::Hermes),
                reasons: options.reasons,
                defaults: options.defaults,
                strict_fields: options.strict_fields,
                pooling: options.pooling,
            },
            template: options.template,
            settings: options.settings,
            health: Health { pages },
            topology: Topology { processes: Vec::new(), edges },
            numbers: Numbers::new(1),
            orders: Orders::new(sent.clone(), ORDER_TIMEOUT),
            recorder,
            spans: vec![(Peer::new(Role::Frontend, 0), 0, ring)],
            exporter: None,
            leaving: Cell::new(false),
            load: RefCell::default(),
            responses: Rc::new(RefCell::new(Store::new(options.responses_store_bytes, 60))),
            intake: Intake::new(options.bodies_bytes),
            vectors: Budget::new(options.vectors_bytes),
            whole_answers: Budget::new(options.answers_bytes),
            started_unix_s: 1_790_000_000,
            docs: OnceCell::new(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let closing = watch::Sender::new(false);
        tokio::task::spawn_local(server::accept(app.clone(), listener, closing.subscribe()));
        Harness { app, sent, table, engine_page, address, closing, malformed: Cell::new(0) }
    }

    /// The next record that went to the tokenizer.
    pub(crate) async fn job(&self) -> TokenizerRecord {
        wait_for("a job", || self.sent.borrow_mut().jobs.pop_front()).await
    }

    /// The next generation request.
    pub(crate) async fn submit(&self) -> Submit {
        match self.job().await {
            TokenizerRecord::Submit(submit) => submit,
            other => panic!("not a submit: {other:?}"),
        }
    }

    pub(crate) fn take(&self, record_kind: u16, payload: &[u8]) {
        let taken = self.app.ledger.borrow_mut().take(record_kind, payload, clock::now_ns());
        self.malformed.set(self.malformed.get() + u32::from(taken.is_err()));
    }

    /// Text for `id`: one delta.
    pub(crate) fn delta(&self, id: RequestId, first_sequence: u32, ids: &[u32], text: &str, flags: u32) {
        let mut record = Vec::new();
        put_delta(&mut record, id, first_sequence, ids, text, flags);
        self.take(kind::DELTAS, &record);
    }

    pub(crate) fn finish(&self, id: RequestId, reason: FinishReason, generated_tokens: u32) {
        let mut record = Vec::new();
        Finished { id, reason, prompt_tokens: 3, cached_tokens: 1, generated_tokens }.encode(&mut record);
        self.take(kind::FINISHED, &record);
    }

    pub(crate) fn reject(&self, id: RequestId, fault: Fault) {
        let mut record = Vec::new();
        Reject { id, fault }.encode(&mut record);
        self.take(kind::REJECT, &record);
    }

    pub(crate) fn slots_used(&self) -> usize {
        self.app.ledger.borrow().slots_used()
    }

    pub(crate) fn cancelled(&self, id: RequestId) -> bool {
        self.table.slot(usize::from(id.slot)).unwrap().state().cancelled
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends a POST with a JSON body on a connection of its own that closes after the answer.
    pub(crate) async fn post_raw(&self, path: &str, body: &str) -> TcpStream {
        let mut stream = self.connect().await;
        stream.write_all(post_bytes(path, body).as_bytes()).await.unwrap();
        stream
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Reply {
        Reply::read(self.post_raw(path, body).await).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.request(&format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).await
    }

    pub(crate) async fn request(&self, text: &str) -> Reply {
        let mut stream = self.connect().await;
        stream.write_all(text.as_bytes()).await.unwrap();
        Reply::read(stream).await
    }
}

pub(crate) fn post_bytes(path: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// Polls until `look` finds something.
pub(crate) async fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE / 2;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A response read to the end of its connection.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    /// Without chunk framing.
    pub(crate) body: String,
    /// Pieces of a chunked body.
    pub(crate) chunks: Vec<String>,
    /// The framing says that nothing is missing.
    pub(crate) complete: bool,
}

impl Reply {
    pub(crate) async fn read(mut stream: TcpStream) -> Reply {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        Reply::parse(&String::from_utf8(bytes).unwrap())
    }

    pub(crate) fn parse(text: &str) -> Reply {
        let (head, rest) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
        let head = head.to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let (mut chunks, mut complete) = (Vec::new(), false);
        if head.contains("transfer-encoding: chunked") {
            let mut rest = rest;
            while let Some((length, tail)) = rest.split_once("\r\n") {
                let length = usize::from_str_radix(length, 16).unwrap();
                if length == 0 {
                    complete = true;
                    break;
                }
                chunks.push(tail[..length].to_owned());
                rest = &tail[length + 2..];
            }
        } else {
            chunks.push(rest.to_owned());
            complete = head.contains(&format!("content-length: {}", rest.len()));
        }
        Reply { status, head, body: chunks.concat(), chunks, complete }
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    /// The payloads of the server-sent events.
    pub(crate) fn events(&self) -> Vec<String> {
        let events = self.body.split_terminator("\n\n");
        events.map(|event| event.strip_prefix("data: ").unwrap().to_owned()).collect()
    }
}
