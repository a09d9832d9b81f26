//! A decoder's weights as tensors of one device.

use super::OperatorOptions;
use super::decoder::{backend, kind_of, tensors_of};
use crate::checkpoint::Checkpoint;
use crate::load::{LoadError, LoadEvent};
use pinion_architecture::{Architecture, Layout, NormKind, Position, QkNorm, Source};
use pinion_ops::tensor::{TensorError, tensor_from_bytes};
use safetensors::Dtype as StoredDtype;
use std::path::Path;
use tch::{Device, Kind, Tensor};

/// The weights of one norm, \[width\]: fp32 for the kinds that multiply in fp32.
#[derive(Debug)]
pub(super) struct Norm {
    pub(super) weight: Tensor,
    pub(super) bias: Option<Tensor>,
}

/// A linear layer: \[out, in\] and, if it has one, \[out\].
#[derive(Debug)]
pub(super) struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// \[rows, in\] to \[rows, out\].
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor, TensorError> {
        Ok(x.f_linear(&self.weight, self.bias.as_ref())?)
    }
}

/// One layer. Norms that the architecture has not are `None`.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) attention_norm: Option<Norm>,
    pub(super) qkv: Linear,
    pub(super) q_norm: Option<Norm>,
    pub(super) k_norm: Option<Norm>,
    pub(super) out: Linear,
    pub(super) attention_post_norm: Option<Norm>,
    pub(super) mlp_norm: Option<Norm>,
    pub(super) up: Linear,
    pub(super) down: Linear,
    pub(super) mlp_post_norm: Option<Norm>,
}

/// Cosines and sines of a rotation, fp32 \[longest sequence, dim / 2\] each.
#[derive(Debug)]
pub(super) struct Angles {
    pub(super) cosines: Tensor,
    pub(super) sines: Tensor,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Weights {
    pub(super) token_embedding: Tensor,
    pub(super) position_embedding: Option<Tensor>,
    pub(super) angles: Vec<Angles>,
    pub(super) layers: Vec<Layer>,
    pub(super) final_norm: Norm,
    pub(super) head: Linear,
    pub(super) bytes: u64,
}

struct Reader<'a> {
    checkpoint: Checkpoint,
    model: &'a Architecture,
    device: Device,
    kind: Kind,
    watch: &'a mut dyn FnMut(LoadEvent<'_>),
    bytes: u64,
}

fn tensor_error(error: tch::TchError) -> LoadError {
    backend(error.into())
}

