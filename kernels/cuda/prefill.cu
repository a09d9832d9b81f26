// Paged attention of tiles of query tokens on tensor cores. Contract: pinion_cuda.h.
//
// A block takes 64 queries of one head, a warp 16 of them, and goes through the context 64 keys at a time with a running
// softmax (flash attention). K and V of the next tile of keys are copied to shared memory while this one is multiplied, and
// the block table is read one tile further ahead. The scores never leave the registers: what one product leaves in a lane is
// what the next takes from it. A warp leaves out the tiles that come after its last query.
#include "grid.h"
#include "mma.h"
#include "paged.h"

namespace pinion {
namespace {

constexpr unsigned THREADS = 128;
constexpr unsigned KEYS = 64;
constexpr unsigned WARP_ROWS = 16;
// Blocks that the registers of a multiprocessor must have room for: a few registers fewer make one more.
template <unsigned DIM>
constexpr unsigned BLOCKS = DIM == 64 ? 4 : 3;
constexpr float LOG2_E = 1.4426950408889634f;

// One tile of keys' K or V. Rows are padded by 16 bytes, so a row begins 16 bytes further on in the 128 bytes of the banks
// than the row before it (DIM * 2 is a multiple of 128): eight rows, which one matrix of load_matrices is, meet every bank once.
template <typename T, unsigned DIM>
struct TileRows {
    alignas(16) T rows[KEYS][DIM + PER_CHUNK<T>];
};

// What the block works on: a tile of queries and a head.
struct Work {
    unsigned first_token, count, lane, head, kv_head;
    unsigned end; // of the context, and of the tile in it
};

// Two parts of each: one is multiplied while the other is filled.
template <typename T, unsigned DIM>
struct PrefillShared {
    TileRows<T, DIM> k[2], v[2];
    const T* places[2][KEYS]; // of the K rows in the cache
    Work work;                // here it takes no registers while tiles are multiplied
};

template <typename T>
__device__ __forceinline__ uint32_t pair_of(float low, float high) {
    return uint32_t(from_float<T>(low).bits) | uint32_t(from_float<T>(high).bits) << 16;
}
// 2^x, to a relative error of 2^-22; what is below the normal numbers is 0.
__device__ __forceinline__ float power_of_two(float x) {
#if defined(PINION_ON_DEVICE)
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
#else
    return exp2f(x);
#endif
}

// What a warp carries from one tile of keys to the next, for the rows lane / 4 and lane / 4 + 8.
template <unsigned DIM>
struct Running {
    float sums[DIM / 8][4];
    float most[2]; // largest score, before the scale
    float mass[2]; // this lane's part
};
using Scores = float[KEYS / 8][4];

template <unsigned DIM>
__device__ __forceinline__ Running<DIM> nothing_yet() {
    Running<DIM> run;
#pragma unroll
    for (unsigned d = 0; d < DIM / 8; d++)
        for (unsigned i = 0; i < 4; i++) run.sums[d][i] = 0.0f;
    for (unsigned r = 0; r < 2; r++) {
        run.most[r] = -INFINITY;
        run.mass[r] = 0.0f;
    }
    return run;
}

// Each of the first KEYS threads finds the place of one K row of the tile that begins with key `first`, in two steps: it asks
// for the table's entry, and what comes is looked at when the products of another tile are done.
// A row past the context's end has no place.
template <typename T>
struct Finder {
    const PinionCudaPrefill& args;
    const Work& work;

