// Products with quantised weights on AVX2.
#include <immintrin.h>

#include "quantized_tile.h"

namespace {

// vpmaddubsw adds two products into 16 bits. The factors are within 128 and 127 (the weights by their magnitude, the
// activations with the weights' signs), so that no sum passes 2 * 128 * 127 = 32512, and nothing saturates.
struct Avx2 {
    using V = __m256i;
    struct Weights {
        __m256i magnitude;
        __m256i value;
    };
    static constexpr uint32_t kLanes = 8;
    static constexpr uint32_t kVectors = 2;
    static constexpr uint32_t kBytes = 32;
    static constexpr uint32_t kRows = 4;

    static V zero() { return _mm256_setzero_si256(); }
    static V add(V a, V b) { return _mm256_add_epi32(a, b); }
    static void store(int32_t* p, V x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
    static V load(const uint8_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }
    static Weights weights(const uint8_t* p) {
        const V value = load(p);
        return {_mm256_abs_epi8(value), value};
    }
    // Four activations in every lane.
    static V spread(const int8_t* x) {
        int32_t four;
        memcpy(&four, x, 4);
        return _mm256_set1_epi32(four);
    }
    static V pairs(V sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
    // Keeps the compiler from putting off sums, for which it has no registers.
    static V now(V x) {
        asm("" : "+x"(x));
        return x;
    }
    static V add_products(V sum, V x, const Weights& w) {
        return now(add(sum, pairs(_mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(x, w.value)))));
    }

    // Nibbles are at most 15, so eight sums of two products are at most 8 * 2 * 15 * 127 = 30480 and fit 16 bits.
    template <uint32_t R>
    static void add_blocks(const uint8_t* weights, const int8_t* x, uint64_t stride, uint32_t blocks, int32_t (*low)[kTile],
                           int32_t (*high)[kTile]) {
        const V nibble = _mm256_set1_epi8(15);
        for (uint32_t v = 0; v < kVectors; ++v) {
            V lows[R], highs[R];
            for (uint32_t r = 0; r < R; ++r) lows[r] = highs[r] = zero();
            for (uint32_t block = 0; block < blocks; ++block) {
                const uint8_t* from = weights + block * kBlockBytes4 + v * kBytes;
                const int8_t* values = x + block * kBlock;
                V low_pairs[R], high_pairs[R];
                for (uint32_t r = 0; r < R; ++r) low_pairs[r] = high_pairs[r] = zero();
#pragma GCC unroll 8
                for (uint32_t p = 0; p < 8; ++p) {
                    if (v == 0) prefetch(from + p * 64 + kAheadBytes);
                    const V both = load(from + p * 64);
                    const V below = _mm256_and_si256(both, nibble);
                    const V above = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
#pragma GCC unroll 4
                    for (uint32_t r = 0; r < R; ++r) {
                        const int8_t* four = values + r * stride + p * 4;
                        low_pairs[r] = now(_mm256_add_epi16(low_pairs[r], _mm256_maddubs_epi16(below, spread(four))));
                        high_pairs[r] = now(_mm256_add_epi16(high_pairs[r], _mm256_maddubs_epi16(above, spread(four + 32))));
                    }
                }
                for (uint32_t r = 0; r < R; ++r) {
                    lows[r] = add(lows[r], pairs(low_pairs[r]));
                    highs[r] = add(highs[r], pairs(high_pairs[r]));
                }
            }
            for (uint32_t r = 0; r < R; ++r) {
                store(low[r] + v * kLanes, lows[r]);
                store(high[r] + v * kLanes, highs[r]);
            }
        }
    }
};

}  // namespace

PINION_QUANTIZED_LEVEL(avx2, Avx2)
