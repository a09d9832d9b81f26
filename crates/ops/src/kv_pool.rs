//! The memory of the paged KV cache.

use half::bf16;
use std::ffi::c_void;

/// Element type of activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE single precision.
    F32,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// `"f32"` or `"bf16"`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }

    pub(crate) fn code(self) -> i32 {
        match self {
            Self::F32 => 0,
            Self::Bf16 => 1,
        }
    }
}

/// What the numbers of a KV pool are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvDtype {
    /// Those of the activations, bit for bit.
    Float(Dtype),
    /// Integers of 8 bits with an fp32 scale for each row, a head's K or V of one token: a row's largest magnitude is
    /// 127 (kernels/include/pinion_attention.h). Activations may have either dtype.
    Int8,
}

impl From<Dtype> for KvDtype {
    fn from(dtype: Dtype) -> Self {
        Self::Float(dtype)
    }
}

impl KvDtype {
    /// `"f32"`, `"bf16"` or `"int8"`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float(dtype) => dtype.name(),
            Self::Int8 => "int8",
        }
    }

    /// Bytes from one row of `head_dim` numbers to the next.
    pub fn row_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::Float(dtype) => head_dim * dtype.size(),
            Self::Int8 => head_dim.next_multiple_of(4) + size_of::<f32>(),
        }
    }

    /// Whether activations of this dtype can be stored.
    pub(crate) fn takes(self, dtype: Dtype) -> bool {
        self == Self::Int8 || self == Self::Float(dtype)
    }

    pub(crate) fn code(self) -> i32 {
        match self {
            Self::Float(dtype) => dtype.code(),
            Self::Int8 => 2,
        }
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
}

/// A Rust type that is one of the [`Dtype`]s: plain old data, every bit pattern valid.
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + std::fmt::Debug + 'static {
    /// The dtype of this type.
    const DTYPE: Dtype;
    /// The exact value.
    fn to_f32(self) -> f32;
    /// Rounds to nearest even.
    fn from_f32(value: f32) -> Self;
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
    fn to_f32(self) -> f32 {
        self
    }
    fn from_f32(value: f32) -> Self {
        value
    }
}

impl Element for bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
    fn from_f32(value: f32) -> Self {
        bf16::from_f32(value)
    }
}

/// Shape of a KV pool. One layer is `[blocks, heads, 2, block_size]` rows of head_dim numbers, K before V on axis 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Layers of the model.
    pub layers: usize,
    /// Blocks in the pool.
    pub blocks: usize,
    /// KV heads.
    pub heads: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Dimensions of one head, 1..=512.
    pub head_dim: usize,
}

impl KvShape {
    /// Numbers of one layer, or `None` when that many cannot be counted.
    pub fn layer_elements(&self) -> Option<usize> {
        self.layer_rows()?.checked_mul(self.head_dim)
    }

    fn layer_rows(&self) -> Option<usize> {
        [self.heads, 2, self.block_size].into_iter().try_fold(self.blocks, usize::checked_mul)
    }

    /// Bytes of one block over all layers.
    pub fn block_bytes(&self, dtype: impl Into<KvDtype>) -> u64 {
        (self.layers * self.heads * 2 * self.block_size * dtype.into().row_bytes(self.head_dim)) as u64
    }
}

/// The paged KV cache of all layers: one zeroed, page-aligned allocation.
#[derive(Debug)]
pub struct KvPool {
    memory: memmap2::MmapMut,
    shape: KvShape,
    dtype: KvDtype,
}

impl KvPool {
    /// Allocates the pool, on huge pages where the system grants them.
    ///
    /// # Errors
    /// An empty or oversized shape, or the system's error when there is not enough memory.
    pub fn new(shape: KvShape, dtype: impl Into<KvDtype>) -> std::io::Result<Self> {
        let dtype = dtype.into();
        let invalid = |reason| std::io::Error::new(std::io::ErrorKind::InvalidInput, reason);
        if shape.head_dim > crate::attention::MAX_HEAD_DIM {
            return Err(invalid("head_dim is above 512"));
        }
        let bytes = shape
            .layer_rows()
            .and_then(|rows| rows.checked_mul(shape.layers))
            .and_then(|rows| {
                rows.checked_mul(if shape.head_dim > 0 { dtype.row_bytes(shape.head_dim) } else { 0 })
            })
            .filter(|&bytes| bytes > 0 && isize::try_from(bytes).is_ok())
            .ok_or_else(|| invalid("the KV pool's shape is empty or too large"))?;
        let memory = memmap2::MmapOptions::new().len(bytes).map_anon()?;
        #[cfg(target_os = "linux")]
        // Huge pages spare TLB misses; a system without them just says no.
        let _ = memory.advise(memmap2::Advice::HugePage);
        Ok(Self { memory, shape, dtype })
    }

    /// One write a page faults the pool in now instead of under traffic. Before anything is in it.
    pub fn prefault(&mut self) {
        self.memory.iter_mut().step_by(4096).for_each(|byte| *byte = 0);
    }

    /// The pool's shape.
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// What its numbers are.
    pub fn dtype(&self) -> KvDtype {
        self.dtype
    }

