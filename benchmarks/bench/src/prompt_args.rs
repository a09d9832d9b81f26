//! The flags that every workload has: what prompts are made of, how they are asked for, and how tokens are drawn.

use crate::alone::Load;
use crate::prompts::{Form, Prompts, Source, context_of};
use crate::workload::Fields;
use clap::Args;
use pinion_config::AlonePhase;
use std::path::PathBuf;
use std::time::Duration;

/// What prompts are made of and how they are asked for; the same for every workload.
#[derive(Args, Clone, Debug)]
pub(crate) struct PromptArgs {
    /// Folder with the model's tokenizer.json and config.json: vocabulary and context come from there.
    #[arg(long)]
    pub tokenizer: Option<PathBuf>,
    /// Size of the vocabulary, where there is no --tokenizer.
    #[arg(long)]
    pub vocab: Option<u32>,
    /// Tokens that prompt and answer may have together [default: the model's].
    #[arg(long)]
    pub context: Option<u32>,
    /// Send prompts as token ids, or as text for servers that take no ids.
    #[arg(long, value_enum, default_value = "ids")]
    pub prompt_form: Form,
    /// Temperature; 0 is greedy.
    #[arg(long, default_value_t = 0.0)]
    pub temperature: f64,
    #[arg(long)]
    pub top_p: Option<f64>,
    #[arg(long)]
    pub top_k: Option<u32>,
    /// Let answers end early where the model says so; otherwise every answer has exactly the length asked for.
    #[arg(long)]
    pub stop_at_eos: bool,
    /// JSON object of further fields, like '{"cache_prompt": false}'.
    #[arg(long)]
    pub extra_fields: Option<String>,
    /// Seed of prompts, synthetic arrivals and orders.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A request is given up after this number of seconds.
    #[arg(long, default_value_t = 600)]
    pub request_timeout_s: u64,
}

impl PromptArgs {
    pub(crate) fn fields(&self, model: &str, stream: bool) -> Result<Fields, String> {
        let extra = self.extra_fields.as_deref().unwrap_or("{}");
        let extra: serde_json::Value =
            serde_json::from_str(extra).map_err(|error| format!("--extra-fields: {error}"))?;
        Ok(Fields {
            model: model.to_owned(),
            stream,
            ignore_eos: !self.stop_at_eos,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            extra: extra.as_object().ok_or("--extra-fields is no JSON object")?.clone(),
        })
    }

    pub(crate) fn prompts(&self, source: Source, seed: u64) -> Result<Prompts, String> {
        Prompts::new(source, self.prompt_form, seed, self.tokenizer.as_deref(), self.vocab)
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.request_timeout_s)
    }

    /// The model's context, by flag or by its config.json.
    pub(crate) fn context_tokens(&self) -> Result<u32, String> {
        match (self.context, &self.tokenizer) {
            (Some(tokens), _) => Ok(tokens),
            (None, Some(folder)) => context_of(folder),
            (None, None) => Err("the context is not known: say --context N or --tokenizer DIR".to_owned()),
        }
    }

    /// For an engine alone, which takes ids and knows no field of a request. `streamed`: see [`Load`].
    pub(crate) fn load(
        &self,
        warm_up: AlonePhase,
        measured: AlonePhase,
        streamed: bool,
    ) -> Result<Load, String> {
        if self.prompt_form != Form::Ids {
            return Err("--prompt-form text: an engine alone takes token ids".to_owned());
        }
        if self.extra_fields.is_some() {
            return Err("--extra-fields: an engine alone takes no request with fields".to_owned());
        }
        Ok(Load {
            warm_up,
            measured,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            ignore_eos: !self.stop_at_eos,
            streamed,
        })
    }
}
