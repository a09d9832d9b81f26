// Products through cuBLASLt, opened at run time: the object then needs no library but the driver's, and takes the one that
// the machine's Python or CUDA has.
#include <dlfcn.h>

#include <mutex>
#include <string>
#include <unordered_map>

#include "cublaslt.h"
#include "target.h"

namespace pinion {
namespace {

using namespace cublaslt;
using Opaque = void*;
// What pinion_cuda.h promises; the library takes 256 for granted unless it is told.
constexpr uint32_t ALIGNMENT_BYTES = 16;

// An algorithm's runs, queued as one graph so that the host's pace does not show, and how often that is timed. A stream of the
// emulated device keeps exact time.
#if defined(__CUDACC__)
constexpr int MEASURED_RUNS = 20, MEASURED_REPLAYS = 2;
#else
constexpr int MEASURED_RUNS = 1, MEASURED_REPLAYS = 2;
#endif
constexpr int CANDIDATES_MAX = PINION_CANDIDATES_MAX;

struct Library {
    int (*create)(Opaque*);
    int (*desc_create)(Opaque*, int, int);
    int (*desc_set)(Opaque, int, const void*, size_t);
    int (*layout_create)(Opaque*, int, uint64_t, uint64_t, int64_t);
    int (*preference_create)(Opaque*);
    int (*preference_set)(Opaque, int, const void*, size_t);
    int (*heuristic)(Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, int, Heuristic*, int*);
    int (*matmul)(Opaque, Opaque, const void*, const void*, Opaque, const void*, Opaque, const void*, const void*, Opaque, void*,
                  Opaque, const Algorithm*, void*, size_t, void*);
    Opaque handle = nullptr;
    uint64_t workspace = 0;
    size_t workspace_bytes = 0;
};

// What a shape needs at each call, made once. Entries live as long as the process: one for each shape of the model.
struct Plan {
    Opaque desc, weight, x, y;
    Algorithm algorithm;
    bool activates; // in the library's epilogue, not in a launch behind it
};

std::mutex lock;
Library* library = nullptr;
std::unordered_map<std::string, Plan>* plans = nullptr;

template <typename F>
bool find(void* object, const char* name, F& to) {
    to = reinterpret_cast<F>(dlsym(object, name));
    return to != nullptr;
}

int type_of(int32_t dtype) {
    return dtype == PINION_CUDA_F32 ? TYPE_32F : dtype == PINION_CUDA_F16 ? TYPE_16F : TYPE_16BF;
}

// y = x . weight^T + bias + `kept` times what y holds.
bool multiply(const PinionCudaProduct& args, const Plan& plan, float kept, void* stream) {
    const float one = 1.0f;
    pinion_count_launch();
    return library->matmul(library->handle, plan.desc, &one, at<void>(args.weight), plan.weight, at<void>(args.x), plan.x, &kept,
                           at<void>(args.y), plan.y, at<void>(args.y), plan.y, &plan.algorithm, at<void>(library->workspace),
                           library->workspace_bytes, raw_of(stream)) == 0;
}

uint64_t l2_bytes() {
#if defined(__CUDACC__)
    int device = 0, bytes = 0;
    int32_t code = told(cudaGetDevice(&device));
    if (code == 0) code = told(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device));
    return code == 0 ? bytes : 0;
#else
    return 4096;
#endif
}

// The product and what comes behind it.
bool multiply_and_activate(const PinionCudaProduct& args, const Plan& plan, float kept, void* stream) {
    if (!multiply(args, plan, kept, stream)) return false;
    if (args.activation == PINION_CUDA_NONE || plan.activates) return true;
    PinionCudaBias activation = {args.y, 0, args.m, args.n, args.dtype, args.activation};
    return pinion_cuda_bias_activation(&activation, stream) == 0;
}

// What candidates are timed with. `flushed` is overwritten before each run and is twice the size of L2: in a step too each
// product finds its weights in memory, since those of the others came through L2 in between. Without room for it (0 bytes)
// the candidates are timed as they are.
struct Timing {
    void *begin = nullptr, *end = nullptr;
    uint64_t flushed = 0, flushed_bytes = 2 * l2_bytes();

