//! The sweeps of the attention kernels.

use super::{Bench, DTYPES, Scale, check_near, tolerance};
use pinion_cuda::{
    Append, Attention, CudaDtype, DecodeSplit, Device, GeneralAttention, NO_LANE, NO_QUERY, PREFILL_TILE,
    Prefill, Span, TokenBatch, twin,
};
use pinion_random::Random;

/// A paged cache with scattered tables, on the device and in the twin.
struct Paged {
    cache: Span,
    twin: twin::Cache,
    tables: Vec<Vec<u32>>,
    tables_span: Span,
    table_stride: usize,
}

impl Paged {
    /// Room for `lanes` sequences of up to `positions` tokens; values past them are random too.
    fn new(
        bench: &Bench,
        dtype: CudaDtype,
        random: &mut Random,
        shape: [usize; 3],
        lanes: usize,
        positions: usize,
    ) -> Paged {
        let [kv_heads, block_size, head_dim] = shape;
        let table_stride = positions.div_ceil(block_size) + random.below(3);
        let mut order: Vec<u32> = (0..(lanes * table_stride + 2) as u32).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, random.below(i + 1));
        }
        let tables: Vec<Vec<u32>> = order.chunks(table_stride).take(lanes).map(<[u32]>::to_vec).collect();
        let (cache, values) = bench.random(dtype, random, order.len() * kv_heads * 2 * block_size * head_dim);
        let tables_span = bench.words(&tables.concat());
        Paged {
            cache,
            twin: twin::Cache { values, kv_heads, block_size, head_dim },
            tables,
            tables_span,
            table_stride,
        }
    }

    fn append(&mut self, lane: u32, position: u32, k: &[f32], v: &[f32]) {
        if lane != NO_LANE {
            self.twin.append(&self.tables[lane as usize], position as usize, k, v);
        }
    }

    /// Makes all rows of the cache NaN but those of each lane's first positions.
    fn spoil(&mut self, bench: &Bench, dtype: CudaDtype, lens: &[usize]) {
        let twin::Cache { ref mut values, kv_heads, block_size, head_dim } = self.twin;
        let mut spoilt = vec![f32::NAN; values.len()];
        for (table, &len) in self.tables.iter().zip(lens) {
            for position in 0..len {
                let block = table[position / block_size] as usize;
                for k_or_v in 0..2 * kv_heads {
                    let row = (block * 2 * kv_heads + k_or_v) * block_size + position % block_size;
                    let range = row * head_dim..(row + 1) * head_dim;
                    spoilt[range.clone()].copy_from_slice(&values[range]);
                }
            }
        }
        *values = spoilt;
        self.cache = bench.put(dtype, values);
    }

    /// What each query should give; zeros for padding.
    fn attend<'a>(
        &self,
        lanes: &[u32],
        positions: &[u32],
        queries: impl Iterator<Item = &'a [f32]>,
        scale: f32,
    ) -> Vec<f32> {
        let mut want = Vec::new();
        for (query, (&lane, &position)) in queries.zip(lanes.iter().zip(positions)) {
            want.extend(match lane {
                NO_LANE => vec![0.0; query.len()],
                lane => self.twin.attend(&self.tables[lane as usize], position as usize, query, scale),
            });
        }
        want
    }

    fn batch(
        &self,
        bench: &Bench,
        dtype: CudaDtype,
        lanes: &[u32],
        positions: &[u32],
        heads: usize,
    ) -> TokenBatch {
        TokenBatch {
            lanes: bench.words(lanes),
            positions: bench.words(positions),
            tables: self.tables_span,
            tokens: lanes.len() as u32,
            table_stride: self.table_stride as u32,
            heads: heads as u32,
            kv_heads: self.twin.kv_heads as u32,
            head_dim: self.twin.head_dim as u32,
            block_size: self.twin.block_size as u32,
            dtype,
        }
    }
}

