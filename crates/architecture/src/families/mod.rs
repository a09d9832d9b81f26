//! One file for each family: how its config.json and tensor names become an [`Architecture`](crate::Architecture).

mod gemma;
mod gpt2;
mod granite;
mod llama;
mod mistral;
mod olmo2;
mod phi3;
mod qwen;
mod smollm3;

use crate::Architecture;
use crate::reader::Reader;

/// A family as its `model_type` names it.
#[derive(Debug)]
pub struct Family {
    /// The `model_type`.
    pub name: &'static str,
    /// Values of `model_type` of multimodal models whose `text_config` is of this family.
    pub wrappers: &'static [&'static str],
    /// Values of the class for keys that a `text_config` may lack. Of a nested config transformers writes only what
    /// differs from its class; of a whole one it writes these keys always, so that a file without them is damaged.
    pub(crate) nested: &'static [(&'static str, u32)],
    pub(crate) read: fn(&mut Reader<'_>) -> Architecture,
}

const fn family(name: &'static str, read: fn(&mut Reader<'_>) -> Architecture) -> Family {
    Family { name, wrappers: &[], nested: &[], read }
}

/// Every family that is served.
pub const FAMILIES: &[Family] = &[
    family("gpt2", gpt2::read),
    family("llama", llama::read),
    Family { name: "mistral", wrappers: &["mistral3"], nested: mistral::DEFAULTS, read: mistral::read },
    family("qwen2", qwen::read_qwen2),
    family("qwen3", qwen::read_qwen3),
    family("smollm3", smollm3::read),
    family("phi3", phi3::read),
    family("granite", granite::read),
    family("olmo2", olmo2::read),
    family("gemma2", gemma::read_gemma2),
    Family {
        name: "gemma3_text",
        wrappers: &["gemma3"],
        nested: gemma::DEFAULTS_OF_GEMMA3,
        read: gemma::read_gemma3,
    },
];
