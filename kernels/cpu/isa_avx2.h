// The vector operations of attention_tile.h, rows_vector.h and walks_vector.h on AVX2 with FMA. Include only from units
// compiled for it.
#pragma once
#include <immintrin.h>

#include "attention_internal.h"
#include "isa_tanh.h"

namespace {

struct Avx2 {
    using V = __m256;
    static constexpr uint32_t kLanes = 8;
    static constexpr int kTileQueries = 4;  // x 2 key vectors: 8 of the 16 registers accumulate
    static constexpr int kTileVectors = 2;

    static V widen(__m128i bf16) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bf16), 16)); }

    static V zero() { return _mm256_setzero_ps(); }
    static V set1(float x) { return _mm256_set1_ps(x); }
    static V load(const float* p) { return _mm256_loadu_ps(p); }
    static V load(const Bf16* p) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
    static V load(const Int8* p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
    // The first n < kLanes elements; zeros follow.
    template <class T>
    static V load_part(const T* p, uint32_t n) {
        T whole[8] = {};
        memcpy(whole, p, n * sizeof(T));
        return load(whole);
    }
    static void store(float* p, V x) { _mm256_storeu_ps(p, x); }
    // Round to nearest even; a NaN stays a NaN.
    static void store(Bf16* p, V x) {
        const __m256i bits = _mm256_castps_si256(x);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        const __m256i high = _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), _mm256_set1_epi32(0x7fc0), nan);
        const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
    }
    template <class T>
    static void store_part(T* p, V x, uint32_t n) {
        T whole[8];
        store(whole, x);
        memcpy(p, whole, n * sizeof(T));
    }
    static V add(V a, V b) { return _mm256_add_ps(a, b); }
    static V sub(V a, V b) { return _mm256_sub_ps(a, b); }
    static V mul(V a, V b) { return _mm256_mul_ps(a, b); }
    static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
    static V max(V a, V b) { return _mm256_max_ps(a, b); }
    static float first(V x) { return _mm256_cvtss_f32(x); }
    static float reduce_add(V x) {
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
    }
    static float reduce_max(V x) {
        __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        s = _mm_max_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
    }
    static V keep_first(V x, uint32_t n) {
        const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i keep = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), index);
        return _mm256_and_ps(x, _mm256_castsi256_ps(keep));
    }

    // exp(x) for x <= 0, relative error about 2e-7; 0 below -87; a NaN stays a NaN (hence the operand order of max).
    static V exp(V x) {
        const V low = set1(-87.0f);
        const V clamped = _mm256_max_ps(low, x);
        const V n = _mm256_round_ps(mul(clamped, set1(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        V r = _mm256_fnmadd_ps(n, set1(0.693359375f), clamped);
        r = _mm256_fnmadd_ps(n, set1(-2.12194440e-4f), r);
        V p = set1(1.0f / 720);
        p = fma(p, r, set1(1.0f / 120));
        p = fma(p, r, set1(1.0f / 24));
        p = fma(p, r, set1(1.0f / 6));
        p = fma(p, r, set1(0.5f));
        p = fma(p, r, set1(1.0f));
        p = fma(p, r, set1(1.0f));
        const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
        const V result = mul(p, _mm256_castsi256_ps(power));
        return _mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_LT_OQ), result);
    }

    static V div(V a, V b) { return _mm256_div_ps(a, b); }
    static V sign(V x) { return _mm256_and_ps(x, set1(-0.0f)); }
    static V join(V bits, V x) { return _mm256_or_ps(bits, x); }
    static V magnitude(V x) { return _mm256_andnot_ps(set1(-0.0f), x); }
    static V tanh(V x) { return tanh_by_exp<Avx2>(x); }

    // 8 x 8 transpose of 32-bit lanes.
    static void transpose(V* r) {
        V t[8];
        for (int i = 0; i < 8; i += 2) {
            t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
            t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
        }
        for (int i = 0; i < 8; i += 4) {
            r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
            r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
            r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
            r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
        }
        for (int i = 0; i < 4; ++i) {
            t[i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x20);
            t[4 + i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x31);
        }
        for (int i = 0; i < 8; ++i) r[i] = t[i];
    }
};

}  // namespace
