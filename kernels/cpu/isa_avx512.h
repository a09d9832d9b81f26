// The vector operations of attention_tile.h, rows_vector.h and walks_vector.h on AVX-512 (F, BW, VL). Include only from
// units compiled for it.
#pragma once
#include <immintrin.h>

#include "attention_internal.h"
#include "isa_tanh.h"

namespace {

struct Avx512 {
    using V = __m512;
    static constexpr uint32_t kLanes = 16;
    static constexpr int kTileQueries = 8;  // x 2 key vectors: 16 of the 32 registers accumulate
    static constexpr int kTileVectors = 4;

    static __mmask16 mask(uint32_t n) { return static_cast<__mmask16>((1u << n) - 1); }
    static V widen(__m256i bf16) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16)); }

    static V widen_int8(__m128i values) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(values)); }

    // Round to nearest even; a NaN stays a NaN.
    static __m256i narrow(V x) {
        const __m512i bits = _mm512_castps_si512(x);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        return _mm512_cvtepi32_epi16(_mm512_mask_set1_epi32(_mm512_srli_epi32(rounded, 16), nan, 0x7fc0));
    }

    static V zero() { return _mm512_setzero_ps(); }
    static V set1(float x) { return _mm512_set1_ps(x); }
    static V load(const float* p) { return _mm512_loadu_ps(p); }
    static V load(const Bf16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
    static V load(const Int8* p) { return widen_int8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
    // The first n < kLanes elements; zeros follow.
    static V load_part(const Int8* p, uint32_t n) { return widen_int8(_mm_maskz_loadu_epi8(mask(n), p)); }
    static V load_part(const float* p, uint32_t n) { return _mm512_maskz_loadu_ps(mask(n), p); }
    static V load_part(const Bf16* p, uint32_t n) { return widen(_mm256_maskz_loadu_epi16(mask(n), p)); }
    static void store(float* p, V x) { _mm512_storeu_ps(p, x); }
    static void store(Bf16* p, V x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x)); }
    static void store_part(float* p, V x, uint32_t n) { _mm512_mask_storeu_ps(p, mask(n), x); }
    static void store_part(Bf16* p, V x, uint32_t n) { _mm256_mask_storeu_epi16(p, mask(n), narrow(x)); }
    static V add(V a, V b) { return _mm512_add_ps(a, b); }
    static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
    static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
    static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
    static V max(V a, V b) { return _mm512_max_ps(a, b); }
    static float reduce_add(V x) { return _mm512_reduce_add_ps(x); }
    static float reduce_max(V x) { return _mm512_reduce_max_ps(x); }
    static float first(V x) { return _mm512_cvtss_f32(x); }
    static V keep_first(V x, uint32_t n) { return _mm512_maskz_mov_ps(mask(n), x); }

    // exp(x) for x <= 0, relative error about 2e-7; 0 below -87; a NaN stays a NaN (hence the operand order of max).
    static V exp(V x) {
        const V low = set1(-87.0f);
        const V clamped = _mm512_max_ps(low, x);
        const V n = _mm512_roundscale_ps(mul(clamped, set1(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        V r = _mm512_fnmadd_ps(n, set1(0.693359375f), clamped);
        r = _mm512_fnmadd_ps(n, set1(-2.12194440e-4f), r);
        V p = set1(1.0f / 720);
        p = fma(p, r, set1(1.0f / 120));
        p = fma(p, r, set1(1.0f / 24));
        p = fma(p, r, set1(1.0f / 6));
        p = fma(p, r, set1(0.5f));
        p = fma(p, r, set1(1.0f));
        p = fma(p, r, set1(1.0f));
        const V result = _mm512_scalef_ps(p, n);
        return _mm512_mask_mov_ps(result, _mm512_cmp_ps_mask(x, low, _CMP_LT_OQ), zero());
    }

    static V div(V a, V b) { return _mm512_div_ps(a, b); }
    static V sign(V x) { return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MIN))); }
    static V join(V bits, V x) { return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(bits), _mm512_castps_si512(x))); }
    static V magnitude(V x) { return _mm512_abs_ps(x); }
    static V tanh(V x) { return tanh_by_exp<Avx512>(x); }

    // 16 x 16 transpose of 32-bit lanes.
    static void transpose(V* r) {
        V t[16];
        for (int i = 0; i < 16; i += 2) {
            t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
            t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
        }
        const auto low = [](V a, V b) {
            return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
        };
        const auto high = [](V a, V b) {
            return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
        };
        for (int i = 0; i < 16; i += 4) {
            r[i] = low(t[i], t[i + 2]);
            r[i + 1] = high(t[i], t[i + 2]);
            r[i + 2] = low(t[i + 1], t[i + 3]);
            r[i + 3] = high(t[i + 1], t[i + 3]);
        }
        // Now 128-bit piece j of r[4 g + c] holds column 4 j + c of rows 4 g .. 4 g + 3.
        for (int c = 0; c < 4; ++c) {
            const V a = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88);
            const V b = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
            const V d = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd);
            const V e = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
            t[c] = _mm512_shuffle_f32x4(a, b, 0x88);
            t[8 + c] = _mm512_shuffle_f32x4(a, b, 0xdd);
            t[4 + c] = _mm512_shuffle_f32x4(d, e, 0x88);
            t[12 + c] = _mm512_shuffle_f32x4(d, e, 0xdd);
        }
        for (int i = 0; i < 16; ++i) r[i] = t[i];
    }
};

}  // namespace