    __device__ __forceinline__ CachePlace ask(unsigned first) const {
        if (threadIdx.x >= KEYS || first + threadIdx.x >= work.end) return {0, 0};
        const uint32_t* table = at<uint32_t>(args.batch.tables) + size_t(work.lane) * args.batch.table_stride;
        return cache_place(args.batch, table, first + threadIdx.x);
    }
    __device__ __forceinline__ void put(const T* (&places)[KEYS], const CachePlace& place, unsigned first) const {
        if (threadIdx.x >= KEYS) return;
        const T* row = at<T>(args.cache) + cache_row(args.batch, place, work.kv_head);
        places[threadIdx.x] = first + threadIdx.x < work.end ? row : nullptr;
    }
};

// Begins the copies of a tile, whose places are known. Of rows past the context's end K is never looked at, and V is zero:
// their weights are zero, and what is left there from before might be no number.
template <typename T, unsigned DIM>
__device__ __forceinline__ void begin_copies(const PinionCudaPrefill& args, PrefillShared<T, DIM>& shared, unsigned part) {
    constexpr unsigned CHUNKS = DIM / PER_CHUNK<T>, STEP = THREADS / CHUNKS;
    unsigned row = threadIdx.x / CHUNKS, column = threadIdx.x % CHUNKS * PER_CHUNK<T>;
    const T* from[KEYS / STEP];
#pragma unroll
    for (unsigned i = 0; i < KEYS / STEP; i++) from[i] = shared.places[part][row + i * STEP];
#pragma unroll
    for (unsigned i = 0; i < KEYS / STEP; i++) {
        T* k = &shared.k[part].rows[row + i * STEP][column];
        T* v = &shared.v[part].rows[row + i * STEP][column];
        if (from[i]) {
            copy_async(reinterpret_cast<Chunk*>(k), from[i] + column);
            copy_async(reinterpret_cast<Chunk*>(v), from[i] + column + size_t(args.batch.block_size) * DIM);
        } else {
            store_chunk(v, Chunk{{0, 0, 0, 0}});
        }
    }
    commit_copies();
}

// The products of the warp's queries with the tile's keys.
template <typename T, unsigned DIM>
__device__ __forceinline__ void score_keys(Scores& scores, const TileRows<T, DIM>& k, const uint32_t (&q)[DIM / 16][4]) {
    unsigned lane = threadIdx.x % WARP;
    // Matrices of one load: 8 keys by 8 and the next 8 of their elements, then the same of the next 8 keys.
    unsigned row = lane / 16 * 8 + lane % 8, column = lane / 8 % 2 * 8;
#pragma unroll
    for (unsigned n = 0; n < KEYS / 8; n++)
        for (unsigned i = 0; i < 4; i++) scores[n][i] = 0.0f;
#pragma unroll
    for (unsigned d = 0; d < DIM / 16; d++) {
#pragma unroll
        for (unsigned n = 0; n < KEYS / 8; n += 2) {
            uint32_t b[4];
            load_matrices<false>(b, &k.rows[n * 8 + row][d * 16 + column]);
            multiply<T>(scores[n], q[d], {b[0], b[1]});
            multiply<T>(scores[n + 1], q[d], {b[2], b[3]});
        }
    }
}

// Softmax so far: scores become weights. `ahead` is the position of the warp's first query less that of the first key;
// `scale` is in powers of two. Every query sees the first key of all, so `most` is a score from the first tile on.
template <unsigned DIM>
__device__ __forceinline__ void weigh_keys(Scores& scores, Running<DIM>& run, int ahead, float scale) {
    int group = threadIdx.x % WARP / 4, pair = threadIdx.x % 4;
    if (ahead < int(KEYS - 1)) {
#pragma unroll
        for (int n = 0; n < int(KEYS / 8); n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                bool is_seen = n * 8 + pair * 2 + i % 2 <= ahead + group + i / 2 * 8;
                scores[n][i] = is_seen ? scores[n][i] : -INFINITY;
            }
        }
    }
    float most[2] = {run.most[0], run.most[1]}, keep[2], shift[2];
#pragma unroll
    for (unsigned n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (unsigned i = 0; i < 4; i++) most[i / 2] = fmaxf(most[i / 2], scores[n][i]);
    }
#pragma unroll
    for (unsigned r = 0; r < 2; r++) {
        most[r] = warp_reduce<4>(most[r], Max());
        keep[r] = power_of_two((run.most[r] - most[r]) * scale);
        shift[r] = most[r] * scale;
        run.most[r] = most[r];
        run.mass[r] *= keep[r];
    }
#pragma unroll
    for (unsigned n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            scores[n][i] = power_of_two(scores[n][i] * scale - shift[i / 2]);
            run.mass[i / 2] += scores[n][i];
        }
    }
#pragma unroll
    for (unsigned d = 0; d < DIM / 8; d++) {
#pragma unroll
        for (unsigned i = 0; i < 4; i++) run.sums[d][i] *= keep[i / 2];
    }
}

