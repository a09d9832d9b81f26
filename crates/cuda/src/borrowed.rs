//! Streams and memory of another user of the device, as libtorch is.

use super::device::{CudaError, Device, Stream};
use super::memory::Span;
use std::ptr::null_mut;

impl Device {
    /// The device's default stream. On the emulated device it is one on which everything has run when it is queued.
    ///
    /// # Errors
    /// The driver's.
    pub fn default_stream(&self) -> Result<Stream, CudaError> {
        // SAFETY: it lives as long as the device.
        unsafe { self.borrow_stream(0) }
    }

    /// A stream that another user of the device made, by its `cudaStream_t`; 0 is the default stream. It stays that
    /// user's. The emulated device has no other users.
    ///
    /// # Safety
    /// `raw` is a stream of this device, and is not destroyed while the result is used.
    ///
    /// # Errors
    /// The emulated device has no stream of this number.
    pub unsafe fn borrow_stream(&self, raw: u64) -> Result<Stream, CudaError> {
        let mut handle = null_mut();
        // SAFETY: `handle` is writable for the call; the caller answers for the stream.
        let code = unsafe { (self.symbols().stream_borrow)(raw, &raw mut handle) };
        self.check("taking a stream", code)?;
        Ok(Stream { device: self.clone(), handle })
    }
}

impl Span {
    /// Memory that this crate did not take.
    ///
    /// # Safety
    /// The range is memory of the device that it is used with (on an emulated one, of this process), and stays it until
    /// all has run that was queued with it. Nothing on the host borrows it meanwhile.
    pub unsafe fn of_memory(address: u64, bytes: u64) -> Span {
        Span { address, bytes }
    }
}
