//! Each kernel of a step by itself, against what it has to move: launches for all layers are captured one behind
//! another, so that each finds the memory that the ones before it have pushed out of the caches, and no host stands
//! between.

use crate::filled::Filled;
use crate::{Outcome, PRODUCT_WORKSPACE_BYTES};
use pinion_cuda::{
    Attention, BiasedWeight, CudaActivation, CudaDtype, CudaError, DRAW_BYTES, DecodeSplit, Device, Draw,
    DrawMode, Embed, GEMV_ROWS_MAX, Norm, NormKind, PREFILL_TILE, Prefill, Product, ProductMethod,
    RowChanges, SAMPLED_BYTES, Sample, Span, TokenBatch,
};
use pinion_model::cuda::{PRODUCT_CANDIDATES, splits};
use serde_json::json;
use std::path::Path;

/// Tokens of a prompt in prefill attention.
const PROMPT: u32 = 256;

/// What one launch reads and writes at least, and computes.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    bytes: u64,
    flops: u64,
}

struct Rates {
    on: Filled,
    room: Span,
}

/// Copies inside the device; bytes read and written both count.
pub(crate) fn copy(object: &str) -> Outcome {
    let device = Device::open(Path::new(object), 0)?;
    let bytes = if device.facts().emulated { 1 << 20 } else { 2usize << 30 };
    let (from, to) = (device.alloc(bytes)?, device.alloc(bytes)?);
    let stream = device.stream()?;
    stream.fill(from, 1)?;
    let (begin, end) = (device.event(true)?, device.event(true)?);
    let mut best = f64::INFINITY;
    for _ in 0..10 {
        stream.record(&begin)?;
        stream.copy(to, from)?;
        stream.record(&end)?;
        stream.synchronize()?;
        best = best.min(f64::from(begin.elapsed_ms(&end)?));
    }
    let facts = device.facts();
    let rate = 2.0 * bytes as f64 / best / 1e9;
    println!(
        "{}",
        json!({"device": facts.name, "multiprocessors": facts.multiprocessors, "copy_TB_s": rate})
    );
    Ok(())
}

/// Rates of all kernels at several numbers of rows.
pub(crate) fn rates(object: &str) -> Outcome {
    let device = Device::open(Path::new(object), 0)?;
    device.open_products(None, PRODUCT_WORKSPACE_BYTES)?;
    let rows: &[u32] = if device.facts().emulated { &[1, 4] } else { &[1, 2, 4, 8, 16, 32, 64, 128] };
    let rows_max = rows[rows.len() - 1];
    // Prefill attention takes prompts in place of rows.
    let tokens_max = if device.facts().emulated { rows_max } else { rows_max.max(8 * PROMPT) };
    let on = Filled::new(&device, rows_max, tokens_max)?;
    let room = device.alloc(tokens_max as usize * 4 * on.shape.hidden as usize * 2)?;
    let rates = Rates { on, room };
    for &rows in rows {
        rates.products(rows)?;
        rates.attention(rows)?;
        rates.small(rows)?;
        rates.sampler(rows)?;
    }
    if !device.facts().emulated {
        [1, 4, 8].into_iter().try_for_each(|prompts| rates.prefill_attention(prompts))?;
    }
    Ok(())
}

impl Rates {
    /// `launch` for each layer, `layers` of them.
    fn tell(
        &self,
        (name, by): (&str, &str),
        rows: u32,
        work: Work,
        layers: usize,
        launch: impl Fn(usize) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let us = self.on.ms_of(|| (0..layers).try_for_each(&launch))? * 1e3 / layers as f64;
        println!(
            "{}",
            json!({"kernel": name, "by": by, "rows": rows, "us": us, "bytes": work.bytes, "flops": work.flops,
                "TB_s": work.bytes as f64 / us / 1e6, "TFLOP_s": work.flops as f64 / us / 1e6})
        );
        Ok(())
    }

