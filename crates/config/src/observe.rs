//! What a service records about itself.

use crate::sources::Settings;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A program that roles are started by, to be profiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Profiler {
    /// NVIDIA's Nsight Systems.
    Nsys,
    /// Linux's own.
    Perf,
}

impl Profiler {
    /// Its program, and the name of its folder.
    pub fn name(self) -> &'static str {
        match self {
            Profiler::Nsys => "nsys",
            Profiler::Perf => "perf",
        }
    }
}

/// The switches of the timeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observe {
    /// Record spans, and stamp each request's stages.
    pub timeline: bool,
    /// Show the spans to NVIDIA's tools.
    pub nvtx: bool,
    /// A turn of a role's loop that takes so long is a pause, in ms; 0 watches nothing.
    pub pause_warn_ms: u64,
    /// Roles are started by it.
    pub profiler: Option<Profiler>,
    /// Where its reports go.
    pub profile_dir: PathBuf,
    /// The engine writes down what it takes and what it makes of it.
    pub record: Option<PathBuf>,
}

impl Observe {
    pub(crate) fn new(settings: &Settings) -> Observe {
        Observe {
            timeline: settings.switch("timeline").unwrap_or(true),
            nvtx: settings.switch("nvtx").unwrap_or(false),
            pause_warn_ms: settings.number("pause-warn-ms").expect("the option has a default"),
            profiler: match settings.text("profile") {
                Some("nsys") => Some(Profiler::Nsys),
                Some("perf") => Some(Profiler::Perf),
                _ => None,
            },
            profile_dir: PathBuf::from(settings.text("profile-dir").unwrap_or("profiles")),
            record: settings.text("record").map(PathBuf::from),
        }
    }
}

/// The library that a tool of NVIDIA's wants to be called through; the tool sets it for what it starts.
pub fn nvtx_injection() -> Option<std::ffi::OsString> {
    std::env::var_os("NVTX_INJECTION64_PATH")
}
