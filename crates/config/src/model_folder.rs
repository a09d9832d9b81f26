//! Reads what the configuration needs from a Hugging Face folder or a GGUF file, and says what is wrong with it before
//! any process starts. Weights are not opened here; that is the engine's.

use crate::choices::{Backend, Dtype};
use crate::conversion;
use crate::fault::Collector;
use crate::generation::{Generation, all_stop_ids};
use crate::json_file::{io_reason, load, object, optional_object, origin};
use crate::model_facts::{ModelFacts, WindowFacts};
use pinion_architecture::Architecture;
use pinion_protocol::StopIds;
use pinion_protocol::limits::{CONTEXT_MAX, VOCAB_MAX};
use serde_json::{Map, Value};
use std::convert::Infallible;
use std::path::Path;

// The parser of config.json knows no sibling; its limits are those of the protocol.
const _: () =
    assert!(pinion_architecture::CONTEXT_MAX == CONTEXT_MAX && pinion_architecture::VOCAB_MAX == VOCAB_MAX);

/// Largest tokenizer.json, in bytes.
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;
/// Memory of a tokenizer or a detokenizer beside what grows with its files, in bytes: prompts, templates, grammars.
const TEXT_MEMORY_BYTES: u64 = 512 << 20;
/// What a byte of its files may take in memory.
const TEXT_MEMORY_PER_FILE_BYTE: u64 = 24;
/// The files that a tokenizer or a detokenizer reads.
const TEXT_FILES: [&str; 6] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// Memory of its own that a role may have that runs the folder's tokenizer and template, in bytes.
pub(crate) fn text_memory_bytes_max(dir: &Path) -> u64 {
    let size = |name: &&str| std::fs::metadata(dir.join(name)).map_or(0, |meta| meta.len());
    let file_bytes: u64 = match pinion_gguf::is_gguf(dir) {
        // Its texts as JSON take as much again.
        true => pinion_gguf::Header::open(dir).map_or(0, |header| 2 * header.bytes),
        false => TEXT_FILES.iter().map(size).sum(),
    };
    TEXT_MEMORY_BYTES.saturating_add(file_bytes.saturating_mul(TEXT_MEMORY_PER_FILE_BYTE))
}

/// What a folder says.
pub(crate) struct Folder {
    pub(crate) model: ModelFacts,
    /// What a GPU computes in unless told.
    pub(crate) gpu_dtype: Dtype,
    /// The decoder; none for the fake backend.
    pub(crate) architecture: Option<Architecture>,
}

/// What the folder `dir` says of its model, or `None` after every fault was noted with its file.
pub(crate) fn read(
    dir: &Path,
    backend: Backend,
    generation: &Generation,
    faults: &mut Collector,
) -> Option<Folder> {
    let before = faults.0.len();
    let is_gguf = pinion_gguf::is_gguf(dir);
    if !dir.is_dir() && !is_gguf {
        let reason = match std::fs::metadata(dir) {
            Ok(_) => "is a file; a Hugging Face folder or a GGUF file is expected",
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                "cannot be reached: permission denied; this user must be able to search every folder above it \
                 (chmod o+x), or the model belongs elsewhere, such as /srv"
            }
            Err(_) if pinion_gguf::has_name(dir) => "no such file",
            Err(_) => {
                "no such folder; a Hugging Face folder or a GGUF file is expected, or ORG/NAME for a model of the hub"
            }
        };
        faults.add(&origin(dir), reason);
        return None;
    }
    if is_gguf && let Err(error) = pinion_gguf::Header::open(dir) {
        faults.add(&origin(dir), error.to_string());
        return None;
    }
    let config = config_json(dir, is_gguf, faults);
    let added_tokens = added_tokens(dir, faults);
    if backend != Backend::Fake && !is_gguf {
        check_weights(dir, faults);
    }
    let tokenizer = tokenizer_config(dir, is_gguf, faults);
    let config = config?;
    let path = origin(&dir.join("config.json"));
    let (mut folder, of_config) = match facts(&config, backend) {
        Ok(found) => found,
        Err(reasons) => {
            reasons.into_iter().for_each(|reason| faults.add(&path, reason));
            return None;
        }
    };
    // Absent, or as large as a float can be, where the tokenizer knows no limit.
    let tokenizer_max = tokenizer.as_ref().and_then(|map| map.get("model_max_length")?.as_f64());
    if let Some(length) = tokenizer_max.filter(|&length| (1.0..f64::from(CONTEXT_MAX)).contains(&length)) {
        folder.model.default_context = folder.model.default_context.min(length as u32);
    }
    let is_newer = tokenizer.as_ref().is_some_and(|config| config.contains_key("added_tokens_decoder"));
    let is_older = !is_gguf && !is_newer;
    let added_file = is_older.then(|| optional_object(dir, "added_tokens.json", faults)).flatten();
    let of_tokenizer =
        tokenizer.as_ref().and_then(|config| tokenizer_end(config, &added_tokens, added_file.as_ref()));
    let of_files = [of_config.as_slice(), generation.stop_ids.as_slice()];
    folder.model.stop_ids = all_stop_ids(of_files, of_tokenizer, folder.model.vocab_size, &path, faults);
    (faults.0.len() == before).then_some(folder)
}

