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
/// says: live tensors, and a new one for the result.
fn run(
    [outputs, inputs]: [usize; 2],
    x: &Tensor,
    residual: Option<&Tensor>,
    multiply: impl FnOnce(&RawOperands) -> Result<(), OperandError>,
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
    multiply(&RawOperands { x: from.cast_const(), residual, out: to, rows, dtype }).map_err(error)?;
    Ok(out)
}

/// libtorch's vectors; what is left of a thread's part behind them is computed by other code, to other last bits.
const WHOLE_ELEMENTS: i64 = 64;
/// GELU of more elements is split evenly among the threads.
const ELEMENTS_OF_ONE_THREAD: i64 = 20_000;

/// How many of these rows libtorch's GELU can take at once with nothing left behind the vectors of any thread, so that
/// a row's bits do not depend on how many rows there are.
fn rows_at_once(rows: i64, width: i64, threads: i64) -> i64 {
    let part = WHOLE_ELEMENTS * threads;
    if width % part == 0 {
        return rows;
    }
    if width % WHOLE_ELEMENTS != 0 || width > ELEMENTS_OF_ONE_THREAD {
        return 0;
    }
    let (mut divisor, mut rest) = (part, width % part);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    rows - rows % (part / divisor)
}

fn activated(out: Tensor, activation: Activation) -> Result<Tensor, TensorError> {
    let approximate = match activation {
        Activation::None => return Ok(out),
        Activation::GeluTanh => "tanh",
        Activation::GeluErf => "none",
    };
    let (rows, width) = out.size2()?;
    let together = rows_at_once(rows, width, i64::from(tch::get_num_threads()));
    if together > 0 {
        let _ = out.f_narrow(0, 0, together)?.f_gelu_(approximate)?;
    }
    for row in together..rows {
        let _ = out.f_narrow(0, row, 1)?.f_gelu_(approximate)?;
    }
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
        let out = run([self.weights.outputs(), self.weights.inputs()], x, residual, |operands| {
            // SAFETY: live CPU tensors whose sizes and dtype were checked; the result is new.
            unsafe { self.weights.multiply_raw(operands, self.bias.as_deref(), self.launch) }
        })?;
        activated(out, self.activation)
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
        let out = run([self.weights.outputs(), self.weights.inputs()], x, residual, |operands| {
            // SAFETY: live CPU tensors whose sizes and dtype were checked; the result is new.
            unsafe { self.weights.multiply_raw(operands, self.bias.as_deref(), self.launch) }
        })?;
        activated(out, self.activation)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gelu_of_a_row_does_not_depend_on_rows_or_threads() {
        let before = tch::get_num_threads();
        for width in [3072, 192, 100, 20_032] {
            let all = Tensor::arange(9 * width, (tch::Kind::Float, Device::Cpu)).sin().view([9, width]) * 3.0;
            for activation in [Activation::GeluTanh, Activation::GeluErf] {
                tch::set_num_threads(1);
                let alone = |row| activated(all.narrow(0, row, 1).copy(), activation).unwrap();
                let alone: Vec<Tensor> = (0..9).map(alone).collect();
                for (threads, rows) in [(1, 9), (2, 9), (3, 8), (5, 9), (5, 5), (7, 9)] {
                    // Rows that are wider than one thread's share are split, for one number of threads the same way.
                    if width > ELEMENTS_OF_ONE_THREAD && threads != 1 {
                        continue;
                    }
                    tch::set_num_threads(threads);
                    let have = activated(all.narrow(0, 0, rows).copy(), activation).unwrap();
                    for row in 0..rows {
                        let same = have.narrow(0, row, 1).equal(&alone[row as usize]);
                        assert!(same, "row {row} of {rows}, {width} wide, {threads} threads, {activation:?}");
                    }
                }
            }
        }
        tch::set_num_threads(before);
        assert_eq!([5, 4, 0].map(|rows| rows_at_once(rows, 3072, 5)), [5, 0, 0]);
        assert_eq!(rows_at_once(9, 3072, 4), 9);
        assert_eq!(rows_at_once(9, 100, 1), 0);
    }
}
