//! Routes that say something about the service: models, health, metrics, version.

use crate::admission::check_model_name;
use crate::answers::errors::Refusal;
use crate::http::app::App;
use crate::http::body::AnswerBody;
use crate::http::pages::{self, Documents};
use crate::http::routes::{json, whole};
use crate::limits::RETRY_AFTER_S;
use crate::observe::exposition::Extent;
use crate::observe::{exposition, stats_page};
use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Response, StatusCode};
use pinion_config::{PoolingKind, SamplingDefaults};
use pinion_os::clock;
use serde_json::{Value, json as value};

fn model_card(app: &App) -> Value {
    value!({
        "id": app.limits.model,
        "object": "model",
        "created": app.started_unix_s,
        "owned_by": "pinion",
        "root": app.limits.model,
        "parent": null,
        "max_model_len": app.limits.max_model_len,
        "default_sampling_params": defaults(&app.limits.defaults),
        "pooling": pooling(app),
    })
}

/// What holds where a request does not say it, by the names that requests use; empty if only the API's defaults do.
fn defaults(defaults: &SamplingDefaults) -> Value {
    let SamplingDefaults { temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens } = defaults;
    let mut named = value!({
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "max_tokens": max_new_tokens,
    });
    named.as_object_mut().into_iter().for_each(|named| named.retain(|_, value| !value.is_null()));
    named
}

/// What makes the vectors of a model that pools.
fn pooling(app: &App) -> Option<&'static str> {
    app.limits.pooling.as_ref().map(|pooling| match pooling.kind {
        PoolingKind::Last => "last",
        PoolingKind::Mean => "mean",
    })
}

/// `GET /v1/models`.
pub(crate) fn models(app: &App) -> Response<AnswerBody> {
    json(StatusCode::OK, value!({"object": "list", "data": [model_card(app)]}).to_string())
}

/// `GET /v1/models/{id}`. Characters of a name may come plain or as `%2F`.
pub(crate) fn model(app: &App, name: &str) -> Result<Response<AnswerBody>, Refusal> {
    check_model_name(&decoded(name), &app.limits)?;
    Ok(json(StatusCode::OK, model_card(app).to_string()))
}

/// A part of a path without its percent signs.
fn decoded(part: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(part.len()), part.as_bytes());
    while let Some((&first, behind)) = rest.split_first() {
        let digits =
            behind.get(..2).filter(|digits| first == b'%' && digits.iter().all(u8::is_ascii_hexdigit));
        let byte = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &behind[2..] } else { behind };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn state(ok: bool, body: &Value) -> Response<AnswerBody> {
    if ok {
        return json(StatusCode::OK, body.to_string());
    }
    let mut response = json(StatusCode::SERVICE_UNAVAILABLE, body.to_string());
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
    response
}

/// `GET /health`: do all roles live and move? A log that loses lines is told and is no reason for 503: requests are
/// served.
pub(crate) fn health(app: &App) -> Response<AnswerBody> {
    let problems = app.health.problems(&app.ledger.borrow().down(), clock::now_ns());
    let status = if problems.is_empty() { "ok" } else { "unhealthy" };
    let dropped: u64 = app.health.logs().map(|(_, dropped, _)| dropped).sum();
    let losing = app.health.logs().filter(|(.., losing)| *losing).map(|(peer, ..)| peer.to_string());
    let losing: Vec<String> = losing.collect();
    let log = value!({"status": if losing.is_empty() { "ok" } else { "losing" }, "losing": losing, "lines_dropped": dropped});
    state(problems.is_empty(), &value!({"status": status, "problems": problems, "log": log}))
}

/// `GET /ready`: does the service take new requests?
pub(crate) fn ready(app: &App) -> Response<AnswerBody> {
    let ledger = app.ledger.borrow();
    let leaves = app.leaves();
    let ready = !leaves && ledger.down().is_empty() && app.health.all_ready();
    let status = match (ready, leaves) {
        (true, _) => "ready",
        (false, true) => "draining",
        (false, false) => "not ready",
    };
    state(ready, &value!({"status": status}))
}

/// `GET /live`: this process answers.
pub(crate) fn alive() -> Response<AnswerBody> {
    json(StatusCode::OK, r#"{"status":"live"}"#)
}

/// `GET /metrics` and `/metrics/load`.
pub(crate) fn metrics(app: &App, extent: Extent) -> Response<AnswerBody> {
    let page = exposition::render(&app.view(), extent);
    whole(StatusCode::OK, exposition::CONTENT_TYPE, AnswerBody::Whole(page.into(), Vec::new()))
}

/// Both are made once: they depend on the configuration only.
fn documents(app: &App) -> &Documents {
    app.docs.get_or_init(|| {
        Documents::new(&app.limits, !app.settings.api_keys.is_empty(), &app.settings.root_path)
    })
}

/// `GET /openapi.json`.
pub(crate) fn openapi(app: &App) -> Response<AnswerBody> {
    json(StatusCode::OK, documents(app).json.clone())
}

/// `GET /docs`.
pub(crate) fn docs(app: &App, asked: &HeaderMap) -> Response<AnswerBody> {
    pages::answer(&documents(app).page, asked)
}

/// `GET /` and `GET /ui/{file}`.
pub(crate) fn page_file(path: &str, asked: &HeaderMap) -> Result<Response<AnswerBody>, Refusal> {
    let content =
        pages::content(path).ok_or_else(|| Refusal::NoRoute { path: path.to_owned(), meant: None })?;
    Ok(pages::answer(content, asked))
}

/// `GET /stats`.
pub(crate) fn stats(app: &App) -> Response<AnswerBody> {
    json(StatusCode::OK, stats_page::page(&app.view()).to_string())
}

/// `GET /debug/slow`: the slowest requests of the last hour that this frontend served.
pub(crate) fn debug_slow(app: &App) -> Response<AnswerBody> {
    json(StatusCode::OK, app.ledger.borrow_mut().slow_json().to_string())
}

/// `GET /version`.
pub(crate) fn version(app: &App) -> Response<AnswerBody> {
    let (version, model) = (env!("CARGO_PKG_VERSION"), &app.limits.model);
    let body = value!({"name": "pinion", "version": version, "model": model, "pooling": pooling(app)});
    json(StatusCode::OK, body.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_paths_may_be_encoded() {
        for (part, name) in [
            ("a/b", "a/b"),
            ("a%2Fb%2fc", "a/b/c"),
            ("%C3%A9%20", "é "),
            ("100%", "100%"),
            ("%zz%+1", "%zz%+1"),
            ("%2", "%2"),
            ("%ff", "\u{fffd}"),
        ] {
            assert_eq!(decoded(part), name, "{part}");
        }
    }
}
