// Products with quantised weights on AVX-512 (F, BW, VL) without VNNI.
#include <immintrin.h>

#include "quantized_tile.h"

namespace {

// As on AVX2: no factor passes 128 and no nibble 15, so that no sum of two products passes 32767.
struct Avx512 {
    using V = __m512i;
    using F = __m512;
    struct Weights {
        __m512i magnitude;
        __mmask64 is_negative;
    };
    static constexpr uint32_t kLanes = 16;
    static constexpr uint32_t kVectors = 1;
    static constexpr uint32_t kBytes = 64;
    static constexpr uint32_t kRows = 8;
    // How far ahead of its use a line of weights is asked for: past what the hardware's own prefetch leaves at the end of a
    // page. Not measured.
    static constexpr uint64_t kAheadBytes = 2048;

    static V zero() { return _mm512_setzero_si512(); }
    static V add(V a, V b) { return _mm512_add_epi32(a, b); }
    static void store(int32_t* p, V x) { _mm512_storeu_si512(p, x); }
    static F no_products() { return _mm512_setzero_ps(); }
    static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
    static F add_scaled(F product, V sums, int32_t offset, const float* scales) {
        const F whole = _mm512_cvtepi32_ps(add(sums, _mm512_set1_epi32(offset)));
        return _mm512_add_ps(product, _mm512_mul_ps(whole, _mm512_load_ps(scales)));
    }
    static V load(const uint8_t* p) { return _mm512_load_si512(p); }
    static Weights weights(const uint8_t* p) {
        const V value = load(p);
        return {_mm512_abs_epi8(value), _mm512_movepi8_mask(value)};
    }
    // Four activations in every lane.
    static V spread(const int8_t* x) {
        int32_t four;
        memcpy(&four, x, 4);
        return _mm512_set1_epi32(four);
    }
    static V add_quads(V sum, V unsigned_bytes, V signed_bytes) {
        const V pairs = _mm512_maddubs_epi16(unsigned_bytes, signed_bytes);
        sum = add(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
        asm("" : "+v"(sum));  // as on AVX2: sums are not put off
        return sum;
    }
    static V add_products(V sum, V x, const Weights& w) {
        return add_quads(sum, w.magnitude, _mm512_mask_sub_epi8(x, w.is_negative, zero(), x));
    }

    template <uint32_t R>
    static void add_blocks(const uint8_t* weights, const int8_t* x, uint64_t stride, uint32_t blocks, V (&low)[R][kVectors],
                           V (&high)[R][kVectors]) {
        const V nibble = _mm512_set1_epi8(15);
        V lows[R], highs[R];
        for (uint32_t r = 0; r < R; ++r) lows[r] = highs[r] = zero();
        for (uint32_t block = 0; block < blocks; ++block, weights += kBlockBytes4, x += kBlock) {
#pragma GCC unroll 8
            for (uint32_t p = 0; p < 8; ++p) {
                prefetch(weights + p * 64 + kAheadBytes);
                const V both = load(weights + p * 64);
                const V below = _mm512_and_si512(both, nibble);
                const V above = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
#pragma GCC unroll 8
                for (uint32_t r = 0; r < R; ++r) {
                    const int8_t* four = x + r * stride + p * 4;
                    lows[r] = add_quads(lows[r], below, spread(four));
                    highs[r] = add_quads(highs[r], above, spread(four + 32));
                }
            }
        }
        for (uint32_t r = 0; r < R; ++r) {
            low[r][0] = lows[r];
            high[r][0] = highs[r];
        }
    }
};

}  // namespace

PINION_QUANTIZED_LEVEL(avx512, Avx512)
