//! A GPT-2 all of whose weights are one number, for kernels that are timed and whose results are not read.

use crate::{BLOCK_SIZE, CONTEXT};
use pinion_cuda::{
    BiasedWeight, CudaActivation, CudaDtype, CudaError, DecodeBuffers, DecodeLayer, DecodeShape,
    DecodeTables, Device, Event, Span, Stream,
};

/// An f16 of this byte twice is 0.01.
const FILL: u8 = 0x21;
/// Times that captured work is replayed for one figure, where time means something; of three figures the middle one
/// counts.
const REPLAYS: u32 = 20;
const ROUNDS: usize = 3;

/// Weights, a cache and what a step of up to `rows_max` rows or `tokens_max` tokens reads and writes.
pub(crate) struct Filled {
    pub(crate) device: Device,
    pub(crate) stream: Stream,
    pub(crate) shape: DecodeShape,
    pub(crate) context: u32,
    pub(crate) layers: Vec<DecodeLayer>,
    pub(crate) tables: DecodeTables,
    pub(crate) buffers: DecodeBuffers,
    /// u32 \[rows_max, blocks of a context\], each block once.
    pub(crate) block_tables: Span,
    /// u32 \[rows_max\]: the last position of the context.
    pub(crate) positions: Span,
    /// u32 \[rows_max\]: 0, 1, ...; they do for tokens too.
    pub(crate) lanes: Span,
    events: (Event, Event),
}

impl Filled {
    /// The shape of GPT-2 124M in f16; a small one where times mean nothing.
    pub(crate) fn new(device: &Device, rows_max: u32, tokens_max: u32) -> Result<Filled, CudaError> {
        let is_small = device.facts().emulated;
        let (hidden, heads, vocab, layer_count, context) =
            if is_small { (64, 2, 300, 2, 20) } else { (768, 12, 50_257, 12, CONTEXT) };
        let shape = DecodeShape {
            hidden,
            inner: 4 * hidden,
            heads,
            vocab,
            positions: 1024,
            block_size: BLOCK_SIZE,
            activation: CudaActivation::GeluTanh,
            epsilon: 1e-5,
            dtype: CudaDtype::F16,
        };
        let stream = device.stream()?;
        let filled = |elements: u32, size: usize| {
            let span = device.alloc(elements as usize * size)?;
            stream.fill(span, FILL).map(|()| span)
        };
        let biased = |outputs: u32, inputs: u32| -> Result<BiasedWeight, CudaError> {
            Ok(BiasedWeight { weight: filled(outputs * inputs, 2)?, bias: filled(outputs, 2)? })
        };
        let row_blocks = context.div_ceil(BLOCK_SIZE);
        let layers = (0..layer_count).map(|_| {
            Ok(DecodeLayer {
                norm: biased(hidden, 1)?,
                qkv: biased(3 * hidden, hidden)?,
                projection: biased(hidden, hidden)?,
                norm_mlp: biased(hidden, 1)?,
                up: biased(4 * hidden, hidden)?,
                down: biased(hidden, 4 * hidden)?,
                cache: filled(rows_max * row_blocks * 2 * BLOCK_SIZE * hidden, 2)?,
                scale: 0.125,
            })
        });
        let words = |words: Vec<u32>| -> Result<Span, CudaError> {
            let span = device.alloc(4 * words.len())?;
            stream.upload(span, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())?;
            Ok(span)
        };
        Ok(Filled {
            layers: layers.collect::<Result<_, CudaError>>()?,
            tables: DecodeTables {
                tokens: filled(vocab * hidden, 2)?,
                positions: filled(shape.positions * hidden, 2)?,
                norm_final: biased(hidden, 1)?,
                head: filled(vocab * hidden, 2)?,
            },
            buffers: DecodeBuffers {
                residual: filled(tokens_max * hidden, 2)?,
                qkv: filled(tokens_max * 3 * hidden, 2)?,
                attended: filled(tokens_max * hidden, 2)?,
                inner: filled(tokens_max * 4 * hidden, 2)?,
                logits: filled(rows_max * vocab, 4)?,
            },
            block_tables: words((0..rows_max * row_blocks).collect())?,
            positions: words(vec![context - 1; rows_max as usize])?,
            lanes: words((0..rows_max).collect())?,
            events: (device.event(true)?, device.event(true)?),
            device: device.clone(),
            stream,
            shape,
            context,
        })
    }

    /// Milliseconds of `work`, which is run once as it is and then captured: the device's time, without the host's. A
    /// driver that captures no cooperative launch is given such work as it is, again and again.
    pub(crate) fn ms_of(&self, work: impl Fn() -> Result<(), CudaError>) -> Result<f64, CudaError> {
        let stream = &self.stream;
        let replays = if self.device.facts().emulated { 1 } else { REPLAYS };
        work()?;
        let graph = stream.capture(&work).ok();
        let again = || graph.as_ref().map_or_else(&work, |graph| stream.replay(graph));
        again()?;
        let mut rounds = [0.0; ROUNDS];
        for round in &mut rounds {
            stream.record(&self.events.0)?;
            for _ in 0..replays {
                again()?;
            }
            stream.record(&self.events.1)?;
            stream.synchronize()?;
            *round = f64::from(self.events.0.elapsed_ms(&self.events.1)?) / f64::from(replays);
        }
        rounds.sort_by(f64::total_cmp);
        Ok(rounds[ROUNDS / 2])
    }
}
