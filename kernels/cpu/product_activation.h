// Activations of the 16 outputs of a tile for one row, in the compiler's own vectors, which are as wide as the level's registers,
// and without fused operations, so that the bits are the same on every level. crates/ops/src/epilogue.rs says the same. Include
// only from units compiled with -ffp-contract=off.
#pragma once
#include <string.h>

#include "../include/pinion_activation.h"
#include "../include/pinion_quantized.h"

namespace {

#if defined(__AVX512F__)
constexpr uint32_t kRegister = 64;
#elif defined(__AVX2__)
constexpr uint32_t kRegister = 32;
#else
constexpr uint32_t kRegister = 16;
#endif
typedef float Lanes __attribute__((vector_size(kRegister)));
typedef uint32_t LaneBits __attribute__((vector_size(kRegister)));

// x becomes exp(x), for values up to 0: relative error about 2e-7; 0 below -87, and a NaN stays a NaN.
inline void exp_of_negative(Lanes& x) {
    // Added to a small number, 1.5 * 2^23 rounds it to an integer, which then stands in the lowest bits.
    const Lanes shift = Lanes{} + 12582912.0f;
    const Lanes held = x < -87.0f ? Lanes{} - 87.0f : x;
    const Lanes shifted = held * 1.44269504f + shift;
    const Lanes n = shifted - shift;
    // exp(x) = 2^n e^r with |r| <= ln(2) / 2; ln(2) is split so that n times its first part is exact.
    const Lanes r = held - n * 0.693359375f + n * 2.12194440e-4f;
    Lanes p = r * (1.0f / 720) + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const Lanes power = (Lanes)(((LaneBits)shifted << 23) + 0x3f800000u);
    x = x < -87.0f ? Lanes{} : p * power;
}

inline void magnitude(Lanes& x) { x = (Lanes)((LaneBits)x & 0x7fffffffu); }

// x (1 + tanh u) / 2 = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3), without an exp of a value above 0.
inline void gelu_tanh(Lanes& x) {
    Lanes shrunk = (x + x * x * x * 0.044715f) * 1.5957691216f;
    magnitude(shrunk);
    shrunk = -shrunk;
    exp_of_negative(shrunk);
    x = x * ((x >= 0.0f ? Lanes{} + 1.0f : shrunk) / (1.0f + shrunk));
}

// x (1 + erf(x / sqrt(2))) / 2 by Abramowitz and Stegun's 7.1.26, whose erfc is within 1.5e-7.
inline void gelu_erf(Lanes& x) {
    Lanes shrunk = x * x * -0.5f, t = x;
    exp_of_negative(shrunk);
    magnitude(t);
    t = 1.0f / (1.0f + t * 0.23164189f);
    Lanes p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const Lanes half = p * t * shrunk * 0.5f;
    x = x * (x >= 0.0f ? 1.0f - half : half);
}

// The 16 values at `values` become what the activation makes of them.
inline void activate(float* values, int32_t activation) {
    for (uint32_t j = 0; j < PINION_TILE_OUTPUTS; j += kRegister / sizeof(float)) {
        Lanes x;
        memcpy(&x, values + j, sizeof(x));
        activation == PINION_ACTIVATION_GELU_TANH ? gelu_tanh(x) : gelu_erf(x);
        memcpy(values + j, &x, sizeof(x));
    }
}

}  // namespace
