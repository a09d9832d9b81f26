//! What `pinion doctor` wants to know of a GPU: every layer by itself, up to the first one that is missing.

use super::PRODUCT_WORKSPACE_BYTES;
use pinion_cuda::{Device, DeviceFacts, DriverFacts, Refusal, driver};
use std::path::Path;

/// What was found, each with the reason if it was not.
#[derive(Debug, Clone)]
pub struct CudaProbe {
    /// The driver by itself.
    pub driver: Result<DriverFacts, Refusal>,
    /// Our object, and device 0 through it.
    pub device: Result<DeviceFacts, Refusal>,
    /// cuBLASLt; asked for only where there is a device.
    pub products: Option<Result<(), Refusal>>,
}

/// Asks the driver, then opens `object`, the device and cuBLASLt (`products`) as the engine does.
pub fn probe(object: &Path, products: Option<&Path>) -> CudaProbe {
    let driver = driver().and_then(|facts| match Refusal::of_driver(&facts) {
        Some(refusal) => Err(refusal),
        None => Ok(facts),
    });
    match Device::look(object, 0) {
        Err(refusal) => CudaProbe { driver, device: Err(refusal), products: None },
        Ok(device) => {
            let products = device.look_for_products(products, PRODUCT_WORKSPACE_BYTES);
            CudaProbe { driver, device: Ok(device.facts().clone()), products: Some(products) }
        }
    }
}
