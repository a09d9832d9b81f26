//! Bodies for admission, and what it measures them against, in tests without a server.

use pinion_config::SamplingDefaults;
use pinion_frontend::admission::tools::CallReading;
use pinion_frontend::admission::{Api, Limits};
use pinion_text::tools::CallFormat;
use serde_json::{Value, json};

/// Of a small model whose tool calls are read this way.
pub(crate) fn limits_of(calls: CallReading) -> Limits {
    Limits {
        model: "tiny".to_owned(),
        vocab_size: 100,
        max_model_len: 64,
        calls,
        reasons: false,
        defaults: SamplingDefaults::NONE,
        strict_fields: false,
        pooling: None,
    }
}

/// Of a small model that writes tool calls as Hermes does.
#[allow(dead_code, reason = "a test of tool calls reads them in several ways")]
pub(crate) fn limits() -> Limits {
    limits_of(CallReading::Format(CallFormat::Hermes))
}

/// The shortest body of an API, and these members.
#[allow(dead_code, reason = "some tests ask for chats only")]
pub(crate) fn body(api: Api, extra: Value) -> Value {
    let mut base = match api {
        Api::Completions | Api::Generate => json!({"prompt": "hi"}),
        Api::Chat => json!({"messages": [{"role": "user", "content": "hi"}]}),
    };
    let Value::Object(extra) = extra else { panic!("extra must be an object") };
    base.as_object_mut().expect("an object").extend(extra);
    base
}
