// What the phases of the fused decode step stand on: which outputs are whose, what lies where in shared memory, and the
// stream of weights. Contract: pinion_cuda.h. Why it is so: docs/design/0008-fused-decode.md.
#pragma once
#include "attention.h"
#include "grid.h"
#include "tile.h"

namespace pinion {
namespace fused {

constexpr unsigned THREADS = TILE_THREADS, WARPS = TILE_WARPS;
// Copies are waited for in groups; this number is in flight at once.
constexpr unsigned GROUPS = 8;
// A slot of the weight stream has a chunk for each thread.
constexpr unsigned SLOT_BYTES = THREADS * sizeof(Chunk);
// Most slots in a group: with all of them a block keeps 192 KB of weights under way.
constexpr unsigned GROUP_SLOTS_MAX = 6;
constexpr unsigned LARGEST_DIM = 128;

// The outputs [first, end) of a product that are this block's: as even as whole outputs can be.
struct Range {
    unsigned first, end;
};
__device__ __forceinline__ Range share_of(unsigned outputs) {
    // The launch checks that the products fit 32 bits.
    return {outputs * blockIdx.x / gridDim.x, outputs * (blockIdx.x + 1) / gridDim.x};
}

// Tiles of a product that a block sums up before it stores what they come to: then each thread has one sum of a row.
constexpr unsigned ROUND_TILES = THREADS / TILE_SUMS;
struct Partials {
    float sums[WARPS][THREADS];
};

// Elements between rows of x in shared memory: 64 bytes more than a multiple of 128, so that a tile's eight rows lie in
// different banks.
template <typename T>
__host__ __device__ __forceinline__ constexpr unsigned row_stride(unsigned width) {
    constexpr unsigned LINE = 128 / sizeof(T);
    return (width + LINE - 1) / LINE * LINE + LINE / 2;
}

// Shared memory, in this order: the layers' addresses, the warps' partial sums, rows of activations (attention keeps its sums
// there), the weights.
struct Places {
    unsigned partials, rows, weights, bytes;
};
__host__ __device__ __forceinline__ constexpr unsigned aligned_place(unsigned bytes) { return (bytes + 127) / 128 * 128; }
template <typename T>
__host__ __device__ __forceinline__ Places places_of(const PinionCudaDecode& args) {
    unsigned width = args.hidden > args.inner ? args.hidden : args.inner, sums = sizeof(AttentionShared<1, LARGEST_DIM, WARPS>);
    unsigned rows = args.embed.count * row_stride<T>(width) * unsigned(sizeof(T));
    Places places;
    places.partials = aligned_place(args.layer_count * unsigned(sizeof(PinionCudaDecodeLayer)));
    places.rows = places.partials + sizeof(Partials);
    places.weights = places.rows + aligned_place(rows > sums ? rows : sums);
    places.bytes = places.weights + GROUPS * args.group_slots * SLOT_BYTES;
    return places;
}

// The products of a layer in the order of their phases; the head comes after the last layer.
enum : unsigned { QKV, PROJECTION, UP, DOWN, LAYER_PRODUCTS };
// And attention.
constexpr unsigned LAYER_PHASES = LAYER_PRODUCTS + 1;

struct Matrix {
    uint64_t weight;
    unsigned outputs, inputs;
};

__device__ __forceinline__ Matrix matrix_of(const PinionCudaDecode& args, const PinionCudaDecodeLayer* layers, unsigned product) {
    unsigned layer = product / LAYER_PRODUCTS;
    if (layer >= args.layer_count) return {args.head, args.vocab, args.hidden};
    switch (product % LAYER_PRODUCTS) {
    case QKV: return {layers[layer].qkv_weight, 3 * args.hidden, args.hidden};
    case PROJECTION: return {layers[layer].projection_weight, args.hidden, args.hidden};
    case UP: return {layers[layer].up_weight, args.inner, args.hidden};
    default: return {layers[layer].down_weight, args.hidden, args.inner};
    }
}

// All weights that this thread will multiply with in the whole step, in order, fetched ahead into its own slots of shared
// memory. A warp walks its tiles' steps, 16 bytes a lane; the walk does not end with a phase, so while the block waits at a
// barrier the weights of the next phases arrive. No other thread touches a thread's slots: nothing here needs a barrier.
template <typename T>
class WeightStream {
  public:
    __device__ __forceinline__ WeightStream(const PinionCudaDecode& args, const PinionCudaDecodeLayer* layers, Chunk* weights)
        : args(args), layers(layers), slots(weights + threadIdx.x), group(slots) {
        begin_product(0);
        // All groups but the last, which `open` fills.
#pragma unroll 1
        for (unsigned g = 0; g + 1 < GROUPS; g++) {
            fill();
            group += args.group_slots * THREADS;
        }
    }

