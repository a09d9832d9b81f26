//! A decoder's weights on libtorch, from a Hugging Face folder: fused, converted and packed once, tensor by tensor.

mod embeddings;
mod kept;
mod packed;
mod tensors;

use crate::checkpoint::Checkpoint;
use crate::load::{LoadError, LoadEvent, ModelOptions};
use embeddings::Embeddings;
use pinion_architecture::{Activation, Architecture, Layout, NormKind, QkNorm, Source};
use pinion_ops::linear::{Layout as Dense, Linear};
use pinion_ops::packed::PackedWeights;
use pinion_ops::product::{Product, QuantizedLinear};
use pinion_ops::quantized::{IntegerLaunch, QuantizedWeights, Source as Stored, SourceType, WeightForm};
use pinion_ops::tensor::{TensorError, copy_to_f32, kind_of, tensor_from_bytes};
use pinion_ops::{Activation as Fused, Dtype, IntegerLevel, LinearKind, Quantization};
use safetensors::Dtype as StoredDtype;
use std::path::Path;
use tch::{Kind, Tensor};
use tensors::Tensors;

/// The weights of one norm, in fp32 whatever the activations are.
#[derive(Debug)]
pub(crate) enum Norm {
    /// Scale and shift, \[width\] each.
    Layer { weight: Vec<f32>, bias: Vec<f32> },
    /// \[width\].
    Rms(Vec<f32>),
}

/// One layer. Norms that the architecture has not are `None`.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) attention_norm: Option<Norm>,
    /// \[hidden\] to Q, K, V side by side.
    pub(crate) qkv: Product,
    pub(crate) q_norm: Option<Vec<f32>>,
    pub(crate) k_norm: Option<Vec<f32>>,
    pub(crate) out: Product,
    pub(crate) attention_post_norm: Option<Norm>,
    pub(crate) mlp_norm: Option<Norm>,
    /// With the activation, or gate and up side by side without.
    pub(crate) up: Product,
    pub(crate) down: Product,
    pub(crate) mlp_post_norm: Option<Norm>,
}

impl Layer {
    fn linears(&mut self) -> [&mut Product; 4] {
        [&mut self.qkv, &mut self.out, &mut self.up, &mut self.down]
    }
}

/// Pads every GEMM to the batch-invariant number of rows where that is cheap. One layer is probed for all, since their
/// shapes are the same.
fn settle_rows(layers: &mut [Layer], head: Option<&mut Product>) -> Result<(), TensorError> {
    if let Some(head) = head
        && let Some(rows) = head.find_fewest_rows()?
    {
        head.set_fewest_rows(rows);
    }
    let Some(first) = layers.first_mut() else { return Ok(()) };
    let mut found = [None; 4];
    for (rows, linear) in found.iter_mut().zip(first.linears()) {
        *rows = linear.find_fewest_rows()?;
    }
    for (rows, linear) in layers.iter_mut().flat_map(|layer| found.into_iter().zip(layer.linears())) {
        if let Some(rows) = rows {
            linear.set_fewest_rows(rows);
        }
    }
    Ok(())
}

/// All weights.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(crate) embeddings: Embeddings,
    pub(crate) layers: Vec<Layer>,
    pub(crate) final_norm: Norm,
    /// \[hidden\] to \[vocab\], no bias. A model that pools has none.
    pub(crate) head: Option<Product>,
    /// Bytes held, the head counted on its own even when tied: it is packed apart from the embedding.
    pub(crate) bytes: u64,
}

struct Reader<'a> {
    tensors: Tensors<'a>,
    model: &'a Architecture,
    kind: Kind,
    options: &'a ModelOptions,
    /// Products are packed by us.
    packs: bool,
    bytes: u64,
}

fn source_type(dtype: StoredDtype) -> SourceType {
    match dtype {
        StoredDtype::F16 => SourceType::F16,
        StoredDtype::BF16 => SourceType::Bf16,
        _ => SourceType::F32,
    }
}

