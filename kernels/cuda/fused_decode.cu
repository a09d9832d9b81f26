// The whole decode step of a GPT-2 in one kernel that stays on the device: `GPT2LMHeadModel` of transformers'
// models/gpt2/modeling_gpt2.py for up to eight rows, from the token ids to the logits. Contract: pinion_cuda.h.
//
// One function a phase, a barrier over the grid between two phases. Each block makes its share of every product's outputs
// for all rows; the rows themselves are small, and each block brings them to its shared memory again in each phase. Weights
// come from the WeightStream (fused_decode.h), which does not stop at barriers. Values are rounded where the kernel-by-kernel
// path rounds them, so the two differ by the order of sums in the norms and in attention alone.
#include "embed.h"
#include "fused_decode.h"
#include "rows.h"

namespace pinion {
namespace {

using namespace fused;

// What an output's last step needs beside the sum: read before the walk, so that it is there after it.
struct Operands {
    float bias = 0.0f;
    float before = 0.0f;
};

// y [rows, outputs] = activation(sum + bias).
template <typename T>
struct Activated {
    const T* bias;
    T* y;
    unsigned outputs;
    int32_t activation;

    __device__ __forceinline__ Operands load(unsigned, unsigned output) const { return {to_float(bias[output]), 0.0f}; }
    __device__ __forceinline__ void store(unsigned row, unsigned output, float sum, const Operands& operands) const {
        y[size_t(row) * outputs + output] = from_float<T>(activate(sum + operands.bias, activation));
    }
};

// residual [rows, hidden] += sum + bias.
template <typename T>
struct Joined {
    const T* bias;
    T* residual;
    unsigned hidden;

    __device__ __forceinline__ Operands load(unsigned row, unsigned output) const {
        return {to_float(bias[output]), fresh_float(residual + size_t(row) * hidden + output)};
    }
    __device__ __forceinline__ void store(unsigned row, unsigned output, float sum, const Operands& operands) const {
        float rounded = to_float(from_float<T>(sum));
        residual[size_t(row) * hidden + output] = from_float<T>(operands.before + rounded + operands.bias);
    }
};

// logits [rows, vocab] = sum.
struct Logits {
    float* logits;
    unsigned vocab;

    __device__ __forceinline__ Operands load(unsigned, unsigned) const { return {}; }
    __device__ __forceinline__ void store(unsigned row, unsigned output, float sum, const Operands&) const {
        logits[size_t(row) * vocab + output] = sum;
    }
};

template <typename T, unsigned ROWS>
class Step {
  public:
    __device__ __forceinline__ Step(const PinionCudaDecode& args, const Places& places)
        : args(args), rows(args.embed.count), layers(copied_layers(args)),
          x(reinterpret_cast<T*>(shared_bytes() + places.rows)), barrier(args.barrier),
          weights(args, layers, reinterpret_cast<Chunk*>(shared_bytes() + places.weights)) {
        prefetch_vectors(0);
    }

    // `ln_1` and `c_attn`: q, k and v of every row. The first layer makes the embeddings on the way.
    __device__ __forceinline__ void norm_qkv(unsigned layer) {
        const PinionCudaDecodeLayer& block = layers[layer];
        if (layer == 0)
            norm_embeddings(block);
        else
            norm_residual(block.norm_weight, block.norm_bias);
        unsigned outputs = 3 * args.hidden;
        Activated<T> to = {at<T>(block.qkv_bias), at<T>(args.attention.q), outputs, PINION_CUDA_NONE};
        product(outputs, args.hidden, to);
        barrier.arrive();
        prefetch_context(block);
        prefetch_vectors(layer + 1);
        barrier.wait();
    }

