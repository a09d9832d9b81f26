//! GPT-2: the 124 M shape, and a small one with a token for each byte.

use super::folder::{Model, Tokenizer};
use super::tokenizer::END_OF_TEXT;
use super::weights::{Fill, Filling, INITIALIZER_RANGE, Plan};
use serde_json::{Value, json};

/// What decides the shapes of all tensors.
struct Shape {
    layers: usize,
    width: usize,
    heads: usize,
    positions: usize,
    vocabulary: usize,
}

impl Shape {
    const GPT2: Self = Self { layers: 12, width: 768, heads: 12, positions: 1024, vocabulary: 50257 };
    /// Heads of 64 as GPT-2 has them, and a token for each byte.
    const TINY: Self = Self { layers: 2, width: 128, heads: 2, positions: 512, vocabulary: 257 };

    /// The last id, as in GPT-2.
    fn end_of_text(&self) -> usize {
        self.vocabulary - 1
    }
}

/// The model of this size.
pub(super) fn model(size: &str, filling: Filling) -> Option<Model> {
    let (shape, tokenizer) = match size {
        "124m" => (Shape::GPT2, Tokenizer::Gpt2),
        "tiny" => (Shape::TINY, Tokenizer::Bytes),
        _ => return None,
    };
    let end = shape.end_of_text();
    Some(Model {
        config: config(&shape, filling.dtype.config_name()),
        generation: json!({"bos_token_id": end, "eos_token_id": end}),
        tokenizer_config: tokenizer_config(&shape),
        tokenizer,
        plan: layout(&shape, filling.deviation),
    })
}

/// The keys of the published `gpt2` folder that a loader looks at.
fn config(shape: &Shape, dtype: &str) -> Value {
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_layer": shape.layers,
        "n_embd": shape.width,
        "n_head": shape.heads,
        "n_inner": null,
        "n_positions": shape.positions,
        "n_ctx": shape.positions,
        "vocab_size": shape.vocabulary,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": INITIALIZER_RANGE,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "resid_pdrop": 0.1,
        "tie_word_embeddings": true,
        "bos_token_id": shape.end_of_text(),
        "eos_token_id": shape.end_of_text(),
        "torch_dtype": dtype,
    })
}

fn tokenizer_config(shape: &Shape) -> Value {
    json!({
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": false,
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "unk_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": false,
        "model_max_length": shape.positions,
    })
}

/// Names, shapes and fills as in the published `gpt2` folder (no `transformer.` prefix, tied output layer not
/// stored). Linear weights are `[inputs, outputs]` there: GPT-2's Conv1D is transposed against nn.Linear.
/// Fills follow transformers, GPT2PreTrainedModel._init_weights: residual projections get a smaller deviation than the
/// other linears, for which it is `deviation`.
fn layout(shape: &Shape, deviation: f32) -> Plan {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpt2_has_its_published_size() {
        let layout = layout(&Shape::GPT2, INITIALIZER_RANGE);
        let count: usize = layout.iter().map(|(_, dims, _)| dims.iter().product::<usize>()).sum();
        assert_eq!((layout.len(), count), (148, 124_439_808));
    }
}
