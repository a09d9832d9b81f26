// A stand-in for cuBLASLt where the device is this process: the functions that cuda/library.cu opens by name, with the
// library's numbers and column-major words, over plain loops. It refuses what the library refuses, of what we could ask by
// mistake. Its algorithms sum in different orders, cost different times, and one of them never works; GELU costs fp32 too much.
#include "../cuda/cublaslt.h"
#include "../cuda/target.h"

namespace {

using namespace pinion::cublaslt;

struct Desc {
    int transposes[2] = {0, 0};
    int epilogue = 1;
    uint64_t bias = 0;
};
struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t leading;
};
struct Preference {
    uint64_t workspace_bytes = 0;
    uint32_t alignments[4] = {256, 256, 256, 256};
};

constexpr int NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15, INTERNAL = 14;
constexpr uint64_t MARK = 0x50494e494f4e0000; // an algorithm that did not come from here is refused
constexpr unsigned ALGORITHMS = 4, BROKEN = 2;
constexpr uint64_t TICKS[ALGORITHMS] = {7, 3, 1, 5}, GELU_TICKS = 10;

template <typename F>
int with_type(int type, F launch) {
    switch (type) {
    case TYPE_32F: return launch(float());
    case TYPE_16F: return launch(pinion::f16());
    case TYPE_16BF: return launch(pinion::bf16());
    default: return INVALID_VALUE;
    }
}

// Whether d [n, m] = a^T . b of a [k, n] and b [k, m] is what the layouts say.
int check(const Desc& desc, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
    if (desc.transposes[0] != 1 || desc.transposes[1] != 0) return NOT_SUPPORTED;
    if (a.rows != b.rows || a.columns != d.rows || b.columns != d.columns) return INVALID_VALUE;
    if (c.type != d.type || c.rows != d.rows || c.columns != d.columns || a.type != b.type) return INVALID_VALUE;
    if (d.type != a.type && (d.type != TYPE_32F || desc.epilogue != EPILOGUE_DEFAULT)) return NOT_SUPPORTED;
    return 0;
}

// What a call needs of its arguments, which may be gone when a graph is replayed.
struct Work {
    Desc desc;
    Layout a, b, d;
    uint64_t a_at, b_at, c_at, d_at;
    float alpha, beta;
    uint64_t algorithm;
};

// Rows of a whose sums are made at once: each has its own order, and none waits for another's addition.
constexpr uint64_t ROWS_AT_ONCE = 8;

template <typename Out>
void store(const Work& work, uint64_t row, uint64_t column, float sum) {
    const uint64_t place = row + column * work.d.leading;
    float value = work.alpha * sum;
    if (work.beta != 0.0f) value += work.beta * pinion::to_float(pinion::at<Out>(work.c_at)[place]);
    if (work.desc.epilogue & EPILOGUE_BIAS) value += pinion::to_float(pinion::at<Out>(work.desc.bias)[row]);
    if (work.desc.epilogue & EPILOGUE_GELU) value = pinion::activate(value, PINION_CUDA_GELU_TANH);
    pinion::at<Out>(work.d_at)[place] = pinion::from_float<Out>(value);
}

template <typename T, typename Out>
void compute(const Work& work) {
    const uint64_t depth = work.a.rows, rows = work.d.rows;
    for (uint64_t first = 0; first < rows; first += ROWS_AT_ONCE) {
        const T* a[ROWS_AT_ONCE];
        // Rows past the last repeat it; their sums are not stored.
        for (uint64_t r = 0; r < ROWS_AT_ONCE; r++)
            a[r] = pinion::at<T>(work.a_at) + (first + r < rows ? first + r : rows - 1) * work.a.leading;
        for (uint64_t column = 0; column < work.d.columns; column++) {
            const T* b = pinion::at<T>(work.b_at) + column * work.b.leading;
            float sums[ROWS_AT_ONCE] = {};
            for (uint64_t i = 0; i < depth; i++) {
                uint64_t k = work.algorithm % 2 ? depth - 1 - i : i;
                float right = pinion::to_float(b[k]);
                for (uint64_t r = 0; r < ROWS_AT_ONCE; r++) sums[r] += pinion::to_float(a[r][k]) * right;
            }
            for (uint64_t r = 0; r < ROWS_AT_ONCE && first + r < rows; r++) store<Out>(work, first + r, column, sums[r]);
        }
    }
}

