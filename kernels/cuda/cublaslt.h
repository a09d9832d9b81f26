// What of cuBLASLt's cublasLt.h is used, as our own declarations: words and numbers that are the same from CUDA 11 to 13.
#pragma once
#include <cstddef>
#include <cstdint>

namespace pinion {
namespace cublaslt {

// cublasLtMatmulAlgo_t and cublasLtMatmulHeuristicResult_t.
struct Algorithm {
    uint64_t data[8];
};
struct Heuristic {
    Algorithm algorithm;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};
enum { COMPUTE_32F = 68, TYPE_32F = 0, TYPE_16F = 2, TYPE_16BF = 14 };
enum { DESC_TRANSA = 3, DESC_TRANSB = 4, DESC_EPILOGUE = 7, DESC_BIAS_POINTER = 8 };
enum { EPILOGUE_DEFAULT = 1, EPILOGUE_BIAS = 4, EPILOGUE_GELU = 32, EPILOGUE_GELU_BIAS = 36 }; // the tanh form
// The least alignments of the matrices a, b, c and d follow each other.
enum { PREFERENCE_WORKSPACE = 1, PREFERENCE_ALIGNMENT_A = 5, PREFERENCE_ALIGNMENT_D = 8 };

} // namespace cublaslt
} // namespace pinion
