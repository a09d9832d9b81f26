//! The KV of all layers: one pool for those that keep whole contexts, and one for those that keep their window only
//! (docs/design/0020-window-kv.md). A model has either or both.

use crate::batch::StepBatch;
use crate::load::{KvSize, LoadError, ModelOptions};
use crate::{BlockCopy, WindowInfo};
use pinion_architecture::Architecture;
use pinion_ops::attention::{Batch, CheckedBatch, OperandError, SpanRoom};
use pinion_ops::layer::{AttentionPlan, attend_qkv};
use pinion_ops::{Dtype, KvDtype, KvPool, KvShape, Matrix};

/// Where a layer's KV is.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// In the pool of window blocks.
    in_window: bool,
    /// Index in its pool.
    layer: usize,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct KvCache {
    whole: Option<KvPool>,
    window: Option<KvPool>,
    /// By layer.
    places: Vec<Place>,
    /// Shared by all layers, which attend one after another.
    room: SpanRoom,
}

/// What a cache takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KvSizes {
    pub(crate) blocks: u32,
    /// Bytes of a block over the layers that keep whole contexts.
    pub(crate) block_bytes: u64,
    pub(crate) window: Option<WindowInfo>,
}

/// A batch whose tables were checked against both pools.
#[derive(Debug)]
pub(crate) struct Tables<'a> {
    whole: Option<CheckedBatch<'a>>,
    window: Option<CheckedBatch<'a>>,
}

fn shape(model: &Architecture, block_size: u32, layers: usize, blocks: u32) -> KvShape {
    KvShape {
        layers,
        blocks: blocks as usize,
        heads: model.attention.kv_heads as usize,
        block_size: block_size as usize,
        head_dim: model.attention.head_dim as usize,
    }
}

/// What the pools store, of activations of `dtype`.
fn kv_dtype(dtype: Dtype, options: &ModelOptions) -> KvDtype {
    if options.int8_kv { KvDtype::Int8 } else { dtype.into() }
}

impl KvSizes {
    /// The sizes that the options ask for, of a model that serves sequences of up to `max_context` tokens.
    pub(crate) fn new(
        model: &Architecture,
        max_context: u32,
        dtype: Dtype,
        options: &ModelOptions,
    ) -> Result<KvSizes, LoadError> {
        let block_size = options.block_size;
        let stored = kv_dtype(dtype, options);
        let bytes = |layers: usize| shape(model, block_size, layers, 0).block_bytes(stored);
        let windowed = model.windowed().filter(|windowed| windowed.tokens < max_context);
        let (Some(windowed), Some(blocks)) = (windowed, options.window_blocks) else {
            let block_bytes = bytes(model.layers.len());
            return Ok(KvSizes { blocks: options.kv.block_count(block_bytes)?, block_bytes, window: None });
        };
        let KvSize::Blocks(_) = options.kv else {
            let reason = "window blocks go with a number of KV blocks, not of bytes".into();
            return Err(LoadError::Options { reason });
        };
        let in_window = windowed.layers as usize;
        let block_bytes = bytes(model.layers.len() - in_window);
        let window = WindowInfo { tokens: windowed.tokens, blocks, block_bytes: bytes(in_window) };
        Ok(KvSizes { blocks: options.kv.block_count(block_bytes)?, block_bytes, window: Some(window) })
    }
}

impl KvCache {
    /// Allocates the pools.
    pub(crate) fn new(
        model: &Architecture,
        sizes: &KvSizes,
        dtype: Dtype,
        options: &ModelOptions,
    ) -> Result<KvCache, LoadError> {
        let stored = kv_dtype(dtype, options);
        let (mut whole_count, mut window_count) = (0, 0);
        let place = |in_window: bool| {
            let count = if in_window { &mut window_count } else { &mut whole_count };
            *count += 1;
            Place { in_window, layer: *count - 1 }
        };
        let is_in_window = |window: Option<u32>| sizes.window.is_some() && window.is_some();
        let places = model.layers.iter().map(|layer| is_in_window(layer.window)).map(place).collect();
        let pool = |layers: usize, blocks: u32| -> Result<KvPool, LoadError> {
            let shape = shape(model, options.block_size, layers, blocks);
            let mut pool = KvPool::new(shape, stored).map_err(|error| LoadError::Backend {
                operation: "allocating the KV pool",
                message: format!("{error} ({blocks} blocks of {} bytes)", shape.block_bytes(stored)),
            })?;
            if options.prefault {
                pool.prefault();
            }
            Ok(pool)
        };
        Ok(KvCache {
            whole: (whole_count > 0).then(|| pool(whole_count, sizes.blocks)).transpose()?,
            window: sizes.window.map(|window| pool(window_count, window.blocks)).transpose()?,
            places,
            room: if options.split_contexts {
                let group = model.attention.heads / model.attention.kv_heads;
                SpanRoom::new(options.threads, group as usize, model.attention.head_dim as usize)
            } else {
                SpanRoom::default()
            },
        })
    }

    /// Makes the copies of a batch that was checked.
    pub(crate) fn copy(&mut self, batch: &StepBatch<'_>) {
        let copies = [(&mut self.whole, batch.copies), (&mut self.window, batch.windows.copies)];
        for (pool, copies) in copies {
            let Some(pool) = pool else { continue };
            for &BlockCopy { from, to, tokens } in copies {
                pool.copy_block(from as usize, to as usize, tokens as usize);
            }
        }
    }

    /// The window tables of a batch that was checked, as kernels take them: what is not read is block 0.
    pub(crate) fn window_table(&self, batch: &StepBatch<'_>, table: &mut Vec<u32>) {
        table.clear();
        let Some(pool) = &self.window else { return };
        let block_count = pool.shape().blocks;
        let in_pool = |&block: &u32| if (block as usize) < block_count { block } else { 0 };
        table.extend(batch.windows.blocks.iter().map(in_pool));
    }

    /// Checks a batch's tables against the pools; `window_table` is what [`KvCache::window_table`] made.
    pub(crate) fn check<'a>(
        &self,
        batch: Batch<'a>,
        window_table: &'a [u32],
    ) -> Result<Tables<'a>, OperandError> {
        let check = |pool: &Option<KvPool>, blocks| {
            pool.as_ref().map(|pool| Batch { blocks, ..batch }.check(pool.shape())).transpose()
        };
        Ok(Tables { whole: check(&self.whole, batch.blocks)?, window: check(&self.window, window_table)? })
    }

    /// Appends K and V of one layer's `qkv` \[tokens, (heads + 2 * KV heads) * head_dim\] and attends into `out`,
    /// which becomes \[tokens, heads * head_dim\]: [`attend_qkv`].
    pub(crate) fn attend(
        &mut self,
        layer: usize,
        tables: &Tables<'_>,
        qkv: &Matrix,
        out: &mut Matrix,
        plan: AttentionPlan,
    ) -> Result<(), OperandError> {
        let Place { in_window, layer } = self.places[layer];
        let (pool, batch) = match in_window {
            true => (&mut self.window, &tables.window),
            false => (&mut self.whole, &tables.whole),
        };
        let (Some(pool), Some(batch)) = (pool, batch) else {
            return Err(OperandError("the batch was checked against another pool"));
        };
        attend_qkv(pool, layer, batch, qkv, out, plan, &mut self.room)
    }
}
