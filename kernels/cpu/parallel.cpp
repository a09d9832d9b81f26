// Splits the kernels' work items over threads: those of a team, once there is one (pinion_use_team), else OpenMP's. With
// libtorch this links to the libgomp that libtorch loads, so both use one pool; compiled without OpenMP the pragmas
// vanish, and without a team the calling thread does all of it.
#include "../include/pinion_attention.h"
#include "../include/pinion_packed.h"
#include "../include/pinion_quantized.h"
#include "../include/pinion_rows.h"
#include "../include/pinion_team.h"
#include "attention_internal.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <atomic>

namespace {

std::atomic<PinionTeam> current_team{nullptr};

uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

// Below this much work (items * context, roughly: of 64 elements a head, 256 KB of keys and values in fp32) sharing it with
// threads that wait awake costs more than it saves.
constexpr uint64_t kSerialWork = 512;

// The same for contexts that are dealt out, in elements of keys (positions * head_dim).
constexpr uint64_t kSerialKeys = 1 << 16;

// The same for row kernels, in elements.
constexpr uint64_t kSerialElements = 1 << 15;

// The same for rounding activations to integers, in elements; it costs a region whose threads the product needs next.
constexpr uint64_t kSerialQuantized = 1 << 13;

// The same for products, in bytes of weights times rows.
constexpr uint64_t kSerialProduct = 1 << 16;

// Parts of a thread's share of even work that others can take when the kernel keeps it from its core.
constexpr uint64_t kChunks = 8;

// Tiles that a product passes together (packed_tile.h).
constexpr uint64_t kTileRun = 8;

uint64_t worker_here() {
#if defined(_OPENMP)
    return static_cast<uint64_t>(omp_get_thread_num());
#else
    return 0;
#endif
}

// By `team`: calls body(worker, begin, end) for runs of at most `chunk` items.
template <class Body>
void by_team(PinionTeam team, uint64_t items, uint64_t chunk, int32_t threads, const Body& body) {
    const PinionWork work = [](void* context, uint64_t worker, uint64_t begin, uint64_t end) {
        (*static_cast<const Body*>(context))(worker, begin, end);
    };
    team(work, const_cast<Body*>(&body), items, chunk, threads);
}

// Items that cost the same: one run for each thread, which a team cuts into multiples of `least` items.
template <class Body>
void share_even(uint64_t items, uint64_t least, int32_t threads, const Body& body) {
    if (items == 0) return;
    const uint64_t runs = items < static_cast<uint64_t>(threads) ? items : static_cast<uint64_t>(threads);
    if (const PinionTeam team = current_team.load(std::memory_order_acquire)) {
        const uint64_t chunk = (items / (runs * kChunks) + least - 1) / least * least;
        by_team(team, items, most(chunk, least), threads, body);
        return;
    }
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t run = 0; run < static_cast<int64_t>(runs); ++run) {
        const uint64_t at = static_cast<uint64_t>(run);
        body(worker_here(), items * at / runs, items * (at + 1) / runs);
    }
}

// Items that differ in cost: threads take `chunk` of them as they come free.
template <class Body>
void share_uneven(uint64_t items, uint64_t chunk, int32_t threads, const Body& body) {
    if (const PinionTeam team = current_team.load(std::memory_order_acquire)) {
        by_team(team, items, chunk, threads, body);
        return;
    }
    const int64_t chunks = static_cast<int64_t>((items + chunk - 1) / chunk);
    // Always all threads, as everywhere in this file: libgomp ends those of a larger team before that it has no use for.
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t c = 0; c < chunks; ++c) {
        const uint64_t begin = static_cast<uint64_t>(c) * chunk;
        body(worker_here(), begin, begin + chunk < items ? begin + chunk : items);
    }
}

// The rows [0, rows), if there is enough to do for several threads.
template <class Body>
void over_rows(uint64_t rows, uint64_t row_elements, int32_t threads, Body body) {
    if (threads <= 1 || rows < 2 || rows * row_elements < kSerialElements) {
        body(0, rows);
        return;
    }
    share_even(rows, 1, threads, [&](uint64_t, uint64_t begin, uint64_t end) { body(begin, end); });
}

// The tiles [0, tiles), if `bytes` of weights times rows are enough to do.
template <class Body>
void over_tiles(uint64_t tiles, uint64_t bytes, int32_t threads, Body body) {
    if (threads <= 1 || tiles < 2 || bytes < kSerialProduct) {
        body(0, tiles);
        return;
    }
    share_even(tiles, kTileRun, threads, [&](uint64_t, uint64_t begin, uint64_t end) { body(begin, end); });
}

