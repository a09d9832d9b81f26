// Rows from tables: embeddings, the last token of each sampling row; block tables and cache blocks; rotary positions.
// Contract: pinion_cuda.h. Twins: crates/cuda/src/twin.rs.
#include "embed.h"

namespace pinion {
namespace {

constexpr unsigned THREADS = 128;

template <typename T>
__global__ void __launch_bounds__(THREADS) embed_kernel(PinionCudaEmbed args) {
    constexpr unsigned N = PER_CHUNK<T>;
    begin_next();
    EmbeddedRow<T> row(args, blockIdx.x);
    T* out = at<T>(args.out) + size_t(blockIdx.x) * args.width;
    for (unsigned i = threadIdx.x * N; i < args.width; i += THREADS * N) store_chunk(out + i, row.chunk(i));
}

template <typename T>
__global__ void __launch_bounds__(THREADS) gather_kernel(PinionCudaGather args) {
    constexpr unsigned N = PER_CHUNK<T>;
    begin_next();
    wait_for_previous();
    unsigned row = clamped(at<uint32_t>(args.index)[blockIdx.x], args.rows);
    const T* from = at<T>(args.x) + size_t(row) * args.width;
    T* out = at<T>(args.out) + size_t(blockIdx.x) * args.width;
    for (unsigned i = threadIdx.x * N; i < args.width; i += THREADS * N) store_chunk(out + i, load_chunk(from + i));
}

__global__ void __launch_bounds__(THREADS) tables_kernel(PinionCudaTables args) {
    unsigned i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= args.count) return;
    const uint32_t* update = at<uint32_t>(args.updates) + size_t(i) * 3;
    if (update[0] >= args.lanes || update[1] >= args.table_stride) return;
    at<uint32_t>(args.tables)[size_t(update[0]) * args.table_stride + update[1]] = update[2];
}

// One block of threads for one (pair, layer).
__global__ void __launch_bounds__(THREADS) blocks_kernel(PinionCudaBlocks args) {
    const uint32_t* pair = at<uint32_t>(args.pairs) + size_t(blockIdx.x) * 2;
    uint64_t layer = args.cache + blockIdx.y * args.layer_bytes;
    const Chunk* from = at<const Chunk>(layer + pair[0] * args.block_bytes);
    Chunk* to = at<Chunk>(layer + pair[1] * args.block_bytes);
    for (unsigned i = threadIdx.x; i < args.block_bytes / sizeof(Chunk); i += THREADS) to[i] = from[i];
}

// One block of threads for one token; `apply_rotary_pos_emb` in transformers' models/llama/modeling_llama.py.
template <typename T>
__global__ void __launch_bounds__(THREADS) rope_kernel(PinionCudaRope args) {
    begin_next();
    wait_for_previous();
    unsigned half = args.dim / 2;
    unsigned position = clamped(at<uint32_t>(args.positions)[blockIdx.x], args.positions_max);
    const float* angles = at<float>(args.angles) + size_t(position) * args.dim;
    T* x = at<T>(args.x) + size_t(blockIdx.x) * args.stride;
    for (unsigned i = threadIdx.x; i < args.heads * half; i += THREADS) {
        unsigned head = i / half, pair = i % half;
        T* low = x + head * args.head_dim + pair;
        T* high = low + half;
        float cosine = angles[2 * pair], sine = angles[2 * pair + 1];
        float a = to_float(*low), b = to_float(*high);
        *low = from_float<T>(a * cosine - b * sine);
        *high = from_float<T>(b * cosine + a * sine);
    }
}

} // namespace
} // namespace pinion

using namespace pinion;

extern "C" int32_t pinion_cuda_embed(const PinionCudaEmbed* given, void* stream) {
    PinionCudaEmbed args = *given;
    return with_dtype(args.dtype, [&](auto element) -> int32_t {
        using T = decltype(element);
        if (args.count == 0 || args.width % PER_CHUNK<T> != 0 || args.vocab == 0) return PINION_CUDA_BAD_ARGUMENT;
        if (args.position_table && args.positions_max == 0) return PINION_CUDA_BAD_ARGUMENT;
        auto kernel = &embed_kernel<T>;
        // Plainly: it is a step's first, so what the others are given is there when it begins.
        PINION_LAUNCH(kernel, dim3(args.count), dim3(THREADS), 0, stream, args);
        return launch_result();
    });
}

extern "C" int32_t pinion_cuda_gather(const PinionCudaGather* given, void* stream) {
    PinionCudaGather args = *given;
    return with_dtype(args.dtype, [&](auto element) -> int32_t {
        using T = decltype(element);
        if (args.count == 0 || args.width % PER_CHUNK<T> != 0 || args.rows == 0) return PINION_CUDA_BAD_ARGUMENT;
        auto kernel = &gather_kernel<T>;
        PINION_LAUNCH_DEPENDENT(kernel, dim3(args.count), dim3(THREADS), 0, stream, args);
        return launch_result();
    });
}

extern "C" int32_t pinion_cuda_update_tables(const PinionCudaTables* given, void* stream) {
    PinionCudaTables args = *given;
    if (args.count == 0) return 0;
    auto kernel = &tables_kernel;
    PINION_LAUNCH(kernel, dim3(ceil_div(args.count, THREADS)), dim3(THREADS), 0, stream, args);
    return launch_result();
}

extern "C" int32_t pinion_cuda_copy_blocks(const PinionCudaBlocks* given, void* stream) {
    PinionCudaBlocks args = *given;
    if (args.count == 0) return 0;
    if (args.layers == 0 || args.layers > 65535 || args.block_bytes % sizeof(Chunk) != 0) return PINION_CUDA_BAD_ARGUMENT;
    auto kernel = &blocks_kernel;
    PINION_LAUNCH(kernel, dim3(args.count, args.layers), dim3(THREADS), 0, stream, args);
    return launch_result();
}

extern "C" int32_t pinion_cuda_rope(const PinionCudaRope* given, void* stream) {
    PinionCudaRope args = *given;
    if (args.tokens == 0 || args.heads == 0 || args.dim % 2 != 0 || args.dim == 0 || args.dim > args.head_dim || args.positions_max == 0 ||
        args.stride < args.heads * args.head_dim)
        return PINION_CUDA_BAD_ARGUMENT;
    return with_dtype(args.dtype, [&](auto element) -> int32_t {
        auto kernel = &rope_kernel<decltype(element)>;
        PINION_LAUNCH_DEPENDENT(kernel, dim3(args.tokens), dim3(THREADS), 0, stream, args);
        return launch_result();
    });
}
