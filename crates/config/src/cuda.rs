//! The CUDA engine's part of the configuration: whether it is asked for, and where its object is.

use crate::choices::{Backend, Dtype};
use crate::fault::Collector;
use crate::machine::Machine;
use crate::sources::{Settings, Take};
use crate::value::Value;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Why fp16 is for GPUs.
pub(crate) const FP16_REASON: &str =
    "fp16 is not served on the CPU: it computes fp16 up to 33 times slower than bf16; use bf16, fp32 or auto";

/// File names of the object and of cuBLASLt.
const OBJECT: &str = "libpinion_cuda.so";
const CUBLASLT: &str = "libcublasLt.so.13";

/// What the CUDA engine is told; there if the model runs on a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CudaConfig {
    /// The shared object with the kernels.
    pub object: PathBuf,
    /// cuBLASLt, if it is near the object or the program; else the loader looks for it.
    pub products: Option<PathBuf>,
    /// The share of free device memory for the KV cache, if one was asked for; else `kv_blocks` says.
    pub kv_share: Option<f64>,
    /// Replay captured graphs for decode steps.
    pub graphs: bool,
    /// The same for the layers of steps with prompt chunks.
    pub mixed_graphs: bool,
    /// Kernels begin before the ones ahead of them have ended.
    pub dependent_launch: bool,
    /// A layer norm adds the residual sum before it.
    pub fused_norms: bool,
    /// A product adds its bias and applies its activation.
    pub fused_products: bool,
    /// Decode steps of up to eight rows as one kernel.
    pub fused_decode: bool,
    /// Time the library's algorithms for each product and keep the quickest.
    pub gemm_measured: bool,
    /// Penalties, biases and banned ids are the device's.
    pub shaped_on_device: bool,
    /// Logprobs are the device's.
    pub scored_on_device: bool,
    /// Masks of grammars are the device's.
    pub masked_on_device: bool,
    /// The GPU was chosen because it is here: where it cannot serve the model, the CPU does. Older recordings do not
    /// say it.
    #[serde(default)]
    pub may_fall_back: bool,
    /// What of the model the object does not take, where `--backend auto` has libtorch's operators compute it for that.
    #[serde(default)]
    pub beyond_object: Option<String>,
}

impl CudaConfig {
    /// Whether the model runs on a GPU, and how; `backend` is the one that would compute it there.
    pub(crate) fn resolve(
        settings: &Settings,
        machine: &Machine,
        backend: Backend,
        faults: &mut Collector,
    ) -> Option<CudaConfig> {
        let object = settings.text("cuda-object").map_or_else(default_object, PathBuf::from);
        match settings.text("device") {
            Some("cuda") if backend == Backend::Fake => {
                faults.add(&settings.origin("device"), "the fake backend runs on the CPU");
                return None;
            }
            Some("cuda") => {}
            // Whether libtorch has CUDA, the engine's probe tells.
            Some("auto") if machine.has_nvidia_gpu && !is_quantised(settings) => match backend {
                Backend::Native if object.is_file() => {}
                Backend::Operators => {}
                Backend::Native | Backend::Fake => return None,
            },
            _ => return None,
        }
        let take = Take(settings);
        let share = match settings.get("kv-cache-memory-share").map(|setting| &setting.value) {
            Some(Value::Share(share)) if settings.is_set("kv-cache-memory-share") => Some(*share),
            _ => None,
        };
        Some(CudaConfig {
            products: cublaslt_near(&object),
            object,
            kv_share: share,
            graphs: settings.switch("cuda-graphs").unwrap_or(true),
            mixed_graphs: settings.switch("cuda-mixed-graphs").unwrap_or(false),
            dependent_launch: settings.switch("cuda-dependent-launch").unwrap_or(false),
            fused_norms: settings.switch("cuda-fused-norms").unwrap_or(true),
            fused_products: settings.switch("cuda-fused-products").unwrap_or(true),
            fused_decode: take.is("decode", "fused"),
            shaped_on_device: settings.switch("cuda-shaping").unwrap_or(true),
            scored_on_device: settings.switch("cuda-logprobs").unwrap_or(true),
            masked_on_device: settings.switch("cuda-masks").unwrap_or(true),
            gemm_measured: !take.is("cuda-gemm", "heuristic"),
            may_fall_back: take.is("device", "auto"),
            beyond_object: None,
        })
    }