/// config.json, with what a file beside it says of packed weights.
fn config_json(dir: &Path, is_gguf: bool, faults: &mut Collector) -> Option<Map<String, Value>> {
    let mut config = object(dir, "config.json", faults)?;
    if !is_gguf {
        let file = |name: &str| Ok::<_, Infallible>(optional_object(dir, name, faults));
        let Ok(()) = pinion_architecture::complete(&mut config, file);
    }
    Some(config)
}

/// The tokens that tokenizer.json adds to its vocabulary. Of the rest only the syntax is checked, without building the
/// tree: a vocabulary has a hundred thousand entries.
fn added_tokens(dir: &Path, faults: &mut Collector) -> Vec<Value> {
    #[derive(serde::Deserialize)]
    struct File {
        #[serde(default)]
        added_tokens: Value,
    }
    let path = dir.join("tokenizer.json");
    let read =
        load(&path, TOKENIZER_BYTES_MAX).and_then(|bytes| match serde_json::from_slice::<File>(&bytes) {
            Ok(File { added_tokens: Value::Array(tokens) }) => Ok(tokens),
            Ok(_) => Ok(Vec::new()),
            // What is JSON and no tokenizer is the tokenizer's to refuse.
            Err(error) if error.is_data() => Ok(Vec::new()),
            Err(error) => Err(format!("is not valid JSON: {error}")),
        });
    read.unwrap_or_else(|reason| {
        let hint = conversion::of_tokenizer(dir).filter(|_| !path.exists());
        faults.add(&origin(&path), hint.unwrap_or(reason));
        Vec::new()
    })
}

/// tokenizer_config.json. The end that special_tokens_map.json names counts more, unless there is an
/// `added_tokens_decoder`, as in the tokenizer.
fn tokenizer_config(dir: &Path, is_gguf: bool, faults: &mut Collector) -> Option<Map<String, Value>> {
    const END: &str = "eos_token";
    let config = optional_object(dir, "tokenizer_config.json", faults);
    let has_decoder = config.as_ref().is_some_and(|config| config.contains_key("added_tokens_decoder"));
    if is_gguf || has_decoder {
        return config;
    }
    let end = optional_object(dir, "special_tokens_map.json", faults).and_then(|mut map| map.remove(END));
    let Some(end) = end else { return config };
    let mut config = config.unwrap_or_default();
    config.insert(END.to_owned(), end);
    Some(config)
}

/// The id of tokenizer_config.json's `eos_token`, which is a string or an object with its `content`. Where
/// tokenizer.json does not add the token, `added_tokens_decoder` or added_tokens.json may.
fn tokenizer_end(
    config: &Map<String, Value>,
    added_tokens: &[Value],
    added_file: Option<&Map<String, Value>>,
) -> Option<u32> {
    let token = config.get("eos_token")?;
    let content = token.as_str().or_else(|| token.get("content")?.as_str())?;
    let in_tokenizer = || added_tokens.iter().find(|added| added["content"] == content)?["id"].as_u64();
    let in_config = || {
        let decoder = config.get("added_tokens_decoder")?.as_object()?;
        decoder.iter().find(|(_, added)| added["content"] == content)?.0.parse::<u64>().ok()
    };
    let in_file = || added_file?.get(content)?.as_u64();
    in_tokenizer().or_else(in_config).or_else(in_file).and_then(|id| u32::try_from(id).ok())
}