// Keys that each KV head of a sequence's last query token meets.
uint64_t seen_of(const PinionAttention& a, uint32_t s) {
    const uint32_t last = a.batch.context_len[s] - 1;
    return last + 1 - visible_from(a, last) / kKeys * kKeys;
}

// Decides which generated tokens are dealt out in spans, and counts those; how many spans each of their KV heads waits for
// goes to `spans_left`. No bit of a result depends on it.
uint64_t deal_out(PinionAttention& a, int32_t threads) {
    const PinionBatch& b = a.batch;
    a.dealt_above = UINT32_MAX;
    if (threads <= 1 || !a.split_contexts || a.partials == nullptr) return 0;
    uint64_t items = 0, positions = 0, longest = 0, shortest = UINT64_MAX;
    for (uint32_t s = 0; s < b.seqs; ++s) {
        if (b.query_start[s + 1] == b.query_start[s]) continue;
        const uint64_t of_seq = Cut(a, s).items() * b.kv_heads, seen = seen_of(a, s);
        items += of_seq;
        positions += of_seq * seen;
        longest = most(longest, seen);
        shortest = seen < shortest ? seen : shortest;
    }
    if (positions * b.head_dim < kSerialKeys) return 0;
    // Equal items of which each thread gets as many keep all busy to the end: spans and joins would be work without a gain.
    if (items % static_cast<uint64_t>(threads) == 0 && longest - shortest <= PINION_SPAN) return 0;
    const uint64_t above = positions / (static_cast<uint64_t>(threads) * PINION_DEALT);
    a.dealt_above = above < UINT32_MAX ? static_cast<uint32_t>(above) : UINT32_MAX;
    uint64_t dealt = 0;
    for_each_share(a, 0, UINT64_MAX, [&](const Share& share) {
        if (share.cut.dealt_spans == 0) return;
        for (uint32_t head = 0; head < b.kv_heads; ++head) a.spans_left[share.first_dealt + head] = share.cut.dealt_spans;
        dealt += b.kv_heads;
    });
    return dealt;
}

// After the items [begin, end): joins the spans of each dealt token and KV head of which no span is left. The thread that
// does the last one joins them all, so a join costs neither a barrier nor a wake-up.
void join_finished(const PinionAttention& a, int32_t level, uint64_t begin, uint64_t end) {
    for_each_share(a, begin, end, [&](const Share& share) {
        const uint64_t spans = share.cut.dealt_spans;
        if (spans == 0) return;
        const uint64_t first_span = share.first_item + share.cut.whole_items() * a.batch.kv_heads;
        for (uint32_t head = 0; head < a.batch.kv_heads; ++head) {
            const uint64_t first = most(first_span + head * spans, begin), last = first_span + (head + 1) * spans;
            const uint64_t stop = last < end ? last : end;
            if (first >= stop) continue;
            uint32_t* left = &a.spans_left[share.first_dealt + head];
            // Release: this thread's sums are visible to the one that joins. Acquire: it sees those of all.
            if (__atomic_sub_fetch(left, static_cast<uint32_t>(stop - first), __ATOMIC_ACQ_REL) == 0) {
                pinion_join_spans(&a, level, share.seq, head, share.first_partial + head * spans);
            }
        }
    });
}

}  // namespace

extern "C" void pinion_paged_attention_parallel(const PinionAttention* args, int32_t level, int32_t threads) {
    PinionAttention a = *args;
    const uint64_t dealt = deal_out(a, threads);
    const uint64_t items = pinion_paged_attention_work(&a);
    uint64_t context = 0;
    for (uint32_t s = 0; s < a.batch.seqs; ++s) context = most(context, a.batch.context_len[s]);
    if (threads <= 1 || (dealt == 0 && items * context < kSerialWork)) {
        pinion_paged_attention(&a, level, 0, items);
        return;
    }
    // Items differ in cost (causal tiles, ragged contexts): threads take small chunks as they come free. With spans few
    // items are left to even out what the last chunk makes uneven, so there chunks are smaller.
    const uint64_t chunk = most(1, items / (static_cast<uint64_t>(threads) * (dealt > 0 ? 32 : 8)));
    share_uneven(items, chunk, threads, [&](uint64_t, uint64_t begin, uint64_t end) {
        pinion_paged_attention(&a, level, begin, end);
        if (dealt > 0) join_finished(a, level, begin, end);
    });
}

