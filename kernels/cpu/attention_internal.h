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
void pinion_join_spans_avx2(const PinionAttention* args, uint32_t seq, uint32_t kv_head, uint64_t first_partial);
void pinion_join_spans_avx512(const PinionAttention* args, uint32_t seq, uint32_t kv_head, uint64_t first_partial);
}

namespace {

// A bf16 value as stored; a type of its own so that overloads tell it from an integer.
struct Bf16 {
    uint16_t bits;
};

// An element of a row of integers, which its scale follows.
struct Int8 {
    int8_t value;
};

inline float to_float(float value) { return value; }

inline float to_float(Int8 value) { return value.value; }

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

inline uint32_t round_up(uint32_t n, uint32_t to) { return (n + to - 1) / to * to; }

constexpr uint32_t kKeys = 64;  // keys in a chunk or tile

// Whether rows of the cache have a scale.
template <class Kv>
constexpr bool kHasScale = false;
template <>
constexpr bool kHasScale<Int8> = true;

// The factor on what is stored; rows of floats are stored as they are.
template <class Kv>
inline float scale_of(const Kv* row, uint32_t head_dim) {
    if constexpr (!kHasScale<Kv>) return 1;
    float scale;
    memcpy(&scale, row + round_up(head_dim, 4), sizeof(scale));
    return scale;
}

// Elements of the cache from one row to the next.
template <class Kv>
inline uint64_t row_step(const PinionBatch& b) {
    return kHasScale<Kv> ? round_up(b.head_dim, 4) + sizeof(float) : b.head_dim;
}

// One work item: a tile of a sequence's prompt tokens, or one generated token or a span of what it sees, for one KV head and
// its query heads.
struct Item {
    uint32_t seq;
    uint32_t kv_head;
    uint32_t first_token;     // of the tile, in the batch
    uint32_t queries;         // in the tile, 1..=tile_tokens; 1 if generated
    bool is_generated;
    bool is_span;
    uint32_t span;            // its index, if it is one
    uint64_t partial;         // where its sums go
    uint32_t first_position;  // of the tile's first query in its sequence
};

// Prompt tokens of a tile; their rows for all query heads of a group are one tile of queries.
inline uint32_t tile_tokens(const PinionBatch& b) { return b.group >= PINION_QUERY_TILE ? 1 : PINION_QUERY_TILE / b.group; }

// The first position that a query at `position` sees.
inline uint32_t visible_from(const PinionAttention& a, uint32_t position) {
    return a.window != 0 && position >= a.window ? position - a.window + 1 : 0;
}

// How the positions that a generated token sees are cut: a matter of its own position and the window alone.
struct Spans {
    uint32_t start;   // of the first span: the chunk in which the first visible position is
    uint32_t end;     // of the last one
    uint32_t length;  // of all but the last one; a multiple of kKeys
    uint32_t count;

    Spans(const PinionAttention& a, uint32_t position) {
        start = visible_from(a, position) / kKeys * kKeys;
        end = position + 1;
        const uint32_t seen = end - start;
        const uint32_t least = round_up((seen + PINION_MAX_SPANS - 1) / PINION_MAX_SPANS, kKeys);
        length = !a.split_contexts ? seen : least > PINION_SPAN ? least : uint32_t{PINION_SPAN};
        count = (seen + length - 1) / length;
    }

    uint32_t begin_of(uint32_t span) const { return start + span * length; }
    uint32_t end_of(uint32_t span) const { return smaller(length, end - begin_of(span)) + begin_of(span); }
};

// How a sequence's query tokens are cut into work.
struct Cut {
    uint32_t query_len;
    uint32_t prompt_queries;  // come first
    uint32_t tiles;           // of those
    uint32_t dealt_spans;     // of the generated token, if it is dealt out, else 0

    Cut(const PinionAttention& a, uint32_t s) {
        const PinionBatch& b = a.batch;
        query_len = b.query_start[s + 1] - b.query_start[s];
        const uint32_t first_position = b.context_len[s] - query_len;
        prompt_queries = b.prompt_len[s] > first_position ? smaller(b.prompt_len[s] - first_position, query_len) : 0;
        tiles = (prompt_queries + tile_tokens(b) - 1) / tile_tokens(b);
        dealt_spans = 0;
        if (query_len - prompt_queries == 1) {
            const Spans spans(a, b.context_len[s] - 1);
            if (spans.count > 1 && spans.end - spans.start > a.dealt_above) dealt_spans = spans.count;
        }
    }

