// Paged attention on AVX2 with FMA. bf16 is widened to fp32 on load.
#include "attention_tile.h"
#include "isa_avx2.h"

extern "C" void pinion_paged_attention_avx2(const PinionAttention* args, uint64_t begin, uint64_t end) {
    attend_plain<Avx2>(*args, begin, end);
}

extern "C" void pinion_join_spans_avx2(const PinionAttention* args, uint32_t seq, uint32_t kv_head, uint64_t first_partial) {
    if (args->batch.dtype == PINION_BF16) {
        join_partials<Avx2, Bf16>(*args, seq, kv_head, first_partial);
    } else {
        join_partials<Avx2, float>(*args, seq, kv_head, first_partial);
    }
}
