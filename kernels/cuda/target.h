// One source, two targets: nvcc, or the host's compiler over kernels/emulation. Also the element types, the warp exchanges
// and the reductions that all kernels share.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "../include/pinion_cuda.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
// A call that fails says so where it is made; the runtime would say it once more, of the next launch, if it were not cleared.
inline int32_t told(cudaError_t code) {
    if (code != cudaSuccess) cudaGetLastError();
    return code;
}
// The emulated device brings its own cuBLASLt; a real one has none.
inline void* own_products() { return nullptr; }
#else
#include "../emulation/emulation.h"
#endif

#if defined(__CUDA_ARCH__)
#define PINION_ON_DEVICE 1
#endif

#include "stream.h"

namespace pinion {

// What the last launch of this thread came to (runtime.cu, emulation/runtime.cpp).
int32_t launch_result();

constexpr unsigned WARP = 32;

struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};

// Dynamic shared memory of the block; the launch says how much there is.
__device__ __forceinline__ unsigned char* shared_bytes() {
#if defined(__CUDACC__)
    extern __shared__ __align__(128) unsigned char pinion_shared[];
    return pinion_shared;
#else
    return emulation::current->block->shared;
#endif
}
template <typename S>
__device__ __forceinline__ S& shared_as() {
    return *reinterpret_cast<S*>(shared_bytes());
}

template <typename To, typename From>
__device__ __forceinline__ To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same number of bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(bf16 value) { return bits_as<float>(uint32_t(value.bits) << 16); }
__device__ __forceinline__ float to_float(f16 value) {
#if defined(__CUDACC__)
    return __half2float(bits_as<__half>(value.bits));
#else
    return float(bits_as<_Float16>(value.bits));
#endif
}

template <typename T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
    return value;
}
template <>
__device__ __forceinline__ f16 from_float<f16>(float value) {
#if defined(__CUDACC__)
    return {bits_as<uint16_t>(__float2half_rn(value))};
#else
    return {bits_as<uint16_t>(_Float16(value))};
#endif
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float value) {
#if defined(__CUDACC__)
    return {bits_as<uint16_t>(__float2bfloat16_rn(value))};
#else
    uint32_t bits = bits_as<uint32_t>(value);
    if (value != value) return {uint16_t(bits >> 16 | 0x40)};
    return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
#endif
}

// The clock of this thread's multiprocessor.
__device__ __forceinline__ uint64_t device_clock() {
#if defined(PINION_ON_DEVICE)
    return clock64();
#elif !defined(__CUDACC__)
    return emulation::clock();
#else
    return 0;
#endif
}

// Arithmetic that may not be contracted: the sampler draws what the host's sampler draws.
__device__ __forceinline__ float mul_exact(float a, float b) {
#if defined(PINION_ON_DEVICE)
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}
__device__ __forceinline__ float add_exact(float a, float b) {
#if defined(PINION_ON_DEVICE)
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}
__device__ __forceinline__ float div_exact(float a, float b) {
#if defined(PINION_ON_DEVICE)
    return __fdiv_rn(a, b);
#else
    return a / b;
#endif
}

// 16 bytes of elements, loaded and stored at once.
struct alignas(16) Chunk {
    uint32_t words[4];
};
template <typename T>
constexpr unsigned PER_CHUNK = 16 / sizeof(T);

template <typename T>
__device__ __forceinline__ Chunk load_chunk(const T* from) {
    return *reinterpret_cast<const Chunk*>(from);
}
#if defined(PINION_ON_DEVICE)
// 16 bytes by the load that is named.
#define PINION_LOAD_CHUNK(chunk, load, from, clobbers)                                                            \
    asm volatile(load " {%0, %1, %2, %3}, [%4];"                                                                  \
                 : "=r"((chunk).words[0]), "=r"((chunk).words[1]), "=r"((chunk).words[2]), "=r"((chunk).words[3]) \
                 : "l"(from)                                                                                      \
                 : clobbers)
