// The sampler's walks on AVX-512 (F, BW, VL).
#include "isa_avx512.h"
#include "walks_vector.h"

namespace {

struct WalkAvx512 : Avx512 {
    static V keep_where_above(V x, V bound, V value) {
        return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_GT_OQ), value);
    }
    // x * factor, and 0 for an x of 0 whatever the factor is.
    static V times_or_zero(V x, V factor) {
        return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(x, zero(), _CMP_NEQ_UQ), x, factor);
    }
    // 2^n for 1.5 * 2^23 + n.
    static V scale_of(V shifted) {
        const __m512i power = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_castps_si512(set1(12582912.0f)));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(power, _mm512_set1_epi32(127)), 23));
    }

    // Eight lanes of doubles, which take one half after the other.
    struct Sum {
        __m512d lanes_ = _mm512_setzero_pd();
        void add(V x) {
            const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
            lanes_ = _mm512_add_pd(lanes_, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
            lanes_ = _mm512_add_pd(lanes_, _mm512_cvtps_pd(high));
        }
        void store(double* lanes) const { _mm512_storeu_pd(lanes, lanes_); }
    };
};

}  // namespace

PINION_WALKS(avx512, WalkAvx512)
