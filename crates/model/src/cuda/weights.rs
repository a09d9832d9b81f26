//! A decoder's weights on the device: read from safetensors, turned to `[out, in]`, converted and copied, once.

use super::convert::StoredTensor;
use super::shape::Shape;
use super::{CudaOptions, backend};
use crate::checkpoint::Checkpoint;
use crate::load::{LoadError, LoadEvent};
use pinion_architecture::{Architecture, Layout, NormKind, Position, QkNorm, Source};
use pinion_cuda::{CudaDtype, Span, Stream};
use safetensors::Dtype as StoredDtype;
use std::path::Path;

/// The weights of one norm.
#[derive(Debug, Clone, Copy)]
pub(super) enum Norm {
    /// Scale and shift, `[width]` each.
    Layer { weight: Span, bias: Span },
    /// f32 `[width]`.
    Rms(Span),
}

/// A linear layer: `[out, in]` and, if it has one, `[out]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Linear {
    pub(super) weight: Span,
    pub(super) bias: Option<Span>,
    pub(super) inputs: u32,
    pub(super) outputs: u32,
}

/// One layer. Norms that the architecture has not are `None`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layer {
    pub(super) attention_norm: Option<Norm>,
    /// To queries, keys and values side by side.
    pub(super) qkv: Linear,
    /// f32 `[head_dim]`, or of all heads' width; so is that of the keys.
    pub(super) q_norm: Option<(Span, u32)>,
    pub(super) k_norm: Option<(Span, u32)>,
    pub(super) out: Linear,
    pub(super) attention_post_norm: Option<Norm>,
    pub(super) mlp_norm: Option<Norm>,
    /// Gate and up side by side where there is a gate.
    pub(super) up: Linear,
    pub(super) down: Linear,
    pub(super) mlp_post_norm: Option<Norm>,
}

/// A rotation's cosines and sines: f32 `[max_context, dim / 2, 2]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Angles {
    pub(super) table: Span,
    pub(super) dim: u32,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Weights {
    /// `[vocab, hidden]`.
    pub(super) token_embedding: Span,
    /// `[positions, hidden]` and the number of positions, where they are learned.
    pub(super) position_embedding: Option<(Span, u32)>,
    /// One for each rotation of the model.
    pub(super) angles: Vec<Angles>,
    pub(super) layers: Vec<Layer>,
    pub(super) norm_final: Norm,
    /// `[vocab, hidden]`; the token embedding itself when tied.
    pub(super) head: Span,
    pub(super) bytes: u64,
}

struct Reader<'a> {
    checkpoint: Checkpoint,
    model: &'a Architecture,
    stream: &'a Stream,
    dtype: CudaDtype,
    threads: usize,
    watch: &'a mut dyn FnMut(LoadEvent<'_>),
    /// The tensor on its way.
    converted: Vec<u8>,
    bytes: u64,
}

fn stored_as(dtype: CudaDtype) -> StoredDtype {
    match dtype {
        CudaDtype::F32 => StoredDtype::F32,
        CudaDtype::Bf16 => StoredDtype::BF16,
        CudaDtype::F16 => StoredDtype::F16,
    }
}

