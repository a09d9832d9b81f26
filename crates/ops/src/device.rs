//! libtorch's CUDA half: loading it, the memory of a device, and its stream.

use crate::ffi::{self, PinionDeviceMemory};
use crate::shim::call;

/// Memory of a CUDA device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Free, for all processes.
    pub free: u64,
    /// Taken from the driver by libtorch's caching allocator of this process.
    pub reserved: u64,
}

/// Loads libtorch's CUDA half from the folder of the libtorch that is linked. libtorch asks once whether it has CUDA,
/// so this comes before the first tensor.
///
/// # Errors
/// The loader's message: which file is missing.
pub fn open_cuda() -> Result<(), String> {
    // SAFETY: a buffer of the length given. Loading runs the initialisers of libtorch's own library.
    call(|error, error_len| unsafe { ffi::pinion_device_open(error, error_len) })
}

/// What of the memory of CUDA device `index` is free, and what libtorch has taken; after [`open_cuda`].
///
/// # Errors
/// libtorch's message.
pub fn cuda_memory(index: u32) -> Result<Memory, String> {
    let index = i32::try_from(index).map_err(|_| format!("there is no device {index}"))?;
    let mut found = PinionDeviceMemory::default();
    // SAFETY: a struct of the header's layout and a buffer of the length given, both alive during the call.
    call(|error, error_len| unsafe { ffi::pinion_device_memory(index, &raw mut found, error, error_len) })?;
    Ok(Memory { free: found.free, reserved: found.reserved })
}

/// The `cudaStream_t` on which libtorch queues this thread's work for CUDA device `index`; after [`open_cuda`].
///
/// # Errors
/// libtorch's message.
pub(crate) fn current_stream(index: usize) -> Result<u64, String> {
    let index = i32::try_from(index).map_err(|_| format!("there is no device {index}"))?;
    let mut stream = 0;
    // SAFETY: a word and a buffer of the length given, both alive during the call.
    call(|error, error_len| unsafe { ffi::pinion_device_stream(index, &raw mut stream, error, error_len) })?;
    Ok(stream)
}
