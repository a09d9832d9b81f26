//! The functions of the shared object, found by name once.

use super::kernels::raw;
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What [`Symbols::open`] expects `pinion_cuda_abi` to say.
const ABI: i32 = 9;

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawFacts {
    pub(super) name: [c_char; 128],
    pub(super) memory_bytes: u64,
    pub(super) free_bytes: u64,
    pub(super) multiprocessors: u32,
    pub(super) capability: u32,
    pub(super) cooperative: u32,
    pub(super) emulated: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct RawCounts {
    pub(super) launches: u64,
    pub(super) captures: u64,
    pub(super) replays: u64,
    pub(super) to_device_bytes: u64,
    pub(super) to_host_bytes: u64,
    pub(super) allocated_bytes: u64,
    pub(super) free_bytes: u64,
}

type Launch<T> = unsafe extern "C" fn(*const T, *mut c_void) -> i32;

macro_rules! symbols {
    ($($field:ident = $name:literal: $kind:ty),* $(,)?) => {
        /// One field for each function of pinion_cuda.h.
        #[derive(Clone, Copy)]
        pub(super) struct Symbols { $(pub(super) $field: $kind),* }

        impl Symbols {
            /// # Safety
            /// `object` must be a handle of `dlopen` to an object that implements pinion_cuda.h.
            unsafe fn find(object: *mut c_void) -> Result<Symbols, String> {
                Ok(Symbols { $($field: {
                    // SAFETY: a valid handle and a NUL-terminated name.
                    let found = unsafe { libc::dlsym(object, concat!($name, "\0").as_ptr().cast()) };
                    if found.is_null() {
                        return Err(concat!("it has no ", $name).to_owned());
                    }
                    // SAFETY: the header gives the function of this name this type; both are one pointer wide.
                    unsafe { std::mem::transmute_copy::<*mut c_void, $kind>(&found) }
                }),* })
            }
        }
    };
}

symbols! {
    abi = "pinion_cuda_abi": unsafe extern "C" fn() -> i32,
    error_text = "pinion_cuda_error_text": unsafe extern "C" fn(i32) -> *const c_char,
    open = "pinion_cuda_open": unsafe extern "C" fn(i32, *mut RawFacts) -> i32,
    counts = "pinion_cuda_counts": unsafe extern "C" fn(*mut RawCounts),
    alloc = "pinion_cuda_alloc": unsafe extern "C" fn(u64, *mut u64) -> i32,
    free = "pinion_cuda_free": unsafe extern "C" fn(u64) -> i32,
    pinned_alloc = "pinion_cuda_pinned_alloc": unsafe extern "C" fn(u64, *mut *mut c_void) -> i32,
    pinned_free = "pinion_cuda_pinned_free": unsafe extern "C" fn(*mut c_void) -> i32,
    stream_create = "pinion_cuda_stream_create": unsafe extern "C" fn(*mut *mut c_void, i32) -> i32,
    stream_borrow = "pinion_cuda_stream_borrow": unsafe extern "C" fn(u64, *mut *mut c_void) -> i32,
    stream_destroy = "pinion_cuda_stream_destroy": unsafe extern "C" fn(*mut c_void) -> i32,
    stream_synchronize = "pinion_cuda_stream_synchronize": unsafe extern "C" fn(*mut c_void) -> i32,
    event_create = "pinion_cuda_event_create": unsafe extern "C" fn(*mut *mut c_void, i32) -> i32,
    event_destroy = "pinion_cuda_event_destroy": unsafe extern "C" fn(*mut c_void) -> i32,
    event_record = "pinion_cuda_event_record": unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32,
    event_query = "pinion_cuda_event_query": unsafe extern "C" fn(*mut c_void, *mut i32) -> i32,
    event_elapsed_ms = "pinion_cuda_event_elapsed_ms": unsafe extern "C" fn(*mut c_void, *mut c_void, *mut f32) -> i32,
    to_device = "pinion_cuda_to_device": unsafe extern "C" fn(u64, *const c_void, u64, *mut c_void) -> i32,
    to_host = "pinion_cuda_to_host": unsafe extern "C" fn(*mut c_void, u64, u64, *mut c_void) -> i32,
    copy = "pinion_cuda_copy": unsafe extern "C" fn(u64, u64, u64, *mut c_void) -> i32,
    fill = "pinion_cuda_fill": unsafe extern "C" fn(u64, i32, u64, *mut c_void) -> i32,
    capture_begin = "pinion_cuda_capture_begin": unsafe extern "C" fn(*mut c_void) -> i32,
    capture_end = "pinion_cuda_capture_end": unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> i32,
    graph_launch = "pinion_cuda_graph_launch": unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32,
    graph_destroy = "pinion_cuda_graph_destroy": unsafe extern "C" fn(*mut c_void) -> i32,
    products_open = "pinion_cuda_products_open": unsafe extern "C" fn(*const c_char, u64) -> i32,
    product = "pinion_cuda_product": Launch<raw::Product>,
    norm = "pinion_cuda_norm": Launch<raw::Norm>,
    bias_activation = "pinion_cuda_bias_activation": Launch<raw::Bias>,
    rms = "pinion_cuda_rms": Launch<raw::Rms>,
    scale = "pinion_cuda_scale": Launch<raw::Scale>,
    gate = "pinion_cuda_gate": Launch<raw::Gate>,
    rope = "pinion_cuda_rope": Launch<raw::Rope>,
    embed = "pinion_cuda_embed": Launch<raw::Embed>,
    gather = "pinion_cuda_gather": Launch<raw::Gather>,
    update_tables = "pinion_cuda_update_tables": Launch<raw::Tables>,
    copy_blocks = "pinion_cuda_copy_blocks": Launch<raw::Blocks>,
    kv_append = "pinion_cuda_kv_append": Launch<raw::Append>,
    attention = "pinion_cuda_attention": Launch<raw::Attention>,
    general_attention = "pinion_cuda_general_attention": Launch<raw::General>,
    prefill_attention = "pinion_cuda_prefill_attention": Launch<raw::Prefill>,
    sample = "pinion_cuda_sample": Launch<raw::Sample>,
    score = "pinion_cuda_score": Launch<raw::Score>,
    decode_plan = "pinion_cuda_decode_plan": unsafe extern "C" fn(*const raw::Decode, *mut raw::DecodePlan) -> i32,
    decode_step = "pinion_cuda_decode_step": Launch<raw::Decode>,
}

/// The last message of the dynamic loader.
pub(super) fn loader_message() -> String {
    // SAFETY: dlerror gives null or a string that is good until the next call on this thread.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "the loader gives no reason".to_owned();
    }
    // SAFETY: not null, NUL-terminated, and copied at once.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

impl Symbols {
    /// Opens the object at `path`. It stays open as long as the process.
    pub(super) fn open(path: &Path) -> Result<Symbols, String> {
        let name =
            CString::new(path.as_os_str().as_bytes()).map_err(|_| "its name holds a NUL".to_owned())?;
        // SAFETY: a NUL-terminated name. The object's initialisers are those of the C++ and CUDA runtimes.
        let object = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if object.is_null() {
            return Err(loader_message());
        }
        // SAFETY: the handle is good; that the object is ours is checked by name and by the number below.
        let symbols = unsafe { Symbols::find(object) }?;
        // SAFETY: no arguments.
        match unsafe { (symbols.abi)() } {
            ABI => Ok(symbols),
            other => Err(format!("it has interface {other}, this program needs {ABI}")),
        }
    }

    /// What a code means.
    pub(super) fn text(&self, code: i32) -> String {
        // SAFETY: gives a static string for every number.
        unsafe { CStr::from_ptr((self.error_text)(code)) }.to_string_lossy().into_owned()
    }
}
