// One token from one row of logits: penalties and biases, then greedy, temperature, top-k, top-p, min-p. Contract:
// pinion_cuda.h. Twins: crates/model/src/shaping.rs and sampler.rs, which says what is computed; this file says it without a sort.
//
// Top-k, top-p and the draw itself are one question: which is the first key, in the order of likelihood, at which a running
// sum (of counts, or of probability) passes a target? It is answered ten bits of the key at a time: a histogram of the sums
// over the next ten bits, a scan over its 1024 places, and on into the place where the target lies. Sums are integers, so
// the order in which threads add does not show.
#include "target.h"

namespace pinion {
namespace {

constexpr unsigned THREADS = 1024;
constexpr unsigned DIGIT_BITS = 10;
constexpr unsigned PLACES = 1 << DIGIT_BITS;
constexpr unsigned ID_BITS = 17;
constexpr unsigned LEVELS = 6; // 10 bits of distance, 32 of the logit, 17 of the id
constexpr unsigned ID_LEVELS = 2;
constexpr float FIXED_ONE = 70368744177664.0f; // 2^46
static_assert(PLACES == THREADS, "a thread scans one place");
static_assert((1u << ID_BITS) == PINION_SAMPLE_VOCAB_MAX, "an id has its bits");

struct SampleShared {
    uint64_t places[PLACES];
    uint64_t scratch[THREADS / WARP];
    uint64_t before;
    uint32_t digit;
    uint32_t found;
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

// Sum over the keys up to `bound`.
__device__ uint64_t total_of(const Row& row, SampleShared& shared, Adds adds, uint64_t bound) {
    uint64_t sum = 0;
    for (unsigned id = threadIdx.x; id < row.vocab; id += THREADS)
        if (bound == ~uint64_t{0} || row.key(id) <= bound) sum += amount(row, id, adds);
    return block_reduce(sum, shared.scratch, Sum());
}

// The first key up to `bound` at which the running sum is above `target`; the sum over them all must be. With `by_id` the
// order is that of the ids, and so is the answer.
__device__ uint64_t select(const Row& row, SampleShared& shared, Adds adds, uint64_t bound, uint64_t target, bool by_id) {
    uint64_t prefix = 0;
    for (unsigned level = by_id ? ID_LEVELS : LEVELS; level-- > 0;) {
        unsigned shift = level * DIGIT_BITS;
        shared.places[threadIdx.x] = 0;
        __syncthreads();
        for (unsigned id = threadIdx.x; id < row.vocab; id += THREADS) {
            uint64_t key = by_id ? id : row.key(id);
            if (key >> shift >> DIGIT_BITS != prefix || key > bound) continue;
            uint64_t adding = amount(row, id, adds);
            if (adding)
                atomicAdd(reinterpret_cast<unsigned long long*>(&shared.places[key >> shift & (PLACES - 1)]),
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
        prefix = prefix << DIGIT_BITS | shared.digit;
        target -= shared.before;
        __syncthreads();
    }
    return prefix;
}

// The token that `args` draw from a row whose likeliest token is known.
__device__ unsigned draw(Row row, SampleShared& shared, const PinionCudaDraw& args) {
    const uint64_t unbounded = ~uint64_t{0};
    unsigned top_k = args.top_k == 0 || args.top_k > row.vocab ? row.vocab : args.top_k;
    bool k_is_on = top_k < row.vocab, p_is_on = args.top_p < 1.0f;
    const float smallest = 1.17549435e-38f;
    row.least = args.min_p > smallest ? args.min_p : smallest;
    uint64_t bound = unbounded;
    if (k_is_on) bound = select(row, shared, Adds::Counts, bound, top_k - 1, false);
    if (p_is_on) {
        double base = double(total_of(row, shared, Adds::Mass, bound));
        uint64_t nucleus = uint64_t(ceil(base * double(args.top_p)));
        bound = select(row, shared, Adds::Mass, bound, nucleus > 0 ? nucleus - 1 : 0, false);
    }
    uint64_t mass = total_of(row, shared, Adds::KeptMass, bound);
    uint64_t target = uint64_t(args.draw * double(mass));
    if (target >= mass) target = mass - 1;
    bool by_id = !k_is_on && !p_is_on;
    uint64_t key = select(row, shared, Adds::KeptMass, bound, target, by_id);
    return by_id ? unsigned(key) : unsigned(key & ((1u << ID_BITS) - 1));
}

__device__ __forceinline__ float clamp_finite(float x) {
    const float most = 3.4028234663852886e38f;
    return x > most ? most : x < -most ? -most : x;
}

// `Shaper::apply` of crates/model/src/shaping.rs for one id, operation by operation.
__device__ __forceinline__ float change(float logit, const PinionCudaChange& change, const PinionCudaDraw& draws) {
    if (!(mul_exact(logit, 0.0f) == 0.0f)) return logit;
    if (change.what & PINION_CHANGE_RECALLED)
        logit = clamp_finite(logit > 0.0f ? div_exact(logit, draws.repetition) : mul_exact(logit, draws.repetition));
    if (uint32_t count = change.what & PINION_CHANGE_COUNT)
        logit = clamp_finite(add_exact(add_exact(logit, -mul_exact(draws.frequency, float(count))), -draws.presence));
    logit = clamp_finite(add_exact(logit, change.bias));
    return change.what & PINION_CHANGE_BANNED ? clamp_finite(-INFINITY) : logit;
}

// Makes the row's changes, and that of the token that the lane sampled last. Every thread sees them afterwards.
__device__ void make_changes(float* logits, const PinionCudaSample& args, const PinionCudaDraw& draws, uint32_t& found) {
    bool recalls = draws.flags & PINION_DRAW_RECALLS_LAST && draws.lane < args.lanes;
    unsigned last = recalls ? at<uint32_t>(args.lane_tokens)[draws.lane] : args.vocab;
    unsigned begin = draws.changes_begin < args.changes_count ? draws.changes_begin : args.changes_count;
    unsigned left = args.changes_count - begin;
    unsigned count = draws.changes_count < left ? draws.changes_count : left;
    const PinionCudaChange* changes = at<PinionCudaChange>(args.changes) + begin;
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < count; i += THREADS) {
        PinionCudaChange own = changes[i];
        if (own.id >= args.vocab) continue;
        if (own.id == last) {
            own.what = (own.what | PINION_CHANGE_RECALLED) + 1;
            found = 1;
        }
        logits[own.id] = change(logits[own.id], own, draws);
    }
    __syncthreads();
    if (threadIdx.x == 0 && last < args.vocab && !found)
        logits[last] = change(logits[last], {last, PINION_CHANGE_RECALLED | 1, 0.0f}, draws);
    __syncthreads();
}

__global__ void __launch_bounds__(THREADS) sample_kernel(PinionCudaSample args) {
    auto& shared = shared_as<SampleShared>();
    const PinionCudaDraw draws = at<PinionCudaDraw>(args.draws)[blockIdx.x];
    PinionCudaSampled result = {0, PINION_SAMPLED_NONE};
    if (draws.mode != PINION_SAMPLE_SKIP) {
        float* logits = at<float>(args.logits) + size_t(blockIdx.x) * args.vocab;
        if (draws.changes_count > 0 || draws.flags & PINION_DRAW_RECALLS_LAST) make_changes(logits, args, draws, shared.found);
        Row row = {logits, args.vocab, 0.0f, draws.inverse_temperature, 0.0f};
        uint64_t best = ~uint64_t{0};
        unsigned broken = 0;
        for (unsigned id = threadIdx.x; id < args.vocab; id += THREADS) {
            float logit = row.logits[id];
            if (!(mul_exact(logit, 0.0f) == 0.0f)) broken = 1;
            uint64_t order = order_of(logit, id);
            best = order < best ? order : best;
        }
        best = block_reduce(best, shared.scratch, Min());
        broken = unsigned(block_reduce(uint64_t(broken), shared.scratch, Max()));
        if (broken) {
            result.state = PINION_SAMPLED_NONFINITE;
        } else {
            result.state = PINION_SAMPLED_TOKEN;
            result.token = unsigned(best & ((1u << ID_BITS) - 1));
            row.max = row.logits[result.token];
            if (draws.mode == PINION_SAMPLE_DRAW) result.token = draw(row, shared, draws);
        }
    }
    if (threadIdx.x == 0) {
        at<PinionCudaSampled>(args.sampled)[blockIdx.x] = result;
        if (result.state == PINION_SAMPLED_TOKEN && draws.lane < args.lanes)
            at<uint32_t>(args.lane_tokens)[draws.lane] = result.token;
    }
}

} // namespace
} // namespace pinion

using namespace pinion;

extern "C" int32_t pinion_cuda_sample(const PinionCudaSample* given, void* stream) {
    PinionCudaSample args = *given;
    if (args.rows == 0 || args.vocab == 0 || args.vocab > PINION_SAMPLE_VOCAB_MAX) return PINION_CUDA_BAD_ARGUMENT;
    auto kernel = &sample_kernel;
    PINION_LAUNCH(kernel, dim3(args.rows), dim3(THREADS), sizeof(SampleShared), stream, args);
    return launch_result();
}
