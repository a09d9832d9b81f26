//! Layers of a pool of any numbers: random ones, and what the twins make of them.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use half::bf16;
use pinion_ops::attention::{Attend, CheckedBatch, Rows};
use pinion_ops::{Dtype, Element, KvDtype, KvPool, twin};
use pinion_random::Random;

pub(crate) fn fill<T: Element>(random: &mut Random, len: usize) -> Vec<T> {
    (0..len).map(|_| T::from_f32(random.value())).collect()
}

/// Fills a layer with numbers of -1 to 1.
pub(crate) fn fill_layer(pool: &mut KvPool, layer: usize, random: &mut Random) {
    let shape = *pool.shape();
    let count = shape.layer_elements().unwrap();
    match pool.dtype() {
        KvDtype::Float(Dtype::F32) => pool.layer_mut::<f32>(layer).copy_from_slice(&fill(random, count)),
        KvDtype::Float(Dtype::Bf16) => pool.layer_mut::<bf16>(layer).copy_from_slice(&fill(random, count)),
        KvDtype::Int8 => {
            let row_bytes = KvDtype::Int8.row_bytes(shape.head_dim);
            for row in pool.layer_bytes_mut(layer).chunks_exact_mut(row_bytes) {
                let (integers, scale) = row.split_at_mut(row_bytes - 4);
                scale.copy_from_slice(&(random.value().abs() / 127.0).to_ne_bytes());
                for byte in &mut integers[..shape.head_dim] {
                    *byte = (random.below(255) as i8).wrapping_sub(127).cast_unsigned();
                }
            }
        }
    }
}

/// A copy of one layer, for the twins.
pub(crate) struct Layer {
    dtype: KvDtype,
    bytes: Vec<u8>,
}

impl Layer {
    pub(crate) fn of(pool: &mut KvPool, layer: usize) -> Layer {
        Layer { dtype: pool.dtype(), bytes: pool.layer_bytes_mut(layer).to_vec() }
    }

    fn floats<T: Element>(&self) -> Vec<T> {
        let number = |bytes: &[u8]| match *bytes {
            [a, b] => T::from_f32(bf16::from_ne_bytes([a, b]).to_f32()),
            [a, b, c, d] => T::from_f32(f32::from_ne_bytes([a, b, c, d])),
            _ => panic!("two or four bytes"),
        };
        self.bytes.chunks_exact(T::DTYPE.size()).map(number).collect()
    }

    pub(crate) fn append<T: Element>(&mut self, batch: &CheckedBatch<'_>, k: Rows<'_, T>, v: Rows<'_, T>) {
        if self.dtype == KvDtype::Int8 {
            return twin::kv_append_int8(&mut self.bytes, batch, k, v);
        }
        let mut floats = self.floats::<T>();
        twin::kv_append(&mut floats, batch, k, v);
        let bytes = |value: T| match T::DTYPE {
            Dtype::F32 => value.to_f32().to_ne_bytes().to_vec(),
            Dtype::Bf16 => bf16::from_f32(value.to_f32()).to_ne_bytes().to_vec(),
        };
        self.bytes = floats.into_iter().flat_map(bytes).collect();
    }

    /// What attention gives, `[tokens, heads, head_dim]`.
    pub(crate) fn attend<T: Element>(
        &self,
        batch: &CheckedBatch<'_>,
        q: Rows<'_, T>,
        attend: Attend,
    ) -> Vec<T> {
        let width = attend.heads * batch.shape().head_dim;
        let mut out = vec![T::default(); batch.tokens() * width];
        if self.dtype == KvDtype::Int8 {
            let widened = twin::widened(&self.bytes, batch.shape());
            twin::paged_attention(&widened, batch, q, &mut out, width, attend);
        } else {
            twin::paged_attention(&self.floats::<T>(), batch, q, &mut out, width, attend);
        }
        out
    }

    pub(crate) fn is_same(&self, pool: &mut KvPool, layer: usize) -> bool {
        self.bytes == pool.layer_bytes_mut(layer)
    }
}
