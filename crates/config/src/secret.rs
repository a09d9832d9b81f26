//! Options that are lists of words, and the one of them that is never shown: the API keys.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::net::IpAddr;

/// Keys that a service may have.
pub(crate) const API_KEYS_MAX: usize = 64;
/// Bytes of one key.
pub(crate) const API_KEY_BYTES_MAX: usize = 256;
/// Origins, or names of hosts, that one option may list.
pub(crate) const NAMES_MAX: usize = 64;
const ORIGIN_BYTES_MAX: usize = 256;
/// As in DNS.
const HOST_BYTES_MAX: usize = 253;

/// Variables with a secret of the hub in them.
pub(crate) const TOKEN_VARIABLES: [&str; 2] = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];
/// Environment variables that no role process may inherit.
pub const SECRET_VARIABLES: [&str; 3] = ["PINION_API_KEY", TOKEN_VARIABLES[0], TOKEN_VARIABLES[1]];

/// The keys of which a client must have one, as digests: no process keeps a key, so that none can give it away. Neither
/// `Debug` nor `config show` shows them.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKeys(Vec<Digest>);

/// SHA-256 of a key.
type Digest = [u8; 32];

fn digest(key: &[u8]) -> Digest {
    Sha256::digest(key).into()
}

impl ApiKeys {
    /// These keys.
    pub fn new(keys: Vec<String>) -> ApiKeys {
        ApiKeys(keys.iter().map(|key| digest(key.as_bytes())).collect())
    }

    /// Whether no key is needed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Which of the keys `shown` is. The time says nothing about them: what is compared is a digest of `shown`.
    pub fn place(&self, shown: &[u8]) -> Option<usize> {
        let shown = digest(shown);
        self.0.iter().position(|key| *key == shown)
    }

    /// Reads a comma-separated list. The error never has a part of a key in it.
    pub(crate) fn parse(text: &str) -> Result<ApiKeys, String> {
        let keys: Vec<&str> = text.split(',').map(str::trim).collect();
        for key in &keys {
            if key.is_empty() {
                return Err("has an empty key".to_owned());
            }
            if key.len() > API_KEY_BYTES_MAX {
                return Err(format!("has a key that is longer than {API_KEY_BYTES_MAX} bytes"));
            }
            if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err("has a key with a character other than printable ASCII without spaces".to_owned());
            }
        }
        ApiKeys::default().and(ApiKeys(keys.iter().map(|key| digest(key.as_bytes())).collect()))
    }

    /// Both lists.
    pub(crate) fn and(mut self, more: ApiKeys) -> Result<ApiKeys, String> {
        self.0.extend(more.0);
        if self.0.len() > API_KEYS_MAX {
            return Err(format!("there are more than {API_KEYS_MAX} keys"));
        }
        Ok(self)
    }

    /// What may be shown of them.
    pub(crate) fn show(&self) -> String {
        match self.0.len() {
            1 => "1 key, hidden".to_owned(),
            count => format!("{count} keys, hidden"),
        }
    }
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKeys({})", self.show())
    }
}

/// Reads a comma-separated list of web origins, or `*`.
pub(crate) fn parse_origins(text: &str) -> Result<Vec<String>, String> {
    let origins: Vec<String> =
        text.split(',').map(|origin| origin.trim().trim_end_matches('/').to_ascii_lowercase()).collect();
    for origin in &origins {
        let host = origin.split_once("://").map_or("", |(_, host)| host);
        let plain = origin.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"');
        let is_origin = !host.is_empty() && !host.contains(['/', '?', '#', '@', '*']);
        if origin != "*" && !(is_origin && plain && origin.len() <= ORIGIN_BYTES_MAX) {
            return Err(format!("`{origin}` is no origin; expected scheme://host[:port], or * for all"));
        }
    }
    Ok(origins)
}

/// Reads a comma-separated list of host names and addresses without ports; `*.NAME` is every name below NAME, `*` every
/// name.
pub(crate) fn parse_hosts(text: &str) -> Result<Vec<String>, String> {
    text.split(',').map(|host| parse_host(host.trim())).collect()
}

fn parse_host(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(address.to_string());
    }
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let plain = name.strip_prefix("*.").unwrap_or(&name);
    let in_names = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_name = !plain.is_empty() && !plain.starts_with('.') && plain.bytes().all(in_names);
    if text == "*" || (is_name && name.len() <= HOST_BYTES_MAX) {
        return Ok(name);
    }
    Err(format!(
        "`{text}` is no host name; expected NAME, *.NAME or an address, each without a port, or * for all"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_lists_with_limits_and_are_not_shown() {
        let keys = ApiKeys::parse("sk-one, sk-two").unwrap();
        assert_eq!((keys.place(b"sk-one"), keys.place(b"sk-two"), keys.count()), (Some(0), Some(1), 2));
        for bad in ["", "s", "sk-on", "sk-one1", "sk-onE", "sk-one\0", "sk-one, sk-two"] {
            assert_eq!(keys.place(bad.as_bytes()), None, "{bad:?}");
        }
        for shown in [format!("{keys:?}"), keys.show()] {
            assert!(shown.contains("2 keys") && !shown.contains("sk-"), "{shown}");
        }
        let long = "k".repeat(API_KEY_BYTES_MAX + 1);
        for bad in ["sk-one,", ",", "sk one", "sk-é", long.as_str()] {
            let reason = ApiKeys::parse(bad).unwrap_err();
            assert!(!reason.contains("sk") && !reason.contains("kkk"), "{reason}");
        }
        assert!(ApiKeys::parse(&vec!["k"; API_KEYS_MAX].join(",")).is_ok());
        assert!(ApiKeys::parse(&vec!["k"; API_KEYS_MAX + 1].join(",")).is_err());
    }

    #[test]
    fn hosts_are_names_or_addresses_without_a_port() {
        let good = parse_hosts("LLM.example.org., *.Example.org,my_box,[FD00::1],10.0.0.1,*").unwrap();
        assert_eq!(good, ["llm.example.org", "*.example.org", "my_box", "fd00::1", "10.0.0.1", "*"]);
        for bad in ["", "a,", "a:80", "[fd00::1]:80", "http://a", "a.*", "*a", "*.", "*.*", ".a", "a b"] {
            assert!(parse_hosts(bad).is_err(), "{bad}");
        }
        assert!(parse_hosts(&"n".repeat(HOST_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn origins_have_a_scheme_and_no_path() {
        let good = parse_origins("https://Example.org/, http://localhost:3000,*").unwrap();
        assert_eq!(good, ["https://example.org", "http://localhost:3000", "*"]);
        for bad in ["", "example.org", "https://", "https://a/b", "null", "https://*.a.org", "https://u@a"] {
            assert!(parse_origins(bad).is_err(), "{bad}");
        }
    }
}
