// Products with quantised weights on AVX-512 with VNNI: `vpdpbusd` adds to each of 16 sums the products of four unsigned and
// four signed bytes. Sums wrap and do not saturate, so that they are exact once the offsets are in. Contract:
// kernels/include/pinion_quantized.h.
#include "product_finish_avx512.h"
#include "quantized_tile.h"

namespace {

using Integers = __m512i;

// Four activations in every lane.
inline Integers spread(const int8_t* x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
}

inline Integers load(const uint8_t* weights) { return _mm512_load_si512(weights); }

// Asks for what these T tiles' successors have at the same place: by the time it is used, it is in L2, and no tile begins with
// a miss. L1 is full of what is used now.
template <uint32_t T>
inline void prefetch_next(const uint8_t* weights, uint64_t tile_bytes) {
    __builtin_prefetch(weights + T * tile_bytes, 0, 2);
}

inline void add_quads(Integers& sum, Integers unsigned_bytes, Integers signed_bytes) {
    sum = _mm512_dpbusd_epi32(sum, unsigned_bytes, signed_bytes);
    asm("" : "+v"(sum));  // or else the compiler adds to copies, and keeps these in memory
}

// Products of R rows and T neighbouring tiles, before bias and residual.
template <uint32_t T, uint32_t R>
struct alignas(64) Products {
    float of[R][T][kTile];

    void finish_all(const PinionQuantized& a, uint64_t tile, uint64_t row) const {
        for (uint32_t r = 0; r < R; ++r) {
            for (uint32_t t = 0; t < T; ++t) finish_lanes(a, tile + t, row + r, _mm512_load_ps(of[r][t]));
        }
    }
};

// 8 bits. Activations are x + 128, so that sums begin with -128 times that of the weights.
template <uint32_t T, uint32_t R>
void rows_of_8(const PinionQuantized& a, uint64_t tile, uint64_t row) {
    const uint64_t stride = a.k_padded, tile_bytes = kTile * stride;
    const uint8_t* weights = a.weights + tile * tile_bytes;
    const int8_t *x = a.x + row * stride, *end = x + stride;
    Integers sums[R][T];
    // Loops with constant bounds are unrolled, or else the sums lie in memory.
#pragma GCC unroll 16
    for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (uint32_t t = 0; t < T; ++t) {
            const Integers of_weights = _mm512_loadu_si512(a.sums + (tile + t) * kTile);
            sums[r][t] = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(of_weights, 7));
        }
    }
    for (; x < end; x += 4, weights += 64) {
        Integers w[T];
#pragma GCC unroll 4
        for (uint32_t t = 0; t < T; ++t) {
            prefetch_next<T>(weights + t * tile_bytes, tile_bytes);
            w[t] = load(weights + t * tile_bytes);
        }
#pragma GCC unroll 16
        for (uint32_t r = 0; r < R; ++r) {
            const Integers four = spread(x + r * stride);
#pragma GCC unroll 4
            for (uint32_t t = 0; t < T; ++t) add_quads(sums[r][t], four, w[t]);
        }
    }
    Products<T, R> products;
#pragma GCC unroll 16
    for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (uint32_t t = 0; t < T; ++t) {
            const __m512 scales = _mm512_loadu_ps(a.scales + (tile + t) * kTile);
            const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(a.x_scales[row + r]), scales);
            _mm512_store_ps(products.of[r][t], _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r][t]), scale));
        }
    }
    products.finish_all(a, tile, row);
}

// Adds 32 K of a block of 4-bit weights: those of the low nibbles, or of the high ones.
template <bool kHigh, uint32_t T, uint32_t R>
inline void add_half(const uint8_t* weights, uint64_t tile_bytes, const int8_t* x, uint64_t stride, Integers (&sums)[R][T]) {
    const Integers nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 8
    for (uint32_t p = 0; p < 8; ++p) {
        Integers w[T];
#pragma GCC unroll 4
        for (uint32_t t = 0; t < T; ++t) {
            if (!kHigh) prefetch_next<T>(weights + t * tile_bytes + p * 64, tile_bytes);
            const Integers both = load(weights + t * tile_bytes + p * 64);
            w[t] = _mm512_and_si512(kHigh ? _mm512_srli_epi16(both, 4) : both, nibble);
        }
#pragma GCC unroll 16
        for (uint32_t r = 0; r < R; ++r) {
            const Integers four = spread(x + r * stride + p * 4);
#pragma GCC unroll 4
            for (uint32_t t = 0; t < T; ++t) add_quads(sums[r][t], w[t], four);
        }
    }
}

// The sums of a group begin with its offset, which takes off the 8 that every weight has too much.
template <uint32_t T, uint32_t R>
inline void begin_group(const int32_t* offsets, uint64_t stride, Integers (&sums)[R][T]) {
#pragma GCC unroll 16
    for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (uint32_t t = 0; t < T; ++t) sums[r][t] = _mm512_set1_epi32(offsets[r * stride]);
    }
}

