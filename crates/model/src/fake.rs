//! The deterministic fake model: the next token is a hash of the prompt and the token's index.
//!
//! It runs the whole system without libtorch and with a step time of one's choice. It keeps a real paged cache (one
//! rolling hash per cached position), reads the prompt's hash back through the block table, and never sees the prompt
//! in any other way. So a wrong block table, a reused block or a wrong prefix hit shows as wrong tokens, and a resumed,
//! re-batched or prefix-cached request gives the same tokens as an undisturbed one.
//!
//! As logits it has 1 for that token and 0 for the others; after a part of a prompt, 1 for the token that would follow
//! if that part were the prompt. It is always greedy, whatever the temperature; penalties, biases
//! and banned ids act on those logits. In a row with a mask the others fall from id to id after that token, around the
//! vocabulary's end: the first id from there on that the mask allows is the one drawn.

use crate::batch::{BatchLimits, RowOutcome, StepBatch, StepError, StepOutput};
use crate::shaping::Shaping;
use crate::{Model, ModelInfo, SampleParams, Sampler, WarmUp, WindowInfo, pooling};
use pinion_random::mix;
use std::time::{Duration, Instant};

/// The last stretch of a programmed step time is spun, because a sleep overshoots.
const SPIN_US: u64 = 50;

/// What the fake does beside giving tokens. Step times of zero mean as fast as the code runs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FakeOptions {
    /// Time of every step, microseconds.
    pub step_us: f64,
    /// Added for each query token of a prefill row, microseconds.
    pub prefill_us_per_token: f64,
    /// A prompt with this token kills the process, as a broken kernel or driver would.
    pub fatal_token: Option<u32>,
}

/// Shape of a fake model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FakeShape {
    /// Number of token ids, at least 2.
    pub vocab_size: u32,
    /// Longest sequence in tokens.
    pub max_context: u32,
    /// End-of-sequence id; the fake never samples it.
    pub eos: Option<u32>,
    /// Tokens per KV block.
    pub block_size: u32,
    /// KV blocks in the pool.
    pub block_count: u32,
}

/// Numbers of a vector of the fake model.
pub const FAKE_VECTOR_WIDTH: u32 = 8;

/// Hash of the empty sequence.
const HASH_SEED: u64 = 0x0050_696e_696f_6e00;

fn extend(hash: u64, token: u32) -> u64 {
    mix(hash ^ u64::from(token).wrapping_mul(0xd6e8_feb8_6659_fd93))
}

fn token_of(prompt_hash: u64, index: u64, vocab: u32, eos: Option<u32>) -> u32 {
    let draw = mix(prompt_hash ^ mix(index));
    let scale = |choices: u32| ((u128::from(draw) * u128::from(choices)) >> 64) as u32;
    match eos {
        Some(eos) if eos < vocab && vocab > 1 => {
            let token = scale(vocab - 1);
            token + u32::from(token >= eos)
        }
        Some(_) | None => scale(vocab.max(1)),
    }
}

/// The index whose token stands at `index` of a text that repeats itself: seven in eight times one of the first.
fn repeated(prompt_hash: u64, index: u64, period: u64) -> u64 {
    if mix(prompt_hash.wrapping_add(index)).is_multiple_of(8) { index } else { index % period.max(1) }
}

/// Whether a step computes this token as part of a prompt.
fn has_in_prompt(batch: &StepBatch<'_>, token: u32) -> bool {
    batch.rows.iter().any(|row| {
        let mut computed = row.query_range();
        computed.any(|at| batch.tokens[at] == token && batch.positions[at] < row.prompt_len)
    })
}

/// The token that the fake model gives as the `index`-th generated token of a prompt: the oracle of serving tests.
/// The result is below `vocab` and never `eos`. O(prompt).
pub fn fake_token(prompt_ids: &[u32], index: u64, vocab: u32, eos: Option<u32>) -> u32 {
    let prompt_hash = prompt_ids.iter().fold(HASH_SEED, |hash, &token| extend(hash, token));
    token_of(prompt_hash, index, vocab, eos)
}

/// The same for [`FakeModel::repeating`]: a text that goes round after `period` tokens, but for one token in eight.
pub fn fake_repeating_token(
    prompt_ids: &[u32],
    index: u64,
    period: u64,
    vocab: u32,
    eos: Option<u32>,
) -> u32 {
    let prompt_hash = prompt_ids.iter().fold(HASH_SEED, |hash, &token| extend(hash, token));
    token_of(prompt_hash, repeated(prompt_hash, index, period), vocab, eos)
}

fn vector_of(prompt_hash: u64) -> impl Iterator<Item = f32> {
    let upper = move |index: u32| (mix(prompt_hash ^ mix(u64::from(index))) >> 40) as f32;
    (0..FAKE_VECTOR_WIDTH).map(move |index| upper(index) / (1u32 << 23) as f32 - 1.0)
}

