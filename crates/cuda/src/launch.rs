//! Launches: each operand's length is checked against the shape before its address leaves for the device. What is in
//! device memory (block tables, indices) cannot be checked here; its writer does.

use super::device::{CudaError, Stream};
use super::kernels::raw;
use super::memory::Span;
use super::{
    Append, Attention, BiasActivation, CHANGE_BYTES, CopyBlocks, CudaDtype, DRAW_BYTES, Embed, Gather, Norm,
    NormKind, Prefill, Product, ProductMethod, SAMPLED_BYTES, SCORED_BYTES, SCORES_BYTES, Sample, Score,
    TokenBatch, UpdateTables, mask_bytes,
};

/// The lengths of one launch's operands, and the first that does not fit.
pub(super) struct Lengths {
    operation: &'static str,
    wrong: Option<&'static str>,
}

impl Lengths {
    pub(super) fn of(operation: &'static str) -> Self {
        Self { operation, wrong: None }
    }

    /// `span` must hold the product of `axes` elements of `size` bytes, and is aligned.
    pub(super) fn need(mut self, name: &'static str, span: Span, axes: &[usize], size: usize) -> Self {
        let bytes = axes.iter().try_fold(size, |bytes, &axis| bytes.checked_mul(axis));
        let aligned = span.address.is_multiple_of(if size == 4 { 4 } else { 16 });
        if bytes.is_none_or(|bytes| bytes > span.bytes()) || !aligned {
            self.wrong = self.wrong.or(Some(name));
        }
        self
    }

    pub(super) fn maybe(self, name: &'static str, span: Option<Span>, axes: &[usize], size: usize) -> Self {
        match span {
            Some(span) => self.need(name, span, axes, size),
            None => self,
        }
    }

    /// Elements of a `[tokens, width]` operand with a stride.
    pub(super) fn strided(self, name: &'static str, span: Span, shape: [u32; 3], dtype: CudaDtype) -> Self {
        let [tokens, width, stride] = shape.map(|axis| axis as usize);
        if stride < width {
            return Self { wrong: self.wrong.or(Some(name)), ..self };
        }
        let elements = tokens.saturating_sub(1).saturating_mul(stride).saturating_add(width);
        self.need(name, span, &[elements], dtype.size())
    }

    pub(super) fn done(self) -> Result<(), CudaError> {
        match self.wrong {
            None => Ok(()),
            Some(name) => Err(CudaError {
                operation: self.operation,
                message: format!("{name} is shorter than its shape or not aligned"),
            }),
        }
    }
}

pub(super) fn address(span: Option<Span>) -> u64 {
    span.map_or(0, |span| span.address)
}

impl TokenBatch {
    pub(super) fn lengths(&self, operation: &'static str) -> Lengths {
        Lengths::of(operation)
            .need("lanes", self.lanes, &[self.tokens as usize], 4)
            .need("positions", self.positions, &[self.tokens as usize], 4)
            .need("tables", self.tables, &[self.table_stride as usize], 4)
    }

    pub(super) fn raw(&self) -> raw::Batch {
        raw::Batch {
            lanes: self.lanes.address,
            positions: self.positions.address,
            tables: self.tables.address,
            tokens: self.tokens,
            table_stride: self.table_stride,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            block_size: self.block_size,
            dtype: self.dtype.code(),
        }
    }
}

impl Stream {
    pub(super) fn launch<T>(
        &self,
        operation: &'static str,
        function: unsafe extern "C" fn(*const T, *mut std::ffi::c_void) -> i32,
        args: &T,
    ) -> Result<(), CudaError> {
        // SAFETY: the arguments are read during the call; every address in them is memory of this device whose length
        // was checked by the caller, and the stream is alive.
        self.device.check(operation, unsafe { function(args, self.handle) })
    }

