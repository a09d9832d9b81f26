// tanh of the vector types that have an exp for arguments up to 0.
#pragma once

namespace {

// Absolute error about 1e-7; a NaN stays a NaN.
template <class I>
inline typename I::V tanh_by_exp(typename I::V x) {
    const typename I::V shrunk = I::exp(I::mul(I::magnitude(x), I::set1(-2.0f)));
    const typename I::V size = I::div(I::sub(I::set1(1.0f), shrunk), I::add(I::set1(1.0f), shrunk));
    return I::join(I::sign(x), size);
}

}  // namespace
