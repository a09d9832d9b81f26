// Contract of Pinion's CPU attention kernels. Plain C: raw pointers, no torch, no allocation, no threads.
//
// KV cache of one layer: [blocks, kv_heads, 2, block_size, head_dim], contiguous, K at index 0 and V at index 1 of axis 2.
// One (block, KV head) is one contiguous run of K rows followed by V rows, which is what a decode step streams.
// There are kv_heads * group query heads; query head h reads KV head h / group, and each row of the cache is loaded once for
// the whole group.
//
// Batch: `tokens` query tokens of `seqs` sequences one after another (variable length, no padding).
//   query_start  [seqs + 1]  first query token of each sequence; query_start[seqs] == tokens
//   context_len  [seqs]      sequence length including its query tokens; queries are the last ones; attention is causal
//   prompt_len   [seqs]      positions below it are the prompt's, those from it on were generated
//   table_start  [seqs]      index in `blocks` of the sequence's block table
//   blocks       [..]        block ids; entry table_start[s] + p / block_size holds position p of sequence s
// The caller guarantees that every id and range is inside its array (the Rust wrapper checks it on each call).
//
// dtype: PINION_F32 or PINION_BF16, of the activations. Sums are fp32 in either case. kv_dtype, of the cache: the same, or
// PINION_I8. At the avx512_bf16 level with a bf16 cache, the softmax weights of prefill tiles are rounded to bf16 before
// they meet V.
//
// PINION_I8: a row of the cache is head_dim integers of -127..127, zeros up to a multiple of 4 bytes, and an fp32 scale:
// element d is integer d * scale. The scale is the row's largest magnitude / 127, and integers are rounded to nearest, ties
// to even. A row of magnitudes below 1e-30 has the scale 0; one that holds an infinity or a NaN has zeros and a NaN as
// scale, so that what reads it is NaN as well. Strides of the cache count such rows in place of head_dim elements.
//
// head_dim: 1..=512; multiples of 8 are quick; above 256 the scalar code runs. Alignment: that of the element type;
// 64-byte aligned rows are quickest. Strides are in elements.
//
// Tiles and single tokens are summed in different orders. Which of the two a position gets depends on prompt_len alone: the
// prompt is computed by tiles, be it one token that a prefix cache left, and what was generated token by token, be it again
// after a preemption. So no bit of a result depends on what was cached, or how a prompt was cut.
//
// A window of w lets position p see the positions p - w + 1 to p; keys are summed in chunks from a multiple of 64 on, so that
// the sums do not depend on how a prompt was cut. Nothing is read that lies before the window of the sequence's first query
// token, neither keys and values nor entries of its block table. Capped scores are cap * tanh(scale * score / cap).
//
// Spans: with split_contexts, what a generated token sees is cut into spans of PINION_SPAN positions, or longer ones where
// that would be more than PINION_MAX_SPANS. Each is summed by itself, and the sums are joined in rising order of positions.
// The cut depends on the token's position and the window alone, so it is the same for any number of threads and in any
// company. A token that sees one span is summed as without split_contexts. Tiles are not cut.
//
// Work items: an append item is one query token (all heads). An attention item is one (sequence, tile of at most
// PINION_QUERY_TILE / group prompt tokens or one generated token, KV head), with the head index running fastest. A sequence
// with one generated token that sees more than `dealt_above` positions has, in place of that token's items, one for each (KV
// head, span), with the span index running fastest: they write sums to `partials`, and pinion_join_spans makes the output of
// them. A call does the items [work_begin, work_end); items write disjoint memory, so any split over threads gives
// bit-identical results, and so does any `dealt_above`.
//
// Bytes moved: append reads 2 * kv_heads * head_dim elements a token and writes as many rows. Attention reads, for each item,
// 2 * context rows of the cache (context as far as the tile or span sees), q once, and writes out once; a span
// that is an item writes group * (head_dim + 2) floats, and the join reads them.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { PINION_F32 = 0, PINION_BF16 = 1, PINION_I8 = 2 };
enum { PINION_LEVEL_SCALAR = 0, PINION_LEVEL_AVX2 = 1, PINION_LEVEL_AVX512 = 2, PINION_LEVEL_AVX512_BF16 = 3 };
enum { PINION_QUERY_TILE = 32, PINION_MAX_HEAD_DIM = 512 };
enum { PINION_SPAN = 256, PINION_MAX_SPANS = 64 };
// A token is dealt out if it sees more than this part of the positions that a thread's even share has: 1 / PINION_DEALT.
enum { PINION_DEALT = 4 };

typedef struct PinionBatch {
    const uint32_t* query_start;
    const uint32_t* context_len;
    const uint32_t* prompt_len;
    const uint32_t* table_start;
    const uint32_t* blocks;
    uint32_t seqs;
    uint32_t kv_heads;
    uint32_t group;  // query heads of each KV head
    uint32_t head_dim;
    uint32_t block_size;
    int32_t dtype;
    int32_t kv_dtype;
} PinionBatch;

// q [tokens, kv_heads * group, head_dim] with q_stride elements between tokens; out likewise; cache as above.
typedef struct PinionAttention {
    PinionBatch batch;
    const void* q;
    const void* cache;
    void* out;
    uint64_t q_stride;
    uint64_t out_stride;
    float scale;
    float soft_cap;   // above 0, or 0 for none
    uint32_t window;  // at least 1, or 0 for none
    int32_t split_contexts;
    uint32_t dealt_above;  // set by pinion_paged_attention_parallel; else UINT32_MAX, which deals nothing out
    // Room for what spans add up, which no other call uses at the same time, or null: then no token is dealt out.
    float* partials;       // pinion_partial_floats of the call's threads
    uint32_t* spans_left;  // PINION_DEALT for each of the call's threads
} PinionAttention;

// k, v [tokens, kv_heads, head_dim] with kv_stride elements between tokens; written to the cache bit for bit, or as
// integers.
typedef struct PinionAppend {
    PinionBatch batch;
    const void* k;
    const void* v;
    void* cache;
    uint64_t kv_stride;
} PinionAppend;

// The best level that this CPU and operating system run; decided once.
int32_t pinion_best_level(void);

// Number of attention items in the batch.
uint64_t pinion_paged_attention_work(const PinionAttention* args);

// Does the attention items [work_begin, work_end). `level` must be at most pinion_best_level().
void pinion_paged_attention(const PinionAttention* args, int32_t level, uint64_t work_begin, uint64_t work_end);

// Writes the output of a sequence's dealt token for one KV head, all of whose spans are in `partials`, the first as number
// `first_partial`.
void pinion_join_spans(const PinionAttention* args, int32_t level, uint32_t seq, uint32_t kv_head, uint64_t first_partial);

// Floats of `partials` for calls on at most `threads` threads.
uint64_t pinion_partial_floats(int32_t threads, uint32_t group, uint32_t head_dim);

// Appends the tokens [work_begin, work_end).
void pinion_kv_append(const PinionAppend* args, uint64_t work_begin, uint64_t work_end);

// The two above over all items, on `threads` threads (kernels/cpu/parallel.cpp).
void pinion_paged_attention_parallel(const PinionAttention* args, int32_t level, int32_t threads);
void pinion_kv_append_parallel(const PinionAppend* args, int32_t threads);

#ifdef __cplusplus
}
#endif