    /// See [`Product`].
    ///
    /// # Errors
    /// An operand that is too short, a shape outside the contract, or the driver's error; so for every launch.
    pub fn product(&self, args: &Product) -> Result<(), CudaError> {
        let [m, n, k] = [args.m, args.n, args.k].map(|axis| axis as usize);
        let size = args.dtype.size();
        Lengths::of("product")
            .need("x", args.x, &[m, k], size)
            .need("weight", args.weight, &[n, k], size)
            .maybe("bias", args.bias, &[n], size)
            .need("y", args.y, &[m, n], args.y_dtype.size())
            .done()?;
        let method = match args.method {
            ProductMethod::Auto => 0,
            ProductMethod::Own => 1,
            ProductMethod::Library => 2,
        };
        let raw = raw::Product {
            x: args.x.address,
            weight: args.weight.address,
            bias: address(args.bias),
            y: args.y.address,
            m: args.m,
            n: args.n,
            k: args.k,
            dtype: args.dtype.code(),
            y_dtype: args.y_dtype.code(),
            activation: args.activation.code(),
            method,
            accumulate: i32::from(args.accumulate),
            candidates: args.candidates,
        };
        self.launch("product", self.device.symbols().product, &raw)
    }

    /// See [`Norm`].
    ///
    /// # Errors
    /// As for [`Stream::product`].
    pub fn norm(&self, args: &Norm) -> Result<(), CudaError> {
        let (shape, width) = ([args.rows as usize, args.width as usize], [args.width as usize]);
        let size = args.dtype.size();
        Lengths::of("norm")
            .need("x", args.x, &shape, size)
            .maybe("delta", args.delta, &shape, size)
            .maybe("delta_bias", args.delta_bias, &width, size)
            .need("weight", args.weight, &width, size)
            .maybe("bias", args.bias, &width, size)
            .maybe("out", args.out, &shape, size)
            .done()?;
        let raw = raw::Norm {
            x: args.x.address,
            delta: address(args.delta),
            delta_bias: address(args.delta_bias),
            weight: args.weight.address,
            bias: address(args.bias),
            out: address(args.out),
            rows: args.rows,
            width: args.width,
            epsilon: args.epsilon,
            dtype: args.dtype.code(),
            rms: i32::from(args.kind == NormKind::Rms),
        };
        self.launch("norm", self.device.symbols().norm, &raw)
    }

    /// See [`BiasActivation`].
    ///
    /// # Errors
    /// As for [`Stream::product`].
    pub fn bias_activation(&self, args: &BiasActivation) -> Result<(), CudaError> {
        let size = args.dtype.size();
        Lengths::of("bias and activation")
            .need("x", args.x, &[args.rows as usize, args.width as usize], size)
            .maybe("bias", args.bias, &[args.width as usize], size)
            .done()?;
        let raw = raw::Bias {
            x: args.x.address,
            bias: address(args.bias),
            rows: args.rows,
            width: args.width,
            dtype: args.dtype.code(),
            activation: args.activation.code(),
        };
        self.launch("bias and activation", self.device.symbols().bias_activation, &raw)
    }

    /// See [`Embed`].
    ///
    /// # Errors
    /// As for [`Stream::product`].
    pub fn embed(&self, args: &Embed) -> Result<(), CudaError> {
        let (count, width, size) = (args.count as usize, args.width as usize, args.dtype.size());
        Lengths::of("embed")
            .need("tokens", args.tokens, &[count], 4)
            .need("positions", args.positions, &[count], 4)
            .need("lanes", args.lanes, &[count], 4)
            .need("token_table", args.token_table, &[args.vocab as usize, width], size)
            .maybe("position_table", args.position_table, &[args.positions_max as usize, width], size)
            .need("out", args.out, &[count, width], size)
            .done()?;
        let raw = raw::Embed {
            tokens: args.tokens.address,
            positions: args.positions.address,
            lanes: args.lanes.address,
            lane_tokens: args.lane_tokens.address,
            token_table: args.token_table.address,
            position_table: address(args.position_table),
            out: args.out.address,
            count: args.count,
            width: args.width,
            vocab: args.vocab,
            positions_max: args.positions_max,
            dtype: args.dtype.code(),
        };
        self.launch("embed", self.device.symbols().embed, &raw)
    }

