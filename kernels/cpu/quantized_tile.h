// Products with quantised weights, written once for every instruction set; `I` has the integer operations of one. Contract:
// kernels/include/pinion_quantized.h. Units that include this are compiled with -ffp-contract=off.
#pragma once
#include "../include/pinion_quantized.h"
#include "attention_internal.h"
#include "product_finish.h"

namespace {

constexpr uint32_t kTile = PINION_TILE_OUTPUTS;
constexpr uint32_t kBlock = PINION_BLOCK_K;
constexpr uint64_t kBlockBytes8 = kTile * kBlock;
constexpr uint64_t kBlockBytes4 = kTile * kBlock / 2;
constexpr uint64_t kScaleBytes = kTile * sizeof(float);

inline void prefetch(const uint8_t* p) { __builtin_prefetch(p, 0, 3); }

inline uint32_t magnitude_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits & 0x7fffffff;
}

inline float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// The scale of integers from -127 to 127, and what values are multiplied with. By the bits of the largest magnitude: those
// of a NaN or an infinity are above all others.
struct Scale {
    float scale;
    float inverse;

    explicit Scale(uint32_t largest_bits) : scale(0), inverse(0) {
        if (largest_bits >= 0x7f800000) {
            scale = from_bits(0x7fc00000);
        } else if (largest_bits >= 0x04800000) {  // 2^-118: below it the inverse could overflow
            scale = from_bits(largest_bits) / 127.0f;
            inverse = 127.0f / from_bits(largest_bits);
        }
    }
};

// Rounds to nearest even by adding 1.5 * 2^23, in whose neighbourhood floats are integers; |value| < 2^22.
inline int32_t rounded_integer(float value) {
    const float shifted = value + 12582912.0f;
    int32_t bits;
    memcpy(&bits, &shifted, 4);
    return bits - 0x4b400000;
}

// Rounds `count` values and adds `offset` to each. Everything is an argument: a byte that is stored may lie anywhere, and a
// loop whose end it might change is not vectorised.
template <class T>
inline void round_all(const T* __restrict x, uint32_t count, float inverse, int32_t offset, uint8_t* __restrict q) {
    for (uint32_t k = 0; k < count; ++k) {
        q[k] = static_cast<uint8_t>(rounded_integer(to_float(x[k]) * inverse) + offset);
    }
}

inline int32_t sum_of(const int8_t* q, uint32_t count) {
    int32_t sum = 0;
    for (uint32_t k = 0; k < count; ++k) sum += q[k];
    return sum;
}

// `offset` is what the level's products of 8-bit weights want on top of each integer.
template <class T>
void quantize_rows(const PinionQuantizeRows& a, int32_t offset, uint64_t begin, uint64_t end) {
    const uint32_t count = a.k, padded = a.k_padded, group = a.group;
    for (uint64_t row = begin; row < end; ++row) {
        const T* x = static_cast<const T*>(a.x) + row * count;
        int8_t* q = a.q + row * padded;
        uint32_t largest = 0;
        for (uint32_t k = 0; k < count; ++k) {
            const uint32_t bits = magnitude_bits(to_float(x[k]));
            largest = bits > largest ? bits : largest;
        }
        const Scale scale(largest);
        a.scales[row] = scale.scale;
        const uint32_t rounded = scale.inverse == 0 ? 0 : count;
        round_all(x, rounded, scale.inverse, offset, reinterpret_cast<uint8_t*>(q));
        memset(q + rounded, offset, padded - rounded);
        if (group == 0) continue;
        int32_t* offsets = a.offsets + row * (padded / group);
        for (uint32_t k = 0; k < padded; k += group) offsets[k / group] = -8 * sum_of(q + k, group);
    }
}

// R rows of one tile of 8-bit weights.
template <class I, uint32_t R>
void tile_of_8(const PinionQuantized& a, uint64_t tile, uint64_t row) {
    using V = typename I::V;
    constexpr uint32_t kVectors = I::kVectors;
    // Enough sums side by side that one's latency does not hold up the stream.
    constexpr uint32_t kApart = R * kVectors >= 4 ? 1 : 4 / (R * kVectors);
    V sums[R][kVectors][kApart];
    // Loops with constant bounds are unrolled, or else the sums lie in memory.
#pragma GCC unroll 8
    for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (uint32_t v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
            for (uint32_t s = 0; s < kApart; ++s) sums[r][v][s] = I::zero();
        }
    }
    const uint64_t stride = a.k_padded;
    const uint8_t* weights = a.weights + tile * (kTile * stride);
    const int8_t* x = a.x + row * stride;
    for (uint32_t k = 0; k < a.k_padded; k += kBlock, weights += kBlockBytes8, x += kBlock) {
#pragma GCC unroll 16
        for (uint32_t p = 0; p < kBlock / 4; ++p) {
            prefetch(weights + p * 64 + I::kAheadBytes);
            typename I::Weights w[kVectors];
#pragma GCC unroll 2
            for (uint32_t v = 0; v < kVectors; ++v) w[v] = I::weights(weights + p * 64 + v * I::kBytes);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < R; ++r) {
                const auto four = I::spread(x + r * stride + p * 4);
#pragma GCC unroll 2
                for (uint32_t v = 0; v < kVectors; ++v) {
                    V& sum = sums[r][v][p % kApart];
                    sum = I::add_products(sum, four, w[v]);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < R; ++r) {
        int32_t found[kTile];
#pragma GCC unroll 2
        for (uint32_t v = 0; v < kVectors; ++v) {
            V sum = sums[r][v][0];
#pragma GCC unroll 4
            for (uint32_t s = 1; s < kApart; ++s) sum = I::add(sum, sums[r][v][s]);
            I::store(found + v * I::kLanes, sum);
        }
        const float* scales = a.scales + tile * kTile;
        const float x_scale = a.x_scales[row + r];
        float products[kTile];
        for (uint32_t j = 0; j < kTile; ++j) products[j] = static_cast<float>(found[j]) * (x_scale * scales[j]);
        finish(a, tile, row + r, products);
    }
}

// Adds one group's sums to the products of R rows. The weights went in as w + 8, which the row's offset takes off.
template <class I, uint32_t R>
inline void add_group(typename I::F (&products)[R][I::kVectors], const typename I::V (&sums)[R][I::kVectors],
                      const int32_t* offsets, uint64_t groups, const uint8_t* scales_at) {
    const float* scales = reinterpret_cast<const float*>(scales_at);
#pragma GCC unroll 8
    for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (uint32_t v = 0; v < I::kVectors; ++v) {
            products[r][v] = I::add_scaled(products[r][v], sums[r][v], offsets[r * groups], scales + v * I::kLanes);
        }
    }
}