extern "C" void pinion_kv_append_parallel(const PinionAppend* args, int32_t threads) {
    const uint64_t tokens = args->batch.query_start[args->batch.seqs];
    if (threads <= 1 || tokens < 64) {
        pinion_kv_append(args, 0, tokens);
        return;
    }
    share_even(tokens, 16, threads, [&](uint64_t, uint64_t begin, uint64_t end) { pinion_kv_append(args, begin, end); });
}

extern "C" void pinion_rms_norm(const PinionRmsNorm* args, int32_t level, int32_t threads) {
    over_rows(args->tokens * args->groups, args->width, threads,
              [=](uint64_t begin, uint64_t end) { pinion_norm_rows(args, level, begin, end); });
}

extern "C" void pinion_layer_norm(const PinionLayerNorm* args, int32_t level, int32_t threads) {
    over_rows(args->rows, args->width, threads,
              [=](uint64_t begin, uint64_t end) { pinion_layer_norm_rows(args, level, begin, end); });
}

extern "C" void pinion_rotate(const PinionRotate* args, int32_t level, int32_t threads) {
    over_rows(args->tokens, static_cast<uint64_t>(args->heads) * args->rotary_dim, threads,
              [=](uint64_t begin, uint64_t end) { pinion_rotate_rows(args, level, begin, end); });
}

extern "C" void pinion_gate(const PinionGate* args, int32_t level, int32_t threads) {
    over_rows(args->rows, args->inner, threads,
              [=](uint64_t begin, uint64_t end) { pinion_gate_rows(args, level, begin, end); });
}

extern "C" void pinion_pack_parallel(const PinionPack* args, int32_t threads) {
    const uint64_t runs = (args->rows + PINION_TILE_OUTPUTS - 1) / PINION_TILE_OUTPUTS;
    share_even(runs, 1, threads, [&](uint64_t worker, uint64_t begin, uint64_t end) {
        pinion_pack_runs(args, static_cast<uint32_t>(worker), begin, end);
    });
}

extern "C" void pinion_quantized_parallel(const PinionQuantizeRows* rows, const PinionQuantized* args, int32_t level,
                                          int32_t threads) {
    const uint64_t tiles = (args->n + PINION_TILE_OUTPUTS - 1) / PINION_TILE_OUTPUTS;
    const bool is_split = threads > 1 && tiles > 1 && tiles * PINION_TILE_OUTPUTS * args->k_padded * args->rows >= kSerialProduct;
    if (is_split && rows->rows > 1 && rows->rows * rows->k >= kSerialQuantized) {
        share_even(rows->rows, 1, threads,
                   [=](uint64_t, uint64_t begin, uint64_t end) { pinion_quantize_rows(rows, level, begin, end); });
    } else {
        pinion_quantize_rows(rows, level, 0, rows->rows);
    }
    if (!is_split) {
        pinion_quantized(args, level, 0, tiles);
        return;
    }
    share_even(tiles, kTileRun, threads,
               [=](uint64_t, uint64_t begin, uint64_t end) { pinion_quantized(args, level, begin, end); });
}

extern "C" void pinion_pack_floats_parallel(const PinionPackFloats* args, int32_t threads) {
    const uint64_t runs = (args->rows + PINION_TILE_OUTPUTS - 1) / PINION_TILE_OUTPUTS;
    const uint64_t tile_bytes = pinion_packed_tile_bytes(args->k, args->weight_type);
    // A run that does not begin with a tile shares that tile with the run before: the elements differ.
    over_tiles(runs, runs * tile_bytes, threads,
               [=](uint64_t begin, uint64_t end) { pinion_pack_floats(args, begin, end); });
}

extern "C" void pinion_packed_parallel(const PinionPacked* args, int32_t level, int32_t threads) {
    const uint64_t tiles = (args->n + PINION_TILE_OUTPUTS - 1) / PINION_TILE_OUTPUTS;
    over_tiles(tiles, tiles * pinion_packed_tile_bytes(args->k, args->weight_type) * args->rows, threads,
               [=](uint64_t begin, uint64_t end) { pinion_packed(args, level, begin, end); });
}

extern "C" void pinion_use_team(PinionTeam team) { current_team.store(team, std::memory_order_release); }

extern "C" void pinion_deal(PinionWork work, void* context, uint64_t items, int32_t threads) {
    if (threads <= 1 || items < 2) {
        work(context, 0, 0, items);
        return;
    }
    share_uneven(items, 1, threads, [=](uint64_t worker, uint64_t begin, uint64_t end) { work(context, worker, begin, end); });
}
