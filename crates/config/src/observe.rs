//! What a service records about itself.

use crate::choices::Backend;
use crate::fault::Collector;
use crate::otlp::OtlpTraces;
use crate::sources::Settings;
use pinion_protocol::Peer;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What profiles the roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Profiler {
    /// NVIDIA's Nsight Systems, which starts each role.
    Nsys,
    /// Linux's own, which starts each role.
    Perf,
    /// libtorch's own (kineto), within the engine.
    Torch,
}

impl Profiler {
    /// Its program, and the name of its folder.
    pub fn name(self) -> &'static str {
        match self {
            Profiler::Nsys => "nsys",
            Profiler::Perf => "perf",
            Profiler::Torch => "torch",
        }
    }

    /// Whether it is a program that stands between the launcher and each role.
    pub fn wraps(self) -> bool {
        match self {
            Profiler::Nsys | Profiler::Perf => true,
            Profiler::Torch => false,
        }
    }
}

/// What is recorded, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observe {
    /// Record spans, and stamp each request's stages.
    pub timeline: bool,
    /// Show the spans to NVIDIA's tools.
    pub nvtx: bool,
    /// A turn of a role's loop that takes this long is a pause, in ms; 0 watches nothing.
    pub pause_warn_ms: u64,
    /// They are profiled by it, on request.
    pub profiler: Option<Profiler>,
    /// Where its reports go.
    pub profile_dir: PathBuf,
    /// The engine writes down what it takes and what it makes of it.
    pub record: Option<PathBuf>,
    /// Frontends log each request at its end. Older recordings do not say it.
    #[serde(default)]
    pub access_log: bool,
    /// Show the `vllm:*` families on `/metrics`. Older recordings do not say it.
    #[serde(default)]
    pub vllm_metrics: bool,
    /// Where frontends send the spans of requests, if they do. Older recordings do not say it.
    #[serde(default)]
    pub otlp: Option<OtlpTraces>,
}

impl Observe {
    /// `settings` that go together, or a note why not.
    pub(crate) fn check(settings: &Settings, backend: Backend, faults: &mut Collector) {
        OtlpTraces::resolve(settings, faults);
        let Some(profiler) = settings.text("profile").filter(|word| *word != "none") else { return };
        let mut fault = |reason: &str| faults.add(&settings.origin("profile"), reason);
        if settings.switch("in-process").unwrap_or(false) {
            fault("profilers look at processes; leave --in-process away");
        }
        if profiler == "torch" && backend == Backend::Fake {
            fault("the fake backend runs no operation of libtorch");
        }
    }

    /// Where the profiles of `peer` go; `None` if there are none.
    pub fn profile_folder(&self, backend: Backend, peer: Peer) -> Option<PathBuf> {
        let tool = self.profile_dir.join(self.profiler?.name());
        Some(tool.join(backend.name()).join(peer.to_string()))
    }

    pub(crate) fn new(settings: &Settings) -> Observe {
        Observe {
            timeline: settings.switch("timeline").unwrap_or(true),
            nvtx: settings.switch("nvtx").unwrap_or(false),
            pause_warn_ms: settings.number("pause-warn-ms").expect("the option has a default"),
            profiler: match settings.text("profile") {
                Some("nsys") => Some(Profiler::Nsys),
                Some("perf") => Some(Profiler::Perf),
                Some("torch") => Some(Profiler::Torch),
                _ => None,
            },
            profile_dir: PathBuf::from(settings.text("profile-dir").unwrap_or("profiles")),
            record: settings.text("record").map(PathBuf::from),
            access_log: settings.switch("access-log").unwrap_or(false),
            vllm_metrics: settings.text("metrics-compat") == Some("vllm"),
            // Its faults are noted by `check`.
            otlp: OtlpTraces::resolve(settings, &mut Collector::default()),
        }
    }
}

/// The library that a tool of NVIDIA's wants to be called through; the tool sets it for what it starts.
pub fn nvtx_injection() -> Option<std::ffi::OsString> {
    std::env::var_os("NVTX_INJECTION64_PATH")
}
