//! The part of a model that one of several processes holds: heads and inner columns are divided, the residual stream is
//! whole.

use crate::{Architecture, QkNorm};
use std::fmt;
use std::ops::Range;

/// One part of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Shard {
    /// The part as a model of its own: with its heads, KV heads and inner width.
    pub architecture: Architecture,
    /// Query heads of the whole that are here.
    pub heads: Range<u32>,
    /// KV heads of the whole that are here; where there are fewer than parts, several parts hold the same.
    pub kv_heads: Range<u32>,
    /// Columns of the whole MLP.
    pub inner: Range<u32>,
    /// Rows of the whole head.
    pub vocab: Range<u32>,
}

/// Why a model does not divide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardError(pub String);

impl fmt::Display for ShardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ShardError {}

impl Architecture {
    /// Part `rank` of `of` equal ones.
    ///
    /// # Errors
    /// The number that does not divide.
    pub fn shard(&self, rank: u32, of: u32) -> Result<Shard, ShardError> {
        let fail = |reason: String| Err(ShardError(reason));
        if of == 0 || rank >= of {
            return fail(format!("there is no part {rank} of {of}"));
        }
        let attention = self.attention;
        for (what, number) in [("attention heads", attention.heads), ("inner columns", self.mlp.inner)] {
            if !number.is_multiple_of(of) {
                return fail(format!("{number} {what} do not divide by {of}"));
            }
        }
        let kv_heads = attention.kv_heads;
        if !kv_heads.is_multiple_of(of) && !of.is_multiple_of(kv_heads) {
            return fail(format!("{kv_heads} KV heads and {of} parts do not divide each other"));
        }
        if attention.qk_norm == QkNorm::Whole && of > 1 {
            return fail("a norm over all heads cannot be divided".into());
        }
        let part = |number: u32| number / of * rank..number / of * (rank + 1);
        let heads = part(attention.heads);
        let kv_heads = heads.start / self.group()..(heads.end - 1) / self.group() + 1;
        let rows = self.vocab.div_ceil(of);
        let mut architecture = self.clone();
        architecture.attention.heads = heads.end - heads.start;
        architecture.attention.kv_heads = kv_heads.end - kv_heads.start;
        architecture.mlp.inner /= of;
        Ok(Shard {
            architecture,
            heads,
            kv_heads,
            inner: part(self.mlp.inner),
            vocab: (rows * rank).min(self.vocab)..(rows * (rank + 1)).min(self.vocab),
        })
    }
}
