//! What a decoder-only transformer is, as closed data: [`Architecture`].
//!
//! [`read`] turns the keys of a Hugging Face config.json into an `Architecture` or into all of its faults. The rules
//! for the keys are in `reader` and `rope_keys`; each file of `families` maps the keys and tensor names of one family.
//! What runs a model interprets the data and never asks for the family. This crate reads no file and knows no tensor
//! library.

mod cuda_object;
mod families;
mod ignored;
mod names;
mod packing;
mod reader;
mod rope;
mod rope_keys;
mod shard;

pub use cuda_object::{CUDA_HEAD_DIM_MAX, beyond_cuda_attention, beyond_cuda_object};
pub use families::FAMILIES;
pub use names::{Layout, Names, Source};
pub use packing::{Packed, Packing, complete};
pub use reader::{CONTEXT_MAX, Facts, VOCAB_MAX, facts, ignored, parse, read};
pub use rope::{Frequencies, Rotary, Scaling};
pub use shard::{Shard, ShardError};

/// A decoder-only transformer. Every number was checked when it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Architecture {
    /// The family's `model_type`, for records and messages. Nothing may depend on it.
    pub family: &'static str,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Token ids are below this; it may exceed what the tokenizer knows.
    pub vocab: u32,
    /// How long sequences may be.
    pub context: Context,
    /// Factor on token embeddings, rounded to the activations' dtype before it is applied.
    pub embedding_multiplier: Option<f32>,
    /// How tokens learn their positions.
    pub position: Position,
    /// Queries, keys and values.
    pub attention: Attention,
    /// The layers, in order: what differs between them.
    pub layers: Vec<Layer>,
    /// Every norm.
    pub norm: Norm,
    /// Where a layer has norms.
    pub norm_places: NormPlaces,
    /// The layer's other half.
    pub mlp: Mlp,
    /// Factor on what attention and MLP add to the residual stream.
    pub residual_multiplier: Option<f32>,
    /// From the residual stream to logits.
    pub head: Head,
    /// Whether half precision holds the activations; bf16 and fp32 always do.
    pub fits_f16: bool,
    /// Ids of config.json that end a text, without those outside the vocabulary.
    pub stop_ids: Vec<u32>,
    /// The id that a text begins with.
    pub begin_id: Option<u32>,
    /// Names of the tensors in a checkpoint.
    pub names: Names,
    /// How a checkpoint that is quantised already holds the weights of its products.
    pub packed: Option<Packed>,
}

/// Layers that see a window only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windowed {
    /// The largest window: positions that a query attends to, its own included.
    pub tokens: u32,
    /// How many layers have one.
    pub layers: u32,
}

impl Architecture {
    /// The layers with a window, if there are any.
    pub fn windowed(&self) -> Option<Windowed> {
        let windows = self.layers.iter().filter_map(|layer| layer.window);
        let layers = windows.clone().count() as u32;
        windows.max().map(|tokens| Windowed { tokens, layers })
    }
}

/// How long sequences may be, in tokens, prompt and output together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// Unless the operator asks for another length.
    pub default: u32,
    /// The longest that may be asked for.
    pub max: u32,
}

/// How tokens learn their positions.
#[derive(Debug, Clone, PartialEq)]
pub enum Position {
    /// A trained row is added to the embedding.
    Learned {
        /// Rows.
        count: u32,
    },
    /// Queries and keys are rotated; [`Layer::rotary`] names one of these.
    Rotary(Vec<Rotary>),
}

/// Queries, keys and values: the same in every layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: u32,
    /// Heads of keys and values; divides `heads`. Query head h reads KV head h / (heads / kv_heads).
    pub kv_heads: u32,
    /// Width of one head.
    pub head_dim: u32,
    /// Whether queries, keys and values have a bias.
    pub qkv_bias: bool,
    /// Whether the output projection has a bias.
    pub out_bias: bool,
    /// Norms on queries and keys, before they are rotated.
    pub qk_norm: QkNorm,
    /// Scores become c * tanh(score / c), after the scale.
    pub soft_cap: Option<f32>,
}

/// Norms on queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    Absent,
    /// Over each head; one weight of `head_dim` for all heads.
    PerHead,
    /// Over all heads together; a weight of `heads * head_dim`.
    Whole,
}

/// What may differ between layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layer {
    /// Which rotation, as an index in [`Position::Rotary`]; `None` leaves queries and keys as they are.
    pub rotary: Option<usize>,
    /// Number of positions that a query attends to, its own included.
    pub window: Option<u32>,
    /// Factor on scores.
    pub scale: f32,
}

/// Every norm of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Which.
    pub kind: NormKind,
    /// Added to the variance.
    pub epsilon: f64,
}

/// Kinds of norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// Mean and variance, with weight and bias.
    Layer,
    /// Root mean square: rounded to the activations' dtype, then multiplied with the weight.
    Rms,
    /// Root mean square: multiplied with the weight in fp32, then rounded.
    RmsWide,
    /// As `RmsWide` with 1 + weight.
    RmsOnePlus,
}

/// Where a layer has norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlaces {
    /// On what goes into attention and MLP.
    Before,
    /// On what goes in and on what comes out, before it is added to the residual stream.
    Around,
    /// Only on what comes out.
    After,
}

impl NormPlaces {
    /// Whether what goes in is normed.
    pub fn before(self) -> bool {
        matches!(self, Self::Before | Self::Around)
    }

    /// Whether what comes out is normed.
    pub fn after(self) -> bool {
        matches!(self, Self::After | Self::Around)
    }
}

/// The MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mlp {
    /// Inner width.
    pub inner: u32,
    /// Whether a second projection, the gate, goes through the activation and multiplies the first.
    pub gated: bool,
    /// The activation.
    pub activation: Activation,
    /// Whether its products have a bias.
    pub bias: bool,
}

/// Activations of MLPs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x * sigmoid(x).
    Silu,
    /// GELU with the tanh approximation.
    GeluTanh,
    /// GELU with erf.
    GeluErf,
}

/// From the residual stream to logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Head {
    /// The token embedding is the head's weight.
    pub tied: bool,
    /// Logits are divided by this.
    pub divisor: Option<f32>,
    /// Then they become c * tanh(logit / c).
    pub soft_cap: Option<f32>,
}

impl Architecture {
    /// Query heads for each KV head.
    pub fn group(&self) -> u32 {
        self.attention.heads / self.attention.kv_heads
    }

    /// Columns of queries beside each other: may differ from `hidden`.
    pub fn query_width(&self) -> u32 {
        self.attention.heads * self.attention.head_dim
    }

    /// Columns of keys, or of values.
    pub fn kv_width(&self) -> u32 {
        self.attention.kv_heads * self.attention.head_dim
    }
}
