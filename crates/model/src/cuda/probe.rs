//! What `pinion doctor` wants to know of a GPU: every layer by itself, up to the first one that is missing.

use super::PRODUCT_WORKSPACE_BYTES;
use pinion_cuda::{Device, DeviceFacts, DriverFacts, driver};
use std::path::Path;

/// What was found, each with the reason if it was not.
#[derive(Debug, Clone)]
pub struct CudaProbe {
    /// The driver by itself.
    pub driver: Result<DriverFacts, String>,
    /// Our object, and device 0 through it.
    pub device: Result<DeviceFacts, String>,
    /// cuBLASLt; asked for only where there is a device.
    pub products: Option<Result<(), String>>,
}

/// Asks the driver, then opens `object`, the device and cuBLASLt as the engine does.
pub fn probe(object: &Path) -> CudaProbe {
    let driver = driver();
    match Device::open(object, 0) {
        Err(error) => CudaProbe { driver, device: Err(error.message), products: None },
        Ok(device) => {
            let products = device.open_products(None, PRODUCT_WORKSPACE_BYTES).map_err(|error| error.message);
            CudaProbe { driver, device: Ok(device.facts().clone()), products: Some(products) }
        }
    }
}
