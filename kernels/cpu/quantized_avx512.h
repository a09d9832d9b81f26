// What both AVX-512 levels of the products with quantised weights have alike. `Dot` adds to each of 16 sums the products of
// four unsigned and four signed bytes.
#pragma once
#include <immintrin.h>

#include "quantized_tile.h"

namespace {

struct Wide {
    using V = __m512i;
    static constexpr uint32_t kLanes = 16;
    static constexpr uint32_t kVectors = 1;
    static constexpr uint32_t kBytes = 64;
    static constexpr uint32_t kRows = 8;

    static V zero() { return _mm512_setzero_si512(); }
    static V add(V a, V b) { return _mm512_add_epi32(a, b); }
    static void store(int32_t* p, V x) { _mm512_storeu_si512(p, x); }
    static V load(const uint8_t* p) { return _mm512_load_si512(p); }
    // Four activations in every lane.
    static V spread(const int8_t* x) {
        int32_t four;
        memcpy(&four, x, 4);
        return _mm512_set1_epi32(four);
    }

    template <class Dot, uint32_t R>
    static void add_blocks_by(const uint8_t* weights, const int8_t* x, uint64_t stride, uint32_t blocks,
                              int32_t (*low)[kTile], int32_t (*high)[kTile]) {
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
                    lows[r] = Dot::add(lows[r], below, spread(four));
                    highs[r] = Dot::add(highs[r], above, spread(four + 32));
                }
            }
        }
        for (uint32_t r = 0; r < R; ++r) {
            store(low[r], lows[r]);
            store(high[r], highs[r]);
        }
    }
};

}  // namespace
