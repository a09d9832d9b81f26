//! From settled values to a [`Config`]: derives the values that were not given and checks what must hold between
//! options.

use crate::chat_template;
use crate::choices::{AttentionKind, Backend, Dtype, Ipc, LinearKind, ReasoningParser, ToolCallParser};
use crate::computing::Computing;
use crate::config::{Config, ResponseStore};
use crate::cpu_plan::{self, CpuPlan, PlanRequest};
use crate::fairness::Fairness;
use crate::fake::Fake;
use crate::fault::{Collector, Faults, Origin};
use crate::generation::{Generation, SamplingDefaults};
use crate::kv_events::KvEvents;
use crate::kv_size::{KvCache, memory_for_cache};
use crate::lifecycle::Lifecycle;
use crate::machine::Machine;
use crate::model_facts::ModelFacts;
use crate::model_folder::{self, Folder};
use crate::observe::Observe;
use crate::pooling::{self, Pooling};
use crate::root_path;
use crate::scheduling::{POOLS_NO_DRAFTS, Scheduling, SpeculationKind};
use crate::sources::{Settings, Take};
use crate::topology::Topology;
use crate::value::{Value, human_bytes};
use pinion_protocol::{Role, WindowKv};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Body bytes per token of context, unless told: many times the four or so bytes of an ordinary token.
const BODY_BYTES_PER_TOKEN: usize = 64;
const BODY_BYTES_LOW: usize = 512 << 10;
const BODY_BYTES_HIGH: usize = 4 << 20;
/// Rings may take the memory divided by this.
const RING_MEMORY_DIVISOR: u64 = 4;
/// Longest served model name in bytes.
const MODEL_NAME_BYTES_MAX: usize = 256;

/// Reads the model folder and makes the config, or notes every fault.
pub(crate) fn resolve(settings: &Settings, machine: &Machine, faults: &mut Collector) -> Option<Config> {
    let backend = Computing::on_cpu(settings);
    Observe::check(settings, backend, faults);
    let Some(dir) = settings.text("model").map(PathBuf::from) else {
        faults.add(
            &Origin::Flag("--model".into()),
            "is required: the folder of the model to serve, or ORG/NAME for one of the hub",
        );
        plan_cpus(settings, machine, backend, faults);
        check_batch(settings, faults);
        return None;
    };
    let generation = Generation::read(&dir, faults);
    let mut folder = model_folder::read(&dir, backend, &generation, faults);
    let pooling = folder.as_mut().and_then(|folder| pooling::read(&dir, settings, &mut folder.model, faults));
    // Models that pool run on the CPU, so that `auto` looks for no GPU.
    let without_gpu = Machine { has_nvidia_gpu: false, ..machine.clone() };
    let machine = if pooling.is_some() { &without_gpu } else { machine };
    let mut config = from_folder(settings, (machine, &dir, folder), faults)?;
    check_pooling(pooling.as_ref(), &config, settings, faults);
    // A request has up to 2048 texts, however short the context is.
    if pooling.is_some() && settings.number("body-bytes-max").is_none() {
        config.body_bytes_max = BODY_BYTES_HIGH;
    }
    config.pooling = pooling;
    if settings.text("generation-config") != Some("none") {
        config.sampling_defaults = generation.defaults;
        config.warnings = generation.ignored;
    }
    config.warnings.extend(several_frontends(config.frontends));
    check_rings(&config, machine, faults);
    Some(config)
}

/// Each frontend counts for itself, and the kernel chooses the one that a scrape meets.
fn several_frontends(frontends: u16) -> Option<String> {
    (frontends > 1).then(|| {
        format!(
            "--frontends {frontends}: each look at /metrics, /stats and `pinion top` meets one frontend, which counts its own \
             requests alone; rates and histograms from them are wrong"
        )
    })
}

/// Notes what is wrong with everything but the model, which is not here yet.
pub(crate) fn check_all_but_model(settings: &Settings, machine: &Machine, faults: &mut Collector) {
    Observe::check(settings, Computing::on_cpu(settings), faults);
    from_folder(settings, (machine, Path::new("."), None), faults);
}

/// Our kernels on the CPU pool; the CUDA engine and libtorch's operators do not.
fn check_pooling(pooling: Option<&Pooling>, config: &Config, settings: &Settings, faults: &mut Collector) {
    if pooling.is_none() {
        return;
    }
    if config.cuda.is_some() {
        faults.add(&settings.origin("device"), "models that pool run on the CPU only; use --device cpu");
    } else if config.backend == Backend::Operators {
        faults.add(&settings.origin("backend"), "libtorch's operators do not pool; use --backend native");
    }
    if config.kv_events.is_some() {
        faults.add(&settings.origin("kv-events"), "a model that pools keeps no prefix cache; leave this out");
    }
    if config.scheduling.speculation != SpeculationKind::Off {
        let reason = format!("{POOLS_NO_DRAFTS}; leave this out");
        faults.add(&settings.origin("speculative"), reason);
    }
}

