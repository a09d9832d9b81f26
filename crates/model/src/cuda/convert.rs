//! Weights as the device takes them: another element type, and `[in, out]` turned to `[out, in]`. In runs and tiles
//! that the first cache holds, on several threads; the test says the same an element at a time.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use pinion_cuda::CudaDtype;
use safetensors::Dtype as StoredDtype;

/// Elements converted at once.
const RUN: usize = 1024;
/// Side of the tiles that are turned: 16 KB of `f32`.
const TILE: usize = 64;
/// What is smaller is not worth a thread.
const THREAD_ELEMENTS_MIN: usize = 1 << 17;

/// A stored tensor.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredTensor<'a> {
    pub(super) data: &'a [u8],
    pub(super) dtype: StoredDtype,
    /// Rows and columns of a matrix that is turned.
    pub(super) turned: Option<(usize, usize)>,
}

fn size_of(dtype: StoredDtype) -> usize {
    if matches!(dtype, StoredDtype::F16 | StoredDtype::BF16) { 2 } else { 4 }
}

impl StoredTensor<'_> {
    /// Fills `out` with all elements as `dtype`, on up to `threads` threads.
    ///
    /// # Panics
    /// If `out` has not the tensor's length.
    pub(super) fn convert(&self, dtype: CudaDtype, threads: usize, out: &mut [u8]) {
        let count = self.data.len() / size_of(self.dtype);
        assert_eq!(out.len(), count * dtype.size(), "the output has a place for each element");
        let threads = threads.min(count / THREAD_ELEMENTS_MIN).max(1);
        // Whole rows of the output for each thread; without rows, whole runs.
        let row = self.turned.map_or(RUN, |(rows, _)| rows);
        let share = count.div_ceil(row).div_ceil(threads) * row;
        if share == 0 {
            return;
        }
        std::thread::scope(|scope| {
            let mut parts = out.chunks_mut(share * dtype.size()).enumerate();
            let own = parts.next();
            for (index, part) in parts {
                scope.spawn(move || self.convert_part(index * share, dtype, part));
            }
            if let Some((_, part)) = own {
                self.convert_part(0, dtype, part);
            }
        });
    }

    /// Fills `out` with the output's elements from `first` on.
    fn convert_part(&self, first: usize, dtype: CudaDtype, out: &mut [u8]) {
        match self.turned {
            None => self.convert_runs(first, dtype, out),
            Some((rows, columns)) => self.turn(rows, columns, first / rows, dtype, out),
        }
    }

    fn convert_runs(&self, first: usize, dtype: CudaDtype, out: &mut [u8]) {
        let mut values = [0f32; RUN];
        for (index, out) in out.chunks_mut(RUN * dtype.size()).enumerate() {
            let values = &mut values[..out.len() / dtype.size()];
            self.read(first + index * RUN, values);
            write(values, dtype, out);
        }
    }

    /// The output's rows from `begin` on: columns of what is stored.
    fn turn(&self, rows: usize, columns: usize, begin: usize, dtype: CudaDtype, out: &mut [u8]) {
        let (size, end) = (dtype.size(), begin + out.len() / (rows * dtype.size()));
        let (mut line, mut tile) = ([0f32; TILE], [[0f32; TILE]; TILE]);
        for column in (begin..end).step_by(TILE) {
            let width = TILE.min(end - column);
            for row in (0..rows).step_by(TILE) {
                let height = TILE.min(rows - row);
                for inner in 0..height {
                    self.read((row + inner) * columns + column, &mut line[..width]);
                    for (turned, &value) in tile.iter_mut().zip(&line[..width]) {
                        turned[inner] = value;
                    }
                }
                for (inner, turned) in tile[..width].iter().enumerate() {
                    let at = ((column + inner - begin) * rows + row) * size;
                    write(&turned[..height], dtype, &mut out[at..at + height * size]);
                }
            }
        }
    }

    /// The stored elements from `first` on.
    fn read(&self, first: usize, values: &mut [f32]) {
        let size = size_of(self.dtype);
        let bytes = &self.data[first * size..(first + values.len()) * size];
        match self.dtype {
            StoredDtype::F16 => {
                let mut halves = [f16::ZERO; RUN];
                let halves = &mut halves[..values.len()];
                fill(halves, bytes, f16::from_le_bytes);
                halves.convert_to_f32_slice(values);
            }
            StoredDtype::BF16 => {
                fill(values, bytes, |bytes: [u8; 2]| bf16::from_le_bytes(bytes).to_f32());
            }
            _ => fill(values, bytes, f32::from_le_bytes),
        }
    }
}