// The sum of the tile's values by their weights.
template <typename T, unsigned DIM>
__device__ __forceinline__ void add_values(Running<DIM>& run, const Scores& weights, const TileRows<T, DIM>& v) {
    unsigned lane = threadIdx.x % WARP;
    // Matrices of one load: 8 and the next 8 keys by 8 elements, then the same of the next 8 elements.
    unsigned row = lane % 16, column = lane / 16 * 8;
#pragma unroll
    for (unsigned k = 0; k < KEYS / 16; k++) {
        uint32_t a[4];
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            const float* two = &weights[2 * k + i / 2][i % 2 * 2];
            a[i] = pair_of<T>(two[0], two[1]);
        }
#pragma unroll
        for (unsigned d = 0; d < DIM / 8; d += 2) {
            uint32_t b[4];
            load_matrices<true>(b, &v.rows[k * 16 + row][d * 8 + column]);
            multiply<T>(run.sums[d], a, {b[0], b[1]});
            multiply<T>(run.sums[d + 1], a, {b[2], b[3]});
        }
    }
}

__device__ __forceinline__ unsigned first_row_of_warp() { return threadIdx.x / WARP * WARP_ROWS; }
// Rows from the warp's first to the tile's end; more than WARP_ROWS are other warps'.
__device__ __forceinline__ unsigned rows_of_warp(unsigned count) {
    return count > first_row_of_warp() ? count - first_row_of_warp() : 0;
}

// How far the warp's first query is ahead of key `first`. A warp without queries is behind all keys.
__device__ __forceinline__ int ahead_of(const Work& work, unsigned first) {
    int position = int(work.end - work.count + first_row_of_warp());
    return rows_of_warp(work.count) > 0 ? position - int(first) : -int(WARP_ROWS);
}

// The warp's queries; rows past the tile's are zero.
template <typename T, unsigned DIM>
__device__ __forceinline__ void load_queries(uint32_t (&q)[DIM / 16][4], const T* from, unsigned stride, unsigned count) {
    unsigned group = threadIdx.x % WARP / 4, pair = threadIdx.x % 4;
#pragma unroll
    for (unsigned k = 0; k < DIM / 16; k++) {
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            unsigned row = group + i % 2 * 8;
            const T* two = from + size_t(row) * stride + k * 16 + pair * 2 + i / 2 * 8;
            q[k][i] = row < count ? *reinterpret_cast<const uint32_t*>(two) : 0;
        }
    }
}
template <typename T, unsigned DIM>
__device__ __forceinline__ void store_sums(const Running<DIM>& run, T* out, unsigned stride, unsigned count) {
    unsigned group = threadIdx.x % WARP / 4, pair = threadIdx.x % 4;
#pragma unroll
    for (unsigned r = 0; r < 2; r++) {
        float factor = 1.0f / warp_reduce<4>(run.mass[r], Sum());
        unsigned row = group + r * 8;
        if (row >= count) continue;
        T* to = out + size_t(row) * stride + pair * 2;
#pragma unroll
        for (unsigned d = 0; d < DIM / 8; d++) {
            uint32_t two = pair_of<T>(run.sums[d][r * 2] * factor, run.sums[d][r * 2 + 1] * factor);
            *reinterpret_cast<uint32_t*>(to + d * 8) = two;
        }
    }
}

