//! What the rest of the configuration needs to know of the model.

use crate::choices::{Dtype, KvDtype};
use pinion_protocol::StopIds;
use serde::{Deserialize, Serialize};

/// What the model folder says about the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFacts {
    /// Longest sequence in tokens, prompt and output together.
    pub max_context: u32,
    /// The same unless the operator asks for another length.
    pub default_context: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Ids that end a text: all that the folder names.
    pub stop_ids: StopIds,
    /// Transformer layers.
    pub layers: u32,
    /// Heads of keys and values.
    pub kv_heads: u32,
    /// Width of one head.
    pub head_dim: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// The layers that see a window only. Older recordings do not say it.
    #[serde(default)]
    pub window: Option<WindowFacts>,
}

/// Layers that see a window only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowFacts {
    /// The largest window: positions that a query sees, its own included.
    pub tokens: u32,
    /// How many layers have one.
    pub layers: u32,
}

impl ModelFacts {
    /// Bytes of keys and values of one token over all layers.
    pub fn kv_bytes_per_token(&self, dtype: Dtype, kv_dtype: KvDtype) -> u64 {
        let row_bytes = kv_dtype.row_bytes(dtype, u64::from(self.head_dim));
        2 * u64::from(self.layers) * u64::from(self.kv_heads) * row_bytes
    }
}
