//! `GET /props`: what llama-server says of itself, in its names. Its clients read the context, the slots, the chat
//! template and how tokens are drawn by default.

use crate::http::app::App;
use crate::http::body::AnswerBody;
use crate::http::routes::json;
use hyper::{Response, StatusCode};
use pinion_config::SamplingDefaults;
use pinion_text::chat::Described;
use serde_json::{Value, json as value};

/// The answer. The model's path is its served name: where it lies is no client's business.
pub(crate) fn answer(app: &App) -> Response<AnswerBody> {
    let (limits, settings) = (&app.limits, &app.settings);
    let Described { template, with_tools, bos_token, eos_token, .. } = &app.template;
    let mut props = value!({
        "default_generation_settings": {
            "n_ctx": limits.max_model_len,
            "params": params(&limits.defaults),
        },
        "total_slots": settings.running_max,
        "model_alias": limits.model,
        "model_path": limits.model,
        "modalities": {"vision": false, "audio": false},
        "endpoint_slots": false,
        "endpoint_props": false,
        "endpoint_metrics": true,
        "webui": settings.ui,
        "chat_template": template.as_deref().unwrap_or_default(),
        "bos_token": bos_token.as_deref().unwrap_or_default(),
        "eos_token": eos_token.as_deref().unwrap_or_default(),
        "build_info": concat!("pinion-", env!("CARGO_PKG_VERSION")),
        "is_sleeping": false,
    });
    if let Some(template) = with_tools {
        props["chat_template_tool_use"] = template.as_str().into();
    }
    json(StatusCode::OK, props.to_string())
}

/// What holds for a chat that says nothing of how it is drawn. −1 tokens: until the context is full.
fn params(defaults: &SamplingDefaults) -> Value {
    let most = defaults.max_new_tokens.map_or(-1, i64::from);
    value!({
        "temperature": defaults.temperature.unwrap_or(1.0),
        "top_k": defaults.top_k.unwrap_or(0),
        "top_p": defaults.top_p.unwrap_or(1.0),
        "min_p": defaults.min_p.unwrap_or(0.0),
        "repeat_penalty": defaults.repetition_penalty.unwrap_or(1.0),
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "n_predict": most,
        "max_tokens": most,
        "stop": [],
        "ignore_eos": false,
        "stream": false,
        "n_probs": 0,
    })
}
