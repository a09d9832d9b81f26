// The attention of one query token, for a block of threads: attention.cu makes a kernel of it, fused_decode.cu a phase.
//
// Decode is bound by the bytes of the cache. A warp reads whole K and V rows, 16 bytes a lane, as many tokens at once as
// rows fit in a warp, and has the next four turns' rows on their way; each group of lanes that shares a row keeps its own
// running softmax, so the loop has no barrier.
// The context is split over blocks so that a small batch still fills the card; the block that finishes last for a head
// joins the parts. The query heads of one KV head are done together: the cache is read once for all of them.
#pragma once
#include "grid.h"
#include "paged.h"

namespace pinion {

constexpr float NOTHING = -1e30f; // below every score; finite, so that differences are

template <unsigned HEADS, unsigned DIM, unsigned WARPS>
struct AttentionShared {
    float most[WARPS][HEADS];
    float mass[WARPS][HEADS];
    float sums[WARPS][HEADS][DIM];
    uint32_t is_last;
};

// Joins two running softmaxes: this lane's and that of the lane at distance `mask`.
template <unsigned N>
__device__ __forceinline__ void join_lanes(float& most, float& mass, float (&sums)[N], unsigned mask) {
    float other_most = lane_xor(most, mask);
    float both = most > other_most ? most : other_most;
    float own_share = expf(most - both), other_share = expf(other_most - both);
    mass = mass * own_share + lane_xor(mass, mask) * other_share;
#pragma unroll
    for (unsigned j = 0; j < N; j++) sums[j] = sums[j] * own_share + lane_xor(sums[j], mask) * other_share;
    most = both;
}

// The positions [begin, end) of a split; of a short context the last splits have none.
struct Part {
    unsigned begin, end;
    __device__ __forceinline__ unsigned size() const { return begin < end ? end - begin : 0; }
};
__device__ __forceinline__ Part part_of(unsigned position, unsigned splits, unsigned split) {
    unsigned length = position + 1, share = ceil_div(length, splits), begin = split * share;
    return {begin, begin + share < length ? begin + share : length};
}

// What the block for (token, kv head, split) knows.
struct Work {
    unsigned query, token, lane, position, kv_head, head, split;
};

// HEADS query heads from `head` on, in one part of the context. All threads of the block come here together; a barrier
// belongs between this and the next use of `shared`.
template <typename T, unsigned DIM, unsigned HEADS, unsigned THREADS>
__device__ __forceinline__ void attend(const PinionCudaAttention& args, unsigned query_index, unsigned head, unsigned split_index,
                                       AttentionShared<HEADS, DIM, THREADS / WARP>& shared) {
    constexpr unsigned WARPS = THREADS / WARP;
    constexpr unsigned N = PER_CHUNK<T>;
    constexpr unsigned LANES = DIM / N;              // lanes that share a row
    constexpr unsigned ROWS = WARP / LANES * WARPS;  // rows that the block reads at once
    const PinionCudaBatch& batch = args.batch;
    Work work;
    work.query = query_index;
    work.split = split_index;
    work.head = head;
    work.kv_head = work.head / (batch.heads / batch.kv_heads);
    work.token = args.queries ? at<uint32_t>(args.queries)[work.query] : work.query;
    if (work.token == PINION_NO_QUERY) return;
    work.lane = at<uint32_t>(batch.lanes)[work.token];
    work.position = at<uint32_t>(batch.positions)[work.token];
    T* out = at<T>(args.out) + size_t(work.token) * args.out_stride;
    if (work.lane == PINION_NO_LANE) {
        wait_for_previous();
        if (work.split == 0)
            for (unsigned i = threadIdx.x; i < HEADS * DIM; i += THREADS) out[work.head * DIM + i] = from_float<T>(0.0f);
        return;
    }

    unsigned in_row = threadIdx.x % LANES, row = threadIdx.x / LANES;
    const uint32_t* table = at<uint32_t>(batch.tables) + size_t(work.lane) * batch.table_stride;
    T* cache = at<T>(args.cache);
    Part part = part_of(work.position, args.splits, work.split);
    unsigned begin = part.begin, end = part.end;
    // AHEAD turns are under way: a turn's K and V are asked for again, for the turn AHEAD later, as soon as they are used, and
    // the table's entry for that was asked for as long before. Positions past the end read the part's first row, and the
    // step's own is read before it is written; neither is used.
    constexpr unsigned AHEAD = HEADS < 8 && sizeof(T) == 2 ? 4 : 2; // 8 heads leave no registers; fp32 is for comparisons
    Chunk k_chunks[AHEAD], v_chunks[AHEAD];
    CachePlace places[AHEAD];
    size_t to_v = size_t(batch.block_size) * DIM;
    auto find = [&](unsigned a, unsigned position) {
        places[a] = cache_place(batch, table, position < end ? position : begin);
    };
    auto ask = [&](unsigned a) {
        const T* from = cache + cache_row(batch, places[a], work.kv_head) + in_row * N;
        k_chunks[a] = early_chunk(from);
        v_chunks[a] = early_chunk(from + to_v);
    };
    if (begin < end) {
#pragma unroll
        for (unsigned a = 0; a < AHEAD; a++) find(a, begin + a * ROWS + row);
#pragma unroll
        for (unsigned a = 0; a < AHEAD; a++) ask(a);
#pragma unroll
        for (unsigned a = 0; a < AHEAD; a++) find(a, begin + (AHEAD + a) * ROWS + row);
    }
    wait_for_previous();
    float query[HEADS][N], most[HEADS], mass[HEADS], sums[HEADS][N];
#pragma unroll
    for (unsigned h = 0; h < HEADS; h++) {
        const T* q = at<T>(args.q) + size_t(work.token) * args.q_stride + (work.head + h) * DIM + in_row * N;
        unpack<T>(fresh_chunk(q), query[h]);
        most[h] = NOTHING;
        mass[h] = 0.0f;
#pragma unroll
        for (unsigned j = 0; j < N; j++) {
            query[h][j] *= args.scale;
            sums[h][j] = 0.0f;
        }
    }
    // All lanes of a warp go round the loop equally often: the exchanges below need every one of them.
    for (unsigned first = begin; first < end; first += AHEAD * ROWS) {
#pragma unroll
        for (unsigned a = 0; a < AHEAD; a++) {
            if (first + a * ROWS >= end) break;
            unsigned at_position = first + a * ROWS + row;
            bool is_here = at_position < end;
            float key[N], value[N];
            unpack<T>(k_chunks[a], key);
            unpack<T>(v_chunks[a], value);
            if (is_here && args.append && at_position == work.position) {
                size_t from = size_t(work.token) * args.kv_stride + work.kv_head * DIM + in_row * N;
                Chunk k_chunk = fresh_chunk(at<T>(args.k) + from), v_chunk = fresh_chunk(at<T>(args.v) + from);
                // Blocks that share a KV head would write the same bytes; only the first does.
                if (work.head % (batch.heads / batch.kv_heads) == 0) {
                    T* to = cache + cache_row(batch, table, work.kv_head, at_position) + in_row * N;
                    store_chunk(to, k_chunk);
                    store_chunk(to + to_v, v_chunk);
                }
                unpack<T>(k_chunk, key);
                unpack<T>(v_chunk, value);
            }
            ask(a);
            find(a, at_position + 2 * AHEAD * ROWS);
#pragma unroll
            for (unsigned h = 0; h < HEADS; h++) {
                float score = 0.0f;
#pragma unroll
                for (unsigned j = 0; j < N; j++) score += query[h][j] * key[j];
                score = warp_reduce<LANES>(score, Sum());
                if (!is_here) continue;
                float now = most[h] > score ? most[h] : score;
                float keep = expf(most[h] - now), weight = expf(score - now);
                mass[h] = mass[h] * keep + weight;
                most[h] = now;
#pragma unroll
                for (unsigned j = 0; j < N; j++) sums[h][j] = sums[h][j] * keep + weight * value[j];
            }
        }
    }

    // Join the row groups of the warp, then the warps.
    unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (unsigned h = 0; h < HEADS; h++) {
#pragma unroll
        for (unsigned mask = LANES; mask < WARP; mask *= 2) join_lanes(most[h], mass[h], sums[h], mask);
        if (lane < LANES)
            for (unsigned j = 0; j < N; j++) shared.sums[warp][h][lane * N + j] = sums[h][j];
        if (lane == 0) {
            shared.most[warp][h] = most[h];
            shared.mass[warp][h] = mass[h];
        }
    }
    __syncthreads();
    bool split = args.splits > 1;
    for (unsigned i = threadIdx.x; i < HEADS * DIM; i += THREADS) {
        unsigned h = i / DIM, dim = i % DIM;
        float top = NOTHING, total = 0.0f, sum = 0.0f;
        for (unsigned w = 0; w < WARPS; w++) top = top > shared.most[w][h] ? top : shared.most[w][h];
        for (unsigned w = 0; w < WARPS; w++) {
            float factor = expf(shared.most[w][h] - top);
            total += factor * shared.mass[w][h];
            sum += factor * shared.sums[w][h][dim];
        }
        if (!split) {
            out[(work.head + h) * DIM + dim] = from_float<T>(sum / total);
            continue;
        }
        float* part = at<float>(args.partials) +
                      ((size_t(work.query) * batch.heads + work.head + h) * args.splits + work.split) * (DIM + 2);
        part[dim] = sum;
        if (dim == 0) {
            part[DIM] = top;
            part[DIM + 1] = total;
        }
    }
    if (!split) return;

    // The block that comes last for these heads joins the parts; the counter is left at zero for the next launch.
    // Why these fences are enough: grid.h.
    __syncthreads();
    uint32_t* counter = at<uint32_t>(args.counters) + size_t(work.query) * batch.heads + work.head;
    if (threadIdx.x == 0) {
        fence_device();
        bool is_last = atomicAdd(counter, 1u) + 1 == args.splits;
        shared.is_last = is_last;
        if (is_last) {
            fence_device();
            *counter = 0;
        }
    }
    __syncthreads();
    if (!shared.is_last) return;
    for (unsigned i = threadIdx.x; i < HEADS * DIM; i += THREADS) {
        unsigned h = i / DIM, dim = i % DIM;
        const float* parts = at<float>(args.partials) + (size_t(work.query) * batch.heads + work.head + h) * args.splits * (DIM + 2);
        float top = NOTHING, total = 0.0f, sum = 0.0f;
        for (unsigned s = 0; s < args.splits; s++) {
            float other = fresh(parts + s * (DIM + 2) + DIM);
            top = top > other ? top : other;
        }
        for (unsigned s = 0; s < args.splits; s++) {
            const float* part = parts + s * (DIM + 2);
            float part_sum = fresh(part + dim), part_top = fresh(part + DIM), part_mass = fresh(part + DIM + 1);
            float factor = expf(part_top - top);
            total += factor * part_mass;
            sum += factor * part_sum;
        }
        out[(work.head + h) * DIM + dim] = from_float<T>(sum / total);
    }
}

} // namespace pinion
