// What the phases of the fused decode step stand on: which outputs are whose, what lies where in shared memory, and the
// stream of weights. Contract: pinion_cuda.h. Why it is so: docs/design/0008-fused-decode.md.
#pragma once
#include "attention.h"
#include "grid.h"

namespace pinion {
namespace fused {

constexpr unsigned THREADS = 256;
constexpr unsigned WARPS = THREADS / WARP;
// Copies are waited for in groups; so many are under way at once.
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

// Shared memory, in this order: the layers' addresses, rows of activations (attention keeps its sums there), the weights.
struct Places {
    unsigned rows, weights, bytes;
};
__host__ __device__ __forceinline__ constexpr unsigned aligned_place(unsigned bytes) { return (bytes + 127) / 128 * 128; }
__host__ __device__ __forceinline__ Places places_of(const PinionCudaDecode& args, unsigned row_count, unsigned element_bytes) {
    unsigned width = args.hidden > args.inner ? args.hidden : args.inner;
    unsigned rows = row_count * width * element_bytes, sums = sizeof(AttentionShared<1, LARGEST_DIM, WARPS>);
    Places places;
    places.rows = aligned_place(args.layer_count * unsigned(sizeof(PinionCudaDecodeLayer)));
    places.weights = places.rows + aligned_place(rows > sums ? rows : sums);
    places.bytes = places.weights + GROUPS * args.group_slots * SLOT_BYTES;
    return places;
}

// The products of a layer in the order of their phases; the head comes after the last layer.
enum : unsigned { QKV, PROJECTION, UP, DOWN, LAYER_PRODUCTS };

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
// memory. A warp walks its outputs' rows, 16 bytes a lane; the walk does not end with a phase, so while the block waits at a
// barrier the rows of the next phases arrive. No other thread touches a thread's slots: nothing here needs a barrier.
template <typename T>
class WeightStream {
  public:
    __device__ __forceinline__ WeightStream(const PinionCudaDecode& args, const PinionCudaDecodeLayer* layers, Chunk* weights)
        : args(args), layers(layers), slots(weights + threadIdx.x), count(GROUPS * args.group_slots) {
        begin_product(0);
        // One less than all: `take` refills the slot that was read before.
        for (unsigned s = 0; s + 1 < count; s++) {
            fetch(s);
            if ((s + 1) % args.group_slots == 0) commit_copies();
        }
    }

    // The next chunk of the walk; rubbish for a lane past its row's end. The whole warp calls it.
    __device__ __forceinline__ Chunk take() {
        // What the last call gave is in registers and used by now.
        fetch(slot == 0 ? count - 1 : slot - 1);
        if (in_group == 0) {
            commit_copies();
            wait_copies<GROUPS - 1>();
        }
        Chunk chunk = slots[slot * THREADS];
        if (++slot == count) slot = 0;
        if (++in_group == args.group_slots) in_group = 0;
        return chunk;
    }

  private:
    // Begins the copy of the walk's next chunk and goes on. At the walk's end it does nothing.
    __device__ __forceinline__ void fetch(unsigned to) {
        if (!row) return;
        unsigned i = walked + threadIdx.x % WARP * PER_CHUNK<T>;
        if (i < inputs) copy_async(slots + to * THREADS, row + i);
        walked += WARP * PER_CHUNK<T>;
        if (walked < inputs) return;
        walked = 0;
        output += WARPS;
        row += size_t(WARPS) * inputs;
        if (output >= end) begin_product(product + 1);
    }

    // The first row of product `from`, or of the first after it of which this warp has one.
    __device__ __forceinline__ void begin_product(unsigned from) {
        row = nullptr;
        for (product = from; product <= LAYER_PRODUCTS * args.layer_count; product++) {
            Matrix matrix = matrix_of(args, layers, product);
            Range range = share_of(matrix.outputs);
            output = range.first + threadIdx.x / WARP;
            if (output >= range.end) continue;
            end = range.end;
            inputs = matrix.inputs;
            row = at<T>(matrix.weight) + size_t(output) * inputs;
            return;
        }
    }

    const PinionCudaDecode& args;
    const PinionCudaDecodeLayer* layers;
    Chunk* slots;
    unsigned count;
    unsigned slot = 0, in_group = 0;                     // where the next chunk is taken
    const T* row = nullptr;                              // where the next chunk is fetched: a row of a product,
    unsigned product = 0, output = 0, end = 0;           // which one,
    unsigned inputs = 0, walked = 0;                     // and how far in it
};

} // namespace fused
} // namespace pinion
