// Products with packed floating-point weights, written once for every instruction set; `I` has the operations of one, `W` says how
// weights stand. Contract: kernels/include/pinion_packed.h. Units that include this are compiled with -ffp-contract=off.
#pragma once
#include "../include/pinion_packed.h"
#include "attention_internal.h"
#include "product_finish.h"

namespace {

constexpr uint32_t kTile = PINION_TILE_OUTPUTS;

// Rows for which a tile's weights are read once, and tiles that share a copy of x.
constexpr uint32_t kRowBlock = PINION_PACKED_ROWS;
constexpr uint32_t kTileBlock = 8;

// A piece of K, whose weights stay in L1 (8 KB of a tile in bf16) while all rows of a block pass them.
constexpr uint32_t kPieceK = 256;

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

constexpr uint32_t kSumStep = sizeof(Sums) / sizeof(float);

// What stands while products are added up: with x in bf16, denormal numbers are flushed.
struct Unchanged {
    Unchanged() {}
};
template <class I, class X>
struct Mode {
    using Guard = Unchanged;
};
template <class I>
struct Mode<I, Bf16> {
    using Guard = typename I::Flush;
};

const float kZero = 0;

// Both sums of R rows over all pairs of K, in one pass over the weights of T tiles, which stand `tile_bytes` apart. The sums of
// a tile's rows follow one another.
template <class I, class W, class X, uint32_t R, uint32_t T = 1>
inline void sum_pairs(const uint8_t* weights, uint64_t tile_bytes, const X* x, uint64_t stride, uint32_t pairs, Sums* sums) {
    using V = typename I::V;
    constexpr bool kOneSum = sizeof(X) == sizeof(Bf16);
    constexpr uint32_t kVectors = I::kVectors, kVectorsOfRow = T * kVectors;
    constexpr uint32_t kPairsAhead = (T == 1 ? I::kAheadBytes : I::kAheadBytesAbreast) / W::kBytes;
    uint64_t ahead = uint64_t{kPairsAhead} * W::kBytes;
    // Behind the end of one tile stands the next one; the T after those are asked for instead.
    const uint32_t turn = pairs > kPairsAhead ? pairs - kPairsAhead : 0;
    const uint64_t to_next = T * tile_bytes - uint64_t{pairs} * W::kBytes;
    V even[R][kVectorsOfRow], odd[R][kVectorsOfRow];
    // Loops with constant bounds are unrolled, or else the sums lie in memory.
#pragma GCC unroll 8
    for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (uint32_t v = 0; v < kVectorsOfRow; ++v) even[r][v] = odd[r][v] = I::spread(&kZero);
    }
    for (uint32_t pair = 0; pair < pairs; ++pair, weights += W::kBytes, x += 2) {
        if (T > 1 && pair == turn) ahead += to_next;
#pragma GCC unroll 2
        for (uint32_t t = 0; t < T; ++t) {
#pragma GCC unroll 2
            for (uint32_t line = 0; line < W::kBytes; line += 64) __builtin_prefetch(weights + t * tile_bytes + ahead + line, 0, 3);
        }
        // One half of the pair after the other: the sums of three rows leave four registers of AVX2.
        V w[kVectorsOfRow];
#pragma GCC unroll 4
        for (uint32_t v = 0; v < kVectorsOfRow; ++v) w[v] = I::odd(W(), weights + v / kVectors * tile_bytes, v % kVectors);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < R; ++r) {
            const V value = I::spread(x + r * stride + 1);
#pragma GCC unroll 4
            for (uint32_t v = 0; v < kVectorsOfRow; ++v) {
                V& sum = kOneSum ? even[r][v] : odd[r][v];
                sum = kOneSum ? I::flushed_fma(value, w[v], sum) : I::fma(value, w[v], sum);
            }
        }
#pragma GCC unroll 4
        for (uint32_t v = 0; v < kVectorsOfRow; ++v) w[v] = I::even(W(), weights + v / kVectors * tile_bytes, v % kVectors);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < R; ++r) {
            const V value = I::spread(x + r * stride);
#pragma GCC unroll 4
            for (uint32_t v = 0; v < kVectorsOfRow; ++v) {
                V& sum = even[r][v];
                sum = kOneSum ? I::flushed_fma(value, w[v], sum) : I::fma(value, w[v], sum);
            }
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (uint32_t v = 0; v < kVectorsOfRow; ++v) {
            Sums& to = sums[v / kVectors * R + r];
            I::store(to.even + v % kVectors * I::kLanes, even[r][v]);
            I::store(to.odd + v % kVectors * I::kLanes, odd[r][v]);
        }
    }
}

