//! The paged cache as tensors, and attention over it by libtorch's operators.

use pinion_architecture::{Architecture, Layer};
use pinion_ops::tensor::TensorError;
use tch::{Device, Kind, Tensor};

/// Keys and values of one layer, `[blocks * block_size, kv_heads, head_dim]` each.
#[derive(Debug)]
pub(super) struct LayerCache {
    keys: Tensor,
    values: Tensor,
}

/// One row's part of a step, on the device.
#[derive(Debug)]
pub(super) struct RowPlaces {
    /// Its query tokens among those of the step.
    pub(super) query_start: i64,
    pub(super) query_len: i64,
    /// Rows of the cache with its whole context, `[context]`.
    pub(super) context: Tensor,
    /// Position of its first query token.
    pub(super) first: i64,
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

    /// Keys and values `[tokens, kv_heads, head_dim]` to these rows, `[tokens]`.
    pub(super) fn append(
        &mut self,
        rows: &Tensor,
        keys: &Tensor,
        values: &Tensor,
    ) -> Result<(), TensorError> {
        let _ = self.keys.f_index_copy_(0, rows, keys)?;
        let _ = self.values.f_index_copy_(0, rows, values)?;
        Ok(())
    }

    /// `queries` `[tokens, heads, head_dim]` of all rows over their contexts, in fp32: `[tokens, heads * head_dim]`.
    pub(super) fn attend(
        &self,
        queries: &Tensor,
        rows: &[RowPlaces],
        layer: &Layer,
        soft_cap: Option<f32>,
    ) -> Result<Tensor, TensorError> {
        let attended: Result<Vec<Tensor>, TensorError> =
            rows.iter().map(|row| self.attend_row(queries, row, layer, soft_cap)).collect();
        // [tokens, heads, head_dim]
        Ok(Tensor::f_cat(&attended?, 0)?.f_flatten(1, 2)?)
    }

    fn attend_row(
        &self,
        queries: &Tensor,
        row: &RowPlaces,
        layer: &Layer,
        soft_cap: Option<f32>,
    ) -> Result<Tensor, TensorError> {
        let end = row.first + row.query_len;
        let begin = layer.window.map_or(0, |window| (row.first + 1 - i64::from(window)).max(0));
        let places = row.context.f_narrow(0, begin, end - begin)?;
        // [heads, queries, head_dim]
        let query =
            queries.f_narrow(0, row.query_start, row.query_len)?.f_transpose(0, 1)?.f_to_kind(Kind::Float)?;
        // [kv_heads, context, head_dim], then each KV head beside itself for its group of query heads
        let group = query.size()[0] / self.keys.size()[1];
        let of_context = |cache: &Tensor| -> Result<Tensor, TensorError> {
            let taken = cache.f_index_select(0, &places)?.f_transpose(0, 1)?.f_to_kind(Kind::Float)?;
            Ok(taken.f_repeat_interleave_self_int(group, 0, None)?)
        };
        let (keys, values) = (of_context(&self.keys)?, of_context(&self.values)?);
        let mut scores = query.f_matmul(&keys.f_transpose(1, 2)?)?;
        let _ = scores.f_mul_scalar_(f64::from(layer.scale))?;
        if let Some(cap) = soft_cap {
            let _ = scores.f_div_scalar_(f64::from(cap))?.f_tanh_()?.f_mul_scalar_(f64::from(cap))?;
        }
        if row.query_len > 1 || layer.window.is_some() {
            let hidden = hidden_positions(row.first..end, begin..end, layer.window, scores.device())?;
            let _ = scores.f_masked_fill_(&hidden, f64::NEG_INFINITY)?;
        }
        let attended = scores.f_softmax(-1, Kind::Float)?.f_matmul(&values)?;
        // [heads, queries, head_dim] to [queries, heads, head_dim]
        Ok(attended.f_transpose(0, 1)?.f_to_kind(queries.kind())?)
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
