// Products with packed floating-point weights, written once for every instruction set; `I` has the operations of one, `W` says how
// weights stand. Contract: kernels/include/pinion_packed.h. Units that include this are compiled with -ffp-contract=off.
#pragma once
#include "../include/pinion_packed.h"
#include "attention_internal.h"
#include "product_finish.h"

namespace {

constexpr uint32_t kTile = PINION_TILE_OUTPUTS;

// Rows for which a tile's weights are read once.
constexpr uint32_t kRowBlock = PINION_PACKED_ROWS;

// Pairs of K whose weights stay in L1 (8 KB in bf16) while all rows of a block pass them.
constexpr uint32_t kPairBlock = 128;

// How far ahead of its use a line of weights is asked for: past what the hardware's own prefetch leaves at the end of a page.
constexpr uint64_t kAheadBytes = 2048;

struct Bf16Pairs {
    static constexpr uint32_t kBytes = 64;
};
struct HalfPairs {
    static constexpr uint32_t kBytes = 64;
};
struct FloatPairs {
    static constexpr uint32_t kBytes = 128;
};

// Sums of one row over the even and over the odd K; over all K in `even` if x is in bf16.
struct alignas(64) Sums {
    float even[kTile];
    float odd[kTile];
};

// Adds `pairs` of K to the sums of R rows.
template <class I, class W, class X, uint32_t R>
inline void add_pairs(const uint8_t* weights, const X* x, uint64_t stride, uint32_t pairs, Sums* sums) {
    using V = typename I::V;
    constexpr bool kOneSum = sizeof(X) == sizeof(Bf16);
    constexpr uint32_t kVectors = I::kVectors;
    V even[R][kVectors], odd[R][kVectors];
    // Loops with constant bounds are unrolled, or else the sums lie in memory.
#pragma GCC unroll 8
    for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (uint32_t v = 0; v < kVectors; ++v) {
            even[r][v] = I::load(sums[r].even + v * I::kLanes);
            odd[r][v] = I::load(sums[r].odd + v * I::kLanes);
        }
    }
    for (uint32_t pair = 0; pair < pairs; ++pair, weights += W::kBytes, x += 2) {
#pragma GCC unroll 2
        for (uint32_t line = 0; line < W::kBytes; line += 64) __builtin_prefetch(weights + kAheadBytes + line, 0, 3);
        // One half of the pair after the other: the sums of three rows leave four registers of AVX2.
        V w[kVectors];
#pragma GCC unroll 2
        for (uint32_t v = 0; v < kVectors; ++v) w[v] = I::odd(W(), weights, v);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < R; ++r) {
            const V value = I::spread(x + r * stride + 1);
#pragma GCC unroll 2
            for (uint32_t v = 0; v < kVectors; ++v) {
                V& sum = kOneSum ? even[r][v] : odd[r][v];
                sum = kOneSum ? I::flushed_fma(value, w[v], sum) : I::fma(value, w[v], sum);
            }
        }
#pragma GCC unroll 2
        for (uint32_t v = 0; v < kVectors; ++v) w[v] = I::even(W(), weights, v);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < R; ++r) {
            const V value = I::spread(x + r * stride);
#pragma GCC unroll 2
            for (uint32_t v = 0; v < kVectors; ++v) {
                V& sum = even[r][v];
                sum = kOneSum ? I::flushed_fma(value, w[v], sum) : I::fma(value, w[v], sum);
            }
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (uint32_t v = 0; v < kVectors; ++v) {
            I::store(sums[r].even + v * I::kLanes, even[r][v]);
            I::store(sums[r].odd + v * I::kLanes, odd[r][v]);
        }
    }
}

// Takes as many of the rows that are left as go at once, and says how many.
template <class I, class W, class X>
inline uint32_t some_rows(const uint8_t* weights, const X* x, uint64_t stride, uint32_t pairs, Sums* sums, uint32_t left) {
    if constexpr (I::kRows == 8) {
        if (left >= 8) return add_pairs<I, W, X, 8>(weights, x, stride, pairs, sums), 8;
        if (left >= 4) return add_pairs<I, W, X, 4>(weights, x, stride, pairs, sums), 4;
    }
    if constexpr (I::kRows == 3) {
        // Two and two are quicker than three and one.
        if (left == 3 || left > 4) return add_pairs<I, W, X, 3>(weights, x, stride, pairs, sums), 3;
    }
    if (left >= 2) return add_pairs<I, W, X, 2>(weights, x, stride, pairs, sums), 2;
    return add_pairs<I, W, X, 1>(weights, x, stride, pairs, sums), 1;
}

