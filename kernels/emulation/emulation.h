// A block of CUDA threads on the host: each thread is a fiber, barriers and warp exchanges switch between them.
//
// Kernels include cuda/target.h, which takes this file when the compiler is not nvcc. One operating-system thread runs
// all that a stream has, so atomics are plain, and streams of several threads share no memory. What is checked is the
// kernels' indexing, arithmetic and use of barriers. Each warp runs as far as it can alone, then the next, then the next
// block; ascending in one launch, descending in the next: a kernel that misses a barrier gives different results in the
// two. On a stream with dependent launches a kernel begins before the one ahead of it has: one that does not wait for what
// that one makes reads what was there before.
// Not emulated: alignment faults (but of asynchronous copies and of matrices' rows), memory order between blocks, time.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>

#include <functional>
#include <memory>
#include <vector>

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace emulation {

struct Block;
struct AsyncCopy {
    void* to;
    const void* from;
    size_t bytes;
    unsigned group;
};
// What a switch reads stands in its first line of the cache.
struct alignas(64) Fiber {
    dim3 thread_index{0, 0, 0};
    unsigned linear = 0;
    unsigned exchange = 0; // which of the warp's two exchange buffers is next
    Block* block = nullptr;
    void* stack_pointer = nullptr;
    const uint64_t* waits_on = nullptr;
    uint64_t waits_past = 0;
    bool done = false;
    bool waits_for_kernel = false; // the one ahead
    std::vector<AsyncCopy> copies; // not done yet
    unsigned group = 0;            // of the next copy
};

struct Barrier {
    uint64_t generation = 0;
    unsigned arrived = 0;
};

struct Warp {
    Barrier barrier;
    uint64_t slots[2][32][4];
};

struct Block {
    dim3 index{0, 0, 0};
    Barrier barrier;
    Warp* warps = nullptr;
    unsigned char* shared = nullptr;
    size_t shared_bytes = 0;
    unsigned threads = 0;
};

// Each operating-system thread has a device's worth of them: a stream belongs to the thread that uses it.
extern thread_local Fiber* current;
extern thread_local dim3 block_shape, grid_shape;
void wait(Barrier& barrier, unsigned expected);
void grid_barrier();
// Asynchronous copies are done when they are begun in one launch, and when they are waited for in the next: a kernel that
// reads too early, or overwrites what is still to be read, gives different results in the two.
void copy_async(void* to, const void* from, size_t bytes);
void commit_copies();
void wait_copies(unsigned pending);
// A row that a lane gives to an `ldmatrix` lies in the block's shared memory, aligned to its length, or the process ends.
void check_matrix_row(const void* row, size_t bytes);
// From now on blocks of the kernel may have so much shared memory; no more than SHARED_BYTES_PLAIN without it.
constexpr size_t SHARED_BYTES_PLAIN = 48 * 1024;
void allow_shared(const void* kernel, size_t bytes);
// Counts its calls.
uint64_t clock();
// A turn of a loop that waits for another thread's store.
void pause();
void wait_for_previous();
enum class Kind { PLAIN, DEPENDENT, COOPERATIVE };
struct Launch {
    const char* name;
    const void* kernel;
    dim3 grid, block;
    size_t shared_bytes;
    Kind kind;
    std::function<void()> body;
};
// Runs a kernel's blocks, one after another or (cooperative) all at once.
void run(const Launch& launch);

// A kernel that has begun, all of its blocks at once. A dependent one stops where it waits for the one ahead.
class Running;
std::shared_ptr<Running> begin(const Launch& launch);
void finish(Running& running);

inline Warp& warp() { return current->block->warps[current->linear / 32]; }
inline unsigned lane() { return current->linear % 32; }
inline void warp_wait() {
    unsigned first = current->linear / 32 * 32;
    unsigned left = current->block->threads - first;
    wait(warp().barrier, left < 32 ? left : 32);
}

// Every lane gives a value and reads those of all.
template <typename T>
inline void gather(T value, T (&values)[32]) {
    static_assert(sizeof(T) <= 32, "an exchange slot has 32 bytes");
    auto& slots = warp().slots[current->exchange];
    current->exchange ^= 1;
    memcpy(slots[lane()], &value, sizeof value);
    warp_wait();
    for (unsigned i = 0; i < 32; i++) memcpy(&values[i], slots[i], sizeof value);
}
// Every lane gives a value and reads that of `from`.
template <typename T>
inline T exchange(T value, unsigned from) {
    static_assert(sizeof(T) <= 32, "an exchange slot has 32 bytes");
    auto& slots = warp().slots[current->exchange];
    current->exchange ^= 1;
    memcpy(slots[lane()], &value, sizeof value);
    warp_wait();
    T other;
    memcpy(&other, slots[from % 32], sizeof other);
    return other;
}

// Queues or captures work on a stream (runtime.cpp of this folder); a stream runs its work at once. `ticks` is what the
// stream's clock says that it took.
void enqueue(void* stream, std::function<void()> work, uint64_t ticks = 1);
// The same of a kernel. A stream with dependent launches has its last one begun and not ended.
void enqueue(void* stream, Launch launch);

} // namespace emulation

#define threadIdx (emulation::current->thread_index)
#define blockIdx (emulation::current->block->index)
#define blockDim (emulation::block_shape)
#define gridDim (emulation::grid_shape)
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict

// The caller that runs the work counts it here (runtime.cpp).
inline void pinion_count_launch() {}
// This object, in which cublaslt.cpp is (runtime.cpp).
void* own_products();

inline void __syncthreads() { emulation::wait(emulation::current->block->barrier, emulation::current->block->threads); }
inline void __syncwarp() { emulation::warp_wait(); }
inline void __threadfence() {}

template <typename T>
inline T atomicAdd(T* at, T value) {
    T old = *at;
    *at = old + value;
    return old;
}
template <typename T>
inline T atomicMax(T* at, T value) {
    T old = *at;
    if (value > old) *at = value;
    return old;
}

#define PINION_EMULATE(kernel, grid, block, shared_bytes, stream, kind, ...) \
    emulation::enqueue(stream, {#kernel, reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, kind, [=] { kernel(__VA_ARGS__); }})
#define PINION_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    PINION_EMULATE(kernel, grid, block, shared_bytes, stream, emulation::Kind::PLAIN, __VA_ARGS__)
#define PINION_LAUNCH_DEPENDENT(kernel, grid, block, shared_bytes, stream, ...) \
    PINION_EMULATE(kernel, grid, block, shared_bytes, stream, emulation::Kind::DEPENDENT, __VA_ARGS__)
#define PINION_LAUNCH_COOPERATIVE(kernel, grid, block, shared_bytes, stream, args) \
    (PINION_EMULATE(kernel, grid, block, shared_bytes, stream, emulation::Kind::COOPERATIVE, args), 0)
