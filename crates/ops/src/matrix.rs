//! Activations: rows of numbers in memory that a model keeps from step to step.

use crate::attention::OperandError;
use crate::kv_pool::{Dtype, Element};
use half::bf16;
use std::ffi::c_void;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// A cache line: what vectors read of the first row is aligned.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; LINE_BYTES]);

/// Where the numbers are.
#[derive(Debug)]
enum Memory {
    Own(Vec<Line>),
    /// A contiguous one on the CPU, of the matrix's axes and dtype, that libtorch made.
    #[cfg(feature = "torch")]
    Tensor(tch::Tensor),
}

/// `[rows, columns]` of one dtype, contiguous.
#[derive(Debug)]
pub struct Matrix {
    memory: Memory,
    dtype: Dtype,
    rows: usize,
    columns: usize,
}

impl Matrix {
    /// One without rows. Allocates nothing.
    pub fn new(dtype: Dtype) -> Matrix {
        Matrix { memory: Memory::Own(Vec::new()), dtype, rows: 0, columns: 0 }
    }

    /// One of these values, `columns` in each row.
    ///
    /// # Panics
    /// When the values are no whole number of rows.
    pub fn of<T: Element>(values: &[T], columns: usize) -> Matrix {
        assert!(columns > 0 && values.len().is_multiple_of(columns), "whole rows");
        let mut matrix = Matrix::new(T::DTYPE);
        matrix.resize(values.len() / columns, columns);
        matrix.values_mut().copy_from_slice(values);
        matrix
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Type of its numbers.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Gives it these axes; what it holds afterwards is left over and means nothing. Memory is added when there is too
    /// little and kept when there is more.
    ///
    /// # Panics
    /// When that many numbers do not fit the address space.
    pub fn resize(&mut self, rows: usize, columns: usize) {
        let bytes = rows.checked_mul(columns).and_then(|count| count.checked_mul(self.dtype.size()));
        let lines = bytes.expect("a matrix fits the address space").div_ceil(LINE_BYTES);
        match &mut self.memory {
            Memory::Own(memory) if memory.len() >= lines => {}
            #[cfg(feature = "torch")]
            Memory::Tensor(_) if (self.rows, self.columns) == (rows, columns) => {}
            memory => *memory = Memory::Own(vec![Line([0; LINE_BYTES]); lines]),
        }
        (self.rows, self.columns) = (rows, columns);
    }

    /// Its numbers, row by row.
    ///
    /// # Panics
    /// When they are of another type.
    pub fn values<T: Element>(&self) -> &[T] {
        assert_eq!(self.dtype, T::DTYPE, "the matrix has other numbers");
        // SAFETY: the memory has rows * columns numbers of the dtype, aligned and initialised (any bits are a number);
        // it is borrowed as long as the slice is.
        unsafe { std::slice::from_raw_parts(self.data().cast(), self.rows * self.columns) }
    }

    /// The same, to be written.
    ///
    /// # Panics
    /// As [`Matrix::values`].
    pub fn values_mut<T: Element>(&mut self) -> &mut [T] {
        assert_eq!(self.dtype, T::DTYPE, "the matrix has other numbers");
        // SAFETY: as in `values`, borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.data_mut().cast(), self.rows * self.columns) }
    }

    pub(crate) fn data(&self) -> *const c_void {
        match &self.memory {
            Memory::Own(lines) => lines.as_ptr().cast(),
            #[cfg(feature = "torch")]
            Memory::Tensor(tensor) => tensor.data_ptr().cast_const(),
        }
    }

    pub(crate) fn data_mut(&mut self) -> *mut c_void {
        match &mut self.memory {
            Memory::Own(lines) => lines.as_mut_ptr().cast(),
            #[cfg(feature = "torch")]
            Memory::Tensor(tensor) => tensor.data_ptr(),
        }
    }

    /// Copies its numbers into `out`, widened to f32; `out` is resized to fit.
    pub fn copy_to_f32(&self, out: &mut Vec<f32>) {
        out.clear();
        match self.dtype {
            Dtype::F32 => out.extend_from_slice(self.values()),
            Dtype::Bf16 => out.extend(self.values().iter().map(|value: &bf16| value.to_f32())),
        }
    }

    /// Makes it the rows of `from` that `rows` names, in that order.
    ///
    /// # Errors
    /// A row that there is not, or numbers of another type.
    pub fn gather(
        &mut self,
        from: &Matrix,
        rows: impl ExactSizeIterator<Item = usize>,
    ) -> Result<(), OperandError> {
        if self.dtype != from.dtype {
            return Err(OperandError("rows are gathered from a matrix of another type"));
        }
        self.resize(rows.len(), from.columns);
        match self.dtype {
            Dtype::F32 => self.gather_values::<f32>(from, rows),
            Dtype::Bf16 => self.gather_values::<bf16>(from, rows),
        }
    }

    fn gather_values<T: Element>(
        &mut self,
        from: &Matrix,
        rows: impl Iterator<Item = usize>,
    ) -> Result<(), OperandError> {
        let (columns, values) = (from.columns, from.values::<T>());
        for (to, row) in self.values_mut::<T>().chunks_exact_mut(columns.max(1)).zip(rows) {
            let row = row.checked_mul(columns).and_then(|at| values.get(at..at + columns));
            to.copy_from_slice(row.ok_or(OperandError("a gathered row is past the matrix's end"))?);
        }
        Ok(())
    }

    /// Adds a row of `table` to each of its own, the one that `rows` names.
    ///
    /// # Errors
    /// A row that there is not, too few rows, or a table of another width or type.
    pub fn add_rows(&mut self, table: &Matrix, rows: &[i64]) -> Result<(), OperandError> {
        if (table.columns, table.dtype, rows.len()) != (self.columns, self.dtype, self.rows) {
            return Err(OperandError("a table's rows do not fit those that they are added to"));
        }
        match self.dtype {
            Dtype::F32 => self.add_values::<f32>(table, rows),
            Dtype::Bf16 => self.add_values::<bf16>(table, rows),
        }
    }

    fn add_values<T: Element>(&mut self, table: &Matrix, rows: &[i64]) -> Result<(), OperandError> {
        let (columns, values) = (table.columns, table.values::<T>());
        for (to, &row) in self.values_mut::<T>().chunks_exact_mut(columns.max(1)).zip(rows) {
            let at = usize::try_from(row).ok().and_then(|row| row.checked_mul(columns));
            let row = at.and_then(|at| values.get(at..at + columns));
            sum(to, row.ok_or(OperandError("an added row is past the table's end"))?);
        }
        Ok(())
    }

    /// Adds another one, number by number.
    ///
    /// # Errors
    /// When it has other axes or another type.
    pub fn add(&mut self, other: &Matrix) -> Result<(), OperandError> {
        if (other.rows, other.columns, other.dtype) != (self.rows, self.columns, self.dtype) {
            return Err(OperandError("matrices of different axes or types are added"));
        }
        match self.dtype {
            Dtype::F32 => sum::<f32>(self.values_mut(), other.values()),
            Dtype::Bf16 => sum::<bf16>(self.values_mut(), other.values()),
        }
        Ok(())
    }

    /// Multiplies each number with `factor`, and rounds once.
    pub fn scale(&mut self, factor: f32) {
        match self.dtype {
            Dtype::F32 => self.values_mut::<f32>().iter_mut().for_each(|value| *value *= factor),
            Dtype::Bf16 => {
                let values = self.values_mut::<bf16>();
                values.iter_mut().for_each(|value| *value = bf16::from_f32(value.to_f32() * factor));
            }
        }
    }
}

fn sum<T: Element>(to: &mut [T], values: &[T]) {
    for (to, value) in to.iter_mut().zip(values) {
        *to = T::from_f32(to.to_f32() + value.to_f32());
    }
}

#[cfg(feature = "torch")]
pub use torch::Table;

/// Between libtorch's tensors and matrices.
#[cfg(feature = "torch")]
mod torch {
    use super::{Matrix, Memory};
    use crate::attention::OperandError;
    use crate::kv_pool::Dtype;
    use crate::tensor::{TensorError, kind_of};
    use half::{bf16, f16};
    use tch::{Device, Kind, Tensor};

