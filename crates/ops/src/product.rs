//! The products of a model: dense weights on libtorch, or quantised ones on our kernels.

use crate::Activation;
use crate::attention::OperandError;
use crate::linear::Linear;
use crate::quantized::{IntegerLaunch, QuantizedWeights, RawOperands};
use crate::tensor::{TensorError, matrix};
use tch::{Device, Tensor};

/// y = act(x . weight^T + bias).
#[derive(Debug)]
pub enum Product {
    /// Weights in the activations' dtype.
    Dense(Linear),
    /// Weights as integers.
    Quantized(QuantizedLinear),
}

/// A product with quantised weights.
#[derive(Debug)]
pub struct QuantizedLinear {
    weights: QuantizedWeights,
    bias: Option<Vec<f32>>,
    activation: Activation,
    launch: IntegerLaunch,
}

fn error(fault: OperandError) -> TensorError {
    TensorError { operation: "quantised product", message: fault.to_string() }
}

impl QuantizedLinear {
    /// A product of packed weights, and of a bias for each output if there is one.
    ///
    /// # Errors
    /// When the bias has another size.
    pub fn new(
        weights: QuantizedWeights,
        bias: Option<Vec<f32>>,
        activation: Activation,
        launch: IntegerLaunch,
    ) -> Result<Self, TensorError> {
        if bias.as_ref().is_some_and(|bias| bias.len() != weights.outputs()) {
            return Err(error(OperandError("a bias has not one value for each output")));
        }
        Ok(Self { weights, bias, activation, launch })
    }

    fn run(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor, TensorError> {
        let (from, [rows, inputs], dtype) = matrix(x)?;
        if inputs != self.weights.inputs() {
            return Err(error(OperandError("the operand has another width than the weights")));
        }
        let out = Tensor::f_empty([rows as i64, self.weights.outputs() as i64], (x.kind(), Device::Cpu))?;
        let residual = match residual {
            None => std::ptr::null(),
            Some(residual) => match matrix(residual)? {
                (data, size, other) if size == [rows, self.weights.outputs()] && other == dtype => {
                    data.cast_const()
                }
                _ => {
                    return Err(error(OperandError(
                        "the residual has another shape or type than the product",
                    )));
                }
            },
        };
        let (to, _, _) = matrix(&out)?;
        let operands = RawOperands { x: from.cast_const(), residual, out: to, rows, dtype };
        // SAFETY: live CPU tensors whose sizes and dtype were checked; the result is new.
        unsafe { self.weights.multiply_raw(&operands, self.bias.as_deref(), self.launch) }.map_err(error)?;
        Ok(match self.activation {
            Activation::None => out,
            Activation::GeluTanh => out.f_gelu("tanh")?,
            Activation::GeluErf => out.f_gelu("none")?,
        })
    }
}

impl Product {
    /// y \[rows, out\] from x \[rows, in\].
    ///
    /// # Errors
    /// What the tensor library or the kernels refuse.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, TensorError> {
        match self {
            Self::Dense(linear) => linear.forward(x),
            Self::Quantized(linear) => linear.run(x, None),
        }
    }

    /// y \[rows, out\] = product(x) + residual \[rows, out\]. Only for a product without activation.
    ///
    /// # Errors
    /// As [`Product::forward`], or that there is an activation.
    pub fn forward_add(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor, TensorError> {
        match self {
            Self::Dense(linear) => linear.forward_add(x, residual),
            Self::Quantized(linear) if linear.activation != Activation::None => {
                Err(error(OperandError("a residual cannot follow an activation")))
            }
            Self::Quantized(linear) => linear.run(x, Some(residual)),
        }
    }

    /// See [`Linear::find_fewest_rows`]; the bits of quantised products depend on no other row.
    ///
    /// # Errors
    /// The tensor library's message.
    pub fn find_fewest_rows(&self) -> Result<Option<i64>, TensorError> {
        match self {
            Self::Dense(linear) => linear.find_fewest_rows(),
            Self::Quantized(_) => Ok(None),
        }
    }

    /// See [`Linear::set_fewest_rows`].
    pub fn set_fewest_rows(&mut self, rows: i64) {
        if let Self::Dense(linear) = self {
            linear.set_fewest_rows(rows);
        }
    }
}
