// What a kernel needs that stays on the device for many phases: loads that see what other blocks stored, copies to shared
// memory that run beside the arithmetic, prefetches, a barrier over the whole grid, and its cooperative launch.
#pragma once
#include "target.h"

namespace pinion {

// Memory order between blocks, by the PTX memory model. A block that produces for others: every thread stores, a block
// barrier, then one thread fences and adds to a counter. The barrier puts the block's stores before the fence in causality
// order, and the fence with the add behind it is a release pattern: it covers them all, so one thread's fence is enough. A
// block that consumes it: one thread sees the counter (a load with acquire, or its own add and a fence behind it: an acquire pattern), a
// block barrier, then every thread loads. Adds to one counter are a chain, so a thread that sees the last sees all that were released
// before. acq_rel is enough: no thread compares the order of two counters, which is all that sequential consistency would add.
__device__ __forceinline__ void fence_device() {
#if defined(PINION_ON_DEVICE)
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}

// Loads through L2, where the stores of other blocks are after a barrier. What other blocks write in the same kernel is
// read like this and never with .nc: L1 may still hold what was there before. The compiler moves nothing over them.
template <typename T>
__device__ __forceinline__ Chunk fresh_chunk(const T* from) {
#if defined(PINION_ON_DEVICE)
    Chunk chunk;
    PINION_LOAD_CHUNK(chunk, "ld.global.cg.v4.u32", from, "memory");
    return chunk;
#else
    return load_chunk(from);
#endif
}
template <typename T>
__device__ __forceinline__ T fresh(const T* from) {
#if defined(PINION_ON_DEVICE)
    if constexpr (sizeof(T) == 4) {
        uint32_t bits;
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(bits) : "l"(from) : "memory");
        return bits_as<T>(bits);
    } else {
        uint16_t bits;
        asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(bits) : "l"(from) : "memory");
        return bits_as<T>(bits);
    }
#else
    return *from;
#endif
}

// Begins a copy of 16 bytes to shared memory; both addresses are multiples of 16. What it brings is there for the thread
// that began it once that thread has waited for the copy's group.
__device__ __forceinline__ void copy_async(Chunk* to, const void* from) {
#if defined(PINION_ON_DEVICE)
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
#elif !defined(__CUDACC__)
    emulation::copy_async(to, from, sizeof(Chunk));
#endif
}
// Ends a group: the copies that this thread began since the last one.
__device__ __forceinline__ void commit_copies() {
#if defined(PINION_ON_DEVICE)
    asm volatile("cp.async.commit_group;" ::: "memory");
#elif !defined(__CUDACC__)
    emulation::commit_copies();
#endif
}
// Waits until at most the last PENDING groups of this thread are under way.
template <unsigned PENDING>
__device__ __forceinline__ void wait_copies() {
#if defined(PINION_ON_DEVICE)
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#elif !defined(__CUDACC__)
    emulation::wait_copies(PENDING);
#endif
}

// Asks for a range to be in L2 soon. Nothing waits for it.
constexpr unsigned LINE_BYTES = 128;
__device__ __forceinline__ void prefetch_range(uint64_t from, unsigned bytes, unsigned first = 0, unsigned step = 1) {
#if defined(PINION_ON_DEVICE)
    for (uint64_t line = (from / LINE_BYTES + first) * LINE_BYTES; line < from + bytes; line += step * LINE_BYTES)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
#else
    (void)from, (void)bytes, (void)first, (void)step;
#endif
}
// The same, each thread of the block for a part of it.
__device__ __forceinline__ void prefetch_together(uint64_t from, unsigned bytes) {
    prefetch_range(from, bytes, threadIdx.x, blockDim.x);
}

// A barrier over the grid, all of whose blocks must be on the device at once. Each block adds to one counter, block 0 so much
// that the sum is 2^31: the top bit turns when the last has arrived, and the other bits are back where they were. So the
// counter, zero once, serves every launch and is never reset.
class GridBarrier {
  public:
    __device__ explicit GridBarrier(uint64_t counter) : counter(at<uint32_t>(counter)) {}

    // Everything that the block stored before is visible to every thread that has waited.
    __device__ __forceinline__ void arrive() {
        __syncthreads();
        if (threadIdx.x != 0) return;
        fence_device();
        ticket = atomicAdd(counter, blockIdx.x == 0 ? TURN - (gridDim.x - 1) : 1u);
    }

    // After `arrive`; between the two a block does work that needs no other block.
    __device__ __forceinline__ void wait() {
        if (threadIdx.x == 0) {
            while (((read() ^ ticket) & TURN) == 0) pause();
        }
        __syncthreads();
    }

  private:
    static constexpr uint32_t TURN = 0x80000000u;

    __device__ __forceinline__ uint32_t read() const {
#if defined(PINION_ON_DEVICE)
        uint32_t value;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
        return value;
#else
        return *counter;
#endif
    }
    __device__ __forceinline__ static void pause() {
#if !defined(__CUDACC__)
        emulation::pause();
#endif
    }

    uint32_t* counter;
    uint32_t ticket = 0;
};

// The host's side. Any kernel may have this much shared memory; one that takes more says so before its launch.
constexpr unsigned SHARED_BYTES_PLAIN = 48 * 1024;

template <typename Args>
int32_t allow_shared(void (*kernel)(Args), unsigned bytes) {
    if (bytes <= SHARED_BYTES_PLAIN) return 0;
    const void* function = reinterpret_cast<const void*>(kernel);
#if defined(__CUDACC__)
    return told(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
#else
    emulation::allow_shared(function, bytes);
    return 0;
#endif
}

// How large a cooperative grid may be, and its launch.
struct Room {
    unsigned multiprocessors = 0;
    unsigned shared_bytes = 0; // most that a block can have
};

#if defined(__CUDACC__)
inline int32_t room_of_device(Room* room) {
    int device = 0, multiprocessors = 0, shared = 0, cooperative = 0;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess) code = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (code == cudaSuccess) code = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (code == cudaSuccess) code = cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device);
    if (code == cudaSuccess && !cooperative) code = cudaErrorNotSupported;
    room->multiprocessors = multiprocessors;
    room->shared_bytes = shared;
    return told(code);
}

// Blocks of the kernel that one multiprocessor holds; from here on the kernel may have all of the shared memory.
template <typename Args>
int32_t blocks_at_once(void (*kernel)(Args), unsigned threads, unsigned shared_bytes, const Room& room, unsigned* blocks) {
    const void* function = reinterpret_cast<const void*>(kernel);
    int count = 0;
    if (int32_t code = allow_shared(kernel, room.shared_bytes)) return code;
    cudaError_t code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, function, threads, shared_bytes);
    *blocks = count;
    return told(code);
}

template <typename Args>
int32_t launch_cooperative(void (*kernel)(Args), dim3 grid, dim3 block, size_t shared_bytes, void* stream, Args args) {
    void* arguments[] = {&args};
    pinion_count_launch();
    cudaError_t code = cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, shared_bytes,
                                                   raw_of(stream));
    return told(code);
}
#define PINION_LAUNCH_COOPERATIVE pinion::launch_cooperative
#else
inline int32_t room_of_device(Room* room) {
    *room = {2, 227 * 1024};
    return 0;
}
template <typename Args>
int32_t blocks_at_once(void (*kernel)(Args), unsigned, unsigned shared_bytes, const Room& room, unsigned* blocks) {
    if (int32_t code = allow_shared(kernel, room.shared_bytes)) return code;
    *blocks = shared_bytes <= room.shared_bytes;
    return 0;
}
#endif

} // namespace pinion