    // Attention of every (row, head, part of the context), with the append of the new keys and values.
    __device__ __forceinline__ void attention(unsigned layer) {
        PinionCudaAttention work = args.attention;
        work.cache = layers[layer].cache;
        work.scale = layers[layer].scale;
        for_each_part([&](unsigned row, unsigned head, unsigned split) {
            switch (args.attention.batch.head_dim) {
            case 16: return attend_part<16>(work, row, head, split);
            case 32: return attend_part<32>(work, row, head, split);
            case 64: return attend_part<64>(work, row, head, split);
            default: return attend_part<LARGEST_DIM>(work, row, head, split);
            }
        });
        pass();
    }

    // `c_proj` of attention, joined to the residual.
    __device__ __forceinline__ void projection(unsigned layer) {
        load_rows(at<T>(args.attention.out), args.hidden);
        product(args.hidden, args.hidden, joined(layers[layer].projection_bias));
        pass();
    }

    // `ln_2`, `c_fc` and the activation.
    __device__ __forceinline__ void norm_up(unsigned layer) {
        const PinionCudaDecodeLayer& block = layers[layer];
        norm_residual(block.norm_mlp_weight, block.norm_mlp_bias);
        Activated<T> to = {at<T>(block.up_bias), at<T>(args.inner_rows), args.inner, args.activation};
        product(args.inner, args.hidden, to);
        pass();
    }

    // `c_proj` of the MLP, joined to the residual.
    __device__ __forceinline__ void down(unsigned layer) {
        load_rows(at<T>(args.inner_rows), args.inner);
        product(args.hidden, args.inner, joined(layers[layer].down_bias));
        pass();
    }

    // `ln_f` and `lm_head`.
    __device__ __forceinline__ void head() {
        norm_residual(args.norm_final_weight, args.norm_final_bias);
        product(args.vocab, args.hidden, Logits{at<float>(args.logits), args.vocab});
    }

  private:
    static constexpr unsigned N = PER_CHUNK<T>;

    __device__ __forceinline__ static const PinionCudaDecodeLayer* copied_layers(const PinionCudaDecode& args) {
        static_assert(sizeof(PinionCudaDecodeLayer) % sizeof(Chunk) == 0, "copied in whole chunks");
        Chunk* to = &shared_as<Chunk>();
        const Chunk* from = at<const Chunk>(args.layers);
        unsigned chunks = args.layer_count * (sizeof(PinionCudaDecodeLayer) / sizeof(Chunk));
        for (unsigned i = threadIdx.x; i < chunks; i += THREADS) to[i] = from[i];
        __syncthreads();
        return &shared_as<PinionCudaDecodeLayer>();
    }

    // What the phase stored is visible to all blocks in the next.
    __device__ __forceinline__ void pass() {
        barrier.arrive();
        barrier.wait();
    }

    __device__ __forceinline__ Joined<T> joined(uint64_t bias) const {
        return {at<T>(bias), at<T>(args.embed.out), args.hidden};
    }

    // x [rows, width] in shared memory = rows that other blocks made.
    __device__ __forceinline__ void load_rows(const T* from, unsigned width) {
        // A few loads in flight at a time: each is a trip to L2.
        constexpr unsigned AHEAD = 4, STEP = THREADS * N;
        unsigned end = rows * width;
        for (unsigned i = threadIdx.x * N; i < end; i += AHEAD * STEP) {
            Chunk chunks[AHEAD];
#pragma unroll
            for (unsigned a = 0; a < AHEAD; a++)
                if (i + a * STEP < end) chunks[a] = fresh_chunk(from + i + a * STEP);
#pragma unroll
            for (unsigned a = 0; a < AHEAD; a++)
                if (i + a * STEP < end) store_chunk(x + i + a * STEP, chunks[a]);
        }
        __syncthreads();
    }

    __device__ __forceinline__ void norm_residual(uint64_t weight, uint64_t bias) {
        const T* residual = at<T>(args.embed.out);
        for (unsigned row = threadIdx.x / WARP; row < rows; row += WARPS)
            norm_row(row, weight, bias, [&](unsigned i) { return fresh_chunk(residual + size_t(row) * args.hidden + i); });
        __syncthreads();
    }

