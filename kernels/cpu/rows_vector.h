// The row kernels over vectors, written once for every instruction set. Contract: kernels/include/pinion_rows.h.
#pragma once
#include "../include/pinion_rows.h"
#include "attention_internal.h"

namespace {

template <class I, class T>
inline typename I::V load_some(const T* p, uint32_t n) {
    return n >= I::kLanes ? I::load(p) : I::load_part(p, n);
}

template <class I, class T>
inline void store_some(T* p, typename I::V x, uint32_t n) {
    if (n >= I::kLanes) {
        I::store(p, x);
    } else {
        I::store_part(p, x, n);
    }
}

template <class I>
inline typename I::V rounded(typename I::V x, float) {
    return x;
}

template <class I>
inline typename I::V rounded(typename I::V x, Bf16) {
    Bf16 stored[I::kLanes];
    I::store(stored, x);
    return I::load(stored);
}

template <class I, class T>
void norm_rows(const PinionRmsNorm& a, uint64_t begin, uint64_t end) {
    using V = typename I::V;
    for (uint64_t row = begin; row < end; ++row) {
        const uint64_t token = row / a.groups, column = row % a.groups * a.width;
        const T* x = static_cast<const T*>(a.x) + token * a.x_stride + column;
        T* out = static_cast<T*>(a.out) + token * a.out_stride + column;
        V squares = I::zero();
        for (uint32_t d = 0; d < a.width; d += I::kLanes) {
            const V value = load_some<I>(x + d, a.width - d);
            squares = I::fma(value, value, squares);
        }
        const float mean = I::reduce_add(squares) / static_cast<float>(a.width);
        const V inverse = I::set1(1.0f / __builtin_sqrtf(mean + a.epsilon));
        for (uint32_t d = 0; d < a.width; d += I::kLanes) {
            const uint32_t left = a.width - d;
            V weight = load_some<I>(a.weight + d, left);
            V value = I::mul(load_some<I>(x + d, left), inverse);
            if (a.order == PINION_RMS) value = rounded<I>(value, T());
            if (a.order == PINION_RMS_ONE_PLUS) weight = I::add(I::set1(1.0f), weight);
            store_some<I>(out + d, I::mul(value, weight), left);
        }
    }
}

template <class I, class T>
void layer_norm_rows(const PinionLayerNorm& a, uint64_t begin, uint64_t end) {
    using V = typename I::V;
    for (uint64_t row = begin; row < end; ++row) {
        const T* x = static_cast<const T*>(a.x) + row * a.width;
        T* out = static_cast<T*>(a.out) + row * a.width;
        V sum = I::zero(), squares = I::zero();
        for (uint32_t d = 0; d < a.width; d += I::kLanes) sum = I::add(sum, load_some<I>(x + d, a.width - d));
        const V mean = I::set1(I::reduce_add(sum) / static_cast<float>(a.width));
        for (uint32_t d = 0; d < a.width; d += I::kLanes) {
            const uint32_t left = a.width - d;
            V apart = I::sub(load_some<I>(x + d, left), mean);
            if (left < I::kLanes) apart = I::keep_first(apart, left);
            squares = I::fma(apart, apart, squares);
        }
        const float variance = I::reduce_add(squares) / static_cast<float>(a.width);
        const V inverse = I::set1(1.0f / __builtin_sqrtf(variance + a.epsilon));
        for (uint32_t d = 0; d < a.width; d += I::kLanes) {
            const uint32_t left = a.width - d;
            const V weight = load_some<I>(a.weight + d, left), bias = load_some<I>(a.bias + d, left);
            const V normed = I::mul(I::sub(load_some<I>(x + d, left), mean), inverse);
            store_some<I>(out + d, I::fma(normed, weight, bias), left);
        }
    }
}

template <class I, class T>
void rotate_rows(const PinionRotate& a, uint64_t begin, uint64_t end) {
    using V = typename I::V;
    const uint32_t half = a.rotary_dim / 2;
    for (uint64_t token = begin; token < end; ++token) {
        const float* cosine = a.table + token * a.rotary_dim;
        const float* sine = cosine + half;
        T* x = static_cast<T*>(a.x) + token * a.stride;
        for (uint32_t head = 0; head < a.heads; ++head, x += a.head_dim) {
            for (uint32_t d = 0; d < half; d += I::kLanes) {
                const uint32_t left = half - d;
                const V c = load_some<I>(cosine + d, left), s = load_some<I>(sine + d, left);
                const V first = load_some<I>(x + d, left), second = load_some<I>(x + half + d, left);
                store_some<I>(x + d, I::sub(I::mul(first, c), I::mul(second, s)), left);
                store_some<I>(x + half + d, I::add(I::mul(second, c), I::mul(first, s)), left);
            }
        }
    }
}

template <class I>
inline typename I::V silu(typename I::V x) {
    using V = typename I::V;
    // sigmoid(x) = 1 / (1 + e^-x), by an exp of an argument up to 0: e^-|x| or its share of the sum.
    const V shrunk = I::exp(I::mul(I::magnitude(x), I::set1(-1.0f)));
    const V large = I::div(I::set1(1.0f), I::add(I::set1(1.0f), shrunk));
    // x * sigmoid(x) = max(x, 0) * large - max(-x, 0) * shrunk * large
    const V above = I::max(x, I::zero()), below = I::max(I::sub(I::zero(), x), I::zero());
    return I::sub(I::mul(above, large), I::mul(I::mul(below, shrunk), large));
}

template <class I>
inline typename I::V gelu_tanh(typename I::V x) {
    using V = typename I::V;
    const V cube = I::mul(I::mul(x, x), x);
    const V inner = I::mul(I::set1(0.7978845608f), I::fma(I::set1(0.044715f), cube, x));
    return I::mul(I::mul(I::set1(0.5f), x), I::add(I::set1(1.0f), I::tanh(inner)));
}

template <class I, class T>
void gate_rows(const PinionGate& a, uint64_t begin, uint64_t end) {
    using V = typename I::V;
    for (uint64_t row = begin; row < end; ++row) {
        const T* gate = static_cast<const T*>(a.x) + row * 2 * a.inner;
        const T* up = gate + a.inner;
        T* out = static_cast<T*>(a.out) + row * a.inner;
        for (uint32_t d = 0; d < a.inner; d += I::kLanes) {
            const uint32_t left = a.inner - d;
            const V x = load_some<I>(gate + d, left);
            const V value = a.activation == PINION_GATE_SILU ? silu<I>(x) : gelu_tanh<I>(x);
            store_some<I>(out + d, I::mul(value, load_some<I>(up + d, left)), left);
        }
    }
}

}  // namespace

