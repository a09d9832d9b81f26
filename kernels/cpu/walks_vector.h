// The sampler's walks, one source for every instruction set. Contract: kernels/include/pinion_walks.h. An ISA here is
// one of isa_*.h with what the units of the levels add to it.
#pragma once
#include "../include/pinion_walks.h"

namespace {

template <class I>
int32_t finite_max(const float* x, uint64_t count, float* out) {
    using V = typename I::V;
    // Independent chains hide the latency of an operation.
    constexpr uint32_t kChains = 4;
    // x * 0 is 0 for a finite x and NaN for the others.
    V max[kChains], poison[kChains];
    for (uint32_t c = 0; c < kChains; ++c) {
        max[c] = I::set1(-__builtin_inff());
        poison[c] = I::zero();
    }
    const auto visit = [&](uint32_t c, V value) {
        max[c] = I::max(value, max[c]);
        poison[c] = I::add(poison[c], I::mul(value, I::zero()));
    };
    uint64_t i = 0;
    for (; i + kChains * I::kLanes <= count; i += kChains * I::kLanes) {
        for (uint32_t c = 0; c < kChains; ++c) visit(c, I::load(x + i + c * I::kLanes));
    }
    for (; i + I::kLanes <= count; i += I::kLanes) visit(0, I::load(x + i));
    float best = -__builtin_inff(), bad = 0;
    for (; i < count; ++i) {
        best = x[i] > best ? x[i] : best;
        bad += x[i] * 0.0f;
    }
    for (uint32_t c = 0; c < kChains; ++c) {
        float lanes[I::kLanes], poisons[I::kLanes];
        I::store(lanes, max[c]);
        I::store(poisons, poison[c]);
        for (uint32_t lane = 0; lane < I::kLanes; ++lane) {
            best = lanes[lane] > best ? lanes[lane] : best;
            bad += poisons[lane];
        }
    }
    *out = best + 0.0f;
    return count != 0 && bad == 0.0f;
}

// e^x for x <= 0, rounded as the twin rounds.
template <class I>
inline typename I::V exp_nonpositive(typename I::V x) {
    using V = typename I::V;
    const V low = I::set1(-87.0f);
    // 1.5 * 2^23: adding it rounds to the nearest integer.
    const V round = I::set1(12582912.0f);
    const V power = I::mul(I::max(x, low), I::set1(1.44269504f));
    const V shifted = I::add(power, round);
    const V f = I::mul(I::sub(power, I::sub(shifted, round)), I::set1(0.693147181f));
    V series = I::add(I::set1(1.0f / 120.0f), I::div(f, I::set1(720.0f)));
    series = I::add(I::set1(1.0f / 24.0f), I::mul(f, series));
    series = I::add(I::set1(1.0f / 6.0f), I::mul(f, series));
    series = I::add(I::set1(0.5f), I::mul(f, series));
    series = I::add(I::set1(1.0f), I::mul(f, series));
    series = I::add(I::set1(1.0f), I::mul(f, series));
    return I::keep_where_above(x, low, I::mul(series, I::scale_of(shifted)));
}

template <class I>
double weigh(const float* x, uint64_t count, float max, float inverse, float* weights) {
    using V = typename I::V;
    const auto weights_of = [&](V values) {
        return exp_nonpositive<I>(I::times_or_zero(I::sub(values, I::set1(max)), I::set1(inverse)));
    };
    typename I::Sum sum;
    uint64_t i = 0;
    for (; i + I::kLanes <= count; i += I::kLanes) {
        const V found = weights_of(I::load(x + i));
        if (weights != nullptr) I::store(weights + i, found);
        sum.add(found);
    }
    double lanes[8];
    sum.store(lanes);
    const uint32_t left = static_cast<uint32_t>(count - i);
    if (left != 0) {
        float found[I::kLanes];
        I::store(found, weights_of(I::load_part(x + i, left)));
        for (uint32_t at = 0; at < left; ++at) {
            if (weights != nullptr) weights[i + at] = found[at];
            lanes[at % 8] += static_cast<double>(found[at]);
        }
    }
    double total = lanes[0];
    for (int lane = 1; lane < 8; ++lane) total += lanes[lane];
    return total;
}

}  // namespace

// Defines the entries of one level.
#define PINION_WALKS(LEVEL, ISA)                                                                                     \
    extern "C" int32_t pinion_finite_max_##LEVEL(const float* x, uint64_t count, float* max) {                       \
        return finite_max<ISA>(x, count, max);                                                                       \
    }                                                                                                                \
    extern "C" double pinion_weigh_##LEVEL(const float* x, uint64_t count, float max, float inverse, float* weights) { \
        return weigh<ISA>(x, count, max, inverse, weights);                                                          \
    }
