// Contract of work that is dealt out over the kernels' own threads (kernels/cpu/parallel.cpp).
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Calls work(context, worker, item) once for each item below `items`, on the calling thread and at most threads - 1
// others, each of which takes the next item when it is free. `worker` is below `threads`, and calls that run at the
// same time have different ones. All calls have returned when this returns. `work` may not unwind.
void pinion_deal(void (*work)(void* context, uint64_t worker, uint64_t item), void* context, uint64_t items,
                 int32_t threads);

#ifdef __cplusplus
}
#endif
