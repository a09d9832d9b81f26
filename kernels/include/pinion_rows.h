// Contract of Pinion's CPU row kernels: what stands between a layer's products. Plain C: raw pointers, no torch, no allocation.
//
//   pinion_rms_norm  out = x / sqrt(mean(x^2) + epsilon) * weight over each run of `width` elements
//   pinion_layer_norm  out = (x - mean) / sqrt(variance + epsilon) * weight + bias over each row
//   pinion_rotate    pairs (i, i + rotary_dim / 2) of each head are rotated in place; columns past rotary_dim stay
//   pinion_gate      out = activation(gate) * up, gate and up side by side
//
// dtype: PINION_F32 or PINION_BF16 (pinion_attention.h) for x and out; weights and tables are fp32. All arithmetic is fp32;
// results are rounded to nearest even. A row's result depends on nothing but the row. Strides are in elements.
// Bytes moved: each element is read once and written once (norms read it twice and three times, all but the first from L1).
// `level` must be at most pinion_best_level(). A row is one run of a norm, one token of a rotation, one row of a gate; rows are
// written apart, so any split over threads gives bit-identical results.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { PINION_RMS = 0, PINION_RMS_WIDE = 1, PINION_RMS_ONE_PLUS = 2 };
enum { PINION_GATE_SILU = 0, PINION_GATE_GELU_TANH = 1, PINION_GATE_GELU_ERF = 2 };

// x and out [tokens, groups, width], `stride` elements between tokens, groups side by side; weight [width] for all groups.
// PINION_RMS rounds to dtype before it multiplies with the weight, as Llama does; PINION_RMS_WIDE after; PINION_RMS_ONE_PLUS
// after multiplying with 1 + weight, as Gemma does. x and out may be the same.
typedef struct PinionRmsNorm {
    const void* x;
    void* out;
    const float* weight;
    uint64_t x_stride;
    uint64_t out_stride;
    uint64_t tokens;
    uint32_t groups;
    uint32_t width;
    float epsilon;
    int32_t order;
    int32_t dtype;
} PinionRmsNorm;

// x and out [rows, width] contiguous; weight and bias [width]. The variance is the mean of (x - mean)^2. x and out may be the same.
typedef struct PinionLayerNorm {
    const void* x;
    void* out;
    const float* weight;
    const float* bias;
    uint64_t rows;
    uint32_t width;
    float epsilon;
    int32_t dtype;
} PinionLayerNorm;

// x [tokens, heads, head_dim]; table [tokens, 2, rotary_dim / 2], cosines before sines.
typedef struct PinionRotate {
    void* x;
    const float* table;
    uint64_t stride;
    uint64_t tokens;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t rotary_dim;
    int32_t dtype;
} PinionRotate;

// x [rows, 2, inner] contiguous, the gate first; out [rows, inner] contiguous.
typedef struct PinionGate {
    const void* x;
    void* out;
    uint64_t rows;
    uint32_t inner;
    int32_t activation;
    int32_t dtype;
} PinionGate;

// The rows [begin, end).
void pinion_norm_rows(const PinionRmsNorm* args, int32_t level, uint64_t begin, uint64_t end);
void pinion_layer_norm_rows(const PinionLayerNorm* args, int32_t level, uint64_t begin, uint64_t end);
void pinion_rotate_rows(const PinionRotate* args, int32_t level, uint64_t begin, uint64_t end);
void pinion_gate_rows(const PinionGate* args, int32_t level, uint64_t begin, uint64_t end);

// The same over all rows, on `threads` threads (kernels/cpu/parallel.cpp).
void pinion_rms_norm(const PinionRmsNorm* args, int32_t level, int32_t threads);
void pinion_layer_norm(const PinionLayerNorm* args, int32_t level, int32_t threads);
void pinion_rotate(const PinionRotate* args, int32_t level, int32_t threads);
void pinion_gate(const PinionGate* args, int32_t level, int32_t threads);

#ifdef __cplusplus
}
#endif
