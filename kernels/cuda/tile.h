// Products of up to eight rows, eight outputs at a time. A warp's step is 64 bytes of each of eight weight rows: lane l has
// 16 of the row l / 4, from chunk l % 4 of the step on. Shared by product.cu, which streams the weights to registers, and
// fused_decode.cu, which finds them in shared memory.
//
// On tensor cores weights are the right side of m16n8k16, eight columns, and the rows of x are the left side's sixteen, twice:
// its upper eight rows have one half of a lane's elements and its lower eight the other. Two instructions take the same left
// side, one with the weights of either half, and of each only its own rows count. So both sides go to the tensor cores as one
// load brought them, but for the middle words of x, which are exchanged when x is laid out.
#pragma once
#include "mma.h"

namespace pinion {

constexpr unsigned TILE_OUTPUTS = 8, TILE_ROWS = 8, TILE_SUMS = TILE_OUTPUTS * TILE_ROWS;
// Threads of a block that makes tiles.
constexpr unsigned TILE_THREADS = 256, TILE_WARPS = TILE_THREADS / WARP;
// Inputs of a step.
template <typename T>
constexpr unsigned STEP_INPUTS = 4 * PER_CHUNK<T>;

// The lane's part of a tile: which output's weights it has, and from which of a step's inputs on.
__device__ __forceinline__ unsigned tile_output() { return threadIdx.x % WARP / 4; }
template <typename T>
__device__ __forceinline__ unsigned tile_input() {
    return threadIdx.x % 4 * PER_CHUNK<T>;
}

// How the warps of a block share a product's tiles. With `split` they make each tile together, a step in turn, where a block
// has few; else a warp makes whole ones.
struct Walk {
    unsigned tile, tiles; // this warp's first, and from one to the next
    unsigned step, steps; // the same of a tile's steps
};
__device__ __forceinline__ Walk walk_of(bool split) {
    unsigned warp = threadIdx.x / WARP;
    return split ? Walk{0, 1, warp, TILE_WARPS} : Walk{warp, TILE_WARPS, 0, 1};
}
// Steps of a tile that are this warp's, where a row has `count`.
__device__ __forceinline__ unsigned steps_of(const Walk& walk, unsigned count) {
    return count > walk.step ? (count - walk.step + walk.steps - 1) / walk.steps : 0;
}

// The rows of x that a lane multiplies with, of `stride` elements each.
template <typename T>
struct TileRows {
    const T* first; // where this lane begins
    unsigned rows, stride;
};

// The sums of one tile over some steps, in this warp's registers.
template <typename T>
class Tile {
  public:
    using Inputs = Chunk;

    // 16 bytes of x as `inputs` wants them.
    __device__ __forceinline__ static Chunk arranged(const Chunk& x) { return {{x.words[0], x.words[2], x.words[1], x.words[3]}}; }

    // A lane has one row of x. Rows past the last repeat it; their sums are not used.
    __device__ __forceinline__ static TileRows<T> rows_of_lane(const T* x, unsigned rows, unsigned stride) {
        unsigned row = threadIdx.x % WARP / 4;
        return {x + (row < rows ? row : rows - 1) * stride + tile_input<T>(), rows, stride};
    }
    __device__ __forceinline__ static Inputs inputs(const TileRows<T>& x, unsigned i) { return load_chunk(x.first + i); }

    __device__ __forceinline__ void add(const Chunk& weights, const Inputs& x) {
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            const uint32_t right[2] = {weights.words[2 * half], weights.words[2 * half + 1]};
            multiply<T>(sums[half], x.words, right);
        }
    }

    // act(row, output of the tile, sum) for what this lane holds of the first rows.
    template <typename Act>
    __device__ __forceinline__ void each(unsigned rows, const Act& act) const {
        unsigned row = threadIdx.x % WARP / 4, output = threadIdx.x % 4 * 2;
        if (row >= rows) return;
        act(row, output, sums[0][0] + sums[1][2]);
        act(row, output + 1, sums[0][1] + sums[1][3]);
    }

  private:
    float sums[2][4] = {}; // of the halves; upper rows count in the first, lower ones in the second
};

// fp32 is for comparisons: no tensor cores, which would round it.
template <>
class Tile<float> {
  public:
    struct Inputs {
        Chunk chunks[TILE_ROWS];
    };

    __device__ __forceinline__ static Chunk arranged(const Chunk& x) { return x; }

    __device__ __forceinline__ static TileRows<float> rows_of_lane(const float* x, unsigned rows, unsigned stride) {
        return {x + tile_input<float>(), rows, stride};
    }
    __device__ __forceinline__ static Inputs inputs(const TileRows<float>& x, unsigned i) {
        Inputs inputs;
#pragma unroll
        for (unsigned r = 0; r < TILE_ROWS; r++)
            inputs.chunks[r] = load_chunk(x.first + i + (r < x.rows ? r : x.rows - 1) * x.stride);
        return inputs;
    }

    __device__ __forceinline__ void add(const Chunk& chunk, const Inputs& x) {
        float weights[4], values[4];
        unpack<float>(chunk, weights);
#pragma unroll
        for (unsigned r = 0; r < TILE_ROWS; r++) {
            unpack<float>(x.chunks[r], values);
            for (unsigned j = 0; j < 4; j++) sums[r] += values[j] * weights[j];
        }
    }

    template <typename Act>
    __device__ __forceinline__ void each(unsigned rows, const Act& act) const {
#pragma unroll
        for (unsigned r = 0; r < TILE_ROWS; r++) {
            float sum = warp_reduce<4>(sums[r], Sum());
            if (r < rows && threadIdx.x % 4 == r / 2) act(r, tile_output(), sum);
        }
    }

  private:
    float sums[TILE_ROWS] = {};
};

} // namespace pinion
