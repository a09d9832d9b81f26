// Paged attention: the level dispatch and the scalar version. Contract: kernels/include/pinion_attention.h.
// The scalar version is the one to read first; the vector versions (attention_tile.h) do the same on tiles.
#include <math.h>

#include "attention_internal.h"

namespace {

// What one query of one head adds up over some positions.
struct Sums {
    float sum[PINION_MAX_HEAD_DIM];
    float max;
    float mass;
};

// Online softmax (Milakov and Gimelshein, 2018) in one pass over the positions [begin, end). Not inlined, here and below, so
// that the bits are the same wherever it is called.
template <class T, class Kv>
__attribute__((noinline)) void attend_positions(const PinionAttention& a, uint32_t seq, uint32_t head, uint32_t token,
                                                uint32_t begin, uint32_t end, Sums& t) {
    const PinionBatch& b = a.batch;
    const uint64_t dim = b.head_dim;
    const T* q = static_cast<const T*>(a.q) + token * a.q_stride + head * dim;
    memset(t.sum, 0, sizeof(t.sum));
    t.max = -INFINITY;
    t.mass = 0;
    for (uint32_t p = begin; p < end; ++p) {
        const Kv* k;
        collect_rows(a, seq, head / b.group, p, 1, &k);
        const Kv* v = k + b.block_size * row_step<Kv>(b);
        float score = 0;
        for (uint64_t d = 0; d < dim; ++d) score += to_float(q[d]) * to_float(k[d]);
        score *= scale_of(k, b.head_dim) * a.scale;
        if (a.soft_cap > 0) score = a.soft_cap * tanhf(score / a.soft_cap);
        const float new_max = score > t.max ? score : t.max;
        const float keep = p == begin ? 0 : expf(t.max - new_max);
        const float weight = expf(score - new_max);
        t.mass = t.mass * keep + weight;
        const float scaled = weight * scale_of(v, b.head_dim);
        for (uint64_t d = 0; d < dim; ++d) t.sum[d] = t.sum[d] * keep + scaled * to_float(v[d]);
        t.max = new_max;
    }
}

// Adds what the next span gave to what those before it did.
__attribute__((noinline)) void join_span(Sums& all, const float* sum, float max, float mass, uint32_t dim) {
    const float top = all.max > max ? all.max : max;
    const float keep = expf(all.max - top), take = expf(max - top);
    for (uint32_t d = 0; d < dim; ++d) all.sum[d] = all.sum[d] * keep + sum[d] * take;
    all.mass = all.mass * keep + mass * take;
    all.max = top;
}

template <class T>
void store_result(const PinionAttention& a, uint32_t head, uint32_t token, const Sums& t) {
    const uint64_t dim = a.batch.head_dim;
    T* out = static_cast<T*>(a.out) + token * a.out_stride + head * dim;
    for (uint64_t d = 0; d < dim; ++d) from_float(t.sum[d] / t.mass, &out[d]);
}

// One generated token of one head, or one span of what it sees.
template <class T, class Kv>
void attend_generated(const PinionAttention& a, const Item& item, uint32_t head) {
    const uint32_t dim = a.batch.head_dim, from = visible_from(a, item.first_position);
    const Spans spans(a, item.first_position);
    Sums all, next;
    const auto attend = [&](uint32_t span, Sums& t) {
        const uint32_t begin = spans.begin_of(span);
        attend_positions<T, Kv>(a, item.seq, head, item.first_token, begin > from ? begin : from, spans.end_of(span), t);
    };
    attend(item.span, all);
    if (item.is_span) {
        float* partial = partial_of(a, item.partial, head - item.kv_head * a.batch.group);
        memcpy(partial, all.sum, dim * sizeof(float));
        partial[partial_width(dim)] = all.max;
        partial[partial_width(dim) + 1] = all.mass;
        return;
    }
    for (uint32_t span = 1; span < spans.count; ++span) {
        attend(span, next);
        join_span(all, next.sum, next.max, next.mass, dim);
    }
    store_result<T>(a, head, item.first_token, all);
}

template <class T, class Kv>
void attend_scalar(const PinionAttention& a, uint64_t begin, uint64_t end) {
    for_each_item(a, begin, end, [&](const Item& item) {
        for (uint32_t h = 0; h < a.batch.group; ++h) {
            const uint32_t head = item.kv_head * a.batch.group + h;
            if (item.is_generated) {
                attend_generated<T, Kv>(a, item, head);
                continue;
            }
            for (uint32_t i = 0; i < item.queries; ++i) {
                Sums t;
                const uint32_t position = item.first_position + i, token = item.first_token + i;
                attend_positions<T, Kv>(a, item.seq, head, token, visible_from(a, position), position + 1, t);
                store_result<T>(a, head, token, t);
            }
        }
    });
}

template <class T>
void join_scalar(const PinionAttention& a, uint32_t seq, uint32_t kv_head, uint64_t first_partial) {
    const Item item = generated_item(a.batch, seq, kv_head);
    const uint32_t dim = a.batch.head_dim, width = partial_width(dim), count = Spans(a, item.first_position).count;
    for (uint32_t h = 0; h < a.batch.group; ++h) {
        Sums all;
        for (uint32_t span = 0; span < count; ++span) {
            const float* partial = partial_of(a, first_partial + span, h);
            if (span == 0) {
                memcpy(all.sum, partial, dim * sizeof(float));
                all.max = partial[width];
                all.mass = partial[width + 1];
            } else {
                join_span(all, partial, partial[width], partial[width + 1], dim);
            }
        }
        store_result<T>(a, kv_head * a.batch.group + h, item.first_token, all);
    }
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

extern "C" uint64_t pinion_paged_attention_work(const PinionAttention* args) {
    uint64_t items = 0;
    for (uint32_t s = 0; s < args->batch.seqs; ++s) items += Cut(*args, s).items();
    return items * args->batch.kv_heads;
}

extern "C" uint64_t pinion_partial_floats(int32_t threads, uint32_t group, uint32_t head_dim) {
    // The tokens and KV heads that are dealt out see, together, no more positions than there are, and each sees more than
    // the PINION_DEALT-th part of what is a thread's: they are fewer than PINION_DEALT for each thread.
    if (threads <= 1) return 0;
    const uint64_t dealt = static_cast<uint64_t>(threads) * PINION_DEALT;
    return dealt * PINION_MAX_SPANS * group * partial_step(head_dim);
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
    const bool is_bf16 = args->batch.dtype == PINION_BF16;
    if (args->batch.kv_dtype == PINION_I8) {
        return is_bf16 ? attend_scalar<Bf16, Int8>(*args, begin, end) : attend_scalar<float, Int8>(*args, begin, end);
    }
    return is_bf16 ? attend_scalar<Bf16, Bf16>(*args, begin, end) : attend_scalar<float, float>(*args, begin, end);
}

extern "C" void pinion_join_spans(const PinionAttention* args, int32_t level, uint32_t seq, uint32_t kv_head,
                                  uint64_t first_partial) {
#if defined(__x86_64__)
    if (args->batch.head_dim <= 256) {
        if (level >= PINION_LEVEL_AVX512) return pinion_join_spans_avx512(args, seq, kv_head, first_partial);
        if (level == PINION_LEVEL_AVX2) return pinion_join_spans_avx2(args, seq, kv_head, first_partial);
    }
#endif
    (void)level;
    if (args->batch.dtype == PINION_BF16) {
        join_scalar<Bf16>(*args, seq, kv_head, first_partial);
    } else {
        join_scalar<float>(*args, seq, kv_head, first_partial);
    }
}