    // Every block embeds every row for itself; one block a row stores it, for the projection two barriers on.
    __device__ __forceinline__ void norm_embeddings(const PinionCudaDecodeLayer& block) {
        for (unsigned row = threadIdx.x / WARP; row < rows; row += WARPS) {
            EmbeddedRow<T> embedded(args.embed, row);
            T* residual = at<T>(args.embed.out) + size_t(row) * args.hidden;
            bool stores = row % gridDim.x == blockIdx.x;
            norm_row(row, block.norm_weight, block.norm_bias, [&](unsigned i) {
                Chunk chunk = embedded.chunk(i);
                if (stores) store_chunk(residual + i, chunk);
                return chunk;
            });
        }
        __syncthreads();
    }

    // One row of x = norm(what `load` gives), by one warp. A lane reads back only what it wrote itself.
    template <typename Load>
    __device__ __forceinline__ void norm_row(unsigned row, uint64_t weight, uint64_t bias, const Load& load) {
        unsigned first = threadIdx.x % WARP * N, width = args.hidden;
        T* to = x + size_t(row) * width;
        float values[N], factors[N], shifts[N], sum = 0.0f, squares = 0.0f;
        for (unsigned i = first; i < width; i += WARP * N) {
            Chunk chunk = load(i);
            store_chunk(to + i, chunk);
            unpack<T>(chunk, values);
            for (unsigned j = 0; j < N; j++) sum += values[j];
        }
        float mean = warp_reduce(sum, Sum()) / float(width);
        for (unsigned i = first; i < width; i += WARP * N) {
            unpack<T>(load_chunk(to + i), values);
            for (unsigned j = 0; j < N; j++) squares += (values[j] - mean) * (values[j] - mean);
        }
        float scale = 1.0f / sqrtf(warp_reduce(squares, Sum()) / float(width) + args.epsilon);
        for (unsigned i = first; i < width; i += WARP * N) {
            unpack<T>(load_chunk(to + i), values);
            unpack<T>(load_chunk(at<T>(weight) + i), factors);
            unpack<T>(load_chunk(at<T>(bias) + i), shifts);
            for (unsigned j = 0; j < N; j++) values[j] = (values[j] - mean) * scale * factors[j] + shifts[j];
            store_chunk(to + i, pack<T>(values));
        }
    }

    // This block's outputs of x . weight^T for all rows, a warp an output.
    template <typename Output>
    __device__ __forceinline__ void product(unsigned outputs, unsigned inputs, const Output& to) {
        unsigned row = row_of_lane<ROWS>();
        bool stores = is_first_of_row<ROWS>() && row < rows;
        Range range = share_of(outputs);
        for (unsigned output = range.first + threadIdx.x / WARP; output < range.end; output += WARPS) {
            Operands operands;
            if (stores) operands = to.load(row, output);
            float sums[1][ROWS];
#pragma unroll
            for (unsigned r = 0; r < ROWS; r++) sums[0][r] = 0.0f;
            for (unsigned first = 0; first < inputs; first += WARP * N) {
                Chunk chunks[1] = {weights.take()};
                unsigned i = first + threadIdx.x % WARP * N;
                // Rows past the last repeat it; what they sum to is not stored.
                auto x_chunk = [&](unsigned r) { return load_chunk(x + i + (r < rows ? r : rows - 1) * inputs); };
                if (i < inputs) multiply<T, 1, ROWS>(chunks, x_chunk, sums);
            }
            float sum = reduce_rows<ROWS>(sums[0]);
            if (stores) to.store(row, output, sum, operands);
        }
    }

    // Attention's work is dealt to the blocks in turn.
    template <typename Do>
    __device__ __forceinline__ void for_each_part(const Do& act) {
        unsigned heads = args.attention.batch.heads, splits = args.attention.splits;
        for (unsigned part = blockIdx.x; part < rows * heads * splits; part += gridDim.x)
            act(part / splits / heads, part / splits % heads, part % splits);
    }