fn backend(error: TensorError) -> LoadError {
    LoadError::Backend { operation: error.operation, message: error.message }
}

fn tensor_error(error: tch::TchError) -> LoadError {
    backend(error.into())
}

impl Reader<'_> {
    /// A tensor of this name behind one of the family's prefixes, in the compute dtype (a copy either way).
    fn tensor(&mut self, name: &str, shape: &[u32]) -> Result<Tensor, LoadError> {
        let full = self.tensors.full_name(name)?;
        self.whole(&full, shape)
    }

    fn whole(&mut self, full: &str, shape: &[u32]) -> Result<Tensor, LoadError> {
        let kind = self.kind;
        self.whole_as(full, shape, |_| kind)
    }

    /// As [`Reader::whole`], in the kind that `choose` makes of the file's.
    fn whole_as(
        &mut self,
        full: &str,
        shape: &[u32],
        choose: impl FnOnce(Kind) -> Kind,
    ) -> Result<Tensor, LoadError> {
        let tensor = self.tensors.take(full, shape, |stored| {
            let kind = match source_type(stored.dtype) {
                SourceType::F16 => Kind::Half,
                SourceType::Bf16 => Kind::BFloat16,
                SourceType::F32 => Kind::Float,
            };
            let axes: Vec<i64> = shape.iter().map(|&axis| i64::from(axis)).collect();
            let tensor = tensor_from_bytes(&stored.data, &axes, kind).map_err(backend)?;
            tensor.f_to_kind(choose(kind)).map_err(tensor_error)
        })?;
        self.bytes += (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64;
        Ok(tensor)
    }

    /// A vector in fp32, rounded to the compute dtype as its tensor would be.
    fn vector(&mut self, name: &str, width: u32) -> Result<Vec<f32>, LoadError> {
        self.values(&format!("{name}.weight"), width)
    }

    /// The same of a tensor by its whole name behind a prefix.
    fn values(&mut self, name: &str, width: u32) -> Result<Vec<f32>, LoadError> {
        let tensor = self.tensor(name, &[width])?;
        let mut values = Vec::new();
        copy_to_f32(&tensor, &mut values).map_err(backend)?;
        Ok(values)
    }

    fn norm(&mut self, name: &str) -> Result<Norm, LoadError> {
        let hidden = self.model.hidden;
        if self.model.norm.kind != NormKind::Layer {
            return Ok(Norm::Rms(self.vector(name, hidden)?));
        }
        let weight = self.vector(name, hidden)?;
        Ok(Norm::Layer { weight, bias: self.values(&format!("{name}.bias"), hidden)? })
    }

    /// The norm of a layer, if there is one.
    fn layer_norm(&mut self, layer: usize, part: &str, is_there: bool) -> Result<Option<Norm>, LoadError> {
        let name = self.model.names.in_layer(layer, part);
        is_there.then(|| self.norm(&name)).transpose()
    }

    /// A product whose rows are `parts` one after another, each a tensor of its own or all in one.
    fn linear(
        &mut self,
        source: Source,
        parts: &[u32],
        inputs: u32,
        has_bias: bool,
        activation: Fused,
    ) -> Result<Product, LoadError> {
        let whole = [parts.iter().sum()];
        let parts = if source.names.len() == 1 { &whole[..] } else { parts };
        let threads = self.options.threads;
        let form = match self.options.quantization {
            Quantization::Int8 => Some(WeightForm::Int8),
            Quantization::Int4 => Some(WeightForm::int4(inputs as usize)),
            Quantization::Checkpoint | Quantization::None => None,
        };
        if let Some(form) = form {
            let mut weights = room(form, whole[0], inputs)?;
            let layout = source.layout;
            let bias = self.pack(&source, parts, has_bias, |tensors, full, first, rows| {
                quantise(tensors, full, &mut weights, first, rows, layout, threads)
            })?;
            return self.quantized(weights, bias, activation);
        }
        if self.options.quantization == Quantization::Checkpoint
            && let Some(form) = kept::form(&self.tensors, &source, parts, inputs)?
        {
            let mut weights = room(form, whole[0], inputs)?;
            let bias = self.pack(&source, parts, has_bias, |tensors, full, first, rows| {
                kept::pack(tensors, full, &mut weights, first, rows, threads)
            })?;
            return self.quantized(weights, bias, activation);
        }
        if !self.packs {
            return self.dense(source, parts, inputs, has_bias, activation);
        }
        let names =
            source.names.iter().map(|name| self.tensors.weight(name)).collect::<Result<Vec<_>, _>>()?;
        let mut weights = packed::room(&self.tensors, &names, self.kind, whole[0], inputs)?;
        let bias = self.pack(&source, parts, has_bias, |tensors, full, first, rows| {
            packed::pack(tensors, full, &mut weights, first, rows, source.layout, threads)
        })?;
        self.packed(weights, bias, activation)
    }

    /// Has `pack_part` pack the weight of each part, by its full name, its first output and its rows; gives the biases.
    fn pack(
        &mut self,
        source: &Source,
        parts: &[u32],
        has_bias: bool,
        mut pack_part: impl FnMut(&mut Tensors<'_>, &str, u32, u32) -> Result<(), LoadError>,
    ) -> Result<Option<Vec<f32>>, LoadError> {
        let (mut first, mut biases) = (0, Vec::new());
        for (name, &rows) in source.names.iter().zip(parts) {
            let full = self.tensors.weight(name)?;
            pack_part(&mut self.tensors, &full, first, rows)?;
            first += rows;
            if has_bias {
                biases.extend(self.values(&format!("{name}.bias"), rows)?);
            }
        }
        Ok(has_bias.then_some(biases))
    }

    fn quantized(
        &mut self,
        weights: QuantizedWeights,
        bias: Option<Vec<f32>>,
        activation: Fused,
    ) -> Result<Product, LoadError> {
        self.bytes += weights.bytes();
        let launch = IntegerLaunch { level: IntegerLevel::best(), threads: self.options.threads };
        QuantizedLinear::new(weights, bias, activation, launch).map(Product::Quantized).map_err(backend)
    }

    fn packed(
        &mut self,
        weights: PackedWeights,
        bias: Option<Vec<f32>>,
        activation: Fused,
    ) -> Result<Product, LoadError> {
        self.bytes += weights.packed().len() as u64;
        packed::product(weights, bias, activation, self.options.threads)
    }

    /// A product of parts in the compute dtype.
    fn dense(
        &mut self,
        source: Source,
        parts: &[u32],
        inputs: u32,
        has_bias: bool,
        activation: Fused,
    ) -> Result<Product, LoadError> {
        let (mut weights, mut biases) = (Vec::new(), Vec::new());
        for (name, &rows) in source.names.iter().zip(parts) {
            let shape = match source.layout {
                Layout::OutIn => [rows, inputs],
                Layout::InOut => [inputs, rows],
            };
            let weight = self.tensor(&format!("{name}.weight"), &shape)?;
            weights.push(match source.layout {
                Layout::OutIn => weight,
                // [in, out] -> [out, in]
                Layout::InOut => weight.f_transpose(0, 1).map_err(tensor_error)?,
            });
            if has_bias {
                biases.push(self.tensor(&format!("{name}.bias"), &[rows])?);
            }
        }
        // [out of all parts, in]
        let weight = joined(weights)?;
        let bias = if has_bias { Some(joined(biases)?) } else { None };
        self.on_libtorch(&weight, bias.as_ref(), activation)
    }

    fn on_libtorch(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        activation: Fused,
    ) -> Result<Product, LoadError> {
        let layout = if self.options.linear == LinearKind::Plain { Dense::Plain } else { Dense::OneDnn };
        Linear::new(weight, bias, activation, layout).map(Product::Dense).map_err(backend)
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
        let (before, after) = (model.norm_places.before(), model.norm_places.after());
        let (up_rows, activation) = match (mlp.gated, mlp.activation) {
            (true, _) => (vec![mlp.inner; 2], Fused::None),
            (false, Activation::GeluErf) => (vec![mlp.inner], Fused::GeluErf),
            (false, Activation::GeluTanh) => (vec![mlp.inner], Fused::GeluTanh),
            (false, Activation::Silu) => {
                let reason = "an MLP without a gate has the activation silu, which is not supported".into();
                return Err(LoadError::Options { reason });
            }
        };
        let in_layer = |part: &str| names.in_layer(layer, part);
        let qk_norm = |reader: &mut Self, part: &str, at: usize| {
            norm_widths.map(|widths| reader.vector(&in_layer(part), widths[at])).transpose()
        };
        let qkv_rows = [q_width, kv_width, kv_width];
        let linear = |parts: &[&str]| names.linear(layer, parts);
        Ok(Layer {
            attention_norm: self.layer_norm(layer, names.attention_norm, before)?,
            qkv: self.linear(linear(names.qkv), &qkv_rows, hidden, attention.qkv_bias, Fused::None)?,
            q_norm: qk_norm(self, names.q_norm, 0)?,
            k_norm: qk_norm(self, names.k_norm, 1)?,
            out: self.linear(linear(&[names.out]), &[hidden], q_width, attention.out_bias, Fused::None)?,
            attention_post_norm: self.layer_norm(layer, names.attention_post_norm, after)?,
            mlp_norm: self.layer_norm(layer, names.mlp_norm, before)?,
            up: self.linear(linear(names.up), &up_rows, hidden, mlp.bias, activation)?,
            down: self.linear(linear(&[names.down]), &[hidden], mlp.inner, mlp.bias, Fused::None)?,
            mlp_post_norm: self.layer_norm(layer, names.mlp_post_norm, after)?,
        })
    }

    /// The head from the tensor of this full name, which may be that of the `shared` embeddings.
    fn head(&mut self, full: &str, shared: Option<&Tensor>) -> Result<Product, LoadError> {
        let model = self.model;
        let (rows, inputs, threads) = (model.vocab, model.hidden, self.options.threads);
        let kept = match self.options.quantization {
            Quantization::Checkpoint => self.tensors.exact_form(full, rows, inputs)?,
            _ => None,
        };
        if let Some(form) = kept {
            let mut weights = room(form, rows, inputs)?;
            kept::pack(&mut self.tensors, full, &mut weights, 0, rows, threads)?;
            return self.quantized(weights, None, Fused::None);
        }
        if matches!(self.options.quantization, Quantization::Int8 | Quantization::Int4) {
            // The head keeps 8 bits: its logits are compared with one another, and 4 bits there cost the most loss
            // (0012).
            let mut weights = room(WeightForm::Int8, rows, inputs)?;
            quantise(&mut self.tensors, full, &mut weights, 0, rows, Layout::OutIn, threads)?;
            return self.quantized(weights, None, Fused::None);
        }
        if self.packs {
            let names = [full.to_owned()];
            let mut weights = packed::room(&self.tensors, &names, self.kind, rows, inputs)?;
            packed::pack(&mut self.tensors, &names[0], &mut weights, 0, rows, Layout::OutIn, threads)?;
            return self.packed(weights, None, Fused::None);
        }
        if let Some(token_embedding) = shared {
            self.bytes += (token_embedding.numel() * self.kind.elt_size_in_bytes()) as u64;
            let weight = token_embedding.f_to_kind(self.kind).map_err(tensor_error)?;
            return self.on_libtorch(&weight, None, Fused::None);
        }
        let weight = self.whole(full, &[model.vocab, model.hidden])?;
        self.on_libtorch(&weight, None, Fused::None)
    }
}

/// Quantises a tensor of the checkpoint into the outputs from `first` on.
fn quantise(
    tensors: &mut Tensors<'_>,
    full: &str,
    weights: &mut QuantizedWeights,
    first: u32,
    rows: u32,
    layout: Layout,
    threads: u32,
) -> Result<(), LoadError> {
    let inputs = weights.inputs() as u32;
    let is_transposed = layout == Layout::InOut;
    let shape = if is_transposed { [inputs, rows] } else { [rows, inputs] };
    tensors.take(full, &shape, |stored| {
        let source_type = source_type(stored.dtype);
        let source = Stored { bytes: &stored.data, source_type, rows: rows as usize, is_transposed };
        weights.pack(first as usize, source, threads).map_err(|error| LoadError::Backend {
            operation: "quantising weights",
            message: format!("{full}: {error}"),
        })
    })
}

/// Memory for quantised weights.
fn room(form: WeightForm, outputs: u32, inputs: u32) -> Result<QuantizedWeights, LoadError> {
    QuantizedWeights::new(form, outputs as usize, inputs as usize).map_err(|error| LoadError::Backend {
        operation: "allocating quantised weights",
        message: format!("{error} ({outputs} outputs of {inputs} inputs)"),
    })
}

/// One tensor of the rows of all.
fn joined(mut tensors: Vec<Tensor>) -> Result<Tensor, LoadError> {
    if tensors.len() == 1 {
        return Ok(tensors.remove(0));
    }
    Tensor::f_cat(&tensors, 0).map_err(tensor_error)
}

impl Weights {
    /// Reads, converts and packs everything; the files are unmapped when this returns.
    pub(crate) fn read(
        folder: &Path,
        model: &Architecture,
        dtype: Dtype,
        options: &ModelOptions,
        watch: &mut dyn FnMut(LoadEvent<'_>),
    ) -> Result<Self, LoadError> {
        let checkpoint = Checkpoint::open(folder, model.packed, options.threads)?;
        let (kind, packs) = (kind_of(dtype), packed::packs(options, dtype, &checkpoint));
        let tensors = Tensors::new(checkpoint, model.names.prefixes, watch);
        let mut reader = Reader { tensors, model, kind, options, packs, bytes: 0 };
        let name = |part: &str| format!("{part}.weight");
        let pools = options.pooling.is_some();
        let (embedding, head) = if pools {
            (reader.tensors.weight(model.names.token_embedding)?, None)
        } else {
            let [embedding, head] = reader.tensors.embedding_and_head(model)?;
            (embedding, Some(head))
        };
        let is_shared = head.as_ref() == Some(&embedding);
        if model.head.tied
            && let Some(head) = head.as_ref().filter(|_| !is_shared)
        {
            let told = format!(
                "ties the head to the embeddings, but {head} has other numbers than they have, and is the head"
            );
            reader.tensors.tell_ignored(&[told]);
        }
        let embeddings = Embeddings::read(&mut reader, &embedding)?;
        let mut layers = Vec::with_capacity(model.layers.len());
        for layer in 0..model.layers.len() {
            layers.push(reader.layer(layer)?);
        }
        let final_norm = reader.norm(model.names.final_norm)?;
        let shared = is_shared.then(|| embeddings.tokens.tensor());
        let mut head = head.map(|head| reader.head(&head, shared)).transpose()?;
        let head_name = name(model.names.head);
        reader.tensors.end(|name| (model.head.tied || pools) && name.ends_with(&head_name))?;
        settle_rows(&mut layers, head.as_mut()).map_err(backend)?;
        let bytes = reader.bytes;
        Ok(Self { embeddings, layers, final_norm, head, bytes })
    }

    /// Whether our kernels do every product: a checkpoint may have layers, or a head, in other types than the rest.
    pub(crate) fn products_are_ours(&self) -> bool {
        let layers = self.layers.iter().flat_map(|layer| [&layer.qkv, &layer.out, &layer.up, &layer.down]);
        layers.chain(&self.head).all(|product| !matches!(product, Product::Dense(_)))
    }

    /// Type of the products' weights where they are packed by us.
    pub(crate) fn packed_type(&self) -> Option<&'static str> {
        match self.head.as_ref().or_else(|| self.layers.first().map(|layer| &layer.down))? {
            Product::Packed(linear) => Some(linear.weight_type().name()),
            Product::Dense(_) | Product::Quantized(_) => None,
        }
    }
}
