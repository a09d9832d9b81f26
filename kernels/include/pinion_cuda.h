// Contract of libpinion_cuda.so: device memory, streams, graphs, products and kernels behind plain C.
//
// The object needs nothing but a driver: the CUDA runtime is linked statically, cuBLASLt is opened by name when asked for.
// The same sources, compiled by the host's C++ compiler against kernels/emulation, give an object with the same functions
// whose "device" is this process: what a machine without a GPU can test.
//
// Device memory is a 64-bit address. Every function gives 0 or an error code (pinion_cuda_error_text says what it means);
// launches return when the work is queued. Nothing here allocates in a step, makes a thread or throws.
//
// KV cache of one layer: [blocks, kv_heads, 2, block_size, head_dim], K before V on axis 2, as in pinion_attention.h.
// Block tables: [lanes, table_stride] on the device; entry [lane][p / block_size] is the block that holds position p.
// A query token names its lane and its position; a token with lane PINION_NO_LANE is padding: nothing is read or written
// for it but its row of the output, which becomes 0.
// dtype: PINION_F32, PINION_BF16 or PINION_F16 of activations, weights and cache alike; sums are fp32.
// Rows are contiguous and 16-byte aligned; a width is a multiple of 16 bytes. head_dim is 16, 32, 64 or 128.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { PINION_CUDA_ABI = 9 };
enum { PINION_CUDA_F32 = 0, PINION_CUDA_BF16 = 1, PINION_CUDA_F16 = 2 };
enum { PINION_CUDA_NONE = 0, PINION_CUDA_GELU_TANH = 1, PINION_CUDA_GELU_ERF = 2 };
#define PINION_NO_LANE 0xffffffffu
// In place of a query token's index: padding of the list, nothing is read or written for it.
#define PINION_NO_QUERY 0xffffffffu
// In place of a token id: the token that the lane's last step sampled.
#define PINION_FUTURE_TOKEN 0xffffffffu
// Codes of this object, beside those of the CUDA runtime (which are below 2000).
enum { PINION_CUDA_BAD_ARGUMENT = 5001, PINION_CUDA_NO_PRODUCTS = 5002, PINION_CUDA_PRODUCT_FAILED = 5003, PINION_CUDA_DOES_NOT_FIT = 5004 };

typedef struct PinionCudaFacts {
    char name[128];
    uint64_t memory_bytes;
    uint64_t free_bytes;
    uint32_t multiprocessors;
    uint32_t capability;  // 10 * major + minor
    uint32_t cooperative; // whether grid-wide barriers can be used
    uint32_t emulated;    // 1 when the device is this process
} PinionCudaFacts;

typedef struct PinionCudaCounts { // since the object was opened, but for free_bytes, which is now
    uint64_t launches;
    uint64_t captures;
    uint64_t replays;
    uint64_t to_device_bytes;
    uint64_t to_host_bytes;
    uint64_t allocated_bytes;
    uint64_t free_bytes;
} PinionCudaCounts;

int32_t pinion_cuda_abi(void);
const char* pinion_cuda_error_text(int32_t code);
int32_t pinion_cuda_open(int32_t index, PinionCudaFacts* facts);
void pinion_cuda_counts(PinionCudaCounts* counts);

int32_t pinion_cuda_alloc(uint64_t bytes, uint64_t* address);
int32_t pinion_cuda_free(uint64_t address);
int32_t pinion_cuda_pinned_alloc(uint64_t bytes, void** memory);
int32_t pinion_cuda_pinned_free(void* memory);
// `dependent`: kernels of a step may begin before the ones ahead of them have ended (kernels/cuda/stream.h), where the device
// and the code for it can. The results are the same.
int32_t pinion_cuda_stream_create(void** stream, int32_t dependent);
// A stream that another user of the device made: `raw` is its cudaStream_t, 0 the default stream. It stays that user's:
// destroying what is made here leaves it alone. The emulated device knows no other users and takes 0 alone; what is queued
// there has run when the call returns.
int32_t pinion_cuda_stream_borrow(uint64_t raw, void** stream);
int32_t pinion_cuda_stream_destroy(void* stream);
int32_t pinion_cuda_stream_synchronize(void* stream);
int32_t pinion_cuda_event_create(void** event, int32_t timed);
int32_t pinion_cuda_event_destroy(void* event);
int32_t pinion_cuda_event_record(void* event, void* stream);
// *done is 1 when everything before the record has run.
int32_t pinion_cuda_event_query(void* event, int32_t* done);
int32_t pinion_cuda_event_elapsed_ms(void* begin, void* end, float* ms);
int32_t pinion_cuda_to_device(uint64_t to, const void* from, uint64_t bytes, void* stream);
int32_t pinion_cuda_to_host(void* to, uint64_t from, uint64_t bytes, void* stream);
int32_t pinion_cuda_copy(uint64_t to, uint64_t from, uint64_t bytes, void* stream);
int32_t pinion_cuda_fill(uint64_t to, int32_t byte, uint64_t bytes, void* stream);
int32_t pinion_cuda_capture_begin(void* stream);
int32_t pinion_cuda_capture_end(void* stream, void** graph);
int32_t pinion_cuda_graph_launch(void* graph, void* stream);
int32_t pinion_cuda_graph_destroy(void* graph);

