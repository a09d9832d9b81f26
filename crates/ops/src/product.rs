//! The products of a model: dense weights on libtorch, or packed and quantised ones on our kernels.

use crate::Activation;
use crate::attention::{Launch, OperandError};
use crate::linear::Linear;
use crate::packed::PackedWeights;
use crate::quantized::{IntegerLaunch, QuantizedWeights, RawOperands, SourceType};
use crate::tensor::{TensorError, matrix};
use tch::{Device, Tensor};

/// y = act(x . weight^T + bias).
#[derive(Debug)]
pub enum Product {
    /// Weights in the activations' dtype.
    Dense(Linear),
    /// Weights as integers.
    Quantized(QuantizedLinear),
    /// Weights of 32 or 16 bits, packed by us.
    Packed(PackedLinear),
}

/// A product with quantised weights.
#[derive(Debug)]
pub struct QuantizedLinear {
    weights: QuantizedWeights,
    bias: Option<Vec<f32>>,
    activation: Activation,
    launch: IntegerLaunch,
}

/// A product with packed weights.
#[derive(Debug)]
pub struct PackedLinear {
    weights: PackedWeights,
    bias: Option<Vec<f32>>,
    activation: Activation,
    launch: Launch,
}

fn error(fault: OperandError) -> TensorError {
    TensorError { operation: "product", message: fault.to_string() }
}

fn check_bias(bias: Option<&Vec<f32>>, outputs: usize) -> Result<(), TensorError> {
    match bias {
        Some(bias) if bias.len() != outputs => {
            Err(error(OperandError("a bias has not one value for each output")))
        }
        Some(_) | None => Ok(()),
    }
}

/// A product of `[outputs, inputs]` weights through `multiply`, which gets operands of the sizes that [`RawOperands`]
/// says: live tensors, a new one for the result, and the bias, whose size was checked.
fn run(
    [outputs, inputs]: [usize; 2],
    x: &Tensor,
    (bias, activation): (Option<&[f32]>, Activation),
    residual: Option<&Tensor>,
    multiply: impl FnOnce(&RawOperands),
) -> Result<Tensor, TensorError> {
    let (from, [rows, width], dtype) = matrix(x)?;
    if width != inputs {
        return Err(error(OperandError("the operand has another width than the weights")));
    }
    let out = Tensor::f_empty([rows as i64, outputs as i64], (x.kind(), Device::Cpu))?;
    let residual = match residual {
        None => std::ptr::null(),
        Some(residual) => match matrix(residual)? {
            (data, size, other) if size == [rows, outputs] && other == dtype => data.cast_const(),
            _ => {
                return Err(error(OperandError("the residual has another shape or type than the product")));
            }
        },
    };
    let (to, _, _) = matrix(&out)?;
    let bias = bias.map_or(std::ptr::null(), <[f32]>::as_ptr);
    multiply(&RawOperands { x: from.cast_const(), bias, activation, residual, out: to, rows, dtype });
    Ok(out)
}

impl PackedLinear {
    /// A product of packed weights, and of a bias for each output if there is one.
    ///
    /// # Errors
    /// When the bias has another size.
    pub fn new(
        weights: PackedWeights,
        bias: Option<Vec<f32>>,
        activation: Activation,
        launch: Launch,
    ) -> Result<Self, TensorError> {
        check_bias(bias.as_ref(), weights.outputs())?;
        Ok(Self { weights, bias, activation, launch })
    }

    /// Type of the weights in memory.
    pub fn weight_type(&self) -> SourceType {
        self.weights.weight_type()
    }

    fn run(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor, TensorError> {
        let shape = [self.weights.outputs(), self.weights.inputs()];
        run(shape, x, (self.bias.as_deref(), self.activation), residual, |operands| {
            // SAFETY: live CPU tensors whose sizes and dtype were checked, as the bias was; the result is new.
            unsafe { self.weights.multiply_raw(operands, self.launch) }
        })
    }
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
        check_bias(bias.as_ref(), weights.outputs())?;
        Ok(Self { weights, bias, activation, launch })
    }

    fn run(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor, TensorError> {
        let shape = [self.weights.outputs(), self.weights.inputs()];
        run(shape, x, (self.bias.as_deref(), self.activation), residual, |operands| {
            // SAFETY: live CPU tensors whose sizes and dtype were checked, as the bias was; the result is new.
            unsafe { self.weights.multiply_raw(operands, self.launch) }
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
            Self::Packed(linear) => linear.run(x, None),
        }
    }

    /// y \[rows, out\] = product(x) + residual \[rows, out\]. Only for a product without activation.
    ///
    /// # Errors
    /// As [`Product::forward`], or that there is an activation.
    pub fn forward_add(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor, TensorError> {
        match self {
            Self::Dense(linear) => linear.forward_add(x, residual),
            Self::Quantized(QuantizedLinear { activation, .. })
            | Self::Packed(PackedLinear { activation, .. })
                if *activation != Activation::None =>
            {
                Err(error(OperandError("a residual cannot follow an activation")))
            }
            Self::Quantized(linear) => linear.run(x, Some(residual)),
            Self::Packed(linear) => linear.run(x, Some(residual)),
        }
    }

    /// See [`Linear::find_fewest_rows`]; the bits of our own products depend on no other row.
    ///
    /// # Errors
    /// The tensor library's message.
    pub fn find_fewest_rows(&self) -> Result<Option<i64>, TensorError> {
        match self {
            Self::Dense(linear) => linear.find_fewest_rows(),
            Self::Quantized(_) | Self::Packed(_) => Ok(None),
        }
    }

    /// See [`Linear::set_fewest_rows`].
    pub fn set_fewest_rows(&mut self, rows: i64) {
        if let Self::Dense(linear) = self {
            linear.set_fewest_rows(rows);
        }
    }
}