impl Reader<'_> {
    fn room(&mut self, elements: usize, size: usize) -> Result<Span, LoadError> {
        self.bytes += (elements * size) as u64;
        self.stream.device().alloc(elements * size).map_err(backend)
    }

    /// Brings the tensor `full`, checked to have this shape, into `self.converted`; `turned` makes `[in, out]` into
    /// `[out, in]`.
    fn convert(&mut self, full: &str, shape: &[u32], turned: bool) -> Result<(), LoadError> {
        let count: usize = shape.iter().map(|&axis| axis as usize).product();
        let turned = turned.then(|| (shape[0] as usize, shape[1] as usize));
        let stored = self.checkpoint.tensor(full, shape)?;
        self.converted.resize(count * self.dtype.size(), 0);
        StoredTensor { data: &stored.data, dtype: stored.dtype, turned }.convert(
            self.dtype,
            self.threads,
            &mut self.converted,
        );
        self.checkpoint.release(full);
        let (done, total) = self.checkpoint.progress();
        (self.watch)(LoadEvent::Bytes { done, total });
        Ok(())
    }

    /// The tensor on the device, by its name behind one of the family's prefixes.
    fn tensor(&mut self, prefixes: &[&str], name: &str, shape: &[u32]) -> Result<Span, LoadError> {
        let full = self.checkpoint.full_name(prefixes, name)?;
        self.convert(&full, shape, false)?;
        let span = self.room(self.converted.len(), 1)?;
        self.stream.upload(span, &self.converted).map_err(backend)?;
        Ok(span)
    }

    fn named(&mut self, name: &str, shape: &[u32]) -> Result<Span, LoadError> {
        self.tensor(self.model.names.prefixes, name, shape)
    }

    /// A vector in fp32, rounded to the compute dtype as its tensor would be.
    fn vector(&mut self, name: &str, width: u32) -> Result<Span, LoadError> {
        let full = self.checkpoint.full_name(self.model.names.prefixes, &format!("{name}.weight"))?;
        self.convert(&full, &[width], false)?;
        let mut values = vec![0; 4 * width as usize];
        StoredTensor { data: &self.converted, dtype: stored_as(self.dtype), turned: None }.convert(
            CudaDtype::F32,
            1,
            &mut values,
        );
        let span = self.room(width as usize, 4)?;
        self.stream.upload(span, &values).map_err(backend)?;
        Ok(span)
    }

    fn norm(&mut self, name: &str) -> Result<Norm, LoadError> {
        let hidden = self.model.hidden;
        if self.model.norm.kind != NormKind::Layer {
            return Ok(Norm::Rms(self.vector(name, hidden)?));
        }
        let weight = self.named(&format!("{name}.weight"), &[hidden])?;
        Ok(Norm::Layer { weight, bias: self.named(&format!("{name}.bias"), &[hidden])? })
    }

    /// The norm of a layer, if there is one.
    fn layer_norm(&mut self, layer: usize, part: &str, is_there: bool) -> Result<Option<Norm>, LoadError> {
        let name = self.model.names.in_layer(layer, part);
        is_there.then(|| self.norm(&name)).transpose()
    }

    /// A product whose rows are `parts` one after another, each a tensor of its own or all in one.
    fn linear(
        &mut self,
        source: &Source,
        parts: &[u32],
        inputs: u32,
        has_bias: bool,
    ) -> Result<Linear, LoadError> {
        let (outputs, size) = (parts.iter().sum::<u32>(), self.dtype.size());
        let whole = [outputs];
        let parts = if source.names.len() == 1 { &whole[..] } else { parts };
        let weight = self.room(outputs as usize * inputs as usize, size)?;
        let bias = has_bias.then(|| self.room(outputs as usize, size)).transpose()?;
        let mut first = 0;
        for (name, &rows) in source.names.iter().zip(parts) {
            let prefixes = self.model.names.prefixes;
            let full = self.checkpoint.full_name(prefixes, &format!("{name}.weight"))?;
            let turned = source.layout == Layout::InOut;
            self.convert(&full, &if turned { [inputs, rows] } else { [rows, inputs] }, turned)?;
            let to = weight.part(first * inputs as usize * size, self.converted.len());
            self.stream.upload(to, &self.converted).map_err(backend)?;
            if let Some(bias) = bias {
                let full = self.checkpoint.full_name(prefixes, &format!("{name}.bias"))?;
                self.convert(&full, &[rows], false)?;
                let to = bias.part(first * size, self.converted.len());
                self.stream.upload(to, &self.converted).map_err(backend)?;
            }
            first += rows as usize;
        }
        Ok(Linear { weight, bias, inputs, outputs })
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
            let vector = |widths: [u32; 2]| -> Result<(Span, u32), LoadError> {
                let span = reader.vector(&names.in_layer(layer, part), widths[at])?;
                Ok((span, widths[at]))
            };
            norm_widths.map(vector).transpose()
        };
        let (before, after) = (model.norm_places.before(), model.norm_places.after());
        let up_rows = vec![mlp.inner; if mlp.gated { 2 } else { 1 }];
        let source = |parts: &[&str]| names.linear(layer, parts);
        Ok(Layer {
            attention_norm: self.layer_norm(layer, names.attention_norm, before)?,
            qkv: self.linear(
                &source(names.qkv),
                &[q_width, kv_width, kv_width],
                hidden,
                attention.qkv_bias,
            )?,
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
    fn angles(&mut self, max_context: u32) -> Result<Vec<Angles>, LoadError> {
        let Position::Rotary(rotaries) = &self.model.position else { return Ok(Vec::new()) };
        let mut tables = Vec::with_capacity(rotaries.len());
        for rotary in rotaries {
            let frequencies = rotary.frequencies(max_context);
            let dim = 2 * frequencies.inverse.len() as u32;
            let mut values = Vec::with_capacity(max_context as usize * dim as usize * 4);
            for position in 0..max_context {
                for inverse in &frequencies.inverse {
                    let (sine, cosine) = (position as f32 * inverse).sin_cos();
                    values.extend((cosine * frequencies.attention_factor).to_le_bytes());
                    values.extend((sine * frequencies.attention_factor).to_le_bytes());
                }
            }
            let table = self.room(values.len(), 1)?;
            self.stream.upload(table, &values).map_err(backend)?;
            tables.push(Angles { table, dim });
        }
        Ok(tables)
    }
}

impl Weights {
    /// Reads everything; the files are unmapped when this returns.
    pub(super) fn read(
        folder: &Path,
        shape: &Shape,
        stream: &Stream,
        options: &CudaOptions,
        watch: &mut dyn FnMut(LoadEvent<'_>),
    ) -> Result<Weights, LoadError> {
        let model = &shape.model;
        let mut reader = Reader {
            checkpoint: Checkpoint::open(folder, None, options.load_threads)?,
            model,
            stream,
            dtype: options.dtype,
            threads: options.load_threads as usize,
            watch,
            converted: Vec::new(),
            bytes: 0,
        };
        let (names, table) = (&model.names, [model.vocab, model.hidden]);
        let weight = |name: &str| format!("{name}.weight");
        let [embedding, head] = reader.checkpoint.embedding_and_head(model)?;
        let token_embedding = reader.tensor(&[""], &embedding, &table)?;
        let position_embedding = match model.position {
            Position::Rotary(_) => None,
            Position::Learned { count } => {
                Some((reader.named(&weight(names.position_embedding), &[count, model.hidden])?, count))
            }
        };
        let angles = reader.angles(shape.max_context)?;
        let layers = (0..model.layers.len()).map(|layer| reader.layer(layer)).collect::<Result<_, _>>()?;
        let norm_final = reader.norm(names.final_norm)?;
        let head = match head == embedding {
            true => token_embedding,
            false => reader.tensor(&[""], &head, &table)?,
        };
        let head_name = weight(names.head);
        reader.checkpoint.tell_unused(|name| model.head.tied && name.ends_with(&head_name), reader.watch)?;
        let bytes = reader.bytes;
        Ok(Weights { token_embedding, position_embedding, angles, layers, norm_final, head, bytes })
    }
}
