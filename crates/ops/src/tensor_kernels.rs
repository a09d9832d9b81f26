//! Kernels of the CUDA object over libtorch's tensors, queued on libtorch's current stream.
//!
//! Nothing here waits and nothing is allocated: all memory is libtorch's. Its allocator gives memory that was freed to
//! work queued later on the same stream, so a tensor may be dropped as soon as the launch has returned. With tensors on
//! the CPU the object is the emulated one, whose kernels have run when the call returns; the code is the same.

use crate::device::current_stream;
use crate::tensor::TensorError;
use pinion_cuda::{
    Append, Attention, CHANGE_BYTES, CudaDtype, CudaError, DRAW_BYTES, DecodeSplit, GeneralAttention,
    Prefill, SAMPLED_BYTES, SCORED_BYTES, Sample, Score, Span, Stream, TokenBatch, mask_bytes,
};
use std::path::Path;
use tch::{Device, Kind, Tensor};

impl From<CudaError> for TensorError {
    fn from(error: CudaError) -> Self {
        Self { operation: error.operation, message: error.message }
    }
}

fn refused<T>(operation: &'static str, message: impl Into<String>) -> Result<T, TensorError> {
    Err(TensorError { operation, message: message.into() })
}

/// The object, opened for the device that has the tensors.
#[derive(Debug)]
pub struct TensorKernels {
    object: pinion_cuda::Device,
    device: Device,
}

impl TensorKernels {
    /// Opens the object at `path` for tensors on `device`. libtorch has that device open already: the object asks for
    /// all code to be loaded at once, which the driver hears only from the first who opens it.
    ///
    /// # Errors
    /// What is missing, or an object that is not for this device.
    pub fn open(path: &Path, device: Device) -> Result<Self, TensorError> {
        const OPERATION: &str = "opening the CUDA object for libtorch's tensors";
        let index = match device {
            Device::Cuda(index) => u32::try_from(index).unwrap_or(u32::MAX),
            Device::Cpu => 0,
            other => return refused(OPERATION, format!("it has no kernels for tensors on {other:?}")),
        };
        let object = pinion_cuda::Device::open(path, index)?;
        match (object.facts().emulated, device) {
            (true, Device::Cpu) | (false, Device::Cuda(_)) => Ok(Self { object, device }),
            (true, _) => refused(OPERATION, "the emulated object computes over tensors on the CPU alone"),
            (false, _) => refused(OPERATION, "the tensors are on the CPU: use --device cuda"),
        }
    }

    /// Multiprocessors of the device.
    pub fn multiprocessors(&self) -> u32 {
        self.object.facts().multiprocessors.max(1)
    }

    /// This thread's stream, for the launches of a step.
    ///
    /// # Errors
    /// libtorch's or the object's.
    pub fn stream(&self) -> Result<TensorStream, TensorError> {
        let raw = match self.device {
            Device::Cuda(index) => current_stream(index)
                .map_err(|message| TensorError { operation: "asking libtorch for its stream", message })?,
            _ => 0,
        };
        // SAFETY: libtorch's streams live as long as the process.
        let stream = unsafe { self.object.borrow_stream(raw) }?;
        Ok(TensorStream { stream, device: self.device })
    }
}

/// Query tokens of a step, and where their sequences are in the cache: i32 on the device.
#[derive(Debug, Clone, Copy)]
pub struct TokenPlaces<'a> {
    /// \[tokens\]: a row of `tables` for each.
    pub lanes: &'a Tensor,
    /// \[tokens\].
    pub positions: &'a Tensor,
    /// \[lanes, blocks\]: blocks of the cache, which the caller has checked.
    pub tables: &'a Tensor,
}

/// Attention of one layer's query tokens. Their keys and values are in the cache already.
#[derive(Debug, Clone, Copy)]
pub struct PagedAttention<'a> {
    /// The tokens.
    pub places: TokenPlaces<'a>,
    /// \[tokens, heads, head_dim\].
    pub queries: &'a Tensor,
    /// \[blocks, kv_heads, 2, block_size, head_dim\].
    pub cache: &'a Tensor,
    /// \[tokens, heads, head_dim\]: the rows of the tokens that a launch names are written.
    pub out: &'a Tensor,
    /// Factor on the scores.
    pub scale: f32,
}

