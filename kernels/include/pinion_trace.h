/* libtorch's profiler (kineto): a trace of the operations that one thread runs, as a file in Chrome's format.
 * Calls come from the thread whose operations are wanted, one start and one stop in turn. Each returns 0, or 1 with a
 * message in error[0 .. error_len), NUL-terminated and cut to fit.
 */
#ifndef PINION_TRACE_H
#define PINION_TRACE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Operations of this thread, with the shapes of their inputs; gpu != 0: and what runs on the GPU. */
int32_t pinion_trace_start(int32_t gpu, char* error, uint64_t error_len);

/* Ends that, and writes what was traced to `path`, NUL-terminated. The trace is gone whatever the result. */
int32_t pinion_trace_stop(const char* path, char* error, uint64_t error_len);

/* Begins a range of this thread with a name that outlives it. NULL where no trace of this thread is under way. */
void* pinion_range_begin(const char* name);

/* Ends a range, on its thread; NULL is none. */
void pinion_range_end(void* range);

#ifdef __cplusplus
}
#endif

#endif