#endif
// For weights: read once, so they need no place in L1. Not by .nc: ptxas moves such a load behind `wait_for_previous`.
template <typename T>
__device__ __forceinline__ Chunk stream_chunk(const T* from) {
#if defined(PINION_ON_DEVICE)
    Chunk chunk;
    PINION_LOAD_CHUNK(chunk, "ld.global.L1::no_allocate.v4.u32", from, );
    return chunk;
#else
    return load_chunk(from);
#endif
}
// For what no thread of the kernel has written and others read too. It stays where it stands among these and the above: what
// is asked for early stays early.
template <typename T>
__device__ __forceinline__ Chunk early_chunk(const T* from) {
#if defined(PINION_ON_DEVICE)
    Chunk chunk;
    PINION_LOAD_CHUNK(chunk, "ld.global.v4.u32", from, );
    return chunk;
#else
    return load_chunk(from);
#endif
}
template <typename T>
__device__ __forceinline__ void store_chunk(T* to, const Chunk& chunk) {
    *reinterpret_cast<Chunk*>(to) = chunk;
}
template <typename T>
__device__ __forceinline__ void unpack(const Chunk& chunk, float (&values)[PER_CHUNK<T>]) {
    T elements[PER_CHUNK<T>];
    memcpy(elements, &chunk, 16);
#pragma unroll
    for (unsigned i = 0; i < PER_CHUNK<T>; i++) values[i] = to_float(elements[i]);
}
template <typename T>
__device__ __forceinline__ Chunk pack(const float (&values)[PER_CHUNK<T>]) {
    T elements[PER_CHUNK<T>];
#pragma unroll
    for (unsigned i = 0; i < PER_CHUNK<T>; i++) elements[i] = from_float<T>(values[i]);
    Chunk chunk;
    memcpy(&chunk, elements, 16);
    return chunk;
}

// The value of the lane whose index differs by `mask`.
template <typename T>
__device__ __forceinline__ T lane_xor(T value, unsigned mask) {
#if defined(__CUDACC__)
    return __shfl_xor_sync(0xffffffffu, value, mask);
#else
    return emulation::exchange(value, emulation::lane() ^ mask);
#endif
}
// The value of the lane `by` below; lanes without one get their own.
template <typename T>
__device__ __forceinline__ T lane_below(T value, unsigned by) {
#if defined(__CUDACC__)
    return __shfl_up_sync(0xffffffffu, value, by);
#else
    return emulation::exchange(value, emulation::lane() >= by ? emulation::lane() - by : emulation::lane());
#endif
}

struct Sum {
    template <typename T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        return a + b;
    }
};
struct Max {
    template <typename T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        return a > b ? a : b;
    }
};

// Over the lanes of aligned groups of `width` lanes; each lane gets the result.
template <unsigned width = WARP, typename T, typename F>
__device__ __forceinline__ T warp_reduce(T value, F join) {
#pragma unroll
    for (unsigned mask = width / 2; mask > 0; mask /= 2) value = join(value, lane_xor(value, mask));
    return value;
}

// Over the block; each thread gets the result. `scratch` has a place for each warp. Barriers at both ends.
template <typename T, typename F>
__device__ __forceinline__ T block_reduce(T value, T* scratch, F join) {
    value = warp_reduce(value, join);
    unsigned warps = blockDim.x / WARP;
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = value;
    __syncthreads();
    value = scratch[0];
    for (unsigned w = 1; w < warps; w++) value = join(value, scratch[w]);
    __syncthreads();
    return value;
}

// `ACT2FN` in transformers' activations.py.
__device__ __forceinline__ float activate(float x, int32_t kind) {
    if (kind == PINION_CUDA_GELU_TANH)
        return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    if (kind == PINION_CUDA_GELU_ERF) return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
    return x;
}

template <typename T>
__host__ __device__ __forceinline__ T* at(uint64_t address) {
    return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

// Calls `launch` with an element of the dtype, or says that there is no such dtype.
template <typename F>
int32_t with_dtype(int32_t dtype, F launch) {
    switch (dtype) {
    case PINION_CUDA_F32: return launch(float());
    case PINION_CUDA_BF16: return launch(bf16());
    case PINION_CUDA_F16: return launch(f16());
    default: return PINION_CUDA_BAD_ARGUMENT;
    }
}

constexpr unsigned ceil_div(unsigned a, unsigned b) { return (a + b - 1) / b; }

} // namespace pinion