// y [m, n] = activation(x [m, k] . weight [n, k]^T + bias [n]) (+ what y holds, with `accumulate`). y is y_dtype: dtype or
// PINION_CUDA_F32. bias may be 0. method: 0 = own kernel for m <= PINION_GEMV_ROWS_MAX and k a multiple of 16 bytes, else
// the library; 1 = own kernel; 2 = library. The library takes neither a bias nor an activation where y_dtype is not dtype.
// candidates: this number of the library's algorithms are timed at the shape's first use and the quickest is kept; 1 (or an
// `accumulate`, whose y cannot be computed twice) takes the library's own first choice.
// Bytes moved: n * k weights once (own kernel: streamed past L1), x from L1/L2, y once.
enum { PINION_GEMV_ROWS_MAX = 8, PINION_CANDIDATES_MAX = 16 };
typedef struct PinionCudaProduct {
    uint64_t x, weight, bias, y;
    uint32_t m, n, k;
    int32_t dtype, y_dtype, activation, method, accumulate;
    uint32_t candidates;
} PinionCudaProduct;
// Opens cuBLASLt: `path` or, when null, by its usual names. Fails with PINION_CUDA_NO_PRODUCTS.
int32_t pinion_cuda_products_open(const char* path, uint64_t workspace_bytes);
// Algorithms are chosen once for each shape, at its first use: use each shape before ready.
int32_t pinion_cuda_product(const PinionCudaProduct* args, void* stream);

// x [rows, width] += delta [rows, width] + delta_bias [width] (either may be 0; x is then unchanged);
// out = norm(x) * weight + bias: LayerNorm, or RMSNorm when bias is 0 and `rms`. out may be 0: only the sum is made.
typedef struct PinionCudaNorm {
    uint64_t x, delta, delta_bias, weight, bias, out;
    uint32_t rows, width;
    float epsilon;
    int32_t dtype, rms;
} PinionCudaNorm;
int32_t pinion_cuda_norm(const PinionCudaNorm* args, void* stream);

// x [rows, width] = activation(x + bias), in place.
typedef struct PinionCudaBias {
    uint64_t x, bias;
    uint32_t rows, width;
    int32_t dtype, activation;
} PinionCudaBias;
int32_t pinion_cuda_bias_activation(const PinionCudaBias* args, void* stream);

// RMS norms of [rows, groups, width], groups side by side: each group on its own, weight fp32 [width] for all. x_stride and
// out_stride elements lie between rows; out may be x. With 1 / rms = r: PINION_RMS_ROUND_FIRST gives round(round(x * r) *
// weight), PINION_RMS_ROUND_LAST round(x * r * weight), PINION_RMS_ONE_PLUS round(x * r * (1 + weight)).
// Bytes moved: 4 * width a group.
enum { PINION_RMS_ROUND_FIRST = 0, PINION_RMS_ROUND_LAST = 1, PINION_RMS_ONE_PLUS = 2 };
typedef struct PinionCudaRms {
    uint64_t x, weight, out;
    uint32_t rows, groups, width, x_stride, out_stride;
    float epsilon;
    int32_t dtype, order;
} PinionCudaRms;
int32_t pinion_cuda_rms(const PinionCudaRms* args, void* stream);

// x [count] = x * factor / divisor, in place; then, with a soft_cap above 0, soft_cap * tanh(x / soft_cap). Rounded once.
typedef struct PinionCudaScale {
    uint64_t x, count;
    float factor, divisor, soft_cap;
    int32_t dtype;
} PinionCudaScale;
int32_t pinion_cuda_scale(const PinionCudaScale* args, void* stream);

// out [rows, width] = activation(x [rows, 0, width]) * x [rows, 1, width].
enum { PINION_GATE_SILU = 0, PINION_GATE_GELU_TANH = 1, PINION_GATE_GELU_ERF = 2 };
typedef struct PinionCudaGate {
    uint64_t x, out;
    uint32_t rows, width;
    int32_t dtype, activation;
} PinionCudaGate;
int32_t pinion_cuda_gate(const PinionCudaGate* args, void* stream);

