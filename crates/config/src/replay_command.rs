//! The words after `pinion-engine replay`: a recording, and the switches that shall be other than they were recorded.

use crate::choices::{AttentionKind, KvDtype, LinearKind, Quantization};
use crate::config::Config;
use crate::scheduling::{AdmissionKind, POOLS_NO_DRAFTS, SpeculationKind, why_no_drafts};
use std::path::PathBuf;

/// What an engine's replay is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayCommand {
    /// The recording.
    pub file: PathBuf,
    /// Flags with their values; `true` and `false` for switches.
    changes: Vec<(String, String)>,
}

/// How it is called.
const USAGE: &str = "pinion-engine replay FILE [--[no-]overlap] [--[no-]prefix-cache] [--[no-]fill-to-target] \
    [--speculative off|ngram] [--admission fifo|pack|shortest|deadline] [--max-num-seqs N] [--max-num-batched-tokens N] [--command-budget N] \
    [--prefill-chunk-size N] [--linear auto|packed|onednn|plain] [--quantization checkpoint|none|int8|int4] [--kv-dtype auto|int8] [--attention vector|twin] [--fake-step-us N] [--model DIR]";

/// The replay that this process was started for, if it was. Errors: one line for the operator.
pub fn replay_command() -> Option<Result<ReplayCommand, String>> {
    let mut words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    (words.next()? == "replay").then(|| read(words))
}

fn read(words: impl Iterator<Item = String>) -> Result<ReplayCommand, String> {
    let (mut file, mut changes) = (None, Vec::new());
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--") else {
            if file.replace(PathBuf::from(&word)).is_some() {
                return Err(format!("one recording at a time; {USAGE}"));
            }
            continue;
        };
        if let Some((name, value)) = flag.split_once('=') {
            changes.push((name.to_owned(), value.to_owned()));
        } else if let Some(name) = flag.strip_prefix("no-") {
            changes.push((name.to_owned(), "false".to_owned()));
        } else if ["overlap", "prefix-cache", "fill-to-target"].contains(&flag) {
            changes.push((flag.to_owned(), "true".to_owned()));
        } else {
            let value = words.next().ok_or_else(|| format!("--{flag} needs a value; {USAGE}"))?;
            changes.push((flag.to_owned(), value));
        }
    }
    let file = file.ok_or_else(|| USAGE.to_owned())?;
    Ok(ReplayCommand { file, changes })
}

impl ReplayCommand {
    /// Whether nothing is changed: then everything must come out as it was.
    pub fn is_exact(&self) -> bool {
        self.changes.iter().all(|(name, _)| ["model", "fake-step-us"].contains(&name.as_str()))
    }

    /// The recorded config with the changes. Errors: the flag that is wrong.
    pub fn apply(&self, config: &mut Config) -> Result<(), String> {
        for (name, value) in &self.changes {
            change(config, name, value).ok_or_else(|| format!("--{name} {value}: {USAGE}"))?;
        }
        // The recording's machine is not this one, and several replays may run on it.
        for placement in &mut config.cpu_plan.placements {
            placement.thread_cpus.clear();
        }
        if config.max_num_batched_tokens < config.max_num_seqs {
            return Err("--max-num-batched-tokens must be at least --max-num-seqs".to_owned());
        }
        if config.scheduling.speculation == SpeculationKind::Off {
            return Ok(());
        }
        let pools = config.pooling.as_ref().map(|_| POOLS_NO_DRAFTS);
        let reason = pools.or_else(|| Some(why_no_drafts(config.backend, config.cuda.is_some())?.0));
        reason.map_or(Ok(()), |reason| Err(format!("--speculative: {reason}; leave it out")))
    }
}

