//! The words after `pinion-engine probe`: what `pinion doctor` has the engine look at in a process of its own.

use std::path::PathBuf;

/// What an engine's probe is to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeCommand {
    /// The folder of a model: its weights and its tokenizer are opened.
    pub model: Option<PathBuf>,
    /// The CUDA object: it, the driver and the device are opened.
    pub cuda_object: Option<PathBuf>,
}

const USAGE: &str = "pinion-engine probe [--model DIR] [--cuda-object FILE]";

/// The probe that this process was started for, if it was. Errors: one line for the operator.
pub fn probe_command() -> Option<Result<ProbeCommand, String>> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != "probe" {
        return None;
    }
    let mut command = ProbeCommand::default();
    while let Some(word) = words.next() {
        let place = match word.to_str() {
            Some("--model") => &mut command.model,
            Some("--cuda-object") => &mut command.cuda_object,
            _ => return Some(Err(USAGE.to_owned())),
        };
        let Some(value) = words.next() else { return Some(Err(USAGE.to_owned())) };
        *place = Some(PathBuf::from(value));
    }
    Some(Ok(command))
}
