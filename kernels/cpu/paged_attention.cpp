// Paged attention: the level dispatch and the scalar version. Contract: kernels/include/pinion_attention.h.
// The scalar version is the one to read first; the vector versions (attention_tile.h) do the same on tiles.
#include <math.h>

#include "attention_internal.h"

namespace {

// One query of one head: online softmax (Milakov and Gimelshein, 2018) in one pass over the sequence's blocks.
template <class T>
void attend_one(const PinionAttention& a, uint32_t seq, uint32_t head, uint32_t token, uint32_t position) {
    const PinionBatch& b = a.batch;
    const uint64_t dim = b.head_dim;
    const uint32_t from = visible_from(a, position);
    const T* q = static_cast<const T*>(a.q) + token * a.q_stride + head * dim;
    T* out = static_cast<T*>(a.out) + token * a.out_stride + head * dim;
    float sum[PINION_MAX_HEAD_DIM] = {};
    float max = -INFINITY, mass = 0;
    for (uint32_t p = from; p <= position; ++p) {
        const T* k;
        collect_rows(a, seq, head / b.group, p, 1, &k);
        const T* v = k + b.block_size * dim;
        float score = 0;
        for (uint64_t d = 0; d < dim; ++d) score += to_float(q[d]) * to_float(k[d]);
        score *= a.scale;
        if (a.soft_cap > 0) score = a.soft_cap * tanhf(score / a.soft_cap);
        const float new_max = score > max ? score : max;
        const float keep = p == from ? 0 : expf(max - new_max);
        const float weight = expf(score - new_max);
        mass = mass * keep + weight;
        for (uint64_t d = 0; d < dim; ++d) sum[d] = sum[d] * keep + weight * to_float(v[d]);
        max = new_max;
    }
    for (uint64_t d = 0; d < dim; ++d) from_float(sum[d] / mass, &out[d]);
}

template <class T>
void attend_scalar(const PinionAttention& a, uint64_t begin, uint64_t end) {
    for_each_item(a.batch, begin, end, [&](const Item& item) {
        for (uint32_t i = 0; i < item.queries; ++i) {
            for (uint32_t h = 0; h < a.batch.group; ++h) {
                const uint32_t head = item.kv_head * a.batch.group + h;
                attend_one<T>(a, item.seq, head, item.first_token + i, item.first_position + i);
            }
        }
    });
}

int32_t detect_level() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
        return __builtin_cpu_supports("avx512bf16") ? PINION_LEVEL_AVX512_BF16 : PINION_LEVEL_AVX512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return PINION_LEVEL_AVX2;
#endif
    return PINION_LEVEL_SCALAR;
}

}  // namespace

extern "C" int32_t pinion_best_level(void) {
    static const int32_t level = detect_level();
    return level;
}

extern "C" uint64_t pinion_paged_attention_work(const PinionBatch* b) {
    uint64_t pieces = 0;
    for (uint32_t s = 0; s < b->seqs; ++s) pieces += Cut(*b, s).pieces();
    return pieces * b->kv_heads;
}

extern "C" void pinion_paged_attention(const PinionAttention* args, int32_t level, uint64_t begin, uint64_t end) {
#if defined(__x86_64__)
    if (args->batch.head_dim <= 256) {
        if (level == PINION_LEVEL_AVX512_BF16) return pinion_paged_attention_avx512_bf16(args, begin, end);
        if (level == PINION_LEVEL_AVX512) return pinion_paged_attention_avx512(args, begin, end);
        if (level == PINION_LEVEL_AVX2) return pinion_paged_attention_avx2(args, begin, end);
    }
#endif
    (void)level;
    if (args->batch.dtype == PINION_BF16) {
        attend_scalar<Bf16>(*args, begin, end);
    } else {
        attend_scalar<float>(*args, begin, end);
    }
}
