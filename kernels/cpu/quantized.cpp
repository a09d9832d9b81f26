// Products with quantised weights: the level dispatch and the scalar version, which is the one to read first. Contract:
// kernels/include/pinion_quantized.h.
#include "quantized_tile.h"

#define PINION_QUANTIZED_OF(LEVEL)                                                       \
    extern "C" void pinion_quantized_##LEVEL(const PinionQuantized*, uint64_t, uint64_t); \
    extern "C" void pinion_quantize_rows_##LEVEL(const PinionQuantizeRows*, uint64_t, uint64_t);
PINION_QUANTIZED_OF(avx2)
PINION_QUANTIZED_OF(avx512)
PINION_QUANTIZED_OF(vnni)

namespace {

// Lanes in an array.
struct Scalar {
    struct V {
        int32_t lane[kTile];
    };
    struct F {
        float lane[kTile];
    };
    using Weights = const int8_t*;
    static constexpr uint32_t kLanes = kTile;
    static constexpr uint32_t kVectors = 1;
    static constexpr uint32_t kBytes = 64;
    static constexpr uint32_t kRows = 4;
    static constexpr uint64_t kAheadBytes = 2048;

    static V zero() { return V{}; }
    static V add(V a, const V& b) {
        for (uint32_t j = 0; j < kTile; ++j) a.lane[j] += b.lane[j];
        return a;
    }
    static void store(int32_t* p, const V& x) { memcpy(p, x.lane, sizeof(x.lane)); }
    static F no_products() { return F{}; }
    static void store(float* p, const F& x) { memcpy(p, x.lane, sizeof(x.lane)); }
    static F add_scaled(F product, const V& sums, int32_t offset, const float* scales) {
        for (uint32_t j = 0; j < kTile; ++j) product.lane[j] += static_cast<float>(sums.lane[j] + offset) * scales[j];
        return product;
    }
    static Weights weights(const uint8_t* p) { return reinterpret_cast<const int8_t*>(p); }
    static const int8_t* spread(const int8_t* x) { return x; }
    static V add_products(V sum, const int8_t* x, Weights w) {
        for (uint32_t j = 0; j < kTile; ++j) {
            for (uint32_t i = 0; i < 4; ++i) sum.lane[j] += x[i] * w[j * 4 + i];
        }
        return sum;
    }
    template <uint32_t R>
    static void add_blocks(const uint8_t* weights, const int8_t* x, uint64_t stride, uint32_t blocks, V (&low)[R][kVectors],
                           V (&high)[R][kVectors]) {
        for (uint32_t r = 0; r < R; ++r) {
            low[r][0] = high[r][0] = zero();
            for (uint32_t at = 0; at < blocks * kBlockBytes4; ++at) {
                const uint32_t in_block = at % kBlockBytes4, output = in_block / 4 % kTile;
                const int8_t* values = x + r * stride + at / kBlockBytes4 * kBlock + in_block / 64 * 4 + in_block % 4;
                low[r][0].lane[output] += (weights[at] & 15) * values[0];
                high[r][0].lane[output] += (weights[at] >> 4) * values[32];
            }
        }
    }
};

int32_t detect_level() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
        return __builtin_cpu_supports("avx512vnni") ? PINION_INTEGER_VNNI : PINION_INTEGER_AVX512;
    }
    if (__builtin_cpu_supports("avx2")) return PINION_INTEGER_AVX2;
#endif
    return PINION_INTEGER_SCALAR;
}

}  // namespace

PINION_QUANTIZED_LEVEL(scalar, Scalar)

extern "C" int32_t pinion_integer_level(void) {
    static const int32_t level = detect_level();
    return level;
}

extern "C" uint64_t pinion_tile_bytes(uint32_t k_padded, uint32_t group) {
    if (group == 0) return static_cast<uint64_t>(k_padded) * kTile;
    return static_cast<uint64_t>(k_padded) * kTile / 2 + k_padded / group * kScaleBytes;
}

extern "C" void pinion_quantized(const PinionQuantized* a, int32_t level, uint64_t begin, uint64_t end) {
#if defined(__x86_64__)
    if (level == PINION_INTEGER_VNNI) return pinion_quantized_vnni(a, begin, end);
    if (level == PINION_INTEGER_AVX512) return pinion_quantized_avx512(a, begin, end);
    if (level == PINION_INTEGER_AVX2) return pinion_quantized_avx2(a, begin, end);
#endif
    (void)level;
    pinion_quantized_scalar(a, begin, end);
}

extern "C" void pinion_quantize_rows(const PinionQuantizeRows* a, int32_t level, uint64_t begin, uint64_t end) {
#if defined(__x86_64__)
    if (level == PINION_INTEGER_VNNI) return pinion_quantize_rows_vnni(a, begin, end);
    if (level == PINION_INTEGER_AVX512) return pinion_quantize_rows_avx512(a, begin, end);
    if (level == PINION_INTEGER_AVX2) return pinion_quantize_rows_avx2(a, begin, end);
#endif
    (void)level;
    pinion_quantize_rows_scalar(a, begin, end);
}