// grid: tiles * heads, the last tile's heads first: of a sequence's tiles it has the longest context, and what begins last
// should be short.
template <typename T, unsigned DIM>
__global__ void __launch_bounds__(THREADS, BLOCKS<DIM>) prefill_kernel(PinionCudaPrefill args) {
    auto& shared = shared_as<PrefillShared<T, DIM>>();
    const PinionCudaBatch& batch = args.batch;
    begin_next();
    wait_for_previous();
    const uint32_t* tile = at<uint32_t>(args.tiles) + size_t(args.count - 1 - blockIdx.x / batch.heads) * 2;
    unsigned first_token = tile[0], count = tile[1], head = blockIdx.x % batch.heads;
    if (count == 0) return;
    unsigned lane = at<uint32_t>(batch.lanes)[first_token];
    if (lane == PINION_NO_LANE) return;
    unsigned position = at<uint32_t>(batch.positions)[first_token], end = position + count;
    Work work = {first_token, count, lane, head, head / (batch.heads / batch.kv_heads), end};
    if (threadIdx.x == 0) shared.work = work;
    for (unsigned t = 0; t < 2; t++) {
        Finder<T> finder = {args, work};
        finder.put(shared.places[t], finder.ask(t * KEYS), t * KEYS);
    }
    __syncthreads();
    begin_copies<T, DIM>(args, shared, 0);

    unsigned first_row = first_row_of_warp(), rows = rows_of_warp(count);
    uint32_t q[DIM / 16][4];
    load_queries<T, DIM>(q, at<T>(args.q) + size_t(first_token + first_row) * args.q_stride + head * DIM, args.q_stride, rows);
    Running<DIM> run = nothing_yet<DIM>();
    for (unsigned first = 0; first < shared.work.end; first += KEYS) {
        unsigned part = first / KEYS % 2;
        // The tile has come, for all threads, and the other part is free: all are done with the tile before.
        wait_copies<0>();
        __syncthreads();
        if (first + KEYS < shared.work.end) begin_copies<T, DIM>(args, shared, 1 - part);
        Finder<T> finder = {args, shared.work};
        CachePlace place = finder.ask(first + 2 * KEYS);
        int ahead = ahead_of(shared.work, first);
        if (ahead > -int(WARP_ROWS)) {
            Scores scores;
            score_keys<T, DIM>(scores, shared.k[part], q);
            weigh_keys<DIM>(scores, run, ahead, args.scale * LOG2_E);
            add_values<T, DIM>(run, scores, shared.v[part]);
        }
        // Threads that read the places of this tile, for its copies, did so before the barrier.
        finder.put(shared.places[part], place, first + 2 * KEYS);
    }
    T* out = at<T>(args.out) + size_t(shared.work.first_token + first_row_of_warp()) * args.out_stride + shared.work.head * DIM;
    store_sums<T, DIM>(run, out, args.out_stride, rows_of_warp(shared.work.count));
}

template <typename T, unsigned DIM>
int32_t launch_prefill(const PinionCudaPrefill& args, void* stream) {
    auto kernel = &prefill_kernel<T, DIM>;
    constexpr unsigned BYTES = sizeof(PrefillShared<T, DIM>);
    if (int32_t code = allow_shared(kernel, BYTES)) return code;
    PINION_LAUNCH_DEPENDENT(kernel, dim3(args.count * args.batch.heads), dim3(THREADS), BYTES, stream, args);
    return launch_result();
}

template <typename T>
int32_t launch_for_dim(const PinionCudaPrefill& args, void* stream) {
    if (args.batch.head_dim == 64) return launch_prefill<T, 64>(args, stream);
    if (args.batch.head_dim == 128) return launch_prefill<T, 128>(args, stream);
    return PINION_CUDA_BAD_ARGUMENT;
}

} // namespace
} // namespace pinion

using namespace pinion;

extern "C" int32_t pinion_cuda_prefill_attention(const PinionCudaPrefill* given, void* stream) {
    PinionCudaPrefill args = *given;
    bool fits = uint64_t(args.count) * args.batch.heads <= INT32_MAX;
    if (!batch_is_good(args.batch) || args.count == 0 || !fits || !(args.scale > 0.0f)) return PINION_CUDA_BAD_ARGUMENT;
    if (args.batch.dtype == PINION_CUDA_F16) return launch_for_dim<f16>(args, stream);
    if (args.batch.dtype == PINION_CUDA_BF16) return launch_for_dim<bf16>(args, stream);
    return PINION_CUDA_BAD_ARGUMENT;
}
