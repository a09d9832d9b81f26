//! Cross-origin requests of browsers: off unless origins are configured.
//!
//! A preflight is answered here, before authentication, because browsers send it without a key; it says nothing
//! but which methods and header fields a page of an allowed origin may use.

use crate::http::body::AnswerBody;
use crate::limits::{PREFLIGHT_FIELDS_BYTES_MAX, PREFLIGHT_MAX_AGE_S};
use crate::route::Route;
use bytes::Bytes;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderValue, ORIGIN, VARY,
};
use hyper::{HeaderMap, Method, Response, StatusCode};

/// What a page may send when its browser does not say what it wants to.
const USUAL_FIELDS: &str = "authorization, content-type, x-api-key, x-request-id";

/// What a page may read of an answer's head, besides what browsers show every page.
const EXPOSED_FIELDS: &str = "x-request-id, request-id, retry-after, x-should-retry, x-pinion-ignored-fields, \
    server-timing, endpoint-load-metrics";

/// The value for `Access-Control-Allow-Origin`, if the request comes from a page that is allowed.
pub(crate) fn allowed(origins: &[String], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(ORIGIN)?;
    if origins.iter().any(|allowed| allowed == "*") {
        return Some(HeaderValue::from_static("*"));
    }
    let text = origin.to_str().ok()?;
    origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(text)).then(|| origin.clone())
}

/// The answer to a preflight from an allowed origin; `None` for every other request.
pub(crate) fn preflight(
    origin: Option<&HeaderValue>,
    route: Route,
    method: &Method,
    headers: &HeaderMap,
) -> Option<Response<AnswerBody>> {
    let asks = *method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if !asks || origin.is_none() || route == Route::Unknown {
        return None;
    }
    let mut response = Response::new(AnswerBody::Whole(Bytes::new(), Vec::new()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let wanted = headers.get(ACCESS_CONTROL_REQUEST_HEADERS).filter(|fields| are_names(fields.as_bytes()));
    let fields = wanted.cloned().unwrap_or(HeaderValue::from_static(USUAL_FIELDS));
    let answer = response.headers_mut();
    answer.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(route.page_methods()));
    answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, fields);
    answer.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from(PREFLIGHT_MAX_AGE_S));
    Some(response)
}

/// A short list of header names.
fn are_names(fields: &[u8]) -> bool {
    let in_names = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b',' | b' ');
    !fields.is_empty() && fields.len() <= PREFLIGHT_FIELDS_BYTES_MAX && fields.iter().all(in_names)
}

/// Marks a response as one that the page may read.
pub(crate) fn mark(origins: &[String], origin: Option<HeaderValue>, headers: &mut HeaderMap) {
    if origins.is_empty() {
        return;
    }
    headers.insert(VARY, HeaderValue::from_static("origin"));
    if let Some(origin) = origin {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED_FIELDS));
    }
}
