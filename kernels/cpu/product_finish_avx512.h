// How a product ends on AVX-512: product_finish.h for 16 outputs at once. Include only from units compiled for it.
#pragma once
#include "../include/pinion_quantized.h"
#include "isa_avx512.h"
#include "product_activation.h"

namespace {

inline __m512 residual_lanes(const float* p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }
inline __m512 residual_lanes(const Bf16* p, __mmask16 mask) { return Avx512::widen(_mm256_maskz_loadu_epi16(mask, p)); }
inline void store_lanes(float* p, __mmask16 mask, __m512 values) { _mm512_mask_storeu_ps(p, mask, values); }
inline void store_lanes(Bf16* p, __mmask16 mask, __m512 values) {
    _mm256_mask_storeu_epi16(p, mask, Avx512::narrow(values));
}

// Takes the 16 products of one row through bias, activation and residual and stores those that exist.
template <class T, class Args>
inline void finish_lanes_as(const Args& a, uint64_t tile, uint64_t row, __m512 values) {
    const uint32_t first = static_cast<uint32_t>(tile) * PINION_TILE_OUTPUTS, left = a.n - first;
    const __mmask16 mask = left < PINION_TILE_OUTPUTS ? Avx512::mask(left) : static_cast<__mmask16>(0xffff);
    if (a.bias != nullptr) values = _mm512_add_ps(values, _mm512_maskz_loadu_ps(mask, a.bias + first));
    if (a.activation != PINION_ACTIVATION_NONE) {
        alignas(64) float all[PINION_TILE_OUTPUTS];
        _mm512_store_ps(all, values);
        activate(all, a.activation);
        values = _mm512_load_ps(all);
    }
    const uint64_t at = row * a.n + first;
    if (a.residual != nullptr) values = _mm512_add_ps(values, residual_lanes(static_cast<const T*>(a.residual) + at, mask));
    store_lanes(static_cast<T*>(a.out) + at, mask, values);
}

template <class Args>
inline void finish_lanes(const Args& a, uint64_t tile, uint64_t row, __m512 values) {
    a.dtype == PINION_BF16 ? finish_lanes_as<Bf16>(a, tile, row, values) : finish_lanes_as<float>(a, tile, row, values);
}

}  // namespace
