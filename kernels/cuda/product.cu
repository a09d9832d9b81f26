// Matrix products: our own kernel for a few rows, the library for more. Contract: pinion_cuda.h.
//
// With up to eight rows a product is a walk over the weights, streamed past L1 to registers; x is small and stays in L1.
// One or two rows: a warp makes one output (or four, for wide outputs), 16 bytes of a weight row a lane, four steps of the walk
// in flight at once (two, of four rows each, for wide outputs). More rows: a warp makes tiles of eight outputs on tensor cores
// (tile.h), as those sums would take longer than the weights. Few outputs would leave most of the card without a warp: then all
// warps of a block make one output or tile, each from its part of the rows, and join their sums in shared memory.
#include "rows.h"
#include "tile.h"

namespace pinion {

int32_t library_product(const PinionCudaProduct& args, void* stream); // library.cu

namespace {

constexpr unsigned THREADS = 128;
constexpr unsigned WARPS = THREADS / WARP;
// Outputs from here on are made four a warp.
constexpr unsigned WIDE = 16384;
// Outputs up to here are made by all warps of a block. A warp has eight at once of tiles, so they are split further up.
constexpr unsigned NARROW = 1024, NARROW_TILED = 8 * NARROW;

struct SplitShared {
    float sums[WARPS][PINION_GEMV_ROWS_MAX];
};
struct TileShared {
    float sums[TILE_WARPS][TILE_SUMS];
};

// One output's last step, by the lane that has its sum.
template <typename T>
__device__ __forceinline__ void finish(const PinionCudaProduct& args, unsigned row, unsigned output, float sum) {
    if (args.bias) sum += to_float(at<T>(args.bias)[output]);
    sum = activate(sum, args.activation);
    size_t to = size_t(row) * args.n + output;
    if (args.y_dtype == PINION_CUDA_F32) {
        float* y = at<float>(args.y) + to;
        *y = args.accumulate ? *y + sum : sum;
    } else {
        T* y = at<T>(args.y) + to;
        *y = from_float<T>(args.accumulate ? to_float(*y) + sum : sum);
    }
}

// The weights of OUTPUTS outputs that a lane multiplies with in one step of the walk, asked for long before, the first of them
// before x is made; with few rows what they meet in x as well, which would be waited for otherwise when it is not in L1 yet.
template <typename T, unsigned ROWS, unsigned OUTPUTS>
struct Asked {
    static constexpr bool HAS_X = ROWS <= 2;
    Chunk weights[OUTPUTS];
    Chunk x[HAS_X ? ROWS : 1];

    __device__ __forceinline__ void ask_weights(const PinionCudaProduct& args, unsigned first, unsigned i) {
#pragma unroll
        for (unsigned o = 0; o < OUTPUTS; o++) {
            unsigned output = first + o < args.n ? first + o : args.n - 1;
            weights[o] = stream_chunk(at<T>(args.weight) + size_t(output) * args.k + i);
        }
    }
    __device__ __forceinline__ void ask_x(const PinionCudaProduct& args, unsigned i) {
        if constexpr (HAS_X) {
#pragma unroll
            for (unsigned r = 0; r < ROWS; r++) x[r] = early_chunk(x_at(args, r, i));
        }
    }
    __device__ __forceinline__ void add(const PinionCudaProduct& args, unsigned i, float (&sums)[OUTPUTS][ROWS]) const {
        multiply<T, OUTPUTS, ROWS>(weights, [&](unsigned r) { return HAS_X ? x[r] : load_chunk(x_at(args, r, i)); }, sums);
    }

  private:
    // Rows past the last repeat it; what they sum to is not stored.
    __device__ __forceinline__ static const T* x_at(const PinionCudaProduct& args, unsigned r, unsigned i) {
        return at<T>(args.x) + size_t(r < args.m ? r : args.m - 1) * args.k + i;
    }
};

// This warp's steps of a tile, some of them in flight. What is asked for is the next that has not been.
template <typename T>
class TileWalk {
  public:
    __device__ __forceinline__ TileWalk(const PinionCudaProduct& args, const Walk& walk, unsigned first)
        : k(args.k), stride(walk.steps * STEP_INPUTS<T>), steps(steps_of(walk, ceil_div(k, STEP_INPUTS<T>))) {
        // Outputs and rows past the last repeat it; their sums are not used.
        unsigned output = first + tile_output(), row = threadIdx.x % WARP / 4;
        next_weights = next_x = walk.step * STEP_INPUTS<T> + tile_input<T>();
        weights = at<T>(args.weight) + size_t(output < args.n ? output : args.n - 1) * k + next_weights;
        x = at<T>(args.x) + size_t(row < args.m ? row : args.m - 1) * k + next_x;
    }

