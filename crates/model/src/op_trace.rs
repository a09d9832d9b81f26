//! The trace of a model's operations by libtorch itself, for the thread that runs the model.

use std::path::Path;

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
