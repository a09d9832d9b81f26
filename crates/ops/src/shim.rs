//! How functions of the libtorch shim end: 0, or a message.

use std::ffi::{CStr, c_char};

/// Length of the message's buffer, bytes.
const ERROR_BYTES: usize = 512;

/// Runs a function that takes a buffer and its length. Errors: the first line of what it wrote there.
pub(crate) fn call(call: impl FnOnce(*mut c_char, u64) -> i32) -> Result<(), String> {
    let mut error = [0 as c_char; ERROR_BYTES];
    if call(error.as_mut_ptr(), ERROR_BYTES as u64) == 0 {
        return Ok(());
    }
    error[ERROR_BYTES - 1] = 0;
    // SAFETY: the buffer is NUL-terminated, at the latest by the line above.
    let message = unsafe { CStr::from_ptr(error.as_ptr()) }.to_string_lossy();
    Err(message.lines().next().unwrap_or_default().to_owned())
}
