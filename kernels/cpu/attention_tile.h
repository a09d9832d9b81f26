// Paged attention over vectors, written once for every instruction set. Contract: kernels/include/pinion_attention.h.
//
// `Lane` says what a 32-bit lane holds and how two lanes multiply: one fp32 value (PlainLane, below), or a pair of bf16
// values (PairLane in attention_avx512_bf16.cpp). Its `Isa` has the vector operations, `T` is the type of the activations and
// `Kv` that of the cache. Integers are widened on load; their scales are factors on scores and weights of generated tokens,
// and are multiplied into the keys and values of a tile when these are packed.
//
// A generated token: K rows are read in place, a chunk of keys at a time (attend_heads). What it sees may be several spans;
// the sums of each are joined to those before it (join_span), at once if one thread has all of them (attend_spans), else when
// all have ended (join_partials).
// Prompt tokens: keys are packed into L1 once per tile of queries, transposed so that a vector holds the same dimension of
// neighbouring keys; scores then need no horizontal sum (attend_tile). Both are online softmax in one pass.
#pragma once
#include <type_traits>

#include "attention_internal.h"

namespace {

constexpr uint32_t kMaxDim = 256;   // head_dim of the vector code
constexpr uint32_t kHeads = 8;       // query heads that share a pass over the cache
constexpr float kLowest = -3.0e38f;

alignas(64) const uint8_t kZeroRow[kMaxDim * 4] = {};

// Lanes of one fp32 value, whatever the stored types.
template <class I, class Activation, class Stored = Activation>
struct PlainLane {
    using Isa = I;
    using T = Activation;
    using Kv = Stored;
    using V = typename I::V;
    static constexpr uint32_t kPerLane = 1;
    template <class E>
    static V load(const E* row) {
        return I::load(row);
    }
    template <class E>
    static V load_part(const E* row, uint32_t n) {
        return I::load_part(row, n);
    }
    static V mac(V a, V b, V sum) { return I::fma(a, b, sum); }
    static void pack_weights(float*) {}
    // Lane i holds element i of the row (kPerLane rows interleaved).
    static V load_values(const Kv* const* rows, uint64_t offset, uint32_t n) {
        return n >= I::kLanes ? I::load(rows[0] + offset) : I::load_part(rows[0] + offset, n);
    }
};

// Copies one row of head_dim elements into lanes, zero-padded to whole vectors.
template <class L>
inline void pack_row(const typename L::T* row, uint32_t dim, float* lanes) {
    using I = typename L::Isa;
    constexpr uint32_t step = I::kLanes * L::kPerLane;
    uint32_t d = 0;
    for (; d + step <= dim; d += step) I::store(lanes + d / L::kPerLane, L::load(row + d));
    if (d < dim) I::store(lanes + d / L::kPerLane, L::load_part(row + d, dim - d));
}

// Turns kKeys scores into weights: scale, cap, max, exp and sum, given the row's running maximum. Scores before `from` and
// past `valid` count as masked. Writes the weights' sum to `added` and returns the factor that earlier sums must be multiplied
// with.
template <class I>
inline float soften(const PinionAttention& a, float* scores, uint32_t from, uint32_t valid, float* max, float* added) {
    using V = typename I::V;
    for (uint32_t k = valid; k < round_up(valid, I::kLanes); ++k) scores[k] = kLowest;
    V top = I::set1(kLowest);
    const V factor = I::set1(a.scale);
    for (uint32_t k = 0; k < valid; k += I::kLanes) {
        V scaled = I::mul(I::load(scores + k), factor);
        if (a.soft_cap > 0) scaled = I::mul(I::tanh(I::mul(scaled, I::set1(1 / a.soft_cap))), I::set1(a.soft_cap));
        I::store(scores + k, scaled);
        top = I::max(top, scaled);
    }
    if (from > 0) {
        for (uint32_t k = 0; k < from; ++k) scores[k] = kLowest;
        top = I::set1(kLowest);
        for (uint32_t k = 0; k < valid; k += I::kLanes) top = I::max(top, I::load(scores + k));
    }
    // Padding was scaled as well; it stays below any score, or at the cap's lower end, and is zeroed below.
    float new_max = I::reduce_max(top);
    if (*max > new_max) new_max = *max;
    const V shift = I::set1(new_max);
    V total = I::zero();
    for (uint32_t k = 0; k < valid; k += I::kLanes) {
        V weight = I::exp(I::sub(I::load(scores + k), shift));
        if (k + I::kLanes > valid) weight = I::keep_first(weight, valid - k);
        I::store(scores + k, weight);
        total = I::add(total, weight);
    }
    for (uint32_t k = round_up(valid, I::kLanes); k < kKeys; k += I::kLanes) I::store(scores + k, I::zero());
    float keep = 1;
    if (new_max != *max) {
        keep = I::first(I::exp(I::set1(*max - new_max)));
        *max = new_max;
    }
    *added = I::reduce_add(total);
    return keep;
}

// Rounded on its own: were the compiler free to fuse it with the sum behind it, bits would depend on what is inlined where.
inline float rounded_product(float a, float b) {
    float product = a * b;
    asm("" : "+x"(product));
    return product;
}

// out[0..dim] = sum / mass.
template <class I, class T>
inline void store_result(const float* sum, float mass, uint32_t dim, T* out) {
    const typename I::V inverse = I::set1(1.0f / mass);
    uint32_t d = 0;
    for (; d + I::kLanes <= dim; d += I::kLanes) I::store(out + d, I::mul(I::load(sum + d), inverse));
    if (d < dim) I::store_part(out + d, I::mul(I::load(sum + d), inverse), dim - d);
}

// sum[d .. d + N * kLanes] = keep * sum + weights . V, for H heads; each row of V is loaded once for them.
template <class I, int N, int H, class Kv>
inline void add_values(const Kv* const* k_rows, uint64_t v_offset, uint32_t keys, const float* weights, const float* keep,
                       uint32_t d, float* sum) {
    typename I::V acc[H][N];
    for (int h = 0; h < H; ++h) {
        for (int n = 0; n < N; ++n) acc[h][n] = I::mul(I::load(sum + h * kMaxDim + d + n * I::kLanes), I::set1(keep[h]));
    }
    for (uint32_t k = 0; k < keys; ++k) {
        const Kv* row = k_rows[k] + v_offset + d;
        typename I::V value[N];
        for (int n = 0; n < N; ++n) value[n] = I::load(row + n * I::kLanes);
        for (int h = 0; h < H; ++h) {
            const typename I::V weight = I::set1(weights[h * kKeys + k]);
            for (int n = 0; n < N; ++n) acc[h][n] = I::fma(weight, value[n], acc[h][n]);
        }
    }
    for (int h = 0; h < H; ++h) {
        for (int n = 0; n < N; ++n) I::store(sum + h * kMaxDim + d + n * I::kLanes, acc[h][n]);
    }
}

// The last, partial vector of the head.
template <class I, class Kv>
inline void add_values_part(const Kv* const* k_rows, uint64_t v_offset, uint32_t keys, const float* weights, float keep,
                            uint32_t d, uint32_t part, float* sum) {
    typename I::V acc = I::mul(I::load(sum + d), I::set1(keep));
    for (uint32_t k = 0; k < keys; ++k) {
        acc = I::fma(I::set1(weights[k]), I::load_part(k_rows[k] + v_offset + d, part), acc);
    }
    I::store(sum + d, acc);
}

// What the query heads of one pass add up, on the stack.
struct Heads {
    alignas(64) float q[kHeads * kMaxDim];
    alignas(64) float sum[kHeads * kMaxDim];
    alignas(64) float scores[kHeads * kKeys];
    float max[kHeads];
    float mass[kHeads];
    float keep[kHeads];
};

// Calls work(count) with the number of heads as a constant.
template <class Work>
__attribute__((always_inline)) inline void with_heads(uint32_t heads, Work work) {
    static_assert(kHeads == 8, "each number has a case");
    switch (heads) {
        case 1: return work(std::integral_constant<int, 1>());
        case 2: return work(std::integral_constant<int, 2>());
        case 3: return work(std::integral_constant<int, 3>());
        case 4: return work(std::integral_constant<int, 4>());
        case 5: return work(std::integral_constant<int, 5>());
        case 6: return work(std::integral_constant<int, 6>());
        case 7: return work(std::integral_constant<int, 7>());
        default: return work(std::integral_constant<int, 8>());
    }
}

// Scores of H heads against `keys` keys in place; each row of K is loaded once for all.
template <class L, int H>
inline void score_heads(Heads& t, const typename L::Kv* const* k_rows, uint32_t keys, uint32_t dim) {
    using I = typename L::Isa;
    using Kv = typename L::Kv;
    using V = typename I::V;
    constexpr uint32_t step = I::kLanes * L::kPerLane;
    const float* q = t.q;
    for (uint32_t k = 0; k < keys; ++k) {
        const Kv* row = k_rows[k];
        V acc[H];
        for (int h = 0; h < H; ++h) acc[h] = I::zero();
        uint32_t d = 0;
        for (; d + step <= dim; d += step) {
            const V key = L::load(row + d);
            for (int h = 0; h < H; ++h) acc[h] = L::mac(I::load(q + h * kMaxDim + d / L::kPerLane), key, acc[h]);
        }
        if (d < dim) {
            const V key = L::load_part(row + d, dim - d);
            for (int h = 0; h < H; ++h) acc[h] = L::mac(I::load(q + h * kMaxDim + d / L::kPerLane), key, acc[h]);
        }
        for (int h = 0; h < H; ++h) t.scores[h * kKeys + k] = I::reduce_add(acc[h]);
    }
}

// Adds the weighed values of H heads.
template <class L, int H>
inline void weigh_heads(Heads& t, const typename L::Kv* const* k_rows, uint64_t v_offset, uint32_t keys,
                        uint32_t dim) {
    using I = typename L::Isa;
    // The sums stay in registers: at most 16 of the 32 of AVX-512, and 8 of the 16 of AVX2.
    constexpr int wide = H <= 2 ? 4 : H <= 4 || I::kLanes == 16 ? 2 : 1;
    const float* weights = t.scores;
    float* sum = t.sum;
    uint32_t d = 0;
    for (; d + wide * I::kLanes <= dim; d += wide * I::kLanes) {
        add_values<I, wide, H>(k_rows, v_offset, keys, weights, t.keep, d, sum);
    }
    for (; d + I::kLanes <= dim; d += I::kLanes) {
        add_values<I, 1, H>(k_rows, v_offset, keys, weights, t.keep, d, sum);
    }
    for (int h = 0; h < H && d < dim; ++h) {
        add_values_part<I>(k_rows, v_offset, keys, weights + h * kKeys, t.keep[h], d, dim - d, sum + h * kMaxDim);
    }
}

// Packs the queries of a generated token's heads.
template <class L>
inline void pack_queries(const PinionAttention& a, const Item& item, uint32_t first_head, uint32_t heads, Heads& t) {
    using T = typename L::T;
    const uint32_t dim = a.batch.head_dim;
    for (uint32_t h = 0; h < heads; ++h) {
        const T* q = static_cast<const T*>(a.q) + item.first_token * a.q_stride + static_cast<uint64_t>(first_head + h) * dim;
        pack_row<L>(q, dim, t.q + h * kMaxDim);
    }
}

// Multiplies the scores or weights of all heads with the scales of `keys` rows, which lie `offset` elements after those of K.
template <class I, class Kv>
inline void apply_scales(Heads& t, uint32_t heads, const Kv* const* k_rows, uint64_t offset, uint32_t keys, uint32_t dim) {
    if constexpr (!kHasScale<Kv>) return;
    alignas(64) float scales[kKeys] = {};
    for (uint32_t k = 0; k < keys; ++k) scales[k] = scale_of(k_rows[k] + offset, dim);
    for (uint32_t h = 0; h < heads; ++h) {
        float* row = t.scores + h * kKeys;
        for (uint32_t k = 0; k < keys; k += I::kLanes) I::store(row + k, I::mul(I::load(row + k), I::load(scales + k)));
    }
}

// Sums, maxima and masses of the packed heads over the positions [begin, end) of which the token sees those from its window
// on; `begin` is a multiple of kKeys. K and V are read in place. Inlined, so that `t` stays an object of the caller of which
// the compiler knows that no row of the cache lies in it.
template <class L>
__attribute__((always_inline)) inline void attend_positions(const PinionAttention& a, const Item& item, uint32_t heads,
                                                            uint32_t begin, uint32_t end, Heads& t) {
    using I = typename L::Isa;
    using Kv = typename L::Kv;
    const uint32_t dim = a.batch.head_dim;
    const uint64_t step = row_step<Kv>(a.batch), v_offset = a.batch.block_size * step;
    const Kv* k_rows[kKeys];
    for (uint32_t h = 0; h < heads; ++h) {
        memset(t.sum + h * kMaxDim, 0, partial_width(dim) * sizeof(float));
        t.max[h] = kLowest;
        t.mass[h] = 0;
    }
    const uint32_t from = visible_from(a, item.first_position);
    for (uint32_t first = begin; first < end; first += kKeys) {
        const uint32_t keys = smaller(kKeys, end - first);
        collect_visible_rows(a, item.seq, item.kv_head, from, first, keys, k_rows);
        // V of these keys is wanted right after the scores; ask for it while they are computed.
        for (uint32_t k = 0; k < keys; ++k) {
            for (uint32_t d = 0; d < step; d += 64 / sizeof(Kv)) __builtin_prefetch(k_rows[k] + v_offset + d);
        }
        with_heads(heads, [&](auto count) { score_heads<L, count.value>(t, k_rows, keys, dim); });
        apply_scales<I>(t, heads, k_rows, 0, keys, dim);
        const uint32_t hidden = from > first ? from - first : 0;
        for (uint32_t h = 0; h < heads; ++h) {
            float added;
            t.keep[h] = soften<I>(a, t.scores + h * kKeys, hidden, keys, &t.max[h], &added);
            t.mass[h] = rounded_product(t.mass[h], t.keep[h]) + added;
        }
        apply_scales<I>(t, heads, k_rows, v_offset, keys, dim);
        with_heads(heads, [&](auto count) { weigh_heads<L, count.value>(t, k_rows, v_offset, keys, dim); });
    }
}

// What one head added up over the spans so far.
struct Joined {
    alignas(64) float sum[kMaxDim];
    float max;
    float mass;
};

// Adds what the next span gave. Each product is rounded or fused by what stands here and not by the compiler, so a join has
// the same bits wherever it is done.
template <class I>
inline void join_span(Joined& all, const float* sum, float max, float mass, uint32_t dim) {
    const float top = all.max > max ? all.max : max;
    const float keep = I::first(I::exp(I::set1(all.max - top)));
    const float take = I::first(I::exp(I::set1(max - top)));
    for (uint32_t d = 0; d < dim; d += I::kLanes) {
        const typename I::V kept = I::mul(I::load(all.sum + d), I::set1(keep));
        I::store(all.sum + d, I::fma(I::load(sum + d), I::set1(take), kept));
    }
    all.max = top;
    all.mass = rounded_product(all.mass, keep) + rounded_product(mass, take);
}

// The first span.
inline void begin_join(Joined& all, const float* sum, float max, float mass, uint32_t width) {
    memcpy(all.sum, sum, width * sizeof(float));
    all.max = max;
    all.mass = mass;
}

template <class T>
inline T* output_of(const PinionAttention& a, const Item& item, uint32_t head) {
    return static_cast<T*>(a.out) + item.first_token * a.out_stride + static_cast<uint64_t>(head) * a.batch.head_dim;
}

// All spans of a generated token, one after another.
template <class L>
__attribute__((noinline)) void attend_spans(const PinionAttention& a, const Item& item, uint32_t first_head, uint32_t heads,
                                            const Spans& spans) {
    const uint32_t dim = a.batch.head_dim;
    Heads t;
    Joined all[kHeads];
    pack_queries<L>(a, item, first_head, heads, t);
    for (uint32_t span = 0; span < spans.count; ++span) {
        attend_positions<L>(a, item, heads, spans.begin_of(span), spans.end_of(span), t);
        for (uint32_t h = 0; h < heads; ++h) {
            const float* sum = t.sum + h * kMaxDim;
            if (span == 0) {
                begin_join(all[h], sum, t.max[h], t.mass[h], partial_width(dim));
            } else {
                join_span<typename L::Isa>(all[h], sum, t.max[h], t.mass[h], dim);
            }
        }
    }
    for (uint32_t h = 0; h < heads; ++h) {
        store_result<typename L::Isa>(all[h].sum, all[h].mass, dim, output_of<typename L::T>(a, item, first_head + h));
    }
}

// One generated token of `heads` query heads, from `first_head` on, that share a KV head, or one span of what it sees.
template <class L>
void attend_heads(const PinionAttention& a, const Item& item, uint32_t first_head, uint32_t heads) {
    const uint32_t dim = a.batch.head_dim;
    const Spans spans(a, item.first_position);
    if (!item.is_span && spans.count > 1) return attend_spans<L>(a, item, first_head, heads, spans);
    Heads t;
    pack_queries<L>(a, item, first_head, heads, t);
    attend_positions<L>(a, item, heads, spans.begin_of(item.span), spans.end_of(item.span), t);
    for (uint32_t h = 0; h < heads; ++h) {
        const float* sum = t.sum + h * kMaxDim;
        if (!item.is_span) {
            store_result<typename L::Isa>(sum, t.mass[h], dim, output_of<typename L::T>(a, item, first_head + h));
            continue;
        }
        float* partial = partial_of(a, item.partial, first_head + h - item.kv_head * a.batch.group);
        memcpy(partial, sum, partial_width(dim) * sizeof(float));
        partial[partial_width(dim)] = t.max[h];
        partial[partial_width(dim) + 1] = t.mass[h];
    }
}

// pinion_join_spans at one level.
template <class I, class T>
inline void join_partials(const PinionAttention& a, uint32_t seq, uint32_t kv_head, uint64_t first_partial) {
    const Item item = generated_item(a.batch, seq, kv_head);
    const uint32_t dim = a.batch.head_dim, width = partial_width(dim), count = Spans(a, item.first_position).count;
    for (uint32_t h = 0; h < a.batch.group; ++h) {
        Joined all;
        all.max = all.mass = 0;
        for (uint32_t span = 0; span < count; ++span) {
            const float* partial = partial_of(a, first_partial + span, h);
            if (span == 0) {
                begin_join(all, partial, partial[width], partial[width + 1], width);
            } else {
                join_span<I>(all, partial, partial[width], partial[width + 1], dim);
            }
        }
        store_result<I>(all.sum, all.mass, dim, output_of<T>(a, item, kv_head * a.batch.group + h));
    }
}

// Working set of a tile, on the stack.
template <class L>
struct Tile {
    alignas(64) float q[PINION_QUERY_TILE * kMaxDim];    // lanes, [queries, q_step]
    alignas(64) float k[kMaxDim * kKeys];                // lanes, [dims, keys]
    alignas(64) float v[kKeys * kMaxDim];                // lanes, [keys / kPerLane, v_step]
    alignas(64) float scores[PINION_QUERY_TILE * kKeys]; // [queries, keys]
    alignas(64) float sum[PINION_QUERY_TILE * kMaxDim];  // [queries, v_step]
    float max[PINION_QUERY_TILE];
    float mass[PINION_QUERY_TILE];
    float keep[PINION_QUERY_TILE];
    uint32_t dims;    // lanes of a query or key row
    uint32_t q_step;  // the same in whole vectors
    uint32_t v_step;  // head_dim in whole vectors
};

// Fills t.k and t.v with kKeys rows; rows past `keys` are zero.
template <class L>
inline void pack_keys(const typename L::Kv** k_rows, uint32_t keys, uint64_t v_offset, uint32_t dim, Tile<L>& t) {
    using I = typename L::Isa;
    using Kv = typename L::Kv;
    using V = typename I::V;
    constexpr uint32_t lanes = I::kLanes;
    constexpr uint32_t step = lanes * L::kPerLane;
    const Kv* zero = reinterpret_cast<const Kv*>(kZeroRow);
    const Kv* v_rows[kKeys];
    for (uint32_t k = 0; k < kKeys; ++k) v_rows[k] = k < keys ? k_rows[k] + v_offset : zero;
    for (uint32_t k = keys; k < kKeys; ++k) k_rows[k] = zero;

    for (uint32_t group = 0; group < round_up(keys, 2 * lanes); group += lanes) {
        for (uint32_t d = 0; d < dim; d += step) {
            V rows[lanes];
            for (uint32_t i = 0; i < lanes; ++i) {
                const Kv* row = k_rows[group + i] + d;
                rows[i] = d + step <= dim ? L::load(row) : L::load_part(row, dim - d);
                if constexpr (kHasScale<Kv>) rows[i] = I::mul(rows[i], I::set1(scale_of(k_rows[group + i], dim)));
            }
            I::transpose(rows);
            for (uint32_t i = 0; i < lanes; ++i) I::store(t.k + (d / L::kPerLane + i) * kKeys + group, rows[i]);
        }
    }
    for (uint32_t k = 0; k < keys; k += L::kPerLane) {
        for (uint32_t d = 0; d < dim; d += lanes) {
            V values = L::load_values(v_rows + k, d, dim - d);
            if constexpr (kHasScale<Kv>) values = I::mul(values, I::set1(scale_of(v_rows[k], dim)));
            I::store(t.v + k / L::kPerLane * t.v_step + d, values);
        }
    }
}

// Scores of kTileQueries queries against the first `keys` keys.
template <class L>
inline void score_queries(Tile<L>& t, uint32_t query, uint32_t keys) {
    using I = typename L::Isa;
    using V = typename I::V;
    constexpr int N = I::kTileQueries;
    const float* q = t.q + query * t.q_step;
    for (uint32_t k = 0; k < keys; k += 2 * I::kLanes) {
        V acc[N][2];
        for (int n = 0; n < N; ++n) acc[n][0] = acc[n][1] = I::zero();
        for (uint32_t d = 0; d < t.dims; ++d) {
            const V key0 = I::load(t.k + d * kKeys + k);
            const V key1 = I::load(t.k + d * kKeys + k + I::kLanes);
            for (int n = 0; n < N; ++n) {
                const V value = I::set1(q[n * t.q_step + d]);
                acc[n][0] = L::mac(value, key0, acc[n][0]);
                acc[n][1] = L::mac(value, key1, acc[n][1]);
            }
        }
        for (int n = 0; n < N; ++n) {
            I::store(t.scores + (query + n) * kKeys + k, acc[n][0]);
            I::store(t.scores + (query + n) * kKeys + k + I::kLanes, acc[n][1]);
        }
    }
}

// sum = keep * sum + weights . V for four queries and W vectors of the head from lane d on.
template <class L, int W>
inline void weigh_values(Tile<L>& t, uint32_t query, uint32_t key_lanes, uint32_t d) {
    using I = typename L::Isa;
    using V = typename I::V;
    V acc[4][W];
    for (int n = 0; n < 4; ++n) {
        const V keep = I::set1(t.keep[query + n]);
        for (int w = 0; w < W; ++w) acc[n][w] = I::mul(I::load(t.sum + (query + n) * t.v_step + d + w * I::kLanes), keep);
    }
    for (uint32_t k = 0; k < key_lanes; ++k) {
        V value[W];
        for (int w = 0; w < W; ++w) value[w] = I::load(t.v + k * t.v_step + d + w * I::kLanes);
        for (int n = 0; n < 4; ++n) {
            const V weight = I::set1(t.scores[(query + n) * kKeys + k]);
            for (int w = 0; w < W; ++w) acc[n][w] = L::mac(weight, value[w], acc[n][w]);
        }
    }
    for (int n = 0; n < 4; ++n) {
        for (int w = 0; w < W; ++w) I::store(t.sum + (query + n) * t.v_step + d + w * I::kLanes, acc[n][w]);
    }
}

// All rows of the tile, `heads` for each of its tokens, against one tile of keys, positions [first, first + keys).
template <class L>
inline void attend_keys(const PinionAttention& a, Tile<L>& t, const Item& item, uint32_t heads, uint32_t first,
                        uint32_t keys) {
    using I = typename L::Isa;
    constexpr uint32_t block = I::kTileQueries;
    static_assert(block % 4 == 0 && PINION_QUERY_TILE % block == 0, "query blocks tile the tile");
    const uint32_t rows = item.queries * heads;
    for (uint32_t query = 0; query < rows; query += block) {
        // Causality: the block's last row sees this many of the tile's keys. The window: its first row begins here.
        const uint32_t last = item.first_position + (smaller(query + block, rows) - 1) / heads;
        const uint32_t seen = last < first ? 0 : smaller(keys, last - first + 1);
        if (seen == 0 || visible_from(a, item.first_position + query / heads) >= first + keys) continue;
        score_queries(t, query, seen);
        for (uint32_t n = query; n < query + block; ++n) {
            const uint32_t position = item.first_position + n / heads;
            uint32_t valid = n >= rows || position < first ? 0 : smaller(keys, position - first + 1);
            const uint32_t from = visible_from(a, position);
            const uint32_t hidden = from > first ? from - first : 0;
            if (hidden >= valid) valid = 0;
            float* row = t.scores + n * kKeys;
            if (valid == 0) {
                t.keep[n] = 1;
                memset(row, 0, kKeys * sizeof(float));
            } else {
                float added;
                t.keep[n] = soften<I>(a, row, hidden, valid, &t.max[n], &added);
                t.mass[n] = __builtin_fmaf(t.mass[n], t.keep[n], added);
            }
            L::pack_weights(row);
        }
        const uint32_t key_lanes = (seen + L::kPerLane - 1) / L::kPerLane;
        for (uint32_t four = query; four < query + block; four += 4) {
            constexpr int wide = I::kTileVectors;
            uint32_t d = 0;
            for (; d + wide * I::kLanes <= t.v_step; d += wide * I::kLanes) weigh_values<L, wide>(t, four, key_lanes, d);
            for (; d < t.v_step; d += I::kLanes) weigh_values<L, 1>(t, four, key_lanes, d);
        }
    }
}

// A tile of prompt tokens of `heads` query heads, from `first_head` on, that share a KV head; what a query gives does not
// depend on how many there are.
template <class L>
__attribute__((noinline)) void attend_tile(const PinionAttention& a, const Item& item, uint32_t first_head,
                                           uint32_t heads) {
    using I = typename L::Isa;
    using T = typename L::T;
    const PinionBatch& b = a.batch;
    const uint32_t dim = b.head_dim;
    // Row n belongs to token n / heads and query head first_head + n % heads.
    const uint32_t rows = item.queries * heads;
    const auto token = [&](uint32_t n) { return static_cast<uint64_t>(item.first_token) + n / heads; };
    const auto column = [&](uint32_t n) { return static_cast<uint64_t>(first_head + n % heads) * dim; };
    Tile<L> t;
    t.dims = (dim + L::kPerLane - 1) / L::kPerLane;
    t.q_step = round_up(t.dims, I::kLanes);
    t.v_step = round_up(dim, I::kLanes);
    const uint32_t padded = round_up(rows, I::kTileQueries);
    memset(t.sum, 0, padded * t.v_step * sizeof(float));
    for (uint32_t n = 0; n < padded; ++n) {
        t.max[n] = kLowest;
        t.mass[n] = 0;
        float* lanes = t.q + n * t.q_step;
        if (n < rows) {
            pack_row<L>(static_cast<const T*>(a.q) + token(n) * a.q_stride + column(n), dim, lanes);
        } else {
            memset(lanes, 0, t.q_step * sizeof(float));
        }
    }
    const uint32_t context = item.first_position + item.queries;
    const typename L::Kv* k_rows[kKeys];
    const uint64_t v_offset = b.block_size * row_step<typename L::Kv>(b);
    const uint32_t from = visible_from(a, item.first_position);
    for (uint32_t first = from / kKeys * kKeys; first < context; first += kKeys) {
        const uint32_t keys = smaller(kKeys, context - first);
        collect_visible_rows(a, item.seq, item.kv_head, from, first, keys, k_rows);
        pack_keys<L>(k_rows, keys, v_offset, dim, t);
        attend_keys<L>(a, t, item, heads, first, keys);
    }
    for (uint32_t n = 0; n < rows; ++n) {
        T* out = static_cast<T*>(a.out) + token(n) * a.out_stride + column(n);
        store_result<I>(t.sum + n * t.v_step, t.mass[n], dim, out);
    }
}

template <class L>
inline void attend_items(const PinionAttention& a, uint64_t begin, uint64_t end) {
    const uint32_t group = a.batch.group;
    for_each_item(a, begin, end, [&](const Item& item) {
        const uint32_t pass = item.is_generated ? kHeads : uint32_t{PINION_QUERY_TILE};
        for (uint32_t h = 0; h < group; h += pass) {
            const uint32_t heads = smaller(pass, group - h);
            const uint32_t first_head = item.kv_head * group + h;
            if (item.is_generated) {
                attend_heads<L>(a, item, first_head, heads);
            } else {
                attend_tile<L>(a, item, first_head, heads);
            }
        }
    });
}

// The items in lanes of one fp32 value.
template <class I>
inline void attend_plain(const PinionAttention& a, uint64_t begin, uint64_t end) {
    const bool is_bf16 = a.batch.dtype == PINION_BF16;
    if (a.batch.kv_dtype == PINION_I8) {
        return is_bf16 ? attend_items<PlainLane<I, Bf16, Int8>>(a, begin, end)
                       : attend_items<PlainLane<I, float, Int8>>(a, begin, end);
    }
    return is_bf16 ? attend_items<PlainLane<I, Bf16>>(a, begin, end) : attend_items<PlainLane<I, float>>(a, begin, end);
}

}  // namespace