    Timing() {
        if (flushed_bytes == 0 || pinion_cuda_alloc(flushed_bytes, &flushed)) flushed = flushed_bytes = 0;
    }
    ~Timing() {
        if (begin) pinion_cuda_event_destroy(begin);
        if (end) pinion_cuda_event_destroy(end);
        if (flushed) pinion_cuda_free(flushed);
    }
    Timing(const Timing&) = delete;
    Timing& operator=(const Timing&) = delete;
    bool has_events() { return pinion_cuda_event_create(&begin, 1) == 0 && pinion_cuda_event_create(&end, 1) == 0; }
};

// Milliseconds of some runs of the plan's algorithm, the less of two times; negative if it cannot run here.
float measure(const PinionCudaProduct& args, const Plan& plan, const Timing& timing, void* stream) {
    // What cannot run says so now, and what is done at a first use is done.
    if (!multiply_and_activate(args, plan, 0.0f, stream) || pinion_cuda_stream_synchronize(stream)) return -1.0f;
    if (pinion_cuda_capture_begin(stream)) return -1.0f;
    bool good = true;
    for (int run = 0; run < MEASURED_RUNS; run++) {
        good = good && (!timing.flushed || pinion_cuda_fill(timing.flushed, 0, timing.flushed_bytes, stream) == 0);
        good = good && multiply_and_activate(args, plan, 0.0f, stream);
    }
    void* graph = nullptr;
    good = pinion_cuda_capture_end(stream, &graph) == 0 && good;
    float least = -1.0f;
    for (int replay = 0; good && replay < MEASURED_REPLAYS; replay++) {
        float ms = 0.0f;
        good = pinion_cuda_event_record(timing.begin, stream) == 0 && pinion_cuda_graph_launch(graph, stream) == 0 &&
               pinion_cuda_event_record(timing.end, stream) == 0 && pinion_cuda_stream_synchronize(stream) == 0 &&
               pinion_cuda_event_elapsed_ms(timing.begin, timing.end, &ms) == 0;
        if (least < 0.0f || ms < least) least = ms;
    }
    if (graph) pinion_cuda_graph_destroy(graph);
    return good ? least : -1.0f;
}

// Takes the quickest of the library's candidates and gives its milliseconds; its own first choice, and a negative number, if none
// can be measured.
float choose(const PinionCudaProduct& args, Plan& plan, const Heuristic* found, int count, void* stream) {
    const Algorithm* best = &found[0].algorithm;
    float best_ms = -1.0f;
    if (count > 1) {
        Timing timing;
        for (int i = 0, candidates = timing.has_events() ? count : 0; i < candidates; i++) {
            plan.algorithm = found[i].algorithm;
            float ms = measure(args, plan, timing, stream);
            if (ms >= 0.0f && (best_ms < 0.0f || ms < best_ms)) {
                best_ms = ms;
                best = &found[i].algorithm;
            }
        }
    }
    plan.algorithm = *best;
    return best_ms;
}

// In the library's column-major words: y^T [n, m] = weight^T^T [n, k] . x^T [k, m]. `ms` is what `choose` gives.
int32_t make_plan_of(const PinionCudaProduct& args, Plan& plan, float& ms, void* stream) {
    const int transposed = 1, plain = 0, bias_only = args.bias ? EPILOGUE_BIAS : EPILOGUE_DEFAULT;
    const int epilogue = !plan.activates ? bias_only : args.bias ? EPILOGUE_GELU_BIAS : EPILOGUE_GELU;
    Library& lib = *library;
    Opaque preference = nullptr; // left to the process: one for each shape of the model
    Heuristic found[CANDIDATES_MAX] = {};
    // Measuring overwrites y, which may not be when it is added to.
    int wanted = args.accumulate ? 1 : int(args.candidates), count = 0;
    wanted = wanted < 1 ? 1 : wanted > CANDIDATES_MAX ? CANDIDATES_MAX : wanted;
    void* bias = at<void>(args.bias);
    bool good = lib.desc_create(&plan.desc, COMPUTE_32F, TYPE_32F) == 0 &&
                lib.desc_set(plan.desc, DESC_TRANSA, &transposed, sizeof transposed) == 0 &&
                lib.desc_set(plan.desc, DESC_TRANSB, &plain, sizeof plain) == 0 &&
                lib.desc_set(plan.desc, DESC_EPILOGUE, &epilogue, sizeof epilogue) == 0 &&
                (!bias || lib.desc_set(plan.desc, DESC_BIAS_POINTER, &bias, sizeof bias) == 0) &&
                lib.layout_create(&plan.weight, type_of(args.dtype), args.k, args.n, args.k) == 0 &&
                lib.layout_create(&plan.x, type_of(args.dtype), args.k, args.m, args.k) == 0 &&
                lib.layout_create(&plan.y, type_of(args.y_dtype), args.n, args.m, args.n) == 0 &&
                lib.preference_create(&preference) == 0 &&
                lib.preference_set(preference, PREFERENCE_WORKSPACE, &lib.workspace_bytes, sizeof lib.workspace_bytes) == 0;
    for (int attribute = PREFERENCE_ALIGNMENT_A; attribute <= PREFERENCE_ALIGNMENT_D; attribute++)
        good = good && lib.preference_set(preference, attribute, &ALIGNMENT_BYTES, sizeof ALIGNMENT_BYTES) == 0;
    good = good && lib.heuristic(lib.handle, plan.desc, plan.weight, plan.x, plan.y, plan.y, preference, wanted, found, &count) == 0;
    good = good && count > 0;
    if (good) ms = choose(args, plan, found, count, stream);
    return good ? 0 : PINION_CUDA_PRODUCT_FAILED;
}

// With the activation in the library's epilogue where it has it and a launch behind the product is not quicker.
int32_t make_plan(const PinionCudaProduct& args, Plan& plan, void* stream) {
    const bool measures = args.candidates > 1 && !args.accumulate;
    Plan fused = {}, apart = {};
    float fused_ms = -1.0f, apart_ms = -1.0f;
    fused.activates = args.activation == PINION_CUDA_GELU_TANH;
    bool has_fused = fused.activates && make_plan_of(args, fused, fused_ms, stream) == 0;
    if (has_fused && !measures) {
        plan = fused;
        return 0;
    }
    int32_t status = make_plan_of(args, apart, apart_ms, stream);
    bool is_quicker = fused_ms >= 0.0f && (apart_ms < 0.0f || fused_ms <= apart_ms);
    plan = has_fused && (status || is_quicker) ? fused : apart;
    return has_fused ? 0 : status;
}

int32_t plan_for(const PinionCudaProduct& args, Plan*& plan, void* stream) {
    const uint32_t fields[] = {args.m, args.n, args.k, uint32_t(args.dtype), uint32_t(args.y_dtype), args.bias != 0,
                               uint32_t(args.activation), uint32_t(args.accumulate), args.candidates};
    std::string key(reinterpret_cast<const char*>(fields), sizeof fields);
    auto found = plans->find(key);
    if (found == plans->end()) {
        Plan made = {};
        int32_t status = make_plan(args, made, stream);
        if (status) return status;
        found = plans->emplace(key, made).first;
    }
    plan = &found->second;
    return 0;
}

} // namespace

