//! Metadata as the keys of a Hugging Face config.json.

use crate::value::{Texts, Value};
use crate::{BlockType, Error, Header};
use serde_json::{Value as Json, json};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// The tensor of Llama 3's rotations, which becomes a part of config.json.
pub const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Values of `general.architecture` that are read; each is the `model_type` of the same name.
pub const ARCHITECTURES: [&str; 3] = ["llama", "qwen2", "qwen3"];

/// Keys behind the architecture's name that are read here, or that change nothing. Any other may change what the model
/// computes, and is refused unless it is 0, false or empty.
const KNOWN: [&str; 24] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    // How llama.cpp pools; here --pooling says it.
    "pooling_type",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    // Whether the weights were trained with the scaling.
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    // How Meta's own files had their tensors.
    "tensor_data_layout",
    // The embeddings say it.
    "vocab_size",
    // As all models here.
    "attention.causal",
];

/// Keys of one architecture.
struct Keys<'a> {
    header: &'a Header,
    architecture: &'a str,
}

impl Keys<'_> {
    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn number(&self, key: &str) -> Result<Option<u32>, Error> {
        self.header.number(&self.full(key))
    }

    /// A count or a width, if the file says it.
    fn counted(&self, key: &str) -> Result<Option<u32>, Error> {
        match self.number(key)? {
            Some(0) => Err(Error(format!("has {} 0; expected at least 1", self.full(key)))),
            number => Ok(number),
        }
    }

    fn needed(&self, key: &str) -> Result<u32, Error> {
        self.counted(key)?.ok_or_else(|| Error(format!("has no {}", self.full(key))))
    }

    fn float(&self, key: &str) -> Result<Option<f64>, Error> {
        self.header.float(&self.full(key))
    }

    /// That no key says what is not known here.
    fn check_known(&self) -> Result<(), Error> {
        let prefix = format!("{}.", self.architecture);
        let unknown = self.header.keys().find(|key| {
            let is_nothing = match self.header.get(key) {
                None => true,
                Some(Value::Integer(number)) => *number == 0,
                Some(Value::Float(number)) => *number == 0.0,
                Some(Value::Flag(flag)) => !flag,
                Some(Value::Text(text)) => text.is_empty(),
                Some(_) => false,
            };
            key.strip_prefix(&prefix).is_some_and(|key| !KNOWN.contains(&key)) && !is_nothing
        });
        if let Some(key) = unknown {
            return Err(Error(format!("has {}, which is not supported", key.escape_debug())));
        }
        match self.header.flag(&self.full("attention.causal"))? {
            Some(false) => {
                Err(Error(format!("has {} false, which is not supported", self.full("attention.causal"))))
            }
            Some(true) | None => Ok(()),
        }
    }

    /// The width of a head, if the file says it.
    fn head_dim(&self) -> Result<Option<u32>, Error> {
        let widths = ["attention.key_length", "attention.value_length", "rope.dimension_count"];
        let mut found = None;
        for key in widths {
            match (found, self.counted(key)?) {
                (_, None) => {}
                (None, width) => found = width,
                (Some(first), Some(width)) if first == width => {}
                (Some(first), Some(width)) => {
                    let full = self.full(key);
                    let reason =
                        format!("has {full} {width} beside heads of {first}, which is not supported");
                    return Err(Error(reason));
                }
            }
        }
        Ok(found)
    }
}

