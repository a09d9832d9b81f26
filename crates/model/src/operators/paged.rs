//! The paged cache in the layout of our CUDA object, and attention over it by the object's kernels, on libtorch's
//! stream.

use super::decoder::kind_of;
use super::{OperatorKernels, OperatorOptions, OperatorPrefill};
use crate::batch::{BlockCopy, StepBatch};
use crate::cuda::inputs::TILED_QUERY_MIN;
use crate::cuda::shape::{is_general, window_within};
use crate::cuda::{CudaDtype, PrefillAttention, splits};
use pinion_architecture::Architecture;
use pinion_cuda::PREFILL_TILE;
use pinion_ops::tensor::TensorError;
use pinion_ops::tensor_kernels::{ContextSplit, PagedAttention, TensorKernels, TensorStream, TokenPlaces};
use std::ops::Range;
use tch::{Device, Kind, Tensor};

/// The object, and which of its kernels each layer takes.
#[derive(Debug)]
pub(super) struct Kernels {
    object: TensorKernels,
    layers: Vec<LayerKernel>,
    /// Whether prompt chunks go to the tensor cores.
    tiled: bool,
    heads: u32,
    head_dim: u32,
}

#[derive(Debug, Clone, Copy)]
struct LayerKernel {
    is_general: bool,
    window: Option<u32>,
}

impl Kernels {
    pub(super) fn open(
        kernels: &OperatorKernels,
        model: &Architecture,
        options: &OperatorOptions,
        max_context: u32,
    ) -> Result<Self, TensorError> {
        let object = TensorKernels::open(&kernels.object, super::decoder::tensors_of(options.device))?;
        let layer = |index| LayerKernel {
            is_general: is_general(model, index, max_context),
            window: window_within(model, index, max_context),
        };
        let layers: Vec<LayerKernel> = (0..model.layers.len()).map(layer).collect();
        let dtype = match kind_of(options.dtype) {
            Kind::BFloat16 => CudaDtype::Bf16,
            Kind::Half => CudaDtype::F16,
            _ => CudaDtype::F32,
        };
        let chunks = match options.prefill {
            OperatorPrefill::Plain => PrefillAttention::Plain,
            OperatorPrefill::Auto | OperatorPrefill::Sdpa => PrefillAttention::Auto,
        };
        let tiled = layers.iter().all(|layer| !layer.is_general)
            && chunks.on_tensor_cores(dtype, model.attention.head_dim);
        let (heads, head_dim) = (model.attention.heads, model.attention.head_dim);
        Ok(Self { object, layers, tiled, heads, head_dim })
    }

    pub(super) fn stream(&self) -> Result<TensorStream, TensorError> {
        self.object.stream()
    }
}

/// Keys and values of all layers, `[layers, blocks, kv_heads, 2, block_size, head_dim]`, and of each.
#[derive(Debug)]
pub(super) struct PagedCache {
    all: Tensor,
    layers: Vec<Tensor>,
}

impl PagedCache {
    pub(super) fn new(
        model: &Architecture,
        blocks: u32,
        block_size: i64,
        kind: Kind,
        device: Device,
    ) -> Result<Self, TensorError> {
        let (attention, layers) = (&model.attention, model.layers.len() as i64);
        let [kv_heads, head_dim] = [attention.kv_heads, attention.head_dim].map(i64::from);
        let shape = [layers, i64::from(blocks), kv_heads, 2, block_size, head_dim];
        let all = Tensor::f_zeros(shape, (kind, device))?;
        let layers = (0..layers).map(|index| all.f_select(0, index)).collect::<Result<Vec<Tensor>, _>>()?;
        Ok(Self { all, layers })
    }

    /// Whole blocks: what lies behind the copied beginning is written before it is read.
    pub(super) fn copy(&self, copy: &BlockCopy) -> Result<(), TensorError> {
        let block = |block: u32| self.all.f_select(1, i64::from(block));
        block(copy.to)?.f_copy_(&block(copy.from)?)?;
        Ok(())
    }
}

/// What a step sends to the device, as words of one tensor.
#[derive(Debug)]
pub(super) struct StepWords {
    pub(super) tokens: Tensor,
    pub(super) positions: Tensor,
    /// The last query token of each row that samples.
    pub(super) sampled: Option<Tensor>,
    /// The row of each query token.
    lanes: Tensor,
    /// `[rows, blocks]`
    tables: Tensor,
    /// Query tokens that go one at a time, if not all do; there may be none.
    singles: Option<Tensor>,
    /// `[tiles, 2]`
    tiles: Option<Tensor>,
    split: Option<ContextSplit>,
}

/// Arrays of a step one behind the other, each at a multiple of 16 bytes.
#[derive(Default)]
struct Words(Vec<i32>);

impl Words {
    fn put(&mut self, words: impl IntoIterator<Item = u32>) -> Range<i64> {
        let begin = self.0.len();
        // Ids and indices are below 2^31.
        self.0.extend(words.into_iter().map(|word| word as i32));
        let end = self.0.len();
        self.0.resize(end.next_multiple_of(4), 0);
        begin as i64..end as i64
    }
}

/// Query tokens by the kernel that takes them.
#[derive(Default)]
struct Queries {
    singles: Vec<u32>,
    /// First token and tokens of each.
    tiles: Vec<u32>,
}

impl Queries {
    fn of(batch: &StepBatch<'_>, tiled: bool) -> Self {
        let mut queries = Self::default();
        for row in batch.rows {
            let range = row.query_start..row.query_start + row.query_len;
            if !tiled || row.query_len < TILED_QUERY_MIN {
                queries.singles.extend(range);
                continue;
            }
            for first in range.clone().step_by(PREFILL_TILE as usize) {
                queries.tiles.extend([first, PREFILL_TILE.min(range.end - first)]);
            }
        }
        queries
    }
}

