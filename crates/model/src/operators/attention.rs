//! The paged cache as tensors, and attention over it by libtorch's operators.

use super::OperatorPrefill;
use pinion_architecture::{Architecture, Layer};
use pinion_ops::tensor::TensorError;
use tch::{Device, Kind, Tensor};

/// Keys and values of one layer, `[blocks * block_size, kv_heads, head_dim]` each.
#[derive(Debug)]
pub(super) struct LayerCache {
    keys: Tensor,
    values: Tensor,
}

/// Some query tokens of one sequence, on the device.
#[derive(Debug)]
pub(super) struct RowPlaces {
    /// The first of them among those of the step.
    pub(super) query_start: i64,
    pub(super) query_len: i64,
    /// Rows of the cache with the sequence's whole context, `[context]`.
    pub(super) context: Tensor,
    /// Position of the first query token.
    pub(super) first: i64,
}

/// A step's query tokens, and how prompt chunks attend.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    /// In the order of the step's tokens.
    pub(super) places: &'a [RowPlaces],
    /// Rows of the cache that the step writes, `[tokens]`.
    pub(super) written: &'a Tensor,
    pub(super) prefill: OperatorPrefill,
}

/// Scores that stand side by side, 128 MiB of fp32: what bounds the memory of a long prompt's attention.
const SCORES_MAX: u64 = 32 << 20;

/// Query tokens of a sequence whose scores are computed at once.
pub(super) fn queries_at_once(heads: u32, context_len: u32) -> u32 {
    let scores_of_one = (u64::from(heads) * u64::from(context_len)).max(1);
    u32::try_from((SCORES_MAX / scores_of_one).max(1)).unwrap_or(u32::MAX)
}

/// What a row attends over, contiguous: queries `[heads, queries, head_dim]`, keys and values
/// `[heads, context, head_dim]`.
struct Operands {
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    /// What each query does not see, `[queries, context]`, if it does not see all.
    hidden: Option<Tensor>,
    /// Each query sees what is not behind it, and its context begins with the sequence.
    is_causal: bool,
}

impl LayerCache {
    pub(super) fn new(
        rows: i64,
        model: &Architecture,
        kind: Kind,
        device: Device,
    ) -> Result<Self, TensorError> {
        let shape = [rows, i64::from(model.attention.kv_heads), i64::from(model.attention.head_dim)];
        let zeros = || Tensor::f_zeros(shape, (kind, device));
        Ok(Self { keys: zeros()?, values: zeros()? })
    }

    pub(super) fn copy(&mut self, from: i64, to: i64, count: i64) -> Result<(), TensorError> {
        for part in [&self.keys, &self.values] {
            part.f_narrow(0, to, count)?.f_copy_(&part.f_narrow(0, from, count)?)?;
        }
        Ok(())
    }

    /// Keys and values `[tokens, kv_heads, head_dim]` of a step's tokens.
    pub(super) fn append(
        &mut self,
        rows: &Rows<'_>,
        keys: &Tensor,
        values: &Tensor,
    ) -> Result<(), TensorError> {
        let _ = self.keys.f_index_copy_(0, rows.written, keys)?;
        let _ = self.values.f_index_copy_(0, rows.written, values)?;
        Ok(())
    }

    /// `queries` `[tokens, heads, head_dim]` of all rows over their contexts: `[tokens, heads * head_dim]`.
    pub(super) fn attend(
        &self,
        queries: &Tensor,
        rows: &Rows<'_>,
        layer: &Layer,
        soft_cap: Option<f32>,
    ) -> Result<Tensor, TensorError> {
        let by_library = rows.prefill != OperatorPrefill::Plain && soft_cap.is_none();
        let of_row = |row: &RowPlaces| -> Result<Tensor, TensorError> {
            let attended = if by_library && row.query_len > 1 {
                self.operands(queries, row, layer, queries.kind())?.by_library(layer)?
            } else {
                self.operands(queries, row, layer, Kind::Float)?.plain(layer, soft_cap)?
            };
            // [heads, queries, head_dim] to [queries, heads, head_dim]
            Ok(attended.f_transpose(0, 1)?.f_to_kind(queries.kind())?)
        };
        let attended: Result<Vec<Tensor>, TensorError> = rows.places.iter().map(of_row).collect();
        // [tokens, heads, head_dim]
        Ok(Tensor::f_cat(&attended?, 0)?.f_flatten(1, 2)?)
    }

