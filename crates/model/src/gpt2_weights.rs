//! GPT-2's weights on libtorch, from a Hugging Face folder.

use crate::gpt2_shape::Gpt2Shape;
use crate::load::{LoadError, ModelOptions};
use crate::weights::{WeightFile, Weights};
use pinion_ops::linear::Linear;
use pinion_ops::tensor::{TensorError, kind_of};
use pinion_ops::{Activation, Dtype};
use std::path::Path;
use tch::{Kind, Tensor};

/// Scale and shift of a layer norm, \[hidden\] each.
#[derive(Debug)]
pub(crate) struct Norm {
    pub(crate) weight: Tensor,
    pub(crate) bias: Tensor,
}

/// One transformer block.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) norm_attention: Norm,
    /// \[hidden\] to Q, K, V side by side \[3 * hidden\].
    pub(crate) qkv: Linear,
    pub(crate) attention_out: Linear,
    pub(crate) norm_mlp: Norm,
    /// With the activation.
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

impl Block {
    fn linears(&mut self) -> [&mut Linear; 4] {
        [&mut self.qkv, &mut self.attention_out, &mut self.up, &mut self.down]
    }
}

/// Has every product made with so many rows that no row depends on how many there are, where that is cheap. One block
/// speaks for all: their shapes are the same.
fn settle_rows(blocks: &mut [Block], head: &mut Linear) -> Result<(), TensorError> {
    if let Some(rows) = head.find_fewest_rows()? {
        head.set_fewest_rows(rows);
    }
    let Some(first) = blocks.first_mut() else { return Ok(()) };
    let mut found = [None; 4];
    for (rows, linear) in found.iter_mut().zip(first.linears()) {
        *rows = linear.find_fewest_rows()?;
    }
    for (rows, linear) in blocks.iter_mut().flat_map(|block| found.into_iter().zip(block.linears())) {
        if let Some(rows) = rows {
            linear.set_fewest_rows(rows);
        }
    }
    Ok(())
}

/// All weights, in the compute dtype.
#[derive(Debug)]
pub(crate) struct Gpt2Weights {
    /// \[vocab, hidden\].
    pub(crate) token_embedding: Tensor,
    /// \[positions, hidden\].
    pub(crate) position_embedding: Tensor,
    pub(crate) blocks: Vec<Block>,
    pub(crate) norm_final: Norm,
    /// \[hidden\] to \[vocab\], no bias.
    pub(crate) head: Linear,
    /// Bytes held, the head counted on its own even when tied: it is packed apart from the embedding.
    pub(crate) bytes: u64,
}

/// Reads one model's tensors and counts their bytes.
struct Reader<'a> {
    weights: Weights<'a>,
    kind: Kind,
    options: &'a ModelOptions,
    bytes: u64,
}

fn backend(error: TensorError) -> LoadError {
    LoadError::Backend { operation: error.operation, message: error.message }
}

impl Reader<'_> {
    fn tensor(&mut self, name: &str, shape: &[u32]) -> Result<Tensor, LoadError> {
        let tensor = self.weights.take(name, shape, self.kind)?;
        self.bytes += (tensor.numel() * self.kind.elt_size_in_bytes()) as u64;
        Ok(tensor)
    }

    fn norm(&mut self, name: &str, hidden: u32) -> Result<Norm, LoadError> {
        let weight = self.tensor(&format!("{name}.weight"), &[hidden])?;
        Ok(Norm { weight, bias: self.tensor(&format!("{name}.bias"), &[hidden])? })
    }

    /// A `Conv1D` (transformers' pytorch_utils.py): its weight is \[in, out\], so it is turned once, here.
    fn conv1d(&mut self, name: &str, axes: [u32; 2], activation: Activation) -> Result<Linear, LoadError> {
        let weight = self.tensor(&format!("{name}.weight"), &axes)?;
        let bias = self.tensor(&format!("{name}.bias"), &[axes[1]])?;
        // [in, out] -> [out, in]
        let weight = weight.f_transpose(0, 1).map_err(|error| backend(error.into()))?;
        Linear::new(&weight, Some(&bias), activation, self.options.linear).map_err(backend)
    }

    fn block(&mut self, layer: u32, shape: &Gpt2Shape) -> Result<Block, LoadError> {
        let (hidden, inner) = (shape.hidden, shape.inner);
        let name = |part: &str| format!("h.{layer}.{part}");
        Ok(Block {
            norm_attention: self.norm(&name("ln_1"), hidden)?,
            qkv: self.conv1d(&name("attn.c_attn"), [hidden, 3 * hidden], Activation::None)?,
            attention_out: self.conv1d(&name("attn.c_proj"), [hidden, hidden], Activation::None)?,
            norm_mlp: self.norm(&name("ln_2"), hidden)?,
            up: self.conv1d(&name("mlp.c_fc"), [hidden, inner], shape.activation)?,
            down: self.conv1d(&name("mlp.c_proj"), [inner, hidden], Activation::None)?,
        })
    }
}

impl Gpt2Weights {
    /// Reads, converts and packs everything; the file is unmapped when this returns.
    pub(crate) fn read(
        folder: &Path,
        shape: &Gpt2Shape,
        dtype: Dtype,
        options: &ModelOptions,
    ) -> Result<Self, LoadError> {
        let file = WeightFile::open(folder)?;
        let weights = file.parse("transformer.")?;
        let mut reader = Reader { weights, kind: kind_of(dtype), options, bytes: 0 };
        let token_embedding = reader.tensor("wte.weight", &[shape.vocab, shape.hidden])?;
        let position_embedding = reader.tensor("wpe.weight", &[shape.positions, shape.hidden])?;
        let mut blocks = Vec::new();
        for layer in 0..shape.layers {
            blocks.push(reader.block(layer, shape)?);
        }
        let norm_final = reader.norm("ln_f", shape.hidden)?;
        let head = if shape.is_tied() {
            reader.bytes += (token_embedding.numel() * reader.kind.elt_size_in_bytes()) as u64;
            Linear::new(&token_embedding, None, Activation::None, options.linear)
        } else {
            let weight = reader.tensor("lm_head.weight", &[shape.vocab, shape.hidden])?;
            Linear::new(&weight, None, Activation::None, options.linear)
        };
        let mut head = head.map_err(backend)?;
        settle_rows(&mut blocks, &mut head).map_err(backend)?;
        let bytes = reader.bytes;
        Ok(Self { token_embedding, position_embedding, blocks, norm_final, head, bytes })
    }
}
