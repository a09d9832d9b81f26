// Products with quantised weights on AVX2.
#include <immintrin.h>

#include "quantized_tile.h"

namespace {

// vpmaddubsw adds two products into 16 bits. The factors are within 128 and 127 (the weights by their magnitude, the
// activations with the weights' signs), so that no sum passes 2 * 128 * 127 = 32512, and nothing saturates.
struct Avx2 {
    using V = __m256i;
    using F = __m256;
    struct Weights {
        __m256i magnitude;
        __m256i value;
    };
    static constexpr uint32_t kLanes = 8;
    static constexpr uint32_t kVectors = 2;
    static constexpr uint32_t kBytes = 32;
    static constexpr uint32_t kRows = 4;
    // How far ahead of its use a line of 8-bit and of 4-bit weights is asked for. For one row on a Zen 1 8 bits are faster with
    // 512 to 768 bytes than with 1024 to 4096; with 4 bits, which take twice as long to compute, it is the other way round.
    static constexpr uint64_t kAheadBytes = 640;
    static constexpr uint64_t kAheadBytes4 = 2048;

    static V zero() { return _mm256_setzero_si256(); }
    static V add(V a, V b) { return _mm256_add_epi32(a, b); }
    static void store(int32_t* p, V x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
    static F no_products() { return _mm256_setzero_ps(); }
    static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
    static F add_scaled(F product, V sums, int32_t offset, const float* scales) {
        const F whole = _mm256_cvtepi32_ps(add(sums, _mm256_set1_epi32(offset)));
        return _mm256_add_ps(product, _mm256_mul_ps(whole, _mm256_load_ps(scales)));
    }
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
    static void add_blocks(const uint8_t* weights, const int8_t* x, uint64_t stride, uint32_t blocks, V (&low)[R][kVectors],
                           V (&high)[R][kVectors]) {
        // Up to two rows share what is read of x between both vectors; more rows leave no registers for that.
        constexpr uint32_t kPass = R <= 2 ? kVectors : 1;
#pragma GCC unroll 2
        for (uint32_t first = 0; first < kVectors; first += kPass) {
            add_vectors<R, kPass>(weights + first * kBytes, x, stride, blocks, first, low, high);
        }
    }

    // P vectors of each block, from `first` on.
    template <uint32_t R, uint32_t P>
    static void add_vectors(const uint8_t* weights, const int8_t* x, uint64_t stride, uint32_t blocks, uint32_t first,
                            V (&low)[R][kVectors], V (&high)[R][kVectors]) {
        const V nibble = _mm256_set1_epi8(15);
        V lows[R][P], highs[R][P];
        set_zero<R, P>(lows, highs);
        for (uint32_t block = 0; block < blocks; ++block, weights += kBlockBytes4, x += kBlock) {
            V low_pairs[R][P], high_pairs[R][P];
            set_zero<R, P>(low_pairs, high_pairs);
#pragma GCC unroll 8
            for (uint32_t p = 0; p < 8; ++p) {
                if (first == 0) prefetch(weights + p * 64 + kAheadBytes4);
                V below[P], above[P];
#pragma GCC unroll 2
                for (uint32_t v = 0; v < P; ++v) {
                    const V both = now(load(weights + p * 64 + v * kBytes));
                    below[v] = _mm256_and_si256(both, nibble);
                    above[v] = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
                }
#pragma GCC unroll 4
                for (uint32_t r = 0; r < R; ++r) {
                    const int8_t* four = x + r * stride + p * 4;
                    const V of_low = spread(four), of_high = spread(four + 32);
#pragma GCC unroll 2
                    for (uint32_t v = 0; v < P; ++v) {
                        low_pairs[r][v] = now(_mm256_add_epi16(low_pairs[r][v], _mm256_maddubs_epi16(below[v], of_low)));
                        high_pairs[r][v] = now(_mm256_add_epi16(high_pairs[r][v], _mm256_maddubs_epi16(above[v], of_high)));
                    }
                }
            }
#pragma GCC unroll 4
            for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
                for (uint32_t v = 0; v < P; ++v) {
                    lows[r][v] = add(lows[r][v], pairs(low_pairs[r][v]));
                    highs[r][v] = add(highs[r][v], pairs(high_pairs[r][v]));
                }
            }
        }
#pragma GCC unroll 4
        for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
            for (uint32_t v = 0; v < P; ++v) {
                low[r][first + v] = lows[r][v];
                high[r][first + v] = highs[r][v];
            }
        }
    }

    template <uint32_t R, uint32_t P>
    static void set_zero(V (&a)[R][P], V (&b)[R][P]) {
#pragma GCC unroll 4
        for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
            for (uint32_t v = 0; v < P; ++v) a[r][v] = b[r][v] = zero();
        }
    }
};

}  // namespace

PINION_QUANTIZED_LEVEL(avx2, Avx2)