/// The vector that the fake model gives for a prompt, neither cut nor normalised: the oracle of serving tests.
pub fn fake_vector(prompt_ids: &[u32]) -> Vec<f32> {
    vector_of(prompt_ids.iter().fold(HASH_SEED, |hash, &token| extend(hash, token))).collect()
}

/// See the module's head.
#[derive(Debug)]
pub struct FakeModel {
    info: ModelInfo,
    options: FakeOptions,
    /// Rolling hash of the sequence up to and including each cached position, `[blocks, block_size]`.
    cache: Vec<u64>,
    sampler: Sampler,
    /// One row of logits, for rows that are shaped.
    logits: Vec<f32>,
    /// See [`FakeModel::repeating`].
    period: Option<u64>,
}

impl FakeModel {
    /// A fake model of this shape; the cache takes 8 bytes per token.
    ///
    /// # Panics
    /// If the vocabulary has fewer than 2 ids or a size is zero: both come from checked configuration.
    pub fn new(shape: FakeShape, options: FakeOptions) -> Self {
        assert!(
            shape.vocab_size >= 2,
            "a fake vocabulary needs two ids so that one is not the end of sequence"
        );
        assert!(shape.block_size > 0 && shape.block_count > 0, "the KV pool is not empty");
        let tokens = shape.block_size as usize * shape.block_count as usize;
        Self {
            info: ModelInfo {
                family: "fake",
                dtype: "none",
                max_context: shape.max_context,
                vocab_size: shape.vocab_size,
                eos: shape.eos,
                block_size: shape.block_size,
                block_count: shape.block_count,
                kv_block_bytes: u64::from(shape.block_size) * 8,
                window: None,
                weight_bytes: 0,
                packed: None,
                vector_width: None,
            },
            options,
            cache: vec![0; tokens],
            sampler: Sampler::new(shape.vocab_size as usize),
            logits: vec![0.0; shape.vocab_size as usize],
            period: None,
        }
    }

    /// The same with texts that repeat themselves, as [`fake_repeating_token`] has it.
    pub fn repeating(mut self, period: u64) -> Self {
        self.period = Some(period);
        self
    }

    /// The same as a model that pools: for each prompt it gives [`fake_vector`].
    pub fn pooling(mut self) -> Self {
        self.info.vector_width = Some(FAKE_VECTOR_WIDTH);
        self
    }

    /// The same for batches with window tables, which it checks and keeps nothing in.
    pub fn with_window(mut self, window: WindowInfo) -> Self {
        self.info.window = Some(window);
        self
    }

    /// The vectors of the rows that end a prompt, from what the cache has of it.
    fn pool(&self, batch: &StepBatch<'_>, out: &mut StepOutput) {
        for (index, row) in batch.rows.iter().enumerate().filter(|(_, row)| row.ends_prompt()) {
            let last = self.cache_index(&batch.blocks[row.block_range()], row.context_len - 1);
            out.pooled.extend(vector_of(self.cache[last]));
            out.end_pooled(index);
        }
    }

    fn limits(&self) -> BatchLimits {
        self.info.batch_limits()
    }

    fn cache_index(&self, batch_blocks: &[u32], position: u32) -> usize {
        let block = batch_blocks[(position / self.info.block_size) as usize];
        block as usize * self.info.block_size as usize + (position % self.info.block_size) as usize
    }

    fn feed(&mut self, batch: &StepBatch<'_>) {
        let size = self.info.block_size as usize;
        for copy in batch.copies {
            let from = copy.from as usize * size;
            self.cache.copy_within(from..from + copy.tokens as usize, copy.to as usize * size);
        }
        for row in batch.rows {
            let blocks = &batch.blocks[row.block_range()];
            let first = row.context_len - row.query_len;
            let mut hash = match first.checked_sub(1) {
                Some(last) => self.cache[self.cache_index(blocks, last)],
                None => HASH_SEED,
            };
            for (&token, position) in batch.tokens[row.query_range()].iter().zip(first..) {
                hash = extend(hash, token);
                let index = self.cache_index(blocks, position);
                self.cache[index] = hash;
            }
        }
    }

    fn next_token(&self, batch: &StepBatch<'_>, row: usize) -> u32 {
        let row = &batch.rows[row];
        let blocks = &batch.blocks[row.block_range()];
        // A prompt of length 0, or one not fully fed yet, has no defined next token; both read as the fed prefix.
        let prompt_len = row.prompt_len.min(row.context_len);
        let prompt_hash = match prompt_len.checked_sub(1) {
            Some(last) => self.cache[self.cache_index(blocks, last)],
            None => HASH_SEED,
        };
        let index = u64::from(row.context_len - prompt_len);
        let index = self.period.map_or(index, |period| repeated(prompt_hash, index, period));
        token_of(prompt_hash, index, self.info.vocab_size, self.info.eos)
    }