// Rotates the first `dim` elements of each head of x [tokens, heads, head_dim] (stride elements between tokens) in place:
// element i pairs with i + dim / 2. angles [positions, dim / 2, 2] fp32: cosine, sine.
typedef struct PinionCudaRope {
    uint64_t x, positions, angles;
    uint32_t tokens, heads, head_dim, dim, stride, positions_max;
    int32_t dtype;
} PinionCudaRope;
int32_t pinion_cuda_rope(const PinionCudaRope* args, void* stream);

// out [tokens, width] = token_table[token] + position_table[position]; position_table may be 0. Ids past the tables are
// clamped: the engine checks what it sends, and a lane's token is below the vocabulary by construction.
typedef struct PinionCudaEmbed {
    uint64_t tokens, positions, lanes, lane_tokens, token_table, position_table, out;
    uint32_t count, width, vocab, positions_max;
    int32_t dtype;
} PinionCudaEmbed;
int32_t pinion_cuda_embed(const PinionCudaEmbed* args, void* stream);

// out [count, width] = x [index[i], width].
typedef struct PinionCudaGather {
    uint64_t x, index, out;
    uint32_t count, width, rows;
    int32_t dtype;
} PinionCudaGather;
int32_t pinion_cuda_gather(const PinionCudaGather* args, void* stream);

// tables[lane][index] = block for each of `count` updates {lane, index, block} (u32 each).
typedef struct PinionCudaTables {
    uint64_t updates, tables;
    uint32_t count, lanes, table_stride;
} PinionCudaTables;
int32_t pinion_cuda_update_tables(const PinionCudaTables* args, void* stream);

// Copies whole blocks {from, to} (u32 each) in every layer; layer_bytes apart, block_bytes each.
typedef struct PinionCudaBlocks {
    uint64_t cache, pairs, layer_bytes, block_bytes;
    uint32_t count, layers;
} PinionCudaBlocks;
int32_t pinion_cuda_copy_blocks(const PinionCudaBlocks* args, void* stream);

typedef struct PinionCudaBatch {
    uint64_t lanes;     // u32 [tokens]
    uint64_t positions; // u32 [tokens]
    uint64_t tables;    // u32 [lanes, table_stride]
    uint32_t tokens, table_stride, heads, kv_heads, head_dim, block_size;
    int32_t dtype;
} PinionCudaBatch;

// Writes k, v [tokens, kv_heads, head_dim] (stride elements between tokens) to the cache of one layer.
typedef struct PinionCudaAppend {
    PinionCudaBatch batch;
    uint64_t k, v, cache;
    uint32_t stride;
} PinionCudaAppend;
int32_t pinion_cuda_kv_append(const PinionCudaAppend* args, void* stream);

// One query token at a time: softmax(scale * q . K) . V over positions 0..=its own.
// With `append`, k and v of each token are taken from `k` and `v` and written to the cache on the way; the tokens must
// then be of different lanes. `queries` (u32 [count]) picks tokens, or is PINION_NO_QUERY; 0 takes tokens 0..count.
// The context is split over `splits` blocks; partials is fp32 [count, heads, splits, head_dim + 2], counters is zeroed
// u32 [count, heads] and is zero again afterwards; both may be 0 with one split.
// Bytes moved: 2 * context * kv_heads * head_dim elements for each query (times heads / kv_heads when that is not
// 1, 2, 4 or 8).
typedef struct PinionCudaAttention {
    PinionCudaBatch batch;
    uint64_t q, k, v, cache, out, queries, partials, counters;
    uint32_t q_stride, kv_stride, out_stride, count, splits, append;
    float scale;
} PinionCudaAttention;
int32_t pinion_cuda_attention(const PinionCudaAttention* args, void* stream);

// The same for every head_dim that is a multiple of 16 bytes, up to PINION_GENERAL_DIM_MAX, over the last `window` positions
// (0: all) and with a soft_cap above 0 on scores: soft_cap * tanh(scale * q . K / soft_cap). K and V of the step's tokens must be
// in the cache already; the context is not split. Plain: correct for every shape, tuned for none.
// Bytes moved: 2 * min(context, window) * heads * head_dim elements for each query.
enum { PINION_GENERAL_DIM_MAX = 256 };
typedef struct PinionCudaGeneral {
    PinionCudaBatch batch;
    uint64_t q, cache, out, queries;
    uint32_t q_stride, out_stride, count, window;
    float scale, soft_cap;
} PinionCudaGeneral;
int32_t pinion_cuda_general_attention(const PinionCudaGeneral* args, void* stream);

