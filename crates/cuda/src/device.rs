//! A device, its memory, streams, events and graphs.

use super::driver::driver;
use super::memory::{Pinned, Span};
use super::refusal::Refusal;
use super::symbols::{RawCounts, RawFacts, Symbols};
use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

/// Something that the device, its driver or the loader refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaError {
    /// What was being done.
    pub operation: &'static str,
    /// Why it was not.
    pub message: String,
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.operation, self.message)
    }
}

impl std::error::Error for CudaError {}

fn refused(operation: &'static str, refusal: &Refusal) -> CudaError {
    CudaError { operation, message: refusal.to_string() }
}

/// `cudaErrorMemoryAllocation` and `cudaErrorInvalidDevice`.
const OUT_OF_MEMORY: i32 = 2;
const NO_SUCH_DEVICE: i32 = 101;

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFacts {
    /// The vendor's name for it.
    pub name: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// What of it was free when it was opened.
    pub free_bytes: u64,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Compute capability, 10 * major + minor.
    pub capability: u32,
    /// Whether the device is this process.
    pub emulated: bool,
}

/// What was done since the object was opened, over all its users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceCounts {
    /// Kernels and device copies queued, not counting those inside replayed graphs.
    pub launches: u64,
    /// Graphs captured.
    pub captures: u64,
    /// Graphs replayed.
    pub replays: u64,
    /// Bytes copied to the device.
    pub to_device_bytes: u64,
    /// Bytes copied to the host.
    pub to_host_bytes: u64,
    /// Device memory taken.
    pub allocated_bytes: u64,
    /// What the device has left at this moment; asking takes a call of the driver.
    pub free_bytes: u64,
}

struct Opened {
    symbols: Symbols,
    facts: DeviceFacts,
    /// Device memory, freed with the device and not before.
    allocations: Mutex<Vec<u64>>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        let addresses = self.allocations.get_mut().map(std::mem::take).unwrap_or_default();
        for address in addresses {
            // SAFETY: the address came from `alloc` and no work can be queued on it: streams and graphs hold the
            // device.
            unsafe { (self.symbols.free)(address) };
        }
    }
}

/// An opened device; a cheap handle.
#[derive(Clone)]
pub struct Device(Arc<Opened>);

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.0.facts.name).finish()
    }
}

impl Device {
    /// Opens the shared object at `path` and device `index` through it.
    ///
    /// # Errors
    /// What is missing: one sentence with its remedy.
    pub fn open(path: &Path, index: u32) -> Result<Device, CudaError> {
        let fail = |refusal: Refusal| refused("opening the CUDA device", &refusal);
        Device::look(path, index).map_err(fail)
    }

    /// [`Device::open`] with what is missing and its remedy apart.
    ///
    /// # Errors
    /// No such object, an object of another version, no driver, no such device, or one that the object has no code for.
    pub fn look(path: &Path, index: u32) -> Result<Device, Refusal> {
        if !path.exists() {
            return Err(Refusal::no_object(path));
        }
        let symbols = Symbols::open(path).map_err(|reason| Refusal::wrong_object(path, &reason))?;
        // SAFETY: plain old data for which zeros are valid.
        let mut raw: RawFacts = unsafe { std::mem::zeroed() };
        // SAFETY: `raw` is writable for the call.
        let code = unsafe { (symbols.open)(i32::try_from(index).unwrap_or(i32::MAX), &raw mut raw) };
        if code == NO_SUCH_DEVICE && index > 0 {
            return Err(Refusal::no_such_device(index));
        }
        if code != 0 {
            return Err(Refusal::of_device(driver(), &symbols.text(code)));
        }
        // SAFETY: the object fills at most all but the last byte of the zeroed name.
        let name = unsafe { CStr::from_ptr(raw.name.as_ptr()) }.to_string_lossy().into_owned();
        if raw.emulated == 0
            && let Some(refusal) = Refusal::of_capability(&name, raw.capability)
        {
            return Err(refusal);
        }
        let facts = DeviceFacts {
            name,
            memory_bytes: raw.memory_bytes,
            free_bytes: raw.free_bytes,
            multiprocessors: raw.multiprocessors,
            capability: raw.capability,
            emulated: raw.emulated != 0,
        };
        Ok(Device(Arc::new(Opened { symbols, facts, allocations: Mutex::new(Vec::new()) })))
    }

