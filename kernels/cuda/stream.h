// A stream of pinion_cuda.h, and the two ways to queue a kernel on it.
//
// Plain: the kernel begins when all that was queued before it has ended. Dependent ("programmatic dependent launch", from
// sm_90 on, on streams that ask for it): it begins as soon as every block of the kernel before it has begun, does what needs
// nothing of that one, which is asking for weights, and stops in `wait_for_previous`. So neither the time between two kernels
// nor the first trip to memory of each is waited for.
//
// Rules of a kernel that is launched so, and of its launcher:
// - Until `wait_for_previous` it writes nothing, and reads only what was there before the last plain launch on the stream, and
//   is not written after it: weights, and what a step was given. So the first kernel of a step is launched plainly.
// - It waits in every case, or it could end before the one ahead of it has, and the one behind it would take that one's results
//   for made. Waiting for the kernel before is waiting for all: that one has waited too.
// - `begin_next` may stand anywhere: it says when the next one may begin, and nothing about memory.
#pragma once

#if defined(__CUDACC__)
#include <utility>

void pinion_count_launch();

namespace pinion {

// What `void* stream` points to.
struct Stream {
    cudaStream_t raw;
    bool dependent; // whether dependent launches are
    bool owned;     // made here
};
inline cudaStream_t raw_of(void* stream) { return static_cast<Stream*>(stream)->raw; }

template <typename... Args>
void launch_dependent(void (*kernel)(Args...), dim3 grid, dim3 block, size_t shared_bytes, void* stream, const Args&... args) {
    cudaLaunchAttribute serial = {};
    serial.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    serial.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = raw_of(stream);
    config.attrs = &serial;
    config.numAttrs = static_cast<Stream*>(stream)->dependent ? 1 : 0;
    pinion_count_launch();
    // The error, if any, is what `launch_result` says.
    cudaLaunchKernelEx(&config, kernel, args...);
}

} // namespace pinion

#define PINION_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    (pinion_count_launch(), kernel<<<grid, block, shared_bytes, pinion::raw_of(stream)>>>(__VA_ARGS__))
#define PINION_LAUNCH_DEPENDENT pinion::launch_dependent
#else
namespace pinion {
inline void* raw_of(void* stream) { return stream; }
} // namespace pinion
#endif

namespace pinion {

// Until the kernel queued before this one has ended, and all that it stored can be seen. Every thread that goes on to read or
// write calls it. Nothing to do after a plain launch.
__device__ __forceinline__ void wait_for_previous() {
#if defined(PINION_ON_DEVICE)
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
#elif !defined(__CUDACC__)
    emulation::wait_for_previous();
#endif
}

// The kernel queued after this one may begin when every block has come here or ended.
__device__ __forceinline__ void begin_next() {
#if defined(PINION_ON_DEVICE) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

} // namespace pinion
