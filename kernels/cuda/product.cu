// Matrix products: our own kernel for a few rows, the library for more. Contract: pinion_cuda.h.
//
// With up to eight rows a product is a walk over the weights. A warp makes one output (or four, for wide outputs) of all
// rows: 16 bytes of a weight row a lane, streamed past L1, two steps of the walk in flight at once; x is
// small and stays in L1.
#include "rows.h"

namespace pinion {

int32_t library_product(const PinionCudaProduct& args, void* stream); // library.cu

namespace {

constexpr unsigned THREADS = 128;
constexpr unsigned WARPS = THREADS / WARP;
// Outputs from here on are made four a warp.
constexpr unsigned WIDE = 16384;

template <typename T, unsigned ROWS, unsigned OUTPUTS>
__global__ void __launch_bounds__(THREADS) few_rows_kernel(PinionCudaProduct args) {
    constexpr unsigned N = PER_CHUNK<T>;
    unsigned lane = threadIdx.x % WARP;
    unsigned first = (blockIdx.x * WARPS + threadIdx.x / WARP) * OUTPUTS;
    if (first >= args.n) return; // the whole warp
    const T* x = at<T>(args.x);
    const T* weight = at<T>(args.weight);
    float sums[OUTPUTS][ROWS];
#pragma unroll
    for (unsigned o = 0; o < OUTPUTS; o++)
        for (unsigned r = 0; r < ROWS; r++) sums[o][r] = 0.0f;
#pragma unroll 2
    for (unsigned i = lane * N; i < args.k; i += WARP * N) {
        Chunk chunks[OUTPUTS];
#pragma unroll
        for (unsigned o = 0; o < OUTPUTS; o++) {
            unsigned output = first + o < args.n ? first + o : args.n - 1;
            chunks[o] = stream_chunk(weight + size_t(output) * args.k + i);
        }
        multiply<T, OUTPUTS, ROWS>(chunks, x + i, args.k, args.m, sums);
    }
    unsigned row = row_of_lane<ROWS>();
    bool stores = is_first_of_row<ROWS>() && row < args.m;
#pragma unroll
    for (unsigned o = 0; o < OUTPUTS; o++) {
        float sum = reduce_rows<ROWS>(sums[o]);
        unsigned output = first + o;
        if (!stores || output >= args.n) continue;
        if (args.bias) sum += to_float(at<T>(args.bias)[output]);
        sum = activate(sum, args.activation);
        size_t to = size_t(row) * args.n + output;
        if (args.y_dtype == PINION_CUDA_F32) {
            float* y = at<float>(args.y) + to;
            *y = args.accumulate ? *y + sum : sum;
        } else {
            T* y = at<T>(args.y) + to;
            *y = from_float<T>(args.accumulate ? to_float(*y) + sum : sum);
        }
    }
}

template <typename T, unsigned ROWS, unsigned OUTPUTS>
int32_t launch_outputs(const PinionCudaProduct& args, void* stream) {
    auto kernel = &few_rows_kernel<T, ROWS, OUTPUTS>;
    PINION_LAUNCH(kernel, dim3(ceil_div(args.n, WARPS * OUTPUTS)), dim3(THREADS), 0, stream, args);
    return launch_result();
}

template <typename T, unsigned ROWS>
int32_t launch_rows(const PinionCudaProduct& args, void* stream) {
    if (args.n >= WIDE) return launch_outputs<T, ROWS, ROWS == 8 ? 2 : 4>(args, stream);
    return launch_outputs<T, ROWS, 1>(args, stream);
}

template <typename T>
int32_t few_rows_of(const PinionCudaProduct& args, void* stream) {
    if (args.m == 1) return launch_rows<T, 1>(args, stream);
    if (args.m == 2) return launch_rows<T, 2>(args, stream);
    if (args.m <= 4) return launch_rows<T, 4>(args, stream);
    return launch_rows<T, 8>(args, stream);
}

int32_t few_rows(const PinionCudaProduct& args, void* stream) {
    if (args.m > PINION_GEMV_ROWS_MAX) return PINION_CUDA_BAD_ARGUMENT;
    if (args.dtype == PINION_CUDA_F16) return few_rows_of<f16>(args, stream);
    if (args.dtype == PINION_CUDA_BF16) return few_rows_of<bf16>(args, stream);
    // fp32 is for comparisons: one variant will do.
    if (args.dtype == PINION_CUDA_F32) return launch_outputs<float, 8, 1>(args, stream);
    return PINION_CUDA_BAD_ARGUMENT;
}

} // namespace
} // namespace pinion

using namespace pinion;

extern "C" int32_t pinion_cuda_product(const PinionCudaProduct* given, void* stream) {
    PinionCudaProduct args = *given;
    unsigned size = args.dtype == PINION_CUDA_F32 ? 4 : 2;
    bool y_is_known = args.y_dtype == args.dtype || args.y_dtype == PINION_CUDA_F32;
    if (args.m == 0 || args.n == 0 || args.k == 0 || args.k * size % 16 != 0 || !y_is_known) return PINION_CUDA_BAD_ARGUMENT;
    bool own = args.method == 1 || (args.method == 0 && args.m <= PINION_GEMV_ROWS_MAX);
    return own ? few_rows(args, stream) : library_product(args, stream);
}