    /// What the device is.
    pub fn facts(&self) -> &DeviceFacts {
        &self.0.facts
    }

    /// What was done so far.
    pub fn counts(&self) -> DeviceCounts {
        let mut raw = RawCounts::default();
        // SAFETY: `raw` is writable for the call.
        unsafe { (self.symbols().counts)(&raw mut raw) };
        DeviceCounts {
            launches: raw.launches,
            captures: raw.captures,
            replays: raw.replays,
            to_device_bytes: raw.to_device_bytes,
            to_host_bytes: raw.to_host_bytes,
            allocated_bytes: raw.allocated_bytes,
            free_bytes: raw.free_bytes,
        }
    }

    pub(super) fn symbols(&self) -> &Symbols {
        &self.0.symbols
    }

    pub(super) fn check(&self, operation: &'static str, code: i32) -> Result<(), CudaError> {
        match code {
            0 => Ok(()),
            code => Err(CudaError { operation, message: self.symbols().text(code) }),
        }
    }

    /// Takes device memory that lives as long as the device. Its content is undefined.
    ///
    /// # Errors
    /// The device has no such amount left.
    pub fn alloc(&self, bytes: usize) -> Result<Span, CudaError> {
        let mut address = 0;
        // SAFETY: `address` is writable for the call.
        let code = unsafe { (self.symbols().alloc)(bytes.max(16) as u64, &raw mut address) };
        if code == OUT_OF_MEMORY {
            let refusal = Refusal::no_memory(bytes as u64, self.counts().free_bytes);
            return Err(refused("allocating device memory", &refusal));
        }
        self.check("allocating device memory", code)?;
        self.0.allocations.lock().expect("no holder of this lock panics").push(address);
        Ok(Span { address, bytes: bytes as u64 })
    }

    /// A new stream, on which each launch begins when all before it has ended.
    ///
    /// # Errors
    /// The driver's.
    pub fn stream(&self) -> Result<Stream, CudaError> {
        self.stream_with(false)
    }

    /// A new stream. With dependent launches a step's kernels begin before the ones ahead of them have ended and wait
    /// for their results themselves (kernels/cuda/stream.h); on a device below sm_90 that changes nothing.
    ///
    /// # Errors
    /// The driver's.
    pub fn stream_with(&self, dependent_launches: bool) -> Result<Stream, CudaError> {
        let mut handle = null_mut();
        // SAFETY: `handle` is writable for the call.
        let code = unsafe { (self.symbols().stream_create)(&raw mut handle, i32::from(dependent_launches)) };
        self.check("making a stream", code)?;
        Ok(Stream { device: self.clone(), handle })
    }

    /// A new event; a timed one can be measured with [`Event::elapsed_ms`].
    ///
    /// # Errors
    /// The driver's.
    pub fn event(&self, timed: bool) -> Result<Event, CudaError> {
        let mut handle = null_mut();
        // SAFETY: `handle` is writable for the call.
        let code = unsafe { (self.symbols().event_create)(&raw mut handle, i32::from(timed)) };
        self.check("making an event", code)?;
        Ok(Event { device: self.clone(), handle })
    }

    /// Opens cuBLASLt (at `path`, or by its usual names) for products of many rows.
    ///
    /// # Errors
    /// It is not there.
    pub fn open_products(&self, path: Option<&Path>, workspace_bytes: u64) -> Result<(), CudaError> {
        let fail = |refusal: Refusal| refused("opening cuBLASLt", &refusal);
        self.look_for_products(path, workspace_bytes).map_err(fail)
    }

