// Contract of the oneDNN linear shim, see kernels/shim/cpu_linear.cpp.
#pragma once
#include <stdint.h>

#include "pinion_activation.h"

#ifdef __cplusplus
extern "C" {
#endif

// All pointers are at::Tensor*; bias and other may be null. With `other`, activation must be none.
typedef struct PinionLinear {
    const void* x;
    const void* weight;
    const void* bias;
    const void* other;
    int32_t activation;
} PinionLinear;

int32_t pinion_linear_pack(const void* weight, void** packed, char* error, uint64_t error_len);
int32_t pinion_linear_run(const PinionLinear* args, void** y, char* error, uint64_t error_len);

#ifdef __cplusplus
}
#endif
