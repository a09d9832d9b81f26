//! The emulated device, built when it is first asked for.

use pinion_cuda::Device;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The object's path. The script locks, and rebuilds only what has changed.
pub(crate) fn object() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/emulation/build.sh");
    let output = Command::new(script).output().expect("the script can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
}

/// The device, with the products that it brings.
pub(crate) fn emulated() -> Device {
    let device = Device::open(&object(), 0).expect("the emulated device opens everywhere");
    device.open_products(None, 1 << 20).expect("they are in the object");
    device
}

/// The device's counts are the process's: a test that looks at them, and whatever may run beside it, holds this.
#[allow(dead_code, reason = "some of the tests that include this look at no counts")]
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
