//! Lists of words that options hold, and the one of them that nobody may see: the API keys.

use serde::{Deserialize, Serialize};

/// Keys that a service may have.
pub(crate) const API_KEYS_MAX: usize = 64;
/// Bytes of one key.
pub(crate) const API_KEY_BYTES_MAX: usize = 256;
/// Origins that may be allowed.
pub(crate) const ORIGINS_MAX: usize = 64;
const ORIGIN_BYTES_MAX: usize = 256;

/// Environment variables that no role process may inherit.
pub const SECRET_VARIABLES: [&str; 3] =
    ["PINION_API_KEY", crate::hub::TOKEN_VARIABLES[0], crate::hub::TOKEN_VARIABLES[1]];

/// The keys of which a client must have one. Neither `Debug` nor `config show` shows them.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKeys(Vec<String>);

impl ApiKeys {
    /// These keys.
    pub fn new(keys: Vec<String>) -> ApiKeys {
        ApiKeys(keys)
    }

    /// Whether nobody needs a key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Their bytes.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(String::as_bytes)
    }

    /// Reads a comma-separated list. The error never has a part of a key in it.
    pub(crate) fn parse(text: &str) -> Result<ApiKeys, String> {
        let keys: Vec<String> = text.split(',').map(|key| key.trim().to_owned()).collect();
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
        ApiKeys::default().and(ApiKeys(keys))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_lists_with_limits_and_are_not_shown() {
        let keys = ApiKeys::parse("sk-one, sk-two").unwrap();
        assert_eq!(keys.iter().collect::<Vec<_>>(), [b"sk-one", b"sk-two"]);
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
    fn origins_have_a_scheme_and_no_path() {
        let good = parse_origins("https://Example.org/, http://localhost:3000,*").unwrap();
        assert_eq!(good, ["https://example.org", "http://localhost:3000", "*"]);
        for bad in ["", "example.org", "https://", "https://a/b", "null", "https://*.a.org", "https://u@a"] {
            assert!(parse_origins(bad).is_err(), "{bad}");
        }
    }
}
