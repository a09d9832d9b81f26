//! Operands of the CUDA kernels, and what the C side calls them. Shapes are `[rows, width]` and so on, row-major and
//! contiguous unless a stride is named; kernels/include/pinion_cuda.h says what each kernel computes.

use super::CudaDtype;
use super::memory::Span;

/// Query tokens of one prefill tile.
pub const PREFILL_TILE: u32 = 64;
/// Rows up to which [`ProductMethod::Auto`] takes our own kernel.
pub const GEMV_ROWS_MAX: u32 = 8;

/// What is applied to a product or a biased row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CudaActivation {
    /// Nothing.
    #[default]
    None,
    /// GELU with the tanh approximation.
    GeluTanh,
    /// GELU with erf.
    GeluErf,
}

impl CudaActivation {
    pub(super) fn code(self) -> i32 {
        match self {
            Self::None => 0,
            Self::GeluTanh => 1,
            Self::GeluErf => 2,
        }
    }
}

/// What computes a GEMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProductMethod {
    /// Our kernel for up to [`GEMV_ROWS_MAX`] rows, else the library.
    #[default]
    Auto,
    /// Our kernel.
    Own,
    /// cuBLASLt.
    Library,
}

/// y \[m, n\] = activation(x \[m, k\] . weight \[n, k\]^T + bias \[n\]), added to y with `accumulate`.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    /// \[m, k\].
    pub x: Span,
    /// \[n, k\].
    pub weight: Span,
    /// \[n\].
    pub bias: Option<Span>,
    /// \[m, n\].
    pub y: Span,
    /// Rows of x.
    pub m: u32,
    /// Rows of the weight.
    pub n: u32,
    /// Width of both.
    pub k: u32,
    /// Of x, weight and bias.
    pub dtype: CudaDtype,
    /// Of y: `dtype` or f32.
    pub y_dtype: CudaDtype,
    /// Applied before y is added to.
    pub activation: CudaActivation,
    /// What computes it.
    pub method: ProductMethod,
    /// Add to what y holds.
    pub accumulate: bool,
    /// Number of the library's algorithms that are timed at the shape's first use; 1 takes its own first choice.
    pub candidates: u32,
}

/// Which norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// LayerNorm.
    Layer,
    /// RMSNorm; the bias is none.
    Rms,
}

/// x += delta + delta_bias; out = norm(x) * weight + bias.
#[derive(Debug, Clone, Copy)]
pub struct Norm {
    /// \[rows, width\], changed if there is something to add.
    pub x: Span,
    /// \[rows, width\].
    pub delta: Option<Span>,
    /// \[width\].
    pub delta_bias: Option<Span>,
    /// \[width\].
    pub weight: Span,
    /// \[width\].
    pub bias: Option<Span>,
    /// \[rows, width\]; without one only the sum is made.
    pub out: Option<Span>,
    /// Rows.
    pub rows: u32,
    /// Width.
    pub width: u32,
    /// Added to the variance.
    pub epsilon: f32,
    /// Of everything.
    pub dtype: CudaDtype,
    /// Which norm.
    pub kind: NormKind,
}

/// x = activation(x + bias), in place.
#[derive(Debug, Clone, Copy)]
pub struct BiasActivation {
    /// \[rows, width\].
    pub x: Span,
    /// \[width\].
    pub bias: Option<Span>,
    /// Rows.
    pub rows: u32,
    /// Width.
    pub width: u32,
    /// Of both.
    pub dtype: CudaDtype,
    /// Applied to the sum.
    pub activation: CudaActivation,
}

/// out = token_table\[token\] + position_table\[position\].
#[derive(Debug, Clone, Copy)]
pub struct Embed {
    /// u32 \[count\]; [`super::FUTURE_TOKEN`] takes the lane's.
    pub tokens: Span,
    /// u32 \[count\].
    pub positions: Span,
    /// u32 \[count\].
    pub lanes: Span,
    /// u32 \[lanes\]: what each lane sampled last.
    pub lane_tokens: Span,
    /// \[vocab, width\].
    pub token_table: Span,
    /// \[positions_max, width\].
    pub position_table: Option<Span>,
    /// \[count, width\].
    pub out: Span,
    /// Tokens.
    pub count: u32,
    /// Width.
    pub width: u32,
    /// Rows of the token table.
    pub vocab: u32,
    /// Rows of the position table.
    pub positions_max: u32,
    /// Of tables and output.
    pub dtype: CudaDtype,
}

/// out \[count, width\] = x\[index\].
#[derive(Debug, Clone, Copy)]
pub struct Gather {
    /// \[rows, width\].
    pub x: Span,
    /// u32 \[count\].
    pub index: Span,
    /// \[count, width\].
    pub out: Span,
    /// Rows taken.
    pub count: u32,
    /// Width.
    pub width: u32,
    /// Rows of x.
    pub rows: u32,
    /// Of both.
    pub dtype: CudaDtype,
}

