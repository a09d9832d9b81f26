// KV append: scatters the new tokens' K and V rows into the paged cache. Contract: kernels/include/pinion_attention.h.
// A copy, so one version serves every CPU: memcpy is vectorised by the C library.
#include <string.h>

#include "../include/pinion_attention.h"

extern "C" void pinion_kv_append(const PinionAppend* args, uint64_t work_begin, uint64_t work_end) {
    const PinionBatch& b = args->batch;
    const uint64_t element = b.dtype == PINION_BF16 ? 2 : 4;
    const uint64_t row_bytes = b.head_dim * element;
    const uint64_t half_bytes = b.block_size * row_bytes;  // the K rows, or the V rows, of one (block, head)
    const char* k = static_cast<const char*>(args->k);
    const char* v = static_cast<const char*>(args->v);
    char* cache = static_cast<char*>(args->cache);

    for (uint32_t s = 0; s < b.seqs && b.query_start[s] < work_end; ++s) {
        const uint64_t first = b.query_start[s] > work_begin ? b.query_start[s] : work_begin;
        const uint64_t last = b.query_start[s + 1] < work_end ? b.query_start[s + 1] : work_end;
        for (uint64_t token = first; token < last; ++token) {
            const uint64_t position = b.context_len[s] - (b.query_start[s + 1] - token);
            const uint64_t block = b.blocks[b.table_start[s] + position / b.block_size];
            const uint64_t offset = position % b.block_size;
            const char* k_row = k + token * args->kv_stride * element;
            const char* v_row = v + token * args->kv_stride * element;
            char* to = cache + block * b.kv_heads * 2 * half_bytes + offset * row_bytes;
            for (uint32_t h = 0; h < b.kv_heads; ++h) {
                memcpy(to, k_row + h * row_bytes, row_bytes);
                memcpy(to + half_bytes, v_row + h * row_bytes, row_bytes);
                to += 2 * half_bytes;
            }
        }
    }
}