// Defines the entries of one level.
#define PINION_ROWS(LEVEL, ISA)                                                                                      \
    extern "C" void pinion_norm_rows_##LEVEL(const PinionRmsNorm* a, uint64_t begin, uint64_t end) {                 \
        a->dtype == PINION_BF16 ? norm_rows<ISA, Bf16>(*a, begin, end) : norm_rows<ISA, float>(*a, begin, end);       \
    }                                                                                                                \
    extern "C" void pinion_layer_norm_rows_##LEVEL(const PinionLayerNorm* a, uint64_t begin, uint64_t end) {         \
        a->dtype == PINION_BF16 ? layer_norm_rows<ISA, Bf16>(*a, begin, end)                                         \
                                : layer_norm_rows<ISA, float>(*a, begin, end);                                       \
    }                                                                                                                \
    extern "C" void pinion_rotate_rows_##LEVEL(const PinionRotate* a, uint64_t begin, uint64_t end) {                \
        a->dtype == PINION_BF16 ? rotate_rows<ISA, Bf16>(*a, begin, end) : rotate_rows<ISA, float>(*a, begin, end);   \
    }                                                                                                                \
    extern "C" void pinion_gate_rows_##LEVEL(const PinionGate* a, uint64_t begin, uint64_t end) {                    \
        a->dtype == PINION_BF16 ? gate_rows<ISA, Bf16>(*a, begin, end) : gate_rows<ISA, float>(*a, begin, end);       \
    }