// The same for 1 to R rows of one tile.
template <class I, class W, class X, uint32_t R = I::kRows>
inline void sum_rows(uint32_t rows, const uint8_t* weights, const X* x, uint64_t stride, uint32_t pairs, Sums* sums) {
    if constexpr (R > 1) {
        if (rows < R) return sum_rows<I, W, X, R - 1>(rows, weights, x, stride, pairs, sums);
    }
    sum_pairs<I, W, X, R>(weights, 0, x, stride, pairs, sums);
}

// Which products of a pair of K are added, and in which order.
enum Half { kEven, kOdd, kOddThenEven };

// What a pass over a piece asks for meanwhile: `step` bytes with each pair of K, unless `from` is null.
struct Ahead {
    const uint8_t* from;
    uint32_t step;
};

// Adds `pairs` of K, or half of them, to one sum of each of R rows.
template <class I, class W, uint32_t R, Half kHalf>
inline void add_half(const uint8_t* weights, Ahead ahead, const float* x, uint32_t pairs, float* sums) {
    using V = typename I::V;
    constexpr uint32_t kVectors = I::kVectors;
    V sum[R][kVectors], w[kVectors];
#pragma GCC unroll 16
    for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (uint32_t v = 0; v < kVectors; ++v) sum[r][v] = I::load(sums + r * kSumStep + v * I::kLanes);
    }
    for (uint32_t pair = 0; pair < pairs; ++pair, x += 2) {
        const uint8_t* at = weights + uint64_t{pair} * W::kBytes;
        if (ahead.from != nullptr) {
#pragma GCC unroll 2
            for (uint32_t line = 0; line < ahead.step; line += 64) {
                __builtin_prefetch(ahead.from + uint64_t{pair} * ahead.step + line, 0, 3);
            }
        }
        if constexpr (kHalf != kEven) {
#pragma GCC unroll 2
            for (uint32_t v = 0; v < kVectors; ++v) w[v] = I::odd(W(), at, v);
#pragma GCC unroll 16
            for (uint32_t r = 0; r < R; ++r) {
                const V value = I::spread(x + r * kPieceK + 1);
#pragma GCC unroll 2
                for (uint32_t v = 0; v < kVectors; ++v) {
                    sum[r][v] = kHalf == kOdd ? I::fma(value, w[v], sum[r][v]) : I::flushed_fma(value, w[v], sum[r][v]);
                }
            }
        }
        if constexpr (kHalf != kOdd) {
#pragma GCC unroll 2
            for (uint32_t v = 0; v < kVectors; ++v) w[v] = I::even(W(), at, v);
#pragma GCC unroll 16
            for (uint32_t r = 0; r < R; ++r) {
                const V value = I::spread(x + r * kPieceK);
#pragma GCC unroll 2
                for (uint32_t v = 0; v < kVectors; ++v) {
                    sum[r][v] = kHalf == kEven ? I::fma(value, w[v], sum[r][v]) : I::flushed_fma(value, w[v], sum[r][v]);
                }
            }
        }
    }
#pragma GCC unroll 16
    for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (uint32_t v = 0; v < kVectors; ++v) I::store(sums + r * kSumStep + v * I::kLanes, sum[r][v]);
    }
}