impl StepWords {
    /// Of a batch that was checked and has rows.
    pub(super) fn new(batch: &StepBatch<'_>, kernels: &Kernels, device: Device) -> Result<Self, TensorError> {
        let stride = batch.rows.iter().map(|row| row.blocks_len as usize).max().unwrap_or(0);
        let (mut lanes, mut tables) = (Vec::new(), Vec::with_capacity(batch.rows.len() * stride));
        for (lane, row) in batch.rows.iter().enumerate() {
            lanes.resize(lanes.len() + row.query_len as usize, lane as u32);
            tables.extend_from_slice(&batch.blocks[row.block_range()]);
            tables.resize((lane + 1) * stride, 0);
        }
        let queries = Queries::of(batch, kernels.tiled);
        let single_count = queries.singles.len() as u32;
        let last = |row: &crate::Row| row.sample.is_some().then(|| row.query_start + row.query_len - 1);
        let mut words = Words::default();
        let places = [
            words.put(batch.tokens.iter().copied()),
            words.put(batch.positions.iter().copied()),
            words.put(batch.rows.iter().filter_map(last)),
            words.put(lanes),
            words.put(tables),
            words.put(queries.singles),
            words.put(queries.tiles),
        ];
        let all = Tensor::f_from_slice(&words.0)?.f_to_device(device)?;
        let part = |range: &Range<i64>| all.f_narrow(0, range.start, range.end - range.start);
        let some = |range: &Range<i64>| (!range.is_empty()).then(|| part(range)).transpose();
        let [tokens, positions, sampled, lanes, tables, singles, tiles] = &places;
        let tiles = some(tiles)?;
        Ok(Self {
            tokens: part(tokens)?,
            positions: part(positions)?,
            sampled: some(sampled)?,
            lanes: part(lanes)?,
            tables: part(tables)?.f_reshape([batch.rows.len() as i64, stride as i64])?,
            singles: if tiles.is_some() { Some(part(singles)?) } else { None },
            tiles: tiles.map(|tiles| tiles.f_reshape([-1, 2])).transpose()?,
            split: split(kernels, single_count, device)?,
        })
    }
}

/// How the contexts of a number of single queries are split, so that few of them fill the device too.
fn split(kernels: &Kernels, count: u32, device: Device) -> Result<Option<ContextSplit>, TensorError> {
    let parts = if count == 0 { 1 } else { splits(count, kernels.heads, kernels.object.multiprocessors()) };
    if parts == 1 || kernels.layers.iter().all(|layer| layer.is_general) {
        return Ok(None);
    }
    let [count, heads, part_count, part] = [count, kernels.heads, parts, kernels.head_dim + 2].map(i64::from);
    Ok(Some(ContextSplit {
        splits: parts,
        partials: Tensor::f_empty([count, heads, part_count, part], (Kind::Float, device))?,
        counters: Tensor::f_zeros([count, heads], (Kind::Int, device))?,
    }))
}

/// One step's attention.
#[derive(Debug)]
pub(super) struct PagedStep<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) cache: &'a PagedCache,
    pub(super) words: &'a StepWords,
    pub(super) stream: TensorStream,
}

impl PagedStep<'_> {
    /// Appends keys and values `[tokens, kv_heads, head_dim]` to the cache of a layer, and gives attention of `queries`
    /// `[tokens, heads, head_dim]` over it: `[tokens, heads * head_dim]`.
    pub(super) fn attend(
        &self,
        index: usize,
        [queries, keys, values]: [&Tensor; 3],
        scale: f32,
        soft_cap: Option<f32>,
    ) -> Result<Tensor, TensorError> {
        let (words, stream, kernel) = (self.words, &self.stream, self.kernels.layers[index]);
        let cache = &self.cache.layers[index];
        let places = TokenPlaces { lanes: &words.lanes, positions: &words.positions, tables: &words.tables };
        stream.append(&places, keys, values, cache)?;
        let out = Tensor::f_empty(queries.size(), (queries.kind(), queries.device()))?;
        let layer = PagedAttention { places, queries, cache, out: &out, scale };
        let singles = words.singles.as_ref();
        if kernel.is_general {
            stream.attend_generally(&layer, singles, kernel.window, soft_cap)?;
        } else {
            if singles.is_none_or(|singles| singles.numel() > 0) {
                stream.attend(&layer, singles, words.split.as_ref())?;
            }
            if let Some(tiles) = &words.tiles {
                stream.attend_tiles(&layer, tiles)?;
            }
        }
        Ok(out.f_flatten(1, 2)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OwnedBatch;

    #[test]
    fn every_query_token_is_a_single_one_or_in_a_tile() {
        let mut batch = OwnedBatch::default();
        for (slot, count) in [1usize, 15, 16, 130, 64].into_iter().enumerate() {
            batch.push(slot as u32, 0, &vec![7; count], &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        }
        let queries = Queries::of(&batch.as_step(), true);
        assert_eq!(queries.singles, (0..16).collect::<Vec<u32>>());
        assert_eq!(queries.tiles, [16, 16, 32, 64, 96, 64, 160, 2, 162, 64]);
        let queries = Queries::of(&batch.as_step(), false);
        assert_eq!((queries.singles.len(), queries.tiles.len()), (226, 0));
    }

    #[test]
    fn arrays_begin_at_multiples_of_16_bytes() {
        let mut words = Words::default();
        assert_eq!([words.put([1, 2, 3]), words.put([]), words.put([4; 5])], [0..3, 4..4, 4..9]);
        assert_eq!(words.0, [1, 2, 3, 0, 4, 4, 4, 4, 4, 0, 0, 0]);
    }
}