    impl Matrix {
        /// Calls `work` with a tensor over its memory.
        ///
        /// # Safety
        /// What `work` gives back does not refer to that tensor's memory.
        pub(crate) unsafe fn with_tensor<R>(
            &self,
            work: impl FnOnce(&Tensor) -> Result<R, TensorError>,
        ) -> Result<R, TensorError> {
            let memory = match &self.memory {
                Memory::Tensor(tensor) => return work(tensor),
                Memory::Own(lines) => lines.as_ptr().cast(),
            };
            let size = [self.rows as i64, self.columns as i64];
            // SAFETY: the memory has these axes and this type and is borrowed while the tensor lives, which is dropped
            // here; the caller vouches for what `work` makes of it.
            let tensor = unsafe {
                Tensor::f_from_blob(memory, &size, &[size[1], 1], kind_of(self.dtype), Device::Cpu)?
            };
            work(&tensor)
        }

        /// Takes the numbers of a tensor for its own, with its axes.
        ///
        /// # Errors
        /// When it is no contiguous matrix of this type on the CPU.
        ///
        /// # Safety
        /// Nothing else refers to the tensor's memory.
        pub(crate) unsafe fn adopt(&mut self, tensor: Tensor) -> Result<(), TensorError> {
            let size = tensor.size();
            let fits = tensor.is_contiguous() && tensor.device() == Device::Cpu;
            let (&[rows, columns], true) = (&size[..], fits && tensor.kind() == kind_of(self.dtype)) else {
                let (kind, dtype) = (tensor.kind(), self.dtype);
                let message = format!("{kind:?} {size:?} is no contiguous matrix of {dtype:?}");
                return Err(TensorError { operation: "taking a product", message });
            };
            (self.rows, self.columns) = (rows as usize, columns as usize);
            self.memory = Memory::Tensor(tensor);
            Ok(())
        }

