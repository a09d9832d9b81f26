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

// Sums of one row over the even and over the odd K.
struct alignas(64) Sums {
    float even[kTile];
    float odd[kTile];
};

// Adds `pairs` of K to the sums of R rows.
template <class I, class W, uint32_t R>
inline void add_pairs(const uint8_t* weights, const float* x, uint64_t stride, uint32_t pairs, Sums* sums) {
    using V = typename I::V;
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
        for (uint32_t v = 0; v < kVectors; ++v) w[v] = I::even(W(), weights, v);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < R; ++r) {
            const V value = I::spread(x + r * stride);
#pragma GCC unroll 2
            for (uint32_t v = 0; v < kVectors; ++v) even[r][v] = I::fma(value, w[v], even[r][v]);
        }
#pragma GCC unroll 2
        for (uint32_t v = 0; v < kVectors; ++v) w[v] = I::odd(W(), weights, v);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < R; ++r) {
            const V value = I::spread(x + r * stride + 1);
#pragma GCC unroll 2
            for (uint32_t v = 0; v < kVectors; ++v) odd[r][v] = I::fma(value, w[v], odd[r][v]);
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
template <class I, class W>
inline uint32_t some_rows(const uint8_t* weights, const float* x, uint64_t stride, uint32_t pairs, Sums* sums, uint32_t left) {
    if constexpr (I::kRows == 8) {
        if (left >= 8) return add_pairs<I, W, 8>(weights, x, stride, pairs, sums), 8;
        if (left >= 4) return add_pairs<I, W, 4>(weights, x, stride, pairs, sums), 4;
    }
    if constexpr (I::kRows == 3) {
        // Two and two are quicker than three and one.
        if (left == 3 || left > 4) return add_pairs<I, W, 3>(weights, x, stride, pairs, sums), 3;
    }
    if (left >= 2) return add_pairs<I, W, 2>(weights, x, stride, pairs, sums), 2;
    return add_pairs<I, W, 1>(weights, x, stride, pairs, sums), 1;
}

// The rows [first, first + rows) of one tile.
template <class I, class W>
inline void rows_of_tile(const PinionPacked& a, uint64_t tile, uint64_t first, uint32_t rows) {
    Sums sums[kRowBlock];
    memset(sums, 0, rows * sizeof(Sums));
    const uint64_t stride = a.k;
    const float* x = a.x + first * stride;
    const uint8_t* weights = a.weights + tile * pinion_packed_tile_bytes(a.k, a.weight_type);
    const uint32_t pairs = a.k / 2, piece = rows <= I::kRows ? pairs : kPairBlock;
    for (uint32_t at = 0; at < pairs; at += piece) {
        for (uint32_t row = 0; row < rows;) {
            row += some_rows<I, W>(weights + static_cast<uint64_t>(at) * W::kBytes, x + row * stride + at * 2, stride,
                                   smaller(piece, pairs - at), sums + row, rows - row);
        }
    }
    for (uint32_t row = 0; row < rows; ++row) {
        Sums& sum = sums[row];
        for (uint32_t v = 0; v < I::kVectors; ++v) {
            typename I::V even = I::load(sum.even + v * I::kLanes);
            if (a.k % 2 != 0) {  // the last K has no neighbour
                const auto last = I::even(W(), weights + static_cast<uint64_t>(pairs) * W::kBytes, v);
                even = I::fma(I::spread(x + row * stride + a.k - 1), last, even);
            }
            I::store(sum.even + v * I::kLanes, I::add(even, I::load(sum.odd + v * I::kLanes)));
        }
        finish(a, tile, first + row, sum.even);
    }
}

template <class I, class W>
void all_rows(const PinionPacked& a, uint64_t begin, uint64_t end) {
    for (uint64_t first = 0; first < a.rows; first += kRowBlock) {
        const uint64_t left = a.rows - first;
        const uint32_t rows = left < kRowBlock ? static_cast<uint32_t>(left) : kRowBlock;
        for (uint64_t tile = begin; tile < end; ++tile) rows_of_tile<I, W>(a, tile, first, rows);
    }
}

template <class I>
void all_tiles(const PinionPacked& a, uint64_t begin, uint64_t end) {
    if (a.weight_type == PINION_SOURCE_BF16) return all_rows<I, Bf16Pairs>(a, begin, end);
    if (a.weight_type == PINION_SOURCE_F16) return all_rows<I, HalfPairs>(a, begin, end);
    all_rows<I, FloatPairs>(a, begin, end);
}

}  // namespace

#define PINION_PACKED_LEVEL(LEVEL, ISA)                                                              \
    extern "C" void pinion_packed_##LEVEL(const PinionPacked* a, uint64_t begin, uint64_t end) {    \
        all_tiles<ISA>(*a, begin, end);                                                              \
    }
