//! The pages for people: the chat at `/`, the API at `/docs`, and the files that they load.
//!
//! All of them are in the program ([`crate::ui`]), and no other host is asked. They hold nothing of the
//! service's but the model's name, so they need no key: the scripts ask for it and send it with what they call.

use crate::admission::Limits;
use crate::http::body::AnswerBody;
use crate::http::routes::whole;
use crate::openapi;
use crate::ui::{self, FILES, File};
use bytes::Bytes;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{HeaderMap, Response, StatusCode};
use std::hash::{DefaultHasher, Hasher};
use std::sync::LazyLock;

/// Scripts, styles and requests of this origin only; no inline script or style, no frame, and no way from a string to
/// markup (Trusted Types).
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// A page or one of its files as it is sent.
pub(crate) struct Content {
    content_type: &'static str,
    bytes: Bytes,
    tag: String,
}

impl Content {
    fn new(content_type: &'static str, bytes: Bytes) -> Content {
        let tag = tag(&bytes);
        Content { content_type, bytes, tag }
    }
}

/// The API's document for machines and for people, as they are sent.
pub struct Documents {
    /// `/openapi.json`.
    pub(crate) json: Bytes,
    /// `/docs`.
    pub(crate) page: Content,
}

impl Documents {
    /// `keyed`: the service asks for a key. `root`: the path below which a proxy serves it, or empty.
    pub(crate) fn new(limits: &Limits, keyed: bool, root: &str) -> Documents {
        let document = openapi::document(limits, root);
        let page = openapi::html(&document, keyed);
        Documents { json: document.to_string().into(), page: Content::new(ui::HTML, page.into()) }
    }
}

/// The content of the file at a path.
pub(crate) fn content(path: &str) -> Option<&'static Content> {
    static CONTENTS: LazyLock<Vec<Content>> = LazyLock::new(|| {
        let file = |file: &File| Content::new(file.content_type, Bytes::from_static(file.bytes));
        FILES.iter().map(file).collect()
    });
    CONTENTS.get(FILES.iter().position(|file| file.path == path)?)
}

/// The answer with a page or one of its files, or 304 if the browser has it. A browser asks each time: the files belong
/// to one build, and all of them change with it.
pub(crate) fn answer(content: &Content, asked: &HeaderMap) -> Response<AnswerBody> {
    let Content { content_type, bytes, tag } = content;
    let known = asked.get_all(IF_NONE_MATCH).iter().any(|field| names(field, tag));
    let (status, bytes) =
        if known { (StatusCode::NOT_MODIFIED, Bytes::new()) } else { (StatusCode::OK, bytes.clone()) };
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
    if let Ok(tag) = HeaderValue::from_str(tag) {
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
