//! Settings of the engine's scheduler: prefix cache, prefill, order of admission.

use crate::choices::Backend;
use crate::fault::Collector;
use crate::sources::Settings;
use crate::value::Value;
use serde::{Deserialize, Serialize};

/// Which waiting request is admitted next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdmissionKind {
    /// The one that arrived first.
    Fifo,
    /// The shortest of the first few.
    Pack,
    /// The shortest, with ageing.
    Shortest,
    /// The one whose first token is due first.
    Deadline,
}

/// How long a step with decode rows may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepTimeKind {
    /// As long as its tokens take.
    #[default]
    Off,
    /// In proportion to its decode rows, which only the engine can tell: it measures them.
    Auto,
    /// This time, in µs.
    Micros(u32),
}

impl StepTimeKind {
    pub(crate) fn of(value: &Value) -> StepTimeKind {
        match value {
            Value::Word("auto") => StepTimeKind::Auto,
            Value::Number(us) => {
                StepTimeKind::Micros(u32::try_from(*us).expect("the option's range fits 32 bits"))
            }
            _ => StepTimeKind::Off,
        }
    }
}

/// How next tokens are proposed before they are sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpeculationKind {
    /// They are not.
    #[default]
    Off,
    /// As what a text repeats of itself.
    Ngram,
}

impl SpeculationKind {
    /// The kind of this spelling.
    pub(crate) fn of(text: &str) -> Option<SpeculationKind> {
        match text {
            "off" => Some(SpeculationKind::Off),
            "ngram" => Some(SpeculationKind::Ngram),
            _ => None,
        }
    }
}

/// The scheduler's switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduling {
    /// Keep KV blocks for requests that begin alike.
    pub prefix_cache: bool,
    /// Copy the beginning of a block where requests part in the middle of it.
    pub prefix_partial: bool,
    /// Let requests wait for a prompt that begins like theirs and is being computed.
    pub prefix_wait: bool,
    /// Order of admission.
    pub admission: AdmissionKind,
    /// [`AdmissionKind::Deadline`]: when the first token of a prompt of up to 256 tokens is due, in ms after arrival.
    pub ttft_target_ms: u64,
    /// Most prompt tokens of one request in one step.
    pub prefill_chunk_size: Option<u32>,
    /// Most requests with prompt tokens in one step.
    pub prefill_max_batch_size: Option<u32>,
    /// Requests in prefill from which on prompts get a step's tokens before decodes.
    pub prefill_priority_threshold: Option<u32>,
    /// How long a step with decode rows may take. Recordings of earlier builds have none.
    #[serde(default)]
    pub step_time: StepTimeKind,
    /// Take in more than the command budget while fewer requests than fill a step are in the engine.
    pub fill_to_target: bool,
    /// Launch a step before the results of the one before are read.
    pub overlap: bool,
    /// What is proposed. Recordings of earlier builds have none.
    #[serde(default)]
    pub speculation: SpeculationKind,
}

/// Why drafts are not verified there, and what to use instead. Their rows must have the bits of plain decoding, which
/// our kernels on the CPU give.
pub(crate) fn why_no_drafts(backend: Backend, on_gpu: bool) -> Option<(&'static str, &'static str)> {
    match (on_gpu, backend) {
        (true, _) => Some(("the GPU does not verify drafts", "--device cpu")),
        (false, Backend::Operators) => {
            Some(("libtorch's operators do not verify drafts", "--backend native"))
        }
        (false, Backend::Native | Backend::Fake) => None,
    }
}

/// Why a model that pools has no drafts.
pub(crate) const POOLS_NO_DRAFTS: &str = "a model that pools draws no tokens";

fn speculation(settings: &Settings) -> SpeculationKind {
    settings.text("speculative").and_then(SpeculationKind::of).unwrap_or_default()
}

impl Scheduling {
    pub(crate) fn new(settings: &Settings, on_gpu: bool) -> Scheduling {
        let limit = |name: &str| {
            settings.number(name).map(|n| u32::try_from(n).expect("the option's range fits 32 bits"))
        };
        Scheduling {
            prefix_cache: settings.switch("prefix-cache").unwrap_or(true),
            prefix_partial: settings.switch("prefix-partial").unwrap_or(true),
            prefix_wait: settings.switch("prefix-wait").unwrap_or(true),
            admission: match settings.text("admission") {
                Some("pack") => AdmissionKind::Pack,
                Some("shortest") => AdmissionKind::Shortest,
                Some("deadline") => AdmissionKind::Deadline,
                _ => AdmissionKind::Fifo,
            },
            ttft_target_ms: settings.number("ttft-target").expect("the option has a default"),
            prefill_chunk_size: limit("prefill-chunk-size"),
            prefill_max_batch_size: limit("prefill-max-batch-size"),
            prefill_priority_threshold: limit("prefill-priority-threshold"),
            step_time: settings
                .get("step-time-ms")
                .map_or(StepTimeKind::Off, |setting| StepTimeKind::of(&setting.value)),
            fill_to_target: settings.switch("fill-to-target").unwrap_or(true),
            overlap: settings.switch("overlap").unwrap_or(on_gpu),
            speculation: speculation(settings),
        }
    }

    pub(crate) fn check_speculation(
        settings: &Settings,
        backend: Backend,
        on_gpu: bool,
        faults: &mut Collector,
    ) {
        if speculation(settings) == SpeculationKind::Off {
            return;
        }
        if let Some((reason, remedy)) = why_no_drafts(backend, on_gpu) {
            let reason = format!("{reason}; use {remedy}, or --speculative off");
            faults.add(&settings.origin("speculative"), reason);
        }
    }
}
