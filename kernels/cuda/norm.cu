// Residual sum and norm in one pass over the row; bias and activation; RMS norms of groups of columns; the gated unit.
// Contract: pinion_cuda.h. Twins: crates/cuda/src/twin.rs.
#include "target.h"

namespace pinion {
namespace {

constexpr unsigned THREADS = 128;

struct NormShared {
    float scratch[THREADS / WARP];
};

// One block a row. A thread keeps its HELD chunks of the row in registers, and has asked for all operands before it uses the
// first: one trip to memory, and x is read once. A row too long for that (HELD is 0) is read again for each sum; a thread
// reads back only what it wrote itself, so that needs no barrier.
template <typename T, unsigned HELD>
__global__ void __launch_bounds__(THREADS) norm_kernel(PinionCudaNorm args) {
    constexpr unsigned N = PER_CHUNK<T>, PLACES = HELD > 0 ? HELD : 1;
    auto& shared = shared_as<NormShared>();
    size_t row = size_t(blockIdx.x) * args.width;
    T* x = at<T>(args.x) + row;
    T* out = at<T>(args.out) + row;
    const T* delta = args.delta ? at<T>(args.delta) + row : nullptr;
    const T *delta_bias = at<T>(args.delta_bias), *weight = at<T>(args.weight), *bias = at<T>(args.bias);
    Chunk held[PLACES], deltas[PLACES], delta_biases[PLACES], weights[PLACES], biases[PLACES];
    auto ask = [&](unsigned place, unsigned i) {
        held[place] = early_chunk(x + i);
        if (delta) deltas[place] = early_chunk(delta + i);
    };
    auto ask_delta_bias = [&](unsigned place, unsigned i) {
        if (delta_bias) delta_biases[place] = early_chunk(delta_bias + i);
    };
    auto ask_norm = [&](unsigned place, unsigned i) {
        weights[place] = early_chunk(weight + i);
        if (bias) biases[place] = early_chunk(bias + i);
    };
    // Every chunk of this thread's part of the row, with the place where it is held.
    auto each = [&](const auto& act) {
        if constexpr (HELD > 0) {
#pragma unroll
            for (unsigned place = 0; place < HELD; place++) {
                unsigned i = (place * THREADS + threadIdx.x) * N;
                if (i < args.width) act(place, i);
            }
        } else {
            for (unsigned i = threadIdx.x * N; i < args.width; i += THREADS * N) act(0u, i);
        }
    };
    begin_next();
    if constexpr (HELD > 0) {
        each(ask_delta_bias);
        if (args.out) each(ask_norm);
    }
    wait_for_previous();
    if constexpr (HELD > 0) each(ask);
    float sum = 0.0f;
    each([&](unsigned place, unsigned i) {
        if constexpr (HELD == 0) {
            ask(place, i);
            ask_delta_bias(place, i);
        }
        float values[N], more[N];
        unpack<T>(held[place], values);
        if (delta) {
            unpack<T>(deltas[place], more);
            for (unsigned j = 0; j < N; j++) values[j] += more[j];
        }
        if (delta_bias) {
            unpack<T>(delta_biases[place], more);
            for (unsigned j = 0; j < N; j++) values[j] += more[j];
        }
        if (delta || delta_bias) {
            held[place] = pack<T>(values);
            store_chunk(x + i, held[place]);
            unpack<T>(held[place], values);
        }
        for (unsigned j = 0; j < N; j++) sum += args.rms ? values[j] * values[j] : values[j];
    });
    if (!args.out) return;
    float mean = block_reduce(sum, shared.scratch, Sum()) / float(args.width);
    float variance = mean;
    if (args.rms) {
        mean = 0.0f;
    } else {
        float squares = 0.0f;
        each([&](unsigned place, unsigned i) {
            if constexpr (HELD == 0) held[place] = load_chunk(x + i);
            float values[N];
            unpack<T>(held[place], values);
            for (unsigned j = 0; j < N; j++) squares += (values[j] - mean) * (values[j] - mean);
        });
        variance = block_reduce(squares, shared.scratch, Sum()) / float(args.width);
    }
    float scale = 1.0f / sqrtf(variance + args.epsilon);
    each([&](unsigned place, unsigned i) {
        if constexpr (HELD == 0) {
            held[place] = load_chunk(x + i);
            ask_norm(place, i);
        }
        float values[N], factors[N], shifts[N];
        unpack<T>(held[place], values);
        unpack<T>(weights[place], factors);
        for (unsigned j = 0; j < N; j++) shifts[j] = 0.0f;
        if (bias) unpack<T>(biases[place], shifts);
        for (unsigned j = 0; j < N; j++) values[j] = (values[j] - mean) * scale * factors[j] + shifts[j];
        store_chunk(out + i, pack<T>(values));
    });
}

template <typename T, unsigned HELD>
int32_t launch_norm(const PinionCudaNorm& args, void* stream) {
    auto kernel = &norm_kernel<T, HELD>;
    PINION_LAUNCH_DEPENDENT(kernel, dim3(args.rows), dim3(THREADS), sizeof(NormShared), stream, args);
    return launch_result();
}

template <typename T>
__global__ void __launch_bounds__(THREADS) bias_kernel(PinionCudaBias args) {
    constexpr unsigned N = PER_CHUNK<T>;
    begin_next();
    wait_for_previous();
    unsigned i = (blockIdx.x * THREADS + threadIdx.x) * N;
    if (i >= args.width) return;
    T* x = at<T>(args.x) + size_t(blockIdx.y) * args.width + i;
    float values[N], shifts[N];
    unpack<T>(load_chunk(x), values);
    for (unsigned j = 0; j < N; j++) shifts[j] = 0.0f;
    if (args.bias) unpack<T>(load_chunk(at<T>(args.bias) + i), shifts);
    for (unsigned j = 0; j < N; j++) values[j] = activate(values[j] + shifts[j], args.activation);
    store_chunk(x, pack<T>(values));
}

// One block a group. Each thread reads back only what it wrote itself, so x and out may be one.
template <typename T>
__global__ void __launch_bounds__(THREADS) rms_kernel(PinionCudaRms args) {
    constexpr unsigned N = PER_CHUNK<T>;
    auto& shared = shared_as<NormShared>();
    unsigned row = blockIdx.x / args.groups, group = blockIdx.x % args.groups;
    const T* x = at<T>(args.x) + size_t(row) * args.x_stride + group * args.width;
    T* out = at<T>(args.out) + size_t(row) * args.out_stride + group * args.width;
    const float* weight = at<float>(args.weight);
    begin_next();
    wait_for_previous();
    float sum = 0.0f, values[N];
    for (unsigned i = threadIdx.x * N; i < args.width; i += THREADS * N) {
        unpack<T>(load_chunk(x + i), values);
        for (unsigned j = 0; j < N; j++) sum += values[j] * values[j];
    }
    float mean = block_reduce(sum, shared.scratch, Sum()) / float(args.width);
    float scale = 1.0f / sqrtf(mean + args.epsilon);
    for (unsigned i = threadIdx.x * N; i < args.width; i += THREADS * N) {
        unpack<T>(load_chunk(x + i), values);
        for (unsigned j = 0; j < N; j++) {
            float normed = values[j] * scale, factor = weight[i + j];
            if (args.order == PINION_RMS_ROUND_FIRST) normed = to_float(from_float<T>(normed));
            if (args.order == PINION_RMS_ONE_PLUS) factor += 1.0f;
            values[j] = normed * factor;
        }
        store_chunk(out + i, pack<T>(values));
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS) scale_kernel(PinionCudaScale args) {
    begin_next();
    wait_for_previous();
    size_t i = size_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= args.count) return;
    T* x = at<T>(args.x) + i;
    float value = to_float(*x) * args.factor / args.divisor;
    if (args.soft_cap > 0.0f) value = args.soft_cap * tanhf(value / args.soft_cap);
    *x = from_float<T>(value);
}

__device__ __forceinline__ float gate_of(float x, int32_t activation) {
    if (activation == PINION_GATE_SILU) return x / (1.0f + expf(-x));
    return activate(x, activation == PINION_GATE_GELU_TANH ? PINION_CUDA_GELU_TANH : PINION_CUDA_GELU_ERF);
}

template <typename T>
__global__ void __launch_bounds__(THREADS) gate_kernel(PinionCudaGate args) {
    constexpr unsigned N = PER_CHUNK<T>;
    begin_next();
    wait_for_previous();
    unsigned i = (blockIdx.x * THREADS + threadIdx.x) * N;
    if (i >= args.width) return;
    const T* x = at<T>(args.x) + size_t(blockIdx.y) * 2 * args.width + i;
    float gate[N], up[N];
    unpack<T>(load_chunk(x), gate);
    unpack<T>(load_chunk(x + args.width), up);
    for (unsigned j = 0; j < N; j++) up[j] *= gate_of(gate[j], args.activation);
    store_chunk(at<T>(args.out) + size_t(blockIdx.y) * args.width + i, pack<T>(up));
}

// A grid's second axis has at most this many blocks.
constexpr unsigned ROWS_MAX = 65535;

} // namespace
} // namespace pinion

