// Products with quantised weights on AVX-512 with VNNI.
#include "quantized_avx512.h"

namespace {

// vpdpbusd: its sums wrap and do not saturate, so that they are exact once the offset is taken off.
struct Quads {
    static __m512i add(__m512i sum, __m512i unsigned_bytes, __m512i signed_bytes) {
        return _mm512_dpbusd_epi32(sum, unsigned_bytes, signed_bytes);
    }
};

struct Vnni : Wide {
    using Weights = __m512i;
    static constexpr bool kOffset = true;

    static Weights weights(const uint8_t* p) { return load(p); }
    // The instruction takes one factor unsigned: x + 128, which is x with its sign bit turned.
    static V add_products(V sum, V x, Weights w) {
        return Quads::add(sum, _mm512_xor_si512(x, _mm512_set1_epi8(-128)), w);
    }
    template <uint32_t R>
    static void add_blocks(const uint8_t* weights, const int8_t* x, uint64_t stride, uint32_t blocks, int32_t (*low)[kTile],
                           int32_t (*high)[kTile]) {
        add_blocks_by<Quads, R>(weights, x, stride, blocks, low, high);
    }
};

}  // namespace

PINION_QUANTIZED_LEVEL(vnni, Vnni)
