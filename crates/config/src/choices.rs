//! What an operator chooses among: one enum for each.

use serde::{Deserialize, Serialize};

/// The backend that computes the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backend {
    /// Pinion's own kernels: on the CPU beside libtorch's, on a GPU the CUDA object. Older recordings call it `Torch`.
    #[serde(alias = "Torch")]
    Native,
    /// libtorch's operators alone, on the CPU or a GPU.
    Operators,
    /// Deterministic tokens from a hash, with a programmable step time and no libtorch.
    Fake,
}

impl Backend {
    /// Its name on the command line and in paths.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Native => "native",
            Backend::Operators => "torch",
            Backend::Fake => "fake",
        }
    }

    /// The one of this name.
    pub(crate) fn of(name: Option<&str>) -> Option<Backend> {
        [Backend::Native, Backend::Operators, Backend::Fake].into_iter().find(|own| Some(own.name()) == name)
    }
}

/// How prompt chunks attend on a GPU, and with libtorch's operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PrefillAttention {
    /// On tensor cores, or by libtorch's scaled_dot_product_attention, where these take the model.
    #[default]
    Auto,
    /// By libtorch's scaled_dot_product_attention.
    Sdpa,
    /// As single tokens do.
    Plain,
}

impl PrefillAttention {
    pub(crate) fn of(name: Option<&str>) -> PrefillAttention {
        match name {
            Some("sdpa") => PrefillAttention::Sdpa,
            Some("plain") => PrefillAttention::Plain,
            _ => PrefillAttention::Auto,
        }
    }
}

/// Type of weights, activations and KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dtype {
    /// 32-bit floating point.
    Fp32,
    /// bfloat16.
    Bf16,
    /// IEEE half precision, on GPUs.
    Fp16,
}

impl Dtype {
    /// Bytes of one number.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::Fp32 => 4,
            Dtype::Bf16 | Dtype::Fp16 => 2,
        }
    }
}

/// What the data edges between the roles are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ipc {
    /// Rings in shared memory.
    Ring,
    /// `ipc-channel`, as control of the ablation.
    Channel,
}

/// How the model's linear layers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinearKind {
    /// `Packed` where that is quicker than `OneDnn`, which only the engine can tell: it reads the weights.
    Auto,
    /// Our own products, weights packed at load in the file's type.
    Packed,
    /// libtorch's, weights reordered for the CPU's matrix units once at load.
    OneDnn,
    /// libtorch's, weights as they stand in the file.
    Plain,
}

impl LinearKind {
    /// The kind of this spelling.
    pub fn of(text: &str) -> Option<LinearKind> {
        Some(match text {
            "auto" => LinearKind::Auto,
            "packed" => LinearKind::Packed,
            "onednn" => LinearKind::OneDnn,
            "plain" => LinearKind::Plain,
            _ => return None,
        })
    }
}

/// Whether the model's weights are integers in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Quantization {
    /// None are.
    None,
    /// 8 bits, a scale for each output.
    Int8,
    /// 4 bits in groups, the head in 8 bits.
    Int4,
    /// Those of a quantised checkpoint, where a form of ours holds them exactly.
    Checkpoint,
}

impl Quantization {
    /// As the option spells it.
    pub fn name(self) -> &'static str {
        match self {
            Quantization::None => "none",
            Quantization::Int8 => "int8",
            Quantization::Int4 => "int4",
            Quantization::Checkpoint => "checkpoint",
        }
    }
}

/// What K and V are in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvDtype {
    /// Numbers of the activations' type.
    #[default]
    Auto,
    /// 8 bits, and a scale for each row: a head's K or V of one token.
    Int8,
}

impl KvDtype {
    /// As the option spells it.
    pub fn of(word: &str) -> Option<KvDtype> {
        Some(match word {
            "auto" => KvDtype::Auto,
            "int8" => KvDtype::Int8,
            _ => return None,
        })
    }

    /// Bytes of a row of `head_dim` numbers, beside activations of `dtype`.
    pub fn row_bytes(self, dtype: Dtype, head_dim: u64) -> u64 {
        match self {
            KvDtype::Auto => head_dim * dtype.bytes(),
            KvDtype::Int8 => head_dim.next_multiple_of(4) + 4,
        }
    }
}

/// Which attention kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttentionKind {
    /// The vectorised one.
    Vector,
    /// Its plain twin, for comparison.
    Twin,
}

/// How tool calls are found in what the model writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolCallParser {
    /// As the chat template shows, which frontends read.
    Auto,
    /// `<tool_call>{..}</tool_call>`.
    Hermes,
    /// A bare JSON object.
    Llama3Json,
    /// `[TOOL_CALLS]..`.
    Mistral,
    /// `<tool_call><function=..>`.
    Qwen3Coder,
    /// `[f(a=1)]`.
    Pythonic,
    /// They stay in the text.
    None,
}

impl ToolCallParser {
    pub(crate) fn of(name: Option<&str>) -> ToolCallParser {
        match name {
            Some("hermes") => ToolCallParser::Hermes,
            Some("llama3_json") => ToolCallParser::Llama3Json,
            Some("mistral") => ToolCallParser::Mistral,
            Some("qwen3_coder") => ToolCallParser::Qwen3Coder,
            Some("pythonic") => ToolCallParser::Pythonic,
            Some("none") => ToolCallParser::None,
            _ => ToolCallParser::Auto,
        }
    }
}

/// How a model's reasoning is told from its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReasoningParser {
    /// As the chat template shows, which frontends read.
    Auto,
    /// It stands between `<think>` and `</think>`.
    Think,
    /// It stays in the text.
    None,
}

impl ReasoningParser {
    pub(crate) fn of(name: Option<&str>) -> ReasoningParser {
        match name {
            Some("think") => ReasoningParser::Think,
            Some("none") => ReasoningParser::None,
            _ => ReasoningParser::Auto,
        }
    }
}