template <typename T>
int make(void** to, T* made) {
    *to = made;
    return 0;
}

} // namespace

extern "C" {

int cublasLtCreate(void** handle) { return make(handle, new int(0)); }

int cublasLtMatmulDescCreate(void** desc, int compute, int scale) {
    return compute == 68 && scale == TYPE_32F ? make(desc, new Desc()) : NOT_SUPPORTED;
}

int cublasLtMatmulDescSetAttribute(void* desc, int attribute, const void* value, size_t bytes) {
    auto* to = static_cast<Desc*>(desc);
    switch (attribute) {
    case 3:
    case 4: return bytes == 4 ? (memcpy(&to->transposes[attribute - 3], value, 4), 0) : INVALID_VALUE;
    case 7: return bytes == 4 ? (memcpy(&to->epilogue, value, 4), 0) : INVALID_VALUE;
    case 8: return bytes == 8 ? (memcpy(&to->bias, value, 8), 0) : INVALID_VALUE;
    default: return INVALID_VALUE;
    }
}

int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    return leading >= int64_t(rows) ? make(layout, new Layout{type, rows, columns, leading}) : INVALID_VALUE;
}

int cublasLtMatmulPreferenceCreate(void** preference) { return make(preference, new Preference()); }

int cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value, size_t bytes) {
    auto* to = static_cast<Preference*>(preference);
    if (attribute == PREFERENCE_WORKSPACE && bytes == 8)
        memcpy(&to->workspace_bytes, value, 8);
    else if (attribute >= PREFERENCE_ALIGNMENT_A && attribute <= PREFERENCE_ALIGNMENT_D && bytes == 4)
        memcpy(&to->alignments[attribute - PREFERENCE_ALIGNMENT_A], value, 4);
    else
        return INVALID_VALUE;
    return 0;
}

int cublasLtMatmulAlgoGetHeuristic(void*, void* desc, void* a, void* b, void* c, void* d, void* preference, int wanted,
                                   Heuristic* found, int* count) {
    auto layout = [](void* of) -> const Layout& { return *static_cast<Layout*>(of); };
    *count = 0;
    if (int status = check(*static_cast<Desc*>(desc), layout(a), layout(b), layout(c), layout(d))) return status;
    for (; *count < wanted && *count < int(ALGORITHMS); ++*count) {
        found[*count] = Heuristic();
        found[*count].algorithm.data[0] = MARK + *count;
        for (unsigned i = 0; i < 4; i++)
            found[*count].algorithm.data[1 + i] = static_cast<Preference*>(preference)->alignments[i];
    }
    return 0;
}

int cublasLtMatmul(void* handle, void* desc, const float* alpha, const void* a, void* a_layout, const void* b, void* b_layout,
                   const float* beta, const void* c, void* c_layout, void* d, void* d_layout, const Algorithm* algorithm, void* workspace,
                   size_t, void* stream) {
    auto layout = [](void* of) -> const Layout& { return *static_cast<Layout*>(of); };
    auto address = [](const void* of) { return uint64_t(reinterpret_cast<uintptr_t>(of)); };
    if (!handle || !workspace) return NOT_INITIALIZED;
    Work work = {*static_cast<Desc*>(desc), layout(a_layout), layout(b_layout), layout(d_layout), address(a), address(b), address(c),
                 address(d), *alpha, *beta, algorithm->data[0] - MARK};
    if (int status = check(work.desc, work.a, work.b, layout(c_layout), work.d)) return status;
    if (work.algorithm >= ALGORITHMS) return INVALID_VALUE;
    // An algorithm may count on the alignments that it was asked for with.
    const void* matrices[] = {a, b, c, d};
    for (unsigned i = 0; i < 4; i++)
        if (address(matrices[i]) % algorithm->data[1 + i] != 0) return INVALID_VALUE;
    if (work.algorithm == BROKEN) return INTERNAL;
    return with_type(work.a.type, [&](auto element) {
        using T = decltype(element);
        bool widens = work.d.type != work.a.type;
        uint64_t ticks = TICKS[work.algorithm] + (work.desc.epilogue & EPILOGUE_GELU && sizeof(T) == 4 ? GELU_TICKS : 0);
        emulation::enqueue(stream, [=] { widens ? compute<T, float>(work) : compute<T, T>(work); }, ticks);
        return 0;
    });
}

} // extern "C"