/// The context of each query in several parts, one block of threads for each.
#[derive(Debug)]
pub struct ContextSplit {
    /// Parts.
    pub splits: u32,
    /// f32 \[queries, heads, splits, head_dim + 2\].
    pub partials: Tensor,
    /// i32 \[queries, heads\], all zero, and zero again after a launch.
    pub counters: Tensor,
}

/// What the sampler reads and writes, as bytes (`u8`) but for logits and tokens.
#[derive(Debug, Clone, Copy)]
pub struct SampleTensors<'a> {
    /// f32 \[rows, vocab\].
    pub logits: &'a Tensor,
    /// The draws, one behind the other.
    pub draws: &'a Tensor,
    /// The changes of logits.
    pub changes: &'a Tensor,
    /// The masks.
    pub masks: &'a Tensor,
    /// The results, one for each row of logits.
    pub sampled: &'a Tensor,
    /// i32 \[lanes\]: each lane's token.
    pub lane_tokens: &'a Tensor,
}

/// A stream of libtorch's, for launches over tensors of its device.
#[derive(Debug)]
pub struct TensorStream {
    stream: Stream,
    device: Device,
}

fn dtype_of(kind: Kind) -> Result<CudaDtype, TensorError> {
    match kind {
        Kind::Float => Ok(CudaDtype::F32),
        Kind::BFloat16 => Ok(CudaDtype::Bf16),
        Kind::Half => Ok(CudaDtype::F16),
        other => {
            refused("attention", format!("the CUDA object computes in fp32, bf16 and fp16, not {other:?}"))
        }
    }
}

/// Elements between rows of a tensor, and elements of a row, if all axes but the first are contiguous.
fn row_strides(tensor: &Tensor) -> Option<(i64, i64)> {
    let (axes, strides) = (tensor.size(), tensor.stride());
    let mut width = 1;
    for (&axis, &stride) in axes.iter().zip(&strides).skip(1).rev() {
        if axis > 1 && stride != width {
            return None;
        }
        width *= axis;
    }
    let stride = match axes.first() {
        Some(&rows) if rows > 1 => strides[0],
        _ => width,
    };
    (stride >= width).then_some((stride, width))
}

fn narrow(axis: i64) -> u32 {
    u32::try_from(axis).unwrap_or(u32::MAX)
}

impl TensorStream {
    /// The memory of a tensor of this kind and these axes, and the elements between its rows.
    fn rows(
        &self,
        name: &'static str,
        tensor: &Tensor,
        kind: Kind,
        axes: &[i64],
    ) -> Result<(Span, u32), TensorError> {
        let strides = row_strides(tensor);
        let is_right = tensor.device() == self.device && tensor.kind() == kind && tensor.size() == axes;
        let (Some((stride, width)), true) = (strides, is_right) else {
            let (found, device) = (tensor.size(), tensor.device());
            let message = format!(
                "{name} is {:?} {found:?} on {device:?}, not rows of {kind:?} {axes:?} on {:?}",
                tensor.kind(),
                self.device
            );
            return refused("kernels over tensors", message);
        };
        let rows = axes.first().copied().unwrap_or(1);
        let elements = if tensor.numel() == 0 { 0 } else { (rows - 1) * stride + width };
        let bytes = elements.unsigned_abs() * kind.elt_size_in_bytes() as u64;
        // SAFETY: the tensor has these elements on the stream's device, and nothing borrows them: tch gives tensors'
        // memory out as pointers only. Memory of a tensor that is dropped goes to work behind this on the same stream.
        let span = unsafe { Span::of_memory(tensor.data_ptr() as u64, bytes) };
        Ok((span, narrow(stride)))
    }

    /// The same of a tensor without gaps between its rows.
    fn whole(
        &self,
        name: &'static str,
        tensor: &Tensor,
        kind: Kind,
        axes: &[i64],
    ) -> Result<Span, TensorError> {
        let (span, stride) = self.rows(name, tensor, kind, axes)?;
        let width: i64 = axes.iter().skip(1).product();
        if stride != narrow(width) {
            return refused("kernels over tensors", format!("{name} has gaps between its rows"));
        }
        Ok(span)
    }

