// Paged attention of single query tokens for every head size, with sliding windows and soft caps. One block of threads for
// each (query, head): plain on purpose, attention.cu has the tuned one for the common head sizes.
// Contract: pinion_cuda.h. Twin: crates/cuda/src/twin.rs.
#include "paged.h"

namespace pinion {
namespace {

constexpr unsigned THREADS = 128, DIMS = PINION_GENERAL_DIM_MAX / THREADS;
constexpr float NOTHING = -1e30f; // below every score; finite, so that differences are

struct GeneralShared {
    float query[PINION_GENERAL_DIM_MAX];
    float weights[THREADS];
    uint32_t rows[THREADS]; // of K, in rows of the cache
    float scratch[THREADS / WARP];
};

// A turn is THREADS positions: each thread scores one of them, then each sums the values of its own dimensions.
template <typename T>
__global__ void __launch_bounds__(THREADS) general_kernel(PinionCudaGeneral args) {
    constexpr unsigned N = PER_CHUNK<T>;
    const PinionCudaBatch& batch = args.batch;
    auto& shared = shared_as<GeneralShared>();
    begin_next();
    wait_for_previous();
    unsigned head = blockIdx.x, dim = batch.head_dim, kv_head = head / (batch.heads / batch.kv_heads);
    unsigned token = args.queries ? at<uint32_t>(args.queries)[blockIdx.y] : blockIdx.y;
    if (token == PINION_NO_QUERY) return;
    unsigned lane = at<uint32_t>(batch.lanes)[token];
    T* out = at<T>(args.out) + size_t(token) * args.out_stride + head * dim;
    if (lane == PINION_NO_LANE) {
        for (unsigned i = threadIdx.x; i < dim; i += THREADS) out[i] = from_float<T>(0.0f);
        return;
    }
    const T* q = at<T>(args.q) + size_t(token) * args.q_stride + head * dim;
    for (unsigned i = threadIdx.x; i < dim; i += THREADS) shared.query[i] = to_float(q[i]);
    __syncthreads();

    const uint32_t* table = at<uint32_t>(batch.tables) + size_t(lane) * batch.table_stride;
    const T* cache = at<T>(args.cache);
    unsigned end = at<uint32_t>(batch.positions)[token] + 1;
    unsigned begin = args.window > 0 && end > args.window ? end - args.window : 0;
    float most = NOTHING, mass = 0.0f, sums[DIMS];
    for (unsigned d = 0; d < DIMS; d++) sums[d] = 0.0f;
    for (unsigned first = begin; first < end; first += THREADS) {
        unsigned position = first + threadIdx.x, count = end - first < THREADS ? end - first : THREADS;
        float score = NOTHING;
        if (position < end) {
            size_t from = cache_row(batch, table, kv_head, position);
            shared.rows[threadIdx.x] = uint32_t(from / dim);
            score = 0.0f;
            for (unsigned i = 0; i < dim; i += N) {
                float key[N];
                unpack<T>(load_chunk(cache + from + i), key);
                for (unsigned j = 0; j < N; j++) score += shared.query[i + j] * key[j];
            }
            score *= args.scale;
            if (args.soft_cap > 0.0f) score = args.soft_cap * tanhf(score / args.soft_cap);
        }
        float top = block_reduce(score, shared.scratch, Max());
        float now = top > most ? top : most;
        float weight = position < end ? expf(score - now) : 0.0f;
        shared.weights[threadIdx.x] = weight;
        float keep = expf(most - now);
        mass = mass * keep + block_reduce(weight, shared.scratch, Sum());
        most = now;
        for (unsigned d = 0; d < DIMS; d++) {
            unsigned i = d * THREADS + threadIdx.x;
            if (i >= dim) break;
            float sum = 0.0f;
            for (unsigned p = 0; p < count; p++) {
                // V's row lies a block of rows behind K's.
                size_t from = (size_t(shared.rows[p]) + batch.block_size) * dim;
                sum += shared.weights[p] * to_float(cache[from + i]);
            }
            sums[d] = sums[d] * keep + sum;
        }
        __syncthreads();
    }
    for (unsigned d = 0; d < DIMS; d++) {
        unsigned i = d * THREADS + threadIdx.x;
        if (i < dim) out[i] = from_float<T>(sums[d] / mass);
    }
}

} // namespace
} // namespace pinion

using namespace pinion;

extern "C" int32_t pinion_cuda_general_attention(const PinionCudaGeneral* given, void* stream) {
    PinionCudaGeneral args = *given;
    unsigned width = args.batch.heads * args.batch.head_dim;
    if (!batch_is_whole(args.batch) || args.batch.head_dim > PINION_GENERAL_DIM_MAX || args.count == 0 || args.count > 65535 ||
        args.q_stride < width || args.out_stride < width)
        return PINION_CUDA_BAD_ARGUMENT;
    return with_dtype(args.batch.dtype, [&](auto element) -> int32_t {
        auto kernel = &general_kernel<decltype(element)>;
        dim3 grid(args.batch.heads, args.count);
        PINION_LAUNCH_DEPENDENT(kernel, grid, dim3(THREADS), sizeof(GeneralShared), stream, args);
        return launch_result();
    });
}
