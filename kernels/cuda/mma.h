// Tensor cores: the instruction that prefill attention and the products of a few rows are made of, and the loads that bring its
// operands from shared memory.
#pragma once
#include "target.h"

namespace pinion {

template <typename T>
constexpr bool IS_BF16 = false;
template <>
constexpr bool IS_BF16<bf16> = true;

// d += a . b for tiles [16, 16] . [16, 8] of 16-bit elements, summed in fp32; the lanes hold what PTX's mma.m16n8k16 says.
template <typename T>
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(PINION_ON_DEVICE)
    if constexpr (IS_BF16<T>) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
#elif !defined(__CUDACC__)
    // Every lane reads the fragments of the lanes that hold its rows and columns.
    struct Held {
        uint32_t a[4];
        uint32_t b[2];
    } own, all[WARP];
    memcpy(own.a, a, sizeof own.a);
    memcpy(own.b, b, sizeof own.b);
    emulation::gather(own, all);
    unsigned lane = emulation::lane(), group = lane / 4, pair = lane % 4;
    auto half = [](uint32_t word, unsigned i) { return to_float(T{uint16_t(word >> (16 * i))}); };
    for (unsigned c = 0; c < 2; c++) {
        for (unsigned r = 0; r < 2; r++) {
            for (unsigned k = 0; k < 16; k++) {
                unsigned holder = k % 8 / 2, part = k % 2, upper = k / 8;
                float left = half(all[group * 4 + holder].a[upper * 2 + r], part);
                d[r * 2 + c] += left * half(all[(pair * 2 + c) * 4 + holder].b[upper], part);
            }
        }
    }
#endif
}

// Four matrices of [8, 8] 16-bit elements from the block's shared memory: PTX's ldmatrix.x4. Lane 8 m + r gives the place of
// row r of matrix m, 16 bytes at a multiple of 16. Word m of a lane is then of matrix m: columns lane % 4 * 2 and the next of
// row lane / 4, or with TRANSPOSED rows lane % 4 * 2 and the next of column lane / 4. So rows [k] of a right operand's columns
// and, TRANSPOSED, rows [n] of its k are two words of `b` above for each [8, 16] of them.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], const void* row) {
#if defined(PINION_ON_DEVICE)
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if constexpr (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(address)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(address)
                     : "memory");
    }
#elif !defined(__CUDACC__)
    // A lane reads its row when it comes here and not later: what other lanes store in between is not for it.
    struct Row {
        uint16_t elements[8];
    } own, rows[WARP];
    emulation::check_matrix_row(row, sizeof own);
    memcpy(&own, row, sizeof own);
    emulation::gather(own, rows);
    unsigned lane = emulation::lane(), group = lane / 4, pair = lane % 4 * 2;
    for (unsigned m = 0; m < 4; m++) {
        const Row* of = &rows[m * 8];
        uint16_t low = TRANSPOSED ? of[pair].elements[group] : of[group].elements[pair];
        uint16_t high = TRANSPOSED ? of[pair + 1].elements[group] : of[group].elements[pair + 1];
        words[m] = low | uint32_t(high) << 16;
    }
#endif
}

} // namespace pinion
