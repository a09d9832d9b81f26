//! What a service records about itself.

use crate::sources::Settings;
use serde::{Deserialize, Serialize};

/// The switches of the timeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observe {
    /// Record spans, and stamp each request's stages.
    pub timeline: bool,
    /// Show the spans to NVIDIA's tools.
    pub nvtx: bool,
}

impl Observe {
    pub(crate) fn new(settings: &Settings) -> Observe {
        Observe {
            timeline: settings.switch("timeline").unwrap_or(true),
            nvtx: settings.switch("nvtx").unwrap_or(false),
        }
    }
}

/// The library that a tool of NVIDIA's wants to be called through; the tool sets it for what it starts.
pub fn nvtx_injection() -> Option<std::ffi::OsString> {
    std::env::var_os("NVTX_INJECTION64_PATH")
}