// Adds a piece of K to the sums of 1 to R rows. The weights of the next one are asked for meanwhile.
template <class I, class W, class X, uint32_t R = I::kGroup>
inline void add_group(uint32_t rows, const uint8_t* weights, const uint8_t* next, const float* x, uint32_t pairs, Sums* sums) {
    if constexpr (R > 1) {
        if (rows < R) return add_group<I, W, X, R - 1>(rows, weights, next, x, pairs, sums);
    }
    if constexpr (sizeof(X) == sizeof(Bf16)) {
        add_half<I, W, R, kOddThenEven>(weights, {next, W::kBytes}, x, pairs, sums->even);
    } else {
        // Half of what comes next in each of the two passes: all of it in one asks for more than memory gives meanwhile.
        constexpr uint32_t kStep = W::kBytes / 2;
        add_half<I, W, R, kEven>(weights, {next, kStep}, x, pairs, sums->even);
        if (next != nullptr) next += uint64_t{pairs} * kStep;
        add_half<I, W, R, kOdd>(weights, {next, kStep}, x, pairs, sums->odd);
    }
}

// Adds the last of an odd number of K, which has no neighbour.
template <class I, class W, class X>
inline void add_last(const uint8_t* weights, const X* x, uint64_t stride, uint32_t rows, Sums* sums) {
    for (uint32_t row = 0; row < rows; ++row) {
        for (uint32_t v = 0; v < I::kVectors; ++v) {
            float* sum = sums[row].even + v * I::kLanes;
            const auto value = I::spread(x + row * stride);
            const auto last = I::even(W(), weights, v);
            if constexpr (sizeof(X) == sizeof(Bf16)) {
                I::store(sum, I::flushed_fma(value, last, I::add(I::load(sum), I::spread(&kZero))));
            } else {
                I::store(sum, I::fma(value, last, I::load(sum)));
            }
        }
    }
}

// Sums of a call with up to kRows rows over one tile, or with one row over T tiles: x is read where it is, and each weight
// once. Not inlined, so that all of it is done while denormal numbers are flushed; so is sum_block.
template <class I, class W, class X, uint32_t T>
__attribute__((noinline)) void sum_few(const PinionPacked& a, uint64_t first_tile, Sums* sums) {
    const typename Mode<I, X>::Guard guard;
    const uint64_t tile_bytes = pinion_packed_tile_bytes(a.k, a.weight_type);
    const uint8_t* weights = a.weights + first_tile * tile_bytes;
    const X* x = static_cast<const X*>(a.x);
    const uint32_t rows = static_cast<uint32_t>(a.rows), pairs = a.k / 2;
    if constexpr (T > 1) {
        sum_pairs<I, W, X, 1, T>(weights, tile_bytes, x, a.k, pairs, sums);
    } else {
        sum_rows<I, W, X>(rows, weights, x, a.k, pairs, sums);
    }
    if (a.k % 2 == 0) return;
    for (uint32_t t = 0; t < T; ++t) {
        const uint8_t* last = weights + t * tile_bytes + uint64_t{pairs} * W::kBytes;
        add_last<I, W, X>(last, x + a.k - 1, a.k, rows, sums + t * rows);
    }
}

// Rows and tiles that pass K together, piece by piece.
struct Block {
    uint64_t first_row;
    uint32_t rows;
    uint64_t first_tile;
    uint32_t tiles;
};

// Copies `count` K of x, `stride` apart, in fp32. Beside one another its rows fit the caches whatever K is; where they are,
// those of a K of 1024 or 3072 would all want the same lines of L1.
template <class X>
inline void copy_piece(const X* x, uint64_t stride, uint32_t rows, uint32_t count, float (*piece)[kPieceK]) {
    for (uint32_t row = 0; row < rows; ++row, x += stride) {
        for (uint32_t k = 0; k < count; ++k) piece[row][k] = to_float(x[k]);
    }
}

