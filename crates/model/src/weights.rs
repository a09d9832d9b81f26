//! A safetensors file, checked: every fault names the file, the tensor and the reason.

use crate::load::LoadError;
use pinion_ops::MappedFile;
use pinion_ops::tensor::tensor_from_bytes;
use safetensors::{Dtype as StoredDtype, SafeTensors};
use std::path::{Path, PathBuf};
use tch::{Kind, Tensor};

/// The file that holds the weights in a Hugging Face folder.
const WEIGHT_FILE: &str = "model.safetensors";

/// A mapped weight file. The map lives as long as this value: copy out what is kept, then drop it.
#[derive(Debug)]
pub(crate) struct WeightFile {
    path: PathBuf,
    file: MappedFile,
}

/// The tensors of a [`WeightFile`].
#[derive(Debug)]
pub(crate) struct Weights<'a> {
    path: &'a Path,
    tensors: SafeTensors<'a>,
    /// Prepended to names that are not found as they are.
    prefix: &'static str,
}

impl WeightFile {
    pub(crate) fn open(folder: &Path) -> Result<Self, LoadError> {
        let path = folder.join(WEIGHT_FILE);
        match MappedFile::open(&path) {
            Ok(file) => Ok(Self { path, file }),
            Err(error) => Err(LoadError::Weights { path, reason: error.to_string() }),
        }
    }

    /// Parses the header; `prefix` is what some exports put before every name.
    pub(crate) fn parse(&self, prefix: &'static str) -> Result<Weights<'_>, LoadError> {
        // The crate checks the header's length, JSON, offsets and sizes against the file.
        match SafeTensors::deserialize(self.file.bytes()) {
            Ok(tensors) => Ok(Weights { path: &self.path, tensors, prefix }),
            Err(error) => {
                let reason = format!("not a whole safetensors file: {error}");
                Err(LoadError::Weights { path: self.path.clone(), reason })
            }
        }
    }
}

impl Weights<'_> {
    fn fault(&self, tensor: &str, reason: String) -> LoadError {
        LoadError::Tensor { path: self.path.to_owned(), tensor: tensor.to_owned(), reason }
    }

    /// The tensor `name`, checked to have this shape, converted to `kind` (a copy either way).
    pub(crate) fn take(&self, name: &str, shape: &[u32], kind: Kind) -> Result<Tensor, LoadError> {
        let found =
            self.tensors.tensor(name).or_else(|_| self.tensors.tensor(&format!("{}{name}", self.prefix)));
        let Ok(view) = found else {
            return Err(self.fault(name, "missing".into()));
        };
        if !view.shape().iter().copied().eq(shape.iter().map(|&axis| axis as usize)) {
            return Err(self.fault(name, format!("has shape {:?}, expected {shape:?}", view.shape())));
        }
        let stored = match view.dtype() {
            StoredDtype::F32 => Kind::Float,
            StoredDtype::F16 => Kind::Half,
            StoredDtype::BF16 => Kind::BFloat16,
            other => return Err(self.fault(name, format!("has dtype {other:?}, expected F32, F16 or BF16"))),
        };
        let shape: Vec<i64> = shape.iter().map(|&axis| i64::from(axis)).collect();
        let tensor = tensor_from_bytes(view.data(), &shape, stored);
        let tensor = tensor.map_err(|error| self.fault(name, error.to_string()))?;
        tensor.f_to_kind(kind).map_err(|error| self.fault(name, error.to_string()))
    }
}
