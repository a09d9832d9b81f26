// Device memory, streams, events and graphs over the CUDA runtime. Contract: pinion_cuda.h.
#include <stdlib.h>

#include <atomic>

#include "target.h"

namespace {
std::atomic<uint64_t> launches, captures, replays, to_device_bytes, to_host_bytes, allocated_bytes;

using pinion::raw_of;
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

// Whether the kernels on this device are code that can wait. A newer device may run what the driver makes of older code.
__global__ void waiting_kernel() { pinion::wait_for_previous(); }
bool can_wait() {
    cudaFuncAttributes attributes;
    return told(cudaFuncGetAttributes(&attributes, waiting_kernel)) == 0 && attributes.ptxVersion >= 90;
}
} // namespace

void pinion_count_launch() { launches.fetch_add(1, std::memory_order_relaxed); }

namespace pinion {
int32_t launch_result() { return cudaGetLastError(); }
} // namespace pinion

extern "C" {

int32_t pinion_cuda_abi(void) { return PINION_CUDA_ABI; }

const char* pinion_cuda_error_text(int32_t code) {
    switch (code) {
    case PINION_CUDA_BAD_ARGUMENT: return "an argument is outside the kernel's contract";
    case PINION_CUDA_DOES_NOT_FIT: return "the rows and a part of the weights do not fit into the shared memory of a block";
    case PINION_CUDA_NO_PRODUCTS: return "cuBLASLt could not be opened";
    case PINION_CUDA_PRODUCT_FAILED: return "cuBLASLt refused a product";
    default: return cudaGetErrorString(static_cast<cudaError_t>(code));
    }
}

int32_t pinion_cuda_open(int32_t index, PinionCudaFacts* facts) {
    *facts = PinionCudaFacts();
    // All kernels are loaded now and not at their first launch, which may be in traffic. The driver reads this once, when the
    // first call wakes it.
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    cudaError_t code = cudaSetDevice(index);
    cudaDeviceProp properties;
    if (code == cudaSuccess) code = cudaGetDeviceProperties(&properties, index);
    size_t free_bytes = 0, memory_bytes = 0;
    if (code == cudaSuccess) code = cudaMemGetInfo(&free_bytes, &memory_bytes);
    if (code != cudaSuccess) return told(code);
    for (unsigned i = 0; i + 1 < sizeof facts->name && properties.name[i]; i++) facts->name[i] = properties.name[i];
    facts->memory_bytes = memory_bytes;
    facts->free_bytes = free_bytes;
    facts->multiprocessors = properties.multiProcessorCount;
    facts->capability = 10 * properties.major + properties.minor;
    facts->cooperative = properties.cooperativeLaunch != 0;
    return 0;
}

void pinion_cuda_counts(PinionCudaCounts* counts) {
    size_t free_bytes = 0, memory_bytes = 0;
    if (told(cudaMemGetInfo(&free_bytes, &memory_bytes))) free_bytes = 0;
    *counts = {launches, captures, replays, to_device_bytes, to_host_bytes, allocated_bytes, free_bytes};
}

int32_t pinion_cuda_alloc(uint64_t bytes, uint64_t* address) {
    void* memory = nullptr;
    cudaError_t code = cudaMalloc(&memory, bytes);
    *address = reinterpret_cast<uintptr_t>(memory);
    if (code == cudaSuccess) allocated_bytes += bytes;
    return told(code);
}
int32_t pinion_cuda_free(uint64_t address) { return told(cudaFree(pinion::at<void>(address))); }
int32_t pinion_cuda_pinned_alloc(uint64_t bytes, void** memory) { return told(cudaMallocHost(memory, bytes)); }
int32_t pinion_cuda_pinned_free(void* memory) { return told(cudaFreeHost(memory)); }

int32_t pinion_cuda_stream_create(void** stream, int32_t dependent) {
    cudaStream_t raw = nullptr;
    cudaError_t code = cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking);
    *stream = code == cudaSuccess ? new pinion::Stream{raw, dependent != 0 && can_wait(), true} : nullptr;
    return told(code);
}
int32_t pinion_cuda_stream_borrow(uint64_t raw, void** stream) {
    *stream = new pinion::Stream{reinterpret_cast<cudaStream_t>(raw), false, false};
    return 0;
}
int32_t pinion_cuda_stream_destroy(void* stream) {
    bool owned = static_cast<pinion::Stream*>(stream)->owned;
    cudaError_t code = owned ? cudaStreamDestroy(raw_of(stream)) : cudaSuccess;
    delete static_cast<pinion::Stream*>(stream);
    return told(code);
}
int32_t pinion_cuda_stream_synchronize(void* stream) { return told(cudaStreamSynchronize(raw_of(stream))); }

