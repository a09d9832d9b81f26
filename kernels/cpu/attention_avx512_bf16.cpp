// Paged attention on AVX-512 with avx512_bf16: dot products with a bf16 cache take pairs (vdpbf16ps), all else is as on plain
// AVX-512.
#include "attention_tile.h"
#include "isa_avx512.h"

namespace {

// Lanes of two bf16 values; a product of lanes adds both products, in fp32.
struct PairLane {
    using Isa = Avx512;
    using T = Bf16;
    using Kv = Bf16;
    using V = __m512;
    static constexpr uint32_t kPerLane = 2;

    static V load(const Bf16* row) { return _mm512_loadu_ps(row); }
    static V load_part(const Bf16* row, uint32_t n) {
        return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1ull << n) - 1), row));
    }
    static V mac(V a, V b, V sum) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

    // kKeys fp32 weights become kKeys / 2 pairs, in place.
    static void pack_weights(float* row) {
        for (uint32_t k = 0; k < kKeys; k += 32) {
            const __m512bh pairs = _mm512_cvtne2ps_pbh(Avx512::load(row + k + 16), Avx512::load(row + k));
            _mm512_storeu_ps(row + k / 2, (__m512)pairs);
        }
    }

    // Lane i holds element i of two neighbouring keys.
    static V load_values(const Bf16* const* rows, uint64_t offset, uint32_t n) {
        const __mmask16 mask = n >= 16 ? static_cast<__mmask16>(0xffff) : Avx512::mask(n);
        const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, rows[0] + offset));
        const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, rows[1] + offset));
        return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
};

}  // namespace

extern "C" void pinion_paged_attention_avx512_bf16(const PinionAttention* args, uint64_t begin, uint64_t end) {
    if (args->batch.kv_dtype == PINION_BF16) {
        attend_items<PairLane>(*args, begin, end);
    } else {
        attend_plain<Avx512>(*args, begin, end);
    }
}