    // Waits for the kernel before, which makes x, with the first weights asked for.
    __device__ __forceinline__ Tile<T> sums() {
        Tile<T> tile;
#pragma unroll
        for (unsigned a = 0; a < AHEAD; a++) ask_weights(a);
        wait_for_previous();
#pragma unroll
        for (unsigned a = 0; a < AHEAD; a++) ask_x(a);
        for (unsigned left = steps; left > 0;) {
#pragma unroll
            for (unsigned a = 0; a < AHEAD && left > 0; a++, left--) {
                tile.add(weight_chunks[a], Tile<T>::arranged(x_chunks[a]));
                ask_weights(a);
                ask_x(a);
            }
        }
        return tile;
    }

  private:
    static constexpr unsigned AHEAD = 6;

    // A lane past the row's end has zeros on both sides.
    __device__ __forceinline__ void ask_weights(unsigned a) {
        weight_chunks[a] = next_weights < k ? stream_chunk(weights) : Chunk{{0, 0, 0, 0}};
        next_weights += stride;
        weights += stride;
    }
    __device__ __forceinline__ void ask_x(unsigned a) {
        x_chunks[a] = next_x < k ? early_chunk(x) : Chunk{{0, 0, 0, 0}};
        next_x += stride;
        x += stride;
    }