    fn products(&self, rows: u32) -> Result<(), CudaError> {
        let (hidden, vocab) = (self.on.shape.hidden, self.on.shape.vocab);
        let layers = self.on.layers.len();
        let of_layer = [
            ("qkv", 3 * hidden, hidden),
            ("projection", hidden, hidden),
            ("up", 4 * hidden, hidden),
            ("down", hidden, 4 * hidden),
        ];
        let weight = |name: &str, layer: usize| -> BiasedWeight {
            let layer = &self.on.layers[layer];
            match name {
                "qkv" => layer.qkv,
                "projection" => layer.projection,
                "up" => layer.up,
                _ => layer.down,
            }
        };
        for (method, by) in [(ProductMethod::Own, "own"), (ProductMethod::Library, "library")] {
            if method == ProductMethod::Own && rows > GEMV_ROWS_MAX {
                continue;
            }
            for (name, n, k) in of_layer {
                let activation = if name == "up" { CudaActivation::GeluTanh } else { CudaActivation::None };
                self.tell((name, by), rows, work_of(rows, n, k, 2), layers, |layer| {
                    let BiasedWeight { weight, bias } = weight(name, layer);
                    let shape = [rows, n, k];
                    // The projections' bias joins with the residual in the norm.
                    let bias = matches!(name, "qkv" | "up").then_some(bias);
                    self.product(Product { bias, activation, method, ..self.plain(weight, self.room, shape) })
                })?;
            }
            self.tell(("head", by), rows, work_of(rows, vocab, hidden, 4), 1, |_| {
                let plain = self.plain(self.on.tables.head, self.on.buffers.logits, [rows, vocab, hidden]);
                self.product(Product { y_dtype: CudaDtype::F32, method, ..plain })
            })?;
        }
        Ok(())
    }

    fn plain(&self, weight: Span, y: Span, [m, n, k]: [u32; 3]) -> Product {
        Product {
            x: self.on.buffers.inner,
            weight,
            bias: None,
            y,
            m,
            n,
            k,
            dtype: CudaDtype::F16,
            y_dtype: CudaDtype::F16,
            activation: CudaActivation::None,
            method: ProductMethod::Auto,
            accumulate: false,
            candidates: PRODUCT_CANDIDATES,
        }
    }

    fn product(&self, args: Product) -> Result<(), CudaError> {
        self.on.stream.product(&args)
    }

    fn batch(&self, tokens: u32, lanes: Span, positions: Span) -> TokenBatch {
        TokenBatch {
            lanes,
            positions,
            tables: self.on.block_tables,
            tokens,
            table_stride: self.on.context.div_ceil(self.on.shape.block_size),
            heads: self.on.shape.heads,
            kv_heads: self.on.shape.heads,
            head_dim: self.on.shape.hidden / self.on.shape.heads,
            block_size: self.on.shape.block_size,
            dtype: CudaDtype::F16,
        }
    }

    /// The context whole, in as many parts as the engine splits it into, and in half and twice as many.
    fn attention(&self, rows: u32) -> Result<(), CudaError> {
        let planned = splits(rows, self.on.shape.heads, self.on.device.facts().multiprocessors);
        let mut ways = vec![1, planned / 2, planned, 2 * planned];
        ways.retain(|&splits| splits > 0);
        ways.sort_unstable();
        ways.dedup();
        ways.into_iter().try_for_each(|splits| self.attention_in(rows, splits, splits == planned))
    }

    fn attention_in(&self, rows: u32, splits: u32, is_planned: bool) -> Result<(), CudaError> {
        let (device, hidden, heads) = (&self.on.device, self.on.shape.hidden, self.on.shape.heads);
        let counters = device.alloc((rows * heads) as usize * 4)?;
        self.on.stream.fill(counters, 0)?;
        let partials = device.alloc((rows * heads * splits * (hidden / heads + 2)) as usize * 4)?;
        let qkv = self.on.buffers.qkv;
        let part = |index: u32| qkv.from((index * hidden) as usize * 2);
        let work = Work {
            bytes: u64::from(rows) * u64::from(self.on.context) * u64::from(hidden) * 4,
            flops: u64::from(rows) * u64::from(self.on.context) * u64::from(hidden) * 4,
        };
        let by = if is_planned { "own".into() } else { format!("{splits} parts") };
        self.tell(("attention", &by), rows, work, self.on.layers.len(), |layer| {
            self.on.stream.attention(&Attention {
                batch: self.batch(rows, self.on.lanes, self.on.positions),
                q: qkv,
                q_stride: 3 * hidden,
                append: Some((part(1), part(2), 3 * hidden)),
                cache: self.on.layers[layer].cache,
                out: self.on.buffers.attended,
                out_stride: hidden,
                queries: None,
                split: (splits > 1).then_some(DecodeSplit { splits, partials, counters }),
                scale: 0.125,
            })
        })
    }

