// The row kernels on AVX-512 (F, BW, VL).
#include "isa_avx512.h"
#include "rows_vector.h"

PINION_ROWS(avx512, Avx512)
