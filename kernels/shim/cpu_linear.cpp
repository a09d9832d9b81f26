// oneDNN-prepacked linears through libtorch's dispatcher.
//
//   pinion_linear_pack  weight [out, in] fp32 or bf16, contiguous -> opaque tensor in oneDNN's blocked layout
//   pinion_linear_run   y [rows, out] = act(x [rows, in] . weight^T + bias [out]) (+ other [rows, out])
//
// Tensors cross as at::Tensor* (tch's C_tensor*). Results are new and owned by the caller. Each function returns 0, or 1
// with a message in error[0 .. error_len), NUL-terminated and cut to fit. No exception leaves them.
// Mirrors torch/_inductor/mkldnn_ir.py: LinearUnary and LinearBinary.
#include <ATen/core/Tensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "../include/pinion_linear.h"
#include "guarded.h"

namespace {

using Scalars = c10::List<std::optional<at::Scalar>>;
using PackOp = at::Tensor(const at::Tensor&, std::optional<int64_t>);
using UnaryOp = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view, Scalars,
                           std::optional<std::string_view>);
using BinaryOp = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                            std::string_view);

template <class Op>
c10::TypedOperatorHandle<Op> find(const char* name, const char* overload) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<Op>();
}

template <class Body>
int32_t without_autograd(char* error, uint64_t error_len, Body body) {
    return guarded(error, error_len, [&] {
        at::AutoDispatchBelowADInplaceOrView no_autograd;
        body();
    });
}

const at::Tensor& tensor(const void* p) { return *static_cast<const at::Tensor*>(p); }

}  // namespace

extern "C" int32_t pinion_linear_pack(const void* weight, void** packed, char* error, uint64_t error_len) {
    return without_autograd(error, error_len, [&] {
        static const auto op = find<PackOp>("mkldnn::_reorder_linear_weight", "");
        *packed = new at::Tensor(op.call(tensor(weight), std::nullopt));
    });
}

extern "C" int32_t pinion_linear_run(const PinionLinear* args, void** y, char* error, uint64_t error_len) {
    return without_autograd(error, error_len, [&] {
        std::optional<at::Tensor> bias;
        if (args->bias) bias = tensor(args->bias);
        at::Tensor result;
        if (args->other) {
            static const auto op = find<BinaryOp>("mkldnn::_linear_pointwise", "binary");
            result = op.call(tensor(args->x), tensor(args->other), tensor(args->weight), bias, "add");
        } else {
            static const auto op = find<UnaryOp>("mkldnn::_linear_pointwise", "");
            const bool gelu = args->activation != PINION_ACTIVATION_NONE;
            std::optional<std::string_view> algorithm;
            if (gelu) algorithm = args->activation == PINION_ACTIVATION_GELU_TANH ? "tanh" : "none";
            result = op.call(tensor(args->x), tensor(args->weight), bias, gelu ? "gelu" : "none", Scalars(), algorithm);
        }
        *y = new at::Tensor(std::move(result));
    });
}
