//! The trace of a model's operations by libtorch itself, for the thread that runs the model.

use std::ffi::CStr;
use std::path::Path;

/// Of drawing a step's tokens.
pub const SAMPLE: &CStr = c"pinion.sample";

/// Begins to trace the operations of this thread.
///
/// # Errors
/// One line: libtorch's, or that there is none in this build.
pub fn start(on_gpu: bool) -> Result<(), String> {
    #[cfg(feature = "torch")]
    return pinion_ops::op_trace::start(on_gpu);
    #[cfg(not(feature = "torch"))]
    return Err(format!("built without libtorch: nothing to trace{}", if on_gpu { " on a GPU" } else { "" }));
}

/// Ends that, and writes what was traced to `path`, in Chrome's format.
///
/// # Errors
/// One line, as above.
pub fn stop(path: &Path) -> Result<(), String> {
    #[cfg(feature = "torch")]
    return pinion_ops::op_trace::stop(path);
    #[cfg(not(feature = "torch"))]
    return Err(format!("built without libtorch: {} is not written", path.display()));
}

/// A range of this thread in the trace, until it is dropped.
#[must_use]
#[derive(Debug)]
pub struct Range {
    #[cfg(feature = "torch")]
    _open: Option<pinion_ops::op_trace::Range>,
}

/// Begins a range. Without a trace of this thread it does nothing.
pub fn range(name: &'static CStr) -> Range {
    #[cfg(feature = "torch")]
    return Range { _open: pinion_ops::op_trace::range(name) };
    #[cfg(not(feature = "torch"))]
    {
        let _ = name;
        Range {}
    }
}
