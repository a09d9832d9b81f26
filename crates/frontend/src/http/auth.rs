//! Authentication: a client shows one of the configured keys; without a configured key every client is served.
//!
//! The decision is made on the matched [`Route`], never on the path's text, and a route that is not listed as public
//! in [`Route::is_public`] needs a key. Keys are compared by their digests, in a time that does not depend on how much
//! of them is right.

use crate::answers::errors::Refusal;
use crate::route::Route;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderName};
use pinion_config::ApiKeys;

/// Where clients of Anthropic's API show their key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Lets the request pass, with the index of its key if one is needed, or refuses it with 401.
pub(crate) fn check(route: Route, headers: &HeaderMap, keys: &ApiKeys) -> Result<Option<usize>, Refusal> {
    if keys.is_empty() || route.is_public() {
        return Ok(None);
    }
    let bearers = headers.get_all(AUTHORIZATION).iter().map(|field| bearer(field.as_bytes()));
    let bare = headers.get_all(API_KEY).iter().map(|field| Some(field.as_bytes().trim_ascii()));
    let shown: Vec<Option<&[u8]>> = bearers.chain(bare).collect();
    // Two fields of a name could be read differently by a proxy in front and by us; so could two keys.
    let one_each =
        headers.get_all(AUTHORIZATION).iter().count() <= 1 && headers.get_all(API_KEY).iter().count() <= 1;
    let refused = || Refusal::Unauthorized { shown: shown.iter().any(Option::is_some) };
    let mut places = shown.iter().map(|shown| shown.and_then(|shown| keys.place(shown)));
    let first = places.next().flatten().filter(|_| one_each).ok_or_else(refused)?;
    if places.any(|place| place != Some(first)) {
        return Err(refused());
    }
    Ok(Some(first))
}

/// The key of `Bearer KEY`.
fn bearer(field: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = field.split_at_checked(6)?;
    let rest = key.strip_prefix(b" ")?.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer") && !rest.is_empty()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_is_bearer_in_any_case() {
        for (field, key) in [
            ("Bearer k", Some("k")),
            ("bearer  k ", Some("k")),
            ("BEARER k", Some("k")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Bearerk", None),
            ("Basic k", None),
            ("k", None),
        ] {
            assert_eq!(bearer(field.as_bytes()), key.map(str::as_bytes), "{field:?}");
        }
    }
}