    /// A whole prompt each, in tiles.
    fn prefill_attention(&self, prompts: u32) -> Result<(), CudaError> {
        let (hidden, tokens) = (self.on.shape.hidden, prompts * PROMPT);
        let words = |words: Vec<u32>| -> Result<Span, CudaError> {
            let span = self.on.device.alloc(4 * words.len())?;
            self.on
                .stream
                .upload(span, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())?;
            Ok(span)
        };
        let lanes = words((0..tokens).map(|token| token / PROMPT).collect())?;
        let positions = words((0..tokens).map(|token| token % PROMPT).collect())?;
        let count = tokens / PREFILL_TILE;
        let tiles = words((0..count).flat_map(|tile| [tile * PREFILL_TILE, PREFILL_TILE]).collect())?;
        let pairs = u64::from(prompts) * u64::from(PROMPT) * u64::from(PROMPT + 1) / 2;
        let work = Work { bytes: u64::from(tokens * hidden) * 8, flops: pairs * u64::from(hidden) * 4 };
        self.tell(("prefill attention of 256 tokens", "own"), prompts, work, self.on.layers.len(), |layer| {
            self.on.stream.prefill_attention(&Prefill {
                batch: self.batch(tokens, lanes, positions),
                q: self.on.buffers.qkv,
                q_stride: 3 * hidden,
                cache: self.on.layers[layer].cache,
                out: self.on.buffers.attended,
                out_stride: hidden,
                tiles,
                count,
                scale: 0.125,
            })
        })
    }

    /// What moves little: launches of it show what a launch costs.
    fn small(&self, rows: u32) -> Result<(), CudaError> {
        let (hidden, layers) = (self.on.shape.hidden, self.on.layers.len());
        let row = u64::from(rows) * u64::from(hidden) * 2;
        self.tell(("norm", "own"), rows, Work { bytes: 4 * row, flops: 0 }, layers, |layer| {
            let norm = &self.on.layers[layer].norm;
            self.on.stream.norm(&Norm {
                x: self.on.buffers.residual,
                delta: Some(self.on.buffers.attended),
                delta_bias: Some(norm.bias),
                weight: norm.weight,
                bias: Some(norm.bias),
                out: Some(self.room),
                rows,
                width: hidden,
                epsilon: 1e-5,
                dtype: CudaDtype::F16,
                kind: NormKind::Layer,
            })
        })?;
        self.tell(("embed", "own"), rows, Work { bytes: 3 * row, flops: 0 }, layers, |_| {
            self.on.stream.embed(&Embed {
                tokens: self.on.lanes,
                positions: self.on.positions,
                lanes: self.on.lanes,
                lane_tokens: self.on.lanes,
                token_table: self.on.tables.tokens,
                position_table: Some(self.on.tables.positions),
                out: self.room,
                count: rows,
                width: hidden,
                vocab: self.on.shape.vocab,
                positions_max: self.on.shape.positions,
                dtype: CudaDtype::F16,
            })
        })
    }

    fn sampler(&self, rows: u32) -> Result<(), CudaError> {
        let vocab = self.on.shape.vocab;
        let sampled = self.on.device.alloc(rows as usize * SAMPLED_BYTES)?;
        let lane_tokens = self.on.device.alloc(rows as usize * 4)?;
        let ways = [
            ("greedy", DrawMode::Greedy, 0),
            ("temperature", DrawMode::Draw, 0),
            ("top-k", DrawMode::Draw, 50),
        ];
        for (by, mode, top_k) in ways {
            let mut bytes = vec![0; rows as usize * DRAW_BYTES];
            for (row, to) in (0..rows).zip(bytes.chunks_exact_mut(DRAW_BYTES)) {
                let draw = Draw {
                    draw: 0.5,
                    inverse_temperature: 1.0,
                    top_p: 1.0,
                    min_p: 0.0,
                    top_k,
                    lane: row,
                    mode,
                    changes: RowChanges::NONE,
                    row,
                    is_scored: false,
                    mask: None,
                };
                draw.write(to);
            }
            let draws = self.on.device.alloc(bytes.len())?;
            self.on.stream.upload(draws, &bytes)?;
            let work = Work { bytes: u64::from(rows) * u64::from(vocab) * 4, flops: 0 };
            self.tell(("sample", by), rows, work, 4, |_| {
                self.on.stream.sample(&Sample {
                    logits: self.on.buffers.logits,
                    draws,
                    sampled,
                    lane_tokens,
                    changes: None,
                    masks: None,
                    rows,
                    logits_rows: rows,
                    vocab,
                    lanes: rows,
                })
            })?;
        }
        Ok(())
    }
}

/// Weights and what they meet once, and two operations for each pair.
fn work_of(m: u32, n: u32, k: u32, y_size: u64) -> Work {
    let [m, n, k] = [m, n, k].map(u64::from);
    Work { bytes: 2 * n * k + 2 * m * k + y_size * m * n, flops: 2 * m * n * k }
}
