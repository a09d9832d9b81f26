//! `--root-path`: the prefix of the paths of requests behind a proxy that does not remove it. It is removed here,
//! before anything looks at a request's path. A request without the prefix is answered as well.

use crate::http::body::AnswerBody;
use crate::http::routes::whole;
use crate::route::Route;
use bytes::Bytes;
use hyper::header::{HeaderValue, LOCATION};
use hyper::http::uri::PathAndQuery;
use hyper::{Response, StatusCode, Uri};

/// Takes the root off a path that has it. One that is a route as it stands stays.
pub(crate) fn take_off(root: &str, uri: &mut Uri) {
    if root.is_empty() || Route::of(uri.path()) != Route::Unknown {
        return;
    }
    let Some(rest) = uri.path_and_query().and_then(|path| path.as_str().strip_prefix(root)) else { return };
    if !rest.starts_with('/') {
        return;
    }
    let Ok(rest) = PathAndQuery::try_from(rest) else { return };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(rest);
    if let Ok(without) = Uri::from_parts(parts) {
        *uri = without;
    }
}

/// The answer to a browser that leaves out the slash at the root's end: the page's files are beside the page.
pub(crate) fn to_page(root: &str, path: &str) -> Option<Response<AnswerBody>> {
    let location =
        HeaderValue::from_str(&format!("{root}/")).ok().filter(|_| !root.is_empty() && path == root)?;
    let mut response =
        whole(StatusCode::PERMANENT_REDIRECT, "text/plain", AnswerBody::Whole(Bytes::new(), Vec::new()));
    response.headers_mut().insert(LOCATION, location);
    Some(response)
}
