/* libtorch's CUDA half: loading it, the memory of a device, and its stream. Each function returns 0, or 1 with a message in
 * error[0 .. error_len), NUL-terminated and cut to fit.
 */
#ifndef PINION_DEVICE_H
#define PINION_DEVICE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory of a device in bytes. */
typedef struct {
    /* Free, for all processes. */
    uint64_t free;
    /* Taken from the driver by libtorch's caching allocator of this process. */
    uint64_t reserved;
} PinionDeviceMemory;

/* Loads libtorch_cuda.so, which adds CUDA to the libtorch that is linked. libtorch asks once whether it has CUDA, so
 * this comes before any tensor of the process. Twice is once. */
int32_t pinion_device_open(char* error, uint64_t error_len);

/* CUDA device `index`, after pinion_device_open. */
int32_t pinion_device_memory(int32_t index, PinionDeviceMemory* memory, char* error, uint64_t error_len);

/* The cudaStream_t on which libtorch queues this thread's work for CUDA device `index`, after pinion_device_open; 0 is
 * the default stream. */
int32_t pinion_device_stream(int32_t index, uint64_t* stream, char* error, uint64_t error_len);

#ifdef __cplusplus
}
#endif

#endif