/// Rings are prefaulted, and there is one for every pair of processes that talk.
fn check_rings(config: &Config, machine: &Machine, faults: &mut Collector) {
    let rings = Topology::new(config).shared_bytes() as u64;
    let room = machine.memory_bytes.map(|bytes| bytes / RING_MEMORY_DIVISOR);
    if let Some(room) = room.filter(|room| rings > *room) {
        let (rings, room) = (human_bytes(rings), human_bytes(room));
        let reason = format!(
            "the rings take {rings}, and a quarter of the memory is {room}: turn down frontends, tokenizers, \
             body-bytes-max or max-inflight"
        );
        faults.add(&Origin::CommandLine, reason);
    }
}

/// The machine, the model's folder, and what is in it, if it was read.
type Found<'a> = (&'a Machine, &'a Path, Option<Folder>);

/// The part after the folder was read. Without it only what does not need it is checked.
pub(crate) fn from_folder(settings: &Settings, found: Found<'_>, faults: &mut Collector) -> Option<Config> {
    let (computing, room, (cpu_plan, pin), (name, kv_events)) = decided(settings, &found, faults)?;
    let ((_, dir, folder), take) = (found, Take(settings));
    Some(Config {
        host: settings.address("host")?,
        port: take.narrow("port"),
        model_dir: absolute(dir, faults),
        served_model_name: name,
        model: folder?.model,
        backend: computing.backend,
        scheduling: Scheduling::new(settings, computing.has_object()),
        cuda: computing.cuda,
        dtype: computing.dtype,
        max_model_len: room.max_model_len,
        max_num_seqs: take.word("max-num-seqs"),
        max_num_batched_tokens: take.word("max-num-batched-tokens"),
        block_size: take.word("block-size"),
        kv_blocks: room.kv_blocks,
        window_kv: room.window_kv,
        command_budget: take.word("command-budget"),
        engine_threads: engine_threads(&cpu_plan),
        linear: settings.text("linear").and_then(LinearKind::of).unwrap_or(LinearKind::Auto),
        quantization: computing.quantization,
        kv_dtype: computing.kv_dtype,
        attention: if take.is("attention", "twin") { AttentionKind::Twin } else { AttentionKind::Vector },
        split_contexts: settings.switch("split-contexts").unwrap_or(true),
        parallel_sampling: settings.switch("parallel-sampling").unwrap_or(false),
        prefill_attention: computing.prefill_attention,
        torch_kernels: computing.torch_kernels,
        fake: Fake::new(settings),
        frontends: take.narrow("frontends"),
        tokenizers: take.narrow("tokenizers"),
        detokenizers: take.narrow("detokenizers"),
        max_inflight: take.word("max-inflight"),
        body_bytes_max: body_bytes_max(settings, room.max_model_len),
        stream_buffer_bytes_max: take.number("stream-buffer-bytes-max") as usize,
        write_timeout_ms: take.number("write-timeout"),
        header_timeout_ms: take.number("header-timeout"),
        idle_timeout_ms: take.number("idle-timeout"),
        body_timeout_ms: take.number("body-timeout"),
        sampling_defaults: SamplingDefaults::NONE,
        warnings: Vec::new(),
        pooling: None,
        chat_template: chat_template::read(settings, faults),
        strict_fields: settings.switch("strict-fields").unwrap_or(false),
        reasoning_parser: ReasoningParser::of(settings.text("reasoning-parser")),
        tool_call_parser: ToolCallParser::of(settings.text("tool-call-parser")),
        fast_sse: settings.switch("fast-sse").unwrap_or(true),
        fairness: Fairness::new(settings, &settings.api_keys("api-key"), faults),
        stream_interval: take.word("stream-interval"),
        api_keys: settings.api_keys("api-key"),
        cors_origins: settings.names("cors-origin"),
        allowed_hosts: settings.names("allowed-hosts"),
        root_path: root_path::read(settings, faults),
        keep_alive_ms: take.number("keep-alive"),
        responses: response_store(&take),
        ui: settings.switch("ui").unwrap_or(true),
        seed: take.number("seed"),
        lifecycle: Lifecycle::new(settings),
        cpu_plan,
        pin,
        jitter_control: settings.switch("jitter-control").unwrap_or(true),
        in_process: settings.switch("in-process").unwrap_or(false),
        text_memory_bytes_max: model_folder::text_memory_bytes_max(dir),
        sandbox: sandbox(settings),
        observe: Observe::new(settings),
        kv_events,
        ipc: if take.is("ipc", "channel") { Ipc::Channel } else { Ipc::Ring },
    })
}

