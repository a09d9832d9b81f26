//! Named ranges for NVIDIA's tools, by run-time switch and without a build dependency.
//!
//! NVTX version 3 has no library: a program carries a table of functions, and a tool that wants to listen puts its own
//! into it. The tool's library is named by `NVTX_INJECTION64_PATH`, which `nsys profile` sets for what it starts; its
//! `InitializeInjectionNvtx2` asks for our table of push and pop and fills it. Without that variable the older
//! `libnvToolsExt.so.1` is tried, which has the two functions by name and does the same inside.
//!
//! A library that is opened stays open: a tool may keep threads in it.

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;
use std::sync::OnceLock;

type PushRange = unsafe extern "C" fn(*const c_char) -> c_int;
type PopRange = unsafe extern "C" fn() -> c_int;
type Mark = unsafe extern "C" fn(*const c_char);
type GetExportTable = unsafe extern "C" fn(u32) -> *const c_void;
type Initialize = unsafe extern "C" fn(GetExportTable) -> c_int;

/// The version of NVTX whose tables these are.
const VERSION: u32 = 3;
const CALLBACKS_TABLE: u32 = 1;
const VERSION_TABLE: u32 = 3;
const CORE_MODULE: c_uint = 1;
const MARK: usize = 2;
const PUSH_RANGE: usize = 9;
const POP_RANGE: usize = 11;
/// Functions of the core module, a place for "none" included.
const CORE_FUNCTIONS: usize = 16;
/// The library of version 2, and of the compatibility package of version 3.
const OLD_LIBRARY: &CStr = c"libnvToolsExt.so.1";

#[repr(C)]
struct CallbacksTable {
    struct_size: usize,
    get_module_function_table: unsafe extern "C" fn(c_uint, *mut *mut *mut *mut c_void, *mut c_uint) -> c_int,
}

#[repr(C)]
struct VersionTable {
    struct_size: usize,
    version: u32,
    reserved: u32,
    set_injection_version: unsafe extern "C" fn(u32),
}

/// The functions that a tool has put in, and the table of where to put them.
struct Core {
    functions: UnsafeCell<[*mut c_void; CORE_FUNCTIONS]>,
    places: UnsafeCell<[*mut *mut c_void; CORE_FUNCTIONS]>,
}

// SAFETY: both are written by one thread only, inside the `OnceLock` of `Nvtx::open`, which is also the only reader.
unsafe impl Sync for Core {}

static CORE: Core = Core {
    functions: UnsafeCell::new([null_mut(); CORE_FUNCTIONS]),
    places: UnsafeCell::new([null_mut(); CORE_FUNCTIONS]),
};
static CALLBACKS: CallbacksTable =
    CallbacksTable { struct_size: size_of::<CallbacksTable>(), get_module_function_table: core_functions };
static VERSIONS: VersionTable = VersionTable {
    struct_size: size_of::<VersionTable>(),
    version: VERSION,
    reserved: 0,
    set_injection_version: ignore_version,
};

unsafe extern "C" fn ignore_version(_version: u32) {}

unsafe extern "C" fn core_functions(
    module: c_uint,
    out_table: *mut *mut *mut *mut c_void,
    out_count: *mut c_uint,
) -> c_int {
    if module != CORE_MODULE || out_table.is_null() {
        return 0;
    }
    // SAFETY: the tool gives places of its own for the answers (checked above and below); the table lives for ever.
    unsafe {
        *out_table = CORE.places.get().cast();
        if !out_count.is_null() {
            *out_count = CORE_FUNCTIONS as c_uint;
        }
    }
    1
}

unsafe extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        CALLBACKS_TABLE => (&raw const CALLBACKS).cast(),
        VERSION_TABLE => (&raw const VERSIONS).cast(),
        _ => std::ptr::null(),
    }
}

