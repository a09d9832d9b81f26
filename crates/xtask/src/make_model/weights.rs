//! The weight file: every tensor of GPT-2 by its published name, drawn as Hugging Face initialises the model.
//! Tensors are made one at a time while the file is written, so memory stays at the largest one.

use std::borrow::Cow;
use std::cell::Cell;
use std::fs::File;
use std::path::Path;

use half::bf16;
use safetensors::tensor::{Dtype, View};

use super::rng::Rng;

/// `initializer_range` of the published configuration.
pub(super) const INITIALIZER_RANGE: f32 = 0.02;

/// A progress line after this many tensors.
const PROGRESS_EVERY: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum StoredDtype {
    F32,
    Bf16,
}

impl StoredDtype {
    pub(super) fn config_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
        }
    }

    fn stored(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::Bf16 => Dtype::BF16,
        }
    }

    fn byte_count(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// What decides the shapes of all tensors.
pub(super) struct Shape {
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    pub positions: usize,
    pub vocabulary: usize,
}

impl Shape {
    pub(super) const GPT2: Self =
        Self { layers: 12, width: 768, heads: 12, positions: 1024, vocabulary: 50257 };
    /// Heads of 64 as GPT-2 has them, and a token for each byte.
    pub(super) const TINY: Self = Self { layers: 2, width: 128, heads: 2, positions: 512, vocabulary: 257 };

    /// The last id, as in GPT-2.
    pub(super) fn end_of_text(&self) -> usize {
        self.vocabulary - 1
    }
}

/// How a tensor is filled.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fill {
    Constant(f32),
    Normal { deviation: f32 },
}

struct Tensor<'a> {
    name: String,
    shape: Vec<usize>,
    fill: Fill,
    dtype: StoredDtype,
    seed: u64,
    progress: &'a Progress,
}

/// Counts what has been written, for the progress lines. `View` hands out `&self` only, hence the cell.
struct Progress {
    total: usize,
    done: Cell<usize>,
}

impl Progress {
    fn one_more(&self) {
        let done = self.done.get() + 1;
        self.done.set(done);
        if done.is_multiple_of(PROGRESS_EVERY) || done == self.total {
            println!("weights: {done} of {} tensors", self.total);
        }
    }
}

impl Tensor<'_> {
    fn element_count(&self) -> usize {
        self.shape.iter().product()
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.data_len() + 2 * self.dtype.byte_count());
        match self.fill {
            Fill::Constant(value) => (0..self.element_count()).for_each(|_| self.put(&mut bytes, value)),
            Fill::Normal { deviation } => {
                let mut rng = Rng::named(self.seed, &self.name);
                for _ in 0..self.element_count().div_ceil(2) {
                    let (first, second) = rng.normal_pair();
                    self.put(&mut bytes, first * deviation);
                    self.put(&mut bytes, second * deviation);
                }
                bytes.truncate(self.data_len());
            }
        }
        bytes
    }

    fn put(&self, bytes: &mut Vec<u8>, value: f32) {
        match self.dtype {
            StoredDtype::F32 => bytes.extend_from_slice(&value.to_le_bytes()),
            StoredDtype::Bf16 => bytes.extend_from_slice(&bf16::from_f32(value).to_le_bytes()),
        }
    }
}

impl View for &Tensor<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype.stored()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.progress.one_more();
        Cow::Owned(self.bytes())
    }

    fn data_len(&self) -> usize {
        Tensor::data_len(self)
    }
}

impl Tensor<'_> {
    fn data_len(&self) -> usize {
        self.element_count() * self.dtype.byte_count()
    }
}

/// Names, shapes and fills as in the published `gpt2` folder (no `transformer.` prefix, tied output layer not
/// stored). Linear weights are `[inputs, outputs]` there: GPT-2's Conv1D is transposed against nn.Linear.
/// Fills follow transformers, GPT2PreTrainedModel._init_weights: residual projections get a smaller deviation than the
/// other linears, for which it is `deviation`.
fn layout(shape: &Shape, deviation: f32) -> Vec<(String, Vec<usize>, Fill)> {
    let width = shape.width;
    let embedding = Fill::Normal { deviation: INITIALIZER_RANGE };
    let normal = Fill::Normal { deviation };
    let residual = Fill::Normal { deviation: deviation / ((2 * shape.layers) as f32).sqrt() };
    let (zero, one) = (Fill::Constant(0.0), Fill::Constant(1.0));
    let mut tensors = vec![
        ("wte.weight".to_owned(), vec![shape.vocabulary, width], embedding),
        ("wpe.weight".to_owned(), vec![shape.positions, width], embedding),
        ("ln_f.weight".to_owned(), vec![width], one),
        ("ln_f.bias".to_owned(), vec![width], zero),
    ];
    for layer in 0..shape.layers {
        let parts = [
            ("ln_1.weight", vec![width], one),
            ("ln_1.bias", vec![width], zero),
            ("attn.c_attn.weight", vec![width, 3 * width], normal),
            ("attn.c_attn.bias", vec![3 * width], zero),
            ("attn.c_proj.weight", vec![width, width], residual),
            ("attn.c_proj.bias", vec![width], zero),
            ("ln_2.weight", vec![width], one),
            ("ln_2.bias", vec![width], zero),
            ("mlp.c_fc.weight", vec![width, 4 * width], normal),
            ("mlp.c_fc.bias", vec![4 * width], zero),
            ("mlp.c_proj.weight", vec![4 * width, width], residual),
            ("mlp.c_proj.bias", vec![width], zero),
        ];
        tensors.extend(parts.map(|(name, dims, fill)| (format!("h.{layer}.{name}"), dims, fill)));
    }
    tensors
}

