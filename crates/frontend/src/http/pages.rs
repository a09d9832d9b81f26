//! The pages for people: the chat at `/`, the API at `/docs`, and the files that they load.
//!
//! All of them are in the program ([`crate::ui`]), and no other host is asked. They hold nothing of the
//! service's but the model's name, so they need no key: the scripts ask for it and send it with what they call.

use crate::http::body::AnswerBody;
use crate::http::routes::whole;
use crate::ui::File;
use bytes::Bytes;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{HeaderMap, Response, StatusCode};
use std::hash::{DefaultHasher, Hasher};

/// Scripts, styles and requests of this origin only; no inline script or style, no frame, and no way from a string to
/// markup (Trusted Types).
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// The answer with a file.
pub(crate) fn serve(file: &File, asked: &HeaderMap) -> Response<AnswerBody> {
    answer(file.content_type, Bytes::from_static(file.bytes), asked)
}

/// The answer with a page or one of its files, or 304 if the browser has it. A browser asks each time: the files belong
/// to one build, and all of them change with it.
pub(crate) fn answer(content_type: &'static str, bytes: Bytes, asked: &HeaderMap) -> Response<AnswerBody> {
    let tag = tag(&bytes);
    let known = asked.get_all(IF_NONE_MATCH).iter().any(|field| names(field, &tag));
    let (status, bytes) =
        if known { (StatusCode::NOT_MODIFIED, Bytes::new()) } else { (StatusCode::OK, bytes) };
    let mut response = whole(status, content_type, AnswerBody::Whole(bytes, Vec::new()));
    let fields = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (CACHE_CONTROL, "no-cache"),
    ] {
        fields.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        fields.insert(ETAG, tag);
    }
    response
}

/// What the bytes are called as long as they are the same.
fn tag(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    format!("\"{:016x}\"", hasher.finish())
}

/// Whether an `If-None-Match` field has this tag in its list.
fn names(field: &HeaderValue, tag: &str) -> bool {
    let list = field.to_str().unwrap_or_default().split(',').map(str::trim);
    list.map(|item| item.strip_prefix("W/").unwrap_or(item)).any(|item| item == tag || item == "*")
}