fn change(config: &mut Config, name: &str, value: &str) -> Option<()> {
    let switch = || value.parse::<bool>().ok();
    let number = || value.parse::<u32>().ok().filter(|number| *number > 0);
    match name {
        "overlap" => config.scheduling.overlap = switch()?,
        "prefix-cache" => config.scheduling.prefix_cache = switch()?,
        "fill-to-target" => config.scheduling.fill_to_target = switch()?,
        "speculative" => config.scheduling.speculation = SpeculationKind::of(value)?,
        "admission" => {
            config.scheduling.admission = match value {
                "fifo" => AdmissionKind::Fifo,
                "pack" => AdmissionKind::Pack,
                "shortest" => AdmissionKind::Shortest,
                "deadline" => AdmissionKind::Deadline,
                _ => return None,
            }
        }
        "max-num-seqs" => config.max_num_seqs = number()?,
        "max-num-batched-tokens" => config.max_num_batched_tokens = number()?,
        "command-budget" => config.command_budget = number()?,
        "prefill-chunk-size" => config.scheduling.prefill_chunk_size = Some(number()?),
        "linear" => {
            config.linear = LinearKind::of(value)?;
        }
        "quantization" => {
            config.quantization = match value {
                "checkpoint" => Quantization::Checkpoint,
                "none" => Quantization::None,
                "int8" => Quantization::Int8,
                "int4" => Quantization::Int4,
                _ => return None,
            }
        }
        "kv-dtype" => config.kv_dtype = KvDtype::of(value)?,
        "attention" => {
            config.attention = match value {
                "vector" => AttentionKind::Vector,
                "twin" => AttentionKind::Twin,
                _ => return None,
            }
        }
        "fake-step-us" => config.fake.step_us = value.parse().ok()?,
        "model" => config.model_dir = PathBuf::from(value),
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backend, Machine, ModelFacts, Pooling, PoolingKind, Shorter};
    use pinion_protocol::StopIds;
    use std::path::Path;

    fn config(backend: Backend) -> Config {
        let facts = ModelFacts {
            max_context: 64,
            default_context: 64,
            vocab_size: 64,
            stop_ids: StopIds::NONE,
            layers: 1,
            kv_heads: 1,
            head_dim: 1,
            hidden: 1,
            window: None,
        };
        Config::with_defaults(Path::new("/"), facts, backend, &Machine::detect())
            .expect("defaults are a config")
    }

    /// What a start refuses, a replay does not take and ignore.
    #[test]
    fn drafts_are_refused_where_nothing_verifies_them() {
        let asked = words("f --speculative ngram").unwrap();
        for backend in [Backend::Native, Backend::Fake] {
            assert_eq!(asked.apply(&mut config(backend)), Ok(()), "{backend:?}");
        }
        let mut operators = config(Backend::Operators);
        let reason = asked.apply(&mut operators).expect_err("libtorch's operators alone");
        assert_eq!(reason, "--speculative: libtorch's operators do not verify drafts; leave it out");
        assert_eq!(words("f --speculative off").unwrap().apply(&mut operators), Ok(()));
        let mut pools = config(Backend::Native);
        let (kind, shorter) = (PoolingKind::Mean, Shorter::None);
        pools.pooling = Some(Pooling { kind, width: 1, normalize: true, shorter });
        let reason = asked.apply(&mut pools).expect_err("a model that pools");
        assert_eq!(reason, "--speculative: a model that pools draws no tokens; leave it out");
    }

    #[test]
    fn no_thread_stays_on_a_cpu_of_the_recordings_machine() {
        let mut recorded = config(Backend::Native);
        for placement in &mut recorded.cpu_plan.placements {
            placement.thread_cpus = vec![1000, 1001];
        }
        assert_eq!(words("f").unwrap().apply(&mut recorded), Ok(()));
        assert!(recorded.cpu_plan.placements.iter().all(|placement| placement.thread_cpus.is_empty()));
    }

    fn words(line: &str) -> Result<ReplayCommand, String> {
        read(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn words_become_changes_or_one_line() {
        let command = words("f --no-overlap --admission pack --prefix-cache").unwrap();
        let change = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected =
            [change("overlap", "false"), change("admission", "pack"), change("prefix-cache", "true")];
        assert_eq!((command.file.as_path(), &command.changes[..]), ("f".as_ref(), &expected[..]));
        assert!(words("f").unwrap().is_exact() && words("f --model x").unwrap().is_exact());
        assert!(!command.is_exact());
        for wrong in ["", "f g", "f --admission"] {
            assert!(words(wrong).is_err(), "{wrong:?}");
        }
    }
}
