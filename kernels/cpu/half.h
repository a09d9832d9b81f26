// IEEE half precision to fp32, without instructions for it.
#pragma once
#include <stdint.h>
#include <string.h>

namespace {

inline float half_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
    const uint32_t exponent = half >> 10 & 31, mantissa = half & 0x3ff;
    if (exponent == 0) {
        const float value = static_cast<float>(mantissa) * (1.0f / 16777216);  // 2^-24
        return sign != 0 ? -value : value;
    }
    const uint32_t raised = exponent == 31 ? 255 : exponent + 112;
    const uint32_t bits = sign | raised << 23 | mantissa << 13;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

}  // namespace