/// The served name, and where KV events go, whose topic has that name.
type Named = (String, Option<KvEvents>);

/// What computes, the lengths, the CPU plan and the names, if there is a folder and a plan.
fn decided(
    settings: &Settings,
    (machine, dir, folder): &Found<'_>,
    faults: &mut Collector,
) -> Option<(Computing, Lengths, (CpuPlan, bool), Named)> {
    let (computing, plan, named) = without_model(settings, machine, dir, folder.as_ref(), faults);
    let room = lengths(settings, machine, &computing, folder.as_ref()?, faults);
    Some((computing, room, plan?, named))
}

/// What is decided without the model's facts: what computes, the CPU plan, the name.
fn without_model(
    settings: &Settings,
    machine: &Machine,
    dir: &Path,
    folder: Option<&Folder>,
    faults: &mut Collector,
) -> (Computing, Option<(CpuPlan, bool)>, Named) {
    let plan = plan_cpus(settings, machine, Computing::on_cpu(settings), faults);
    check_batch(settings, faults);
    let computing = Computing::of(settings, machine, folder, faults);
    Scheduling::check_speculation(settings, computing.backend, computing.cuda.is_some(), faults);
    let name = model_name(settings, dir, faults);
    let kv_events = KvEvents::resolve(settings, faults);
    (computing, plan, (name, kv_events))
}

/// What follows from the model and the memory.
struct Lengths {
    max_model_len: u32,
    kv_blocks: u32,
    window_kv: Option<WindowKv>,
}

fn lengths(
    settings: &Settings,
    machine: &Machine,
    computing: &Computing,
    folder: &Folder,
    faults: &mut Collector,
) -> Lengths {
    let model = &folder.model;
    let machine_of_cache = computing.takes_host_memory().then_some(machine);
    let per_token = computing.kv_bytes_per_token(model);
    let max_model_len = max_model_len(settings, model, machine_of_cache, per_token, faults);
    let cache = KvCache { settings, machine, computing, max_model_len };
    let (kv_blocks, window_kv) = cache.blocks(model, faults);
    Lengths { max_model_len, kv_blocks, window_kv }
}

fn response_store(take: &Take<'_>) -> ResponseStore {
    let bytes_max = take.number("responses-store-bytes") as usize;
    ResponseStore { bytes_max, ttl_s: take.number("responses-ttl") / 1000 }
}

/// Threads cannot give up what the process keeps, and a profiler's library works within the roles.
fn sandbox(settings: &Settings) -> bool {
    let on = |name: &str| settings.switch(name).unwrap_or(false);
    let profiled = settings.text("profile").is_some_and(|tool| tool != "none");
    settings.switch("sandbox").unwrap_or(true) && !on("in-process") && !on("nvtx") && !profiled
}

/// As given, or enough for a prompt that fills the context.
fn body_bytes_max(settings: &Settings, max_model_len: u32) -> usize {
    let enough = (max_model_len as usize * BODY_BYTES_PER_TOKEN).clamp(BODY_BYTES_LOW, BODY_BYTES_HIGH);
    settings.number("body-bytes-max").map_or(enough, |bytes| bytes as usize)
}

/// Threads of the model's kernels, as planned.
fn engine_threads(plan: &CpuPlan) -> u32 {
    plan.placements.iter().find(|p| p.peer.role == Role::Engine).map_or(1, |p| p.threads)
}

/// The folder's path from the root, for children whose working directory may be another.
fn absolute(dir: &Path, faults: &mut Collector) -> PathBuf {
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    if dir.to_str().is_none() {
        faults.add(&Origin::Model(dir.display().to_string()), "the path is not valid UTF-8");
    }
    dir
}

impl Config {
    /// The defaults of every option around a model that need not be on disk: for tests and tools.
    pub fn with_defaults(
        dir: &Path,
        model: ModelFacts,
        backend: Backend,
        machine: &Machine,
    ) -> Result<Config, Faults> {
        let mut settings = Settings::defaults();
        settings.set("backend", Value::Word(backend.name()), Origin::Default);
        let mut faults = Collector::default();
        let folder = Folder { model, gpu_dtype: Dtype::Fp16, architecture: None };
        let config = from_folder(&settings, (machine, dir, Some(folder)), &mut faults);
        faults.into_result()?;
        Ok(config.expect("a config without a fault is complete"))
    }
}

