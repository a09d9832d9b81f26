//! Llama, SmolLM2, Qwen3 and Gemma 3: their published shapes, configurations and special tokens.

use serde_json::{Map, Value, json};

use super::folder::{Model, Tokenizer};
use super::vocabulary::{Vocabulary, numbered};
use super::weights::{Fill, Filling, INITIALIZER_RANGE, Plan};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Family {
    Llama,
    SmolLm2,
    Qwen3,
    Gemma3,
}

/// What decides the shapes of all tensors.
struct Shape {
    layers: usize,
    hidden: usize,
    intermediate: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Rows of the embedding; the tokenizer may have fewer tokens.
    rows: usize,
    /// Ordinary tokens.
    ordinary: usize,
    positions: usize,
}

impl Shape {
    #[rustfmt::skip]
    fn of(family: Family, size: &str) -> Option<Shape> {
        let numbers = match (family, size) {
            (Family::Llama, "1b") => [16, 2048, 8192, 32, 8, 64, 128_256, 128_000, 131_072],
            (Family::Llama, "tiny") => [2, 96, 256, 6, 2, 16, 1280, 1024, 16_384],
            (Family::SmolLm2, "135m") => [30, 576, 1536, 9, 3, 64, 49_152, 49_135, 8192],
            (Family::SmolLm2, "tiny") => [2, 96, 256, 3, 1, 32, 1024, 1007, 512],
            (Family::Qwen3, "0.6b") => [28, 1024, 3072, 16, 8, 128, 151_936, 151_643, 40_960],
            (Family::Qwen3, "tiny") => [2, 96, 256, 4, 2, 32, 1088, 1024, 512],
            (Family::Gemma3, "270m") => [18, 640, 2048, 4, 1, 256, 262_144, 199_998, 32_768],
            (Family::Gemma3, "tiny") => [6, 96, 256, 4, 1, 32, 1280, 1024, 512],
            _ => return None,
        };
        let [layers, hidden, intermediate, heads, kv_heads, head_dim, rows, ordinary, positions] = numbers;
        Some(Shape { layers, hidden, intermediate, heads, kv_heads, head_dim, rows, ordinary, positions })
    }
}

/// The model of this size.
pub(super) fn model(family: Family, size: &str, filling: Filling) -> Option<Model> {
    let shape = Shape::of(family, size)?;
    let vocabulary = family.vocabulary(&shape);
    Some(Model {
        config: family.config(&shape, &vocabulary, filling.dtype.config_name()),
        generation: family.generation(&vocabulary),
        tokenizer_config: family.tokenizer_config(&shape),
        tokenizer: Tokenizer::Cut(vocabulary),
        plan: family.plan(&shape, filling.deviation),
    })
}

/// Sliding-window attention in all layers but each sixth.
const GEMMA_PATTERN: usize = 6;

const CHAT_ML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const LLAMA_CHAT: &str = "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}\
    <|end_header_id|>\n\n{{ message.content }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}\
    <|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}";
const GEMMA_CHAT: &str = "{{ bos_token }}{% for message in messages %}<start_of_turn>\
    {{ 'model' if message.role == 'assistant' else 'user' }}\n{{ message.content }}<end_of_turn>\n{% endfor %}\
    {% if add_generation_prompt %}<start_of_turn>model\n{% endif %}";

impl Family {
    fn vocabulary(self, shape: &Shape) -> Vocabulary {
        let names = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let ordinary = shape.ordinary;
        match self {
            Family::Llama => {
                let reserved = |number| format!("<|reserved_special_token_{number}|>");
                let mut last = names(
                    "<|begin_of_text|> <|end_of_text|> <|reserved_special_token_0|> <|reserved_special_token_1|> \
                     <|finetune_right_pad_id|> <|reserved_special_token_2|> <|start_header_id|> <|end_header_id|> \
                     <|eom_id|> <|eot_id|> <|python_tag|>",
                );
                last.extend(numbered(reserved, 3, 256 - last.len()));
                Vocabulary { first: Vec::new(), ordinary, last, bos: Some("<|begin_of_text|>") }
            }
            Family::SmolLm2 => {
                let first = names(
                    "<|endoftext|> <|im_start|> <|im_end|> <repo_name> <reponame> <file_sep> <filename> <gh_stars> \
                     <issue_start> <issue_comment> <issue_closed> <jupyter_start> <jupyter_text> <jupyter_code> \
                     <jupyter_output> <jupyter_script> <empty_output>",
                );
                Vocabulary { first, ordinary, last: Vec::new(), bos: None }
            }
            Family::Qwen3 => {
                let last = names(
                    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> \
                     <|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> \
                     <|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> \
                     <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> <think> </think>",
                );
                Vocabulary { first: Vec::new(), ordinary, last, bos: None }
            }
            Family::Gemma3 => {
                let unused = |number| format!("<unused{number}>");
                let mut first = names("<pad> <eos> <bos> <unk> <mask>");
                first.extend(numbered(unused, 0, 100));
                first.extend(names("<start_of_turn> <end_of_turn>"));
                // o200k is smaller than Gemma's own vocabulary: the rest has no text.
                let rest = shape.rows - first.len() - ordinary;
                Vocabulary {
                    first,
                    ordinary,
                    last: numbered(unused, 100, rest).collect(),
                    bos: Some("<bos>"),
                }
            }
        }
    }

