//! libtorch's own profiler (kineto): what operations one thread runs, with shapes and times, as a file that Perfetto
//! and chrome://tracing open. Kernels of ours are no operations of libtorch and show as the time between two of them.

use crate::ffi;
use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Length of the shim's error message buffer, bytes.
const ERROR_BYTES: usize = 512;

fn call(call: impl FnOnce(*mut c_char, u64) -> i32) -> Result<(), String> {
    let mut error = [0 as c_char; ERROR_BYTES];
    if call(error.as_mut_ptr(), ERROR_BYTES as u64) == 0 {
        return Ok(());
    }
    error[ERROR_BYTES - 1] = 0;
    // SAFETY: the buffer is NUL-terminated, at the latest by the line above.
    let message = unsafe { CStr::from_ptr(error.as_ptr()) }.to_string_lossy();
    Err(message.lines().next().unwrap_or_default().to_owned())
}

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
