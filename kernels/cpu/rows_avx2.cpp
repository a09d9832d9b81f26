// The row kernels on AVX2 with FMA.
#include "isa_avx2.h"
#include "rows_vector.h"

PINION_ROWS(avx2, Avx2)
