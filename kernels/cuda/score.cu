// How likely a row's tokens are, as the model gives them: log-softmax of the raw logits, and the likeliest. Contract:
// pinion_cuda.h. Twin: crates/model/src/logprobs.rs.
#include "select.h"

namespace pinion {
namespace {

struct ScoreShared {
    SelectShared select;
    double sums[THREADS / WARP];
    uint64_t best[PINION_BEST_MAX];
    uint32_t found;
};

// The `count` likeliest of the row, in order.
__device__ void find_best(const Row& row, ScoreShared& shared, unsigned count, PinionCudaScores& scores) {
    uint64_t bound = select(row, shared.select, Adds::Counts, ~uint64_t{0}, count - 1, false);
    if (threadIdx.x == 0) shared.found = 0;
    __syncthreads();
    for (unsigned id = threadIdx.x; id < row.vocab; id += THREADS) {
        uint64_t key = row.key(id);
        if (key > bound) continue;
        unsigned place = atomicAdd(&shared.found, 1u);
        if (place < PINION_BEST_MAX) shared.best[place] = key;
    }
    __syncthreads();
    if (threadIdx.x >= count) return;
    uint64_t own = shared.best[threadIdx.x];
    unsigned place = 0;
    for (unsigned i = 0; i < count; i++) place += shared.best[i] < own;
    unsigned id = unsigned(own & ((1u << ID_BITS) - 1));
    scores.best[place].id = id;
    scores.best[place].logit = row.logits[id];
}

__global__ void __launch_bounds__(THREADS, 1) score_kernel(PinionCudaScore args) {
    auto& shared = shared_as<ScoreShared>();
    const PinionCudaScored scored = at<PinionCudaScored>(args.scored)[blockIdx.x];
    if (scored.row >= args.rows) return;
    PinionCudaScores& scores = at<PinionCudaScores>(args.scores)[blockIdx.x];
    const float* logits = at<float>(args.logits) + size_t(scored.row) * args.vocab;
    uint64_t first = ~uint64_t{0};
    for (unsigned id = threadIdx.x; id < args.vocab; id += THREADS) {
        uint64_t order = order_of(logits[id], id);
        first = order < first ? order : first;
    }
    first = block_reduce(first, shared.select.scratch, Min());
    Row row = {logits, args.vocab, logits[first & ((1u << ID_BITS) - 1)], 1.0f, 0.0f};
    double sum = 0.0;
    for (unsigned id = threadIdx.x; id < args.vocab; id += THREADS) sum += double(row.weight(id));
    sum = block_reduce(sum, shared.sums, Sum());
    unsigned count = scored.best < args.vocab ? scored.best : args.vocab;
    if (count > PINION_BEST_MAX) count = PINION_BEST_MAX;
    if (count > 0) find_best(row, shared, count, scores);
    if (threadIdx.x == 0) {
        scores.sum = sum;
        scores.max = row.max;
        scores.best_count = count;
    }
}

} // namespace
} // namespace pinion

using namespace pinion;

extern "C" int32_t pinion_cuda_score(const PinionCudaScore* given, void* stream) {
    PinionCudaScore args = *given;
    if (args.count == 0 || args.rows == 0 || args.vocab == 0 || args.vocab > PINION_SAMPLE_VOCAB_MAX)
        return PINION_CUDA_BAD_ARGUMENT;
    auto kernel = &score_kernel;
    PINION_LAUNCH(kernel, dim3(args.count), dim3(THREADS), sizeof(ScoreShared), stream, args);
    return launch_result();
}