/// The keys of config.json. Numbers are checked where they are read, as those of any config.json.
pub(crate) fn config(header: &Header, path: &Path) -> Result<Json, Error> {
    let architecture = architecture(header)?;
    let keys = Keys { header, architecture };
    keys.check_known()?;
    let embedding =
        header.tensor("token_embd.weight").ok_or_else(|| Error("has no token_embd.weight".into()))?;
    let heads = keys.needed("attention.head_count")?;
    let positions = keys.needed("context_length")?;
    let mut config = json!({
        "model_type": architecture,
        "hidden_size": keys.needed("embedding_length")?,
        "intermediate_size": keys.needed("feed_forward_length")?,
        "num_hidden_layers": keys.needed("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.counted("attention.head_count_kv")?.unwrap_or(heads),
        "max_position_embeddings": positions,
        "rms_norm_eps": keys.float("attention.layer_norm_rms_epsilon")?
            .ok_or_else(|| Error(format!("has no {}", keys.full("attention.layer_norm_rms_epsilon"))))?,
        "rope_theta": keys.float("rope.freq_base")?.unwrap_or(10_000.0),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": header.tensor("output.weight").is_none(),
        "attention_bias": architecture == "llama" && header.tensor("blk.0.attn_q.bias").is_some(),
        "mlp_bias": architecture == "llama" && header.tensor("blk.0.ffn_up.bias").is_some(),
        "eos_token_id": crate::tokenizer::ends(header)?,
        "bos_token_id": crate::tokenizer::begin(header)?,
    });
    let width = match keys.head_dim()? {
        // llama.cpp divides; a config.json without the key means the width that Qwen3's class has.
        None if architecture == "qwen3" => Some(keys.needed("embedding_length")? / heads),
        width => width,
    };
    if let Some(width) = width {
        config["head_dim"] = width.into();
    }
    if let Some(scaling) = scaling(&keys, path, positions)? {
        config["rope_scaling"] = scaling;
    }
    Ok(config)
}

/// The keys of generation_config.json: how the file wants its tokens drawn.
pub(crate) fn generation(header: &Header) -> Result<Json, Error> {
    let mut found = json!({});
    for (name, key) in [
        ("temperature", "general.sampling.temp"),
        ("top_p", "general.sampling.top_p"),
        ("min_p", "general.sampling.min_p"),
        ("repetition_penalty", "general.sampling.penalty_repeat"),
    ] {
        // As short as what was written: the file has 32 bits of it.
        if let Some(number) =
            header.float(key)?.and_then(|number| (number as f32).to_string().parse::<f64>().ok())
        {
            found[name] = number.into();
        }
    }
    // 0 and less keep every token.
    let keeps_all = |value: &Value| matches!(value, Value::Integer(number) if *number <= 0);
    if !header.get("general.sampling.top_k").is_some_and(keeps_all)
        && let Some(number) = header.number("general.sampling.top_k")?
    {
        found["top_k"] = number.into();
    }
    Ok(found)
}

/// The architecture, if it is read.
fn architecture(header: &Header) -> Result<&'static str, Error> {
    const KEY: &str = "general.architecture";
    let named = header.text(KEY)?.ok_or_else(|| Error(format!("has no {KEY}")))?;
    ARCHITECTURES.into_iter().find(|known| *known == named).ok_or_else(|| {
        let supported = ARCHITECTURES.join(", ");
        Error(format!("{KEY} {} is not supported; supported: {supported}", named.escape_debug()))
    })
}