    fn batch(&self, places: &TokenPlaces<'_>, cache: &Tensor, heads: i64) -> Result<TokenBatch, TensorError> {
        let (tokens, cached) = (places.lanes.numel() as i64, cache.size());
        let (&[lanes, blocks], &[_, kv_heads, 2, block_size, head_dim]) =
            (&places.tables.size()[..], &cached[..])
        else {
            return refused("attention", "block tables or cache have other axes than the kernels'");
        };
        self.whole("the cache", cache, cache.kind(), &cached)?;
        Ok(TokenBatch {
            lanes: self.whole("lanes", places.lanes, Kind::Int, &[tokens])?,
            positions: self.whole("positions", places.positions, Kind::Int, &[tokens])?,
            tables: self.whole("block tables", places.tables, Kind::Int, &[lanes, blocks])?,
            tokens: narrow(tokens),
            table_stride: narrow(blocks),
            heads: narrow(heads),
            kv_heads: narrow(kv_heads),
            head_dim: narrow(head_dim),
            block_size: narrow(block_size),
            dtype: dtype_of(cache.kind())?,
        })
    }

    /// Writes keys and values `[tokens, kv_heads, head_dim]` to the cache.
    ///
    /// # Errors
    /// A tensor that does not fit the others, or the object's.
    pub fn append(
        &self,
        places: &TokenPlaces<'_>,
        keys: &Tensor,
        values: &Tensor,
        cache: &Tensor,
    ) -> Result<(), TensorError> {
        let batch = self.batch(places, cache, keys.size().get(1).copied().unwrap_or(0))?;
        let axes = [batch.tokens, batch.kv_heads, batch.head_dim].map(i64::from);
        // The kernel knows one stride for both.
        let (keys, values) = match (row_strides(keys), row_strides(values)) {
            (Some(of_keys), Some(of_values)) if of_keys == of_values => {
                (keys.shallow_clone(), values.shallow_clone())
            }
            _ => (keys.f_contiguous()?, values.f_contiguous()?),
        };
        let (k, stride) = self.rows("keys", &keys, cache.kind(), &axes)?;
        let (v, _) = self.rows("values", &values, cache.kind(), &axes)?;
        let cache = self.whole("the cache", cache, cache.kind(), &cache.size())?;
        Ok(self.stream.kv_append(&Append { batch, k, v, cache, stride })?)
    }

    /// Attention of single query tokens by the tuned kernel: those that `singles`, i32 \[count\], names, or all.
    ///
    /// # Errors
    /// As for [`TensorStream::append`].
    pub fn attend(
        &self,
        layer: &PagedAttention<'_>,
        singles: Option<&Tensor>,
        split: Option<&ContextSplit>,
    ) -> Result<(), TensorError> {
        let (args, count) = self.operands(layer, singles)?;
        let heads = i64::from(args.batch.heads);
        let split = split.map(|split| -> Result<DecodeSplit, TensorError> {
            let parts =
                [i64::from(count), heads, i64::from(split.splits), i64::from(args.batch.head_dim) + 2];
            Ok(DecodeSplit {
                splits: split.splits,
                partials: self.whole("partials", &split.partials, Kind::Float, &parts)?,
                counters: self.whole("counters", &split.counters, Kind::Int, &[i64::from(count), heads])?,
            })
        });
        Ok(self.stream.attention(&Attention { split: split.transpose()?, ..args })?)
    }

    /// The same by the general kernel: any head size, windows, capped scores.
    ///
    /// # Errors
    /// As for [`TensorStream::append`].
    pub fn attend_generally(
        &self,
        layer: &PagedAttention<'_>,
        singles: Option<&Tensor>,
        window: Option<u32>,
        soft_cap: Option<f32>,
    ) -> Result<(), TensorError> {
        let (args, _) = self.operands(layer, singles)?;
        Ok(self.stream.general_attention(&GeneralAttention {
            batch: args.batch,
            q: args.q,
            q_stride: args.q_stride,
            cache: args.cache,
            out: args.out,
            out_stride: args.out_stride,
            queries: args.queries,
            window,
            scale: args.scale,
            soft_cap,
        })?)
    }

