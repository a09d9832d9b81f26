//! What the driver says for itself, before our object or the CUDA runtime are asked: `pinion doctor` tells a machine
//! without a driver from one whose driver is too old or refuses.

use super::refusal::Refusal;
use super::symbols::loader_message;
use std::ffi::{CStr, c_char, c_void};

/// The driver's library; the version in its name has never changed.
const LIBRARY: &CStr = c"libcuda.so.1";
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR` of cuda.h.
const CAPABILITY_MAJOR: i32 = 75;
const CAPABILITY_MINOR: i32 = 76;
/// Devices that are asked for more than their number.
const DEVICES_MAX: i32 = 64;

/// The driver, and the devices that it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverFacts {
    /// The newest CUDA that it runs: 1000 * major + 10 * minor.
    pub cuda_version: u32,
    /// Its devices, by number.
    pub devices: Vec<DriverDevice>,
}

/// A device as the driver has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverDevice {
    /// The vendor's name for it.
    pub name: String,
    /// Compute capability, 10 * major + minor.
    pub capability: u32,
    /// Its memory.
    pub memory_bytes: u64,
}

/// The functions of cuda.h that are needed.
struct Driver {
    init: unsafe extern "C" fn(u32) -> i32,
    version: unsafe extern "C" fn(*mut i32) -> i32,
    count: unsafe extern "C" fn(*mut i32) -> i32,
    device: unsafe extern "C" fn(*mut i32, i32) -> i32,
    name: unsafe extern "C" fn(*mut c_char, i32, i32) -> i32,
    memory: unsafe extern "C" fn(*mut usize, i32) -> i32,
    attribute: unsafe extern "C" fn(*mut i32, i32, i32) -> i32,
    error: unsafe extern "C" fn(i32, *mut *const c_char) -> i32,
}

/// Loads the driver's library and asks it.
///
/// # Errors
/// It is not there or refuses: its own words, and what helps.
pub fn driver() -> Result<DriverFacts, Refusal> {
    let driver = Driver::load().map_err(|reason| Refusal::no_driver(&reason))?;
    driver.facts().map_err(|reason| Refusal::driver_fails(&reason))
}

impl Driver {
    fn facts(&self) -> Result<DriverFacts, String> {
        // SAFETY: the flags must be 0.
        self.check("cuInit", unsafe { (self.init)(0) })?;
        let (mut version, mut count) = (0, 0);
        // SAFETY: both are writable for the calls.
        self.check("cuDriverGetVersion", unsafe { (self.version)(&raw mut version) })?;
        // SAFETY: as above.
        self.check("cuDeviceGetCount", unsafe { (self.count)(&raw mut count) })?;
        let devices: Result<_, String> =
            (0..count.clamp(0, DEVICES_MAX)).map(|index| self.device_facts(index)).collect();
        Ok(DriverFacts { cuda_version: version.unsigned_abs(), devices: devices? })
    }
    fn load() -> Result<Driver, String> {
        // SAFETY: a NUL-terminated name. The library's initialisers are the driver's.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(loader_message());
        }
        // SAFETY: the handle is good, and cuda.h gives the functions of these names these types.
        unsafe {
            Ok(Driver {
                init: find(library, c"cuInit")?,
                version: find(library, c"cuDriverGetVersion")?,
                count: find(library, c"cuDeviceGetCount")?,
                device: find(library, c"cuDeviceGet")?,
                name: find(library, c"cuDeviceGetName")?,
                memory: find(library, c"cuDeviceTotalMem_v2")?,
                attribute: find(library, c"cuDeviceGetAttribute")?,
                error: find(library, c"cuGetErrorString")?,
            })
        }
    }

    fn device_facts(&self, index: i32) -> Result<DriverDevice, String> {
        let (mut device, mut memory_bytes, mut major, mut minor) = (0, 0_usize, 0, 0);
        let mut name = [0 as c_char; 128];
        // SAFETY: every pointer is writable for its call; the driver writes at most `name.len()` bytes.
        unsafe {
            self.check("cuDeviceGet", (self.device)(&raw mut device, index))?;
            let length = name.len() as i32 - 1;
            self.check("cuDeviceGetName", (self.name)(name.as_mut_ptr(), length, device))?;
            self.check("cuDeviceTotalMem", (self.memory)(&raw mut memory_bytes, device))?;
            for (value, what) in [(&raw mut major, CAPABILITY_MAJOR), (&raw mut minor, CAPABILITY_MINOR)] {
                self.check("cuDeviceGetAttribute", (self.attribute)(value, what, device))?;
            }
        }
        // SAFETY: the last byte was left as it was, zero.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let capability = (10 * major + minor).unsigned_abs();
        Ok(DriverDevice { name, capability, memory_bytes: memory_bytes as u64 })
    }

    fn check(&self, call: &str, code: i32) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let mut text = std::ptr::null();
        // SAFETY: `text` is writable for the call.
        let known = unsafe { (self.error)(code, &raw mut text) } == 0 && !text.is_null();
        // SAFETY: the driver's texts are static and NUL-terminated.
        let text = known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
        Err(format!("{call} answers {code}, {}", text.as_deref().unwrap_or("which it has no text for")))
    }
}

/// The function of this name.
///
/// # Safety
/// `library` must be a handle of `dlopen`, and `F` the function's type: one pointer wide.
unsafe fn find<F>(library: *mut c_void, name: &CStr) -> Result<F, String> {
    // SAFETY: a valid handle and a NUL-terminated name.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        return Err(format!("{} has no {}", LIBRARY.to_string_lossy(), name.to_string_lossy()));
    }
    // SAFETY: the caller gives the right type.
    Ok(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
}