using namespace pinion;

extern "C" int32_t pinion_cuda_norm(const PinionCudaNorm* given, void* stream) {
    PinionCudaNorm args = *given;
    return with_dtype(args.dtype, [&](auto element) -> int32_t {
        using T = decltype(element);
        if (args.rows == 0 || args.width == 0 || args.width % PER_CHUNK<T> != 0) return PINION_CUDA_BAD_ARGUMENT;
        switch (ceil_div(args.width, THREADS * PER_CHUNK<T>)) {
        case 1: return launch_norm<T, 1>(args, stream);
        case 2: return launch_norm<T, 2>(args, stream);
        case 3:
        case 4: return launch_norm<T, 4>(args, stream);
        default: return launch_norm<T, 0>(args, stream);
        }
    });
}

extern "C" int32_t pinion_cuda_bias_activation(const PinionCudaBias* given, void* stream) {
    PinionCudaBias args = *given;
    return with_dtype(args.dtype, [&](auto element) -> int32_t {
        using T = decltype(element);
        if (args.rows == 0 || args.rows > ROWS_MAX || args.width == 0 || args.width % PER_CHUNK<T> != 0)
            return PINION_CUDA_BAD_ARGUMENT;
        auto kernel = &bias_kernel<T>;
        PINION_LAUNCH_DEPENDENT(kernel, dim3(ceil_div(args.width, THREADS * PER_CHUNK<T>), args.rows), dim3(THREADS), 0, stream, args);
        return launch_result();
    });
}

