//! What a web page in a user's browser must not do with a service that asks for no key.
//!
//! Loopback keeps other machines out, not the pages that a browser on this one shows. Two rules stand for the key that
//! is not there. *Host*: a page that points its own name at 127.0.0.1 (DNS rebinding) is of the same origin for its
//! browser, but its requests still carry that name. *Origin*: a page may post without reading the answer, and then its
//! browser names the page's origin. Clients that are no browsers send neither and notice nothing.

use crate::answers::errors::Refusal;
use crate::route::Route;
use hyper::header::{HOST, HeaderName, ORIGIN};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method};
use pinion_config::Config;
use std::net::IpAddr;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Under which names the service may be addressed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hosts {
    /// Under any.
    Any,
    /// Under local names, these, and any address if `addresses`: none can be rebound.
    Listed { names: Vec<String>, addresses: bool },
}

/// Which posts must not come from a page of another origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Posts {
    /// None: a page that has no key gets nothing, and one that has is meant to post.
    WithKey,
    /// Those of operators.
    Admin,
    /// All.
    All,
}

/// The rules of one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    hosts: Hosts,
    posts: Posts,
    origins: Vec<String>,
}

impl Guard {
    /// From the config.
    pub fn new(config: &Config) -> Guard {
        let (local, keyless) = (config.host.is_loopback(), config.api_keys.is_empty());
        Guard::of(local, keyless, config.allowed_hosts.clone(), config.cors_origins.clone())
    }

    /// For a service on a loopback address if `local`, without keys if `keyless`.
    pub fn of(local: bool, keyless: bool, names: Vec<String>, origins: Vec<String>) -> Guard {
        let exposed = local && keyless;
        let open = names.iter().any(|name| name == "*") || (names.is_empty() && !exposed);
        let hosts = if open { Hosts::Any } else { Hosts::Listed { names, addresses: !local } };
        let posts = match (keyless, local) {
            (false, _) => Posts::WithKey,
            (true, false) => Posts::Admin,
            (true, true) => Posts::All,
        };
        Guard { hosts, posts, origins }
    }

    /// Lets a request pass that names this service as its host.
    pub(crate) fn check_host(&self, head: &Parts) -> Result<(), Refusal> {
        // With an absolute target there are two names, and both must do.
        let named = head.headers.get(HOST).map(|host| host.to_str().unwrap_or(""));
        let target = head.uri.authority().map(|authority| authority.as_str());
        match named.into_iter().chain(target).find(|name| !self.serves(name)) {
            None => Ok(()),
            Some(name) => Err(Refusal::Host(name.to_owned())),
        }
    }

    fn serves(&self, authority: &str) -> bool {
        let Hosts::Listed { names, addresses } = &self.hosts else { return true };
        let host = without_port(authority);
        if let Ok(address) = host.parse::<IpAddr>() {
            let address = address.to_canonical();
            return *addresses || address.is_loopback() || names.contains(&address.to_string());
        }
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let below = |parent: &str| host.strip_suffix(parent).is_some_and(|child| child.ends_with('.'));
        host == "localhost"
            || below("localhost")
            || names.iter().any(|name| match name.strip_prefix("*.") {
                Some(parent) => below(parent),
                None => *name == host,
            })
    }

    /// Lets a request pass unless a page of another origin made a browser send it and it changes something.
    pub(crate) fn check_origin(&self, route: Route, head: &Parts) -> Result<(), Refusal> {
        let reads = matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS);
        let (guarded, listed) = match self.posts {
            Posts::WithKey => (false, true),
            Posts::Admin => (route.is_admin(), false),
            Posts::All => (true, !route.is_admin() && self.lists(&head.headers)),
        };
        if reads || !guarded || listed || !is_foreign(&head.headers) {
            return Ok(());
        }
        Err(Refusal::Origin { admin: route.is_admin() })
    }

    /// Whether pages of other origins may ask for the route at all.
    pub(crate) fn admits_pages(&self, route: Route) -> bool {
        self.posts == Posts::WithKey || !route.is_admin()
    }

    /// Whether the operator has allowed the page's origin.
    fn lists(&self, headers: &HeaderMap) -> bool {
        let listed = |origin: &str| self.origins.iter().any(|own| own.eq_ignore_ascii_case(origin));
        if self.origins.iter().any(|own| own == "*") {
            return true;
        }
        let mut fields = headers.get_all(ORIGIN).iter();
        match (fields.next(), fields.next()) {
            (Some(origin), None) => origin.to_str().is_ok_and(listed),
            _ => false,
        }
    }
}

/// Whether a browser says that the request comes from a page of another origin than the service's own.
fn is_foreign(headers: &HeaderMap) -> bool {
    let cross_site = headers.get_all(SEC_FETCH_SITE).iter().any(|site| site == "cross-site");
    let own = headers.get(HOST).and_then(|host| host.to_str().ok());
    let mut origins = headers.get_all(ORIGIN).iter();
    cross_site || origins.any(|origin| !origin.to_str().is_ok_and(|origin| is_own(origin, own)))
}

/// Whether `origin` is what a page that was loaded from `host` has. A proxy in front may speak TLS, so the scheme says
/// nothing but which port may be left out.
fn is_own(origin: &str, host: Option<&str>) -> bool {
    let (port, authority) = match origin.split_once("://") {
        Some(("http", authority)) => (":80", authority),
        Some(("https", authority)) => (":443", authority),
        _ => return false,
    };
    let bare = |name: &str| name.strip_suffix(port).unwrap_or(name).to_ascii_lowercase();
    host.is_some_and(|host| !authority.is_empty() && bare(host) == bare(authority))
}

