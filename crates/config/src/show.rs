//! `pinion config show`: every value and where it comes from.

use crate::choices::{Backend, Dtype};
use crate::config::Config;
use crate::cpu_set::show_cpu_set;
use crate::fault::Origin;
use crate::options::OPTIONS;
use crate::pooling::PoolingKind;
use crate::sources::Settings;
use crate::table::{Kind, Opt};
use crate::topology::Topology;
use crate::value::human_bytes;
use pinion_protocol::Role;
use std::fmt::Write;

/// The listing. Without a config (no model named) what follows from a model is told as a rule.
pub(crate) fn text(settings: &Settings, config: Option<&Config>) -> String {
    let mut out = String::new();
    let width = OPTIONS.iter().map(|option| option.name.len()).max().unwrap_or(0);
    for option in OPTIONS {
        let (value, origin) = line(option, settings, config);
        let _ = writeln!(out, "{:<width$}  {value}  ({origin})", option.name);
    }
    if let Some(config) = config {
        let shared = human_bytes(Topology::new(config).shared_bytes() as u64);
        let _ = write!(out, "\n{}\n\nrings: {shared} of shared memory\n", config.cpu_plan);
    }
    out
}

fn line(option: &Opt, settings: &Settings, config: Option<&Config>) -> (String, String) {
    let resolved = config.and_then(|config| worked_out(option, config));
    match (settings.get(option.name), resolved) {
        (Some(setting), Some(resolved)) if setting.origin == Origin::Default => {
            (resolved, "default".to_owned())
        }
        (Some(setting), _) => (setting.value.show(&option.kind), setting.origin.to_string()),
        (None, Some(resolved)) => (resolved, "worked out".to_owned()),
        (None, None) => ("-".to_owned(), option.preset_text().to_owned()),
    }
}

/// The resolved value of an option that was not given.
fn worked_out(option: &Opt, config: &Config) -> Option<String> {
    let cpus = |role: Role| {
        let placed = config.cpu_plan.placements.iter().filter(|p| p.peer.role == role);
        show_cpu_set(placed.flat_map(|p| p.cpus.iter().copied()))
    };
    let tokens = u64::from(config.kv_blocks) * u64::from(config.block_size);
    Some(match option.name {
        "served-model-name" => config.served_model_name.clone(),
        "max-model-len" => config.max_model_len.to_string(),
        "body-bytes-max" => crate::value::Value::Number(config.body_bytes_max as u64)
            .show(&Kind::Bytes { min: 0, max: u64::MAX }),
        "kv-cache-tokens" => tokens.to_string(),
        "kv-cache-bytes" => human_bytes(config.kv_cache_bytes()),
        "engine-threads" => config.engine_threads.to_string(),
        "cuda-object" => config.cuda.as_ref()?.object.display().to_string(),
        "overlap" => config.scheduling.overlap.to_string(),
        "pooling" => match config.pooling.as_ref().map(|pooling| pooling.kind) {
            None => "none".to_owned(),
            Some(PoolingKind::Last) => "last".to_owned(),
            Some(PoolingKind::Mean) => "mean".to_owned(),
        },
        "pin" => config.pin.to_string(),
        "cpus-frontend" => cpus(Role::Frontend),
        "cpus-tokenizer" => cpus(Role::Tokenizer),
        "cpus-engine" => cpus(Role::Engine),
        "cpus-detokenizer" => cpus(Role::Detokenizer),
        "backend" => config.backend.name().to_owned(),
        "cpus-events" => cpus(Role::Events),
        "kv-events-topic" => {
            config.kv_events.as_ref().map(|events| events.topic.clone()).filter(|t| !t.is_empty())?
        }
        "otlp-traces-endpoint" => config.observe.otlp.as_ref()?.url(),
        "dtype" => match (config.backend, config.dtype) {
            (Backend::Fake, _) => "auto".to_owned(),
            (_, Dtype::Fp32) => "fp32".to_owned(),
            (_, Dtype::Bf16) => "bf16".to_owned(),
            (_, Dtype::Fp16) => "fp16".to_owned(),
        },
        _ => return None,
    })
}
