// Contract of Pinion's CPU products with packed floating-point weights. Plain C: raw pointers, no torch, no allocation, no threads
// of its own but for the *_parallel entries (kernels/cpu/parallel.cpp). docs/design/0013-packed-products.md.
//
//   pinion_pack_floats   rows of a checkpoint's tensor, in the layout below
//   pinion_packed        out = activation(x . weights^T (+ bias)) (+ residual)
//
// Layout. 16 outputs are a tile; tiles follow one another. A tile is a run of pairs of K. bf16: pair[output][k % 2], 64 bytes, so
// that 16 pairs are what an AMX tile or 16 vdpbf16ps take. fp16 and fp32: pair[k % 2][output], 64 and 128 bytes. Outputs are padded
// to 16 and K to 32 with zeros, which no product reads.
//
// Sums of x in fp32. An output is e + o: e adds the products of the even K, o those of the odd K, each in rising order of K from
// zero in fp32, each addition fused with its product. Weights are widened to fp32, which is exact.
// Sums of x in bf16 with weights in bf16. An output is one sum, as vdpbf16ps adds it up: of each pair of K, in rising order from
// zero, first the product of the odd K and then that of the even one, each addition fused with its product in fp32. Denormal
// values and sums count as zeros of their sign. The missing neighbour of a last even K is a zero times a zero.
// Then + bias, then activation, then + residual, then rounded to dtype, in either case. So a row's bits depend on the row and the
// weights alone, not on level, threads or the rows beside it.
// Bytes moved: the packed weights once for up to 48 rows (256 with vdpbf16ps), and once more for each further 48 (256). A call
// uses up to 100 KB of each thread's stack.
#pragma once
#include <stdint.h>

#include "pinion_quantized.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PINION_PACKED_K = 32, PINION_PACKED_ROWS = 48 };

// `rows` outputs of a tensor in a file become outputs first_output.. of `packed`. Element (row, k) is at
// row * row_stride + k * k_stride of source, which need not be aligned. Types are PINION_SOURCE_*; weight_type is source_type, or
// PINION_SOURCE_F32, or PINION_SOURCE_BF16, to which values are rounded (nearest, ties to even).
typedef struct PinionPackFloats {
    const void* source;
    uint64_t row_stride;
    uint64_t k_stride;
    uint32_t rows;
    uint32_t k;
    uint32_t first_output;
    int32_t source_type;
    int32_t weight_type;
    uint8_t* packed;
} PinionPackFloats;

// x [rows, k] of x_type: PINION_SOURCE_F32, or PINION_SOURCE_BF16 with weights in bf16; out and residual [rows, n] of dtype
// (PINION_F32 or PINION_BF16); all contiguous. bias [n]. bias and residual may be null; residual may be out.
typedef struct PinionPacked {
    const uint8_t* weights;  // packed, 64-byte aligned
    const void* x;
    const float* bias;
    const void* residual;
    void* out;
    uint64_t rows;
    uint32_t n;
    uint32_t k;
    int32_t weight_type;
    int32_t x_type;
    int32_t dtype;
    int32_t activation;  // PINION_ACTIVATION_*
} PinionPacked;

// Bytes of one packed tile.
uint64_t pinion_packed_tile_bytes(uint32_t k, int32_t weight_type);

// Runs of up to 16 rows, the first at row begin * 16.
void pinion_pack_floats(const PinionPackFloats* args, uint64_t begin, uint64_t end);
// Tiles [begin, end), all rows. Levels are PINION_LEVEL_* (pinion_attention.h).
void pinion_packed(const PinionPacked* args, int32_t level, uint64_t begin, uint64_t end);

// The same over everything, on `threads` threads.
void pinion_pack_floats_parallel(const PinionPackFloats* args, int32_t threads);
void pinion_packed_parallel(const PinionPacked* args, int32_t level, int32_t threads);

#ifdef __cplusplus
}
#endif
