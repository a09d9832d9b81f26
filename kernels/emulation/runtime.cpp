// The runtime half of pinion_cuda.h where the device is this process: memory is memory, a stream runs its work at once,
// a graph is the list of what was queued while it was captured, and a stream's clock counts what it ran.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "../cuda/target.h"

namespace {

// A kernel, or anything else.
struct Work {
    std::function<void()> run;
    uint64_t ticks;
    std::shared_ptr<const emulation::Launch> launch;
};

struct Stream {
    std::recursive_mutex lock;
    bool dependent = false; // whether dependent launches are
    std::vector<Work>* capture = nullptr;
    uint64_t ticks = 0;
    std::shared_ptr<emulation::Running> running; // the last kernel, if it has not ended

    void settle() {
        if (running) finish(*running);
        running.reset();
    }
    void perform(const Work& work) {
        ticks += work.ticks;
        // What a plain launch makes is made when the next kernel waits for it, or when anything else is asked of the stream.
        std::shared_ptr<emulation::Running> next;
        bool stays = work.launch && dependent && work.launch->kind != emulation::Kind::COOPERATIVE;
        if (stays && work.launch->kind == emulation::Kind::DEPENDENT) next = begin(*work.launch);
        settle();
        if (!work.launch)
            work.run();
        else if (stays)
            running = next ? next : begin(*work.launch);
        else
            run(*work.launch);
    }
};

// Of this thread's device.
thread_local uint64_t launches, captures, replays;
std::atomic<uint64_t> to_device_bytes, to_host_bytes, allocated_bytes;
constexpr int32_t CAPTURE_INVALID = 901;
constexpr int32_t OUT_OF_MEMORY = 2;
constexpr uint64_t MEMORY_BYTES = uint64_t{1} << 28;

Stream* stream_of(void* stream) { return static_cast<Stream*>(stream); }

} // namespace

void* own_products() {
    Dl_info found;
    if (!dladdr(reinterpret_cast<void*>(&own_products), &found)) return nullptr;
    return dlopen(found.dli_fname, RTLD_NOW | RTLD_NOLOAD);
}

namespace {
void perform_or_capture(void* stream, Work work) {
    std::lock_guard<std::recursive_mutex> guard(stream_of(stream)->lock);
    launches++;
    if (stream_of(stream)->capture)
        stream_of(stream)->capture->push_back(std::move(work));
    else
        stream_of(stream)->perform(work);
}
// Work that is done where it is called, after all that the stream has queued.
Stream* settled(void* stream) {
    std::lock_guard<std::recursive_mutex> guard(stream_of(stream)->lock);
    stream_of(stream)->settle();
    return stream_of(stream);
}
} // namespace

void emulation::enqueue(void* stream, std::function<void()> work, uint64_t ticks) {
    perform_or_capture(stream, {std::move(work), ticks, nullptr});
}
void emulation::enqueue(void* stream, Launch launch) {
    perform_or_capture(stream, {nullptr, 1, std::make_shared<const Launch>(std::move(launch))});
}

namespace pinion {

int32_t launch_result() { return 0; }

} // namespace pinion