/// How rotations are scaled.
fn scaling(keys: &Keys<'_>, path: &Path, positions: u32) -> Result<Option<Json>, Error> {
    let kind_key = keys.full("rope.scaling.type");
    // llama.cpp's default.
    let kind = keys.header.text(&kind_key)?.unwrap_or("linear");
    // A linear factor of 1 changes nothing.
    let factor = match keys.float("rope.scaling.factor")? {
        Some(factor) => Some(factor).filter(|factor| kind != "linear" || *factor != 1.0),
        None => keys.float("rope.scale_linear")?.filter(|factor| *factor != 1.0),
    };
    check_yarn(keys, factor.filter(|_| kind == "yarn"))?;
    let original = keys.number("rope.scaling.original_context_length")?;
    if keys.header.tensor("rope_factors_long.weight").is_some() {
        return Err(Error("has rope_factors_long.weight, which is not supported".into()));
    }
    let factors = keys.header.tensor(ROPE_FACTORS);
    match (kind, factor, factors) {
        ("none", _, None) | ("linear", None, None) => Ok(None),
        ("linear", Some(_), None) => Ok(Some(json!({"rope_type": "linear", "factor": factor}))),
        ("yarn", Some(factor), None) => {
            let mut scaling = json!({"rope_type": "yarn", "factor": factor,
                "original_max_position_embeddings": original.unwrap_or(positions)});
            for name in ["beta_fast", "beta_slow"] {
                if let Some(beta) = keys.float(&format!("rope.scaling.yarn_{name}"))? {
                    scaling[name] = beta.into();
                }
            }
            Ok(Some(scaling))
        }
        // Llama 3's rotation: each frequency is divided by a number of its own.
        ("none", _, Some(tensor)) | ("linear", None, Some(tensor)) => {
            let divisors = numbers(path, tensor)?;
            let width = match keys.head_dim()? {
                Some(width) => width,
                None => keys.needed("embedding_length")? / keys.needed("attention.head_count")?,
            };
            if divisors.len() != width as usize / 2 {
                let (count, pairs) = (divisors.len(), width / 2);
                return Err(Error(format!(
                    "tensor {ROPE_FACTORS} has {count} numbers; heads of {width} need {pairs}"
                )));
            }
            Ok(Some(json!({"rope_type": "longrope", "short_factor": divisors, "long_factor": divisors,
                "factor": 1.0, "attention_factor": 1.0, "original_max_position_embeddings": positions})))
        }
        ("linear" | "yarn", Some(_), Some(_)) => {
            Err(Error(format!("has {ROPE_FACTORS} beside {kind_key}, which is not supported")))
        }
        ("yarn", None, _) => Err(Error(format!("has no {} beside yarn", keys.full("rope.scaling.factor")))),
        (kind, _, _) => Err(Error(format!("{kind_key} {} is not supported", kind.escape_debug()))),
    }
}

/// That two keys of yarn, if they are there, say what holds without them. llama.cpp's converter writes the factor on
/// attention of config.json as it stands, and llama.cpp takes 1 + 0.1 ln(factor) in its place, whatever is written: the
/// two agree on one number.
fn check_yarn(keys: &Keys<'_>, factor: Option<f64>) -> Result<(), Error> {
    let own = factor.map(|factor| 1.0 + 0.1 * factor.max(1.0).ln());
    for (key, wanted) in [
        ("rope.scaling.yarn_attn_factor", own),
        // How much of the mix of frequencies is taken.
        ("rope.scaling.yarn_ext_factor", factor.map(|_| 1.0)),
    ] {
        let Some(found) = keys.float(key)? else { continue };
        let full = keys.full(key);
        match wanted {
            None => return Err(Error(format!("has {full} without yarn, which is not supported"))),
            Some(wanted) if (found - wanted).abs() > 1e-4 => {
                return Err(Error(format!("has {full} {found}; supported: {wanted:.6}")));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// The numbers of a small tensor.
fn numbers(path: &Path, tensor: &crate::Tensor) -> Result<Vec<f32>, Error> {
    const NUMBERS_MAX: usize = 1 << 12;
    let name = &tensor.name;
    if tensor.kind != BlockType::F32 || tensor.shape.len() != 1 || tensor.shape[0] > NUMBERS_MAX {
        return Err(Error(format!("tensor {name} is not a list of at most {NUMBERS_MAX} numbers of F32")));
    }
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        file.seek(SeekFrom::Start(tensor.range.start as u64))?;
        let mut bytes = vec![0; tensor.range.len()];
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| Error(format!("tensor {name} cannot be read: {error}")))?;
    let mut found = vec![0.0; tensor.shape[0]];
    tensor.kind.unpack(&bytes, &mut found);
    match found.iter().all(|number| number.is_finite()) {
        true => Ok(found),
        false => Err(Error(format!("tensor {name} has a number that is not finite"))),
    }
}

/// A list of texts that must be there.
pub(crate) fn texts<'a>(header: &'a Header, key: &str) -> Result<&'a Texts, Error> {
    match header.get(key) {
        Some(Value::Texts(texts)) => Ok(texts),
        Some(_) => Err(Error(format!("{key} is not a list of texts"))),
        None => Err(Error(format!("has no {key}"))),
    }
}
