//! Paged attention and KV append: the safe side of kernels/include/pinion_attention.h.
//!
//! [`Batch::check`] turns untrusted indices into a [`CheckedBatch`] once a step; the layers then run on that.

use crate::cpu::KernelLevel;
use crate::ffi;
use crate::kv_pool::{Dtype, Element, KvPool, KvShape};
use std::ffi::c_void;
use std::fmt;

/// Largest head_dim that the kernels take.
pub const MAX_HEAD_DIM: usize = 512;

/// A malformed batch or operand: a bug in the caller, found before any memory is touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperandError(pub &'static str);

impl fmt::Display for OperandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for OperandError {}

/// How queries attend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attend {
    /// Query heads: a multiple of the pool's heads. Query head h reads KV head h / (heads / KV heads).
    pub heads: usize,
    /// Factor on the scores, usually 1 / sqrt(head_dim).
    pub scale: f32,
    /// Number of positions that a query attends to, its own included.
    pub window: Option<u32>,
    /// Scores become c * tanh(score / c).
    pub soft_cap: Option<f32>,
    /// What a generated token sees is summed in spans of positions, which threads can share. It changes the order of
    /// the sums of a token that sees more than one.
    pub split_contexts: bool,
}

impl Attend {
    /// Every query head has a KV head of its own and sees all positions up to its own, in spans.
    pub fn plain(heads: usize, scale: f32) -> Self {
        Self { heads, scale, window: None, soft_cap: None, split_contexts: true }
    }

    fn check(&self, shape: &KvShape) -> Result<(), OperandError> {
        if self.heads == 0 || shape.heads == 0 || !self.heads.is_multiple_of(shape.heads) {
            return Err(OperandError("the query heads are no multiple of the KV heads"));
        }
        if self.window == Some(0) || self.soft_cap.is_some_and(|cap| !cap.is_finite() || cap <= 0.0) {
            return Err(OperandError("a window or a cap is not above 0"));
        }
        Ok(())
    }
}

/// A variable-length batch of sequences over a paged cache.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// \[seqs + 1\] first query token of each sequence; the last entry is the number of tokens.
    pub query_start: &'a [u32],
    /// \[seqs\] length of each sequence in tokens, its query tokens included; they are the last ones.
    pub context_len: &'a [u32],
    /// \[seqs\] positions below it are the sequence's prompt, those from it on were generated. The two are summed in
    /// different orders, whatever shares the batch.
    pub prompt_len: &'a [u32],
    /// \[seqs\] index in `blocks` of each sequence's block table.
    pub table_start: &'a [u32],
    /// Block tables of all sequences.
    pub blocks: &'a [u32],
}

/// A batch whose every index was checked against a pool's shape.
#[derive(Debug, Clone, Copy)]
pub struct CheckedBatch<'a> {
    batch: Batch<'a>,
    shape: KvShape,
}

impl<'a> Batch<'a> {
    /// Checks every range and block id. O(seqs + blocks), no allocation.
    ///
    /// # Errors
    /// [`OperandError`] says what is wrong.
    pub fn check(self, shape: &KvShape) -> Result<CheckedBatch<'a>, OperandError> {
        let seqs = self.context_len.len();
        let lengths = [self.query_start.len(), self.prompt_len.len() + 1, self.table_start.len() + 1];
        if lengths != [seqs + 1; 3] {
            return Err(OperandError("the batch's arrays differ in length"));
        }
        if self.query_start[0] != 0 {
            return Err(OperandError("the first query token is not token 0"));
        }
        for seq in 0..seqs {
            let Some(queries) = self.query_start[seq + 1].checked_sub(self.query_start[seq]) else {
                return Err(OperandError("query ranges overlap"));
            };
            let context = self.context_len[seq];
            if context < queries {
                return Err(OperandError("a context is shorter than its query"));
            }
            let first = self.table_start[seq] as usize;
            let count = (context as usize).div_ceil(shape.block_size);
            match self.blocks.get(first..first + count) {
                Some(table) if table.iter().all(|&block| (block as usize) < shape.blocks) => {}
                Some(_) => return Err(OperandError("a block id is out of range")),
                None => return Err(OperandError("a block table does not cover its context")),
            }
        }
        Ok(CheckedBatch { batch: self, shape: *shape })
    }
}

impl<'a> CheckedBatch<'a> {
    /// Query tokens of all sequences.
    pub fn tokens(&self) -> usize {
        self.batch.query_start[self.batch.context_len.len()] as usize
    }

