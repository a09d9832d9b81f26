// Paged attention on AVX-512 (F, BW, VL). bf16 is widened to fp32 on load.
#include "attention_tile.h"
#include "isa_avx512.h"

extern "C" void pinion_paged_attention_avx512(const PinionAttention* args, uint64_t begin, uint64_t end) {
    attend_plain<Avx512>(*args, begin, end);
}

extern "C" void pinion_join_spans_avx512(const PinionAttention* args, uint32_t seq, uint32_t kv_head, uint64_t first_partial) {
    if (args->batch.dtype == PINION_BF16) {
        join_partials<Avx512, Bf16>(*args, seq, kv_head, first_partial);
    } else {
        join_partials<Avx512, float>(*args, seq, kv_head, first_partial);
    }
}
