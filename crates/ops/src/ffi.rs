//! The C side of the kernels; mirrors kernels/include/*.h.

use pinion_team::crew::Work;
use std::ffi::c_void;

/// Shares out items by threads of a team: `(work, context, items, chunk, threads)`.
pub(crate) type PinionTeam = unsafe extern "C" fn(Work, *mut c_void, u64, u64, i32);

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PinionBatch {
    pub(crate) query_start: *const u32,
    pub(crate) context_len: *const u32,
    pub(crate) prompt_len: *const u32,
    pub(crate) table_start: *const u32,
    pub(crate) blocks: *const u32,
    pub(crate) seqs: u32,
    pub(crate) kv_heads: u32,
    pub(crate) group: u32,
    pub(crate) head_dim: u32,
    pub(crate) block_size: u32,
    pub(crate) dtype: i32,
    pub(crate) kv_dtype: i32,
}

#[repr(C)]
pub(crate) struct PinionAttention {
    pub(crate) batch: PinionBatch,
    pub(crate) q: *const c_void,
    pub(crate) cache: *const c_void,
    pub(crate) out: *mut c_void,
    pub(crate) q_stride: u64,
    pub(crate) out_stride: u64,
    pub(crate) scale: f32,
    pub(crate) soft_cap: f32,
    pub(crate) window: u32,
    pub(crate) split_contexts: i32,
    pub(crate) dealt_above: u32,
    pub(crate) partials: *mut f32,
    pub(crate) spans_left: *mut u32,
}

/// `PINION_DEALT`.
pub(crate) const DEALT: usize = 4;

#[repr(C)]
pub(crate) struct PinionAppend {
    pub(crate) batch: PinionBatch,
    pub(crate) k: *const c_void,
    pub(crate) v: *const c_void,
    pub(crate) cache: *mut c_void,
    pub(crate) kv_stride: u64,
}

#[repr(C)]
pub(crate) struct PinionRmsNorm {
    pub(crate) x: *const c_void,
    pub(crate) out: *mut c_void,
    pub(crate) weight: *const f32,
    pub(crate) x_stride: u64,
    pub(crate) out_stride: u64,
    pub(crate) tokens: u64,
    pub(crate) groups: u32,
    pub(crate) width: u32,
    pub(crate) epsilon: f32,
    pub(crate) order: i32,
    pub(crate) dtype: i32,
}

#[repr(C)]
pub(crate) struct PinionLayerNorm {
    pub(crate) x: *const c_void,
    pub(crate) out: *mut c_void,
    pub(crate) weight: *const f32,
    pub(crate) bias: *const f32,
    pub(crate) rows: u64,
    pub(crate) width: u32,
    pub(crate) epsilon: f32,
    pub(crate) dtype: i32,
}

#[repr(C)]
pub(crate) struct PinionRotate {
    pub(crate) x: *mut c_void,
    pub(crate) table: *const f32,
    pub(crate) stride: u64,
    pub(crate) tokens: u64,
    pub(crate) heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) rotary_dim: u32,
    pub(crate) dtype: i32,
}

#[repr(C)]
pub(crate) struct PinionGate {
    pub(crate) x: *const c_void,
    pub(crate) out: *mut c_void,
    pub(crate) rows: u64,
    pub(crate) inner: u32,
    pub(crate) activation: i32,
    pub(crate) dtype: i32,
}

#[repr(C)]
pub(crate) struct PinionPack {
    pub(crate) source: *const c_void,
    pub(crate) row_stride: u64,
    pub(crate) k_stride: u64,
    pub(crate) rows: u32,
    pub(crate) k: u32,
    pub(crate) k_padded: u32,
    pub(crate) first_output: u32,
    pub(crate) group: u32,
    pub(crate) source_type: i32,
    pub(crate) packed: *mut u8,
    pub(crate) scales: *mut f32,
    pub(crate) sums: *mut i32,
    pub(crate) scratch: *mut f32,
}

#[repr(C)]
pub(crate) struct PinionQuantizeRows {
    pub(crate) x: *const c_void,
    pub(crate) q: *mut i8,
    pub(crate) scales: *mut f32,
    pub(crate) offsets: *mut i32,
    pub(crate) rows: u64,
    pub(crate) k: u32,
    pub(crate) k_padded: u32,
    pub(crate) group: u32,
    pub(crate) dtype: i32,
}

#[repr(C)]
pub(crate) struct PinionQuantized {
    pub(crate) weights: *const u8,
    pub(crate) scales: *const f32,
    pub(crate) sums: *const i32,
    pub(crate) x: *const i8,
    pub(crate) x_scales: *const f32,
    pub(crate) x_offsets: *const i32,
    pub(crate) bias: *const f32,
    pub(crate) residual: *const c_void,
    pub(crate) out: *mut c_void,
    pub(crate) rows: u64,
    pub(crate) n: u32,
    pub(crate) k_padded: u32,
    pub(crate) group: u32,
    pub(crate) dtype: i32,
    pub(crate) activation: i32,
}