    /// [`Device::open_products`] with what is missing and its remedy apart.
    ///
    /// # Errors
    /// It is not there.
    pub fn look_for_products(&self, path: Option<&Path>, workspace_bytes: u64) -> Result<(), Refusal> {
        let path = path.map(|path| CString::new(path.as_os_str().as_bytes()));
        let path = path.transpose().map_err(|_| Refusal::no_products("its name holds a NUL"))?;
        let name = path.as_ref().map_or(std::ptr::null(), |path| path.as_ptr());
        // SAFETY: null or a NUL-terminated name.
        match unsafe { (self.symbols().products_open)(name, workspace_bytes) } {
            0 => Ok(()),
            code => Err(Refusal::no_products(&self.symbols().text(code))),
        }
    }
}

/// A queue of work on a device.
pub struct Stream {
    pub(super) device: Device,
    pub(super) handle: *mut c_void,
}

// SAFETY: the driver lets any thread use a stream; `&Stream` is not shared between threads.
unsafe impl Send for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

impl Stream {
    /// The device that the stream belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits until everything queued has run.
    ///
    /// # Errors
    /// What a queued operation or the driver reports.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is alive.
        self.device.check("waiting for the device", unsafe {
            (self.device.symbols().stream_synchronize)(self.handle)
        })
    }

    /// Queues a copy of the first `bytes` of `from`.
    ///
    /// # Errors
    /// The driver's.
    pub fn to_device(&self, to: Span, from: &Pinned, bytes: usize) -> Result<(), CudaError> {
        let from = &from.bytes()[..bytes];
        self.copy_in(to, from)
    }

    /// Copies `from` and waits for it.
    ///
    /// # Errors
    /// The driver's.
    pub fn upload(&self, to: Span, from: &[u8]) -> Result<(), CudaError> {
        self.copy_in(to, from)?;
        self.synchronize()
    }

    fn copy_in(&self, to: Span, from: &[u8]) -> Result<(), CudaError> {
        let to = to.part(0, from.len());
        // SAFETY: both ranges have this length; the source is pinned or the caller waits.
        let code = unsafe {
            (self.device.symbols().to_device)(to.address, from.as_ptr().cast(), to.bytes, self.handle)
        };
        self.device.check("copying to the device", code)
    }

    /// Queues a copy to the bytes of `to` from `offset` on.
    ///
    /// # Errors
    /// The driver's.
    pub fn to_host(&self, to: &mut Pinned, offset: usize, from: Span) -> Result<(), CudaError> {
        let to = &mut to.bytes_mut()[offset..offset + from.bytes()];
        // SAFETY: both ranges have this length; pinned memory outlives the stream's work by the caller's event.
        let code = unsafe {
            (self.device.symbols().to_host)(to.as_mut_ptr().cast(), from.address, from.bytes, self.handle)
        };
        self.device.check("copying to the host", code)
    }

    /// Copies to a slice and waits for it.
    ///
    /// # Errors
    /// The driver's.
    pub fn download(&self, to: &mut [u8], from: Span) -> Result<(), CudaError> {
        let from = from.part(0, to.len());
        // SAFETY: both ranges have this length, and the wait below ends before the borrow does.
        let code = unsafe {
            (self.device.symbols().to_host)(to.as_mut_ptr().cast(), from.address, from.bytes, self.handle)
        };
        self.device.check("copying to the host", code)?;
        self.synchronize()
    }

    /// Queues a copy inside the device; the shorter range counts.
    ///
    /// # Errors
    /// The driver's.
    pub fn copy(&self, to: Span, from: Span) -> Result<(), CudaError> {
        let bytes = to.bytes.min(from.bytes);
        // SAFETY: both ranges have at least this length.
        let code = unsafe { (self.device.symbols().copy)(to.address, from.address, bytes, self.handle) };
        self.device.check("copying on the device", code)
    }

    /// Queues a fill.
    ///
    /// # Errors
    /// The driver's.
    pub fn fill(&self, to: Span, byte: u8) -> Result<(), CudaError> {
        // SAFETY: the range is the device's.
        let code =
            unsafe { (self.device.symbols().fill)(to.address, i32::from(byte), to.bytes, self.handle) };
        self.device.check("filling device memory", code)
    }

    /// Records what `work` queues on this stream instead of running it. Copies from and to the host do not belong in
    /// it.
    ///
    /// # Errors
    /// The first of `work`'s or the driver's.
    pub fn capture(&self, work: impl FnOnce() -> Result<(), CudaError>) -> Result<Graph, CudaError> {
        let symbols = self.device.symbols();
        // SAFETY: the stream is alive.
        self.device.check("beginning a capture", unsafe { (symbols.capture_begin)(self.handle) })?;
        let worked = work();
        let mut handle = null_mut();
        // SAFETY: the stream is capturing; `handle` is writable for the call.
        let code = unsafe { (symbols.capture_end)(self.handle, &raw mut handle) };
        // A graph that was made although the work failed is dropped again here.
        let graph = (!handle.is_null()).then(|| Graph { device: self.device.clone(), handle });
        worked?;
        self.device.check("ending a capture", code)?;
        graph
            .ok_or_else(|| CudaError { operation: "ending a capture", message: "no graph came of it".into() })
    }

    /// Queues a captured graph.
    ///
    /// # Errors
    /// The driver's.
    pub fn replay(&self, graph: &Graph) -> Result<(), CudaError> {
        // SAFETY: both are alive; the memory that the graph names lives as long as the device.
        self.device.check("replaying a graph", unsafe {
            (self.device.symbols().graph_launch)(graph.handle, self.handle)
        })
    }

    /// Queues `event`.
    ///
    /// # Errors
    /// The driver's.
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both are alive.
        self.device.check("recording an event", unsafe {
            (self.device.symbols().event_record)(event.handle, self.handle)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: alive until here; the driver lets queued work finish. A borrowed one is left alone.
        unsafe { (self.device.symbols().stream_destroy)(self.handle) };
    }
}