    template <unsigned DIM>
    __device__ __forceinline__ void attend_part(const PinionCudaAttention& work, unsigned row, unsigned head, unsigned split) {
        attend<T, DIM, 1, THREADS>(work, row, head, split, *reinterpret_cast<AttentionShared<1, DIM, WARPS>*>(x));
        __syncthreads();
    }

    // The keys and values that this block will read, but for those of this step, are there already: to L2 with them.
    __device__ __forceinline__ void prefetch_context(const PinionCudaDecodeLayer& block) {
        const PinionCudaBatch& batch = args.attention.batch;
        unsigned row_bytes = batch.head_dim * unsigned(sizeof(T));
        for_each_part([&](unsigned row, unsigned head, unsigned split) {
            unsigned lane = at<uint32_t>(batch.lanes)[row];
            if (lane == PINION_NO_LANE) return;
            const uint32_t* table = at<uint32_t>(batch.tables) + size_t(lane) * batch.table_stride;
            Part part = part_of(at<uint32_t>(batch.positions)[row], args.attention.splits, split);
            for (unsigned i = threadIdx.x; i < 2 * part.size(); i += THREADS) {
                size_t key = cache_row(batch, table, head, part.begin + i / 2);
                size_t element = key + (i % 2 == 0 ? 0 : size_t(batch.block_size) * batch.head_dim);
                prefetch_range(block.cache + element * sizeof(T), row_bytes);
            }
        });
    }

    // The small operands of a layer, or of the last norm: what a phase would otherwise wait for just when it is quick.
    __device__ __forceinline__ void prefetch_vectors(unsigned layer) {
        unsigned whole = args.hidden * unsigned(sizeof(T));
        if (layer == args.layer_count) {
            prefetch_together(args.norm_final_weight, whole);
            prefetch_together(args.norm_final_bias, whole);
            return;
        }
        const PinionCudaDecodeLayer& block = layers[layer];
        prefetch_together(block.norm_weight, whole);
        prefetch_together(block.norm_bias, whole);
        prefetch_together(block.norm_mlp_weight, whole);
        prefetch_together(block.norm_mlp_bias, whole);
        prefetch_share(block.qkv_bias, 3 * args.hidden);
        prefetch_share(block.projection_bias, args.hidden);
        prefetch_share(block.up_bias, args.inner);
        prefetch_share(block.down_bias, args.hidden);
    }

    __device__ __forceinline__ void prefetch_share(uint64_t bias, unsigned outputs) {
        Range range = share_of(outputs);
        prefetch_together(bias + range.first * sizeof(T), (range.end - range.first) * unsigned(sizeof(T)));
    }