impl Reader<'_> {
    /// The tensor of this full name on the device, where it is converted.
    fn whole(&mut self, full: &str, shape: &[u32]) -> Result<Tensor, LoadError> {
        let stored = self.checkpoint.tensor(full, shape)?;
        let kind = match stored.dtype {
            StoredDtype::F16 => Kind::Half,
            StoredDtype::BF16 => Kind::BFloat16,
            _ => Kind::Float,
        };
        let axes: Vec<i64> = shape.iter().map(|&axis| i64::from(axis)).collect();
        let host = tensor_from_bytes(&stored.data, &axes, kind).map_err(backend)?;
        let tensor = host.f_to_device(self.device).and_then(|tensor| tensor.f_to_kind(self.kind));
        let tensor = tensor.map_err(tensor_error)?;
        self.checkpoint.release(full);
        self.bytes += (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64;
        let (done, total) = self.checkpoint.progress();
        (self.watch)(LoadEvent::Bytes { done, total });
        Ok(tensor)
    }

    fn named(&mut self, name: &str, shape: &[u32]) -> Result<Tensor, LoadError> {
        let full = self.checkpoint.full_name(self.model.names.prefixes, name)?;
        self.whole(&full, shape)
    }

    fn norm(&mut self, name: &str, width: u32) -> Result<Norm, LoadError> {
        let weight = self.named(&format!("{name}.weight"), &[width])?;
        Ok(match self.model.norm.kind {
            NormKind::Layer => Norm { weight, bias: Some(self.named(&format!("{name}.bias"), &[width])?) },
            NormKind::Rms => Norm { weight, bias: None },
            NormKind::RmsWide => {
                Norm { weight: weight.f_to_kind(Kind::Float).map_err(tensor_error)?, bias: None }
            }
            NormKind::RmsOnePlus => {
                let weight = weight.f_to_kind(Kind::Float).and_then(|weight| weight.f_add_scalar(1.0));
                Norm { weight: weight.map_err(tensor_error)?, bias: None }
            }
        })
    }

    fn layer_norm(&mut self, layer: usize, part: &str, is_there: bool) -> Result<Option<Norm>, LoadError> {
        let (name, hidden) = (self.model.names.in_layer(layer, part), self.model.hidden);
        is_there.then(|| self.norm(&name, hidden)).transpose()
    }

    /// A product whose rows are `parts` one after another, each a tensor of its own or all in one.
    fn linear(
        &mut self,
        source: &Source,
        parts: &[u32],
        inputs: u32,
        has_bias: bool,
    ) -> Result<Linear, LoadError> {
        let whole = [parts.iter().sum()];
        let parts = if source.names.len() == 1 { &whole[..] } else { parts };
        let (mut weights, mut biases) = (Vec::new(), Vec::new());
        for (name, &rows) in source.names.iter().zip(parts) {
            let weight = format!("{name}.weight");
            weights.push(match source.layout {
                Layout::OutIn => self.named(&weight, &[rows, inputs])?,
                // [in, out] to [out, in]
                Layout::InOut => {
                    self.named(&weight, &[inputs, rows])?.f_transpose(0, 1).map_err(tensor_error)?
                }
            });
            if has_bias {
                biases.push(self.named(&format!("{name}.bias"), &[rows])?);
            }
        }
        let joined = |tensors: &[Tensor]| match tensors {
            [one] => one.f_contiguous().map_err(tensor_error),
            all => Tensor::f_cat(all, 0).map_err(tensor_error),
        };
        let bias = has_bias.then(|| joined(&biases)).transpose()?;
        Ok(Linear { weight: joined(&weights)?, bias })
    }

    fn layer(&mut self, layer: usize) -> Result<Layer, LoadError> {
        let model = self.model;
        let (names, attention, mlp) = (&model.names, &model.attention, &model.mlp);
        let (hidden, q_width, kv_width) = (model.hidden, model.query_width(), model.kv_width());
        let norm_widths = match attention.qk_norm {
            QkNorm::Absent => None,
            QkNorm::PerHead => Some([attention.head_dim; 2]),
            QkNorm::Whole => Some([q_width, kv_width]),
        };
        let qk_norm = |reader: &mut Self, part: &str, at: usize| {
            norm_widths.map(|widths| reader.norm(&names.in_layer(layer, part), widths[at])).transpose()
        };
        let (before, after) = (model.norm_places.before(), model.norm_places.after());
        let up_rows = vec![mlp.inner; if mlp.gated { 2 } else { 1 }];
        let source = |parts: &[&str]| names.linear(layer, parts);
        let qkv_rows = [q_width, kv_width, kv_width];
        Ok(Layer {
            attention_norm: self.layer_norm(layer, names.attention_norm, before)?,
            qkv: self.linear(&source(names.qkv), &qkv_rows, hidden, attention.qkv_bias)?,
            q_norm: qk_norm(self, names.q_norm, 0)?,
            k_norm: qk_norm(self, names.k_norm, 1)?,
            out: self.linear(&source(&[names.out]), &[hidden], q_width, attention.out_bias)?,
            attention_post_norm: self.layer_norm(layer, names.attention_post_norm, after)?,
            mlp_norm: self.layer_norm(layer, names.mlp_norm, before)?,
            up: self.linear(&source(names.up), &up_rows, hidden, mlp.bias)?,
            down: self.linear(&source(&[names.down]), &[hidden], mlp.inner, mlp.bias)?,
            mlp_post_norm: self.layer_norm(layer, names.mlp_post_norm, after)?,
        })
    }

    /// The tables of the model's rotations, in the arithmetic of the CPU engine.
    fn angles(&self, max_context: u32) -> Result<Vec<Angles>, LoadError> {
        let Position::Rotary(rotaries) = &self.model.position else { return Ok(Vec::new()) };
        let table = |rotary: &pinion_architecture::Rotary| {
            let frequencies = rotary.frequencies(max_context);
            let (mut cosines, mut sines) = (Vec::new(), Vec::new());
            for position in 0..max_context {
                for inverse in &frequencies.inverse {
                    let (sine, cosine) = (position as f32 * inverse).sin_cos();
                    cosines.push(cosine * frequencies.attention_factor);
                    sines.push(sine * frequencies.attention_factor);
                }
            }
            let axes = [i64::from(max_context), frequencies.inverse.len() as i64];
            let on_device = |values: &[f32]| {
                let table = Tensor::f_from_slice(values).and_then(|table| table.f_view(axes));
                table.and_then(|table| table.f_to_device(self.device)).map_err(tensor_error)
            };
            Ok(Angles { cosines: on_device(&cosines)?, sines: on_device(&sines)? })
        };
        rotaries.iter().map(table).collect()
    }
}

impl Weights {
    /// Reads everything; the files are unmapped when this returns.
    pub(super) fn read(
        folder: &Path,
        model: &Architecture,
        max_context: u32,
        options: &OperatorOptions,
        watch: &mut dyn FnMut(LoadEvent<'_>),
    ) -> Result<Self, LoadError> {
        let mut reader = Reader {
            checkpoint: Checkpoint::open(folder, model.packed, options.threads)?,
            model,
            device: tensors_of(options.device),
            kind: kind_of(options.dtype),
            watch,
            bytes: 0,
        };
        let (names, table) = (&model.names, [model.vocab, model.hidden]);
        let weight = |name: &str| format!("{name}.weight");
        let [embedding, head] = reader.checkpoint.embedding_and_head(model)?;
        if model.head.tied && embedding != head {
            let told = format!(
                "ties the head to the embeddings, but {head} has other numbers than they have, and is the head"
            );
            (reader.watch)(LoadEvent::Ignored(&[told]));
        }
        let token_embedding = reader.whole(&embedding, &table)?;
        let position_embedding = match model.position {
            Position::Rotary(_) => None,
            Position::Learned { count } => {
                Some(reader.named(&weight(names.position_embedding), &[count, model.hidden])?)
            }
        };
        let angles = reader.angles(max_context)?;
        let layers = (0..model.layers.len()).map(|layer| reader.layer(layer)).collect::<Result<_, _>>()?;
        let final_norm = reader.norm(names.final_norm, model.hidden)?;
        let head = match head == embedding {
            true => token_embedding.shallow_clone(),
            false => reader.whole(&head, &table)?,
        };
        let head_name = weight(names.head);
        reader.checkpoint.tell_unused(|name| model.head.tied && name.ends_with(&head_name), reader.watch)?;
        let (head, bytes) = (Linear { weight: head, bias: None }, reader.bytes);
        Ok(Self { token_embedding, position_embedding, angles, layers, final_norm, head, bytes })
    }
}
