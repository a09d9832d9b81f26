//! The KV cache on the device: its memory, its layers, and copies of its blocks.

use super::shape::Shape;
use super::{CudaKv, CudaOptions, backend};
use crate::load::{KvSize, LoadError};
use pinion_cuda::{CudaError, Span, Stream};

/// The cache of all layers.
#[derive(Debug)]
pub(super) struct KvCache {
    /// `[layers, blocks, kv_heads, 2, block_size, head_dim]`.
    span: Span,
    layers: usize,
    block_count: u32,
    /// Of each block over all layers.
    block_bytes: u64,
}

impl KvCache {
    /// Takes the memory, zeroed. A share is one of what is free by now.
    pub(super) fn take(stream: &Stream, shape: &Shape, options: &CudaOptions) -> Result<KvCache, LoadError> {
        let device = stream.device();
        let token_elements = 2 * u64::from(shape.layers()) * u64::from(shape.model.kv_width());
        let block_bytes = token_elements * u64::from(options.block_size) * options.dtype.size() as u64;
        let block_count = match options.kv {
            CudaKv::Size(size) => size.block_count(block_bytes)?,
            CudaKv::FreeShare(share) => {
                let free = device.facts().free_bytes.saturating_sub(device.counts().allocated_bytes);
                KvSize::of_share(free, share, block_bytes, shape.max_context.div_ceil(options.block_size))?
            }
        };
        let bytes =
            usize::try_from(u64::from(block_count) * block_bytes).map_err(|_| LoadError::Options {
                reason: format!(
                    "{block_count} KV blocks of {block_bytes} bytes are more than memory can have"
                ),
            })?;
        let span = device.alloc(bytes).map_err(backend)?;
        stream.fill(span, 0).map_err(backend)?;
        stream.synchronize().map_err(backend)?;
        Ok(KvCache { span, layers: shape.layers() as usize, block_count, block_bytes })
    }

    /// The number of blocks, and the bytes of each over all layers.
    pub(super) fn size(&self) -> (u32, u64) {
        (self.block_count, self.block_bytes)
    }

    pub(super) fn layer(&self, index: usize) -> Span {
        let layer_bytes = self.span.bytes() / self.layers;
        self.span.part(index * layer_bytes, layer_bytes)
    }

    /// Copies the beginning of a block in every layer. Whole blocks: what lies behind the beginning is written before
    /// it is read.
    pub(super) fn copy_block(&self, stream: &Stream, from: u32, to: u32) -> Result<(), CudaError> {
        let block_bytes = self.block_bytes as usize / self.layers;
        for index in 0..self.layers {
            let layer = self.layer(index);
            let block = |block: u32| layer.part(block as usize * block_bytes, block_bytes);
            stream.copy(block(to), block(from))?;
        }
        Ok(())
    }
}