    /// See [`Gather`].
    ///
    /// # Errors
    /// As for [`Stream::product`].
    pub fn gather(&self, args: &Gather) -> Result<(), CudaError> {
        let (count, width, size) = (args.count as usize, args.width as usize, args.dtype.size());
        Lengths::of("gather")
            .need("x", args.x, &[args.rows as usize, width], size)
            .need("index", args.index, &[count], 4)
            .need("out", args.out, &[count, width], size)
            .done()?;
        let raw = raw::Gather {
            x: args.x.address,
            index: args.index.address,
            out: args.out.address,
            count: args.count,
            width: args.width,
            rows: args.rows,
            dtype: args.dtype.code(),
        };
        self.launch("gather", self.device.symbols().gather, &raw)
    }

    /// See [`UpdateTables`].
    ///
    /// # Errors
    /// As for [`Stream::product`].
    pub fn update_tables(&self, args: &UpdateTables) -> Result<(), CudaError> {
        Lengths::of("block tables")
            .need("updates", args.updates, &[args.count as usize, 3], 4)
            .need("tables", args.tables, &[args.lanes as usize, args.table_stride as usize], 4)
            .done()?;
        let raw = raw::Tables {
            updates: args.updates.address,
            tables: args.tables.address,
            count: args.count,
            lanes: args.lanes,
            table_stride: args.table_stride,
        };
        self.launch("block tables", self.device.symbols().update_tables, &raw)
    }

    /// See [`CopyBlocks`].
    ///
    /// # Errors
    /// As for [`Stream::product`].
    pub fn copy_blocks(&self, args: &CopyBlocks) -> Result<(), CudaError> {
        Lengths::of("block copies")
            .need("pairs", args.pairs, &[args.count as usize, 2], 4)
            .need("cache", args.cache, &[args.layers as usize, args.layer_bytes as usize], 1)
            .done()?;
        let raw = raw::Blocks {
            cache: args.cache.address,
            pairs: args.pairs.address,
            layer_bytes: args.layer_bytes,
            block_bytes: args.block_bytes,
            count: args.count,
            layers: args.layers,
        };
        self.launch("block copies", self.device.symbols().copy_blocks, &raw)
    }

    /// See [`Append`].
    ///
    /// # Errors
    /// As for [`Stream::product`].
    pub fn kv_append(&self, args: &Append) -> Result<(), CudaError> {
        let batch = &args.batch;
        let shape = [batch.tokens, batch.kv_heads.saturating_mul(batch.head_dim), args.stride];
        batch
            .lengths("KV append")
            .strided("k", args.k, shape, batch.dtype)
            .strided("v", args.v, shape, batch.dtype)
            .done()?;
        let raw = raw::Append {
            batch: batch.raw(),
            k: args.k.address,
            v: args.v.address,
            cache: args.cache.address,
            stride: args.stride,
        };
        self.launch("KV append", self.device.symbols().kv_append, &raw)
    }

    /// See [`Attention`].
    ///
    /// # Errors
    /// As for [`Stream::product`].
    pub fn attention(&self, args: &Attention) -> Result<(), CudaError> {
        let batch = &args.batch;
        let width = batch.heads.saturating_mul(batch.head_dim);
        let mut lengths = batch
            .lengths("attention")
            .strided("q", args.q, [batch.tokens, width, args.q_stride], batch.dtype)
            .strided("out", args.out, [batch.tokens, width, args.out_stride], batch.dtype);
        if let Some((k, v, stride)) = args.append {
            let shape = [batch.tokens, batch.kv_heads.saturating_mul(batch.head_dim), stride];
            lengths = lengths.strided("k", k, shape, batch.dtype).strided("v", v, shape, batch.dtype);
        }
        let count = args.queries.map_or(batch.tokens, |(_, count)| count);
        lengths = lengths.maybe("queries", args.queries.map(|(span, _)| span), &[count as usize], 4);
        if let Some(split) = &args.split {
            let [count, heads, splits] = [count, batch.heads, split.splits].map(|axis| axis as usize);
            let parts = [count, heads, splits, batch.head_dim as usize + 2];
            lengths = lengths.need("partials", split.partials, &parts, 4).need(
                "counters",
                split.counters,
                &[count, heads],
                4,
            );
        }
        lengths.done()?;
        let (k, v, kv_stride) =
            args.append.map_or((0, 0, 0), |(k, v, stride)| (k.address, v.address, stride));
        let raw = raw::Attention {
            batch: batch.raw(),
            q: args.q.address,
            k,
            v,
            cache: args.cache.address,
            out: args.out.address,
            queries: address(args.queries.map(|(span, _)| span)),
            partials: address(args.split.map(|split| split.partials)),
            counters: address(args.split.map(|split| split.counters)),
            q_stride: args.q_stride,
            kv_stride,
            out_stride: args.out_stride,
            count,
            splits: args.split.map_or(1, |split| split.splits),
            append: u32::from(args.append.is_some()),
            scale: args.scale,
        };
        self.launch("attention", self.device.symbols().attention, &raw)
    }