fn check_weights(dir: &Path, faults: &mut Collector) {
    let path = dir.join("model.safetensors");
    let reason = match std::fs::metadata(&path) {
        Ok(meta) if meta.is_file() && meta.len() > 0 => return,
        Ok(meta) if meta.is_file() => "is empty".to_owned(),
        Ok(_) => "is not a file".to_owned(),
        // Which files it names, and what is in them, the engine checks.
        Err(_) if dir.join("model.safetensors.index.json").is_file() => return,
        Err(error) => conversion::of_weights(dir).unwrap_or_else(|| io_reason(error)),
    };
    faults.add(&origin(&path), reason);
}

/// What the other settings follow from, and the tokens that config.json says end a text. The fake backend, which runs
/// no model, takes a folder of any family.
fn facts(config: &Map<String, Value>, backend: Backend) -> Result<(Folder, Vec<u32>), Vec<String>> {
    if backend == Backend::Fake {
        let facts = pinion_architecture::facts(config)?;
        let model = ModelFacts {
            max_context: facts.context,
            default_context: facts.context,
            vocab_size: facts.vocab,
            stop_ids: StopIds::NONE,
            layers: 1,
            kv_heads: 1,
            head_dim: 1,
            hidden: 1,
            window: None,
        };
        return Ok((Folder { model, gpu_dtype: Dtype::Fp16, architecture: None }, facts.stop_ids));
    }
    let model = pinion_architecture::read(config)?;
    let facts = ModelFacts {
        max_context: model.context.max,
        default_context: model.context.default,
        vocab_size: model.vocab,
        stop_ids: StopIds::NONE,
        layers: model.layers.len() as u32,
        kv_heads: model.attention.kv_heads,
        head_dim: model.attention.head_dim,
        hidden: model.hidden,
        window: model.windowed().map(|of| WindowFacts { tokens: of.tokens, layers: of.layers }),
    };
    let (gpu_dtype, stop_ids) = (gpu_dtype(config, model.fits_f16), model.stop_ids.clone());
    Ok((Folder { model: facts, gpu_dtype, architecture: Some(model) }, stop_ids))
}

/// The type of the weights if it has two bytes; for others fp16, which is the finer one. bf16 where activations leave
/// the range of fp16.
fn gpu_dtype(config: &Map<String, Value>, fits_f16: bool) -> Dtype {
    let text = config.get("text_config").and_then(Value::as_object);
    match stored_dtype(config).or_else(|| text.and_then(stored_dtype)) {
        Some("bfloat16") => Dtype::Bf16,
        _ if fits_f16 => Dtype::Fp16,
        _ => Dtype::Bf16,
    }
}

/// transformers 4 calls the key `torch_dtype`.
fn stored_dtype(config: &Map<String, Value>) -> Option<&str> {
    ["dtype", "torch_dtype"].into_iter().find_map(|key| config.get(key)?.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_computes_in_the_checkpoints_type_where_its_range_is_enough() {
        for (config, fits_f16, wanted) in [
            (r#"{"torch_dtype": "bfloat16"}"#, true, Dtype::Bf16),
            (r#"{"dtype": "bfloat16"}"#, true, Dtype::Bf16),
            (r#"{"torch_dtype": "float16"}"#, true, Dtype::Fp16),
            (r#"{"torch_dtype": "float16"}"#, false, Dtype::Bf16),
            (r#"{"torch_dtype": "float32"}"#, true, Dtype::Fp16),
            ("{}", true, Dtype::Fp16),
            ("{}", false, Dtype::Bf16),
            (r#"{"text_config": {"torch_dtype": "bfloat16"}}"#, true, Dtype::Bf16),
        ] {
            let keys: Map<String, Value> = serde_json::from_str(config).unwrap();
            assert_eq!(gpu_dtype(&keys, fits_f16), wanted, "{config} {fits_f16}");
        }
    }
}