    // The walk's next chunks, THREADS apart, rubbish for a lane without an output: `count` of them or as many as the group
    // has left, which is one at least. Until the next call. The whole warp calls it.
    __device__ __forceinline__ const Chunk* take(unsigned& count) {
        if (left == 0) open();
        if (left < count) count = left;
        const Chunk* first = group + (args.group_slots - left) * THREADS;
        left -= count;
        return first;
    }

  private:
    // Refills the group that was read, whose chunks have been multiplied with, and goes to the next when it is there.
    __device__ __forceinline__ void open() {
        fill();
        wait_copies<GROUPS - 1>();
        left = args.group_slots;
        group += left * THREADS;
        if (group == slots + GROUPS * left * THREADS) group = slots;
    }

    // Begins the copies of the walk's next chunks to the group's slots. At the walk's end it does nothing.
    __device__ __forceinline__ void fill() {
        Chunk* to = group;
#pragma unroll 1
        for (unsigned s = args.group_slots; s > 0 && outputs_left > 0; s--, to += THREADS) {
            // A tile's last outputs may be past the block's: those lanes have nothing.
            if (int(tile_output()) < outputs_left) copy_async(to, next);
            next += step_size;
            if (--steps_left == 0) next_tile();
        }
        commit_copies();
    }

    __device__ __forceinline__ void next_tile() {
        tile += tile_size;
        next = tile;
        steps_left = steps;
        outputs_left -= tile_outputs;
        if (outputs_left <= 0) begin_product(product + 1);
    }

    // The first step of product `from`, or of the first after it of which this warp has one.
    __device__ __forceinline__ void begin_product(unsigned from) {
        unsigned head = LAYER_PRODUCTS * args.layer_count;
        outputs_left = 0;
#pragma unroll 1
        for (product = from; product <= head; product++) {
            Matrix matrix = matrix_of(args, layers, product);
            Range range = share_of(matrix.outputs);
            Walk walk = walk_of(product < head);
            steps = steps_of(walk, matrix.inputs / STEP_INPUTS<T>);
            int outputs = int(range.end - range.first) - int(walk.tile * TILE_OUTPUTS);
            if (outputs <= 0 || steps == 0) continue;
            size_t row = range.first + walk.tile * TILE_OUTPUTS + tile_output();
            tile = at<T>(matrix.weight) + row * matrix.inputs + walk.step * STEP_INPUTS<T> + tile_input<T>();
            tile_outputs = walk.tiles * TILE_OUTPUTS;
            tile_size = size_t(tile_outputs) * matrix.inputs;
            step_size = walk.steps * STEP_INPUTS<T>;
            next = tile;
            steps_left = steps;
            outputs_left = outputs;
            return;
        }
    }

    const PinionCudaDecode& args;
    const PinionCudaDecodeLayer* layers;
    Chunk* slots;
    Chunk* group;       // where chunks are taken, and the first that is refilled
    unsigned left = 0;  // chunks of it that have not been taken
    // Where the next chunk is fetched: which product, where in it,
    unsigned product = 0;
    const T* next = nullptr;
    const T* tile = nullptr;
    unsigned steps_left = 0;
    int outputs_left = 0; // of the block's, from the tile's first on; none at the walk's end
    // and how it goes on.
    unsigned steps = 0, step_size = 0, tile_outputs = 0;
    size_t tile_size = 0;
};

} // namespace fused
} // namespace pinion
