// The level dispatch of the sampler's walks. Contract: kernels/include/pinion_walks.h.
#include "../include/pinion_walks.h"

#include "../include/pinion_attention.h"

#define PINION_WALKS_OF(LEVEL)                                                         \
    extern "C" int32_t pinion_finite_max_##LEVEL(const float*, uint64_t, float*);      \
    extern "C" double pinion_weigh_##LEVEL(const float*, uint64_t, float, float, float*);
PINION_WALKS_OF(avx2)
PINION_WALKS_OF(avx512)

extern "C" int32_t pinion_finite_max(const float* x, uint64_t count, int32_t level, float* max) {
    if (level >= PINION_LEVEL_AVX512) return pinion_finite_max_avx512(x, count, max);
    return pinion_finite_max_avx2(x, count, max);
}

extern "C" double pinion_weigh(const float* x, uint64_t count, float max, float inverse, int32_t level,
                               float* weights) {
    if (level >= PINION_LEVEL_AVX512) return pinion_weigh_avx512(x, count, max, inverse, weights);
    return pinion_weigh_avx2(x, count, max, inverse, weights);
}