    /// The arrays that were checked.
    pub fn arrays(&self) -> &Batch<'a> {
        &self.batch
    }

    /// The pool shape they were checked against.
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    fn ffi(&self, dtype: Dtype, pool: &KvPool, heads: usize) -> ffi::PinionBatch {
        ffi::PinionBatch {
            query_start: self.batch.query_start.as_ptr(),
            context_len: self.batch.context_len.as_ptr(),
            prompt_len: self.batch.prompt_len.as_ptr(),
            table_start: self.batch.table_start.as_ptr(),
            blocks: self.batch.blocks.as_ptr(),
            seqs: self.batch.context_len.len() as u32,
            kv_heads: self.shape.heads as u32,
            group: (heads / self.shape.heads.max(1)) as u32,
            head_dim: self.shape.head_dim as u32,
            block_size: self.shape.block_size as u32,
            dtype: dtype.code(),
            kv_dtype: pool.dtype().code(),
        }
    }

    /// Elements that an operand of this many columns with this token stride must have.
    fn span(&self, stride: usize, width: usize) -> usize {
        self.tokens().checked_sub(1).map_or(0, |last| last * stride + width)
    }
}

/// Room for what threads add up over spans of one context, before it is joined: made once, for a number of threads and
/// a shape of heads. Without it, or with too little, one thread does all spans of a token and KV head; the bits are
/// the same.
#[derive(Debug, Default)]
pub struct SpanRoom {
    partials: Vec<f32>,
    spans_left: Vec<u32>,
}

impl SpanRoom {
    /// Room for calls on at most `threads` threads in which `group` query heads share a KV head. It has
    /// `4 * threads * 64 * group * (head_dim + 17)` floats at most (none for one thread), of which the system gives
    /// memory to those that are used.
    pub fn new(threads: u32, group: usize, head_dim: usize) -> Self {
        let threads = thread_count(threads);
        let counts = if threads > 1 { threads as usize * ffi::DEALT } else { 0 };
        Self { partials: vec![0.0; partial_floats(threads, group, head_dim)], spans_left: vec![0; counts] }
    }

    /// The two arrays for a call, if it cannot use more than they have.
    fn of(&mut self, threads: i32, group: usize, head_dim: usize) -> Option<(*mut f32, *mut u32)> {
        let fits = self.partials.len() >= partial_floats(threads, group, head_dim)
            && self.spans_left.len() >= threads as usize * ffi::DEALT;
        fits.then_some((self.partials.as_mut_ptr(), self.spans_left.as_mut_ptr()))
    }
}

fn partial_floats(threads: i32, group: usize, head_dim: usize) -> usize {
    // SAFETY: numbers in, a number out.
    unsafe { ffi::pinion_partial_floats(threads, group as u32, head_dim as u32) as usize }
}

fn thread_count(threads: u32) -> i32 {
    i32::try_from(threads.clamp(1, 1024)).expect("1024 fits")
}

/// A read-only `[tokens, heads, head_dim]` operand.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a, T> {
    /// The elements; the first is token 0's first.
    pub data: &'a [T],
    /// Elements between tokens, at least heads * head_dim.
    pub stride: usize,
}

/// How to run the vector kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Instruction-set level; one above what the machine has is lowered to it.
    pub level: KernelLevel,
    /// Threads, at least 1. Without feature `torch` the calling thread does it all, unless there is a team.
    pub threads: u32,
}

impl Launch {
    pub(crate) fn level_code(self) -> i32 {
        self.level.min(KernelLevel::best()).code()
    }

    pub(crate) fn thread_count(self) -> i32 {
        thread_count(self.threads)
    }
}

/// Operands as the kernels take them. The caller that makes one vouches for the pointers' spans.
pub(crate) struct RawRows {
    pub(crate) data: *const c_void,
    pub(crate) dtype: Dtype,
    pub(crate) elements: usize,
    pub(crate) stride: usize,
}

impl<T: Element> Rows<'_, T> {
    fn raw(&self) -> RawRows {
        let data = self.data.as_ptr().cast();
        RawRows { data, dtype: T::DTYPE, elements: self.data.len(), stride: self.stride }
    }
}

fn check_operand(
    batch: &CheckedBatch<'_>,
    pool: &KvPool,
    layer: usize,
    heads: usize,
    operands: &[&RawRows],
) -> Result<(), OperandError> {
    if batch.shape != *pool.shape() {
        return Err(OperandError("the batch was checked against another pool"));
    }
    if layer >= batch.shape.layers {
        return Err(OperandError("no such layer"));
    }
    let width = heads * batch.shape.head_dim;
    for rows in operands {
        if rows.dtype != operands[0].dtype || !pool.dtype().takes(rows.dtype) {
            return Err(OperandError("operand and pool differ in dtype"));
        }
        if rows.stride < width {
            return Err(OperandError("a token stride is shorter than a token"));
        }
        if rows.elements < batch.span(rows.stride, width) {
            return Err(OperandError("an operand is shorter than the batch"));
        }
    }
    Ok(())
}

