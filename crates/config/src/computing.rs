//! What computes a model, where, and in which type.

use crate::choices::{Backend, Dtype, KvDtype, PrefillAttention, Quantization};
use crate::cuda::{CudaConfig, FP16_REASON};
use crate::fault::Collector;
use crate::machine::Machine;
use crate::model_facts::ModelFacts;
use crate::model_folder::Folder;
use crate::sources::Settings;
use crate::torch_kernels::{Served, TorchKernels};
use pinion_architecture::beyond_cuda_object;

/// What was decided.
pub(crate) struct Computing {
    pub(crate) backend: Backend,
    pub(crate) cuda: Option<CudaConfig>,
    pub(crate) dtype: Dtype,
    pub(crate) quantization: Quantization,
    pub(crate) kv_dtype: KvDtype,
    pub(crate) prefill_attention: PrefillAttention,
    pub(crate) torch_kernels: TorchKernels,
}

impl Computing {
    /// The backend, if it is the CPU that computes.
    pub(crate) fn on_cpu(settings: &Settings) -> Backend {
        Backend::of(settings.text("backend")).unwrap_or(Backend::Native)
    }

    /// Without a folder only what does not need it is decided. `--backend auto` takes libtorch's operators on a GPU for
    /// what the CUDA object does not take, and Pinion's own kernels for everything else.
    pub(crate) fn of(
        settings: &Settings,
        machine: &Machine,
        folder: Option<&Folder>,
        faults: &mut Collector,
    ) -> Computing {
        let named = Backend::of(settings.text("backend"));
        let own = folder.map_or(Dtype::Fp16, |folder| folder.gpu_dtype);
        let element_bytes = CudaConfig::dtype(settings, own).bytes();
        let beyond_object = folder
            .and_then(|folder| beyond_cuda_object(folder.architecture.as_ref()?, element_bytes))
            .filter(|_| named.is_none());
        let of_gpu = match &beyond_object {
            Some(_) => Backend::Operators,
            None => Computing::on_cpu(settings),
        };
        let cuda = CudaConfig::resolve(settings, machine, of_gpu, faults)
            .map(|cuda| CudaConfig { beyond_object, ..cuda });
        let on_gpu = cuda.is_some();
        let backend = if on_gpu { of_gpu } else { Computing::on_cpu(settings) };
        let dtype = dtype(settings, machine, backend, on_gpu.then_some(own), faults);
        let prefill_attention = prefill_attention(settings, backend, faults);
        let served = Served {
            backend,
            cuda: cuda.as_ref(),
            architecture: folder.and_then(|folder| folder.architecture.as_ref()),
            element_bytes: dtype.bytes(),
            prefill: prefill_attention,
        };
        Computing {
            backend,
            torch_kernels: TorchKernels::resolve(settings, &served, faults),
            cuda,
            dtype,
            quantization: quantization(settings, backend, on_gpu, faults),
            kv_dtype: kv_dtype(settings, backend, on_gpu, faults),
            prefill_attention,
        }
    }

    /// Whether the CUDA object computes.
    pub(crate) fn has_object(&self) -> bool {
        self.cuda.is_some() && self.backend == Backend::Native
    }

    /// Bytes of keys and values of one token over all layers.
    pub(crate) fn kv_bytes_per_token(&self, model: &ModelFacts) -> u64 {
        model.kv_bytes_per_token(self.dtype, self.kv_dtype)
    }

    /// Whether the KV cache is in the machine's own memory: the fake backend keeps none.
    pub(crate) fn takes_host_memory(&self) -> bool {
        self.cuda.is_none() && self.backend != Backend::Fake
    }
}

fn prefill_attention(settings: &Settings, backend: Backend, faults: &mut Collector) -> PrefillAttention {
    let wanted = PrefillAttention::of(settings.text("prefill-attention"));
    if wanted == PrefillAttention::Sdpa && backend == Backend::Native {
        faults.add(&settings.origin("prefill-attention"), "sdpa is libtorch's: it goes with --backend torch");
    }
    wanted
}

fn dtype(
    settings: &Settings,
    machine: &Machine,
    backend: Backend,
    on_gpu: Option<Dtype>,
    faults: &mut Collector,
) -> Dtype {
    if let Some(own) = on_gpu {
        return CudaConfig::dtype(settings, own);
    }
    match settings.text("dtype") {
        Some("fp32") => Dtype::Fp32,
        Some("fp16") => {
            faults.add(&settings.origin("dtype"), FP16_REASON);
            Dtype::Fp32
        }
        Some("bf16") => {
            if !machine.has_bf16 && backend != Backend::Fake {
                let reason = "this CPU has neither avx512_bf16 nor amx_bf16, so bf16 would be emulated; use fp32 or auto, \
                              which keep the weights of a bf16 checkpoint in bf16";
                faults.add(&settings.origin("dtype"), reason);
            }
            Dtype::Bf16
        }
        _ if machine.prefers_bf16 => Dtype::Bf16,
        _ => Dtype::Fp32,
    }
}

fn quantization(settings: &Settings, backend: Backend, on_gpu: bool, faults: &mut Collector) -> Quantization {
    let quantization = match settings.text("quantization") {
        Some("int8") => Quantization::Int8,
        Some("int4") => Quantization::Int4,
        Some("none") => return Quantization::None,
        _ => return Quantization::Checkpoint,
    };
    let mut refuse = |reason: &str| faults.add(&settings.origin("quantization"), reason);
    if on_gpu {
        refuse("--device cuda computes with unquantised weights only; leave one of the two out");
    }
    match backend {
        Backend::Fake => refuse("the fake backend has no weights"),
        Backend::Operators if !on_gpu => {
            refuse("--backend torch computes with unquantised weights only; leave one of the two out")
        }
        Backend::Native | Backend::Operators => {}
    }
    if settings.is_set("linear") {
        refuse("--linear is about unquantised weights; leave one of the two out");
    }
    quantization
}

fn kv_dtype(settings: &Settings, backend: Backend, on_gpu: bool, faults: &mut Collector) -> KvDtype {
    let kv_dtype = settings.text("kv-dtype").and_then(KvDtype::of).unwrap_or_default();
    if kv_dtype == KvDtype::Auto {
        return kv_dtype;
    }
    let reason = match backend {
        _ if on_gpu => "--device cuda keeps K and V in the type of the activations; leave one of the two out",
        Backend::Fake => "the fake backend keeps no K and V",
        Backend::Operators => {
            "--backend torch keeps K and V in the type of the activations; leave one of the two out"
        }
        Backend::Native => return kv_dtype,
    };
    faults.add(&settings.origin("kv-dtype"), reason);
    kv_dtype
}
