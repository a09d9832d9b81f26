// Paged attention of single query tokens, and the append to the cache. Contract: pinion_cuda.h; the work is in attention.h.
#include "attention.h"

namespace pinion {
namespace {

constexpr unsigned THREADS = 128;

// grid: (kv heads * groups, splits, queries); HEADS query heads a block.
template <typename T, unsigned DIM, unsigned HEADS>
__global__ void __launch_bounds__(THREADS) attention_kernel(PinionCudaAttention args) {
    auto& shared = shared_as<AttentionShared<HEADS, DIM, THREADS / WARP>>();
    begin_next();
    // Without an append the step's own tokens are in the cache, from the kernel before.
    if (!args.append) wait_for_previous();
    attend<T, DIM, HEADS, THREADS>(args, blockIdx.z, blockIdx.x * HEADS, blockIdx.y, shared);
}

// One block of threads for one token.
template <typename T>
__global__ void __launch_bounds__(THREADS) append_kernel(PinionCudaAppend args) {
    constexpr unsigned N = PER_CHUNK<T>;
    const PinionCudaBatch& batch = args.batch;
    begin_next();
    wait_for_previous();
    unsigned lane = at<uint32_t>(batch.lanes)[blockIdx.x];
    if (lane == PINION_NO_LANE) return;
    const uint32_t* table = at<uint32_t>(batch.tables) + size_t(lane) * batch.table_stride;
    unsigned position = at<uint32_t>(batch.positions)[blockIdx.x];
    size_t from = size_t(blockIdx.x) * args.stride;
    for (unsigned i = threadIdx.x * N; i < batch.kv_heads * batch.head_dim; i += THREADS * N) {
        size_t to = cache_row(batch, table, i / batch.head_dim, position) + i % batch.head_dim;
        store_chunk(at<T>(args.cache) + to, load_chunk(at<T>(args.k) + from + i));
        store_chunk(at<T>(args.cache) + to + size_t(batch.block_size) * batch.head_dim, load_chunk(at<T>(args.v) + from + i));
    }
}

template <typename T, unsigned DIM, unsigned HEADS>
int32_t launch_attention(const PinionCudaAttention& args, void* stream) {
    auto kernel = &attention_kernel<T, DIM, HEADS>;
    dim3 grid(args.batch.heads / HEADS, args.splits, args.count);
    PINION_LAUNCH_DEPENDENT(kernel, grid, dim3(THREADS), sizeof(AttentionShared<HEADS, DIM, THREADS / WARP>), stream, args);
    return launch_result();
}

template <typename T, unsigned DIM>
int32_t launch_for_group(const PinionCudaAttention& args, void* stream) {
    // fp32 is for comparisons: it reads the cache once for each query head.
    if constexpr (sizeof(T) == 4) return launch_attention<T, DIM, 1>(args, stream);
    else {
        switch (args.batch.heads / args.batch.kv_heads) {
        case 2: return launch_attention<T, DIM, 2>(args, stream);
        case 4: return launch_attention<T, DIM, 4>(args, stream);
        case 8: return launch_attention<T, DIM, 8>(args, stream);
        default: return launch_attention<T, DIM, 1>(args, stream);
        }
    }
}

} // namespace
} // namespace pinion

using namespace pinion;

extern "C" int32_t pinion_cuda_attention(const PinionCudaAttention* given, void* stream) {
    PinionCudaAttention args = *given;
    if (!batch_is_good(args.batch) || args.count == 0 || args.count > 65535 || args.splits == 0 || args.splits > 64 ||
        (args.splits > 1 && (!args.partials || !args.counters)))
        return PINION_CUDA_BAD_ARGUMENT;
    return with_dtype(args.batch.dtype, [&](auto element) -> int32_t {
        using T = decltype(element);
        switch (args.batch.head_dim) {
        case 16: return launch_attention<T, 16, 1>(args, stream);
        case 32: return launch_attention<T, 32, 1>(args, stream);
        case 64: return launch_for_group<T, 64>(args, stream);
        default: return launch_for_group<T, 128>(args, stream);
        }
    });
}

extern "C" int32_t pinion_cuda_kv_append(const PinionCudaAppend* given, void* stream) {
    PinionCudaAppend args = *given;
    if (!batch_is_whole(args.batch) || args.stride < args.batch.kv_heads * args.batch.head_dim) return PINION_CUDA_BAD_ARGUMENT;
    return with_dtype(args.batch.dtype, [&](auto element) -> int32_t {
        auto kernel = &append_kernel<decltype(element)>;
        PINION_LAUNCH_DEPENDENT(kernel, dim3(args.batch.tokens), dim3(THREADS), 0, stream, args);
        return launch_result();
    });
}