        /// Makes it rows of a table.
        ///
        /// # Errors
        /// A row that there is not, or numbers that its type does not hold exactly: it takes fp32, bf16 and fp16, or
        /// bf16 where it is bf16 itself.
        pub fn look_up(&mut self, table: &Table, rows: &[i64]) -> Result<(), TensorError> {
            if rows.iter().any(|row| !(0..table.rows).contains(row)) {
                return Err(OperandError("a row is past the table's end").into());
            }
            self.resize(rows.len(), table.columns);
            match (table.tensor.kind(), self.dtype) {
                (Kind::Float, Dtype::F32) => table.copy(rows, self.values_mut(), |value: f32| value),
                (Kind::BFloat16, Dtype::Bf16) => table.copy(rows, self.values_mut(), |value: bf16| value),
                (Kind::BFloat16, Dtype::F32) => {
                    table.copy(rows, self.values_mut(), |value: bf16| value.to_f32());
                }
                (Kind::Half, Dtype::F32) => table.copy(rows, self.values_mut(), |value: f16| value.to_f32()),
                _ => return Err(OperandError("a table has a type that the activations do not hold").into()),
            }
            Ok(())
        }
    }

    /// A tensor whose rows are looked up, as those of embeddings are.
    #[derive(Debug)]
    pub struct Table {
        tensor: Tensor,
        rows: i64,
        columns: usize,
    }

    impl Table {
        /// A table of this tensor `[rows, columns]`, to which nothing else writes and of which no copy changes the
        /// axes.
        ///
        /// # Errors
        /// When it is no contiguous matrix on the CPU.
        pub fn new(tensor: Tensor) -> Result<Table, TensorError> {
            let size = tensor.size();
            match (&size[..], tensor.is_contiguous() && tensor.device() == Device::Cpu) {
                (&[rows, columns], true) => Ok(Table { tensor, rows, columns: columns as usize }),
                _ => Err(OperandError("a table is no contiguous matrix on the CPU").into()),
            }
        }

        /// The tensor.
        pub fn tensor(&self) -> &Tensor {
            &self.tensor
        }

        /// Copies rows that there are. `S` is the type of the numbers.
        fn copy<S: Copy, T>(&self, rows: &[i64], out: &mut [T], convert: impl Fn(S) -> T) {
            let data = self.tensor.data_ptr().cast_const().cast::<S>();
            for (out, &row) in out.chunks_exact_mut(self.columns.max(1)).zip(rows) {
                let at = row as usize * self.columns;
                // SAFETY: the row is one of the tensor's, which is live, contiguous and not written to meanwhile.
                let row = unsafe { std::slice::from_raw_parts(data.add(at), self.columns) };
                for (out, &value) in out.iter_mut().zip(row) {
                    *out = convert(value);
                }
            }
        }
    }
}