/// One query token a lane, with padding, grouped heads, every split; the append on the way.
pub(crate) fn decode_attention(device: &Device, scale: Scale) {
    let bench = Bench::new(device);
    for seed in 0..3 * scale.cases {
        let mut random = Random::new(4000 + seed);
        let dtype = random.pick(&DTYPES);
        let (kv_heads, group, dim) =
            (1 + random.below(3), random.pick(&[1usize, 2, 3, 4, 8]), random.pick(&[16usize, 32, 64, 128]));
        let (heads, lanes, block_size) =
            (kv_heads * group, 1 + random.below(4), random.pick(&[1usize, 4, 16, 32]));
        let mut paged =
            Paged::new(&bench, dtype, &mut random, [kv_heads, block_size, dim], lanes, scale.context_max);
        // q, k and v side by side, as the fused projection gives them; each lane once, and padding among them.
        let stride = (heads + 2 * kv_heads) * dim;
        let mut lane_of: Vec<u32> = (0..lanes as u32).collect();
        lane_of.insert(random.below(lanes + 1), NO_LANE);
        let positions: Vec<u32> = lane_of.iter().map(|_| random.below(scale.context_max) as u32).collect();
        let tokens = lane_of.len();
        let (qkv, values) = bench.random(dtype, &mut random, tokens * stride);
        let part = |at: usize| qkv.from(at * dim * dtype.size());
        let batch = paged.batch(&bench, dtype, &lane_of, &positions, heads);
        let splits = random.pick(&[1u32, 2, 3, 7]);
        let counters = bench.words(&vec![0; tokens * heads]);
        let partials = bench.room(tokens * heads * splits as usize * (dim + 2) * 4);
        let factor = 2.0 / (dim as f32).sqrt();
        let (k_at, v_at) = (heads * dim, (heads + kv_heads) * dim);
        for (token, row) in values.chunks_exact(stride).enumerate() {
            paged.append(lane_of[token], positions[token], &row[k_at..v_at], &row[v_at..]);
        }
        let out = bench.room(tokens * heads * dim * dtype.size());
        let appends = seed % 4 != 0;
        if !appends {
            let args = Append {
                batch,
                k: part(heads),
                v: part(heads + kv_heads),
                cache: paged.cache,
                stride: stride as u32,
            };
            bench.stream.kv_append(&args).expect("a launch");
        }
        let args = Attention {
            batch,
            q: qkv,
            q_stride: stride as u32,
            append: appends.then_some((part(heads), part(heads + kv_heads), stride as u32)),
            cache: paged.cache,
            out,
            out_stride: (heads * dim) as u32,
            queries: None,
            split: (splits > 1).then_some(DecodeSplit { splits, partials, counters }),
            scale: factor,
        };
        // The counters are zero again after the first launch, or the second would not end well.
        for _ in 0..2 {
            bench.stream.attention(&args).expect("a launch");
        }
        let queries = values.chunks_exact(stride).map(|row| &row[..heads * dim]);
        let want = paged.attend(&lane_of, &positions, queries, factor);
        check_near("decode attention", seed, &bench.get(dtype, out), &want, tolerance(dtype));
        check_near("append", seed, &bench.get(dtype, paged.cache), &paged.twin.values, 0.0);
    }
}

/// Every head size of the families, grouped heads, windows and soft caps; queries picked from the tokens, with padding
/// among both. Nothing but the contexts is a number.
pub(crate) fn general_attention(device: &Device, scale: Scale) {
    let bench = Bench::new(device);
    for seed in 0..2 * scale.cases {
        general_case(&bench, seed, 2 * scale.context_max);
    }
}