    /// Attention of tiles of prompt chunks on tensor cores. `tiles`, i32 \[count, 2\]: first token and tokens.
    ///
    /// # Errors
    /// As for [`TensorStream::append`].
    pub fn attend_tiles(&self, layer: &PagedAttention<'_>, tiles: &Tensor) -> Result<(), TensorError> {
        let (args, _) = self.operands(layer, None)?;
        let count = tiles.size().first().copied().unwrap_or(0);
        Ok(self.stream.prefill_attention(&Prefill {
            batch: args.batch,
            q: args.q,
            q_stride: args.q_stride,
            cache: args.cache,
            out: args.out,
            out_stride: args.out_stride,
            tiles: self.whole("tiles", tiles, Kind::Int, &[count, 2])?,
            count: narrow(count),
            scale: args.scale,
        })?)
    }

    /// What every kernel of attention is given, and the number of queries.
    fn operands(
        &self,
        layer: &PagedAttention<'_>,
        singles: Option<&Tensor>,
    ) -> Result<(Attention, u32), TensorError> {
        let heads = layer.queries.size().get(1).copied().unwrap_or(0);
        let batch = self.batch(&layer.places, layer.cache, heads)?;
        let axes = [batch.tokens, batch.heads, batch.head_dim].map(i64::from);
        let kind = layer.cache.kind();
        let (q, q_stride) = self.rows("queries", layer.queries, kind, &axes)?;
        let (out, out_stride) = self.rows("the output", layer.out, kind, &axes)?;
        let queries = singles.map(|list| {
            let count = list.numel() as i64;
            Ok::<_, TensorError>((self.whole("single queries", list, Kind::Int, &[count])?, narrow(count)))
        });
        let queries = queries.transpose()?;
        let count = queries.map_or(batch.tokens, |(_, count)| count);
        let args = Attention {
            batch,
            q,
            q_stride,
            append: None,
            cache: self.whole("the cache", layer.cache, kind, &layer.cache.size())?,
            out,
            out_stride,
            queries,
            split: None,
            scale: layer.scale,
        };
        Ok((args, count))
    }

    fn bytes(&self, name: &'static str, tensor: &Tensor, each: usize) -> Result<(Span, u32), TensorError> {
        let len = tensor.numel();
        let span = self.whole(name, tensor, Kind::Uint8, &[len as i64])?;
        Ok((span, narrow((len / each) as i64)))
    }

    fn logits(&self, tensor: &Tensor) -> Result<(Span, u32, u32), TensorError> {
        let &[rows, vocab] = &tensor.size()[..] else {
            return refused("kernels over tensors", "logits are not rows");
        };
        Ok((self.whole("logits", tensor, Kind::Float, &[rows, vocab])?, narrow(rows), narrow(vocab)))
    }

    /// One token from each row of logits that has a draw; the logits change.
    ///
    /// # Errors
    /// As for [`TensorStream::append`].
    pub fn sample(&self, args: &SampleTensors<'_>) -> Result<(), TensorError> {
        let (logits, logits_rows, vocab) = self.logits(args.logits)?;
        let (draws, rows) = self.bytes("draws", args.draws, DRAW_BYTES)?;
        let changes = self.bytes("changes", args.changes, CHANGE_BYTES)?;
        let masks = self.bytes("masks", args.masks, mask_bytes(vocab))?;
        let (sampled, _) = self.bytes("sampled", args.sampled, SAMPLED_BYTES)?;
        let lanes = args.lane_tokens.numel() as i64;
        Ok(self.stream.sample(&Sample {
            logits,
            draws,
            sampled,
            lane_tokens: self.whole("tokens of lanes", args.lane_tokens, Kind::Int, &[lanes])?,
            changes: (changes.1 > 0).then_some(changes),
            masks: (masks.1 > 0).then_some(masks),
            rows,
            logits_rows,
            vocab,
            lanes: narrow(lanes),
        })?)
    }

    /// How likely the tokens of some rows of logits are: `scored` says which, bytes as `scores`.
    ///
    /// # Errors
    /// As for [`TensorStream::append`].
    pub fn score(&self, logits: &Tensor, scored: &Tensor, scores: &Tensor) -> Result<(), TensorError> {
        let (logits, rows, vocab) = self.logits(logits)?;
        let (scored, count) = self.bytes("scored rows", scored, SCORED_BYTES)?;
        let (scores, _) = self.bytes("scores", scores, 1)?;
        Ok(self.stream.score(&Score { logits, scored, scores, count, rows, vocab })?)
    }
}
