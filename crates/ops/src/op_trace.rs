//! libtorch's own profiler (kineto): what operations one thread runs, with shapes and times, as a file that Perfetto
//! and chrome://tracing open. Kernels of ours are no operations of libtorch and show as the time between two of them.

use crate::ffi;
use crate::shim::call;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

/// Begins to trace the operations of this thread; `on_gpu`: with what they run on the GPU. It costs memory for each
/// operation until [`stop`], so its caller bounds it.
///
/// # Errors
/// libtorch's message; a trace is under way, for one.
pub fn start(on_gpu: bool) -> Result<(), String> {
    // SAFETY: a buffer of the length given; any thread may call it.
    call(|error, error_len| unsafe { ffi::pinion_trace_start(i32::from(on_gpu), error, error_len) })
}

/// Ends the trace that this thread began, and writes it to `path`.
///
/// # Errors
/// libtorch's message, or that the file was not written.
pub fn stop(path: &Path) -> Result<(), String> {
    let text = CString::new(path.as_os_str().as_bytes()).map_err(|_| "the path holds a zero".to_owned())?;
    // SAFETY: a NUL-terminated path, and a buffer of the length given.
    call(|error, error_len| unsafe { ffi::pinion_trace_stop(text.as_ptr(), error, error_len) })?;
    // libkineto logs what it cannot write and goes on.
    if path.is_file() { Ok(()) } else { Err(format!("{} cannot be written", path.display())) }
}

/// A named range in the trace of this thread; it ends when it is dropped, on that thread: a pointer is not `Send`.
#[derive(Debug)]
pub struct Range(NonNull<c_void>);

/// Begins a range; `None` where no trace of this thread is under way.
pub fn range(name: &'static CStr) -> Option<Range> {
    // SAFETY: a NUL-terminated name that lives for ever; any thread may call it.
    NonNull::new(unsafe { ffi::pinion_range_begin(name.as_ptr()) }).map(Range)
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: `range` made it, and this is its thread and its only end.
        unsafe { ffi::pinion_range_end(self.0.as_ptr()) };
    }
}