#[repr(C)]
pub(crate) struct PinionPackFloats {
    pub(crate) source: *const c_void,
    pub(crate) row_stride: u64,
    pub(crate) k_stride: u64,
    pub(crate) rows: u32,
    pub(crate) k: u32,
    pub(crate) first_output: u32,
    pub(crate) source_type: i32,
    pub(crate) weight_type: i32,
    pub(crate) packed: *mut u8,
}

#[repr(C)]
pub(crate) struct PinionPacked {
    pub(crate) weights: *const u8,
    pub(crate) x: *const c_void,
    pub(crate) bias: *const f32,
    pub(crate) residual: *const c_void,
    pub(crate) out: *mut c_void,
    pub(crate) rows: u64,
    pub(crate) n: u32,
    pub(crate) k: u32,
    pub(crate) weight_type: i32,
    pub(crate) x_type: i32,
    pub(crate) dtype: i32,
    pub(crate) activation: i32,
}

#[cfg(feature = "torch")]
#[repr(C)]
pub(crate) struct PinionLinear {
    pub(crate) x: *const c_void,
    pub(crate) weight: *const c_void,
    pub(crate) bias: *const c_void,
    pub(crate) other: *const c_void,
    pub(crate) activation: i32,
}

#[cfg(feature = "torch")]
#[repr(C)]
#[derive(Default)]
pub(crate) struct PinionDeviceMemory {
    pub(crate) free: u64,
    pub(crate) reserved: u64,
}

unsafe extern "C" {
    pub(crate) fn pinion_best_level() -> i32;
    pub(crate) fn pinion_paged_attention_parallel(args: *const PinionAttention, level: i32, threads: i32);
    pub(crate) fn pinion_partial_floats(threads: i32, group: u32, head_dim: u32) -> u64;
    pub(crate) fn pinion_kv_append_parallel(args: *const PinionAppend, threads: i32);
    pub(crate) fn pinion_rms_norm(args: *const PinionRmsNorm, level: i32, threads: i32);
    pub(crate) fn pinion_layer_norm(args: *const PinionLayerNorm, level: i32, threads: i32);
    pub(crate) fn pinion_rotate(args: *const PinionRotate, level: i32, threads: i32);
    pub(crate) fn pinion_gate(args: *const PinionGate, level: i32, threads: i32);
    pub(crate) fn pinion_integer_level() -> i32;
    pub(crate) fn pinion_tile_bytes(k_padded: u32, group: u32) -> u64;
    pub(crate) fn pinion_pack_parallel(args: *const PinionPack, threads: i32);
    pub(crate) fn pinion_quantized_parallel(
        rows: *const PinionQuantizeRows,
        args: *const PinionQuantized,
        level: i32,
        threads: i32,
    );
    pub(crate) fn pinion_packed_tile_bytes(k: u32, weight_type: i32) -> u64;
    pub(crate) fn pinion_pack_floats_parallel(args: *const PinionPackFloats, threads: i32);
    pub(crate) fn pinion_packed_parallel(args: *const PinionPacked, level: i32, threads: i32);
    pub(crate) fn pinion_use_team(team: Option<PinionTeam>);
    pub(crate) fn pinion_deal(work: Work, context: *mut c_void, items: u64, threads: i32);
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    pub(crate) fn pinion_finite_max(x: *const f32, count: u64, level: i32, max: *mut f32) -> i32;
    pub(crate) fn pinion_weigh(
        x: *const f32,
        count: u64,
        max: f32,
        inverse: f32,
        level: i32,
        weights: *mut f32,
    ) -> f64;
}

#[cfg(all(feature = "torch", target_os = "linux", target_env = "gnu"))]
unsafe extern "C" {
    /// glibc's allocator settings; malloc.h.
    pub(crate) fn mallopt(parameter: i32, value: i32) -> i32;
}

#[cfg(feature = "torch")]
unsafe extern "C" {
    pub(crate) fn pinion_linear_pack(
        weight: *const c_void,
        packed: *mut *mut c_void,
        error: *mut std::ffi::c_char,
        error_len: u64,
    ) -> i32;
    pub(crate) fn pinion_linear_run(
        args: *const PinionLinear,
        y: *mut *mut c_void,
        error: *mut std::ffi::c_char,
        error_len: u64,
    ) -> i32;
    pub(crate) fn pinion_trace_start(gpu: i32, error: *mut std::ffi::c_char, error_len: u64) -> i32;
    pub(crate) fn pinion_trace_stop(
        path: *const std::ffi::c_char,
        error: *mut std::ffi::c_char,
        error_len: u64,
    ) -> i32;
    pub(crate) fn pinion_range_begin(name: *const std::ffi::c_char) -> *mut c_void;
    pub(crate) fn pinion_range_end(range: *mut c_void);
    pub(crate) fn pinion_device_open(error: *mut std::ffi::c_char, error_len: u64) -> i32;
    pub(crate) fn pinion_device_memory(
        index: i32,
        memory: *mut PinionDeviceMemory,
        error: *mut std::ffi::c_char,
        error_len: u64,
    ) -> i32;
    pub(crate) fn pinion_device_stream(
        index: i32,
        stream: *mut u64,
        error: *mut std::ffi::c_char,
        error_len: u64,
    ) -> i32;
}
