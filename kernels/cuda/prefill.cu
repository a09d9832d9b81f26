// Paged attention of tiles of query tokens on tensor cores. Contract: pinion_cuda.h.
//
// A block takes 64 queries of one head, a warp 16 of them, and goes through the context 64 keys at a time with a running
// softmax (flash attention). K and V come through shared memory, rows padded by 16 bytes against bank conflicts; the
// scores never leave the registers: what one product leaves in a lane is what the next takes from it.
#include "mma.h"
#include "paged.h"

namespace pinion {
namespace {

constexpr unsigned THREADS = 128;
constexpr unsigned KEYS = 64;
constexpr float NOTHING = -1e30f;

template <typename T, unsigned DIM>
struct PrefillShared {
    alignas(16) T k[KEYS][DIM + 8];
    alignas(16) T v[KEYS][DIM + 8];
};

template <typename T>
__device__ __forceinline__ uint32_t pair_of(T low, T high) {
    return uint32_t(low.bits) | uint32_t(high.bits) << 16;
}
template <typename T>
__device__ __forceinline__ uint32_t word_at(const T* from) {
    return *reinterpret_cast<const uint32_t*>(from);
}

// What a warp carries from one tile of keys to the next, for the rows lane / 4 and lane / 4 + 8.
template <unsigned DIM>
struct Running {
    float sums[DIM / 8][4];
    float most[2];
    float mass[2];
};

template <typename T, unsigned DIM>
__device__ __forceinline__ void load_keys(const PinionCudaPrefill& args, PrefillShared<T, DIM>& shared, const uint32_t* table,
                                          unsigned kv_head, unsigned first, unsigned end) {
    constexpr unsigned N = PER_CHUNK<T>;
    const Chunk nothing = {{0, 0, 0, 0}};
    for (unsigned i = threadIdx.x; i < KEYS * (DIM / N); i += THREADS) {
        unsigned row = i / (DIM / N), column = i % (DIM / N) * N;
        if (first + row < end) {
            size_t from = cache_row(args.batch, table, kv_head, first + row) + column;
            const T* cache = at<T>(args.cache);
            store_chunk(&shared.k[row][column], load_chunk(cache + from));
            store_chunk(&shared.v[row][column], load_chunk(cache + from + size_t(args.batch.block_size) * DIM));
        } else {
            store_chunk(&shared.k[row][column], nothing);
            store_chunk(&shared.v[row][column], nothing);
        }
    }
}

// One tile of keys: scores, softmax, sums. `position` is that of the warp's first query.
template <typename T, unsigned DIM>
__device__ __forceinline__ void take_keys(PrefillShared<T, DIM>& shared, const uint32_t (&q)[DIM / 16][4], Running<DIM>& run,
                                          unsigned first, unsigned position, float scale) {
    unsigned lane = threadIdx.x % WARP, group = lane / 4, pair = lane % 4;
    float scores[KEYS / 8][4];
#pragma unroll
    for (unsigned n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (unsigned i = 0; i < 4; i++) scores[n][i] = 0.0f;
#pragma unroll
        for (unsigned k = 0; k < DIM / 16; k++) {
            const T* row = &shared.k[n * 8 + group][k * 16 + pair * 2];
            uint32_t b[2] = {word_at(row), word_at(row + 8)};
            multiply<T>(scores[n], q[k], b);
        }
    }
    float most[2] = {run.most[0], run.most[1]};
#pragma unroll
    for (unsigned n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            unsigned key = first + n * 8 + pair * 2 + i % 2, query = position + group + i / 2 * 8;
            scores[n][i] = key <= query ? scores[n][i] * scale : NOTHING;
            most[i / 2] = most[i / 2] > scores[n][i] ? most[i / 2] : scores[n][i];
        }
    }
    float keep[2], mass[2] = {0.0f, 0.0f};
#pragma unroll
    for (unsigned r = 0; r < 2; r++) {
        most[r] = warp_reduce<4>(most[r], Max());
        keep[r] = expf(run.most[r] - most[r]);
        run.most[r] = most[r];
    }
#pragma unroll
    for (unsigned n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            // A row that sees none of these keys has most == NOTHING or an older one: both give 0 for masked keys.
            scores[n][i] = scores[n][i] == NOTHING ? 0.0f : expf(scores[n][i] - most[i / 2]);
            mass[i / 2] += scores[n][i];
        }
    }
#pragma unroll
    for (unsigned r = 0; r < 2; r++) run.mass[r] = run.mass[r] * keep[r] + warp_reduce<4>(mass[r], Sum());
#pragma unroll
    for (unsigned d = 0; d < DIM / 8; d++) {
#pragma unroll
        for (unsigned i = 0; i < 4; i++) run.sums[d][i] *= keep[i / 2];
    }
#pragma unroll
    for (unsigned k = 0; k < KEYS / 16; k++) {
        uint32_t a[4];
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            const float* two = &scores[2 * k + i / 2][i % 2 * 2];
            a[i] = pair_of(from_float<T>(two[0]), from_float<T>(two[1]));
        }
#pragma unroll
        for (unsigned d = 0; d < DIM / 8; d++) {
            unsigned row = k * 16 + pair * 2, column = d * 8 + group;
            uint32_t b[2] = {pair_of(shared.v[row][column], shared.v[row + 1][column]),
                             pair_of(shared.v[row + 8][column], shared.v[row + 9][column])};
            multiply<T>(run.sums[d], a, b);
        }
    }
}

