//! Names of tensors in a checkpoint. A family says how its names differ from the common ones.

/// How a weight is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `[out, in]`, as `torch.nn.Linear`.
    OutIn,
    /// `[in, out]`, as transformers' `Conv1D`.
    InOut,
}

/// Names of one family. Those of a layer stand behind `{layers}.{index}.`; none has `.weight` or `.bias`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names {
    /// Tried in this order before every name but the head's.
    pub prefixes: &'static [&'static str],
    /// Tried in this order before the head's name.
    pub head_prefixes: &'static [&'static str],
    /// Layout of every linear's weight.
    pub layout: Layout,
    /// `[vocab, hidden]`.
    pub token_embedding: &'static str,
    /// `[positions, hidden]`, where positions are learned.
    pub position_embedding: &'static str,
    /// The list of layers.
    pub layers: &'static str,
    /// Norm on what goes into attention.
    pub attention_norm: &'static str,
    /// Queries, keys, values: one tensor, or three whose rows follow each other.
    pub qkv: &'static [&'static str],
    /// Norm on queries.
    pub q_norm: &'static str,
    /// Norm on keys.
    pub k_norm: &'static str,
    /// Attention's output projection.
    pub out: &'static str,
    /// Norm on what attention gives.
    pub attention_post_norm: &'static str,
    /// Norm on what goes into the MLP.
    pub mlp_norm: &'static str,
    /// The MLP's first product; the gate's rows before the others where it is gated.
    pub up: &'static [&'static str],
    /// The MLP's last product.
    pub down: &'static str,
    /// Norm on what the MLP gives.
    pub mlp_post_norm: &'static str,
    /// The last norm.
    pub final_norm: &'static str,
    /// The head, where it is not tied.
    pub head: &'static str,
}

/// Tensors whose rows follow each other in one weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Their names, without prefix and without `.weight` or `.bias`.
    pub names: Vec<String>,
    /// How each is stored.
    pub layout: Layout,
}

impl Names {
    /// The names of most families.
    pub(crate) const COMMON: Names = Names {
        prefixes: &["model.", ""],
        head_prefixes: &[""],
        layout: Layout::OutIn,
        token_embedding: "embed_tokens",
        position_embedding: "",
        layers: "layers",
        attention_norm: "input_layernorm",
        qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        q_norm: "self_attn.q_norm",
        k_norm: "self_attn.k_norm",
        out: "self_attn.o_proj",
        attention_post_norm: "",
        mlp_norm: "post_attention_layernorm",
        up: &["mlp.gate_proj", "mlp.up_proj"],
        down: "mlp.down_proj",
        mlp_post_norm: "",
        final_norm: "norm",
        head: "lm_head",
    };

    /// A tensor's name in a layer.
    pub fn in_layer(&self, layer: usize, part: &str) -> String {
        format!("{}.{layer}.{part}", self.layers)
    }

    /// The tensors of one product in a layer.
    pub fn linear(&self, layer: usize, parts: &[&str]) -> Source {
        let names = parts.iter().map(|part| self.in_layer(layer, part)).collect();
        Source { names, layout: self.layout }
    }
}
