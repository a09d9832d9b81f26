// One token from one row of logits: penalties, biases and a mask, then greedy, temperature, top-k, top-p, min-p. Contract:
// pinion_cuda.h. Twins: crates/model/src/shaping.rs and sampler.rs, which says what is computed; this file says it without a sort.
//
// Selection and the weights are in select.h.
#include "select.h"

namespace pinion {
namespace {

struct SampleShared {
    SelectShared select;
    uint32_t found;
    uint32_t last; // an id with a change of its own that the row's changes do not have
    float last_raw;
    float raw;
    bool voids; // the mask made its ids 0, which were all banned
};

// Sum over the keys up to `bound`.
__device__ uint64_t total_of(const Row& row, SelectShared& shared, Adds adds, uint64_t bound) {
    uint64_t sum = 0;
    for (unsigned id = threadIdx.x; id < row.vocab; id += THREADS)
        if (bound == ~uint64_t{0} || row.key(id) <= bound) sum += amount(row, id, adds);
    return block_reduce(sum, shared.scratch, Sum());
}

// The token that `args` draw from a row whose likeliest token is known.
__device__ unsigned draw(Row row, SelectShared& shared, const PinionCudaDraw& args) {
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

struct Changes {
    PinionCudaChange* first;
    unsigned count;

    __device__ __forceinline__ Changes(const PinionCudaSample& args, const PinionCudaDraw& draws) {
        unsigned begin = draws.changes_begin < args.changes_count ? draws.changes_begin : args.changes_count;
        unsigned left = args.changes_count - begin;
        count = draws.changes_count < left ? draws.changes_count : left;
        first = at<PinionCudaChange>(args.changes) + begin;
    }
};

// Makes the row's changes, and that of the token that the lane sampled last. Every thread sees them afterwards.
__device__ void make_changes(float* logits, const PinionCudaSample& args, const PinionCudaDraw& draws, SampleShared& shared) {
    bool recalls = draws.flags & PINION_DRAW_RECALLS_LAST && draws.lane < args.lanes;
    unsigned last = recalls ? at<uint32_t>(args.lane_tokens)[draws.lane] : args.vocab;
    Changes changes(args, draws);
    if (threadIdx.x == 0) shared.found = 0;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < changes.count; i += THREADS) {
        PinionCudaChange own = changes.first[i];
        if (own.id >= args.vocab) continue;
        if (own.id == last) {
            own.what = (own.what | PINION_CHANGE_RECALLED) + 1;
            shared.found = 1;
        }
        float raw = logits[own.id];
        logits[own.id] = change(raw, own, draws);
        if (draws.flags & PINION_DRAW_SCORED) changes.first[i].bias = raw;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.last = args.vocab;
        shared.voids = false;
        if (last < args.vocab && !shared.found) {
            shared.last = last;
            shared.last_raw = logits[last];
            logits[last] = change(logits[last], {last, PINION_CHANGE_RECALLED | 1, 0.0f}, draws);
        }
    }
    __syncthreads();
}

// `apply_mask` of crates/model/src/shaping.rs. Every thread sees it afterwards.
__device__ void apply_mask(float* logits, const uint32_t* bits, unsigned vocab, SampleShared& shared) {
    const float least = clamp_finite(-INFINITY);
    uint64_t above = 0;
    for (unsigned id = threadIdx.x; id < vocab; id += THREADS) {
        float logit = logits[id];
        if (bits[id / 32] >> id % 32 & 1) {
            if (logit > least) above = 1;
        } else if (mul_exact(logit, 0.0f) == 0.0f) {
            logits[id] = least;
        }
    }
    if (block_reduce(above, shared.select.scratch, Max())) return;
    if (threadIdx.x == 0) shared.voids = true;
    for (unsigned id = threadIdx.x; id < vocab; id += THREADS)
        if (bits[id / 32] >> id % 32 & 1 && mul_exact(logits[id], 0.0f) == 0.0f) logits[id] = 0.0f;
    __syncthreads();
}

// The logit of `id`, which a mask allows, before the changes were made.
__device__ float raw_logit(const float* logits, unsigned id, const PinionCudaSample& args, const PinionCudaDraw& draws,
                           SampleShared& shared) {
    Changes changes(args, draws);
    // An id that no change had banned, and that a mask had to bring back, had the lowest logit of all.
    if (threadIdx.x == 0)
        shared.raw = id == shared.last ? shared.last_raw : shared.voids ? clamp_finite(-INFINITY) : logits[id];
    __syncthreads();
    for (unsigned i = threadIdx.x; i < changes.count; i += THREADS)
        if (changes.first[i].id == id) shared.raw = changes.first[i].bias;
    __syncthreads();
    return shared.raw;
}

__global__ void __launch_bounds__(THREADS, 1) sample_kernel(PinionCudaSample args) {
    auto& shared = shared_as<SampleShared>();
    begin_next();
    wait_for_previous();
    const PinionCudaDraw draws = at<PinionCudaDraw>(args.draws)[blockIdx.x];
    if (draws.row >= args.logits_rows) return;
    PinionCudaSampled result = {0, PINION_SAMPLED_NONE, 0.0f};
    if (draws.mode != PINION_SAMPLE_SKIP) {
        float* logits = at<float>(args.logits) + size_t(draws.row) * args.vocab;
        if (draws.changes_count > 0 || draws.flags) make_changes(logits, args, draws, shared);
        if (draws.flags & PINION_DRAW_MASKED && draws.mask < args.masks_count)
            apply_mask(logits, at<uint32_t>(args.masks) + size_t(draws.mask) * ceil_div(args.vocab, 32), args.vocab, shared);
        Row row = {logits, args.vocab, 0.0f, draws.inverse_temperature, 0.0f};
        uint64_t best = ~uint64_t{0};
        unsigned broken = 0;
        for (unsigned id = threadIdx.x; id < args.vocab; id += THREADS) {
            float logit = row.logits[id];
            if (!(mul_exact(logit, 0.0f) == 0.0f)) broken = 1;
            uint64_t order = order_of(logit, id);
            best = order < best ? order : best;
        }
        best = block_reduce(best, shared.select.scratch, Min());
        broken = unsigned(block_reduce(uint64_t(broken), shared.select.scratch, Max()));
        if (broken) {
            result.state = PINION_SAMPLED_NONFINITE;
        } else {
            result.state = PINION_SAMPLED_TOKEN;
            result.token = unsigned(best & ((1u << ID_BITS) - 1));
            row.max = row.logits[result.token];
            if (draws.mode == PINION_SAMPLE_DRAW) result.token = draw(row, shared.select, draws);
            if (draws.flags & PINION_DRAW_SCORED) result.logit = raw_logit(logits, result.token, args, draws, shared);
        }
    }
    if (threadIdx.x == 0) {
        at<PinionCudaSampled>(args.sampled)[draws.row] = result;
        if (result.state == PINION_SAMPLED_TOKEN && draws.lane < args.lanes)
            at<uint32_t>(args.lane_tokens)[draws.lane] = result.token;
    }
}

} // namespace
} // namespace pinion

using namespace pinion;

extern "C" int32_t pinion_cuda_sample(const PinionCudaSample* given, void* stream) {
    PinionCudaSample args = *given;
    if (args.rows == 0 || args.logits_rows == 0 || args.vocab == 0 || args.vocab > PINION_SAMPLE_VOCAB_MAX) return PINION_CUDA_BAD_ARGUMENT;
    auto kernel = &sample_kernel;
    PINION_LAUNCH_DEPENDENT(kernel, dim3(args.rows), dim3(THREADS), sizeof(SampleShared), stream, args);
    return launch_result();
}