    /// The ids that end a text, the most important one first.
    fn ends(self) -> &'static [&'static str] {
        match self {
            Family::Llama => &["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"],
            Family::SmolLm2 => &["<|im_end|>"],
            Family::Qwen3 => &["<|im_end|>", "<|endoftext|>"],
            Family::Gemma3 => &["<eos>", "<end_of_turn>"],
        }
    }

    /// The keys of the published config.json.
    fn config(self, shape: &Shape, vocabulary: &Vocabulary, dtype: &str) -> Value {
        let shared = json!({
            "attention_bias": false,
            "attention_dropout": 0.0,
            "hidden_size": shape.hidden,
            "initializer_range": INITIALIZER_RANGE,
            "intermediate_size": shape.intermediate,
            "max_position_embeddings": shape.positions,
            "num_attention_heads": shape.heads,
            "num_hidden_layers": shape.layers,
            "num_key_value_heads": shape.kv_heads,
            "torch_dtype": dtype,
            "use_cache": true,
            "vocab_size": shape.rows,
        });
        let id = |token: &str| vocabulary.id(token);
        let ends: Vec<usize> = self.ends().iter().map(|token| id(token)).collect();
        let own = match self {
            Family::Llama => json!({
                "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
                "bos_token_id": id("<|begin_of_text|>"), "eos_token_id": ends, "head_dim": shape.head_dim,
                "mlp_bias": false, "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
                "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                                 "original_max_position_embeddings": 8192.min(shape.positions / 16), "rope_type": "llama3"},
                "tie_word_embeddings": true,
            }),
            Family::SmolLm2 => json!({
                "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
                "bos_token_id": id("<|im_start|>"), "eos_token_id": ends[0], "pad_token_id": ends[0],
                "initializer_range": 1.0 / 24.0, "is_llama_config": true, "mlp_bias": false, "pretraining_tp": 1,
                "rms_norm_eps": 1e-5, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100_000,
                "tie_word_embeddings": true,
            }),
            Family::Qwen3 => json!({
                "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
                "bos_token_id": id("<|endoftext|>"), "eos_token_id": ends[0], "head_dim": shape.head_dim,
                "max_window_layers": shape.layers, "rms_norm_eps": 1e-6, "rope_scaling": null, "rope_theta": 1_000_000,
                "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false,
            }),
            Family::Gemma3 => {
                let kind = |layer: usize| match (layer + 1).is_multiple_of(GEMMA_PATTERN) {
                    true => "full_attention",
                    false => "sliding_attention",
                };
                json!({
                    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
                    "hidden_activation": "gelu_pytorch_tanh", "_sliding_window_pattern": GEMMA_PATTERN,
                    "attn_logit_softcapping": null, "bos_token_id": id("<bos>"), "eos_token_id": ends[0],
                    "final_logit_softcapping": null, "head_dim": shape.head_dim,
                    "layer_types": (0..shape.layers).map(kind).collect::<Vec<_>>(),
                    "pad_token_id": id("<pad>"), "query_pre_attn_scalar": shape.head_dim, "rms_norm_eps": 1e-6,
                    "rope_local_base_freq": 10_000.0, "rope_scaling": null, "rope_theta": 1_000_000.0,
                    "sliding_window": 512.min(shape.positions / 16), "use_bidirectional_attention": false,
                })
            }
        };
        let mut keys: Vec<(String, Value)> = Vec::new();
        for part in [shared, own] {
            let Value::Object(part) = part else { continue };
            keys.extend(part);
        }
        // A key of the family goes before the shared one of its name.
        keys.reverse();
        keys.sort_by(|a, b| a.0.cmp(&b.0));
        keys.dedup_by(|later, earlier| later.0 == earlier.0);
        Value::Object(keys.into_iter().collect::<Map<_, _>>())
    }

    fn generation(self, vocabulary: &Vocabulary) -> Value {
        let id = |token: &str| vocabulary.id(token);
        let ends: Vec<usize> = self.ends().iter().map(|token| id(token)).collect();
        match self {
            Family::Llama => json!({
                "bos_token_id": id("<|begin_of_text|>"), "do_sample": true, "eos_token_id": ends, "temperature": 0.6,
                "top_p": 0.9,
            }),
            Family::SmolLm2 => {
                json!({"bos_token_id": id("<|im_start|>"), "eos_token_id": ends[0], "pad_token_id": ends[0]})
            }
            Family::Qwen3 => json!({
                "bos_token_id": id("<|endoftext|>"), "do_sample": true, "eos_token_id": ends,
                "pad_token_id": id("<|endoftext|>"), "temperature": 0.6, "top_k": 20, "top_p": 0.95,
            }),
            Family::Gemma3 => json!({
                "bos_token_id": id("<bos>"), "do_sample": true, "eos_token_id": ends, "pad_token_id": id("<pad>"),
                "top_k": 64, "top_p": 0.95,
            }),
        }
    }

    fn tokenizer_config(self, shape: &Shape) -> Value {
        let (class, bos, end, pad, template) = match self {
            Family::Llama => (
                "PreTrainedTokenizerFast",
                Some("<|begin_of_text|>"),
                "<|eot_id|>",
                "<|finetune_right_pad_id|>",
                LLAMA_CHAT,
            ),
            Family::SmolLm2 => ("GPT2Tokenizer", Some("<|im_start|>"), "<|im_end|>", "<|im_end|>", CHAT_ML),
            Family::Qwen3 => ("PreTrainedTokenizerFast", None, "<|im_end|>", "<|endoftext|>", CHAT_ML),
            Family::Gemma3 => ("PreTrainedTokenizerFast", Some("<bos>"), "<eos>", "<pad>", GEMMA_CHAT),
        };
        json!({
            "tokenizer_class": class, "bos_token": bos, "eos_token": end, "pad_token": pad, "chat_template": template,
            "clean_up_tokenization_spaces": false, "model_max_length": shape.positions,
        })
    }

    /// Names and shapes as published; linears are `[outputs, inputs]`, the output layer is the embedding.
    fn plan(self, shape: &Shape, deviation: f32) -> Plan {
        let (hidden, queries, keys) =
            (shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let normal = Fill::Normal { deviation };
        // Gemma adds 1 to what stands in the file.
        let norm = Fill::Constant(if self == Family::Gemma3 { 0.0 } else { 1.0 });
        let mut plan = vec![(
            "model.embed_tokens.weight".to_owned(),
            vec![shape.rows, hidden],
            Fill::Normal { deviation: INITIALIZER_RANGE },
        )];
        for layer in 0..shape.layers {
            let mut parts = vec![
                ("input_layernorm", vec![hidden], norm),
                ("self_attn.q_proj", vec![queries, hidden], normal),
                ("self_attn.k_proj", vec![keys, hidden], normal),
                ("self_attn.v_proj", vec![keys, hidden], normal),
                ("self_attn.o_proj", vec![hidden, queries], normal),
                ("post_attention_layernorm", vec![hidden], norm),
                ("mlp.gate_proj", vec![shape.intermediate, hidden], normal),
                ("mlp.up_proj", vec![shape.intermediate, hidden], normal),
                ("mlp.down_proj", vec![hidden, shape.intermediate], normal),
            ];
            if matches!(self, Family::Qwen3 | Family::Gemma3) {
                parts.push(("self_attn.q_norm", vec![shape.head_dim], norm));
                parts.push(("self_attn.k_norm", vec![shape.head_dim], norm));
            }
            if self == Family::Gemma3 {
                parts.push(("pre_feedforward_layernorm", vec![hidden], norm));
                parts.push(("post_feedforward_layernorm", vec![hidden], norm));
            }
            let named = |(name, dims, fill)| (format!("model.layers.{layer}.{name}.weight"), dims, fill);
            plan.extend(parts.into_iter().map(named));
        }
        plan.push(("model.norm.weight".to_owned(), vec![hidden], norm));
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_shapes_have_their_numbers_of_parameters_and_ids() {
        for (family, size, parameters, token, id) in [
            (Family::Llama, "1b", 1_235_814_400, "<|eot_id|>", 128_009),
            (Family::SmolLm2, "135m", 134_515_008, "<|im_end|>", 2),
            (Family::Qwen3, "0.6b", 596_049_920, "</think>", 151_668),
            (Family::Gemma3, "270m", 268_098_176, "<end_of_turn>", 106),
        ] {
            let shape = Shape::of(family, size).unwrap();
            let count: usize =
                family.plan(&shape, 0.02).iter().map(|(_, dims, _)| dims.iter().product::<usize>()).sum();
            assert_eq!(count, parameters, "{family:?}");
            let vocabulary = family.vocabulary(&shape);
            assert_eq!(vocabulary.id(token), id, "{family:?}");
            assert!(vocabulary.size() <= shape.rows && vocabulary.size() + 300 > shape.rows, "{family:?}");
        }
    }

    #[test]
    fn a_config_has_the_familys_own_value_of_a_shared_key() {
        let shape = Shape::of(Family::SmolLm2, "135m").unwrap();
        let vocabulary = Family::SmolLm2.vocabulary(&shape);
        let config = Family::SmolLm2.config(&shape, &vocabulary, "bfloat16");
        assert_eq!(config["initializer_range"].as_f64(), Some(1.0 / 24.0));
        assert_eq!((config["eos_token_id"].as_u64(), config["head_dim"].as_u64()), (Some(2), None));
    }
}