fn check_batch(settings: &Settings, faults: &mut Collector) {
    let (tokens, seqs) = (settings.number("max-num-batched-tokens"), settings.number("max-num-seqs"));
    if let (Some(tokens), Some(seqs)) = (tokens, seqs)
        && tokens < seqs
    {
        let named = ["max-num-batched-tokens", "max-num-seqs"].into_iter().find(|name| settings.is_set(name));
        let reason = format!(
            "a step of {tokens} tokens (max-num-batched-tokens) cannot hold one of each of {seqs} sequences (max-num-seqs)"
        );
        faults.add(&settings.origin(named.unwrap_or("max-num-seqs")), reason);
    }
}

fn model_name(settings: &Settings, dir: &Path, faults: &mut Collector) -> String {
    let name = match settings.text("served-model-name") {
        Some(name) => name.to_owned(),
        None => {
            // a link's own name, not its target's; `.` and `..` have none until they are resolved
            let named = dir.file_name().map(|n| n.to_string_lossy().into_owned());
            let resolved = || dir.canonicalize().ok()?.file_name().map(|n| n.to_string_lossy().into_owned());
            let name = named.or_else(resolved).unwrap_or_else(|| "model".to_owned());
            name.strip_suffix(".gguf").map(str::to_owned).unwrap_or(name)
        }
    };
    if name.len() > MODEL_NAME_BYTES_MAX {
        faults.add(
            &settings.origin("served-model-name"),
            format!("is longer than {MODEL_NAME_BYTES_MAX} bytes"),
        );
    }
    name
}

/// As asked for; else the model's default, or what a cache in the memory of `machine` holds of it.
fn max_model_len(
    settings: &Settings,
    model: &ModelFacts,
    machine: Option<&Machine>,
    kv_bytes_per_token: u64,
    faults: &mut Collector,
) -> u32 {
    let own = model.max_context;
    match settings.number("max-model-len").and_then(|n| u32::try_from(n).ok()) {
        Some(asked) if asked > own => {
            faults.add(
                &settings.origin("max-model-len"),
                format!("{asked} is more than the model's context of {own}"),
            );
            own
        }
        Some(asked) => asked,
        None => {
            let block_tokens = settings.number("block-size").unwrap_or(16);
            let bytes = machine.and_then(|machine| memory_for_cache(settings, machine));
            let room = bytes.map(|bytes| bytes / kv_bytes_per_token);
            let room = room.map(|tokens| tokens / block_tokens * block_tokens).filter(|&tokens| tokens > 0);
            let room = room.and_then(|tokens| u32::try_from(tokens).ok()).unwrap_or(u32::MAX);
            model.default_context.min(room)
        }
    }
}

/// The plan, and whether roles are pinned to it.
fn plan_cpus(
    settings: &Settings,
    machine: &Machine,
    backend: Backend,
    faults: &mut Collector,
) -> Option<(CpuPlan, bool)> {
    let set_options = [
        (Role::Frontend, "cpus-frontend"),
        (Role::Tokenizer, "cpus-tokenizer"),
        (Role::Engine, "cpus-engine"),
        (Role::Detokenizer, "cpus-detokenizer"),
        (Role::Events, "cpus-events"),
    ];
    let mut sets = BTreeMap::new();
    for (role, option) in set_options {
        if let Some(Value::Cpus(set)) = settings.get(option).map(|s| &s.value) {
            sets.insert(role, set.clone());
        }
    }
    let count = |option: &str| settings.number(option).and_then(|n| u16::try_from(n).ok()).unwrap_or(1);
    let counts = BTreeMap::from([
        (Role::Frontend, count("frontends")),
        (Role::Tokenizer, count("tokenizers")),
        (Role::Engine, 1),
        (Role::Detokenizer, count("detokenizers")),
        (Role::Events, u16::from(settings.is_set("kv-events"))),
    ]);
    let shared_machine = machine.quota_cpus.is_some_and(|quota| quota < machine.cpus.len());
    let pin = settings.switch("pin").unwrap_or(!shared_machine || !sets.is_empty());
    let narrow = |option: &str| settings.number(option).and_then(|n| u32::try_from(n).ok());
    let engine_threads = narrow("engine-threads").or((backend == Backend::Fake).then_some(1));
    let spin_us = narrow("spin-us").unwrap_or(0);
    let step_spin = settings.switch("step-spin").unwrap_or(true);
    let thread_cap = settings.switch("thread-cap").unwrap_or(true);
    let thread_team = settings.switch("thread-team").unwrap_or(true);
    let request =
        PlanRequest { counts, sets, engine_threads, thread_cap, spin_us, step_spin, thread_team, pin };
    match cpu_plan::plan(machine, &request) {
        Ok(plan) => Some((plan, pin)),
        Err(plan_faults) => {
            for fault in plan_faults {
                let option = if fault.threads {
                    "engine-threads".to_owned()
                } else {
                    format!("cpus-{}", fault.role.name())
                };
                faults.add(&settings.origin(&option), fault.reason);
            }
            None
        }
    }
}