fn general_case(bench: &Bench, seed: u64, context_max: usize) {
    let mut random = Random::new(7000 + seed);
    let dtype = DTYPES[seed as usize % 3];
    let dim = random.pick(&[8usize, 24, 64, 80, 96, 128, 200, 256]);
    let (kv_heads, group) = (1 + random.below(3), random.pick(&[1usize, 2, 3, 8]));
    let (heads, lanes, block_size) = (kv_heads * group, 1 + random.below(3), random.pick(&[1usize, 4, 16]));
    let shape = [kv_heads, block_size, dim];
    let mut paged = Paged::new(bench, dtype, &mut random, shape, lanes, context_max);
    let mut lane_of: Vec<u32> = (0..lanes as u32).collect();
    lane_of.insert(random.below(lanes + 1), NO_LANE);
    let positions: Vec<u32> = lane_of.iter().map(|_| random.below(context_max) as u32).collect();
    let (tokens, stride) = (lane_of.len(), (heads + 2 * kv_heads) * dim);
    let (qkv, values) = bench.random(dtype, &mut random, tokens * stride);
    let batch = paged.batch(bench, dtype, &lane_of, &positions, heads);
    let (k_at, v_at) = (heads * dim, (heads + kv_heads) * dim);
    let mut lens = vec![0; lanes];
    for (token, row) in values.chunks_exact(stride).enumerate() {
        paged.append(lane_of[token], positions[token], &row[k_at..v_at], &row[v_at..]);
        if lane_of[token] != NO_LANE {
            lens[lane_of[token] as usize] = positions[token] as usize + 1;
        }
    }
    let part = |at: usize| qkv.from(at * dtype.size());
    let append = Append { batch, k: part(k_at), v: part(v_at), cache: paged.cache, stride: stride as u32 };
    bench.stream.kv_append(&append).expect("a launch");
    check_near("append", seed, &bench.get(dtype, paged.cache), &paged.twin.values, 0.0);
    paged.spoil(bench, dtype, &lens);
    let window = random.pick(&[None, Some(1u32), Some(7), Some(129), Some(1000)]);
    let soft_cap = random.pick(&[None, Some(1.5f32), Some(50.0)]);
    // All but one token are asked for, in another order; the one keeps what it had.
    let mut queries: Vec<u32> = (0..tokens as u32).rev().skip(1).collect();
    queries.insert(random.below(queries.len() + 1), NO_QUERY);
    let is_picked = seed & 1 == 0;
    let args = GeneralAttention {
        batch,
        q: qkv,
        q_stride: stride as u32,
        cache: paged.cache,
        out: bench.put(dtype, &vec![7.0; tokens * heads * dim]),
        out_stride: (heads * dim) as u32,
        queries: is_picked.then(|| (bench.words(&queries), queries.len() as u32)),
        window,
        scale: 2.0 / (dim as f32).sqrt(),
        soft_cap,
    };
    bench.stream.general_attention(&args).expect("a launch");
    let attend = |token: usize, q: &[f32]| match lane_of[token] {
        _ if is_picked && token == tokens - 1 => vec![7.0; q.len()],
        NO_LANE => vec![0.0; q.len()],
        lane => {
            let (table, position) = (&paged.tables[lane as usize], positions[token] as usize);
            paged.twin.attend_within(table, position, q, args.scale, window, soft_cap)
        }
    };
    let rows = values.chunks_exact(stride).enumerate();
    let want: Vec<f32> = rows.flat_map(|(token, row)| attend(token, &row[..k_at])).collect();
    check_near("general attention", seed, &bench.get(dtype, args.out), &want, tolerance(dtype));
    let narrow = GeneralAttention { q_stride: k_at as u32 - 8, ..args };
    bench.stream.general_attention(&narrow).expect_err("rows that overlap");
}

/// Query tokens of several sequences, each of its own length and after its own context.
#[derive(Default)]
struct Chunks {
    lane_of: Vec<u32>,
    positions: Vec<u32>,
    tiles: Vec<u32>,
    /// Positions of each lane, to the end of its chunk.
    lens: Vec<usize>,
}

