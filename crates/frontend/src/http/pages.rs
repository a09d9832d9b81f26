//! The pages for people: the chat at `/`, the API at `/docs`, and the files that they load.
//!
//! All of them are in the program; nothing is read from a disk and no other host is asked. They hold nothing of the
//! service's but the model's name, so they need no key: the scripts ask for it and send it with what they call.

use crate::http::body::AnswerBody;
use crate::http::routes::whole;
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

/// Content type of pages.
pub(crate) const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A file in the program.
#[derive(Clone, Copy)]
pub struct File {
    /// Its path at the service.
    pub path: &'static str,
    content_type: &'static str,
    /// What is in it.
    pub bytes: &'static [u8],
}

const fn file(path: &'static str, content_type: &'static str, bytes: &'static [u8]) -> File {
    File { path, content_type, bytes }
}

/// All of them; the page itself is the first.
pub const FILES: &[File] = &[
    file("/", HTML, include_bytes!("../../ui/index.html")),
    file("/ui/style.css", STYLE, include_bytes!("../../ui/style.css")),
    file("/ui/docs.css", STYLE, include_bytes!("../../ui/docs.css")),
    file("/ui/icon.svg", "image/svg+xml", include_bytes!("../../ui/icon.svg")),
    file("/ui/theme.js", SCRIPT, include_bytes!("../../ui/theme.js")),
    file("/ui/main.js", SCRIPT, include_bytes!("../../ui/main.js")),
    file("/ui/api.js", SCRIPT, include_bytes!("../../ui/api.js")),
    file("/ui/answer.js", SCRIPT, include_bytes!("../../ui/answer.js")),
    file("/ui/chat.js", SCRIPT, include_bytes!("../../ui/chat.js")),
    file("/ui/completion.js", SCRIPT, include_bytes!("../../ui/completion.js")),
    file("/ui/conversations.js", SCRIPT, include_bytes!("../../ui/conversations.js")),
    file("/ui/docs.js", SCRIPT, include_bytes!("../../ui/docs.js")),
    file("/ui/dom.js", SCRIPT, include_bytes!("../../ui/dom.js")),
    file("/ui/highlight.js", SCRIPT, include_bytes!("../../ui/highlight.js")),
    file("/ui/live.js", SCRIPT, include_bytes!("../../ui/live.js")),
    file("/ui/markdown.js", SCRIPT, include_bytes!("../../ui/markdown.js")),
    file("/ui/settings.js", SCRIPT, include_bytes!("../../ui/settings.js")),
];

/// The file at a path.
pub fn at(path: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.path == path)
}

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
