//! Bodies for admission, and what it measures them against, in tests without a server.

use pinion_config::SamplingDefaults;
use pinion_frontend::admission::tools::CallReading;
use pinion_frontend::admission::{Admitted, Api, Limits, admit};
use pinion_protocol::FaultCode;
use pinion_text::tools::CallFormat;
use serde_json::{Value, json};

/// The seed of a request without one.
pub(crate) const FRESH_SEED: u64 = 77;

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

/// What becomes of a body that is admitted.
pub(crate) fn passes(api: Api, extra: Value) -> Admitted {
    let body = body(api, extra);
    admit(api, body.to_string().as_bytes(), &limits(), FRESH_SEED).unwrap_or_else(|f| panic!("{body}: {f}"))
}

/// The refusal of a raw body.
pub(crate) fn refused(api: Api, body: &str) -> (FaultCode, Option<String>) {
    match admit(api, body.as_bytes(), &limits(), FRESH_SEED) {
        Ok(admitted) => panic!("{body} was admitted as {admitted:?}"),
        Err(fault) => (fault.code, fault.param),
    }
}

/// Whether values of a field are refused by its name, and others pass; each as JSON.
pub(crate) fn check_field(api: Api, field: &str, refused_values: &[&str], passing_values: &[&str]) {
    for value in refused_values {
        let text = body(api, json!({field: "@@"})).to_string().replace("\"@@\"", value);
        let (code, param) = refused(api, &text);
        assert_eq!((code, param.as_deref()), (FaultCode::InvalidValue, Some(field)), "{text}");
    }
    for value in passing_values {
        passes(api, json!({field: serde_json::from_str::<Value>(value).expect("it is JSON")}));
    }
}