    fn layer_bytes(&self) -> usize {
        self.memory.len() / self.shape.layers
    }

    /// Start of one layer.
    pub(crate) fn layer_ptr(&mut self, layer: usize) -> *mut c_void {
        let bytes = self.layer_bytes();
        self.memory[layer * bytes..(layer + 1) * bytes].as_mut_ptr().cast()
    }

    /// Copies K and V of the first `tokens` positions of a block to another, in every layer.
    ///
    /// # Panics
    /// If there is no such block, or a block has fewer positions.
    pub fn copy_block(&mut self, from: usize, to: usize, tokens: usize) {
        let shape = self.shape;
        assert!(from.max(to) < shape.blocks && tokens <= shape.block_size, "a copy stays within the pool");
        // [blocks, heads, 2, block_size]: one run of positions for each head's K and V.
        let row_bytes = self.dtype.row_bytes(shape.head_dim);
        let (run_bytes, copied_bytes) = (shape.block_size * row_bytes, tokens * row_bytes);
        let block_bytes = shape.heads * 2 * run_bytes;
        let layer_bytes = self.layer_bytes();
        for layer in 0..shape.layers {
            for run in 0..shape.heads * 2 {
                let start = |block: usize| layer * layer_bytes + block * block_bytes + run * run_bytes;
                self.memory.copy_within(start(from)..start(from) + copied_bytes, start(to));
            }
        }
    }

    /// One layer's rows as they are in memory.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn layer_bytes_mut(&mut self, layer: usize) -> &mut [u8] {
        let bytes = self.layer_bytes();
        &mut self.memory[layer * bytes..(layer + 1) * bytes]
    }

    /// One layer's elements, `[blocks, heads, 2, block_size, head_dim]`.
    ///
    /// # Panics
    /// If `T` is not the pool's dtype or there is no such layer.
    pub fn layer_mut<T: Element>(&mut self, layer: usize) -> &mut [T] {
        assert!(self.dtype == KvDtype::Float(T::DTYPE), "the pool holds {}", self.dtype.name());
        let layer = self.layer_bytes_mut(layer);
        // SAFETY: T is f32 or bf16, for which every bit pattern is valid; `align_to_mut` itself keeps to the alignment,
        // and the slice borrows `self` mutably.
        let (head, elements, tail) = unsafe { layer.align_to_mut::<T>() };
        assert!(
            head.is_empty() && tail.is_empty(),
            "a layer starts on an element boundary and holds whole elements"
        );
        elements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Element + PartialEq>() {
        let shape = KvShape { layers: 2, blocks: 3, heads: 2, block_size: 4, head_dim: 3 };
        for (from, to, tokens) in [(0, 2, 0), (0, 2, 1), (2, 0, 3), (1, 2, 4), (1, 1, 2)] {
            let mut pool = KvPool::new(shape, T::DTYPE).expect("it is small");
            // Below 256, so that bf16 holds each exactly.
            let value = |layer: usize, at: usize| T::from_f32((layer + at % 251) as f32);
            for layer in 0..shape.layers {
                pool.layer_mut::<T>(layer).iter_mut().enumerate().for_each(|(at, x)| *x = value(layer, at));
            }
            pool.copy_block(from, to, tokens);
            for layer in 0..shape.layers {
                for (at, have) in pool.layer_mut::<T>(layer).iter().enumerate() {
                    // [blocks, heads, 2, block_size, head_dim]
                    let (block, rest) = (at / 48, at % 48);
                    let position = rest % 12 / 3;
                    let source = if block == to && position < tokens { from } else { block };
                    let want = value(layer, source * 48 + rest);
                    assert_eq!(*have, want, "{tokens} of {from} to {to}: layer {layer}, element {at}");
                }
            }
        }
    }

    #[test]
    fn the_beginning_of_a_block_is_copied_in_every_layer_and_nothing_else_changes() {
        check::<f32>();
        check::<bf16>();
    }

    #[test]
    fn rows_of_integers_are_copied_with_their_scales() {
        let shape = KvShape { layers: 2, blocks: 3, heads: 2, block_size: 4, head_dim: 3 };
        let mut pool = KvPool::new(shape, KvDtype::Int8).expect("it is small");
        assert_eq!(shape.block_bytes(KvDtype::Int8), 2 * 2 * 2 * 4 * 8);
        for layer in 0..shape.layers {
            let bytes = pool.layer_bytes_mut(layer).iter_mut().enumerate();
            bytes.for_each(|(at, byte)| *byte = (layer + at % 251) as u8);
        }
        pool.copy_block(0, 2, 3);
        for layer in 0..shape.layers {
            for (at, &byte) in pool.layer_bytes_mut(layer).iter().enumerate() {
                // [blocks, heads, 2, block_size] rows of 8 bytes
                let (block, rest) = (at / 128, at % 128);
                let source = if block == 2 && rest % 32 / 8 < 3 { 0 } else { block };
                assert_eq!(byte, (layer + (source * 128 + rest) % 251) as u8, "layer {layer}, byte {at}");
            }
        }
    }
}
