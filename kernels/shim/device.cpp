// libtorch's CUDA half behind a C interface. The contract is in ../include/pinion_device.h.
#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "../include/pinion_device.h"
#include "guarded.h"

extern "C" int32_t pinion_device_open(char* error, uint64_t error_len) {
    return guarded(error, error_len, [&] {
        // Its static initialisers register the kernels and the hooks.
        if (!dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL)) throw std::runtime_error(dlerror());
    });
}

extern "C" int32_t pinion_device_memory(int32_t index, PinionDeviceMemory* memory, char* error, uint64_t error_len) {
    return guarded(error, error_len, [&] {
        const auto device = static_cast<c10::DeviceIndex>(index);
        c10::DeviceAllocator* const allocator = at::getDeviceAllocator(at::kCUDA);
        memory->free = allocator->getMemoryInfo(device).first;
        const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
        memory->reserved = static_cast<uint64_t>(allocator->getDeviceStats(device).reserved_bytes[all].current);
    });
}

extern "C" int32_t pinion_device_stream(int32_t index, uint64_t* stream, char* error, uint64_t error_len) {
    return guarded(error, error_len, [&] {
        const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
        const c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
        *stream = reinterpret_cast<uintptr_t>(cuda.getStreamNativeHandle(cuda.getStream(device)));
    });
}