// The fused decode step: everything of a GPT-2 between token ids and logits for 1 to PINION_GEMV_ROWS_MAX rows, each the next
// token of another lane, in one kernel that stays on the device (cooperative launch; docs/design/0008-fused-decode.md).
// Computes what embed, norm, product and attention compute one after the other, rounded at the same places:
// inner = 4 * hidden or what the model has; heads == kv_heads; heads * head_dim == hidden == embed.width;
// hidden and inner are multiples of PINION_DECODE_WIDTH_STEP.
// Bytes moved: every weight once, keys and values of the context once, activations through L2.
enum { PINION_DECODE_LAYERS_MAX = 128, PINION_DECODE_BLOCKS_MAX = 1024, PINION_DECODE_WIDTH_STEP = 32 };
typedef struct PinionCudaDecodeLayer {
    uint64_t norm_weight, norm_bias;             // [hidden]
    uint64_t qkv_weight, qkv_bias;               // [3 * hidden, hidden], [3 * hidden]
    uint64_t projection_weight, projection_bias; // [hidden, hidden], [hidden]
    uint64_t norm_mlp_weight, norm_mlp_bias;     // [hidden]
    uint64_t up_weight, up_bias;                 // [inner, hidden], [inner]
    uint64_t down_weight, down_bias;             // [hidden, inner], [hidden]
    uint64_t cache;                              // of this layer
    float scale;                                 // on the scores
    uint32_t padding;
} PinionCudaDecodeLayer;
typedef struct PinionCudaDecode {
    PinionCudaEmbed embed;                       // out [rows, hidden] is the residual, whole at the end; count = rows
    PinionCudaAttention attention;               // of every layer, but for cache and scale; q is qkv [rows, 3, hidden], append 1
    uint64_t layers;                             // PinionCudaDecodeLayer [layer_count], on the device
    uint64_t norm_final_weight, norm_final_bias; // [hidden]
    uint64_t head;                               // [vocab, hidden]
    uint64_t inner_rows;                         // [rows, inner], overwritten
    uint64_t logits;                             // fp32 [rows, vocab]
    uint64_t barrier;                            // u32, zero before the first launch and left alone from then on
    uint64_t stamps;                             // u64 [5 * layer_count + 1, PINION_DECODE_STAMPS, blocks], or 0; see below
    uint32_t layer_count, hidden, inner, vocab;
    uint32_t blocks, group_slots; // from the plan, or fewer
    int32_t activation;
    float epsilon;
} PinionCudaDecode;
// With stamps each block notes the clock of its multiprocessor in each phase (QKV, attention, projection, up, down; the head after
// the last layer): begun, the rows are there, done and told the others, all others are done.
enum { PINION_DECODE_BEGUN = 0, PINION_DECODE_BROUGHT, PINION_DECODE_DONE, PINION_DECODE_PASSED, PINION_DECODE_STAMPS };
typedef struct PinionCudaDecodePlan {
    uint32_t blocks;       // as many as are on the device at once: one a multiprocessor
    uint32_t group_slots;  // how much of the weights is fetched ahead
    uint32_t shared_bytes; // of a block
} PinionCudaDecodePlan;
// Looks at the sizes in `args` and at the device. PINION_CUDA_DOES_NOT_FIT when a block's shared memory cannot hold the rows.
// Not while a stream is captured.
int32_t pinion_cuda_decode_plan(const PinionCudaDecode* args, PinionCudaDecodePlan* plan);
// More blocks than can be on the device at once are an error of the launch. No sum crosses a block but those of attention,
// which are joined in the order of the parts: the same `splits` give the same bits, with any `blocks`.
int32_t pinion_cuda_decode_step(const PinionCudaDecode* args, void* stream);

// Tiles of up to PINION_PREFILL_TILE query tokens that follow each other in one sequence, on tensor cores (mma m16n8k16):
// bf16 and f16, head_dim 64 or 128. tiles: u32 [count, 2] {first token, tokens}, without tokens for padding. K and V must be in the cache already. A
// sequence's later tiles come behind its earlier ones, for speed only. scale is above 0.
enum { PINION_PREFILL_TILE = 64 };
typedef struct PinionCudaPrefill {
    PinionCudaBatch batch;
    uint64_t q, cache, out, tiles;
    uint32_t q_stride, out_stride, count;
    float scale;
} PinionCudaPrefill;
int32_t pinion_cuda_prefill_attention(const PinionCudaPrefill* args, void* stream);