extern "C" int32_t pinion_cuda_rms(const PinionCudaRms* given, void* stream) {
    PinionCudaRms args = *given;
    return with_dtype(args.dtype, [&](auto element) -> int32_t {
        using T = decltype(element);
        constexpr unsigned N = PER_CHUNK<T>;
        uint64_t blocks = uint64_t(args.rows) * args.groups, columns = uint64_t(args.groups) * args.width;
        if (blocks == 0 || blocks > INT32_MAX || args.width == 0 || args.width % N != 0 || args.x_stride % N != 0 ||
            args.out_stride % N != 0 || args.x_stride < columns || args.out_stride < columns || args.order < 0 ||
            args.order > PINION_RMS_ONE_PLUS)
            return PINION_CUDA_BAD_ARGUMENT;
        auto kernel = &rms_kernel<T>;
        PINION_LAUNCH_DEPENDENT(kernel, dim3(unsigned(blocks)), dim3(THREADS), sizeof(NormShared), stream, args);
        return launch_result();
    });
}

extern "C" int32_t pinion_cuda_scale(const PinionCudaScale* given, void* stream) {
    PinionCudaScale args = *given;
    uint64_t blocks = (args.count + THREADS - 1) / THREADS;
    if (blocks == 0 || blocks > INT32_MAX || !(args.divisor != 0.0f)) return PINION_CUDA_BAD_ARGUMENT;
    return with_dtype(args.dtype, [&](auto element) -> int32_t {
        auto kernel = &scale_kernel<decltype(element)>;
        PINION_LAUNCH_DEPENDENT(kernel, dim3(unsigned(blocks)), dim3(THREADS), 0, stream, args);
        return launch_result();
    });
}

extern "C" int32_t pinion_cuda_gate(const PinionCudaGate* given, void* stream) {
    PinionCudaGate args = *given;
    return with_dtype(args.dtype, [&](auto element) -> int32_t {
        using T = decltype(element);
        if (args.rows == 0 || args.rows > ROWS_MAX || args.width == 0 || args.width % PER_CHUNK<T> != 0 || args.activation < 0 ||
            args.activation > PINION_GATE_GELU_ERF)
            return PINION_CUDA_BAD_ARGUMENT;
        auto kernel = &gate_kernel<T>;
        PINION_LAUNCH_DEPENDENT(kernel, dim3(ceil_div(args.width, THREADS * PER_CHUNK<T>), args.rows), dim3(THREADS), 0, stream, args);
        return launch_result();
    });
}