/// Changes of block tables.
#[derive(Debug, Clone, Copy)]
pub struct UpdateTables {
    /// u32 \[count, 3\]: lane, index, block.
    pub updates: Span,
    /// u32 \[lanes, table_stride\].
    pub tables: Span,
    /// Changes.
    pub count: u32,
    /// Lanes.
    pub lanes: u32,
    /// Entries of a lane's table.
    pub table_stride: u32,
}

/// Copies of whole cache blocks in every layer.
#[derive(Debug, Clone, Copy)]
pub struct CopyBlocks {
    /// \[layers, blocks, block_bytes\].
    pub cache: Span,
    /// u32 \[count, 2\]: from, to.
    pub pairs: Span,
    /// Bytes of a layer.
    pub layer_bytes: u64,
    /// Bytes of a block in one layer.
    pub block_bytes: u64,
    /// Copies.
    pub count: u32,
    /// Layers.
    pub layers: u32,
}

/// Where query tokens are in their sequences, and those in the cache.
#[derive(Debug, Clone, Copy)]
pub struct TokenBatch {
    /// u32 \[tokens\]; [`super::NO_LANE`] is padding.
    pub lanes: Span,
    /// u32 \[tokens\].
    pub positions: Span,
    /// u32 \[lanes, table_stride\]. Entries name blocks of the cache: the caller that fills the table has checked them.
    pub tables: Span,
    /// Query tokens.
    pub tokens: u32,
    /// Entries of a lane's table.
    pub table_stride: u32,
    /// Query heads.
    pub heads: u32,
    /// Heads of the cache.
    pub kv_heads: u32,
    /// 16, 32, 64 or 128, unless the kernel says that it takes others.
    pub head_dim: u32,
    /// Tokens of a cache block.
    pub block_size: u32,
    /// Of activations and cache.
    pub dtype: CudaDtype,
}

/// Writes k and v to one layer of the cache. `batch.head_dim` may be any multiple of 16 bytes.
#[derive(Debug, Clone, Copy)]
pub struct Append {
    /// The tokens.
    pub batch: TokenBatch,
    /// \[tokens, kv_heads, head_dim\].
    pub k: Span,
    /// \[tokens, kv_heads, head_dim\].
    pub v: Span,
    /// \[blocks, kv_heads, 2, block_size, head_dim\].
    pub cache: Span,
    /// Elements between tokens of k and of v.
    pub stride: u32,
}

/// The context of each query split over several blocks of threads.
#[derive(Debug, Clone, Copy)]
pub struct DecodeSplit {
    /// Parts, 2 to 64.
    pub splits: u32,
    /// f32 \[count, heads, splits, head_dim + 2\].
    pub partials: Span,
    /// u32 \[count, heads\], all zero.
    pub counters: Span,
}

/// Attention of single query tokens.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    /// The tokens.
    pub batch: TokenBatch,
    /// \[tokens, heads, head_dim\].
    pub q: Span,
    /// Elements between tokens of q.
    pub q_stride: u32,
    /// k and v of the tokens \[tokens, kv_heads, head_dim\] and the elements between tokens, to be appended on the way.
    /// The tokens are then of different lanes.
    pub append: Option<(Span, Span, u32)>,
    /// \[blocks, kv_heads, 2, block_size, head_dim\].
    pub cache: Span,
    /// \[tokens, heads, head_dim\].
    pub out: Span,
    /// Elements between tokens of out.
    pub out_stride: u32,
    /// u32 \[count\]: which tokens; all without it.
    pub queries: Option<(Span, u32)>,
    /// Whether the context is split.
    pub split: Option<DecodeSplit>,
    /// Factor on the scores.
    pub scale: f32,
}

/// Attention of tiles of consecutive query tokens, on tensor cores.
#[derive(Debug, Clone, Copy)]
pub struct Prefill {
    /// The tokens.
    pub batch: TokenBatch,
    /// \[tokens, heads, head_dim\].
    pub q: Span,
    /// Elements between tokens of q.
    pub q_stride: u32,
    /// \[blocks, kv_heads, 2, block_size, head_dim\], the tiles' own tokens included.
    pub cache: Span,
    /// \[tokens, heads, head_dim\].
    pub out: Span,
    /// Elements between tokens of out.
    pub out_stride: u32,
    /// u32 \[count, 2\]: first token, tokens (at most [`PREFILL_TILE`]).
    pub tiles: Span,
    /// Tiles.
    pub count: u32,
    /// Factor on the scores, above 0.
    pub scale: f32,
}