    /// The type to compute in: `own`, the model's, unless another is asked for.
    pub(crate) fn dtype(settings: &Settings, own: Dtype) -> Dtype {
        match settings.text("dtype") {
            Some("fp32") => Dtype::Fp32,
            Some("bf16") => Dtype::Bf16,
            Some("fp16") => Dtype::Fp16,
            _ => own,
        }
    }
}

/// Whether weights, or K and V, shall be integers, which the CPU engine alone has.
fn is_quantised(settings: &Settings) -> bool {
    matches!(settings.text("quantization"), Some("int8" | "int4"))
        || settings.text("kv-dtype") == Some("int8")
}

/// cuBLASLt in a folder `lib` beside the object or the program, or where `deploy/cuda.sh --serve` puts it.
pub fn cublaslt_near(object: &Path) -> Option<PathBuf> {
    let program = std::env::current_exe().unwrap_or_default();
    let folders =
        [object.parent()?.join("lib"), program.parent()?.join("lib"), program.parent()?.join("../cuda/lib")];
    folders.map(|folder| folder.join(CUBLASLT)).into_iter().find(|file| file.is_file())
}

/// Beside the program, or where `deploy/cuda.sh` puts it beside `target/<profile>`. The first place is named if it is
/// in neither.
pub(crate) fn default_object() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(OBJECT), folder.join("../cuda").join(OBJECT)];
    let found = places.iter().find(|place| place.is_file());
    found.unwrap_or(&places[0]).clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Origin;

    #[test]
    fn cublaslt_is_found_beside_the_object() {
        let folder = std::env::temp_dir().join(format!("pinion-cublaslt-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("lib")).unwrap();
        let object = folder.join(OBJECT);
        assert_eq!(cublaslt_near(&object), None);
        let file = folder.join("lib").join(CUBLASLT);
        std::fs::write(&file, "").unwrap();
        assert_eq!(cublaslt_near(&object), Some(file));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn auto_takes_a_gpu_that_is_there_and_serves_integers_on_the_cpu() {
        let object = std::env::current_exe().unwrap().display().to_string();
        let no_object = "/no/such/object".to_owned();
        for (words, object, backend, has_gpu, on_gpu) in [
            (&[("device", "auto")][..], &object, Backend::Native, true, true),
            (&[][..], &object, Backend::Native, true, true),
            (&[][..], &no_object, Backend::Native, true, false),
            (&[][..], &no_object, Backend::Operators, true, true),
            (&[][..], &object, Backend::Native, false, false),
            (&[][..], &object, Backend::Operators, false, false),
            (&[][..], &object, Backend::Fake, true, false),
            (&[("device", "cpu")][..], &object, Backend::Operators, true, false),
            (&[("device", "cuda")][..], &object, Backend::Native, false, true),
            (&[("device", "cuda")][..], &no_object, Backend::Operators, false, true),
            (&[("quantization", "int8")][..], &object, Backend::Native, true, false),
            (&[("kv-dtype", "int8")][..], &object, Backend::Native, true, false),
        ] {
            let mut settings = Settings::defaults();
            settings.set("cuda-object", Value::Text(object.clone()), Origin::Default);
            for &(name, word) in words {
                settings.set(name, Value::Word(word), Origin::Default);
            }
            let machine = Machine { has_nvidia_gpu: has_gpu, ..Machine::uniform(2, 1) };
            let mut faults = Collector::default();
            let config = CudaConfig::resolve(&settings, &machine, backend, &mut faults);
            assert_eq!(config.is_some(), on_gpu, "{words:?} {backend:?} {has_gpu}");
            let may_fall_back = on_gpu && words != [("device", "cuda")];
            assert_eq!(config.is_some_and(|config| config.may_fall_back), may_fall_back, "{words:?}");
        }
    }
}
