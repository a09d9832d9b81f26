//! The products of a model: dense weights on libtorch, or packed and quantised ones on our kernels.

use crate::Activation;
use crate::attention::{Launch, OperandError};
use crate::linear::Linear;
use crate::matrix::Matrix;
use crate::packed::PackedWeights;
use crate::quantized::{IntegerLaunch, QuantizedWeights, RawOperands, SourceType};
use crate::tensor::TensorError;

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
/// says: borrowed matrices, that of the result mutably, and the bias, whose size was checked. `adds` to what the result
/// holds, or makes it the product.
fn run(
    [outputs, inputs]: [usize; 2],
    x: &Matrix,
    (bias, activation): (Option<&[f32]>, Activation),
    out: &mut Matrix,
    adds: bool,
    multiply: impl FnOnce(&RawOperands),
) -> Result<(), TensorError> {
    if x.columns() != inputs {
        return Err(error(OperandError("the operand has another width than the weights")));
    }
    if out.dtype() != x.dtype() || adds && (out.rows(), out.columns()) != (x.rows(), outputs) {
        return Err(error(OperandError("the result has another shape or type than the product")));
    }
    let (rows, dtype) = (x.rows(), x.dtype().code());
    out.resize(rows, outputs);
    let to = out.data_mut();
    let residual = if adds { to.cast_const() } else { std::ptr::null() };
    let bias = bias.map_or(std::ptr::null(), <[f32]>::as_ptr);
    multiply(&RawOperands { x: x.data(), bias, activation, residual, out: to, rows, dtype });
    Ok(())
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

    fn run(&self, x: &Matrix, out: &mut Matrix, adds: bool) -> Result<(), TensorError> {
        let shape = [self.weights.outputs(), self.weights.inputs()];
        run(shape, x, (self.bias.as_deref(), self.activation), out, adds, |operands| {
            // SAFETY: borrowed matrices whose sizes and dtype were checked, as the bias was; the result is apart from
            // x.
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

    fn run(&self, x: &Matrix, out: &mut Matrix, adds: bool) -> Result<(), TensorError> {
        let shape = [self.weights.outputs(), self.weights.inputs()];
        run(shape, x, (self.bias.as_deref(), self.activation), out, adds, |operands| {
            // SAFETY: borrowed matrices whose sizes and dtype were checked, as the bias was; the result is apart from
            // x.
            unsafe { self.weights.multiply_raw(operands, self.launch) }
        })
    }
}

impl Product {
    /// `out` becomes \[rows, out\] of x \[rows, in\].
    ///
    /// # Errors
    /// What the tensor library or the kernels refuse.
    pub fn forward(&self, x: &Matrix, out: &mut Matrix) -> Result<(), TensorError> {
        match self {
            // SAFETY: `Linear` gives a new tensor, which has no part in x's memory and no other owner.
            Self::Dense(linear) => unsafe { out.adopt(x.with_tensor(|x| linear.forward(x))?) },
            Self::Quantized(linear) => linear.run(x, out, false),
            Self::Packed(linear) => linear.run(x, out, false),
        }
    }

    /// Adds the product of x \[rows, in\] to `sum` \[rows, out\]. Only for a product without activation.
    ///
    /// # Errors
    /// As [`Product::forward`], or that there is an activation.
    pub fn forward_add(&self, x: &Matrix, sum: &mut Matrix) -> Result<(), TensorError> {
        match self {
            // SAFETY: as in `forward`; nor has it a part in the sum's memory.
            Self::Dense(linear) => unsafe {
                let new = sum.with_tensor(|sum| x.with_tensor(|x| linear.forward_add(x, sum)))?;
                sum.adopt(new)
            },
            Self::Quantized(QuantizedLinear { activation, .. })
            | Self::Packed(PackedLinear { activation, .. })
                if *activation != Activation::None =>
            {
                Err(error(OperandError("a residual cannot follow an activation")))
            }
            Self::Quantized(linear) => linear.run(x, sum, true),
            Self::Packed(linear) => linear.run(x, sum, true),
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
