//! The words after `pinion-engine probe`: what `pinion doctor` and the launcher have the engine look at in a process of
//! its own.

use crate::choices::Dtype;
use crate::config::Config;
use crate::cuda::CudaConfig;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;

/// What an engine's probe is to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeCommand {
    /// The folder of a model: its weights and its tokenizer are opened.
    pub model: Option<PathBuf>,
    /// The CUDA object: it, the driver and the device are opened.
    pub cuda_object: Option<PathBuf>,
    /// A model that the CUDA engine would serve: whether it takes it.
    pub cuda_model: Option<CudaModel>,
    /// A CUDA device that libtorch's operators would compute on: whether libtorch has it.
    pub torch_device: Option<u32>,
}

/// What decides whether the CUDA engine takes a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaModel {
    /// The model's folder.
    pub folder: PathBuf,
    /// In what type.
    pub dtype: Dtype,
    /// Longest sequence.
    pub max_model_len: u32,
    /// Sequences in one step.
    pub max_num_seqs: u32,
    /// Tokens in one step.
    pub max_num_batched_tokens: u32,
    /// Tokens in one KV block.
    pub block_size: u32,
    /// Small decode steps are one kernel.
    pub fused_decode: bool,
}

impl CudaModel {
    /// The model of this service.
    pub fn of(config: &Config, cuda: &CudaConfig) -> CudaModel {
        CudaModel {
            folder: config.model_dir.clone(),
            dtype: config.dtype,
            max_model_len: config.max_model_len,
            max_num_seqs: config.max_num_seqs,
            max_num_batched_tokens: config.max_num_batched_tokens,
            block_size: config.block_size,
            fused_decode: cuda.fused_decode,
        }
    }
}

const USAGE: &str =
    "pinion-engine probe [--model DIR] [--cuda-object FILE] [--cuda-model JSON] [--torch-device N]";

impl ProbeCommand {
    /// The words that are read as this one.
    pub fn words(&self) -> Vec<OsString> {
        let json = |model: &CudaModel| serde_json::to_string(model).expect("a path of the config is UTF-8");
        let values = [
            ("--model", self.model.clone().map(OsString::from)),
            ("--cuda-object", self.cuda_object.clone().map(OsString::from)),
            ("--cuda-model", self.cuda_model.as_ref().map(|model| OsString::from(json(model)))),
            ("--torch-device", self.torch_device.map(|index| OsString::from(index.to_string()))),
        ];
        let given = values.into_iter().filter_map(|(flag, value)| Some([OsString::from(flag), value?]));
        std::iter::once(OsString::from("probe")).chain(given.flatten()).collect()
    }
}

/// The probe that this process was started for, if it was. Errors: one line for the operator.
pub fn probe_command() -> Option<Result<ProbeCommand, String>> {
    read(std::env::args_os().skip(1))
}

fn read(mut words: impl Iterator<Item = OsString>) -> Option<Result<ProbeCommand, String>> {
    (words.next()? == "probe").then(|| rest(words))
}

fn rest(mut words: impl Iterator<Item = OsString>) -> Result<ProbeCommand, String> {
    let mut command = ProbeCommand::default();
    while let Some(word) = words.next() {
        let value = words.next().ok_or(USAGE)?;
        match word.to_str() {
            Some("--model") => command.model = Some(PathBuf::from(value)),
            Some("--cuda-object") => command.cuda_object = Some(PathBuf::from(value)),
            Some("--cuda-model") => {
                let model = serde_json::from_str(&value.to_string_lossy());
                command.cuda_model = Some(model.map_err(|error| format!("--cuda-model: {error}: {USAGE}"))?);
            }
            Some("--torch-device") => {
                let index = value.to_str().and_then(|text| text.parse().ok());
                command.torch_device = Some(index.ok_or(USAGE)?);
            }
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_command_are_read_as_the_same_one() {
        let cuda_model = CudaModel {
            folder: "/models/a b".into(),
            dtype: Dtype::Bf16,
            max_model_len: 4096,
            max_num_seqs: 64,
            max_num_batched_tokens: 512,
            block_size: 16,
            fused_decode: true,
        };
        let whole = ProbeCommand {
            model: Some("/models/a b".into()),
            cuda_object: Some("/o".into()),
            cuda_model: Some(cuda_model),
            torch_device: Some(3),
        };
        let some = ProbeCommand { cuda_object: Some("/o".into()), ..ProbeCommand::default() };
        for command in [whole, some, ProbeCommand::default()] {
            assert_eq!(read(command.words().into_iter()), Some(Ok(command)));
        }
        let words = |words: &[&str]| read(words.iter().map(OsString::from));
        assert_eq!(words(&["serve"]), None);
        assert!(words(&["probe", "--model"]).is_some_and(|read| read.is_err()));
        assert!(words(&["probe", "--cuda-model", "{}"]).is_some_and(|read| read.is_err()));
        assert!(words(&["probe", "--torch-device", "-1"]).is_some_and(|read| read.is_err()));
    }
}
