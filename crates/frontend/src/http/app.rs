//! What every handler of this process shares.

use crate::admission::Limits;
use crate::http::budget::Budget;
use crate::http::connections::Connections;
use crate::http::guard::Guard;
use crate::http::intake::Intake;
use crate::http::pages::Documents;
use crate::observe::health::Health;
use crate::observe::load::{Counts, Load, Rates};
use crate::observe::metrics::Metrics;
use crate::observe::otlp::Exporter;
use crate::observe::view::{Constants, Slots, View};
use crate::requests::ledger::Ledger;
use crate::requests::orders::Orders;
use pinion_api::responses::Store;
use pinion_config::{ApiKeys, Config, Fairness, Topology};
use pinion_os::clock;
use pinion_protocol::Peer;
use pinion_random::nth;
use pinion_shm::region::Region;
use pinion_text::chat::Described;
use pinion_worker::Recorder;
use std::cell::{Cell, OnceCell, RefCell};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The parts of the config that handlers and connections need.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes of a body.
    pub body_bytes_max: usize,
    /// A body is complete in this time.
    pub body_timeout: Duration,
    /// A head is complete in this time.
    pub header_timeout: Duration,
    /// A connection without a request is closed after this time.
    pub idle_timeout: Duration,
    /// A write that makes no progress for this time ends the connection.
    pub write_timeout: Duration,
    /// Write chunks from a prepared prefix.
    pub fast_sse: bool,
    /// Keys of which a client must have one; empty asks for none.
    pub api_keys: ApiKeys,
    /// Whose requests share the engine.
    pub fairness: Fairness,
    /// Web origins whose pages may use the API.
    pub cors_origins: Vec<String>,
    /// What web pages may not do.
    pub guard: Guard,
    /// Path below which a proxy serves the service; empty: none.
    pub root_path: String,
    /// A silent stream of events gets a comment after this time.
    pub keep_alive: Option<Duration>,
    /// Show the `vllm:*` families.
    pub vllm_metrics: bool,
    /// Serve the pages for people.
    pub ui: bool,
    /// Log each request at its end.
    pub access_log: bool,
    /// The service was started with a profiler.
    pub profiled: bool,
    /// Tokens in one KV block.
    pub block_size: u32,
    /// KV blocks in the engine's pool.
    pub kv_blocks: u32,
    /// Requests that an engine runs at a time.
    pub running_max: u32,
}

impl Settings {
    /// From the config.
    pub fn new(config: &Config) -> Settings {
        Settings {
            body_bytes_max: config.body_bytes_max,
            body_timeout: Duration::from_millis(config.body_timeout_ms),
            header_timeout: Duration::from_millis(config.header_timeout_ms),
            idle_timeout: Duration::from_millis(config.idle_timeout_ms),
            write_timeout: Duration::from_millis(config.write_timeout_ms),
            fast_sse: config.fast_sse,
            api_keys: config.api_keys.clone(),
            fairness: config.fairness.clone(),
            cors_origins: config.cors_origins.clone(),
            guard: Guard::new(config),
            root_path: config.root_path.clone(),
            keep_alive: (config.keep_alive_ms > 0).then(|| Duration::from_millis(config.keep_alive_ms)),
            vllm_metrics: config.observe.vllm_metrics,
            ui: config.ui,
            access_log: config.observe.access_log,
            profiled: config.observe.profiler.is_some(),
            block_size: config.block_size,
            kv_blocks: config.kv_blocks,
            running_max: config.max_num_seqs,
        }
    }
}

/// Shared by all connections.
pub struct App {
    /// Accepted requests.
    pub ledger: Rc<RefCell<Ledger>>,
    /// Open connections.
    pub connections: Rc<Connections>,
    /// What this process counts.
    pub metrics: Rc<Metrics>,
    /// What admission measures against.
    pub limits: Limits,
    /// What the chat template shows of the model.
    pub template: Described,
    /// Timeouts and sizes.
    pub settings: Settings,
    /// What the other processes say about themselves.
    pub health: Health,
    /// The processes and rings, for labels.
    pub topology: Topology,
    /// Ids and seeds.
    pub numbers: Numbers,
    /// Orders of operators that the launcher has.
    pub orders: Orders,
    /// What this process's thread does.
    pub recorder: Rc<Recorder>,
    /// Rings of spans of all processes, each with its track.
    pub spans: Vec<(Peer, u16, Region)>,
    /// Where the spans of requests go, if they go anywhere.
    pub exporter: Option<Rc<Exporter>>,
    /// The service is about to drain: `/ready` says no, and requests are still served.
    pub leaving: Cell<bool>,
    /// Rates of the last seconds.
    pub load: RefCell<Load>,
    /// Responses that later requests may name.
    pub responses: Rc<RefCell<Store>>,
    /// What bodies share.
    pub intake: Intake,
    /// Memory for vectors.
    pub vectors: Arc<Budget>,
    /// Memory for large answers that leave whole.
    pub whole_answers: Arc<Budget>,
    /// Unix seconds of the start, for `created` of the model list.
    pub started_unix_s: u64,
    /// `/openapi.json` and `/docs`, once one of them was asked for.
    pub docs: OnceCell<Documents>,
}

impl App {
    /// Whether load balancers are to send requests elsewhere: the service is about to drain, or drains.
    pub fn leaves(&self) -> bool {
        self.leaving.get() || self.ledger.borrow().draining()
    }

    /// Rates of the last seconds, up to now.
    pub(crate) fn rates(&self) -> Rates {
        let now = Counts::of(&self.metrics, &self.health, clock::now_ns());
        self.load.borrow().rates(&now)
    }

    /// What pages about the service are made from.
    pub(crate) fn view(&self) -> View<'_> {
        let (ledger, limits, settings) = (self.ledger.borrow(), &self.limits, &self.settings);
        View {
            health: &self.health,
            metrics: &self.metrics,
            topology: &self.topology,
            constants: Constants {
                frontend: ledger.frontend(),
                model: &limits.model,
                max_model_len: limits.max_model_len,
                block_size: settings.block_size,
                kv_blocks: settings.kv_blocks,
                running_max: settings.running_max,
                vllm_metrics: settings.vllm_metrics,
                started_unix_s: self.started_unix_s,
            },
            slots: Slots {
                used: ledger.slots_used(),
                total: ledger.slots_total(),
                draining: ledger.draining(),
                down: ledger.down(),
            },
            now_ns: clock::now_ns(),
        }
    }
}

/// Source of ids that cannot be guessed, and of seeds that follow from the configured one.
pub struct Numbers {
    secret: RandomState,
    seed: u64,
    count: Cell<u64>,
}

impl Numbers {
    /// `seed` differs between frontends and restarts.
    pub fn new(seed: u64) -> Numbers {
        Numbers { secret: RandomState::new(), seed, count: Cell::new(0) }
    }

    fn next(&self) -> u64 {
        self.count.set(self.count.get() + 1);
        self.count.get()
    }

    /// 32 hexadecimal digits.
    pub fn id(&self) -> String {
        let count = self.next();
        let half = |part: u8| {
            let mut hasher = self.secret.build_hasher();
            hasher.write_u64(count);
            hasher.write_u8(part);
            hasher.finish()
        };
        format!("{:016x}{:016x}", half(0), half(1))
    }

    /// The seed of a request that names none.
    pub fn fresh_seed(&self) -> u64 {
        nth(self.seed, self.next())
    }
}