/// `[::1]:8000`, `localhost:8000` and `localhost` as the host alone, an IPv6 address without its brackets.
fn without_port(authority: &str) -> &str {
    let authority = authority.rsplit_once('@').map_or(authority, |(_, rest)| rest);
    if let Some((address, _)) = authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    authority.split_once(':').map_or(authority, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn head(method: &str, fields: &[(&str, &str)]) -> Parts {
        let request = Request::builder().method(method).uri("/v1/completions");
        let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(()).expect("the fields are well-formed").into_parts().0
    }

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_service_on_loopback_without_a_key_has_local_names_and_those_it_was_given() {
        let guard = Guard::of(true, true, names(&["llm.example", "*.lan.example", "fd00::1"]), Vec::new());
        for good in [
            "localhost",
            "LOCALHOST:8000",
            "localhost.",
            "app.localhost:1",
            "127.0.0.1",
            "127.8.9.1:80",
            "[::1]",
            "[::1]:8000",
            "[::ffff:127.0.0.1]",
            "llm.example:8000",
            "LLM.example.",
            "a.lan.example",
            "a.b.lan.example:1",
            "[fd00::1]:80",
        ] {
            assert!(guard.serves(good), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "localhost.evil.example",
            "notlocalhost",
            "127.0.0.1.evil.example",
            "lan.example",
            "evillan.example",
            "sub.llm.example",
            "10.0.0.1",
            "0.0.0.0",
            "[::]",
            "[fd00::2]",
            "localhost@evil.example",
        ] {
            assert!(!guard.serves(bad), "{bad}");
        }
    }

    #[test]
    fn hosts_are_looked_at_where_no_key_is_asked_for_or_names_are_given() {
        let cases = [
            // On loopback, without a key, names; a foreign name passes, an address passes.
            (true, true, &[][..], false, false),
            (true, true, &["*"], true, true),
            (true, false, &[], true, true),
            (true, false, &["a"], false, false),
            (false, true, &[], true, true),
            (false, true, &["a"], false, true),
            (false, false, &["a", "*"], true, true),
        ];
        for (local, keyless, list, name_passes, address_passes) in cases {
            let guard = Guard::of(local, keyless, names(list), Vec::new());
            let passes = |host| guard.check_host(&head("GET", &[("host", host)])).is_ok();
            assert_eq!(passes("evil.example"), name_passes, "{guard:?}");
            assert_eq!(passes("192.0.2.1:8000"), address_passes, "{guard:?}");
            assert!(passes("localhost"), "{guard:?}");
        }
    }

    #[test]
    fn a_page_is_foreign_unless_its_origin_is_the_host_that_was_asked() {
        let cases: &[(&[(&str, &str)], bool)] = &[
            (&[], false),
            (&[("origin", "http://localhost:8000")], false),
            (&[("origin", "http://LOCALHOST:8000"), ("sec-fetch-site", "same-origin")], false),
            (&[("sec-fetch-site", "none")], false),
            (&[("origin", "http://localhost:3000"), ("sec-fetch-site", "same-site")], true),
            (&[("origin", "http://localhost")], true),
            (&[("origin", "http://127.0.0.1:8000")], true),
            (&[("origin", "null")], true),
            (&[("origin", "")], true),
            (&[("origin", "http://")], true),
            (&[("origin", "file://localhost:8000")], true),
            (&[("origin", "https://evil.example")], true),
            (&[("origin", "http://localhost:8000"), ("origin", "http://evil.example")], true),
            (&[("sec-fetch-site", "cross-site")], true),
            (&[("origin", "http://localhost:8000"), ("sec-fetch-site", "cross-site")], true),
        ];
        for (fields, foreign) in cases {
            let all = [&[("host", "localhost:8000")], *fields].concat();
            assert_eq!(is_foreign(&head("POST", &all).headers), *foreign, "{fields:?}");
        }
        for (origin, host, own) in [
            ("https://llm.example", Some("llm.example"), true),
            ("https://llm.example", Some("llm.example:443"), true),
            ("http://llm.example:80", Some("llm.example"), true),
            ("https://llm.example", Some("llm.example:80"), false),
            ("https://llm.example:8443", Some("llm.example"), false),
            ("http://[::1]:8000", Some("[::1]:8000"), true),
            ("http://llm.example", None, false),
        ] {
            assert_eq!(is_own(origin, host), own, "{origin} {host:?}");
        }
    }

    #[test]
    fn which_foreign_posts_are_refused() {
        const PAGE: &str = "https://page.example";
        // On loopback, without a key, origins; whether a foreign post to the API and to an admin route passes.
        for (local, keyless, origins, api, admin) in [
            (true, true, &[][..], false, false),
            (true, true, &["https://other.example"], false, false),
            (true, true, &[PAGE], true, false),
            (true, true, &["*"], true, false),
            (false, true, &[], true, false),
            (false, true, &["*"], true, false),
            (true, false, &[], true, true),
            (false, false, &[], true, true),
        ] {
            let guard = Guard::of(local, keyless, Vec::new(), names(origins));
            let post = head("POST", &[("host", "localhost"), ("origin", PAGE)]);
            let passes = |route, head: &Parts| guard.check_origin(route, head).is_ok();
            assert_eq!(passes(Route::Completions, &post), api, "{guard:?}");
            for route in [Route::ResetPrefixCache, Route::DebugTrace, Route::StartProfile, Route::StopProfile]
            {
                assert_eq!(passes(route, &post), admin, "{guard:?} {route:?}");
                assert_eq!(guard.admits_pages(route), admin, "{guard:?} {route:?}");
                assert!(passes(route, &head("POST", &[("host", "localhost")])), "a client without a page");
            }
            for method in ["GET", "HEAD", "OPTIONS"] {
                assert!(passes(Route::Metrics, &head(method, &[("host", "localhost"), ("origin", PAGE)])));
            }
        }
    }
}