fn fill<T, const N: usize>(to: &mut [T], bytes: &[u8], read: impl Fn([u8; N]) -> T) {
    for (to, bytes) in to.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *to = read(*bytes);
    }
}

/// Writes up to [`RUN`] values.
fn write(values: &[f32], dtype: CudaDtype, out: &mut [u8]) {
    match dtype {
        CudaDtype::F32 => put(values, out, |value| value.to_le_bytes()),
        CudaDtype::Bf16 => put(values, out, |value| bf16::from_f32(value).to_le_bytes()),
        CudaDtype::F16 => {
            let mut halves = [f16::ZERO; RUN];
            let halves = &mut halves[..values.len()];
            halves.convert_from_f32_slice(values);
            put(halves, out, f16::to_le_bytes);
        }
    }
}

fn put<T: Copy, const N: usize>(values: &[T], out: &mut [u8], write: impl Fn(T) -> [u8; N]) {
    for (to, &value) in out.as_chunks_mut::<N>().0.iter_mut().zip(values) {
        *to = write(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_random::Random;

    /// An element of what is stored.
    fn stored(data: &[u8], dtype: StoredDtype, index: usize) -> f32 {
        let two = |at: usize| [data[at], data[at + 1]];
        match dtype {
            StoredDtype::F16 => f16::from_le_bytes(two(2 * index)).to_f32(),
            StoredDtype::BF16 => bf16::from_le_bytes(two(2 * index)).to_f32(),
            _ => f32::from_le_bytes(data[4 * index..4 * index + 4].try_into().expect("four bytes")),
        }
    }

    fn push(out: &mut Vec<u8>, dtype: CudaDtype, value: f32) {
        match dtype {
            CudaDtype::F32 => out.extend(value.to_le_bytes()),
            CudaDtype::Bf16 => out.extend(bf16::from_f32(value).to_le_bytes()),
            CudaDtype::F16 => out.extend(f16::from_f32(value).to_le_bytes()),
        }
    }

    /// Finite values of every size that the type has, subnormal ones too.
    fn data(dtype: StoredDtype, count: usize) -> Vec<u8> {
        let mut random = Random::new(7);
        let mut finite = || loop {
            let value = f32::from_bits(random.bits() as u32);
            if value.is_finite() {
                return value;
            }
        };
        let mut out = Vec::new();
        for _ in 0..count {
            let value = finite();
            match dtype {
                StoredDtype::F16 => {
                    out.extend(f16::from_f32(value.clamp(-65000.0, 65000.0)).to_le_bytes());
                }
                StoredDtype::BF16 => out.extend(bf16::from_f32(value / 4.0).to_le_bytes()),
                _ => out.extend(value.to_le_bytes()),
            }
        }
        out
    }

    #[test]
    fn runs_tiles_and_threads_give_what_single_elements_give() {
        let shapes = [(1, 1), (3, 5), (64, 64), (65, 63), (130, 200), (1, 3000), (700, 900)];
        for from in [StoredDtype::F32, StoredDtype::F16, StoredDtype::BF16] {
            for (rows, columns) in shapes {
                let (data, count) = (data(from, rows * columns), rows * columns);
                for to in [CudaDtype::F32, CudaDtype::F16, CudaDtype::Bf16] {
                    let (mut plain, mut turned) = (Vec::new(), Vec::new());
                    (0..count).for_each(|index| push(&mut plain, to, stored(&data, from, index)));
                    for column in 0..columns {
                        for row in 0..rows {
                            push(&mut turned, to, stored(&data, from, row * columns + column));
                        }
                    }
                    for threads in [1, 2, 5] {
                        for (shape, want) in [(None, &plain), (Some((rows, columns)), &turned)] {
                            let mut have = vec![0xaa; want.len()];
                            let tensor = StoredTensor { data: &data, dtype: from, turned: shape };
                            tensor.convert(to, threads, &mut have);
                            assert!(have == *want, "{from:?} to {to:?}, {shape:?} on {threads} threads");
                        }
                    }
                }
            }
        }
    }
}
