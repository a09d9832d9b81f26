// What the lanes of a warp hold after `load_matrices`, and what `multiply` makes of it: for the test that holds both against
// the PTX ISA (crates/cuda/tests/kernels/fragments.rs). No other program calls these.
#include "../cuda/mma.h"

namespace pinion {
namespace {

// A row of 8 elements and 16 bytes of padding.
constexpr unsigned STRIDE = 16;

struct Fragments {
    const uint16_t (*rows)[8]; // [32]: four matrices
    uint32_t (*plain)[4];      // [32]: what each lane gets
    uint32_t (*transposed)[4];
};

void fragments_kernel(Fragments args) {
    auto* shared = reinterpret_cast<uint16_t*>(shared_bytes());
    unsigned lane = threadIdx.x;
    // Rows may lie anywhere.
    uint16_t* row = shared + lane * 5 % WARP * STRIDE;
    memcpy(row, args.rows[lane], 16);
    __syncwarp();
    load_matrices<false>(args.plain[lane], row);
    load_matrices<true>(args.transposed[lane], row);
}

struct Products {
    const uint16_t (*a)[16];    // [16, 16] f16
    const uint16_t (*b)[8];     // [16, 8], k first
    const uint16_t (*b_turned)[16]; // [8, 16]: the same, n first
    float (*sums)[16][8];       // [2]: with b, with b_turned
};

// Operands as the prefill kernel and any other should load them: a and b_turned plainly, b transposed.
void products_kernel(Products args) {
    auto* shared = reinterpret_cast<uint16_t*>(shared_bytes());
    unsigned lane = threadIdx.x, group = lane / 4, pair = lane % 4 * 2;
    // Half rows of a as four matrices: both halves of the rows, then of k.
    memcpy(shared + lane * STRIDE, &args.a[lane % 16][lane / 16 * 8], 16);
    // Two matrices each: the first and the last half of k.
    memcpy(shared + (32 + lane) * STRIDE, lane < 16 ? args.b[lane] : &args.b_turned[lane % 8][lane / 8 % 2 * 8], 16);
    __syncwarp();
    uint32_t a[4], b[4];
    load_matrices<false>(a, shared + lane * STRIDE);
    const uint16_t* right = shared + (32 + lane) * STRIDE;
    for (unsigned way = 0; way < 2; way++) {
        float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (way == 0) {
            load_matrices<true>(b, right);
            multiply<f16>(d, a, {b[0], b[1]});
        } else {
            load_matrices<false>(b, right);
            multiply<f16>(d, a, {b[2], b[3]});
        }
        for (unsigned i = 0; i < 4; i++) args.sums[way][group + i / 2 * 8][pair + i % 2] = d[i];
    }
}

template <typename Args>
int32_t on_a_warp(void (*kernel)(Args), const Args& args) {
    void* stream = nullptr;
    if (int32_t code = pinion_cuda_stream_create(&stream, 0)) return code;
    PINION_LAUNCH(kernel, dim3(1), dim3(WARP), 64 * STRIDE * 2, stream, args);
    return pinion_cuda_stream_destroy(stream);
}

} // namespace
} // namespace pinion

extern "C" int32_t pinion_emulation_fragments(const uint16_t* rows, uint32_t* plain, uint32_t* transposed) {
    pinion::Fragments args = {reinterpret_cast<const uint16_t (*)[8]>(rows), reinterpret_cast<uint32_t (*)[4]>(plain),
                              reinterpret_cast<uint32_t (*)[4]>(transposed)};
    return pinion::on_a_warp(&pinion::fragments_kernel, args);
}

extern "C" int32_t pinion_emulation_products(const uint16_t* a, const uint16_t* b, const uint16_t* b_turned, float* sums) {
    pinion::Products args = {reinterpret_cast<const uint16_t (*)[16]>(a), reinterpret_cast<const uint16_t (*)[8]>(b),
                             reinterpret_cast<const uint16_t (*)[16]>(b_turned), reinterpret_cast<float (*)[16][8]>(sums)};
    return pinion::on_a_warp(&pinion::products_kernel, args);
}