/// Writes the new tokens' K and V (`[tokens, KV heads, head_dim]`) into one layer of the pool.
///
/// # Errors
/// [`OperandError`] when operand, batch and pool do not fit together.
pub fn kv_append<T: Element>(
    pool: &mut KvPool,
    layer: usize,
    batch: &CheckedBatch<'_>,
    k: Rows<'_, T>,
    v: Rows<'_, T>,
    launch: Launch,
) -> Result<(), OperandError> {
    // SAFETY: the pointers come from live slices of the dtype and with the lengths given.
    unsafe { kv_append_raw(pool, layer, batch, &k.raw(), &v.raw(), launch) }
}

/// # Safety
/// `k.data` and `v.data` point to `elements` readable elements of `dtype`, outside the pool, and no thread writes to
/// them during the call.
pub(crate) unsafe fn kv_append_raw(
    pool: &mut KvPool,
    layer: usize,
    batch: &CheckedBatch<'_>,
    k: &RawRows,
    v: &RawRows,
    launch: Launch,
) -> Result<(), OperandError> {
    let heads = batch.shape.heads;
    check_operand(batch, pool, layer, heads, &[k, v])?;
    if k.stride != v.stride {
        return Err(OperandError("K and V differ in stride"));
    }
    let args = ffi::PinionAppend {
        batch: batch.ffi(k.dtype, pool, heads),
        k: k.data,
        v: v.data,
        cache: pool.layer_ptr(layer),
        kv_stride: k.stride as u64,
    };
    // SAFETY: `check_operand` and `Batch::check` established every range of the kernel's contract; `pool` is borrowed
    // mutably, so the cache has no other reader or writer.
    unsafe { ffi::pinion_kv_append_parallel(&args, launch.thread_count()) };
    Ok(())
}

/// Causal attention of the batch's query tokens over one layer of the pool. `q` and `out` are
/// `[tokens, attend.heads, head_dim]`, `out` with `out_stride` elements between tokens.
///
/// # Errors
/// [`OperandError`] when operand, batch and pool do not fit together.
#[allow(clippy::too_many_arguments, reason = "the operands of one kernel; a struct would only rename them")]
pub fn paged_attention<T: Element>(
    pool: &mut KvPool,
    layer: usize,
    batch: &CheckedBatch<'_>,
    q: Rows<'_, T>,
    out: &mut [T],
    out_stride: usize,
    attend: Attend,
    launch: Launch,
    room: &mut SpanRoom,
) -> Result<(), OperandError> {
    let data = out.as_mut_ptr().cast_const().cast();
    let to = RawRows { data, dtype: T::DTYPE, elements: out.len(), stride: out_stride };
    // SAFETY: the pointers come from live slices of the dtype and with the lengths given, `out` from a mutable one.
    unsafe { paged_attention_raw(pool, layer, batch, &q.raw(), &to, attend, launch, room) }
}

/// # Safety
/// As [`kv_append_raw`] for `q`; `out.data` points to `elements` writable elements that nothing else uses during the
/// call.
#[allow(clippy::too_many_arguments, reason = "as above")]
pub(crate) unsafe fn paged_attention_raw(
    pool: &mut KvPool,
    layer: usize,
    batch: &CheckedBatch<'_>,
    q: &RawRows,
    out: &RawRows,
    attend: Attend,
    launch: Launch,
    room: &mut SpanRoom,
) -> Result<(), OperandError> {
    attend.check(&batch.shape)?;
    check_operand(batch, pool, layer, attend.heads, &[q, out])?;
    let (threads, group) = (launch.thread_count(), attend.heads / batch.shape.heads);
    let (partials, spans_left) =
        room.of(threads, group, batch.shape.head_dim).unwrap_or((std::ptr::null_mut(), std::ptr::null_mut()));
    let args = ffi::PinionAttention {
        batch: batch.ffi(q.dtype, pool, attend.heads),
        q: q.data,
        cache: pool.layer_ptr(layer),
        out: out.data.cast_mut(),
        q_stride: q.stride as u64,
        out_stride: out.stride as u64,
        scale: attend.scale,
        soft_cap: attend.soft_cap.unwrap_or(0.0),
        window: attend.window.unwrap_or(0),
        split_contexts: attend.split_contexts.into(),
        dealt_above: u32::MAX,
        partials,
        spans_left,
    };
    // SAFETY: as in `kv_append_raw`; the level is at most the machine's best; the room is borrowed mutably and has what
    // a call on this many threads uses.
    unsafe { ffi::pinion_paged_attention_parallel(&args, launch.level_code(), threads) };
    Ok(())
}
