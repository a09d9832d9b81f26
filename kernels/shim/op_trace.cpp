// libtorch's profiler behind a C interface; what torch.profiler does in Python (torch/autograd/profiler.py: profile).
// The contract is in ../include/pinion_trace.h.
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_set>

#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "../include/pinion_trace.h"
#include "guarded.h"

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

extern "C" int32_t pinion_trace_start(int32_t gpu, char* error, uint64_t error_len) {
    return guarded(error, error_len, [&] {
        const ProfilerConfig config(ProfilerState::KINETO, /*report_input_shapes=*/true);
        std::set<ActivityType> activities{ActivityType::CPU};
        if (gpu) activities.insert(ActivityType::CUDA);
        profiler::prepareProfiler(config, activities);
        profiler::enableProfiler(config, activities);
    });
}

extern "C" int32_t pinion_trace_stop(const char* path, char* error, uint64_t error_len) {
    return guarded(error, error_len, [&] {
        const std::unique_ptr<profiler::ProfilerResult> result = profiler::disableProfiler();
        result->save(path);
    });
}

extern "C" void* pinion_range_begin(const char* name) {
    try {
        // As torch.profiler.record_function: nothing where no trace is under way.
        auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
        if (!callbacks.has_value()) return nullptr;
        auto range = std::make_unique<at::RecordFunction>(std::move(*callbacks));
        range->before(name);
        return range.release();
    } catch (...) {
        return nullptr;
    }
}

extern "C" void pinion_range_end(void* range) { delete static_cast<at::RecordFunction*>(range); }
