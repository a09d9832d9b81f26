// How every product ends: bias, activation, residual, rounding. `Args` is the product's; its out and residual are [rows, n] of
// dtype.
#pragma once
#include "../include/pinion_quantized.h"
#include "attention_internal.h"
#include "product_activation.h"

namespace {

// Takes the 16 products of one row through bias, activation and residual and stores those that exist.
template <class T, class Args>
inline void finish_as(const Args& a, uint64_t tile, uint64_t row, const float* products) {
    constexpr uint32_t kOutputs = PINION_TILE_OUTPUTS;
    const uint32_t first = static_cast<uint32_t>(tile) * kOutputs;
    T* out = static_cast<T*>(a.out) + row * a.n + first;
    const T* residual = a.residual == nullptr ? nullptr : static_cast<const T*>(a.residual) + row * a.n + first;
    float values[kOutputs];
    memcpy(values, products, sizeof(values));
    const uint32_t count = smaller(kOutputs, a.n - first);
    if (count == kOutputs) {
        if (a.bias != nullptr) {
            for (uint32_t j = 0; j < kOutputs; ++j) values[j] += a.bias[first + j];
        }
        if (a.activation != PINION_ACTIVATION_NONE) activate(values, a.activation);
        if (residual != nullptr) {
            for (uint32_t j = 0; j < kOutputs; ++j) values[j] += to_float(residual[j]);
        }
        for (uint32_t j = 0; j < kOutputs; ++j) from_float(values[j], &out[j]);
        return;
    }
    for (uint32_t j = 0; j < count && a.bias != nullptr; ++j) values[j] += a.bias[first + j];
    if (a.activation != PINION_ACTIVATION_NONE) activate(values, a.activation);
    for (uint32_t j = 0; j < count; ++j) {
        if (residual != nullptr) values[j] += to_float(residual[j]);
        from_float(values[j], &out[j]);
    }
}

template <class Args>
inline void finish(const Args& a, uint64_t tile, uint64_t row, const float* products) {
    a.dtype == PINION_BF16 ? finish_as<Bf16>(a, tile, row, products) : finish_as<float>(a, tile, row, products);
}

}  // namespace
