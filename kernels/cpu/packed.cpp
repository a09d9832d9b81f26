// Products with packed floating-point weights: the level dispatch and the scalar version, which is the one to read first.
// Contract: kernels/include/pinion_packed.h.
#include "half.h"
#include "packed_tile.h"

extern "C" void pinion_packed_avx2(const PinionPacked* args, uint64_t begin, uint64_t end);
extern "C" void pinion_packed_avx512(const PinionPacked* args, uint64_t begin, uint64_t end);
extern "C" void pinion_packed_pairs_avx512_bf16(const PinionPacked* args, uint64_t begin, uint64_t end);

namespace {

// Lanes in an array.
struct Scalar {
    struct V {
        float lane[kTile];
    };
    static constexpr uint32_t kLanes = kTile;
    static constexpr uint32_t kVectors = 1;
    static constexpr uint32_t kRows = 2;
    static constexpr uint32_t kGroup = 2;
    static constexpr uint32_t kAbreast = 2;  // nothing is gained here, but every machine has the code under test
    static constexpr uint64_t kAheadBytes = 2048;
    static constexpr uint64_t kAheadBytesAbreast = kAheadBytes;

    template <class F>
    static V each(F value) {
        V out;
        for (uint32_t j = 0; j < kTile; ++j) out.lane[j] = value(j);
        return out;
    }
    template <class T>
    static T at(const uint8_t* p, uint32_t index) {
        T value;
        memcpy(&value, p + index * sizeof(T), sizeof(T));
        return value;
    }
    static V load(const float* p) {
        return each([=](uint32_t j) { return p[j]; });
    }
    static void store(float* p, const V& x) { memcpy(p, x.lane, sizeof(x.lane)); }
    static V spread(const float* x) {
        return each([=](uint32_t) { return *x; });
    }
    static V spread(const Bf16* x) {
        return each([=](uint32_t) { return to_float(*x); });
    }
    static V add(const V& a, const V& b) {
        return each([&](uint32_t j) { return a.lane[j] + b.lane[j]; });
    }
    static V fma(const V& a, const V& b, const V& c) {
        return each([&](uint32_t j) { return __builtin_fmaf(a.lane[j], b.lane[j], c.lane[j]); });
    }
    // Nothing is set: each operation flushes by itself.
    struct Flush {
        Flush() {}
    };
    static float flushed(float x) { return __builtin_fabsf(x) < __FLT_MIN__ ? __builtin_copysignf(0, x) : x; }
    static V flushed_fma(const V& a, const V& b, const V& c) {
        return each([&](uint32_t j) {
            return flushed(__builtin_fmaf(flushed(a.lane[j]), flushed(b.lane[j]), flushed(c.lane[j])));
        });
    }
    static V even(Bf16Pairs, const uint8_t* p, uint32_t) {
        return each([=](uint32_t j) { return to_float(at<Bf16>(p, 2 * j)); });
    }
    static V odd(Bf16Pairs, const uint8_t* p, uint32_t) {
        return each([=](uint32_t j) { return to_float(at<Bf16>(p, 2 * j + 1)); });
    }
    static V even(HalfPairs, const uint8_t* p, uint32_t) {
        return each([=](uint32_t j) { return half_to_float(at<uint16_t>(p, j)); });
    }
    static V odd(HalfPairs, const uint8_t* p, uint32_t) { return even(HalfPairs(), p + 32, 0); }
    static V even(FloatPairs, const uint8_t* p, uint32_t) {
        return each([=](uint32_t j) { return at<float>(p, j); });
    }
    static V odd(FloatPairs, const uint8_t* p, uint32_t) { return even(FloatPairs(), p + 64, 0); }
};

#if defined(__x86_64__)
bool has_f16c() {
    static const bool has = __builtin_cpu_supports("f16c");
    return has;
}
#endif

}  // namespace

PINION_PACKED_LEVEL(scalar, Scalar)

extern "C" uint64_t pinion_packed_tile_bytes(uint32_t k, int32_t weight_type) {
    const uint64_t padded = (static_cast<uint64_t>(k) + PINION_PACKED_K - 1) / PINION_PACKED_K * PINION_PACKED_K;
    return padded * kTile * (weight_type == PINION_SOURCE_F32 ? 4 : 2);
}

extern "C" void pinion_packed(const PinionPacked* a, int32_t level, uint64_t begin, uint64_t end) {
#if defined(__x86_64__)
    if (level == PINION_LEVEL_AVX512_BF16 && a->x_type == PINION_SOURCE_BF16) return pinion_packed_pairs_avx512_bf16(a, begin, end);
    if (level >= PINION_LEVEL_AVX512) return pinion_packed_avx512(a, begin, end);
    if (level == PINION_LEVEL_AVX2 && (a->weight_type != PINION_SOURCE_F16 || has_f16c())) {
        return pinion_packed_avx2(a, begin, end);
    }
#endif
    (void)level;
    pinion_packed_scalar(a, begin, end);
}