extern "C" {

int32_t pinion_cuda_abi(void) { return PINION_CUDA_ABI; }

const char* pinion_cuda_error_text(int32_t code) {
    switch (code) {
    case PINION_CUDA_BAD_ARGUMENT: return "an argument is outside the kernel's contract";
    case PINION_CUDA_DOES_NOT_FIT: return "the rows and a part of the weights do not fit into the shared memory of a block";
    case CAPTURE_INVALID: return "the operation is not permitted while a stream is captured";
    case OUT_OF_MEMORY: return "out of memory";
    default: return "an unknown error";
    }
}

int32_t pinion_cuda_open(int32_t index, PinionCudaFacts* facts) {
    *facts = PinionCudaFacts();
    if (index != 0) return 101; // as the runtime: no such device
    strcpy(facts->name, "emulated device");
    facts->memory_bytes = facts->free_bytes = MEMORY_BYTES;
    facts->multiprocessors = 2;
    facts->capability = 90;
    facts->cooperative = 1;
    facts->emulated = 1;
    return 0;
}

void pinion_cuda_counts(PinionCudaCounts* counts) {
    uint64_t taken = allocated_bytes, free_bytes = taken < MEMORY_BYTES ? MEMORY_BYTES - taken : 0;
    *counts = {launches, captures, replays, to_device_bytes, to_host_bytes, taken, free_bytes};
}

int32_t pinion_cuda_alloc(uint64_t bytes, uint64_t* address) {
    void* memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    *address = reinterpret_cast<uintptr_t>(memory);
    if (!memory) return OUT_OF_MEMORY;
    memset(memory, 0xcd, bytes);
    allocated_bytes += bytes;
    return 0;
}
int32_t pinion_cuda_free(uint64_t address) {
    free(pinion::at<void>(address));
    return 0;
}
int32_t pinion_cuda_pinned_alloc(uint64_t bytes, void** memory) {
    *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    return *memory ? 0 : OUT_OF_MEMORY;
}
int32_t pinion_cuda_pinned_free(void* memory) {
    free(memory);
    return 0;
}

int32_t pinion_cuda_stream_create(void** stream, int32_t dependent) {
    auto* made = new Stream();
    made->dependent = dependent != 0;
    *stream = made;
    return 0;
}
int32_t pinion_cuda_stream_borrow(uint64_t raw, void** stream) {
    *stream = nullptr;
    return raw == 0 ? pinion_cuda_stream_create(stream, 0) : PINION_CUDA_BAD_ARGUMENT;
}
int32_t pinion_cuda_stream_destroy(void* stream) {
    delete settled(stream);
    return 0;
}
int32_t pinion_cuda_stream_synchronize(void* stream) { return settled(stream)->capture ? CAPTURE_INVALID : 0; }
int32_t pinion_cuda_event_create(void** event, int32_t) {
    *event = new uint64_t(0);
    return 0;
}
int32_t pinion_cuda_event_destroy(void* event) {
    delete static_cast<uint64_t*>(event);
    return 0;
}
int32_t pinion_cuda_event_record(void* event, void* stream) {
    *static_cast<uint64_t*>(event) = settled(stream)->ticks;
    return 0;
}
int32_t pinion_cuda_event_query(void*, int32_t* done) {
    *done = 1;
    return 0;
}
int32_t pinion_cuda_event_elapsed_ms(void* begin, void* end, float* ms) {
    *ms = float(*static_cast<uint64_t*>(end) - *static_cast<uint64_t*>(begin)) / 1000.0f;
    return 0;
}

// Host memory may change before a graph is replayed, so copies from and to it are not captured.
int32_t pinion_cuda_to_device(uint64_t to, const void* from, uint64_t bytes, void* stream) {
    if (settled(stream)->capture) return CAPTURE_INVALID;
    to_device_bytes += bytes;
    memcpy(pinion::at<void>(to), from, bytes);
    return 0;
}
int32_t pinion_cuda_to_host(void* to, uint64_t from, uint64_t bytes, void* stream) {
    if (settled(stream)->capture) return CAPTURE_INVALID;
    to_host_bytes += bytes;
    memcpy(to, pinion::at<void>(from), bytes);
    return 0;
}
int32_t pinion_cuda_copy(uint64_t to, uint64_t from, uint64_t bytes, void* stream) {
    emulation::enqueue(stream, [=] { memcpy(pinion::at<void>(to), pinion::at<void>(from), bytes); });
    return 0;
}
int32_t pinion_cuda_fill(uint64_t to, int32_t byte, uint64_t bytes, void* stream) {
    emulation::enqueue(stream, [=] { memset(pinion::at<void>(to), byte, bytes); });
    return 0;
}

int32_t pinion_cuda_capture_begin(void* stream) {
    if (settled(stream)->capture) return CAPTURE_INVALID;
    captures++;
    stream_of(stream)->capture = new std::vector<Work>();
    return 0;
}
int32_t pinion_cuda_capture_end(void* stream, void** graph) {
    *graph = stream_of(stream)->capture;
    stream_of(stream)->capture = nullptr;
    return *graph ? 0 : CAPTURE_INVALID;
}
int32_t pinion_cuda_graph_launch(void* graph, void* stream) {
    std::lock_guard<std::recursive_mutex> guard(stream_of(stream)->lock);
    replays++;
    stream_of(stream)->settle();
    for (auto& work : *static_cast<std::vector<Work>*>(graph)) stream_of(stream)->perform(work);
    return 0;
}
int32_t pinion_cuda_graph_destroy(void* graph) {
    delete static_cast<std::vector<Work>*>(graph);
    return 0;
}

} // extern "C"