int32_t pinion_cuda_event_create(void** event, int32_t timed) {
    return told(cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), timed ? cudaEventDefault : cudaEventDisableTiming));
}
int32_t pinion_cuda_event_destroy(void* event) { return told(cudaEventDestroy(event_of(event))); }
int32_t pinion_cuda_event_record(void* event, void* stream) { return told(cudaEventRecord(event_of(event), raw_of(stream))); }
int32_t pinion_cuda_event_query(void* event, int32_t* done) {
    cudaError_t code = cudaEventQuery(event_of(event));
    *done = code == cudaSuccess;
    told(code); // "not ready" would be the next launch's error as well
    return code == cudaErrorNotReady ? 0 : code;
}
int32_t pinion_cuda_event_elapsed_ms(void* begin, void* end, float* ms) {
    return told(cudaEventElapsedTime(ms, event_of(begin), event_of(end)));
}

int32_t pinion_cuda_to_device(uint64_t to, const void* from, uint64_t bytes, void* stream) {
    to_device_bytes += bytes;
    return told(cudaMemcpyAsync(pinion::at<void>(to), from, bytes, cudaMemcpyHostToDevice, raw_of(stream)));
}
int32_t pinion_cuda_to_host(void* to, uint64_t from, uint64_t bytes, void* stream) {
    to_host_bytes += bytes;
    return told(cudaMemcpyAsync(to, pinion::at<void>(from), bytes, cudaMemcpyDeviceToHost, raw_of(stream)));
}
int32_t pinion_cuda_copy(uint64_t to, uint64_t from, uint64_t bytes, void* stream) {
    return told(cudaMemcpyAsync(pinion::at<void>(to), pinion::at<void>(from), bytes, cudaMemcpyDeviceToDevice, raw_of(stream)));
}
int32_t pinion_cuda_fill(uint64_t to, int32_t byte, uint64_t bytes, void* stream) {
    return told(cudaMemsetAsync(pinion::at<void>(to), byte, bytes, raw_of(stream)));
}

int32_t pinion_cuda_capture_begin(void* stream) {
    captures++;
    return told(cudaStreamBeginCapture(raw_of(stream), cudaStreamCaptureModeThreadLocal));
}
int32_t pinion_cuda_capture_end(void* stream, void** graph) {
    cudaGraph_t recorded = nullptr;
    cudaGraphExec_t ready = nullptr;
    cudaError_t code = cudaStreamEndCapture(raw_of(stream), &recorded);
    if (code == cudaSuccess) code = cudaGraphInstantiate(&ready, recorded, 0);
    // The first launch of a graph uploads it; that belongs before ready as well.
    if (code == cudaSuccess) code = cudaGraphUpload(ready, raw_of(stream));
    if (recorded) cudaGraphDestroy(recorded);
    if (code != cudaSuccess && ready) cudaGraphExecDestroy(ready);
    *graph = code == cudaSuccess ? ready : nullptr;
    return told(code);
}
int32_t pinion_cuda_graph_launch(void* graph, void* stream) {
    replays++;
    return told(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), raw_of(stream)));
}
int32_t pinion_cuda_graph_destroy(void* graph) { return told(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph))); }

} // extern "C"
