// Products with quantised weights on AVX-512 (F, BW, VL) without VNNI.
#include "quantized_avx512.h"

namespace {

// Two steps for what VNNI does in one. The caller sees to it that no sum of two products passes 32767.
struct Pairs {
    static __m512i add(__m512i sum, __m512i unsigned_bytes, __m512i signed_bytes) {
        const __m512i pairs = _mm512_maddubs_epi16(unsigned_bytes, signed_bytes);
        sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
        asm("" : "+v"(sum));  // as on AVX2: sums are not put off
        return sum;
    }
};

struct Avx512 : Wide {
    struct Weights {
        __m512i magnitude;
        __mmask64 is_negative;
    };
    static constexpr bool kOffset = false;

    static Weights weights(const uint8_t* p) {
        const V value = load(p);
        return {_mm512_abs_epi8(value), _mm512_movepi8_mask(value)};
    }
    // As on AVX2: both factors are within 127.
    static V add_products(V sum, V x, const Weights& w) {
        return Pairs::add(sum, w.magnitude, _mm512_mask_sub_epi8(x, w.is_negative, zero(), x));
    }
    template <uint32_t R>
    static void add_blocks(const uint8_t* weights, const int8_t* x, uint64_t stride, uint32_t blocks, int32_t (*low)[kTile],
                           int32_t (*high)[kTile]) {
        add_blocks_by<Pairs, R>(weights, x, stride, blocks, low, high);
    }
};

}  // namespace

PINION_QUANTIZED_LEVEL(avx512, Avx512)
