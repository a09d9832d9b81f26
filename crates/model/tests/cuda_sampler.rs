//! The sampler kernel against the host's sampler: the same logits and parameters give the same token. Run on the
//! emulated device; docs/design/0006-cuda.md says where the two may differ (a draw within 2^-45 of an edge, which no
//! seed here hits).

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use crate::cuda_sweeps::sampling;
use crate::emulated;

#[test]
fn the_kernel_draws_what_the_host_draws() {
    sampling::sweep(&emulated::emulated(), 40, 700);
}

/// Several walks of a block over the row, and more equals than the kernel lists.
#[test]
fn a_wide_vocabulary() {
    sampling::sweep(&emulated::emulated(), 10, 9_000);
}

#[test]
fn the_widest_vocabulary() {
    sampling::widest(&emulated::emulated());
}

#[test]
fn odd_logits() {
    sampling::odd_logits(&emulated::emulated());
}