    Chunk weight_chunks[AHEAD], x_chunks[AHEAD];
    const T* weights;
    const T* x;
    unsigned k, stride, steps, next_weights, next_x;
};

// Three to eight rows, of 16-bit elements. With SPLIT a block makes one tile, else each of its warps.
template <typename T, bool SPLIT>
__global__ void __launch_bounds__(TILE_THREADS) tile_rows_kernel(PinionCudaProduct args) {
    begin_next();
    Walk walk = walk_of(SPLIT);
    unsigned tile = SPLIT ? blockIdx.x : blockIdx.x * TILE_WARPS + walk.tile, first = tile * TILE_OUTPUTS;
    if (first >= args.n) return wait_for_previous(); // the whole warp; never with a barrier below
    Tile<T> sums = TileWalk<T>(args, walk, first).sums();
    if constexpr (!SPLIT) {
        sums.each(args.m, [&](unsigned row, unsigned output, float sum) {
            if (first + output < args.n) finish<T>(args, row, first + output, sum);
        });
    } else {
        auto& shared = shared_as<TileShared>();
        sums.each(args.m, [&](unsigned row, unsigned output, float sum) {
            shared.sums[threadIdx.x / WARP][row * TILE_OUTPUTS + output] = sum;
        });
        __syncthreads();
        unsigned row = threadIdx.x / TILE_OUTPUTS, output = first + threadIdx.x % TILE_OUTPUTS;
        if (row >= args.m || output >= args.n) return;
        // In the warps' order: the same inputs give the same bits.
        float sum = shared.sums[0][threadIdx.x];
#pragma unroll
        for (unsigned w = 1; w < TILE_WARPS; w++) sum += shared.sums[w][threadIdx.x];
        finish<T>(args, row, output, sum);
    }
}

template <typename T>
int32_t launch_tiles(const PinionCudaProduct& args, void* stream) {
    bool split = args.n <= NARROW_TILED;
    auto kernel = split ? &tile_rows_kernel<T, true> : &tile_rows_kernel<T, false>;
    unsigned tiles = ceil_div(args.n, TILE_OUTPUTS), shared = split ? sizeof(TileShared) : 0;
    PINION_LAUNCH_DEPENDENT(kernel, dim3(split ? tiles : ceil_div(tiles, TILE_WARPS)), dim3(TILE_THREADS), shared, stream, args);
    return launch_result();
}

// SPLIT warps of the block (one or all) walk OUTPUTS outputs together, a step of 16 bytes a lane in turn.
template <typename T, unsigned ROWS, unsigned OUTPUTS, unsigned SPLIT>
__global__ void __launch_bounds__(THREADS) few_rows_kernel(PinionCudaProduct args) {
    static_assert(SPLIT == 1 || (SPLIT == WARPS && OUTPUTS == 1), "what is joined in shared memory is one output a block");
    constexpr unsigned STEP = SPLIT * WARP * PER_CHUNK<T>;
    constexpr unsigned AHEAD = OUTPUTS == 1 ? 4 : 2; // steps in flight
    begin_next();
    unsigned first = (blockIdx.x * WARPS + threadIdx.x / WARP) / SPLIT * OUTPUTS;
    if (first >= args.n) return wait_for_previous(); // the whole warp; never with a barrier below
    float sums[OUTPUTS][ROWS];
#pragma unroll
    for (unsigned o = 0; o < OUTPUTS; o++)
        for (unsigned r = 0; r < ROWS; r++) sums[o][r] = 0.0f;
    unsigned i = threadIdx.x % (SPLIT * WARP) * PER_CHUNK<T>;
    Asked<T, ROWS, OUTPUTS> asked[AHEAD];
#pragma unroll
    for (unsigned a = 0; a < AHEAD; a++)
        if (i + a * STEP < args.k) asked[a].ask_weights(args, first, i + a * STEP);
    wait_for_previous();
#pragma unroll
    for (unsigned a = 0; a < AHEAD; a++)
        if (i + a * STEP < args.k) asked[a].ask_x(args, i + a * STEP);
    // A step's place is asked for again as soon as it is used, and used a trip later: no order of instructions within a trip
    // takes a load out of flight. Every lane makes the same number of these trips.
    for (unsigned trips = args.k / (AHEAD * STEP); trips > 0; trips--, i += AHEAD * STEP) {
#pragma unroll
        for (unsigned a = 0; a < AHEAD; a++) {
            asked[a].add(args, i + a * STEP, sums);
            unsigned next = i + (AHEAD + a) * STEP;
            if (next < args.k) {
                asked[a].ask_weights(args, first, next);
                asked[a].ask_x(args, next);
            }
        }
    }
#pragma unroll
    for (unsigned a = 0; a < AHEAD; a++)
        if (i + a * STEP < args.k) asked[a].add(args, i + a * STEP, sums);
    unsigned row = row_of_lane<ROWS>();
    bool stores = is_first_of_row<ROWS>();
    if constexpr (SPLIT == 1) {
#pragma unroll
        for (unsigned o = 0; o < OUTPUTS; o++) {
            float sum = reduce_rows<ROWS>(sums[o]);
            if (stores && row < args.m && first + o < args.n) finish<T>(args, row, first + o, sum);
        }
    } else {
        auto& shared = shared_as<SplitShared>();
        float part = reduce_rows<ROWS>(sums[0]);
        if (stores) shared.sums[threadIdx.x / WARP][row] = part;
        __syncthreads();
        if (threadIdx.x >= args.m) return;
        // In the warps' order: the same inputs give the same bits.
        float sum = shared.sums[0][threadIdx.x];
        for (unsigned w = 1; w < SPLIT; w++) sum += shared.sums[w][threadIdx.x];
        finish<T>(args, threadIdx.x, first, sum);
    }
}

template <typename T, unsigned ROWS, unsigned OUTPUTS, unsigned SPLIT>
int32_t launch_outputs(const PinionCudaProduct& args, void* stream) {
    auto kernel = &few_rows_kernel<T, ROWS, OUTPUTS, SPLIT>;
    unsigned outputs = WARPS / SPLIT * OUTPUTS, shared = SPLIT == 1 ? 0 : sizeof(SplitShared);
    PINION_LAUNCH_DEPENDENT(kernel, dim3(ceil_div(args.n, outputs)), dim3(THREADS), shared, stream, args);
    return launch_result();
}

template <typename T, unsigned ROWS>
int32_t launch_rows(const PinionCudaProduct& args, void* stream) {
    if (args.n >= WIDE) return launch_outputs<T, ROWS, 4, 1>(args, stream);
    if (args.n <= NARROW) return launch_outputs<T, ROWS, 1, WARPS>(args, stream);
    return launch_outputs<T, ROWS, 1, 1>(args, stream);
}

template <typename T>
int32_t few_rows_of(const PinionCudaProduct& args, void* stream) {
    if (args.m == 1) return launch_rows<T, 1>(args, stream);
    if (args.m == 2) return launch_rows<T, 2>(args, stream);
    return launch_tiles<T>(args, stream);
}

int32_t few_rows(const PinionCudaProduct& args, void* stream) {
    if (args.m > PINION_GEMV_ROWS_MAX) return PINION_CUDA_BAD_ARGUMENT;
    if (args.dtype == PINION_CUDA_F16) return few_rows_of<f16>(args, stream);
    if (args.dtype == PINION_CUDA_BF16) return few_rows_of<bf16>(args, stream);
    // fp32 is for comparisons: one variant will do.
    if (args.dtype == PINION_CUDA_F32) return launch_outputs<float, 8, 1, 1>(args, stream);
    return PINION_CUDA_BAD_ARGUMENT;
}

} // namespace
} // namespace pinion

using namespace pinion;

extern "C" int32_t pinion_cuda_product(const PinionCudaProduct* given, void* stream) {
    PinionCudaProduct args = *given;
    unsigned size = args.dtype == PINION_CUDA_F32 ? 4 : 2;
    bool y_is_known = args.y_dtype == args.dtype || args.y_dtype == PINION_CUDA_F32;
    if (args.m == 0 || args.n == 0 || args.k == 0 || args.k * size % 16 != 0 || !y_is_known) return PINION_CUDA_BAD_ARGUMENT;
    bool own = args.method == 1 || (args.method == 0 && args.m <= PINION_GEMV_ROWS_MAX);
    return own ? few_rows(args, stream) : library_product(args, stream);
}
