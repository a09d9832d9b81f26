//! What stands between the products of a decoder's layers, beside norms with a shift and attention of the common head
//! sizes: operands and launches.

use super::device::{CudaError, Stream};
use super::kernels::raw;
use super::launch::{Lengths, address};
use super::memory::Span;
use super::{CudaDtype, TokenBatch};

/// Largest head of [`Stream::general_attention`].
pub const GENERAL_DIM_MAX: u32 = 256;

/// What an RMS norm does with its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RmsOrder {
    /// Rounds to the dtype, then multiplies.
    RoundFirst,
    /// Multiplies, then rounds.
    RoundLast,
    /// Multiplies with 1 + weight, then rounds.
    OnePlus,
}

/// RMS norms of groups of columns, each group on its own.
#[derive(Debug, Clone, Copy)]
pub struct Rms {
    /// \[rows, groups, width\].
    pub x: Span,
    /// f32 \[width\], for every group.
    pub weight: Span,
    /// As x, which it may be.
    pub out: Span,
    /// Rows.
    pub rows: u32,
    /// Groups of each row, side by side.
    pub groups: u32,
    /// Columns of a group.
    pub width: u32,
    /// Elements between rows of x.
    pub x_stride: u32,
    /// Elements between rows of out.
    pub out_stride: u32,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Of x and out.
    pub dtype: CudaDtype,
    /// What is done with the weight.
    pub order: RmsOrder,
}

/// x = x * factor / divisor, then capped, in place.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// \[count\].
    pub x: Span,
    /// Elements.
    pub count: u64,
    /// Multiplies.
    pub factor: f32,
    /// Divides; not 0.
    pub divisor: f32,
    /// x becomes c * tanh(x / c).
    pub soft_cap: Option<f32>,
    /// Of x.
    pub dtype: CudaDtype,
}

/// What goes through the gate of an MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateActivation {
    /// x * sigmoid(x).
    Silu,
    /// GELU with the tanh approximation.
    GeluTanh,
    /// GELU with erf.
    GeluErf,
}

/// out \[rows, width\] = activation(x\[.., 0, ..\]) * x\[.., 1, ..\].
#[derive(Debug, Clone, Copy)]
pub struct Gate {
    /// \[rows, 2, width\].
    pub x: Span,
    /// \[rows, width\].
    pub out: Span,
    /// Rows.
    pub rows: u32,
    /// Width of the output.
    pub width: u32,
    /// Of both.
    pub dtype: CudaDtype,
    /// Of the first half.
    pub activation: GateActivation,
}

/// Rotates the first columns of each head of x \[tokens, heads, head_dim\] in place.
#[derive(Debug, Clone, Copy)]
pub struct Rope {
    /// \[tokens, heads, head_dim\].
    pub x: Span,
    /// u32 \[tokens\].
    pub positions: Span,
    /// f32 \[positions_max, dim / 2, 2\]: cosine, sine.
    pub angles: Span,
    /// Tokens.
    pub tokens: u32,
    /// Heads.
    pub heads: u32,
    /// Columns of a head.
    pub head_dim: u32,
    /// Columns that are rotated.
    pub dim: u32,
    /// Elements between tokens.
    pub stride: u32,
    /// Rows of `angles`.
    pub positions_max: u32,
    /// Of x.
    pub dtype: CudaDtype,
}

/// Attention of single query tokens whose keys and values are in the cache: every head size up to [`GENERAL_DIM_MAX`]
/// that is a multiple of 16 bytes.
#[derive(Debug, Clone, Copy)]
pub struct GeneralAttention {
    /// The tokens.
    pub batch: TokenBatch,
    /// \[tokens, heads, head_dim\].
    pub q: Span,
    /// Elements between tokens of q.
    pub q_stride: u32,
    /// \[blocks, kv_heads, 2, block_size, head_dim\], the queries' own tokens included.
    pub cache: Span,
    /// \[tokens, heads, head_dim\].
    pub out: Span,
    /// Elements between tokens of out.
    pub out_stride: u32,
    /// u32 \[count\]: which tokens; all without it.
    pub queries: Option<(Span, u32)>,
    /// Positions that a query attends to, its own included; all without it.
    pub window: Option<u32>,
    /// Factor on the scores.
    pub scale: f32,
    /// Scores become c * tanh(score / c), after the factor.
    pub soft_cap: Option<f32>,
}

