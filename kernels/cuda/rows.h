// The arithmetic of products of a few rows: a lane has 16 bytes of a weight row and takes the same elements of each row of x.
// Shared by product.cu, which streams the weights to registers, and fused_decode.cu, which finds them in shared memory.
#pragma once
#include "target.h"

namespace pinion {

// Adds the chunks' share to the sums. `x_chunk(r)` gives the same elements of row r of x.
template <typename T, unsigned OUTPUTS, unsigned ROWS, typename XChunk>
__device__ __forceinline__ void multiply(const Chunk (&chunks)[OUTPUTS], const XChunk& x_chunk, float (&sums)[OUTPUTS][ROWS]) {
    constexpr unsigned N = PER_CHUNK<T>;
    float weights[OUTPUTS][N];
#pragma unroll
    for (unsigned o = 0; o < OUTPUTS; o++) unpack<T>(chunks[o], weights[o]);
#pragma unroll
    for (unsigned r = 0; r < ROWS; r++) {
        float values[N];
        unpack<T>(x_chunk(r), values);
#pragma unroll
        for (unsigned o = 0; o < OUTPUTS; o++)
#pragma unroll
            for (unsigned j = 0; j < N; j++) sums[o][r] += values[j] * weights[o][j];
    }
}

// The row whose sum `reduce_rows` gives this lane, and whether the lane is the first of those that have it.
template <unsigned ROWS>
__device__ __forceinline__ unsigned row_of_lane() {
    return threadIdx.x % WARP / (WARP / ROWS);
}
template <unsigned ROWS>
__device__ __forceinline__ bool is_first_of_row() {
    return threadIdx.x % (WARP / ROWS) == 0;
}

// Sums over the warp: each exchange halves the rows that a lane is about, so 8 rows take 9 exchanges and not 40. Adds the
// same pairs as warp_reduce does.
template <unsigned ROWS>
__device__ __forceinline__ float reduce_rows(float (&sums)[ROWS]) {
    unsigned lane = threadIdx.x % WARP;
#pragma unroll
    for (unsigned rows = ROWS / 2; rows > 0; rows /= 2) {
        unsigned mask = WARP / ROWS * rows;
        bool is_upper = (lane & mask) != 0;
#pragma unroll
        for (unsigned r = 0; r < rows; r++) {
            float kept = is_upper ? sums[rows + r] : sums[r];
            float given = is_upper ? sums[r] : sums[rows + r];
            sums[r] = kept + lane_xor(given, mask);
        }
    }
    return warp_reduce<WARP / ROWS>(sums[0], Sum());
}

} // namespace pinion
