// Products of bf16 with bf16 on avx512_bf16: `vdpbf16ps` takes a pair of K at once. Contract: kernels/include/pinion_packed.h.
#include "../include/pinion_packed.h"
#include "product_finish_avx512.h"

namespace {

constexpr uint32_t kTile = PINION_TILE_OUTPUTS;
constexpr uint32_t kPairBytes = 64;

// Rows for which a tile's weights are read once. What they are multiplied with stays in L2.
constexpr uint32_t kRowBlock = 256;

// Pairs of K whose weights stay in L1 while all rows of a block pass them: 8 KB for each tile.
constexpr uint32_t kPairBlock = 128;

// How far ahead of its use a line of weights is asked for. It comes as far as L2: L1 is full of what is used now.
constexpr uint64_t kAheadBytes = 4096;

// Sums of one row and a few neighbouring tiles.
template <uint32_t T>
struct alignas(64) Sums {
    float tile[T][kTile];
};

// The two values of a pair, in every lane. The last K of an odd number has no neighbour.
inline __m512bh spread(const Bf16* x) {
    int32_t pair;
    memcpy(&pair, x, sizeof(pair));
    return (__m512bh)_mm512_set1_epi32(pair);
}
inline __m512bh spread_last(const Bf16* x) {
    uint16_t value;
    memcpy(&value, x, sizeof(value));
    return (__m512bh)_mm512_set1_epi32(value);
}

inline __m512bh load_pair(const uint8_t* weights) { return (__m512bh)_mm512_load_si512(weights); }

// Adds `pairs` of K to the sums of R rows and T tiles, which lie tile_bytes apart.
template <uint32_t T, uint32_t R>
inline void add_pairs(const uint8_t* weights, uint64_t tile_bytes, const Bf16* x, uint64_t stride, uint32_t pairs, Sums<T>* sums) {
    __m512 sum[R][T];
    // Loops with constant bounds are unrolled, or else the sums lie in memory.
#pragma GCC unroll 16
    for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (uint32_t t = 0; t < T; ++t) sum[r][t] = _mm512_load_ps(sums[r].tile[t]);
    }
    for (uint32_t pair = 0; pair < pairs; ++pair, weights += kPairBytes, x += 2) {
        __m512bh w[T];
#pragma GCC unroll 4
        for (uint32_t t = 0; t < T; ++t) {
            __builtin_prefetch(weights + t * tile_bytes + kAheadBytes, 0, 2);
            w[t] = load_pair(weights + t * tile_bytes);
        }
#pragma GCC unroll 16
        for (uint32_t r = 0; r < R; ++r) {
            const __m512bh value = spread(x + r * stride);
#pragma GCC unroll 4
            for (uint32_t t = 0; t < T; ++t) sum[r][t] = _mm512_dpbf16_ps(sum[r][t], value, w[t]);
        }
    }
#pragma GCC unroll 16
    for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (uint32_t t = 0; t < T; ++t) _mm512_store_ps(sums[r].tile[t], sum[r][t]);
    }
}

// Takes as many of the rows that are left as go at once, and says how many.
template <uint32_t T>
inline uint32_t some_rows(const uint8_t* weights, uint64_t tile_bytes, const Bf16* x, uint64_t stride, uint32_t pairs,
                          Sums<T>* sums, uint32_t left) {
    if constexpr (T <= 2) {
        // 24 sums, two vectors of weights and a value are 27 of 32 registers.
        if (left >= 12) return add_pairs<T, 12>(weights, tile_bytes, x, stride, pairs, sums), 12;
        if (left >= 8) return add_pairs<T, 8>(weights, tile_bytes, x, stride, pairs, sums), 8;
    }
    if (left >= 4) return add_pairs<T, 4>(weights, tile_bytes, x, stride, pairs, sums), 4;
    if (left >= 2) return add_pairs<T, 2>(weights, tile_bytes, x, stride, pairs, sums), 2;
    return add_pairs<T, 1>(weights, tile_bytes, x, stride, pairs, sums), 1;
}

// The rows [first, first + rows) of T tiles.
template <uint32_t T>
inline void rows_of_tiles(const PinionPacked& a, uint64_t tile, uint64_t first, uint32_t rows) {
    Sums<T> sums[kRowBlock];
    memset(sums, 0, rows * sizeof(Sums<T>));
    const uint64_t stride = a.k, tile_bytes = pinion_packed_tile_bytes(a.k, a.weight_type);
    const Bf16* x = static_cast<const Bf16*>(a.x) + first * stride;
    const uint8_t* weights = a.weights + tile * tile_bytes;
    const uint32_t pairs = a.k / 2, piece = rows <= 4 ? pairs : kPairBlock;
    for (uint32_t at = 0; at < pairs; at += piece) {
        for (uint32_t row = 0; row < rows;) {
            row += some_rows<T>(weights + static_cast<uint64_t>(at) * kPairBytes, tile_bytes, x + row * stride + at * 2, stride,
                                smaller(piece, pairs - at), sums + row, rows - row);
        }
    }
    for (uint32_t row = 0; row < rows; ++row) {
        for (uint32_t t = 0; t < T; ++t) {
            __m512 sum = _mm512_load_ps(sums[row].tile[t]);
            if (a.k % 2 != 0) {
                const __m512bh last = load_pair(weights + t * tile_bytes + static_cast<uint64_t>(pairs) * kPairBytes);
                sum = _mm512_dpbf16_ps(sum, spread_last(x + row * stride + a.k - 1), last);
            }
            finish_lanes(a, tile + t, first + row, sum);
        }
    }
}

}  // namespace

extern "C" void pinion_packed_pairs_avx512_bf16(const PinionPacked* args, uint64_t begin, uint64_t end) {
    for (uint64_t first = 0; first < args->rows; first += kRowBlock) {
        const uint64_t left = args->rows - first;
        const uint32_t rows = left < kRowBlock ? static_cast<uint32_t>(left) : kRowBlock;
        uint64_t tile = begin;
        // Few rows have few sums: more tiles beside each other hide the latency of the instruction.
        if (rows <= 4) {
            for (; tile + 4 <= end; tile += 4) rows_of_tiles<4>(*args, tile, first, rows);
        }
        for (; tile + 2 <= end; tile += 2) rows_of_tiles<2>(*args, tile, first, rows);
        if (tile < end) rows_of_tiles<1>(*args, tile, first, rows);
    }
}
