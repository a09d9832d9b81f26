//! GPT-2's weights on the device: read from safetensors, turned to `[out, in]`, converted and copied, once.

use super::backend;
use super::convert::StoredTensor;
use super::gpt2_shape::Gpt2Shape;
use crate::load::LoadError;
use pinion_cuda::{CudaDtype, CudaError, Device, Span, Stream};
use pinion_ops::MappedFile;
use safetensors::{Dtype as StoredDtype, SafeTensors};
use std::path::{Path, PathBuf};

/// The file that holds the weights in a Hugging Face folder.
const WEIGHT_FILE: &str = "model.safetensors";
/// What some exports put before every name.
const PREFIX: &str = "transformer.";

/// Scale and shift of a layer norm, `[hidden]` each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Norm {
    pub(super) weight: Span,
    pub(super) bias: Span,
}

/// A linear layer: `[out, in]` and `[out]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Linear {
    pub(super) weight: Span,
    pub(super) bias: Span,
    pub(super) inputs: u32,
    pub(super) outputs: u32,
}

/// One transformer block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) norm_attention: Norm,
    pub(super) qkv: Linear,
    pub(super) attention_out: Linear,
    pub(super) norm_mlp: Norm,
    pub(super) up: Linear,
    pub(super) down: Linear,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Weights {
    /// `[vocab, hidden]`.
    pub(super) token_embedding: Span,
    /// `[positions, hidden]`.
    pub(super) position_embedding: Span,
    pub(super) blocks: Vec<Block>,
    pub(super) norm_final: Norm,
    /// `[vocab, hidden]`; the token embedding itself when tied.
    pub(super) head: Span,
    pub(super) bytes: u64,
}

struct Reader<'a> {
    path: PathBuf,
    tensors: SafeTensors<'a>,
    device: &'a Device,
    stream: &'a Stream,
    dtype: CudaDtype,
    threads: usize,
    /// The tensor on its way.
    converted: Vec<u8>,
    bytes: u64,
}

impl Reader<'_> {
    fn fault(&self, tensor: &str, reason: String) -> LoadError {
        LoadError::Tensor { path: self.path.clone(), tensor: tensor.to_owned(), reason }
    }

    /// The tensor `name` on the device, checked to have this shape; `turned` makes `[in, out]` into `[out, in]`.
    fn tensor(&mut self, name: &str, shape: &[u32], turned: bool) -> Result<Span, LoadError> {
        let found = self.tensors.tensor(name).or_else(|_| self.tensors.tensor(&format!("{PREFIX}{name}")));
        let Ok(view) = found else {
            return Err(self.fault(name, "missing".into()));
        };
        if !view.shape().iter().copied().eq(shape.iter().map(|&axis| axis as usize)) {
            return Err(self.fault(name, format!("has shape {:?}, expected {shape:?}", view.shape())));
        }
        let dtype = view.dtype();
        if !matches!(dtype, StoredDtype::F32 | StoredDtype::F16 | StoredDtype::BF16) {
            return Err(self.fault(name, format!("has dtype {dtype:?}, expected F32, F16 or BF16")));
        }
        let count: usize = shape.iter().map(|&axis| axis as usize).product();
        let turned = turned.then(|| (shape[0] as usize, shape[1] as usize));
        self.converted.resize(count * self.dtype.size(), 0);
        StoredTensor { data: view.data(), dtype, turned }.convert(
            self.dtype,
            self.threads,
            &mut self.converted,
        );
        self.bytes += self.converted.len() as u64;
        let copied = |converted: &[u8]| -> Result<Span, CudaError> {
            let span = self.device.alloc(converted.len())?;
            self.stream.upload(span, converted)?;
            Ok(span)
        };
        copied(&self.converted).map_err(backend)
    }

    fn norm(&mut self, name: &str, hidden: u32) -> Result<Norm, LoadError> {
        let weight = self.tensor(&format!("{name}.weight"), &[hidden], false)?;
        Ok(Norm { weight, bias: self.tensor(&format!("{name}.bias"), &[hidden], false)? })
    }

    /// A `Conv1D` (transformers' pytorch_utils.py), stored as `[in, out]`.
    fn conv1d(&mut self, name: &str, inputs: u32, outputs: u32) -> Result<Linear, LoadError> {
        let weight = self.tensor(&format!("{name}.weight"), &[inputs, outputs], true)?;
        let bias = self.tensor(&format!("{name}.bias"), &[outputs], false)?;
        Ok(Linear { weight, bias, inputs, outputs })
    }

    fn block(&mut self, layer: u32, shape: &Gpt2Shape) -> Result<Block, LoadError> {
        let (hidden, inner) = (shape.hidden, shape.inner);
        let name = |part: &str| format!("h.{layer}.{part}");
        Ok(Block {
            norm_attention: self.norm(&name("ln_1"), hidden)?,
            qkv: self.conv1d(&name("attn.c_attn"), hidden, 3 * hidden)?,
            attention_out: self.conv1d(&name("attn.c_proj"), hidden, hidden)?,
            norm_mlp: self.norm(&name("ln_2"), hidden)?,
            up: self.conv1d(&name("mlp.c_fc"), hidden, inner)?,
            down: self.conv1d(&name("mlp.c_proj"), inner, hidden)?,
        })
    }
}

impl Weights {
    /// Reads everything; the file is unmapped when this returns.
    pub(super) fn read(
        folder: &Path,
        shape: &Gpt2Shape,
        stream: &Stream,
        dtype: CudaDtype,
        threads: usize,
    ) -> Result<Weights, LoadError> {
        let path = folder.join(WEIGHT_FILE);
        let fault = |reason: String| LoadError::Weights { path: path.clone(), reason };
        let file = MappedFile::open(&path).map_err(|error| fault(error.to_string()))?;
        // The crate checks the header's length, JSON, offsets and sizes against the file.
        let tensors = SafeTensors::deserialize(file.bytes())
            .map_err(|error| fault(format!("not a whole safetensors file: {error}")))?;
        let device = stream.device();
        let path = path.clone();
        let mut reader =
            Reader { path, tensors, device, stream, dtype, threads, converted: Vec::new(), bytes: 0 };
        let token_embedding = reader.tensor("wte.weight", &[shape.vocab, shape.hidden], false)?;
        let position_embedding = reader.tensor("wpe.weight", &[shape.positions, shape.hidden], false)?;
        let mut blocks = Vec::new();
        for layer in 0..shape.layers {
            blocks.push(reader.block(layer, shape)?);
        }
        let norm_final = reader.norm("ln_f", shape.hidden)?;
        let head = match shape.is_tied() {
            true => token_embedding,
            false => reader.tensor("lm_head.weight", &[shape.vocab, shape.hidden], false)?,
        };
        let bytes = reader.bytes;
        Ok(Weights { token_embedding, position_embedding, blocks, norm_final, head, bytes })
    }
}