// What a request does to one of its logits before anything is drawn. An id stands once in a row's changes. In this order:
// with PINION_CHANGE_RECALLED a positive logit is divided and any other multiplied by the row's repetition penalty; with a
// count in the low bits, frequency * count and presence are taken from it; the bias is added; with PINION_CHANGE_BANNED it
// becomes the lowest finite number. Clamped to finite numbers at each; a logit that is not finite stays.
#define PINION_CHANGE_RECALLED 0x80000000u
#define PINION_CHANGE_BANNED 0x40000000u
#define PINION_CHANGE_COUNT 0x3fffffffu
typedef struct PinionCudaChange {
    uint32_t id;
    uint32_t what;
    float bias;
} PinionCudaChange;

// How one row is sampled. `draw` is the uniform number that (seed, position) stand for; the host makes it. With
// PINION_DRAW_RECALLS_LAST the token that lane_tokens[lane] holds before the launch counts as one more token of the output:
// its change is RECALLED and counts one more than the row's changes say, whether it stands there or not. With PINION_DRAW_SCORED
// the drawn token's logit before any change is told, and the bias of each of the row's changes becomes the logit as it was. With
// PINION_DRAW_MASKED, after the changes, what has no bit in the row's mask becomes the lowest finite number; if nothing that
// has one is above that, all that have one become 0. A mask has a bit at least.
enum { PINION_SAMPLE_SKIP = 0, PINION_SAMPLE_GREEDY = 1, PINION_SAMPLE_DRAW = 2 };
enum { PINION_DRAW_RECALLS_LAST = 1, PINION_DRAW_SCORED = 2, PINION_DRAW_MASKED = 4 };
typedef struct PinionCudaDraw {
    double draw;
    float inverse_temperature;
    float top_p;
    float min_p;
    uint32_t top_k;
    uint32_t lane;
    uint32_t mode;
    uint32_t changes_begin; // the row's first change
    uint32_t changes_count;
    float repetition;
    float frequency;
    float presence;
    uint32_t flags;
    uint32_t row; // of `logits` and `sampled`
    uint32_t mask; // of `masks`
} PinionCudaDraw;
enum { PINION_SAMPLED_NONE = 0, PINION_SAMPLED_TOKEN = 1, PINION_SAMPLED_NONFINITE = 2 };
typedef struct PinionCudaSampled {
    uint32_t token;
    uint32_t state;
    float logit; // of the token, with PINION_DRAW_SCORED
} PinionCudaSampled;
// The rows' changes are made in `logits` first; changes [changes_count], which may be 0.
// logits fp32 [logits_rows, vocab]; draws [rows], each of another row; sampled [logits_rows]; the token also goes to lane_tokens[lane] (u32). masks: a bit for each id,
// u32 [masks_count, vocab / 32 rounded up]; may be 0. vocab is at most
// PINION_SAMPLE_VOCAB_MAX. Probabilities are summed in fixed point (2^-45 of the likeliest), so a row's token does not
// depend on the order of the sum: the same as the host's sampler but where a draw lands within that of an edge.
enum { PINION_SAMPLE_VOCAB_MAX = 262144 };
typedef struct PinionCudaSample {
    uint64_t logits, draws, sampled, lane_tokens, changes, masks;
    uint32_t rows, logits_rows, vocab, lanes, changes_count, masks_count;
} PinionCudaSample;
int32_t pinion_cuda_sample(const PinionCudaSample* args, void* stream);

// What the host needs to say how likely any token of a row is: logit - max - ln(sum), and its `best` likeliest tokens, ties
// to the lower id. Before the sampler, which changes the logits. A row that is not finite has scores without a meaning.
enum { PINION_BEST_MAX = 20 };
typedef struct PinionCudaScored {
    uint32_t row;
    uint32_t best; // how many are wanted
} PinionCudaScored;
typedef struct PinionCudaScores {
    double sum; // of exp(logit - max), in a fixed order
    float max;
    uint32_t best_count; // no more than there are
    struct {
        uint32_t id;
        float logit;
    } best[PINION_BEST_MAX];
} PinionCudaScores;
// logits fp32 [rows, vocab]; scored [count]; scores [count], 8-byte aligned. vocab as for the sampler.
typedef struct PinionCudaScore {
    uint64_t logits, scored, scores;
    uint32_t count, rows, vocab;
} PinionCudaScore;
int32_t pinion_cuda_score(const PinionCudaScore* args, void* stream);

#ifdef __cplusplus
}
#endif