    /// See [`Prefill`].
    ///
    /// # Errors
    /// As for [`Stream::product`].
    pub fn prefill_attention(&self, args: &Prefill) -> Result<(), CudaError> {
        let batch = &args.batch;
        let width = batch.heads.saturating_mul(batch.head_dim);
        batch
            .lengths("prefill attention")
            .strided("q", args.q, [batch.tokens, width, args.q_stride], batch.dtype)
            .strided("out", args.out, [batch.tokens, width, args.out_stride], batch.dtype)
            .need("tiles", args.tiles, &[args.count as usize, 2], 4)
            .done()?;
        let raw = raw::Prefill {
            batch: batch.raw(),
            q: args.q.address,
            cache: args.cache.address,
            out: args.out.address,
            tiles: args.tiles.address,
            q_stride: args.q_stride,
            out_stride: args.out_stride,
            count: args.count,
            scale: args.scale,
        };
        self.launch("prefill attention", self.device.symbols().prefill_attention, &raw)
    }

    /// See [`Sample`].
    ///
    /// # Errors
    /// As for [`Stream::product`].
    pub fn sample(&self, args: &Sample) -> Result<(), CudaError> {
        let (logits_rows, vocab) = (args.logits_rows as usize, args.vocab as usize);
        let counted = |list: Option<(Span, u32)>| list.map_or((None, 0), |(span, count)| (Some(span), count));
        let ((changes, changes_count), (masks, masks_count)) = (counted(args.changes), counted(args.masks));
        Lengths::of("sample")
            .need("logits", args.logits, &[logits_rows, vocab], 4)
            .need("draws", args.draws, &[args.rows as usize, DRAW_BYTES], 1)
            .need("sampled", args.sampled, &[logits_rows, SAMPLED_BYTES], 1)
            .need("lane_tokens", args.lane_tokens, &[args.lanes as usize], 4)
            .maybe("changes", changes, &[changes_count as usize, CHANGE_BYTES], 1)
            .maybe("masks", masks, &[masks_count as usize, mask_bytes(args.vocab)], 1)
            .done()?;
        let raw = raw::Sample {
            logits: args.logits.address,
            draws: args.draws.address,
            sampled: args.sampled.address,
            lane_tokens: args.lane_tokens.address,
            changes: address(changes),
            masks: address(masks),
            rows: args.rows,
            logits_rows: args.logits_rows,
            vocab: args.vocab,
            lanes: args.lanes,
            changes_count,
            masks_count,
        };
        self.launch("sample", self.device.symbols().sample, &raw)
    }

    /// See [`Score`].
    ///
    /// # Errors
    /// As for [`Stream::product`].
    pub fn score(&self, args: &Score) -> Result<(), CudaError> {
        let (count, rows, vocab) = (args.count as usize, args.rows as usize, args.vocab as usize);
        Lengths::of("score")
            .need("logits", args.logits, &[rows, vocab], 4)
            .need("scored", args.scored, &[count, SCORED_BYTES], 1)
            .need("scores", args.scores, &[count, SCORES_BYTES], 1)
            .done()?;
        let raw = raw::Score {
            logits: args.logits.address,
            scored: args.scored.address,
            scores: args.scores.address,
            count: args.count,
            rows: args.rows,
            vocab: args.vocab,
        };
        self.launch("score", self.device.symbols().score, &raw)
    }
}