template <class I, class W, class X>
__attribute__((noinline)) void sum_block(const PinionPacked& a, const Block& block, Sums (*sums)[kRowBlock]) {
    const typename Mode<I, X>::Guard guard;
    const uint64_t tile_bytes = pinion_packed_tile_bytes(a.k, a.weight_type);
    const uint8_t* weights = a.weights + block.first_tile * tile_bytes;
    const X* x = static_cast<const X*>(a.x) + block.first_row * a.k;
    const uint32_t pairs = a.k / 2, rows = block.rows;
    alignas(64) float piece[kRowBlock][kPieceK];
    for (uint32_t t = 0; t < block.tiles; ++t) memset(sums[t], 0, rows * sizeof(Sums));
    for (uint32_t at = 0; at < pairs; at += kPieceK / 2) {
        const uint32_t some = smaller(kPieceK / 2, pairs - at);
        copy_piece(x + at * 2, a.k, rows, some * 2, piece);
        for (uint32_t t = 0; t < block.tiles; ++t) {
            const uint8_t* tile = weights + t * tile_bytes + uint64_t{at} * W::kBytes;
            const uint8_t* next = t + 1 < block.tiles ? tile + tile_bytes : weights + uint64_t{at + some} * W::kBytes;
            uint32_t groups = (rows + I::kGroup - 1) / I::kGroup;
            for (uint32_t row = 0; row < rows; --groups) {
                const uint32_t group = (rows - row + groups - 1) / groups;  // all of nearly the same size
                add_group<I, W, X>(group, tile, row == 0 ? next : nullptr, piece[row], some, sums[t] + row);
                row += group;
            }
        }
    }
    if (a.k % 2 == 0) return;
    for (uint32_t t = 0; t < block.tiles; ++t) {
        add_last<I, W, X>(weights + t * tile_bytes + uint64_t{pairs} * W::kBytes, x + a.k - 1, a.k, rows, sums[t]);
    }
}

template <class I, class X>
inline void finish_rows(const PinionPacked& a, uint64_t tile, uint64_t first, uint32_t rows, Sums* sums) {
    for (uint32_t row = 0; row < rows; ++row) {
        if constexpr (sizeof(X) != sizeof(Bf16)) {
            for (uint32_t v = 0; v < I::kVectors; ++v) {
                float *even = sums[row].even + v * I::kLanes, *odd = sums[row].odd + v * I::kLanes;
                I::store(even, I::add(I::load(even), I::load(odd)));
            }
        }
        finish(a, tile, first + row, sums[row].even);
    }
}

// One row passes I::kAbreast tiles side by side: a core waits less for lines from several places than for as many from one.
template <class I, class W, class X>
void few_rows(const PinionPacked& a, uint64_t begin, uint64_t end) {
    constexpr uint32_t kAbreast = I::kAbreast;
    Sums sums[kAbreast > I::kRows ? kAbreast : I::kRows];
    uint64_t tile = begin;
    if constexpr (kAbreast > 1) {
        for (; a.rows == 1 && end - tile >= kAbreast; tile += kAbreast) {
            sum_few<I, W, X, kAbreast>(a, tile, sums);
            for (uint32_t t = 0; t < kAbreast; ++t) finish_rows<I, X>(a, tile + t, 0, 1, sums + t);
        }
    }
    for (; tile < end; ++tile) {
        sum_few<I, W, X, 1>(a, tile, sums);
        finish_rows<I, X>(a, tile, 0, static_cast<uint32_t>(a.rows), sums);
    }
}

template <class I, class W, class X>
void all_rows(const PinionPacked& a, uint64_t begin, uint64_t end) {
    if (a.rows == 0) return;
    if (a.rows <= I::kRows) return few_rows<I, W, X>(a, begin, end);
    Sums sums[kTileBlock][kRowBlock];
    for (uint64_t row = 0; row < a.rows; row += kRowBlock) {
        const uint32_t rows = a.rows - row < kRowBlock ? static_cast<uint32_t>(a.rows - row) : kRowBlock;
        for (uint64_t tile = begin; tile < end; tile += kTileBlock) {
            const uint32_t tiles = end - tile < kTileBlock ? static_cast<uint32_t>(end - tile) : kTileBlock;
            sum_block<I, W, X>(a, {row, rows, tile, tiles}, sums);
            for (uint32_t t = 0; t < tiles; ++t) finish_rows<I, X>(a, tile + t, row, rows, sums[t]);
        }
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
