//! Why no device was opened, each with what helps: the sentences that the engine ends with and `pinion doctor` prints.

use super::driver::DriverFacts;
use std::fmt;
use std::path::Path;

/// The CUDA that the object's runtime is of, as drivers number it, and the first driver for that.
const CUDA_VERSION: u32 = 13_000;
const DRIVER: &str = "580";
/// The oldest of CUDA_TARGETS in deploy/cuda.sh: 10 * major + minor.
const CAPABILITY_MIN: u32 = 80;

/// Something that a GPU needs and that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What is missing.
    pub reason: String,
    /// What to do: a clause in the imperative.
    pub remedy: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.remedy)
    }
}

impl Refusal {
    fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Refusal {
        Refusal { reason: reason.into(), remedy: remedy.into() }
    }

    pub(super) fn no_object(path: &Path) -> Refusal {
        let remedy = "build it with deploy/cuda.sh, or name another with --cuda-object";
        Refusal::new(format!("there is no {}", path.display()), remedy)
    }

    pub(super) fn wrong_object(path: &Path, reason: &str) -> Refusal {
        let remedy = "build it with deploy/cuda.sh of this version, or name another with --cuda-object";
        Refusal::new(format!("{} cannot be used: {reason}", path.display()), remedy)
    }

    pub(super) fn no_driver(reason: &str) -> Refusal {
        let remedy = format!(
            "install NVIDIA driver {DRIVER} or newer; in a container start it with the NVIDIA runtime (docker --gpus all)"
        );
        Refusal::new(format!("no NVIDIA driver is here ({reason})"), remedy)
    }

    pub(super) fn driver_fails(reason: &str) -> Refusal {
        let remedy = "look at nvidia-smi and dmesg; in a container give it the GPU (docker --gpus all)";
        Refusal::new(format!("the NVIDIA driver fails: {reason}"), remedy)
    }

    /// What is wrong with a driver that answers, if anything is.
    pub fn of_driver(facts: &DriverFacts) -> Option<Refusal> {
        let (version, devices) = (facts.cuda_version, facts.devices.len());
        if version < CUDA_VERSION {
            let reason = format!(
                "the NVIDIA driver runs CUDA {}.{}, and the object needs CUDA 13",
                version / 1000,
                version % 1000 / 10
            );
            return Some(Refusal::new(reason, format!("update the driver to {DRIVER} or newer")));
        }
        let remedy = "give this machine or container a GPU (CUDA_VISIBLE_DEVICES, docker --gpus)";
        (devices == 0).then(|| Refusal::new("the NVIDIA driver has no device", remedy))
    }

    pub(super) fn no_such_device(index: u32) -> Refusal {
        Refusal::new(format!("there is no device {index}"), "see nvidia-smi and CUDA_VISIBLE_DEVICES")
    }

    /// The object is ours and did not open the device: `driver` knows why, or else the object's own `text` says it.
    pub(super) fn of_device(driver: Result<DriverFacts, Refusal>, text: &str) -> Refusal {
        match driver {
            Err(refusal) => refusal,
            Ok(facts) => Refusal::of_driver(&facts).unwrap_or_else(|| {
                let remedy = "ask nvidia-smi whether the device is free and healthy";
                Refusal::new(format!("the device does not open: {text}"), remedy)
            }),
        }
    }

    /// What is wrong with a device that opens, if anything is.
    pub(super) fn of_capability(name: &str, capability: u32) -> Option<Refusal> {
        let shown = |number: u32| format!("{}.{}", number / 10, number % 10);
        (capability < CAPABILITY_MIN).then(|| {
            let reason = format!(
                "{name} has compute capability {}, and the object has no code for it",
                shown(capability)
            );
            Refusal::new(reason, format!("take a GPU of {} or newer", shown(CAPABILITY_MIN)))
        })
    }

    pub(super) fn no_products(reason: &str) -> Refusal {
        let remedy = "deploy/launch.sh --device cuda sets it up; elsewhere install it (pip install nvidia-cublas, or the \
                      CUDA toolkit) and name its folder in LD_LIBRARY_PATH";
        Refusal::new(format!("libcublasLt.so.13 does not open: {reason}"), remedy)
    }

    pub(super) fn no_memory(wanted: u64, free: u64) -> Refusal {
        let (wanted, free) = (wanted.div_ceil(1 << 20), free >> 20);
        let remedy = "take a smaller --kv-cache-memory-share, --kv-cache-bytes, --max-num-batched-tokens or model, or \
                      end other programs on the device (nvidia-smi)";
        let reason = format!("the device has {free} MiB free and cannot give {wanted} MiB in one piece");
        Refusal::new(reason, remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DriverDevice;

    fn facts(cuda_version: u32, devices: usize) -> DriverFacts {
        let device = DriverDevice { name: "T".into(), capability: 90, memory_bytes: 1 };
        DriverFacts { cuda_version, devices: vec![device; devices] }
    }

    #[test]
    fn each_missing_thing_has_one_sentence() {
        for (driver, says) in [
            (
                Err(Refusal::no_driver("libcuda.so.1: no such file")),
                "no NVIDIA driver is here (libcuda.so.1: no such file): install",
            ),
            (
                Err(Refusal::driver_fails("cuInit answers 999")),
                "the NVIDIA driver fails: cuInit answers 999: look",
            ),
            (
                Ok(facts(12_080, 1)),
                "the NVIDIA driver runs CUDA 12.8, and the object needs CUDA 13: update the driver to 580",
            ),
            (Ok(facts(13_000, 0)), "the NVIDIA driver has no device: give"),
            (Ok(facts(13_010, 1)), "the device does not open: out of order: ask nvidia-smi"),
        ] {
            let said = Refusal::of_device(driver, "out of order").to_string();
            assert!(said.starts_with(says), "{said}");
        }
        let old = Refusal::of_capability("Tesla T4", 75).expect("75 is below 80").to_string();
        assert!(old.starts_with("Tesla T4 has compute capability 7.5, and the object has no code for it"));
        assert_eq!(Refusal::of_capability("A100", 80), None);
        let memory = Refusal::no_memory(3 << 30, 1 << 30).to_string();
        let says = "the device has 1024 MiB free and cannot give 3072 MiB in one piece: take";
        assert!(memory.starts_with(says), "{memory}");
    }
}