    /// Greedy over the logits, of which all but one are 0.
    fn sample(
        &mut self,
        token: u32,
        params: &SampleParams,
        shaping: Option<Shaping<'_>>,
        out: &mut StepOutput,
    ) {
        if shaping.is_some_and(|shaping| shaping.mask.is_some()) {
            // Whole numbers of a vocabulary's size are exact.
            let (after, before) = (token as usize + 1, token as usize);
            let others = self.logits.len() - after;
            self.logits[after..].iter_mut().enumerate().for_each(|(step, logit)| *logit = -(step as f32));
            self.logits[..before]
                .iter_mut()
                .enumerate()
                .for_each(|(step, logit)| *logit = -((others + step) as f32));
        } else {
            self.logits.fill(0.0);
        }
        self.logits[token as usize] = 1.0;
        let greedy =
            SampleParams { logprobs: params.logprobs, position: params.position, ..SampleParams::GREEDY };
        self.sampler.draw_row(&mut self.logits, &greedy, shaping, out);
    }

    /// What the positions before a prompt's tokens say of them: each prefix is a prompt of its own.
    fn score_prompts(&mut self, batch: &StepBatch<'_>, out: &mut StepOutput) {
        for (index, row) in batch.rows.iter().enumerate() {
            let Some(scored) = &row.scored else { continue };
            let blocks = &batch.blocks[row.block_range()];
            for at in row.scored_range() {
                let prefix = self.cache[self.cache_index(blocks, batch.positions[at])];
                let likeliest = token_of(prefix, 0, self.info.vocab_size, self.info.eos);
                self.logits.fill(0.0);
                self.logits[likeliest as usize] = 1.0;
                let token = batch.successor(row, scored, at);
                self.sampler.score_known(&self.logits, token, scored.alternatives, out);
            }
            out.end_prompt_scores(index);
        }
    }

    fn wait(&self, started: Instant, batch: &StepBatch<'_>) {
        let prefill: u64 =
            batch.rows.iter().filter(|row| row.is_prefill()).map(|row| u64::from(row.query_len)).sum();
        let micros = self.options.step_us + self.options.prefill_us_per_token * prefill as f64;
        // A time that is negative or not a number reads as none.
        if micros > 0.0 {
            sleep_until(started + Duration::from_nanos((micros * 1e3) as u64));
        }
    }
}

/// Sleeps, then spins the last [`SPIN_US`].
fn sleep_until(deadline: Instant) {
    let spin = Duration::from_micros(SPIN_US);
    if let Some(sleep) =
        deadline.checked_duration_since(Instant::now()).and_then(|left| left.checked_sub(spin))
    {
        std::thread::sleep(sleep);
    }
    while Instant::now() < deadline {
        std::hint::spin_loop();
    }
}

impl Model for FakeModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn step(&mut self, batch: &StepBatch<'_>, out: &mut StepOutput) -> Result<(), StepError> {
        let started = Instant::now();
        batch.check(&self.limits())?;
        if self.options.fatal_token.is_some_and(|token| has_in_prompt(batch, token)) {
            std::process::abort();
        }
        self.feed(batch);
        out.clear();
        if self.info.vector_width.is_some() {
            pooling::check(batch)?;
            self.pool(batch, out);
        }
        for (index, row) in batch.rows.iter().enumerate() {
            let Some(params) = row.sample else {
                out.push(RowOutcome::None);
                continue;
            };
            let token = self.next_token(batch, index);
            match batch.shaping.shaping(index) {
                None if params.logprobs.is_none() => out.push(RowOutcome::Token(token)),
                shaping => self.sample(token, &params, shaping, out),
            }
        }
        self.score_prompts(batch, out);
        self.wait(started, batch);
        Ok(())
    }

    /// One-hot rows: 1 at the token that `step` would give, 0 elsewhere.
    fn logits(&mut self, batch: &StepBatch<'_>, out: &mut Vec<f32>) -> Result<(), StepError> {
        batch.check(&self.limits())?;
        self.feed(batch);
        out.clear();
        for (index, row) in batch.rows.iter().enumerate() {
            if row.sample.is_some() {
                let start = out.len();
                out.resize(start + self.info.vocab_size as usize, 0.0);
                out[start + self.next_token(batch, index) as usize] = 1.0;
            }
        }
        Ok(())
    }

    fn warm_up(&mut self, _shapes: &WarmUp) -> Result<(), StepError> {
        Ok(())
    }
}
