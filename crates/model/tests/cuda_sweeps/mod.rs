//! Sweeps of the kernels of sampling, on the emulated device and on a GPU.

pub(crate) mod logprobs;
pub(crate) mod sampling;
