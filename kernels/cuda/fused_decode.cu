// The whole decode step of a GPT-2 in one kernel that stays on the device: `GPT2LMHeadModel` of transformers'
// models/gpt2/modeling_gpt2.py for up to eight rows, from the token ids to the logits. Contract: pinion_cuda.h.
//
// A layer is four products and attention, with a barrier over the grid behind each. Each block makes its share of every product's outputs
// for all rows; the rows themselves are small, and each block brings them to its shared memory again in each phase. Weights
// come from the WeightStream (fused_decode.h), which does not stop at barriers, and are multiplied with by tensor cores
// (tile.h). Values are rounded where the kernel-by-kernel path rounds them, so the two differ by the order of sums alone.
#include "embed.h"
#include "fused_decode.h"

namespace pinion {
namespace {

using namespace fused;

// One product of a layer and what stands around it: x = norm(residual), or rows that other blocks made; then
// y = activation(sum + bias), or y += sum + bias. One code for all of them: a layer's instructions stay in the multiprocessor.
template <typename T>
struct Phase {
    const T* from;
    uint64_t scale, shift; // of the norm; 0 without one
    const T* bias;
    T* y; // [rows, outputs]
    unsigned outputs, inputs;
    int32_t activation;
    bool joins;
};

// What an output's last step needs beside the sum: asked for before the walk, so that it is there after it.
template <typename T>
struct Operands {
    T bias, before;
};

// What a lane of a norm has of scale and shift, a few chunks of its walk.
template <typename T>
struct Vectors {
    static constexpr unsigned AHEAD = 4, STEP = WARP * PER_CHUNK<T>;
    Chunk factors[AHEAD], shifts[AHEAD];

    __device__ __forceinline__ void ask(uint64_t weight, uint64_t bias, unsigned i, unsigned width) {
#pragma unroll
        for (unsigned a = 0; a < AHEAD; a++) {
            if (i + a * STEP >= width) continue;
            factors[a] = early_chunk(at<T>(weight) + i + a * STEP);
            shifts[a] = early_chunk(at<T>(bias) + i + a * STEP);
        }
    }
};

template <typename T>
class Step {
  public:
    __device__ __forceinline__ Step(const PinionCudaDecode& args, const Places& places)
        : args(args), rows(args.embed.count), layers(copied_layers(args)),
          partials(*reinterpret_cast<Partials*>(shared_bytes() + places.partials)),
          x(reinterpret_cast<T*>(shared_bytes() + places.rows)), barrier(args.barrier),
          weights(args, layers, reinterpret_cast<Chunk*>(shared_bytes() + places.weights)) {
        prefetch_vectors(0);
    }

    // One of a layer's products for all rows. The very first makes the embeddings on the way.
    __device__ __forceinline__ void product(unsigned layer, unsigned product) {
        const Phase<T> phase = phase_of(layers[layer], product);
        begin(layer * LAYER_PHASES + (product == QKV ? 0 : product + 1));
        product_of(phase, [&] {
            if (phase.scale == 0)
                load_rows(phase.from, phase.inputs);
            else if (layer == 0 && product == QKV)
                norm_embeddings(phase.scale, phase.shift);
            else
                norm_rows(phase.scale, phase.shift);
        });
        arrive();
        if (product == QKV) {
            prefetch_context(layers[layer]);
            prefetch_vectors(layer + 1);
        }
        wait();
    }

    // Attention of every (row, head, part of the context), with the append of the new keys and values.
    __device__ __forceinline__ void attention(unsigned layer) {
        PinionCudaAttention work = args.attention;
        work.cache = layers[layer].cache;
        work.scale = layers[layer].scale;
        begin(layer * LAYER_PHASES + 1);
        for_each_part([&](unsigned row, unsigned head, unsigned split) {
            switch (args.attention.batch.head_dim) {
            case 16: return attend_part<16>(work, row, head, split);
            case 32: return attend_part<32>(work, row, head, split);
            case 64: return attend_part<64>(work, row, head, split);
            default: return attend_part<LARGEST_DIM>(work, row, head, split);
            }
        });
        arrive();
        wait();
    }

