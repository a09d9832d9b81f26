// Products with packed floating-point weights on AVX2 with FMA, and F16C for fp16.
#include <immintrin.h>

#include "flush_denormals.h"
#include "packed_tile.h"

namespace {

struct Avx2 {
    using V = __m256;
    static constexpr uint32_t kLanes = 8;
    static constexpr uint32_t kVectors = 2;
    static constexpr uint32_t kRows = 3;   // x 2 vectors x 2 sums: 12 of the 16 registers
    static constexpr uint32_t kGroup = 6;  // x 2 vectors: 12
    static constexpr uint32_t kAbreast = 2;  // x 2 vectors x 2 sums: 8
    // How far ahead of its use a line of weights is asked for, of one tile and of each of several. On a Zen 1 512 to 1024 and
    // 384 to 512 bytes read the fastest.
    static constexpr uint64_t kAheadBytes = 640;
    static constexpr uint64_t kAheadBytesAbreast = 448;

    static V load(const float* p) { return _mm256_load_ps(p); }
    static void store(float* p, V x) { _mm256_store_ps(p, x); }
    static V spread(const float* x) { return _mm256_broadcast_ss(x); }
    static V spread(const Bf16* x) { return _mm256_set1_ps(to_float(*x)); }
    static V add(V a, V b) { return _mm256_add_ps(a, b); }
    static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
    using Flush = FlushDenormals;
    static V flushed_fma(V a, V b, V c) { return fma(a, b, c); }

    static __m256i pairs(const uint8_t* p, uint32_t v) {
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(p + v * 32));
    }
    static V even(Bf16Pairs, const uint8_t* p, uint32_t v) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs(p, v), 16)); }
    static V odd(Bf16Pairs, const uint8_t* p, uint32_t v) {
        return _mm256_castsi256_ps(_mm256_and_si256(pairs(p, v), _mm256_set1_epi32(static_cast<int>(0xffff0000))));
    }
    static V halves(const uint8_t* p) { return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p))); }
    static V even(HalfPairs, const uint8_t* p, uint32_t v) { return halves(p + v * 16); }
    static V odd(HalfPairs, const uint8_t* p, uint32_t v) { return halves(p + 32 + v * 16); }
    static V even(FloatPairs, const uint8_t* p, uint32_t v) { return load(reinterpret_cast<const float*>(p) + v * 8); }
    static V odd(FloatPairs, const uint8_t* p, uint32_t v) { return load(reinterpret_cast<const float*>(p) + 16 + v * 8); }
};

}  // namespace

PINION_PACKED_LEVEL(avx2, Avx2)
