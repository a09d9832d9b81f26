// Shared by the translation units of paged attention. Everything has internal linkage: these units are compiled with
// different instruction sets, and the linker must not take one unit's copy of a function for another's.
#pragma once
#include <stdint.h>
#include <string.h>

#include "../include/pinion_attention.h"

// One entry per compiled level; paged_attention.cpp picks.
extern "C" {
void pinion_paged_attention_avx2(const PinionAttention* args, uint64_t work_begin, uint64_t work_end);
void pinion_paged_attention_avx512(const PinionAttention* args, uint64_t work_begin, uint64_t work_end);
void pinion_paged_attention_avx512_bf16(const PinionAttention* args, uint64_t work_begin, uint64_t work_end);
}

namespace {

// A bf16 value as stored; a type of its own so that overloads tell it from an integer.
struct Bf16 {
    uint16_t bits;
};

inline float to_float(float value) { return value; }

inline float to_float(Bf16 value) {
    const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

inline void from_float(float value, float* out) { *out = value; }

// Round to nearest even; a NaN stays a NaN.
inline void from_float(float value, Bf16* out) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    out->bits = value != value ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

// One work item: a tile of a sequence's prompt tokens, or one generated token, for one KV head and its query heads.
struct Item {
    uint32_t seq;
    uint32_t kv_head;
    uint32_t first_token;     // of the tile, in the batch
    uint32_t queries;         // in the tile, 1..=tile_tokens; 1 if generated
    bool is_generated;
    uint32_t first_position;  // of the tile's first query in its sequence
};

// Prompt tokens of a tile; their rows for all query heads of a group are one tile of queries.
inline uint32_t tile_tokens(const PinionBatch& b) { return b.group >= PINION_QUERY_TILE ? 1 : PINION_QUERY_TILE / b.group; }

// The first position that a query at `position` sees.
inline uint32_t visible_from(const PinionAttention& a, uint32_t position) {
    return a.window != 0 && position >= a.window ? position - a.window + 1 : 0;
}

// How a sequence's query tokens are cut into work.
struct Cut {
    uint32_t query_len;
    uint32_t prompt_queries;  // come first
    uint32_t tiles;           // of those

    Cut(const PinionBatch& b, uint32_t s) {
        query_len = b.query_start[s + 1] - b.query_start[s];
        const uint32_t first_position = b.context_len[s] - query_len;
        prompt_queries = b.prompt_len[s] > first_position ? smaller(b.prompt_len[s] - first_position, query_len) : 0;
        tiles = (prompt_queries + tile_tokens(b) - 1) / tile_tokens(b);
    }

    uint64_t pieces() const { return static_cast<uint64_t>(tiles) + (query_len - prompt_queries); }
};

// Calls visit(item) for the items [begin, end). O(seqs) on top.
template <class Visit>
inline void for_each_item(const PinionBatch& b, uint64_t begin, uint64_t end, Visit visit) {
    uint64_t base = 0;
    for (uint32_t s = 0; s < b.seqs && base < end; ++s) {
        const Cut cut(b, s);
        const uint64_t next = base + cut.pieces() * b.kv_heads;
        const uint64_t first = begin > base ? begin : base;
        const uint64_t last = end < next ? end : next;
        for (uint64_t i = first; i < last; ++i) {
            const uint32_t piece = static_cast<uint32_t>((i - base) / b.kv_heads);
            Item item;
            item.is_generated = piece >= cut.tiles;
            const uint32_t offset =
                item.is_generated ? cut.prompt_queries + (piece - cut.tiles) : piece * tile_tokens(b);
            item.seq = s;
            item.kv_head = static_cast<uint32_t>((i - base) % b.kv_heads);
            item.first_token = b.query_start[s] + offset;
            item.queries = item.is_generated ? 1 : smaller(tile_tokens(b), cut.prompt_queries - offset);
            item.first_position = b.context_len[s] - cut.query_len + offset;
            visit(item);
        }
        base = next;
    }
}

// Writes to k_rows the addresses of the K rows of positions [first, first + count) of one KV head. The V row of a position
// lies block_size * head_dim elements after its K row.
template <class T>
inline void collect_rows(const PinionAttention& a, uint32_t seq, uint32_t kv_head, uint32_t first, uint32_t count,
                         const T** k_rows) {
    const PinionBatch& b = a.batch;
    const uint64_t head_elements = 2ull * b.block_size * b.head_dim;
    uint32_t done = 0;
    while (done < count) {
        const uint32_t position = first + done;
        const uint32_t offset = position % b.block_size;
        const uint64_t block = b.blocks[b.table_start[seq] + position / b.block_size];
        const T* row = static_cast<const T*>(a.cache) + (block * b.kv_heads + kv_head) * head_elements +
                       static_cast<uint64_t>(offset) * b.head_dim;
        const uint32_t run = smaller(b.block_size - offset, count - done);
        for (uint32_t i = 0; i < run; ++i) k_rows[done + i] = row + static_cast<uint64_t>(i) * b.head_dim;
        done += run;
    }
}

// The same for a chunk of keys of which no query sees those below position `from`, which is in the chunk or before it: they
// get the address of that position's row, with whose values a weight of 0 meets something finite. So neither table entries
// below a window are read nor what they name.
template <class T>
inline void collect_visible_rows(const PinionAttention& a, uint32_t seq, uint32_t kv_head, uint32_t from, uint32_t first,
                                 uint32_t count, const T** k_rows) {
    const uint32_t hidden = from > first ? from - first : 0;
    collect_rows(a, seq, kv_head, first + hidden, count - hidden, k_rows + hidden);
    for (uint32_t i = 0; i < hidden; ++i) k_rows[i] = k_rows[hidden];
}

}  // namespace