/// One token from some rows of logits, each of another.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// f32 \[logits_rows, vocab\].
    pub logits: Span,
    /// \[rows\] of [`super::DRAW_BYTES`].
    pub draws: Span,
    /// \[logits_rows\] of [`super::SAMPLED_BYTES`].
    pub sampled: Span,
    /// u32 \[lanes\].
    pub lane_tokens: Span,
    /// \[changes\] of [`super::CHANGE_BYTES`], with their number.
    pub changes: Option<(Span, u32)>,
    /// \[masks\] of [`super::mask_bytes`], with their number.
    pub masks: Option<(Span, u32)>,
    /// Rows that are sampled.
    pub rows: u32,
    /// Rows that there are.
    pub logits_rows: u32,
    /// Width, at most [`super::SAMPLE_VOCAB_MAX`].
    pub vocab: u32,
    /// Lanes.
    pub lanes: u32,
}

/// How likely the tokens of some rows are, as the model gives them.
#[derive(Debug, Clone, Copy)]
pub struct Score {
    /// f32 \[rows, vocab\].
    pub logits: Span,
    /// \[count\] of [`super::SCORED_BYTES`].
    pub scored: Span,
    /// \[count\] of [`super::SCORES_BYTES`].
    pub scores: Span,
    /// Rows that are scored.
    pub count: u32,
    /// Rows that there are.
    pub rows: u32,
    /// Width, at most [`super::SAMPLE_VOCAB_MAX`].
    pub vocab: u32,
}

/// The structs of pinion_cuda.h, field by field.
pub(super) mod raw {
    macro_rules! structs {
        ($($name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {
            $(#[repr(C)]
            #[derive(Debug, Clone, Copy)]
            pub(crate) struct $name { $(pub(crate) $field: $kind),* })*
        };
    }

    structs! {
        Product {
            x: u64, weight: u64, bias: u64, y: u64, m: u32, n: u32, k: u32,
            dtype: i32, y_dtype: i32, activation: i32, method: i32, accumulate: i32, candidates: u32,
        }
        Norm {
            x: u64, delta: u64, delta_bias: u64, weight: u64, bias: u64, out: u64, rows: u32, width: u32,
            epsilon: f32, dtype: i32, rms: i32,
        }
        Bias { x: u64, bias: u64, rows: u32, width: u32, dtype: i32, activation: i32 }
        Rms {
            x: u64, weight: u64, out: u64, rows: u32, groups: u32, width: u32, x_stride: u32, out_stride: u32,
            epsilon: f32, dtype: i32, order: i32,
        }
        Scale { x: u64, count: u64, factor: f32, divisor: f32, soft_cap: f32, dtype: i32 }
        Gate { x: u64, out: u64, rows: u32, width: u32, dtype: i32, activation: i32 }
        Rope {
            x: u64, positions: u64, angles: u64, tokens: u32, heads: u32, head_dim: u32, dim: u32, stride: u32,
            positions_max: u32, dtype: i32,
        }
        Embed {
            tokens: u64, positions: u64, lanes: u64, lane_tokens: u64, token_table: u64, position_table: u64, out: u64,
            count: u32, width: u32, vocab: u32, positions_max: u32, dtype: i32,
        }
        Gather { x: u64, index: u64, out: u64, count: u32, width: u32, rows: u32, dtype: i32 }
        Tables { updates: u64, tables: u64, count: u32, lanes: u32, table_stride: u32 }
        Blocks { cache: u64, pairs: u64, layer_bytes: u64, block_bytes: u64, count: u32, layers: u32 }
        Batch {
            lanes: u64, positions: u64, tables: u64, tokens: u32, table_stride: u32, heads: u32, kv_heads: u32,
            head_dim: u32, block_size: u32, dtype: i32,
        }
        Append { batch: Batch, k: u64, v: u64, cache: u64, stride: u32 }
        Attention {
            batch: Batch, q: u64, k: u64, v: u64, cache: u64, out: u64, queries: u64, partials: u64, counters: u64,
            q_stride: u32, kv_stride: u32, out_stride: u32, count: u32, splits: u32, append: u32, scale: f32,
        }
        General {
            batch: Batch, q: u64, cache: u64, out: u64, queries: u64, q_stride: u32, out_stride: u32, count: u32,
            window: u32, scale: f32, soft_cap: f32,
        }
        Prefill {
            batch: Batch, q: u64, cache: u64, out: u64, tiles: u64, q_stride: u32, out_stride: u32, count: u32,
            scale: f32,
        }
        Sample {
            logits: u64, draws: u64, sampled: u64, lane_tokens: u64, changes: u64, masks: u64, rows: u32,
            logits_rows: u32, vocab: u32, lanes: u32, changes_count: u32, masks_count: u32,
        }
        Score { logits: u64, scored: u64, scores: u64, count: u32, rows: u32, vocab: u32 }
        Decode {
            embed: Embed, attention: Attention, layers: u64, norm_final_weight: u64, norm_final_bias: u64, head: u64,
            inner_rows: u64, logits: u64, barrier: u64, stamps: u64, layer_count: u32, hidden: u32, inner: u32,
            vocab: u32, blocks: u32, group_slots: u32, activation: i32, epsilon: f32,
        }
        DecodePlan { blocks: u32, group_slots: u32, shared_bytes: u32 }
    }
}
