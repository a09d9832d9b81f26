//! What one run looks like: sizes of the service, and how much goes wrong. All of it follows from the seed.

use pinion_config::{
    AdmissionKind, Backend, Config, FairShare, Fairness, Machine, ModelFacts, ReasoningParser,
    SpeculationKind, StepTimeKind, ToolCallParser, Topology,
};
use pinion_protocol::{Role, StopIds};
use pinion_random::Random;
use std::path::Path;

/// Ids of the byte tokenizer: one for each byte, and the end of text.
pub(crate) const VOCABULARY: u32 = 257;
/// The end of text, which the fake model never draws.
pub(crate) const EOS: u32 = 256;
/// The fake model's texts repeat themselves after this number of tokens, so that drafts are often right.
pub(crate) const PERIOD: u64 = 6;
/// A role that has not turned its loop for this long is killed.
pub(crate) const STUCK_TIMEOUT_MS: u64 = 3_000;

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The resolved config of the service.
    pub config: Config,
    /// Its processes and rings. The rings may be much smaller than the config asks for.
    pub topology: Topology,
    /// Requests of clients.
    pub requests: usize,
    /// Requests under way at the same time, at most.
    pub together: usize,
    /// Requests that come at once.
    pub burst: usize,
    /// Deaths of roles.
    pub deaths: usize,
    /// Roles that stand still for a while.
    pub stalls: usize,
    /// Clients in a hundred that leave early.
    pub leaving: u64,
    /// Clients in a hundred that stop reading for a while.
    pub slow: u64,
    /// The service is told to stop while requests are open.
    pub drains: bool,
    /// Processes of this role get few turns: what they have to do piles up, and others are ahead of them.
    pub lagging: Option<Role>,
    /// Turns in a hundred of a role that begin as soon as the one before has ended, ahead of what the launcher has said
    /// since, and find the records that came since.
    pub early: u64,
}

impl Plan {
    /// The run of this seed.
    pub fn new(random: &mut Random) -> Plan {
        let mut config = base();
        config.frontends = random.pick(&[1, 1, 2]);
        config.tokenizers = random.pick(&[1, 1, 2]);
        config.detokenizers = random.pick(&[1, 1, 2]);
        config.max_inflight = random.pick(&[2, 4, 8, 16]);
        config.max_num_seqs = random.pick(&[1, 2, 4, 8]);
        config.max_num_batched_tokens = config.max_num_seqs.max(random.pick(&[4, 16, 64]));
        config.block_size = random.pick(&[2, 4, 8]);
        let longest = config.max_model_len.div_ceil(config.block_size);
        config.kv_blocks = longest + random.between(0, u64::from(longest)) as u32;
        config.command_budget = random.pick(&[0, 1, 4]);
        config.stream_interval = random.pick(&[1, 1, 1, 3]);
        config.fast_sse = random.chance(50);
        config.stream_buffer_bytes_max = random.pick(&[1 << 20, 1 << 20, 1 << 20, 1024]);
        config.fairness =
            Fairness { by: random.pick(&[FairShare::Off, FairShare::User]), key_weights: Vec::new() };
        config.lifecycle.resume = !random.chance(8);
        config.lifecycle.restart_backoff_ms = random.pick(&[20, 20, 500]);
        let scheduling = &mut config.scheduling;
        scheduling.prefix_cache = random.chance(70);
        scheduling.prefix_partial = random.chance(50);
        scheduling.prefix_wait = random.chance(50);
        scheduling.fill_to_target = random.chance(50);
        scheduling.overlap = random.chance(40);
        scheduling.prefill_chunk_size = random.pick(&[None, None, Some(2), Some(5)]);
        scheduling.admission = random.pick(&[
            AdmissionKind::Fifo,
            AdmissionKind::Pack,
            AdmissionKind::Shortest,
            AdmissionKind::Deadline,
        ]);
        scheduling.step_time = random.pick(&[
            StepTimeKind::Off,
            StepTimeKind::Off,
            StepTimeKind::Auto,
            StepTimeKind::Micros(100),
            StepTimeKind::Micros(20_000),
        ]);
        scheduling.speculation = random.pick(&[SpeculationKind::Off, SpeculationKind::Ngram]);
        // Its rings of spans make a run slower.
        config.observe.timeline = random.chance(8);
        let mut topology = Topology::new(&config);
        shrink_rings(&mut topology, random);
        let slots = (config.max_inflight * u32::from(config.frontends)).min(20);
        Plan {
            config,
            topology,
            requests: random.between(1, 24) as usize,
            together: random.between(1, u64::from(slots) + 2) as usize,
            burst: random.pick(&[1, 1, 8]),
            deaths: random.pick(&[0, 0, 1, 1, 2, 3, 5, 8]),
            stalls: random.pick(&[0, 0, 1, 2, 4]),
            leaving: random.pick(&[0, 10, 40]),
            slow: random.pick(&[0, 10, 40]),
            drains: random.chance(12),
            lagging: random.pick(&[
                None,
                None,
                None,
                Some(Role::Frontend),
                Some(Role::Tokenizer),
                Some(Role::Engine),
                Some(Role::Detokenizer),
            ]),
            early: random.pick(&[0, 20, 60]),
        }
    }
}

fn shrink_rings(topology: &mut Topology, random: &mut Random) {
    for edge in &mut topology.edges {
        // Openings are small: a ring of this size is full of them now and then.
        let carries_openings = edge.from.role == Role::Frontend && edge.to.role == Role::Detokenizer;
        let sizes = if carries_openings { [512, 512, 1024, 65536] } else { [1024, 4096, 8192, 65536] };
        edge.capacity_bytes = edge.capacity_bytes.min(random.pick(&sizes));
    }
}

/// A service that needs no model folder and takes any port.
fn base() -> Config {
    let facts = ModelFacts {
        max_context: 64,
        default_context: 64,
        vocab_size: VOCABULARY,
        stop_ids: StopIds::one(EOS),
        layers: 1,
        kv_heads: 1,
        head_dim: 1,
        hidden: 1,
        window: None,
    };
    let config = Config::with_defaults(Path::new("/"), facts, Backend::Fake, &Machine::uniform(1, 1));
    let mut config = config.expect("the defaults hold for a fake model");
    (config.port, config.pin, config.jitter_control, config.sandbox) = (0, false, false, false);
    config.in_process = true;
    config.keep_alive_ms = 0;
    config.tool_call_parser = ToolCallParser::None;
    config.reasoning_parser = ReasoningParser::None;
    config.observe.pause_warn_ms = 0;
    let lifecycle = &mut config.lifecycle;
    lifecycle.stuck_timeout_ms = STUCK_TIMEOUT_MS;
    lifecycle.restart_limit = 1_000;
    lifecycle.drain_timeout_ms = 5_000;
    lifecycle.log_filter = "off".to_owned();
    config
}
