// Where a position lies in the paged cache.
#pragma once
#include "target.h"

namespace pinion {

// A position's block, and its place there.
struct CachePlace {
    unsigned block, offset;
};
__device__ __forceinline__ CachePlace cache_place(const PinionCudaBatch& batch, const uint32_t* table, unsigned position) {
    return {table[position / batch.block_size], position % batch.block_size};
}
// Index of the first element of a K row; its V row lies block_size * head_dim further.
__device__ __forceinline__ size_t cache_row(const PinionCudaBatch& batch, const CachePlace& place, unsigned kv_head) {
    // [blocks, kv_heads, 2, block_size, head_dim]
    size_t run = (size_t(place.block) * batch.kv_heads + kv_head) * 2 * batch.block_size;
    return (run + place.offset) * batch.head_dim;
}
__device__ __forceinline__ size_t cache_row(const PinionCudaBatch& batch, const uint32_t* table, unsigned kv_head, unsigned position) {
    return cache_row(batch, cache_place(batch, table, position), kv_head);
}

// Heads of whole chunks, for the kernels that take any number of these.
inline bool batch_is_whole(const PinionCudaBatch& batch) {
    unsigned chunk = batch.dtype == PINION_CUDA_F32 ? PER_CHUNK<float> : PER_CHUNK<bf16>;
    return batch.head_dim > 0 && batch.head_dim % chunk == 0 && batch.tokens > 0 && batch.block_size > 0 && batch.kv_heads > 0 && batch.heads % batch.kv_heads == 0 &&
           batch.heads > 0 && batch.table_stride > 0;
}
inline bool batch_is_good(const PinionCudaBatch& batch) {
    bool dim = batch.head_dim == 16 || batch.head_dim == 32 || batch.head_dim == 64 || batch.head_dim == 128;
    return dim && batch_is_whole(batch);
}

} // namespace pinion