    const PinionCudaDecode& args;
    unsigned rows;
    const PinionCudaDecodeLayer* layers; // in shared memory
    T* x;                                // [rows, hidden or inner] in shared memory
    GridBarrier barrier;
    WeightStream<T> weights;
};

// A block a multiprocessor: shared memory allows no more.
template <typename T, unsigned ROWS>
__global__ void __launch_bounds__(THREADS, 1) fused_decode_kernel(PinionCudaDecode args) {
    Step<T, ROWS> step(args, places_of(args, ROWS, sizeof(T)));
    for (unsigned layer = 0; layer < args.layer_count; layer++) {
        step.norm_qkv(layer);
        step.attention(layer);
        step.projection(layer);
        step.norm_up(layer);
        step.down(layer);
    }
    step.head();
}

using Kernel = void (*)(PinionCudaDecode);
struct Variant {
    Kernel kernel = nullptr;
    unsigned rows = 0, element_bytes = 0;
};

template <typename T, unsigned ROWS>
Variant variant() {
    return {&fused_decode_kernel<T, ROWS>, ROWS, sizeof(T)};
}

template <typename T>
Variant variant_for_rows(unsigned rows) {
    // fp32 is for comparisons: one variant will do.
    if constexpr (sizeof(T) == 2) {
        if (rows == 1) return variant<T, 1>();
        if (rows == 2) return variant<T, 2>();
        if (rows <= 4) return variant<T, 4>();
    }
    (void)rows;
    return variant<T, 8>();
}

// The kernel for a step; none if the step is outside the contract.
Variant variant_of(const PinionCudaDecode& args) {
    const PinionCudaBatch& batch = args.attention.batch;
    unsigned rows = args.embed.count, chunk = batch.dtype == PINION_CUDA_F32 ? 4 : 8;
    constexpr uint64_t INDEX_MAX = uint64_t{1} << 20; // of a block's share, times outputs: see share_of
    bool good = batch_is_good(batch) && batch.kv_heads == batch.heads && uint64_t{batch.heads} * batch.head_dim == args.hidden;
    good = good && args.hidden == args.embed.width && args.hidden % chunk == 0 && args.inner > 0 && args.inner % chunk == 0;
    good = good && rows > 0 && rows <= PINION_GEMV_ROWS_MAX && batch.tokens == rows && args.attention.count == rows;
    good = good && args.layer_count > 0 && args.layer_count <= PINION_DECODE_LAYERS_MAX && args.embed.dtype == batch.dtype;
    good = good && args.vocab > 0 && args.vocab < INDEX_MAX && args.inner < INDEX_MAX && 3 * uint64_t{args.hidden} < INDEX_MAX;
    if (!good) return {};
    if (batch.dtype == PINION_CUDA_F16) return variant_for_rows<f16>(rows);
    if (batch.dtype == PINION_CUDA_BF16) return variant_for_rows<bf16>(rows);
    if (batch.dtype == PINION_CUDA_F32) return variant_for_rows<float>(rows);
    return {};
}

} // namespace
} // namespace pinion

using namespace pinion;

extern "C" int32_t pinion_cuda_decode_plan(const PinionCudaDecode* given, PinionCudaDecodePlan* plan) {
    PinionCudaDecode args = *given;
    *plan = PinionCudaDecodePlan();
    Variant variant = variant_of(args);
    if (!variant.kernel) return PINION_CUDA_BAD_ARGUMENT;
    Room room;
    if (int32_t code = room_of_device(&room)) return code;
    args.group_slots = 0;
    unsigned fixed = places_of(args, variant.rows, variant.element_bytes).bytes;
    unsigned left = room.shared_bytes > fixed ? room.shared_bytes - fixed : 0;
    unsigned slots = left / (fused::GROUPS * fused::SLOT_BYTES);
    if (slots == 0) return PINION_CUDA_DOES_NOT_FIT;
    args.group_slots = slots < fused::GROUP_SLOTS_MAX ? slots : fused::GROUP_SLOTS_MAX;
    unsigned bytes = places_of(args, variant.rows, variant.element_bytes).bytes, at_once = 0;
    if (int32_t code = blocks_at_once(variant.kernel, fused::THREADS, bytes, room, &at_once)) return code;
    if (at_once == 0) return PINION_CUDA_DOES_NOT_FIT;
    plan->blocks = room.multiprocessors;
    plan->group_slots = args.group_slots;
    plan->shared_bytes = bytes;
    return 0;
}

extern "C" int32_t pinion_cuda_decode_step(const PinionCudaDecode* given, void* stream) {
    PinionCudaDecode args = *given;
    Variant variant = variant_of(args);
    uint32_t splits = args.attention.splits;
    bool splits_are_good = splits == 1 || (splits > 1 && splits <= 64 && args.attention.partials && args.attention.counters);
    bool grid_is_good = args.blocks > 0 && args.blocks <= PINION_DECODE_BLOCKS_MAX && args.group_slots > 0 &&
                        args.group_slots <= fused::GROUP_SLOTS_MAX;
    if (!variant.kernel || !splits_are_good || !grid_is_good || !args.barrier) return PINION_CUDA_BAD_ARGUMENT;
    unsigned bytes = places_of(args, variant.rows, variant.element_bytes).bytes;
    Kernel kernel = variant.kernel;
    return PINION_LAUNCH_COOPERATIVE(kernel, dim3(args.blocks), dim3(fused::THREADS), bytes, stream, args);
}