template <uint32_t T, uint32_t R>
inline void end_group(const uint8_t* scales, uint64_t tile_bytes, const Integers (&sums)[R][T], __m512 (&products)[R][T]) {
#pragma GCC unroll 16
    for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (uint32_t t = 0; t < T; ++t) {
            const __m512 scale = _mm512_load_ps(scales + t * tile_bytes);
            const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r][t]), scale);
            products[r][t] = _mm512_add_ps(products[r][t], product);
        }
    }
}

// 4 bits.
template <uint32_t T, uint32_t R>
void rows_of_4(const PinionQuantized& a, uint64_t tile, uint64_t row) {
    const uint64_t stride = a.k_padded, groups = stride / a.group, tile_bytes = pinion_tile_bytes(a.k_padded, a.group);
    const uint8_t* weights = a.weights + tile * tile_bytes;
    const int8_t *x = a.x + row * stride, *end = x + stride;
    const int32_t* offsets = a.x_offsets + row * groups;
    __m512 sums_of_groups[R][T];
    Integers sums[R][T];
#pragma GCC unroll 16
    for (uint32_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (uint32_t t = 0; t < T; ++t) sums_of_groups[r][t] = _mm512_setzero_ps();
    }
    while (x < end) {
        begin_group(offsets++, groups, sums);
        if (a.group == PINION_GROUP_MIN) {
            add_half<false>(weights, tile_bytes, x, stride, sums);
            end_group(weights + kBlockBytes4, tile_bytes, sums, sums_of_groups);
            begin_group(offsets++, groups, sums);
            add_half<true>(weights, tile_bytes, x + 32, stride, sums);
            end_group(weights + kBlockBytes4 + kScaleBytes, tile_bytes, sums, sums_of_groups);
            weights += kBlockBytes4 + 2 * kScaleBytes;
            x += kBlock;
            continue;
        }
        for (uint32_t block = 0; block < a.group / kBlock; ++block, weights += kBlockBytes4, x += kBlock) {
            add_half<false>(weights, tile_bytes, x, stride, sums);
            add_half<true>(weights, tile_bytes, x + 32, stride, sums);
        }
        end_group(weights, tile_bytes, sums, sums_of_groups);
        weights += kScaleBytes;
    }
    Products<T, R> products;
#pragma GCC unroll 16
    for (uint32_t r = 0; r < R; ++r) {
        const __m512 scale = _mm512_set1_ps(a.x_scales[row + r]);
#pragma GCC unroll 4
        for (uint32_t t = 0; t < T; ++t) _mm512_store_ps(products.of[r][t], _mm512_mul_ps(sums_of_groups[r][t], scale));
    }
    products.finish_all(a, tile, row);
}

template <uint32_t T>
void all_rows_of_8(const PinionQuantized& a, uint64_t tile) {
    uint64_t row = 0;
    if constexpr (T <= 2) {
        // 24 sums, two vectors of weights and an activation are 27 of 32 registers.
        for (; row + 12 <= a.rows; row += 12) rows_of_8<T, 12>(a, tile, row);
        for (; row + 8 <= a.rows; row += 8) rows_of_8<T, 8>(a, tile, row);
    }
    for (; row + 4 <= a.rows; row += 4) rows_of_8<T, 4>(a, tile, row);
    for (; row + 2 <= a.rows; row += 2) rows_of_8<T, 2>(a, tile, row);
    if (row < a.rows) rows_of_8<T, 1>(a, tile, row);
}

template <uint32_t T>
void all_rows_of_4(const PinionQuantized& a, uint64_t tile) {
    uint64_t row = 0;
    if constexpr (T <= 2) {
        // 12 sums of a group, 12 products, two vectors of weights, an activation and the mask are 28 of 32 registers.
        for (; row + 6 <= a.rows; row += 6) rows_of_4<T, 6>(a, tile, row);
        for (; row + 4 <= a.rows; row += 4) rows_of_4<T, 4>(a, tile, row);
    }
    for (; row + 2 <= a.rows; row += 2) rows_of_4<T, 2>(a, tile, row);
    if (row < a.rows) rows_of_4<T, 1>(a, tile, row);
}

template <uint32_t T>
inline void rows_of_tiles(const PinionQuantized& a, uint64_t tile) {
    a.group == 0 ? all_rows_of_8<T>(a, tile) : all_rows_of_4<T>(a, tile);
}

}  // namespace

extern "C" void pinion_quantized_vnni(const PinionQuantized* args, uint64_t begin, uint64_t end) {
    uint64_t tile = begin;
    // Few rows have few sums: more tiles beside each other hide the latency of the instruction.
    if (args->rows <= (args->group == 0 ? 4 : 2)) {
        for (; tile + 4 <= end; tile += 4) rows_of_tiles<4>(*args, tile);
    }
    for (; tile + 2 <= end; tile += 2) rows_of_tiles<2>(*args, tile);
    if (tile < end) rows_of_tiles<1>(*args, tile);
}

extern "C" void pinion_quantize_rows_vnni(const PinionQuantizeRows* args, uint64_t begin, uint64_t end) {
    quantize_any(*args, args->group == 0 ? 128 : 0, begin, end);
}