// The sums of `rows` rows of one tile. Not inlined, so that all of it is done while denormal numbers are flushed.
template <class I, class W, class X>
__attribute__((noinline)) void sum_rows(const uint8_t* weights, const X* x, uint32_t k, uint32_t rows, Sums* sums) {
    const uint64_t stride = k;
    const uint32_t pairs = k / 2, piece = rows <= I::kRows ? pairs : kPairBlock;
    memset(sums, 0, rows * sizeof(Sums));
    for (uint32_t at = 0; at < pairs; at += piece) {
        for (uint32_t row = 0; row < rows;) {
            row += some_rows<I, W, X>(weights + static_cast<uint64_t>(at) * W::kBytes, x + row * stride + at * 2, stride,
                                      smaller(piece, pairs - at), sums + row, rows - row);
        }
    }
    if (k % 2 == 0) return;
    constexpr bool kOneSum = sizeof(X) == sizeof(Bf16);
    static const float zero = 0;
    for (uint32_t row = 0; row < rows; ++row) {  // the last K has no neighbour
        for (uint32_t v = 0; v < I::kVectors; ++v) {
            float* sum = sums[row].even + v * I::kLanes;
            const auto value = I::spread(x + row * stride + k - 1);
            const auto last = I::even(W(), weights + static_cast<uint64_t>(pairs) * W::kBytes, v);
            if (kOneSum) {
                I::store(sum, I::flushed_fma(value, last, I::add(I::load(sum), I::spread(&zero))));
            } else {
                I::store(sum, I::fma(value, last, I::load(sum)));
            }
        }
    }
}

// The rows [first, first + rows) of one tile.
template <class I, class W, class X>
inline void rows_of_tile(const PinionPacked& a, uint64_t tile, uint64_t first, uint32_t rows) {
    Sums sums[kRowBlock];
    const X* x = static_cast<const X*>(a.x) + first * a.k;
    const uint8_t* weights = a.weights + tile * pinion_packed_tile_bytes(a.k, a.weight_type);
    if constexpr (sizeof(X) == sizeof(Bf16)) {
        const typename I::Flush flush;
        sum_rows<I, W, X>(weights, x, a.k, rows, sums);
    } else {
        sum_rows<I, W, X>(weights, x, a.k, rows, sums);
        for (uint32_t row = 0; row < rows; ++row) {
            for (uint32_t v = 0; v < I::kVectors; ++v) {
                float *even = sums[row].even + v * I::kLanes, *odd = sums[row].odd + v * I::kLanes;
                I::store(even, I::add(I::load(even), I::load(odd)));
            }
        }
    }
    for (uint32_t row = 0; row < rows; ++row) finish(a, tile, first + row, sums[row].even);
}

template <class I, class W, class X>
void all_rows(const PinionPacked& a, uint64_t begin, uint64_t end) {
    for (uint64_t first = 0; first < a.rows; first += kRowBlock) {
        const uint64_t left = a.rows - first;
        const uint32_t rows = left < kRowBlock ? static_cast<uint32_t>(left) : kRowBlock;
        for (uint64_t tile = begin; tile < end; ++tile) rows_of_tile<I, W, X>(a, tile, first, rows);
    }
}

template <class I>
void all_tiles(const PinionPacked& a, uint64_t begin, uint64_t end) {
    if (a.x_type == PINION_SOURCE_BF16) return all_rows<I, Bf16Pairs, Bf16>(a, begin, end);
    if (a.weight_type == PINION_SOURCE_BF16) return all_rows<I, Bf16Pairs, float>(a, begin, end);
    if (a.weight_type == PINION_SOURCE_F16) return all_rows<I, HalfPairs, float>(a, begin, end);
    all_rows<I, FloatPairs, float>(a, begin, end);
}

}  // namespace

#define PINION_PACKED_LEVEL(LEVEL, ISA)                                                              \
    extern "C" void pinion_packed_##LEVEL(const PinionPacked* a, uint64_t begin, uint64_t end) {    \
        all_tiles<ISA>(*a, begin, end);                                                              \
    }
