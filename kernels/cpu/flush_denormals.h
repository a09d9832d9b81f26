// Denormal operands and results count as zeros of their sign while a value of this lives, as vdpbf16ps always has it.
#pragma once
#include <immintrin.h>
#include <stdint.h>

namespace {

class FlushDenormals {
  public:
    // Bit 15 flushes results, bit 6 operands.
    FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
    ~FlushDenormals() { _mm_setcsr(before_); }
    FlushDenormals(const FlushDenormals&) = delete;
    FlushDenormals& operator=(const FlushDenormals&) = delete;

  private:
    uint32_t before_;
};

}  // namespace
