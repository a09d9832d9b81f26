//! Whether kernels of the CUDA object run within the forward of libtorch's operators.

use crate::choices::{Backend, PrefillAttention};
use crate::cuda::{CudaConfig, default_object};
use crate::fault::Collector;
use crate::sources::Settings;
use pinion_architecture::{Architecture, beyond_cuda_attention};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The CUDA object's attention, append to the cache and sampler, in place of libtorch's operators and the host's
/// sampler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TorchKernels {
    /// None of them.
    #[default]
    Off,
    /// None of them, for this reason: they would be taken otherwise.
    LeftOut(String),
    /// All of them.
    On {
        /// The shared object.
        object: PathBuf,
        /// Operators alone will do where it cannot be used.
        may_do_without: bool,
    },
}

/// What is known of a service that computes with `backend`.
pub(crate) struct Served<'a> {
    pub(crate) backend: Backend,
    pub(crate) cuda: Option<&'a CudaConfig>,
    pub(crate) architecture: Option<&'a Architecture>,
    pub(crate) element_bytes: u64,
    pub(crate) prefill: PrefillAttention,
}

impl TorchKernels {
    /// `auto` takes them on a GPU. On the CPU they are for the emulated object, which is named and never found.
    pub(crate) fn resolve(settings: &Settings, served: &Served<'_>, faults: &mut Collector) -> TorchKernels {
        let is_required = match settings.text("torch-kernels") {
            Some("off") => return TorchKernels::Off,
            Some("on") => true,
            _ => false,
        };
        let mut refuse = |reason: &str| faults.add(&settings.origin("torch-kernels"), reason);
        if served.backend != Backend::Operators {
            if is_required {
                refuse("these are kernels between libtorch's operators: they go with --backend torch");
            }
            return TorchKernels::Off;
        }
        if served.cuda.is_none() && !is_required {
            return TorchKernels::Off;
        }
        let object = match (served.cuda, settings.text("cuda-object")) {
            (Some(cuda), _) => cuda.object.clone(),
            (None, Some(object)) => PathBuf::from(object),
            (None, None) => default_object(),
        };
        let beyond = || beyond_cuda_attention(served.architecture?, served.element_bytes);
        let reason = if served.prefill == PrefillAttention::Sdpa {
            Some("--prefill-attention sdpa is libtorch's own attention".to_owned())
        } else if !object.is_file() && !is_required {
            Some(format!("there is no {}", object.display()))
        } else {
            beyond()
        };
        match reason {
            None => TorchKernels::On { object, may_do_without: !is_required },
            Some(reason) if is_required => {
                refuse(&format!("{reason}; leave it out"));
                TorchKernels::Off
            }
            Some(reason) => TorchKernels::LeftOut(reason),
        }
    }
}