/// What the file is made of, beside its shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Filling {
    pub seed: u64,
    pub dtype: StoredDtype,
    /// Of the linears.
    pub deviation: f32,
}

/// Writes the whole file.
pub(super) fn write(path: &Path, shape: &Shape, filling: Filling) -> Result<(), String> {
    let Filling { seed, dtype, deviation } = filling;
    let layout = layout(shape, deviation);
    let progress = Progress { total: layout.len(), done: Cell::new(0) };
    let tensors: Vec<Tensor<'_>> = layout
        .into_iter()
        .map(|(name, shape, fill)| Tensor { name, shape, fill, dtype, seed, progress: &progress })
        .collect();
    let views = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor));
    // transformers refuses a file without this entry.
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    let cannot = |error: &dyn std::fmt::Display| format!("cannot write {}: {error}", path.display());
    // serialize_to_file leaves a file that only its owner may read: it gets the mode of any other new file.
    let mode =
        File::create(path).and_then(|file| file.metadata()).map_err(|error| cannot(&error))?.permissions();
    safetensors::serialize_to_file(views, Some(metadata), path).map_err(|error| cannot(&error))?;
    std::fs::set_permissions(path, mode).map_err(|error| cannot(&error))
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    const SMALL: Shape = Shape { layers: 2, width: 64, heads: 2, positions: 31, vocabulary: 257 };

    fn written(dtype: StoredDtype, seed: u64) -> Vec<u8> {
        let path = std::env::temp_dir().join(format!("pinion-xtask-{}-{dtype:?}-{seed}", std::process::id()));
        write(&path, &SMALL, Filling { seed, dtype, deviation: 0.03 }).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        bytes
    }

    fn deviation(values: &[f32]) -> f32 {
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        (values.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / values.len() as f32).sqrt()
    }

    fn f32s(bytes: &[u8]) -> Vec<f32> {
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    #[test]
    fn gpt2_has_its_published_size() {
        let layout = layout(&Shape::GPT2, INITIALIZER_RANGE);
        let count: usize = layout.iter().map(|(_, dims, _)| dims.iter().product::<usize>()).sum();
        assert_eq!((layout.len(), count), (148, 124_439_808));
    }

    /// A service may run as another user than the one who made the folder.
    #[test]
    fn who_may_read_other_new_files_may_read_the_weights() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("pinion-xtask-{}-mode", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let filling = Filling { seed: 1, dtype: StoredDtype::F32, deviation: 0.03 };
        write(&folder.join("weights"), &SMALL, filling).unwrap();
        std::fs::write(folder.join("other"), "").unwrap();
        let mode = |name: &str| std::fs::metadata(folder.join(name)).unwrap().permissions().mode();
        assert_eq!(mode("weights"), mode("other"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_reads_back_with_the_right_spread() {
        let bytes = written(StoredDtype::F32, 1);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(file.len(), 4 + 12 * SMALL.layers);
        let embedding = file.tensor("wte.weight").unwrap();
        assert_eq!(embedding.shape(), [257, 64]);
        let spread = deviation(&f32s(embedding.data()));
        assert!((spread - 0.02).abs() < 0.0005, "{spread}");
        let spread = deviation(&f32s(file.tensor("h.1.mlp.c_proj.weight").unwrap().data()));
        assert!((spread - 0.015).abs() < 0.0005, "{spread}");
        let spread = deviation(&f32s(file.tensor("h.0.attn.c_attn.weight").unwrap().data()));
        assert!((spread - 0.03).abs() < 0.001, "{spread}");
        assert!(f32s(file.tensor("ln_f.weight").unwrap().data()).iter().all(|&v| v == 1.0));
        assert!(f32s(file.tensor("h.0.attn.c_attn.bias").unwrap().data()).iter().all(|&v| v == 0.0));
    }

    #[test]
    fn the_seed_decides_and_bf16_is_the_rounded_f32() {
        assert_eq!(written(StoredDtype::F32, 2), written(StoredDtype::F32, 2));
        assert_ne!(written(StoredDtype::F32, 2), written(StoredDtype::F32, 3));
        let (wide, narrow) = (written(StoredDtype::F32, 2), written(StoredDtype::Bf16, 2));
        let (wide, narrow) =
            (SafeTensors::deserialize(&wide).unwrap(), SafeTensors::deserialize(&narrow).unwrap());
        let rounded: Vec<u8> = f32s(wide.tensor("wpe.weight").unwrap().data())
            .into_iter()
            .flat_map(|v| bf16::from_f32(v).to_le_bytes())
            .collect();
        assert_eq!(narrow.tensor("wpe.weight").unwrap().data(), rounded);
    }
}