impl Chunks {
    fn new(random: &mut Random, lanes: usize, context_max: usize) -> Chunks {
        let mut chunks = Chunks::default();
        let tile = PREFILL_TILE as usize;
        for lane in 0..lanes as u32 {
            // Whole tiles, whole warps and anything else; after no context, whole tiles of keys, one less than a
            // query's first sight of the next tile, and anything else.
            let step = random.pick(&[1, 1, 16, tile]);
            let len = step * (1 + random.below(context_max.min(140) / step));
            let room = context_max - len;
            let first = match random.below(5) {
                0 => 0,
                1 => random.below(room + 1) / tile * tile,
                2 => (random.below(room + 1) / tile * tile + tile - 2).min(room),
                _ => random.below(room + 1),
            };
            for begin in (0..len).step_by(tile) {
                chunks.tiles.extend([(chunks.lane_of.len() + begin) as u32, (len - begin).min(tile) as u32]);
            }
            chunks.lane_of.extend(std::iter::repeat_n(lane, len));
            chunks.positions.extend((first..first + len).map(|position| position as u32));
            chunks.lens.push(first + len);
        }
        chunks
    }
}

/// Chunks of several sequences, with tails, in one launch; and the same through the kernel for single tokens. Contexts
/// of several tiles of keys, so each part of the shared memory is filled again; nothing but the contexts is a number.
pub(crate) fn prefill_attention(device: &Device, scale: Scale) {
    let bench = Bench::new(device);
    let context_max = 2 * scale.context_max;
    for seed in 0..scale.cases {
        let mut random = Random::new(5000 + seed);
        let dtype = random.pick(&[CudaDtype::Bf16, CudaDtype::F16]);
        let (kv_heads, group, dim) = (1 + random.below(2), 1 + random.below(2), random.pick(&[64usize, 128]));
        let (heads, lanes, block_size) =
            (kv_heads * group, 1 + random.below(3), random.pick(&[4usize, 16, 32]));
        let shape = [kv_heads, block_size, dim];
        let mut paged = Paged::new(&bench, dtype, &mut random, shape, lanes, context_max);
        let chunks = Chunks::new(&mut random, lanes, context_max);
        paged.spoil(&bench, dtype, &chunks.lens);
        let tokens = chunks.lane_of.len();
        let (q, q_values) = bench.random(dtype, &mut random, tokens * heads * dim);
        let batch = paged.batch(&bench, dtype, &chunks.lane_of, &chunks.positions, heads);
        let (stride, factor) = ((heads * dim) as u32, 3.0 / (dim as f32).sqrt());
        let want =
            paged.attend(&chunks.lane_of, &chunks.positions, q_values.chunks_exact(heads * dim), factor);
        let prefill = Prefill {
            batch,
            q,
            q_stride: stride,
            cache: paged.cache,
            out: bench.room(tokens * heads * dim * dtype.size()),
            out_stride: stride,
            tiles: bench.words(&chunks.tiles),
            count: (chunks.tiles.len() / 2) as u32,
            scale: factor,
        };
        bench.stream.prefill_attention(&prefill).expect("a launch");
        let before = bench.get(dtype, prefill.out);
        check_near("prefill attention", seed, &before, &want, 2.0 * tolerance(dtype));
        // The emulated device turns its order round, and copies late where it copied at once.
        let again = Prefill { out: bench.room(prefill.out.bytes()), ..prefill };
        bench.stream.prefill_attention(&again).expect("a launch");
        assert!(before == bench.get(dtype, again.out), "prefill attention, seed {seed}: the order shows");
        bench.stream.prefill_attention(&Prefill { scale: 0.0, ..prefill }).expect_err("a scale of nothing");

        // Every other token through the other kernel: it overwrites its own rows and no others.
        let mut queries: Vec<u32> = (0..tokens as u32).step_by(2).collect();
        queries.insert(random.below(queries.len() + 1), NO_QUERY);
        let args = Attention {
            batch,
            q,
            q_stride: stride,
            append: None,
            cache: paged.cache,
            out: prefill.out,
            out_stride: stride,
            queries: Some((bench.words(&queries), queries.len() as u32)),
            split: None,
            scale: factor,
        };
        bench.stream.attention(&args).expect("a launch");
        let after = bench.get(dtype, prefill.out);
        check_near("attention of picked tokens", seed, &after, &want, 2.0 * tolerance(dtype));
        for token in (1..tokens).step_by(2) {
            let range = token * heads * dim..(token + 1) * heads * dim;
            assert_eq!(before[range.clone()], after[range], "token {token}, seed {seed}");
        }
    }
}
