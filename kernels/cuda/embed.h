// One row of token and position embeddings: gather.cu makes a kernel of it, fused_decode.cu a phase.
#pragma once
#include "target.h"

namespace pinion {

__device__ __forceinline__ unsigned clamped(unsigned index, unsigned count) { return index < count ? index : count - 1; }

template <typename T>
class EmbeddedRow {
  public:
    __device__ __forceinline__ EmbeddedRow(const PinionCudaEmbed& args, unsigned row) {
        unsigned id = at<uint32_t>(args.tokens)[row];
        if (id == PINION_FUTURE_TOKEN) {
            unsigned lane = at<uint32_t>(args.lanes)[row];
            id = lane == PINION_NO_LANE ? 0 : at<uint32_t>(args.lane_tokens)[lane];
        }
        token = at<T>(args.token_table) + size_t(clamped(id, args.vocab)) * args.width;
        if (!args.position_table) return;
        unsigned index = clamped(at<uint32_t>(args.positions)[row], args.positions_max);
        position = at<T>(args.position_table) + size_t(index) * args.width;
    }

    // Elements `i` and on.
    __device__ __forceinline__ Chunk chunk(unsigned i) const {
        Chunk chunk = load_chunk(token + i);
        if (!position) return chunk;
        float values[PER_CHUNK<T>], more[PER_CHUNK<T>];
        unpack<T>(chunk, values);
        unpack<T>(load_chunk(position + i), more);
        for (unsigned j = 0; j < PER_CHUNK<T>; j++) values[j] += more[j];
        return pack<T>(values);
    }

  private:
    const T* token;
    const T* position = nullptr;
};

} // namespace pinion