int32_t library_product(const PinionCudaProduct& args, void* stream) {
    std::lock_guard<std::mutex> guard(lock);
    if (!library) return PINION_CUDA_NO_PRODUCTS;
    // The library takes a bias of y's type, and the activation below works on rows of the weight's.
    if (args.y_dtype != args.dtype && (args.bias || args.activation != PINION_CUDA_NONE)) return PINION_CUDA_BAD_ARGUMENT;
    Plan* plan = nullptr;
    int32_t status = plan_for(args, plan, stream);
    if (status) return status;
    const void* bias = at<void>(args.bias);
    if (bias && library->desc_set(plan->desc, DESC_BIAS_POINTER, &bias, sizeof bias)) return PINION_CUDA_PRODUCT_FAILED;
    return multiply_and_activate(args, *plan, args.accumulate ? 1.0f : 0.0f, stream) ? 0 : PINION_CUDA_PRODUCT_FAILED;
}

} // namespace pinion

using namespace pinion;

extern "C" int32_t pinion_cuda_products_open(const char* path, uint64_t workspace_bytes) {
    std::lock_guard<std::mutex> guard(lock);
    if (library) return 0;
    const char* names[] = {path, "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    void* object = own_products();
    for (const char* name : names)
        if (name && !object) object = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (!object) return PINION_CUDA_NO_PRODUCTS;
    auto* made = new Library();
    bool whole = find(object, "cublasLtCreate", made->create) && find(object, "cublasLtMatmulDescCreate", made->desc_create) &&
                 find(object, "cublasLtMatmulDescSetAttribute", made->desc_set) &&
                 find(object, "cublasLtMatrixLayoutCreate", made->layout_create) &&
                 find(object, "cublasLtMatmulPreferenceCreate", made->preference_create) &&
                 find(object, "cublasLtMatmulPreferenceSetAttribute", made->preference_set) &&
                 find(object, "cublasLtMatmulAlgoGetHeuristic", made->heuristic) && find(object, "cublasLtMatmul", made->matmul);
    if (!whole || made->create(&made->handle) != 0 || pinion_cuda_alloc(workspace_bytes, &made->workspace)) {
        delete made;
        return PINION_CUDA_NO_PRODUCTS;
    }
    made->workspace_bytes = workspace_bytes;
    plans = new std::unordered_map<std::string, Plan>();
    library = made;
    return 0;
}