// R rows of one tile of 4-bit weights.
template <class I, uint32_t R>
void tile_of_4(const PinionQuantized& a, uint64_t tile, uint64_t row) {
    constexpr uint32_t kVectors = I::kVectors;
    typename I::F products[R][kVectors];
    typename I::V low[R][kVectors], high[R][kVectors];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (uint32_t v = 0; v < kVectors; ++v) products[r][v] = I::no_products();
    }
    const uint32_t blocks = a.group > kBlock ? a.group / kBlock : 1;
    const uint64_t stride = a.k_padded, groups = stride / a.group;
    const uint8_t* weights = a.weights + tile * pinion_tile_bytes(a.k_padded, a.group);
    const int8_t *x = a.x + row * stride, *end = x + stride;
    const int32_t* offsets = a.x_offsets + row * groups;
    for (; x < end; x += kBlock * blocks) {
        // The sums of the lower and the upper 32 K of each block.
        I::template add_blocks<R>(weights, x, stride, blocks, low, high);
        weights += blocks * kBlockBytes4;
        if (a.group == PINION_GROUP_MIN) {
            add_group<I, R>(products, low, offsets, groups, weights);
            add_group<I, R>(products, high, offsets + 1, groups, weights + kScaleBytes);
            weights += 2 * kScaleBytes;
            offsets += 2;
            continue;
        }
#pragma GCC unroll 8
        for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
            for (uint32_t v = 0; v < kVectors; ++v) low[r][v] = I::add(low[r][v], high[r][v]);
        }
        add_group<I, R>(products, low, offsets, groups, weights);
        weights += kScaleBytes;
        offsets += 1;
    }
    for (uint32_t r = 0; r < R; ++r) {
        float found[kTile];
        for (uint32_t v = 0; v < kVectors; ++v) I::store(found + v * I::kLanes, products[r][v]);
        for (uint32_t j = 0; j < kTile; ++j) found[j] *= a.x_scales[row + r];
        finish(a, tile, row + r, found);
    }
}

template <class I, uint32_t R>
inline void rows_of_tile(const PinionQuantized& a, uint64_t tile, uint64_t row) {
    a.group == 0 ? tile_of_8<I, R>(a, tile, row) : tile_of_4<I, R>(a, tile, row);
}

template <class I>
void all_tiles(const PinionQuantized& a, uint64_t begin, uint64_t end) {
    for (uint64_t tile = begin; tile < end; ++tile) {
        uint64_t row = 0;
        if (I::kRows == 8) {
            for (; row + 8 <= a.rows; row += 8) rows_of_tile<I, I::kRows>(a, tile, row);
        }
        for (; row + 4 <= a.rows; row += 4) rows_of_tile<I, 4>(a, tile, row);
        switch (a.rows - row) {
            case 3: rows_of_tile<I, 3>(a, tile, row); break;
            case 2: rows_of_tile<I, 2>(a, tile, row); break;
            case 1: rows_of_tile<I, 1>(a, tile, row); break;
            default: break;
        }
    }
}

inline void quantize_any(const PinionQuantizeRows& a, int32_t offset, uint64_t begin, uint64_t end) {
    a.dtype == PINION_BF16 ? quantize_rows<Bf16>(a, offset, begin, end) : quantize_rows<float>(a, offset, begin, end);
}

}  // namespace

#define PINION_QUANTIZED_LEVEL(LEVEL, ISA)                                                                              \
    extern "C" void pinion_quantized_##LEVEL(const PinionQuantized* a, uint64_t begin, uint64_t end) {                 \
        all_tiles<ISA>(*a, begin, end);                                                                                 \
    }                                                                                                                   \
    extern "C" void pinion_quantize_rows_##LEVEL(const PinionQuantizeRows* a, uint64_t begin, uint64_t end) {          \
        quantize_any(*a, 0, begin, end);                                                                                  \
    }