/// A mark in a stream.
pub struct Event {
    device: Device,
    handle: *mut c_void,
}

// SAFETY: as for `Stream`.
unsafe impl Send for Event {}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").finish_non_exhaustive()
    }
}

impl Event {
    /// Whether everything before the event's last record has run. An event that was never recorded has passed.
    ///
    /// # Errors
    /// What an operation before it, or the driver, reports.
    pub fn passed(&self) -> Result<bool, CudaError> {
        let mut done = 0;
        // SAFETY: the event is alive and `done` writable for the call.
        let code = unsafe { (self.device.symbols().event_query)(self.handle, &raw mut done) };
        self.device.check("waiting for the device", code)?;
        Ok(done != 0)
    }

    /// Milliseconds on the device from this event to `end`; both timed and passed.
    ///
    /// # Errors
    /// The driver's.
    pub fn elapsed_ms(&self, end: &Event) -> Result<f32, CudaError> {
        let mut ms = 0.0;
        // SAFETY: both events are alive and `ms` writable for the call.
        let code = unsafe { (self.device.symbols().event_elapsed_ms)(self.handle, end.handle, &raw mut ms) };
        self.device.check("reading an event's time", code)?;
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: alive until here.
        unsafe { (self.device.symbols().event_destroy)(self.handle) };
    }
}

/// Captured work.
pub struct Graph {
    device: Device,
    handle: *mut c_void,
}

// SAFETY: as for `Stream`.
unsafe impl Send for Graph {}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").finish_non_exhaustive()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: alive until here.
        unsafe { (self.device.symbols().graph_destroy)(self.handle) };
    }
}