    // Items of each KV head: those that are no spans, and all.
    uint64_t whole_items() const {
        return static_cast<uint64_t>(tiles) + (dealt_spans > 0 ? 0 : query_len - prompt_queries);
    }
    uint64_t items() const { return whole_items() + dealt_spans; }
};

// The items of a sequence, and where those before it end.
struct Share {
    uint32_t seq;
    Cut cut;
    uint64_t first_item;
    uint64_t end_item;
    uint64_t first_partial;  // number of the first span among the batch's
    uint32_t first_dealt;    // number of the first (dealt token, KV head)
};

// Calls visit(share) for each sequence that has items in [begin, end). O(seqs) on top.
template <class Visit>
inline void for_each_share(const PinionAttention& a, uint64_t begin, uint64_t end, Visit visit) {
    const uint32_t heads = a.batch.kv_heads;
    uint64_t item = 0, partial = 0;
    uint32_t dealt = 0;
    for (uint32_t s = 0; s < a.batch.seqs && item < end; ++s) {
        const Cut cut(a, s);
        const Share share = {s, cut, item, item + cut.items() * heads, partial, dealt};
        item = share.end_item;
        if (share.end_item > begin) visit(share);
        partial += static_cast<uint64_t>(cut.dealt_spans) * heads;
        dealt += cut.dealt_spans > 0 ? heads : 0;
    }
}

// The sequence's item number `at`.
inline Item item_of(const PinionBatch& b, const Share& share, uint64_t at) {
    const Cut& cut = share.cut;
    const uint64_t whole = cut.whole_items() * b.kv_heads;
    Item item;
    item.seq = share.seq;
    item.is_span = at >= whole;
    item.is_generated = item.is_span || at / b.kv_heads >= cut.tiles;
    item.span = item.is_span ? static_cast<uint32_t>((at - whole) % cut.dealt_spans) : 0;
    item.partial = item.is_span ? share.first_partial + (at - whole) : 0;
    item.kv_head = static_cast<uint32_t>(item.is_span ? (at - whole) / cut.dealt_spans : at % b.kv_heads);
    const uint32_t piece = static_cast<uint32_t>(at / b.kv_heads);
    const uint32_t offset = item.is_span        ? cut.query_len - 1
                            : item.is_generated ? cut.prompt_queries + (piece - cut.tiles)
                                                : piece * tile_tokens(b);
    item.first_token = b.query_start[share.seq] + offset;
    item.queries = item.is_generated ? 1 : smaller(tile_tokens(b), cut.prompt_queries - offset);
    item.first_position = b.context_len[share.seq] - cut.query_len + offset;
    return item;
}

// Calls visit(item) for the items [begin, end).
template <class Visit>
inline void for_each_item(const PinionAttention& a, uint64_t begin, uint64_t end, Visit visit) {
    for_each_share(a, begin, end, [&](const Share& share) {
        const uint64_t first = begin > share.first_item ? begin : share.first_item;
        const uint64_t last = end < share.end_item ? end : share.end_item;
        for (uint64_t i = first; i < last; ++i) visit(item_of(a.batch, share, i - share.first_item));
    });
}

// What one query head adds up over a span lies in `partials`: the sum of values in whole vectors, the maximum and the mass.
inline uint32_t partial_width(uint32_t head_dim) { return round_up(head_dim, 16); }
inline uint32_t partial_step(uint32_t head_dim) { return partial_width(head_dim) + 2; }
inline float* partial_of(const PinionAttention& a, uint64_t partial, uint32_t head_in_group) {
    return a.partials + (partial * a.batch.group + head_in_group) * partial_step(a.batch.head_dim);
}

// The item that a join is for: the last token of a sequence.
inline Item generated_item(const PinionBatch& b, uint32_t seq, uint32_t kv_head) {
    Item item = {};
    item.seq = seq;
    item.kv_head = kv_head;
    item.first_token = b.query_start[seq + 1] - 1;
    item.queries = 1;
    item.is_generated = true;
    item.first_position = b.context_len[seq] - 1;
    return item;
}

// Writes to k_rows the addresses of the K rows of positions [first, first + count) of one KV head. The V row of a position
// lies block_size rows after its K row.
template <class Kv>
inline void collect_rows(const PinionAttention& a, uint32_t seq, uint32_t kv_head, uint32_t first, uint32_t count,
                         const Kv** k_rows) {
    const PinionBatch& b = a.batch;
    const uint64_t step = row_step<Kv>(b), head_elements = 2 * b.block_size * step;
    uint32_t done = 0;
    while (done < count) {
        const uint32_t position = first + done;
        const uint32_t offset = position % b.block_size;
        const uint64_t block = b.blocks[b.table_start[seq] + position / b.block_size];
        const Kv* row =
            static_cast<const Kv*>(a.cache) + (block * b.kv_heads + kv_head) * head_elements + offset * step;
        const uint32_t run = smaller(b.block_size - offset, count - done);
        for (uint32_t i = 0; i < run; ++i) k_rows[done + i] = row + i * step;
        done += run;
    }
}

// The same for a chunk of keys of which no query sees those below position `from`, which is in the chunk or before it: they
// get the address of that position's row, with whose values a weight of 0 meets something finite. So neither table entries
// below a window are read nor what they name.
template <class Kv>
inline void collect_visible_rows(const PinionAttention& a, uint32_t seq, uint32_t kv_head, uint32_t from, uint32_t first,
                                 uint32_t count, const Kv** k_rows) {
    const uint32_t hidden = from > first ? from - first : 0;
    collect_rows(a, seq, kv_head, first + hidden, count - hidden, k_rows + hidden);
    for (uint32_t i = 0; i < hidden; ++i) k_rows[i] = k_rows[hidden];
}

}  // namespace