impl Stream {
    /// See [`Rms`].
    ///
    /// # Errors
    /// As for [`Stream::product`].
    pub fn rms(&self, args: &Rms) -> Result<(), CudaError> {
        let columns = args.groups.saturating_mul(args.width);
        Lengths::of("RMS norm")
            .strided("x", args.x, [args.rows, columns, args.x_stride], args.dtype)
            .need("weight", args.weight, &[args.width as usize], 4)
            .strided("out", args.out, [args.rows, columns, args.out_stride], args.dtype)
            .done()?;
        let raw = raw::Rms {
            x: args.x.address,
            weight: args.weight.address,
            out: args.out.address,
            rows: args.rows,
            groups: args.groups,
            width: args.width,
            x_stride: args.x_stride,
            out_stride: args.out_stride,
            epsilon: args.epsilon,
            dtype: args.dtype.code(),
            order: match args.order {
                RmsOrder::RoundFirst => 0,
                RmsOrder::RoundLast => 1,
                RmsOrder::OnePlus => 2,
            },
        };
        self.launch("RMS norm", self.device().symbols().rms, &raw)
    }

    /// See [`Scale`].
    ///
    /// # Errors
    /// As for [`Stream::product`].
    pub fn scale(&self, args: &Scale) -> Result<(), CudaError> {
        Lengths::of("scale").need("x", args.x, &[args.count as usize], args.dtype.size()).done()?;
        let raw = raw::Scale {
            x: args.x.address,
            count: args.count,
            factor: args.factor,
            divisor: args.divisor,
            soft_cap: args.soft_cap.unwrap_or(0.0),
            dtype: args.dtype.code(),
        };
        self.launch("scale", self.device().symbols().scale, &raw)
    }

    /// See [`Gate`].
    ///
    /// # Errors
    /// As for [`Stream::product`].
    pub fn gate(&self, args: &Gate) -> Result<(), CudaError> {
        let (rows, width, size) = (args.rows as usize, args.width as usize, args.dtype.size());
        Lengths::of("gate")
            .need("x", args.x, &[rows, 2, width], size)
            .need("out", args.out, &[rows, width], size)
            .done()?;
        let raw = raw::Gate {
            x: args.x.address,
            out: args.out.address,
            rows: args.rows,
            width: args.width,
            dtype: args.dtype.code(),
            activation: match args.activation {
                GateActivation::Silu => 0,
                GateActivation::GeluTanh => 1,
                GateActivation::GeluErf => 2,
            },
        };
        self.launch("gate", self.device().symbols().gate, &raw)
    }

    /// See [`Rope`].
    ///
    /// # Errors
    /// As for [`Stream::product`].
    pub fn rope(&self, args: &Rope) -> Result<(), CudaError> {
        let shape = [args.tokens, args.heads.saturating_mul(args.head_dim), args.stride];
        Lengths::of("rope")
            .strided("x", args.x, shape, args.dtype)
            .need("positions", args.positions, &[args.tokens as usize], 4)
            .need("angles", args.angles, &[args.positions_max as usize, args.dim as usize], 4)
            .done()?;
        let raw = raw::Rope {
            x: args.x.address,
            positions: args.positions.address,
            angles: args.angles.address,
            tokens: args.tokens,
            heads: args.heads,
            head_dim: args.head_dim,
            dim: args.dim,
            stride: args.stride,
            positions_max: args.positions_max,
            dtype: args.dtype.code(),
        };
        self.launch("rope", self.device().symbols().rope, &raw)
    }

    /// See [`GeneralAttention`].
    ///
    /// # Errors
    /// As for [`Stream::product`].
    pub fn general_attention(&self, args: &GeneralAttention) -> Result<(), CudaError> {
        let batch = &args.batch;
        let width = batch.heads.saturating_mul(batch.head_dim);
        let count = args.queries.map_or(batch.tokens, |(_, count)| count);
        batch
            .lengths("general attention")
            .strided("q", args.q, [batch.tokens, width, args.q_stride], batch.dtype)
            .strided("out", args.out, [batch.tokens, width, args.out_stride], batch.dtype)
            .maybe("queries", args.queries.map(|(span, _)| span), &[count as usize], 4)
            .done()?;
        let raw = raw::General {
            batch: batch.raw(),
            q: args.q.address,
            cache: args.cache.address,
            out: args.out.address,
            queries: address(args.queries.map(|(span, _)| span)),
            q_stride: args.q_stride,
            out_stride: args.out_stride,
            count,
            window: args.window.unwrap_or(0),
            scale: args.scale,
            soft_cap: args.soft_cap.unwrap_or(0.0),
        };
        self.launch("general attention", self.device().symbols().general_attention, &raw)
    }
}
