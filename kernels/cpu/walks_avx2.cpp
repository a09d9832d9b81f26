// The sampler's walks on AVX2.
#include "isa_avx2.h"
#include "walks_vector.h"

namespace {

struct WalkAvx2 : Avx2 {
    static V keep_where_above(V x, V bound, V value) {
        return _mm256_and_ps(_mm256_cmp_ps(x, bound, _CMP_GT_OQ), value);
    }
    // x * factor, and 0 for an x of 0 whatever the factor is.
    static V times_or_zero(V x, V factor) {
        return _mm256_and_ps(_mm256_cmp_ps(x, zero(), _CMP_NEQ_UQ), _mm256_mul_ps(x, factor));
    }
    // 2^n for 1.5 * 2^23 + n.
    static V scale_of(V shifted) {
        const __m256i power = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(set1(12582912.0f)));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(power, _mm256_set1_epi32(127)), 23));
    }

    // Eight lanes of doubles.
    struct Sum {
        __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
        void add(V x) {
            low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
            high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
        }
        void store(double* lanes) const {
            _mm256_storeu_pd(lanes, low);
            _mm256_storeu_pd(lanes + 4, high);
        }
    };
};

}  // namespace

PINION_WALKS(avx2, WalkAvx2)
