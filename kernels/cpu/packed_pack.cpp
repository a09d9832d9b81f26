// Weights of a checkpoint to the layout of kernels/include/pinion_packed.h. Done once, at load.
#include "../include/pinion_packed.h"
#include "attention_internal.h"
#include "half.h"

namespace {

constexpr uint32_t kTile = PINION_TILE_OUTPUTS;

struct Half {
    uint16_t bits;
};

inline float widened(float value) { return value; }
inline float widened(Bf16 value) { return to_float(value); }
inline float widened(Half value) { return half_to_float(value.bits); }

template <class From>
inline void convert(From value, float* to) {
    *to = widened(value);
}
template <class From>
inline void convert(From value, Bf16* to) {
    from_float(widened(value), to);
}
inline void convert(Bf16 value, Bf16* to) { *to = value; }
inline void convert(Half value, Half* to) { *to = value; }

// Bytes from a tile's beginning to its element of `lane` at k.
template <class To>
inline uint64_t place(uint32_t lane, uint32_t k) {
    return (static_cast<uint64_t>(k / 2) * 2 * kTile + k % 2 * kTile + lane) * sizeof(To);
}
template <>
inline uint64_t place<Bf16>(uint32_t lane, uint32_t k) {
    return (static_cast<uint64_t>(k / 2) * 2 * kTile + lane * 2 + k % 2) * sizeof(Bf16);
}

template <class From, class To>
void pack_run(const PinionPackFloats& a, uint64_t first, uint32_t count) {
    const uint8_t* source = static_cast<const uint8_t*>(a.source);
    const uint64_t tile_bytes = pinion_packed_tile_bytes(a.k, a.weight_type);
    for (uint32_t k = 0; k < a.k; ++k) {
        for (uint32_t r = 0; r < count; ++r) {
            const uint64_t output = a.first_output + first + r;
            From value;
            memcpy(&value, source + ((first + r) * a.row_stride + k * a.k_stride) * sizeof(From), sizeof(From));
            To stored;
            convert(value, &stored);
            uint8_t* tile = a.packed + output / kTile * tile_bytes;
            memcpy(tile + place<To>(static_cast<uint32_t>(output % kTile), k), &stored, sizeof(To));
        }
    }
}

template <class From>
void pack_run_from(const PinionPackFloats& a, uint64_t first, uint32_t count) {
    a.weight_type == PINION_SOURCE_BF16 ? pack_run<From, Bf16>(a, first, count) : pack_run<From, float>(a, first, count);
}

}  // namespace

extern "C" void pinion_pack_floats(const PinionPackFloats* a, uint64_t begin, uint64_t end) {
    for (uint64_t run = begin; run < end; ++run) {
        const uint64_t first = run * kTile;
        const uint32_t count = smaller(kTile, a->rows - static_cast<uint32_t>(first));
        if (a->weight_type == PINION_SOURCE_F16) {
            pack_run<Half, Half>(*a, first, count);
        } else if (a->source_type == PINION_SOURCE_F32) {
            pack_run_from<float>(*a, first, count);
        } else if (a->source_type == PINION_SOURCE_BF16) {
            pack_run_from<Bf16>(*a, first, count);
        } else {
            pack_run_from<Half>(*a, first, count);
        }
    }
}