    fn operands(
        &self,
        queries: &Tensor,
        row: &RowPlaces,
        layer: &Layer,
        kind: Kind,
    ) -> Result<Operands, TensorError> {
        let end = row.first + row.query_len;
        let begin = layer.window.map_or(0, |window| (row.first + 1 - i64::from(window)).max(0));
        let places = row.context.f_narrow(0, begin, end - begin)?;
        let query = queries.f_narrow(0, row.query_start, row.query_len)?.f_transpose(0, 1)?;
        let group = query.size()[0] / self.keys.size()[1];
        // [kv_heads, context, head_dim], then each KV head beside itself for its group of query heads
        let of_context = |cache: &Tensor| -> Result<Tensor, TensorError> {
            let taken = cache.f_index_select(0, &places)?.f_transpose(0, 1)?.f_to_kind(kind)?;
            Ok(taken.f_repeat_interleave_self_int(group, 0, None)?)
        };
        let sees_all = row.query_len == 1 && layer.window.is_none();
        let hidden = || hidden_positions(row.first..end, begin..end, layer.window, query.device());
        Ok(Operands {
            keys: of_context(&self.keys)?,
            values: of_context(&self.values)?,
            hidden: (!sees_all).then(hidden).transpose()?,
            is_causal: row.first == 0 && layer.window.is_none(),
            query: query.f_to_kind(kind)?.f_contiguous()?,
        })
    }
}

impl Operands {
    /// `eager_attention_forward` of transformers, without its rounding between the steps.
    fn plain(&self, layer: &Layer, soft_cap: Option<f32>) -> Result<Tensor, TensorError> {
        let mut scores = self.query.f_matmul(&self.keys.f_transpose(1, 2)?)?;
        let _ = scores.f_mul_scalar_(f64::from(layer.scale))?;
        if let Some(cap) = soft_cap {
            let _ = scores.f_div_scalar_(f64::from(cap))?.f_tanh_()?.f_mul_scalar_(f64::from(cap))?;
        }
        if let Some(hidden) = &self.hidden {
            let _ = scores.f_masked_fill_(hidden, f64::NEG_INFINITY)?;
        }
        Ok(scores.f_softmax(-1, Kind::Float)?.f_matmul(&self.values)?)
    }

    /// libtorch's own, which chooses its kernel by device, type and shape. A causal one needs no mask.
    fn by_library(&self, layer: &Layer) -> Result<Tensor, TensorError> {
        let mask = match &self.hidden {
            Some(hidden) if !self.is_causal => Some(hidden.f_logical_not()?),
            _ => None,
        };
        // [1, heads, tokens, head_dim]
        let [query, keys, values] = [&self.query, &self.keys, &self.values].map(|x| x.f_unsqueeze(0));
        let attended = Tensor::f_scaled_dot_product_attention(
            &query?,
            &keys?,
            &values?,
            mask,
            0.0,
            self.is_causal,
            f64::from(layer.scale),
            false,
        )?;
        Ok(attended.f_squeeze_dim(0)?)
    }
}

/// What each query does not see: `[queries, keys]`.
fn hidden_positions(
    queries: std::ops::Range<i64>,
    keys: std::ops::Range<i64>,
    window: Option<u32>,
    device: Device,
) -> Result<Tensor, TensorError> {
    let positions =
        |range: std::ops::Range<i64>| Tensor::f_arange_start(range.start, range.end, (Kind::Int64, device));
    let (queries, keys) = (positions(queries)?.f_unsqueeze(1)?, positions(keys)?.f_unsqueeze(0)?);
    let later = keys.f_gt_tensor(&queries)?;
    let Some(window) = window else { return Ok(later) };
    let too_early = keys.f_le_tensor(&queries.f_sub_scalar(i64::from(window))?)?;
    Ok(later.f_logical_or(&too_early)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_contexts_are_attended_to_a_few_queries_at_a_time() {
        assert_eq!(queries_at_once(12, 1024), 2730);
        assert_eq!(queries_at_once(32, 1 << 17), 8);
        assert_eq!(queries_at_once(128, 1 << 20), 1);
    }
}