    // `ln_f` and `lm_head`.
    __device__ __forceinline__ void head() {
        begin(args.layer_count * LAYER_PHASES);
        norm_rows(args.norm_final_weight, args.norm_final_bias);
        stamp(PINION_DECODE_BROUGHT);
        Range range = share_of(args.vocab);
        Walk walk = walk_of(false);
        for (unsigned first = range.first + walk.tile * TILE_OUTPUTS; first < range.end; first += walk.tiles * TILE_OUTPUTS) {
            Tile<T> tile = sums_of(walk, args.hidden);
            tile.each(rows, [&](unsigned row, unsigned output, float sum) {
                if (first + output < range.end) at<float>(args.logits)[size_t(row) * args.vocab + first + output] = sum;
            });
        }
        stamp(PINION_DECODE_DONE);
        stamp(PINION_DECODE_PASSED);
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

    // A phase from its begin to where all blocks have ended it.
    __device__ __forceinline__ void begin(unsigned which) {
        phase = which;
        stamp(PINION_DECODE_BEGUN);
    }
    __device__ __forceinline__ void arrive() {
        barrier.arrive();
        stamp(PINION_DECODE_DONE);
    }
    __device__ __forceinline__ void wait() {
        barrier.wait();
        stamp(PINION_DECODE_PASSED);
    }
    __device__ __forceinline__ void stamp(unsigned what) const {
        if (!args.stamps || threadIdx.x != 0) return;
        at<uint64_t>(args.stamps)[(phase * PINION_DECODE_STAMPS + what) * gridDim.x + blockIdx.x] = device_clock();
    }

    // `ln_1` and `c_attn`; `c_proj` of attention; `ln_2`, `c_fc` and the activation; `c_proj` of the MLP.
    __device__ __forceinline__ Phase<T> phase_of(const PinionCudaDecodeLayer& block, unsigned product) const {
        T* residual = at<T>(args.embed.out);
        T* inner = at<T>(args.inner_rows);
        unsigned hidden = args.hidden;
        switch (product) {
        case QKV:
            return {residual, block.norm_weight, block.norm_bias, at<T>(block.qkv_bias), at<T>(args.attention.q), 3 * hidden, hidden,
                    PINION_CUDA_NONE, false};
        case PROJECTION:
            return {at<T>(args.attention.out), 0, 0, at<T>(block.projection_bias), residual, hidden, hidden, PINION_CUDA_NONE, true};
        case UP:
            return {residual, block.norm_mlp_weight, block.norm_mlp_bias, at<T>(block.up_bias), inner, args.inner, hidden,
                    args.activation, false};
        default:
            return {inner, 0, 0, at<T>(block.down_bias), residual, hidden, args.inner, PINION_CUDA_NONE, true};
        }
    }

    __device__ __forceinline__ static void ask(Operands<T>& operands, const Phase<T>& phase, unsigned row, unsigned output) {
        operands.bias = fresh(phase.bias + output);
        if (phase.joins) operands.before = fresh(phase.y + size_t(row) * phase.outputs + output);
    }
    __device__ __forceinline__ static void store(const Phase<T>& phase, unsigned row, unsigned output, float sum,
                                                 const Operands<T>& operands) {
        float bias = to_float(operands.bias);
        float value = phase.joins ? to_float(operands.before) + to_float(from_float<T>(sum)) + bias
                                  : activate(sum + bias, phase.activation);
        phase.y[size_t(row) * phase.outputs + output] = from_float<T>(value);
    }

    // x [rows, width] in shared memory, arranged for the tiles = rows that other blocks made.
    __device__ __forceinline__ void load_rows(const T* from, unsigned width) {
        // A few loads in flight at a time: each is a trip to L2.
        constexpr unsigned AHEAD = 4, STEP = THREADS * N;
        unsigned end = rows * width, padding = row_stride<T>(width) - width;
        for (unsigned i = threadIdx.x * N; i < end; i += AHEAD * STEP) {
            Chunk chunks[AHEAD];
#pragma unroll
            for (unsigned a = 0; a < AHEAD; a++)
                if (i + a * STEP < end) chunks[a] = fresh_chunk(from + i + a * STEP);
#pragma unroll
            for (unsigned a = 0; a < AHEAD; a++) {
                unsigned to = i + a * STEP;
                if (to < end) store_chunk(x + to + to / width * padding, Tile<T>::arranged(chunks[a]));
            }
        }
        __syncthreads();
    }

    __device__ __forceinline__ void norm_rows(uint64_t scale, uint64_t shift) {
        const T* residual = at<T>(args.embed.out);
        for (unsigned row = threadIdx.x / WARP; row < rows; row += WARPS)
            norm_row(row, scale, shift, [&](unsigned i) { return fresh_chunk(residual + size_t(row) * args.hidden + i); });
        __syncthreads();
    }

    // Every block embeds every row for itself; one block a row stores it, for the projection two barriers on.
    __device__ __forceinline__ void norm_embeddings(uint64_t scale, uint64_t shift) {
        for (unsigned row = threadIdx.x / WARP; row < rows; row += WARPS) {
            EmbeddedRow<T> embedded(args.embed, row);
            T* residual = at<T>(args.embed.out) + size_t(row) * args.hidden;
            bool stores = row % gridDim.x == blockIdx.x;
            norm_row(row, scale, shift, [&](unsigned i) {
                Chunk chunk = embedded.chunk(i);
                if (stores) store_chunk(residual + i, chunk);
                return chunk;
            });
        }
        __syncthreads();
    }

    // One row of x = norm(what `load` gives), by one warp. A lane reads back only what it wrote itself. What comes through
    // L2 is asked for together, scale and shift first.
    template <typename Load>
    __device__ __forceinline__ void norm_row(unsigned row, uint64_t weight, uint64_t bias, const Load& load) {
        constexpr unsigned AHEAD = Vectors<T>::AHEAD, STEP = Vectors<T>::STEP;
        unsigned first = threadIdx.x % WARP * N, width = args.hidden;
        T* to = x + row * row_stride<T>(width);
        Vectors<T> vectors;
        vectors.ask(weight, bias, first, width);
        float values[N], factors[N], shifts[N], sum = 0.0f, squares = 0.0f;
        for (unsigned i = first; i < width; i += AHEAD * STEP) {
            Chunk chunks[AHEAD];
#pragma unroll
            for (unsigned a = 0; a < AHEAD; a++)
                if (i + a * STEP < width) chunks[a] = load(i + a * STEP);
#pragma unroll
            for (unsigned a = 0; a < AHEAD; a++) {
                if (i + a * STEP >= width) continue;
                store_chunk(to + i + a * STEP, chunks[a]);
                unpack<T>(chunks[a], values);
                for (unsigned j = 0; j < N; j++) sum += values[j];
            }
        }
        float mean = warp_reduce(sum, Sum()) / float(width);
#pragma unroll 1
        for (unsigned i = first; i < width; i += STEP) {
            unpack<T>(load_chunk(to + i), values);
            for (unsigned j = 0; j < N; j++) squares += (values[j] - mean) * (values[j] - mean);
        }
        float scale = 1.0f / sqrtf(warp_reduce(squares, Sum()) / float(width) + args.epsilon);
        for (unsigned i = first; i < width; i += AHEAD * STEP) {
            if (i != first) vectors.ask(weight, bias, i, width);
#pragma unroll
            for (unsigned a = 0; a < AHEAD; a++) {
                if (i + a * STEP >= width) continue;
                unpack<T>(load_chunk(to + i + a * STEP), values);
                unpack<T>(vectors.factors[a], factors);
                unpack<T>(vectors.shifts[a], shifts);
                for (unsigned j = 0; j < N; j++) values[j] = (values[j] - mean) * scale * factors[j] + shifts[j];
                store_chunk(to + i + a * STEP, Tile<T>::arranged(pack<T>(values)));
            }
        }
    }

    // This block's outputs of a product for all rows, where `bring` makes x: a round of tiles by all warps together, then an
    // output of a row by each thread.
    template <typename Bring>
    __device__ __forceinline__ void product_of(const Phase<T>& phase, const Bring& bring) {
        constexpr unsigned ROUND = ROUND_TILES * TILE_OUTPUTS;
        Range range = share_of(phase.outputs);
        unsigned row = threadIdx.x / TILE_OUTPUTS % TILE_ROWS;
        unsigned output = range.first + threadIdx.x / TILE_SUMS * TILE_OUTPUTS + threadIdx.x % TILE_OUTPUTS;
        auto is_stored = [&] { return row < rows && output < range.end; };
        Operands<T> operands = {};
        if (is_stored()) ask(operands, phase, row, output);
        bring();
        stamp(PINION_DECODE_BROUGHT);
        for (unsigned first = range.first; first < range.end; first += ROUND, output += ROUND) {
            if (first != range.first) {
                __syncthreads();
                if (is_stored()) ask(operands, phase, row, output);
            }
            sum_round(first, range.end, phase.inputs);
            __syncthreads();
            if (!is_stored()) continue;
            // In the warps' order: the same inputs give the same bits.
            float sum = partials.sums[0][threadIdx.x];
#pragma unroll
            for (unsigned w = 1; w < WARPS; w++) sum += partials.sums[w][threadIdx.x];
            store(phase, row, output, sum, operands);
        }
    }

    // This warp's part of a round of tiles, to where the block's threads find it.
    __device__ __forceinline__ void sum_round(unsigned first, unsigned end, unsigned inputs) {
        float* to = partials.sums[threadIdx.x / WARP];
#pragma unroll 1
        for (unsigned t = 0; t < ROUND_TILES && first + t * TILE_OUTPUTS < end; t++, to += TILE_SUMS) {
            Tile<T> tile = sums_of(walk_of(true), inputs);
            tile.each(rows, [&](unsigned row, unsigned output, float sum) { to[row * TILE_OUTPUTS + output] = sum; });
        }
    }

    // This warp's steps of the next tile that the stream has.
    __device__ __forceinline__ Tile<T> sums_of(const Walk& walk, unsigned inputs) {
        constexpr unsigned AHEAD = sizeof(T) == 2 ? 3 : 1; // steps whose loads are under way together
        Tile<T> tile;
        TileRows<T> mine = Tile<T>::rows_of_lane(x, rows, row_stride<T>(inputs));
        unsigned i = walk.step * STEP_INPUTS<T>, stride = walk.steps * STEP_INPUTS<T>;
        for (unsigned steps = steps_of(walk, inputs / STEP_INPUTS<T>); steps > 0;) {
            unsigned count = steps < AHEAD ? steps : AHEAD;
            const Chunk* from = weights.take(count);
            steps -= count;
            if (count == AHEAD) {
                Chunk chunks[AHEAD];
                typename Tile<T>::Inputs values[AHEAD];
#pragma unroll
                for (unsigned a = 0; a < AHEAD; a++, i += stride) {
                    chunks[a] = from[a * THREADS];
                    values[a] = Tile<T>::inputs(mine, i);
                }
#pragma unroll
                for (unsigned a = 0; a < AHEAD; a++) tile.add(chunks[a], values[a]);
            } else {
#pragma unroll 1
                for (; count > 0; count--, from += THREADS, i += stride) tile.add(*from, Tile<T>::inputs(mine, i));
            }
        }
        return tile;
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
    Partials& partials;
    T* x; // [rows, hidden or inner] in shared memory, row_stride apart
    GridBarrier barrier;
    WeightStream<T> weights;
    unsigned phase = 0;
};

// A block a multiprocessor: shared memory allows no more.
template <typename T>
__global__ void __launch_bounds__(THREADS, 1) fused_decode_kernel(PinionCudaDecode args) {
    Step<T> step(args, places_of<T>(args));
    for (unsigned layer = 0; layer < args.layer_count; layer++) {
#pragma unroll 1
        for (unsigned product = 0; product < fused::LAYER_PRODUCTS; product++) {
            step.product(layer, product);
            if (product == fused::QKV) step.attention(layer);
        }
    }
    step.head();
}

// The kernel for a dtype, and where it has what in shared memory.
struct Variant {
    void (*kernel)(PinionCudaDecode) = nullptr;
    Places (*places)(const PinionCudaDecode&) = nullptr;
};

template <typename T>
Variant variant() {
    return {&fused_decode_kernel<T>, [](const PinionCudaDecode& args) { return places_of<T>(args); }};
}

// The kernel for a step; none if the step is outside the contract.
Variant variant_of(const PinionCudaDecode& args) {
    const PinionCudaBatch& batch = args.attention.batch;
    unsigned rows = args.embed.count;
    constexpr uint64_t INDEX_MAX = uint64_t{1} << 20; // of a block's share, times outputs: see share_of
    bool good = batch_is_good(batch) && batch.kv_heads == batch.heads && uint64_t{batch.heads} * batch.head_dim == args.hidden;
    good = good && args.hidden == args.embed.width && args.hidden % PINION_DECODE_WIDTH_STEP == 0;
    good = good && args.inner > 0 && args.inner % PINION_DECODE_WIDTH_STEP == 0;
    good = good && rows > 0 && rows <= PINION_GEMV_ROWS_MAX && batch.tokens == rows && args.attention.count == rows;
    good = good && args.layer_count > 0 && args.layer_count <= PINION_DECODE_LAYERS_MAX && args.embed.dtype == batch.dtype;
    good = good && args.vocab > 0 && args.vocab < INDEX_MAX && args.inner < INDEX_MAX && 3 * uint64_t{args.hidden} < INDEX_MAX;
    if (!good) return {};
    if (batch.dtype == PINION_CUDA_F16) return variant<f16>();
    if (batch.dtype == PINION_CUDA_BF16) return variant<bf16>();
    if (batch.dtype == PINION_CUDA_F32) return variant<float>();
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
    unsigned fixed = variant.places(args).bytes;
    unsigned left = room.shared_bytes > fixed ? room.shared_bytes - fixed : 0;
    unsigned slots = left / (fused::GROUPS * fused::SLOT_BYTES);
    if (slots == 0) return PINION_CUDA_DOES_NOT_FIT;
    args.group_slots = slots < fused::GROUP_SLOTS_MAX ? slots : fused::GROUP_SLOTS_MAX;
    unsigned bytes = variant.places(args).bytes, at_once = 0;
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
    unsigned bytes = variant.places(args).bytes;
    auto kernel = variant.kernel;
    return PINION_LAUNCH_COOPERATIVE(kernel, dim3(args.blocks), dim3(fused::THREADS), bytes, stream, args);
}
