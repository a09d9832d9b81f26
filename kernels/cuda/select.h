// Weights, orders and selection over one row of logits, by a block of 1024 threads: what the sampler and the scores share.
//
// Top-k, top-p, a draw and a list of the likeliest are one question: which is the first key, in the order of likelihood, at
// which a running sum (of counts, or of probability) passes a target? It is answered ten bits of the key at a time: a
// histogram of the sums over the next ten bits, a scan over its 1024 places, and on into the place where the target lies. Sums
// are integers, so the order in which threads add does not show.
#pragma once
#include "target.h"

namespace pinion {
namespace {

constexpr unsigned THREADS = 1024;
constexpr unsigned DIGIT_BITS = 10;
constexpr unsigned PLACES = 1 << DIGIT_BITS;
constexpr unsigned ID_BITS = 18;
constexpr unsigned LEVELS = 6; // 10 bits of distance, 32 of the logit, 18 of the id
constexpr unsigned ID_LEVELS = 2;
constexpr unsigned LIST = 2048; // ids that share their first two digits with the answer, if they are no more
constexpr float FIXED_ONE = 35184372088832.0f; // 2^45: the sum of 2^18 of them has room in 64 bits
static_assert(PLACES == THREADS, "a thread scans one place");
static_assert((1u << ID_BITS) == PINION_SAMPLE_VOCAB_MAX, "an id has its bits");

struct SelectShared {
    uint64_t places[PLACES];
    uint64_t scratch[THREADS / WARP];
    uint64_t before;
    uint32_t digit;
    uint32_t listed;
    uint32_t list[LIST];
};

struct Min {
    template <typename T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        return a < b ? a : b;
    }
};

// `exp_nonpositive` of crates/model/src/sampler.rs, operation by operation.
__device__ __forceinline__ float exp_nonpositive(float x) {
    const float round = 12582912.0f;
    float clamped = x > -87.0f ? x : -87.0f;
    float power = mul_exact(clamped, 1.4426950408889634f);
    float shifted = add_exact(power, round);
    float f = mul_exact(add_exact(power, -add_exact(shifted, -round)), 0.6931471805599453f);
    float series = add_exact(1.0f / 120.0f, div_exact(f, 720.0f));
    series = add_exact(1.0f / 24.0f, mul_exact(f, series));
    series = add_exact(1.0f / 6.0f, mul_exact(f, series));
    series = add_exact(0.5f, mul_exact(f, series));
    series = add_exact(1.0f, mul_exact(f, series));
    series = add_exact(1.0f, mul_exact(f, series));
    uint32_t scale_bits = (bits_as<uint32_t>(shifted) - bits_as<uint32_t>(round) + 127) << 23;
    return x > -87.0f ? mul_exact(series, bits_as<float>(scale_bits)) : 0.0f;
}

// Ascending order: higher logit first, then lower id.
__device__ __forceinline__ uint64_t order_of(float logit, unsigned id) {
    uint32_t bits = bits_as<uint32_t>(add_exact(logit, 0.0f));
    uint32_t ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
    return uint64_t(~ascending) << ID_BITS | id;
}

struct Row {
    const float* logits;
    unsigned vocab;
    float max;
    float inverse_temperature;
    float least; // weights below this are out

    __device__ __forceinline__ float weight(unsigned id) const {
        float difference = add_exact(logits[id], -max);
        return exp_nonpositive(difference == 0.0f ? 0.0f : mul_exact(difference, inverse_temperature));
    }
    __device__ __forceinline__ uint64_t fixed(float weight) const { return uint64_t(mul_exact(weight, FIXED_ONE)); }
    // The first ten bits are the distance from the likeliest in steps of 1/32, so that the first histogram spreads: near
    // logits share their own leading bits.
    __device__ __forceinline__ uint64_t key(unsigned id) const {
        float distance = mul_exact(add_exact(max, -logits[id]), 32.0f);
        uint64_t step = distance < float(PLACES - 1) ? uint64_t(distance) : PLACES - 1;
        return step << (32 + ID_BITS) | order_of(logits[id], id);
    }
};

enum class Adds { Counts, Mass, KeptMass };

__device__ __forceinline__ uint64_t amount(const Row& row, unsigned id, Adds adds) {
    if (adds == Adds::Counts) return 1;
    float weight = row.weight(id);
    if (adds == Adds::KeptMass && weight < row.least) return 0;
    return row.fixed(weight);
}

// The first key up to `bound` at which the running sum is above `target`; the sum over them all must be. With `by_id` the
// order is that of the ids, and so is the answer.
//
// The row is walked twice: what shares two digits with the answer is listed, and the other levels walk the list. By id the first
// digit has ten bits and the second eight, so that a warp's 32 ids share a place and add once: a 64-bit add to shared memory is
// a loop of compare-and-swap, and one place for all ids of a block would be a thousand of them one after another.
__device__ uint64_t select(const Row& row, SelectShared& shared, Adds adds, uint64_t bound, uint64_t target, bool by_id) {
    const unsigned levels = by_id ? ID_LEVELS : LEVELS;
    uint64_t prefix = 0;
    unsigned count = row.vocab;
    bool walks_list = false;
    for (unsigned level = levels; level-- > 0;) {
        const bool shares = by_id && level > 0, lists = !by_id && level + 2 == levels;
        const unsigned bits = by_id && level == 0 ? ID_BITS - DIGIT_BITS : DIGIT_BITS;
        const unsigned shift = shares ? ID_BITS - DIGIT_BITS : level * DIGIT_BITS;
        shared.places[threadIdx.x] = 0;
        if (lists && threadIdx.x == 0) shared.listed = 0;
        __syncthreads();
        for (unsigned first = 0; first < count; first += THREADS) {
            unsigned at = first + threadIdx.x;
            uint64_t adding = 0, key = 0;
            if (at < count) {
                unsigned id = walks_list ? shared.list[at] : at;
                key = by_id ? id : row.key(id);
                if (key >> shift >> bits == prefix && key <= bound) adding = amount(row, id, adds);
                if (lists && adding) {
                    unsigned place = atomicAdd(&shared.listed, 1u);
                    if (place < LIST) shared.list[place] = id;
                }
            }
            if (shares) {
                adding = warp_reduce(adding, Sum());
                if (threadIdx.x % WARP != 0) adding = 0;
            }
            if (adding)
                atomicAdd(reinterpret_cast<unsigned long long*>(&shared.places[key >> shift & ((1u << bits) - 1)]),
                          static_cast<unsigned long long>(adding));
        }
        __syncthreads();
        uint64_t own = shared.places[threadIdx.x], through = own;
#pragma unroll
        for (unsigned by = 1; by < WARP; by *= 2) {
            uint64_t other = lane_below(through, by);
            if (threadIdx.x % WARP >= by) through += other;
        }
        if (threadIdx.x % WARP == WARP - 1) shared.scratch[threadIdx.x / WARP] = through;
        __syncthreads();
        for (unsigned w = 0; w < threadIdx.x / WARP; w++) through += shared.scratch[w];
        if (through > target && through - own <= target) {
            shared.digit = threadIdx.x;
            shared.before = through - own;
        }
        __syncthreads();
        prefix = prefix << bits | shared.digit;
        target -= shared.before;
        if (lists && shared.listed <= LIST) {
            walks_list = true;
            count = shared.listed;
        }
        __syncthreads();
    }
    return prefix;
}

} // namespace
} // namespace pinion
