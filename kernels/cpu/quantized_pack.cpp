// Weights of a checkpoint to the packed integers of kernels/include/pinion_quantized.h. Done once, at load.
#include "half.h"
#include "quantized_tile.h"

namespace {

inline float element(const PinionPack& a, uint64_t at) {
    const uint8_t* bytes = static_cast<const uint8_t*>(a.source);
    if (a.source_type == PINION_SOURCE_F32) {
        float value;
        memcpy(&value, bytes + at * 4, 4);
        return value;
    }
    uint16_t bits;
    memcpy(&bits, bytes + at * 2, 2);
    return a.source_type == PINION_SOURCE_BF16 ? from_bits(static_cast<uint32_t>(bits) << 16) : half_to_float(bits);
}

// Rows [first, first + count) of the source, in the order that its memory has.
void gather(const PinionPack& a, uint64_t first, uint32_t count, float* to) {
    const bool is_by_row = a.k_stride <= a.row_stride;
    const uint32_t outer = is_by_row ? count : a.k, inner = is_by_row ? a.k : count;
    for (uint32_t o = 0; o < outer; ++o) {
        for (uint32_t i = 0; i < inner; ++i) {
            const uint64_t row = is_by_row ? o : i, k = is_by_row ? i : o;
            to[row * a.k + k] = element(a, (first + row) * a.row_stride + k * a.k_stride);
        }
    }
}

void pack_8(const PinionPack& a, uint64_t output, const float* values) {
    uint32_t largest = 0;
    for (uint32_t k = 0; k < a.k; ++k) {
        const uint32_t bits = magnitude_bits(values[k]);
        largest = bits > largest ? bits : largest;
    }
    const Scale scale(largest);
    uint8_t* lane = a.packed + output / kTile * pinion_tile_bytes(a.k_padded, 0) + output % kTile * 4;
    int32_t sum = 0;
    for (uint32_t k = 0; k < a.k; ++k) {
        const int32_t q = scale.inverse == 0 ? 0 : rounded_integer(values[k] * scale.inverse);
        lane[k / 4 * 64 + k % 4] = static_cast<uint8_t>(q);
        sum += q;
    }
    a.scales[output] = scale.scale;
    a.sums[output] = sum;
}

// The scale of a group, and what its values are multiplied with.
struct GroupScale {
    float scale;
    float inverse;

    GroupScale(const float* values, uint32_t count) : scale(0), inverse(0) {
        uint32_t largest = 0;
        float value = 0;
        for (uint32_t k = 0; k < count; ++k) {
            const uint32_t bits = magnitude_bits(values[k]);
            if (bits > largest) {
                largest = bits;
                value = values[k];
            }
        }
        if (largest >= 0x7f800000) {
            scale = from_bits(0x7fc00000);
        } else if (largest >= 0x04800000) {
            scale = value / -8.0f;
            inverse = -8.0f / value;
        }
    }

    uint8_t nibble(float value) const {
        const int32_t q = inverse == 0 ? 0 : rounded_integer(value * inverse);
        return static_cast<uint8_t>((q > 7 ? 7 : q) + 8);
    }
};

void pack_4(const PinionPack& a, uint64_t output, const float* values) {
    uint8_t* tile = a.packed + output / kTile * pinion_tile_bytes(a.k_padded, a.group);
    const uint64_t lane = output % kTile;
    // From the beginning of one block to that of the next, and from a block to its group's scales.
    const uint32_t per_scale = a.group > kBlock ? a.group / kBlock : 1, scales = a.group < kBlock ? 2 : 1;
    for (uint32_t first = 0; first < a.k_padded; first += a.group) {
        const uint32_t count = first >= a.k ? 0 : smaller(a.group, a.k - first);
        const GroupScale scale(values + (count == 0 ? 0 : first), count);
        uint8_t* run = tile + first / kBlock / per_scale * (per_scale * kBlockBytes4 + scales * kScaleBytes);
        for (uint32_t at = 0; at < a.group; ++at) {
            const uint32_t k = first + at, in_run = k % (per_scale * kBlock), in_block = k % kBlock;
            uint8_t* byte = run + in_run / kBlock * kBlockBytes4 + in_block % 32 / 4 * 64 + lane * 4 + k % 4;
            const uint8_t nibble = at < count ? scale.nibble(values[k]) : 8;
            *byte = in_block < 32 ? static_cast<uint8_t>((*byte & 0xf0) | nibble)
                                  : static_cast<uint8_t>((*byte & 0x0f) | nibble << 4);
        }
        const uint64_t place = a.group < kBlock ? first % kBlock / a.group : 0;
        memcpy(run + per_scale * kBlockBytes4 + place * kScaleBytes + lane * 4, &scale.scale, 4);
    }
}

}  // namespace

extern "C" void pinion_pack_runs(const PinionPack* a, uint32_t thread, uint64_t begin, uint64_t end) {
    float* values = a->scratch + static_cast<uint64_t>(thread) * kTile * a->k;
    for (uint64_t run = begin; run < end; ++run) {
        const uint64_t first = run * kTile;
        const uint32_t count = smaller(kTile, a->rows - static_cast<uint32_t>(first));
        gather(*a, first, count, values);
        for (uint32_t r = 0; r < count; ++r) {
            const uint64_t output = a->first_output + first + r;
            const float* row = values + static_cast<uint64_t>(r) * a->k;
            a->group == 0 ? pack_8(*a, output, row) : pack_4(*a, output, row);
        }
    }
}
