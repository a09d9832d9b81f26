// KV append: scatters the new tokens' K and V rows into the paged cache. Contract: kernels/include/pinion_attention.h.
// A copy, which memcpy of the C library vectorises, or a rounding to integers, in loops that the compiler vectorises: one
// version serves every CPU. Compiled without contraction, so that the integers are those of the twin.
#include "attention_internal.h"

namespace {

constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
// Added and taken away again, it rounds a magnitude below 2^22 to the nearest integer, ties to even.
constexpr float kRounder = 12582912.0f;
constexpr float kSmallest = 1e-30f;

inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

// As it is.
struct Copied {
    uint64_t row_bytes;

    explicit Copied(const PinionBatch& b) : row_bytes(b.head_dim * (b.dtype == PINION_BF16 ? 2 : 4)) {}
    void store(const char* row, char* to) const { memcpy(to, row, row_bytes); }
};

// As integers and their scale.
template <class T>
struct Rounded {
    uint32_t dim;
    uint64_t row_bytes;

    explicit Rounded(const PinionBatch& b) : dim(b.head_dim), row_bytes(row_step<Int8>(b)) {}

    void store(const char* row, char* to) const {
        const T* values = reinterpret_cast<const T*>(row);
        uint32_t top = 0;  // magnitudes are in the order of their bits
        for (uint32_t d = 0; d < dim; ++d) {
            const uint32_t magnitude = bits_of(to_float(values[d])) & kMagnitude;
            top = magnitude > top ? magnitude : top;
        }
        float largest;
        memcpy(&largest, &top, 4);
        float scale = largest / 127, inverse = 127 / largest;
        if (top >= kInfinity) {
            scale = __builtin_nanf("");
            inverse = 0;
        } else if (largest < kSmallest) {
            scale = inverse = 0;
        }
        memset(to + dim, 0, row_bytes - dim - sizeof(scale));
        memcpy(to + row_bytes - sizeof(scale), &scale, sizeof(scale));
        if (inverse == 0) {
            memset(to, 0, dim);
            return;
        }
        int8_t* integers = reinterpret_cast<int8_t*>(to);
        for (uint32_t d = 0; d < dim; ++d) {
            integers[d] = static_cast<int8_t>(to_float(values[d]) * inverse + kRounder - kRounder);
        }
    }
};

template <class Form>
void append(const PinionAppend& a, uint64_t work_begin, uint64_t work_end) {
    const PinionBatch& b = a.batch;
    const Form form(b);
    const uint64_t element = b.dtype == PINION_BF16 ? 2 : 4;
    const uint64_t half_bytes = b.block_size * form.row_bytes;  // the K rows, or the V rows, of one (block, head)
    const char* k = static_cast<const char*>(a.k);
    const char* v = static_cast<const char*>(a.v);
    char* cache = static_cast<char*>(a.cache);

    for (uint32_t s = 0; s < b.seqs && b.query_start[s] < work_end; ++s) {
        const uint64_t first = b.query_start[s] > work_begin ? b.query_start[s] : work_begin;
        const uint64_t last = b.query_start[s + 1] < work_end ? b.query_start[s + 1] : work_end;
        for (uint64_t token = first; token < last; ++token) {
            const uint64_t position = b.context_len[s] - (b.query_start[s + 1] - token);
            const uint64_t block = b.blocks[b.table_start[s] + position / b.block_size];
            const uint64_t offset = position % b.block_size;
            const char* k_row = k + token * a.kv_stride * element;
            const char* v_row = v + token * a.kv_stride * element;
            char* to = cache + block * b.kv_heads * 2 * half_bytes + offset * form.row_bytes;
            for (uint32_t h = 0; h < b.kv_heads; ++h) {
                form.store(k_row + h * b.head_dim * element, to);
                form.store(v_row + h * b.head_dim * element, to + half_bytes);
                to += 2 * half_bytes;
            }
        }
    }
}

}  // namespace

extern "C" void pinion_kv_append(const PinionAppend* args, uint64_t work_begin, uint64_t work_end) {
    if (args->batch.kv_dtype != PINION_I8) return append<Copied>(*args, work_begin, work_end);
    if (args->batch.dtype == PINION_BF16) return append<Rounded<Bf16>>(*args, work_begin, work_end);
    return append<Rounded<float>>(*args, work_begin, work_end);
}