/// A tool that listens.
#[derive(Clone, Copy, Debug)]
pub struct Nvtx {
    push: PushRange,
    pop: PopRange,
    /// A tool may do without.
    mark: Option<Mark>,
}

impl Nvtx {
    /// Connects to the tool whose library is `injection`, else to `libnvToolsExt.so.1`. The first call decides for the
    /// process. Errors: one line that says which library could not be used and why.
    pub fn open(injection: Option<&OsStr>) -> Result<Nvtx, String> {
        static OPENED: OnceLock<Result<Nvtx, String>> = OnceLock::new();
        OPENED.get_or_init(|| injection.map_or_else(by_name, injected)).clone()
    }

    /// Begins a range on this thread.
    pub fn push(&self, name: &CStr) {
        // SAFETY: the function has NVTX's signature for this place of the table; the name ends with a zero.
        unsafe { (self.push)(name.as_ptr()) };
    }

    /// Ends this thread's innermost range.
    pub fn pop(&self) {
        // SAFETY: as above.
        unsafe { (self.pop)() };
    }

    /// Marks this moment, if the tool takes marks.
    pub fn mark(&self, text: &CStr) {
        if let Some(mark) = self.mark {
            // SAFETY: as above.
            unsafe { mark(text.as_ptr()) };
        }
    }
}

fn library(path: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the path ends with a zero; loading runs the library's own start, which is what the operator asked for.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() { Err(format!("{} cannot be loaded", path.to_string_lossy())) } else { Ok(handle) }
}

fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the handle came from dlopen and is never closed.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() { Err(format!("it has no {}", name.to_string_lossy())) } else { Ok(found) }
}

fn by_name() -> Result<Nvtx, String> {
    let library = library(OLD_LIBRARY)
        .map_err(|error| format!("{error}, and no tool has set NVTX_INJECTION64_PATH"))?;
    let (push, pop) = (symbol(library, c"nvtxRangePushA")?, symbol(library, c"nvtxRangePop")?);
    let mark = symbol(library, c"nvtxMarkA").ok();
    // SAFETY: NVTX's documented functions of these names have these signatures.
    Ok(unsafe {
        Nvtx {
            push: std::mem::transmute::<*mut c_void, PushRange>(push),
            pop: std::mem::transmute::<*mut c_void, PopRange>(pop),
            mark: mark.map(|mark| std::mem::transmute::<*mut c_void, Mark>(mark)),
        }
    })
}

fn injected(path: &OsStr) -> Result<Nvtx, String> {
    let shown = path.to_string_lossy();
    let path = CString::new(path.as_bytes()).map_err(|_| format!("{shown:?} is no path"))?;
    let library = library(&path)?;
    let initialize =
        symbol(library, c"InitializeInjectionNvtx2").map_err(|error| format!("{shown}: {error}"))?;
    // SAFETY: only this call, under the `OnceLock` of `open`, touches the cells; places point at functions, both
    // static. The symbol has the documented signature; it writes through the places while it runs.
    let (connected, push, pop, mark) = unsafe {
        let functions = CORE.functions.get();
        for index in 0..CORE_FUNCTIONS {
            (*CORE.places.get())[index] = (&raw mut (*functions)[index]).cast();
        }
        let initialize = std::mem::transmute::<*mut c_void, Initialize>(initialize);
        (initialize(export_table), (*functions)[PUSH_RANGE], (*functions)[POP_RANGE], (*functions)[MARK])
    };
    if connected == 0 || push.is_null() || pop.is_null() {
        return Err(format!("{shown} does not want push and pop"));
    }
    // SAFETY: the tool has put functions of NVTX's signatures into these places.
    Ok(unsafe {
        Nvtx {
            push: std::mem::transmute::<*mut c_void, PushRange>(push),
            pop: std::mem::transmute::<*mut c_void, PopRange>(pop),
            mark: (!mark.is_null()).then(|| std::mem::transmute::<*mut c_void, Mark>(mark)),
        }
    })
}
