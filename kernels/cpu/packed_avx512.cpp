// Products with packed floating-point weights on AVX-512.
#include <immintrin.h>

#include "flush_denormals.h"
#include "packed_tile.h"

namespace {

struct Avx512 {
    using V = __m512;
    static constexpr uint32_t kLanes = 16;
    static constexpr uint32_t kVectors = 1;
    static constexpr uint32_t kRows = 8;    // x 2 sums: 16 of the 32 registers
    static constexpr uint32_t kGroup = 12;  // sums, of 32 registers
    static constexpr uint32_t kAbreast = 1;
    // How far ahead of its use a line of weights is asked for: past what the hardware's own prefetch leaves at the end of a
    // page. Not measured, nor are tiles abreast.
    static constexpr uint64_t kAheadBytes = 2048;
    static constexpr uint64_t kAheadBytesAbreast = kAheadBytes;

    static V load(const float* p) { return _mm512_load_ps(p); }
    static void store(float* p, V x) { _mm512_store_ps(p, x); }
    static V spread(const float* x) { return _mm512_set1_ps(*x); }
    static V spread(const Bf16* x) { return _mm512_set1_ps(to_float(*x)); }
    static V add(V a, V b) { return _mm512_add_ps(a, b); }
    static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
    using Flush = FlushDenormals;
    static V flushed_fma(V a, V b, V c) { return fma(a, b, c); }

    static V even(Bf16Pairs, const uint8_t* p, uint32_t) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_load_si512(p), 16));
    }
    static V odd(Bf16Pairs, const uint8_t* p, uint32_t) {
        const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000));
        return _mm512_castsi512_ps(_mm512_and_si512(_mm512_load_si512(p), high));
    }
    static V halves(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p))); }
    static V even(HalfPairs, const uint8_t* p, uint32_t) { return halves(p); }
    static V odd(HalfPairs, const uint8_t* p, uint32_t) { return halves(p + 32); }
    static V even(FloatPairs, const uint8_t* p, uint32_t) { return load(reinterpret_cast<const float*>(p)); }
    static V odd(FloatPairs, const uint8_t* p, uint32_t) { return load(reinterpret_cast<const float*>(p) + 16); }
};

}  // namespace

PINION_PACKED_LEVEL(avx512, Avx512)
