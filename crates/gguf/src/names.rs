//! From the names of tensors in a file to those of Hugging Face's checkpoints.

/// What a tensor of a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its name in a checkpoint.
    pub name: String,
    /// Heads whose rows stand in llama.cpp's order, which rotates neighbours and not halves.
    pub turned: Turned,
}

/// Which heads' rows are turned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// None.
    No,
    /// Those of queries.
    Queries,
    /// Those of keys.
    Keys,
}

/// Parts of a layer: the file's name and the checkpoint's.
const LAYER: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The place of a tensor of a file of this architecture, if it has one.
pub fn place(architecture: &str, name: &str) -> Option<Place> {
    let whole = |name: &str| Some(Place { name: name.to_owned(), turned: Turned::No });
    match name {
        "token_embd.weight" => return whole("model.embed_tokens.weight"),
        "output_norm.weight" => return whole("model.norm.weight"),
        "output.weight" => return whole("lm_head.weight"),
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let (part, end) = rest.rsplit_once('.').filter(|(_, end)| matches!(*end, "weight" | "bias"))?;
    let layer: u32 = layer.parse().ok()?;
    let (_, target) = LAYER.iter().find(|(known, _)| *known == part)?;
    let turned = match (architecture, part) {
        ("llama", "attn_q") => Turned::Queries,
        ("llama", "attn_k") => Turned::Keys,
        _ => Turned::No,
    };
    Some(Place { name: format!("model.layers.{layer}.{target}.{end}"), turned })
}
