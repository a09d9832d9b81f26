// Contract of work that is shared out over threads (kernels/cpu/parallel.cpp).
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Does the items from `begin` to `end` as `worker`.
typedef void (*PinionWork)(void* context, uint64_t worker, uint64_t begin, uint64_t end);

// Calls work for runs of items that together are all of `items`, each once, on the calling thread and at most threads - 1
// others: runs of at most `chunk` items, or all of them at once on the calling thread. `worker` is below `threads`, and
// calls that run at the same time have different ones. All calls have returned when this returns.
typedef void (*PinionTeam)(PinionWork work, void* context, uint64_t items, uint64_t chunk, int32_t threads);

// From now on the kernels share out their work by `team`; null: by libgomp's threads, or on the calling thread where this
// was compiled without OpenMP. A kernel that runs keeps what it has for the region that it is in.
void pinion_use_team(PinionTeam team);

// The same for other work, by a team, by libgomp's threads or on the calling thread: threads take one item at a time as
// they come free. `work` may not unwind.
void pinion_deal(PinionWork work, void* context, uint64_t items, int32_t threads);

#ifdef __cplusplus
}
#endif
