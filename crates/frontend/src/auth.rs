//! Who may ask: a client that shows one of the configured keys, or anybody where no key is configured.
//!
//! The decision is made on the matched [`Route`], never on the path's text, and a route that is not listed as public
//! in [`Route::is_public`] needs a key. Keys are compared in a time that does not depend on how much of them is right.

use crate::errors::Refusal;
use crate::routes::Route;
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use pinion_config::ApiKeys;
use std::hint::black_box;

/// Lets the request pass, or refuses it with 401.
pub(crate) fn check(route: Route, headers: &HeaderMap, keys: &ApiKeys) -> Result<(), Refusal> {
    if keys.is_empty() || route.is_public() {
        return Ok(());
    }
    let mut fields = headers.get_all(AUTHORIZATION).iter();
    // Two fields could be read differently by a proxy in front and by us.
    let (Some(field), None) = (fields.next(), fields.next()) else {
        return Err(Refusal::Unauthorized { shown: headers.contains_key(AUTHORIZATION) });
    };
    match bearer(field.as_bytes()) {
        Some(key) if holds(keys, key) => Ok(()),
        shown => Err(Refusal::Unauthorized { shown: shown.is_some() }),
    }
}

/// The key of `Bearer KEY`.
fn bearer(field: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = field.split_at_checked(6)?;
    let rest = key.strip_prefix(b" ")?.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer") && !rest.is_empty()).then_some(rest)
}

/// Whether `shown` is one of the keys. All of them are looked at, whichever matches.
fn holds(keys: &ApiKeys, shown: &[u8]) -> bool {
    keys.iter().fold(false, |found, key| found | same(key, shown))
}

/// Compares in a time that depends on `shown` and on the key's length only: every byte is folded in, and the
/// compiler is kept from leaving early. It stands in for the crate `subtle`, whose one use here this would be.
fn same(key: &[u8], shown: &[u8]) -> bool {
    let difference =
        shown.iter().enumerate().fold(u8::from(key.len() != shown.len()), |folded, (at, byte)| {
            black_box(folded | (byte ^ key.get(at).copied().unwrap_or(0)))
        });
    black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_key_matches() {
        let keys = ApiKeys::new(vec!["sk-first".into(), "sk-second".into()]);
        for good in ["sk-first", "sk-second"] {
            assert!(holds(&keys, good.as_bytes()), "{good}");
        }
        for bad in
            ["", "s", "sk-firs", "sk-first1", "sk-firsT", "sk-secon", "sk-first\0", "sk-firstsk-second"]
        {
            assert!(!holds(&keys, bad.as_bytes()), "{bad:?}");
        }
    }

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