// grid: (tiles, heads).
template <typename T, unsigned DIM>
__global__ void __launch_bounds__(THREADS) prefill_kernel(PinionCudaPrefill args) {
    auto& shared = shared_as<PrefillShared<T, DIM>>();
    const PinionCudaBatch& batch = args.batch;
    const uint32_t* tile = at<uint32_t>(args.tiles) + size_t(blockIdx.x) * 2;
    unsigned first_token = tile[0], count = tile[1], head = blockIdx.y;
    unsigned lane_index = at<uint32_t>(batch.lanes)[first_token];
    if (lane_index == PINION_NO_LANE) return;
    unsigned position = at<uint32_t>(batch.positions)[first_token], end = position + count;
    const uint32_t* table = at<uint32_t>(batch.tables) + size_t(lane_index) * batch.table_stride;

    unsigned lane = threadIdx.x % WARP, group = lane / 4, pair = lane % 4, warp_row = threadIdx.x / WARP * 16;
    uint32_t q[DIM / 16][4];
#pragma unroll
    for (unsigned k = 0; k < DIM / 16; k++) {
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            unsigned row = warp_row + group + i % 2 * 8;
            const T* from = at<T>(args.q) + size_t(first_token + row) * args.q_stride + head * DIM + k * 16 + pair * 2 + i / 2 * 8;
            q[k][i] = row < count ? word_at(from) : 0;
        }
    }
    Running<DIM> run;
#pragma unroll
    for (unsigned d = 0; d < DIM / 8; d++)
        for (unsigned i = 0; i < 4; i++) run.sums[d][i] = 0.0f;
    for (unsigned r = 0; r < 2; r++) {
        run.most[r] = NOTHING;
        run.mass[r] = 0.0f;
    }
    for (unsigned first = 0; first < end; first += KEYS) {
        __syncthreads();
        load_keys<T, DIM>(args, shared, table, head / (batch.heads / batch.kv_heads), first, end);
        __syncthreads();
        take_keys<T, DIM>(shared, q, run, first, position + warp_row, args.scale);
    }
#pragma unroll
    for (unsigned r = 0; r < 2; r++) {
        unsigned row = warp_row + group + r * 8;
        if (row >= count) continue;
        T* out = at<T>(args.out) + size_t(first_token + row) * args.out_stride + head * DIM + pair * 2;
#pragma unroll
        for (unsigned d = 0; d < DIM / 8; d++) {
            float low = run.sums[d][r * 2] / run.mass[r], high = run.sums[d][r * 2 + 1] / run.mass[r];
            *reinterpret_cast<uint32_t*>(out + d * 8) = pair_of(from_float<T>(low), from_float<T>(high));
        }
    }
}

template <typename T, unsigned DIM>
int32_t launch_prefill(const PinionCudaPrefill& args, void* stream) {
    auto kernel = &prefill_kernel<T, DIM>;
    PINION_LAUNCH(kernel, dim3(args.count, args.batch.heads), dim3(THREADS), sizeof(PrefillShared<T, DIM>), stream, args);
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
    if (!batch_is_good(args.batch) || args.count == 0 || args.batch.heads > 65535) return PINION_CUDA_BAD_ARGUMENT;
    if (args.batch.dtype == PINION_CUDA_F16) return launch_for_dim<f16>(args, stream);
    if (args.batch.dtype == PINION_CUDA_BF16) return launch_for_dim<bf16>(args, stream);
    return PINION_CUDA_BAD_ARGUMENT;
}
