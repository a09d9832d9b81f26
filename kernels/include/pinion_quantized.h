// Contract of Pinion's CPU products with quantised weights. Plain C: raw pointers, no torch, no allocation, no threads of its
// own but for the *_parallel entries (kernels/cpu/parallel.cpp). docs/design/0012-quantised-products.md.
//
//   pinion_pack_runs       rows of a checkpoint's tensor to integers, in the layout below
//   pinion_quantize_rows   activations to 8-bit integers with one scale a row
//   pinion_quantized       out = activation(x . weights^T (+ bias)) (+ residual)
//
// Integers are symmetric. A row x of activations becomes q = round(x * (127 / max|x|)), ties to even, with the scale max|x| / 127;
// a row whose max is under 2^-118 becomes zeros; a row with a NaN or an infinity has a NaN for its scale, so that its
// products are NaN. An output of 8-bit weights is made by the same rule. A group of 4-bit weights has the scale m / -8, where
// m is its first value of largest magnitude, and holds round(w * (-8 / m)) clamped to -8 ..= 7. Weights that were integers
// in the checkpoint keep theirs: pinion_quantized also takes -128 (crates/ops/src/quantized/integers.rs).
//
// Layout. 16 outputs are a tile; tiles follow one another. A tile is a run of blocks of 64 K. 8 bits: block[k / 4][output][k % 4],
// 1024 bytes: a row of it is one AVX-512 register, the block one AMX tile. 4 bits: byte [p][output][j] of 512 holds element
// 4 p + j (low nibble) and element 32 + 4 p + j (high nibble), each plus 8. Behind the blocks of a group stand its 16 scales
// in fp32, behind a block of two groups of 32 both, lower K first. Outputs are padded to 16 and K to 64 with zeros.
//
// Sums of products are exact in 32 bits for K up to PINION_QUANTIZED_K_MAX, whatever the level adds first. Floating point
// follows in one order, without fused operations: 8 bits (sum * (x_scale * scale)), 4 bits (each group in the order of K:
// + sum * scale; then * x_scale); then + bias, then activation, then + residual, then rounded to dtype. So a row's
// bits depend on the row and the weights alone, not on level, threads or the rows beside it.
// Bytes moved: the packed weights once, again from cache for every further four rows (AVX2), eight (AVX-512) or twelve (VNNI; six
// with 4 bits).
#pragma once
#include <stdint.h>

#include "pinion_activation.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PINION_QUANTIZED_K_MAX = 131072, PINION_TILE_OUTPUTS = 16, PINION_BLOCK_K = 64, PINION_GROUP_MIN = 32 };
enum {
    PINION_INTEGER_SCALAR = 0,
    PINION_INTEGER_AVX2 = 1,
    PINION_INTEGER_AVX512 = 2,
    PINION_INTEGER_VNNI = 3
};
enum { PINION_SOURCE_F32 = 0, PINION_SOURCE_BF16 = 1, PINION_SOURCE_F16 = 2 };

// The best level of these kernels here; they need other instructions than attention does.
int32_t pinion_integer_level(void);

// `rows` outputs of a tensor in a file become outputs first_output.. of `packed`. Element (row, k) is at
// row * row_stride + k * k_stride of source, which need not be aligned. group: 0 for 8 bits, else 32, 64 or 128 (which divides
// k_padded). packed, scales and sums as in PinionQuantized; scales and sums are of 8 bits only.
typedef struct PinionPack {
    const void* source;
    uint64_t row_stride;
    uint64_t k_stride;
    uint32_t rows;
    uint32_t k;
    uint32_t k_padded;
    uint32_t first_output;
    uint32_t group;
    int32_t source_type;
    uint8_t* packed;
    float* scales;
    int32_t* sums;
    float* scratch;  // [threads, 16, k]
} PinionPack;

// x [rows, k] of dtype (PINION_F32 or PINION_BF16), contiguous, to q [rows, k_padded] (zeros from k on), scales [rows] and, of 4
// bits only, offsets [rows, k_padded / group]: -8 times the sum of each group of q. For weights of 8 bits level VNNI wants
// every q plus 128 as an unsigned byte, so that q is for products of the same level and group.
typedef struct PinionQuantizeRows {
    const void* x;
    int8_t* q;
    float* scales;
    int32_t* offsets;
    uint64_t rows;
    uint32_t k;
    uint32_t k_padded;
    uint32_t group;
    int32_t dtype;
} PinionQuantizeRows;

// out and residual [rows, n] of dtype, contiguous; bias [n]. bias and residual may be null; residual may be out.
typedef struct PinionQuantized {
    const uint8_t* weights;  // packed, 64-byte aligned
    const float* scales;     // [tiles * 16], 8 bits only
    const int32_t* sums;     // [tiles * 16], of each output's integers, 8 bits only
    const int8_t* x;
    const float* x_scales;
    const int32_t* x_offsets;  // 4 bits only
    const float* bias;
    const void* residual;
    void* out;
    uint64_t rows;
    uint32_t n;
    uint32_t k_padded;
    uint32_t group;
    int32_t dtype;
    int32_t activation;  // PINION_ACTIVATION_*
} PinionQuantized;

// Bytes of one packed tile.
uint64_t pinion_tile_bytes(uint32_t k_padded, uint32_t group);

// Runs of up to 16 rows, the first at row begin * 16; `thread` picks the scratch.
void pinion_pack_runs(const PinionPack* args, uint32_t thread, uint64_t begin, uint64_t end);
// Rows [begin, end).
void pinion_quantize_rows(const PinionQuantizeRows* args, int32_t level, uint64_t begin, uint64_t end);
// Tiles [begin, end), all rows.
void pinion_quantized(const PinionQuantized* args, int32_t level, uint64_t begin, uint64_t end);

// The same over everything, on `threads` threads.
void pinion_pack_parallel(const PinionPack* args, int32_t threads);
// Quantises activations, then multiplies them: x, x_scales and x_offsets of args are what `rows` writes.
void pinion_quantized_parallel(const PinionQuantizeRows* rows, const PinionQuantized* args, int32_t level, int32_t threads);

#ifdef __cplusplus
}
#endif
