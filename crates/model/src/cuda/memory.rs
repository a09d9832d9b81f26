//! Device memory of a step, and the sizes that follow from the options.

use super::inputs::Layout;
use super::late::{late_bytes, result_bytes};
use super::shape::Shape;
use super::{CHANGES_PER_ROW, CudaOptions};
use pinion_cuda::{CHANGE_BYTES, CudaError, Device, Span};

/// Most parts that the context of a decode row is split into.
pub(super) const SPLITS_MAX: u32 = 16;
/// Blocks of threads that a decode attention launch should have, for each multiprocessor.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 2;

/// Device memory of a step, taken once.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) inputs: Span,
    /// `[tokens, hidden]`.
    pub(super) residual: Span,
    pub(super) normed: Span,
    pub(super) delta: Span,
    /// `[tokens, heads * head_dim]`.
    pub(super) attended: Span,
    /// `[tokens, (heads + 2 * kv_heads) * head_dim]`.
    pub(super) qkv: Span,
    /// `[tokens, inner]`, or gate and up side by side.
    pub(super) inner: Span,
    /// `[tokens, inner]`, where there is a gate.
    pub(super) gated: Span,
    /// `[rows, hidden]`, twice.
    pub(super) last: Span,
    pub(super) last_normed: Span,
    /// f32 `[rows, vocab]`.
    pub(super) logits: Span,
    /// Tokens of all rows of logits, then the scores of those that have some.
    pub(super) sampled: Span,
    /// What each lane sampled last, u32 `[lanes]`.
    pub(super) lane_tokens: Span,
    pub(super) tables: Span,
    pub(super) partials: Span,
    pub(super) counters: Span,
    /// What requests do to their logits.
    pub(super) changes: Span,
    /// What the late rows send.
    pub(super) late: Span,
}

impl Memory {
    pub(super) fn new(
        device: &Device,
        shape: &Shape,
        options: &CudaOptions,
        sizes: &Sizes,
    ) -> Result<Memory, CudaError> {
        let size = options.dtype.size();
        let (tokens, rows) = (options.max_tokens as usize, options.max_rows as usize);
        let (model, attention) = (&shape.model, &shape.model.attention);
        let (hidden, inner, heads) =
            (model.hidden as usize, model.mlp.inner as usize, attention.heads as usize);
        let parts = heads * (attention.head_dim as usize + 2) * 4 * sizes.split_rows;
        // With a gate the first product is twice as wide.
        let (first, gated) = if model.mlp.gated { (2 * inner, inner) } else { (inner, 0) };
        Ok(Memory {
            inputs: device.alloc(sizes.input_bytes)?,
            residual: device.alloc(tokens * hidden * size)?,
            normed: device.alloc(tokens * hidden * size)?,
            attended: device.alloc(tokens * model.query_width() as usize * size)?,
            delta: device.alloc(tokens * hidden * size)?,
            qkv: device.alloc(tokens * shape.qkv_width() as usize * size)?,
            inner: device.alloc(tokens * first * size)?,
            gated: device.alloc(tokens * gated * size)?,
            last: device.alloc(rows * hidden * size)?,
            last_normed: device.alloc(rows * hidden * size)?,
            logits: device.alloc(rows * model.vocab as usize * 4)?,
            sampled: device.alloc(result_bytes(rows, rows))?,
            lane_tokens: device.alloc(rows * 4)?,
            tables: device.alloc(rows * sizes.table_stride as usize * 4)?,
            partials: device.alloc(parts)?,
            counters: device.alloc(rows * heads * 4)?,
            changes: device.alloc(changes_max(options) * CHANGE_BYTES)?,
            late: device.alloc(sizes.late_bytes)?,
        })
    }
}

/// Most changes of logits in a step.
pub(super) fn changes_max(options: &CudaOptions) -> usize {
    options.max_rows as usize * CHANGES_PER_ROW
}

/// Sizes that follow from the options.
pub(super) struct Sizes {
    pub(super) input_bytes: usize,
    pub(super) table_stride: u32,
    pub(super) late_bytes: usize,
    /// Most `rows * splits` of any decode step.
    split_rows: usize,
}

/// How many parts the context of each of `rows` rows is split into, to fill the device.
pub fn splits(rows: u32, heads: u32, multiprocessors: u32) -> u32 {
    (multiprocessors * BLOCKS_PER_MULTIPROCESSOR).div_ceil(rows * heads).clamp(1, SPLITS_MAX)
}

impl Sizes {
    pub(super) fn of(shape: &Shape, options: &CudaOptions, multiprocessors: u32) -> Sizes {
        let table_stride = shape.max_context.div_ceil(options.block_size);
        let layout = Layout { tokens: options.max_tokens as usize, rows: options.max_rows as usize };
        let split_rows = (1..=options.max_rows)
            .map(|rows| rows * splits(rows, shape.model.attention.heads, multiprocessors))
            .max();
        Sizes {
            input_bytes: layout.bytes(options.max_rows as usize * table_stride as usize),
            table_stride,
            late_bytes: late_bytes(layout.rows, layout.rows, shape.model.vocab),
            split_rows: split_rows.unwrap_or(1) as usize,
        }
    }
}
