// The row kernels: the level dispatch and the scalar version, which is the one to read first. Contract:
// kernels/include/pinion_rows.h.
#include "../include/pinion_rows.h"

#include <math.h>

#include "attention_internal.h"

#define PINION_ROWS_OF(LEVEL)                                                                   \
    extern "C" void pinion_norm_rows_##LEVEL(const PinionRmsNorm*, uint64_t, uint64_t);         \
    extern "C" void pinion_layer_norm_rows_##LEVEL(const PinionLayerNorm*, uint64_t, uint64_t); \
    extern "C" void pinion_rotate_rows_##LEVEL(const PinionRotate*, uint64_t, uint64_t);        \
    extern "C" void pinion_gate_rows_##LEVEL(const PinionGate*, uint64_t, uint64_t);
PINION_ROWS_OF(avx2)
PINION_ROWS_OF(avx512)

namespace {

inline float rounded(float value, float) { return value; }

inline float rounded(float value, Bf16) {
    Bf16 stored;
    from_float(value, &stored);
    return to_float(stored);
}

template <class T>
void norm_rows(const PinionRmsNorm& a, uint64_t begin, uint64_t end) {
    for (uint64_t row = begin; row < end; ++row) {
        const uint64_t token = row / a.groups, column = row % a.groups * a.width;
        const T* x = static_cast<const T*>(a.x) + token * a.x_stride + column;
        T* out = static_cast<T*>(a.out) + token * a.out_stride + column;
        float squares = 0;
        for (uint32_t d = 0; d < a.width; ++d) squares += to_float(x[d]) * to_float(x[d]);
        const float inverse = 1.0f / sqrtf(squares / static_cast<float>(a.width) + a.epsilon);
        for (uint32_t d = 0; d < a.width; ++d) {
            float value = to_float(x[d]) * inverse;
            if (a.order == PINION_RMS) value = rounded(value, T());
            from_float(value * (a.order == PINION_RMS_ONE_PLUS ? 1.0f + a.weight[d] : a.weight[d]), &out[d]);
        }
    }
}

template <class T>
void layer_norm_rows(const PinionLayerNorm& a, uint64_t begin, uint64_t end) {
    const float width = static_cast<float>(a.width);
    for (uint64_t row = begin; row < end; ++row) {
        const T* x = static_cast<const T*>(a.x) + row * a.width;
        T* out = static_cast<T*>(a.out) + row * a.width;
        float sum = 0, squares = 0;
        for (uint32_t d = 0; d < a.width; ++d) sum += to_float(x[d]);
        const float mean = sum / width;
        for (uint32_t d = 0; d < a.width; ++d) squares += (to_float(x[d]) - mean) * (to_float(x[d]) - mean);
        const float inverse = 1.0f / sqrtf(squares / width + a.epsilon);
        for (uint32_t d = 0; d < a.width; ++d) {
            from_float((to_float(x[d]) - mean) * inverse * a.weight[d] + a.bias[d], &out[d]);
        }
    }
}

template <class T>
void rotate_rows(const PinionRotate& a, uint64_t begin, uint64_t end) {
    const uint32_t half = a.rotary_dim / 2;
    for (uint64_t token = begin; token < end; ++token) {
        const float* cosine = a.table + token * a.rotary_dim;
        const float* sine = cosine + half;
        T* x = static_cast<T*>(a.x) + token * a.stride;
        for (uint32_t head = 0; head < a.heads; ++head, x += a.head_dim) {
            for (uint32_t d = 0; d < half; ++d) {
                const float first = to_float(x[d]), second = to_float(x[half + d]);
                from_float(first * cosine[d] - second * sine[d], &x[d]);
                from_float(second * cosine[d] + first * sine[d], &x[half + d]);
            }
        }
    }
}

inline float activated(float x, int32_t activation) {
    if (activation == PINION_GATE_SILU) return x / (1.0f + expf(-x));
    if (activation == PINION_GATE_GELU_ERF) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

template <class T>
void gate_rows(const PinionGate& a, uint64_t begin, uint64_t end) {
    for (uint64_t row = begin; row < end; ++row) {
        const T* gate = static_cast<const T*>(a.x) + row * 2 * a.inner;
        T* out = static_cast<T*>(a.out) + row * a.inner;
        for (uint32_t d = 0; d < a.inner; ++d) {
            from_float(activated(to_float(gate[d]), a.activation) * to_float(gate[a.inner + d]), &out[d]);
        }
    }
}

}  // namespace

extern "C" void pinion_norm_rows(const PinionRmsNorm* a, int32_t level, uint64_t begin, uint64_t end) {
#if defined(__x86_64__)
    if (level >= PINION_LEVEL_AVX512) return pinion_norm_rows_avx512(a, begin, end);
    if (level == PINION_LEVEL_AVX2) return pinion_norm_rows_avx2(a, begin, end);
#endif
    (void)level;
    a->dtype == PINION_BF16 ? norm_rows<Bf16>(*a, begin, end) : norm_rows<float>(*a, begin, end);
}

extern "C" void pinion_layer_norm_rows(const PinionLayerNorm* a, int32_t level, uint64_t begin, uint64_t end) {
#if defined(__x86_64__)
    if (level >= PINION_LEVEL_AVX512) return pinion_layer_norm_rows_avx512(a, begin, end);
    if (level == PINION_LEVEL_AVX2) return pinion_layer_norm_rows_avx2(a, begin, end);
#endif
    (void)level;
    a->dtype == PINION_BF16 ? layer_norm_rows<Bf16>(*a, begin, end) : layer_norm_rows<float>(*a, begin, end);
}

extern "C" void pinion_rotate_rows(const PinionRotate* a, int32_t level, uint64_t begin, uint64_t end) {
#if defined(__x86_64__)
    if (level >= PINION_LEVEL_AVX512) return pinion_rotate_rows_avx512(a, begin, end);
    if (level == PINION_LEVEL_AVX2) return pinion_rotate_rows_avx2(a, begin, end);
#endif
    (void)level;
    a->dtype == PINION_BF16 ? rotate_rows<Bf16>(*a, begin, end) : rotate_rows<float>(*a, begin, end);
}

extern "C" void pinion_gate_rows(const PinionGate* a, int32_t level, uint64_t begin, uint64_t end) {
#if defined(__x86_64__)
    // The vector code has no erf.
    if (a->activation != PINION_GATE_GELU_ERF) {
        if (level >= PINION_LEVEL_AVX512) return pinion_gate_rows_avx512(a, begin, end);
        if (level == PINION_LEVEL_AVX2) return pinion_gate_rows_avx2(a, begin, end);
    }
#endif
    (void)level;
    a->dtype == PINION_BF16 ? gate_rows<Bf16>(*a, begin, end) : gate_rows<float>(*a, begin, end);
}
