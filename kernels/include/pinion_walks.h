// Contract of the walks of Pinion's CPU sampler over a row of logits. Plain C: raw pointers, no torch, no allocation.
//
//   pinion_finite_max  the largest value of a row, if all of them are finite
//   pinion_weigh       weights[i] = e^((x[i] - max) * inverse), and the sum of the weights
//
// x [count] and weights [count] are fp32, apart and of any alignment; weights may be null, then only the sum is wanted.
// max is at least every x[i]; where x[i] = max the weight is 1, whatever inverse is. e^y is the series of
// crates/ops/src/walks.rs: `exp_nonpositive`, each operation of it rounded by itself, and the sum is of doubles in
// eight lanes, lane i % 8 for element i, which are added up from the first: on every level the bits are those of the
// twin there, and a zero from pinion_finite_max is positive. Bytes moved: 4 * count read, and 4 * count written where
// there are weights. There is no scalar version here: the plain twin in Rust is what runs where a machine has neither
// AVX2 nor AVX-512. `level` is PINION_LEVEL_AVX2 or above and at most pinion_best_level().
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// 1 and the largest value in *max, or 0 if a value is a NaN or an infinity or count is 0; *max is then undefined.
int32_t pinion_finite_max(const float* x, uint64_t count, int32_t level, float* max);

double pinion_weigh(const float* x, uint64_t count, float max, float inverse, int32_t level, float* weights);

#ifdef __cplusplus
}
#endif
