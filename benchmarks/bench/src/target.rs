//! Where the server is: `http://host:port[/prefix]`. Plain HTTP only: what is measured here stands beside the client.

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// `host:port`, as it is dialled and as it stands in the Host field.
    pub authority: String,
    /// What stands before `/v1`; empty for most.
    pub prefix: String,
    /// Sent as `Authorization: Bearer`.
    pub key: Option<String>,
}

impl Target {
    pub(crate) fn parse(url: &str, key: Option<&str>) -> Result<Target, String> {
        let rest = url.strip_prefix("http://").ok_or_else(|| format!("`{url}`: only http:// is measured"))?;
        let (authority, prefix) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let prefix = prefix.trim_end_matches('/').trim_end_matches("/v1");
        let port = authority.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if port.is_some() { authority.to_owned() } else { format!("{authority}:80") };
        if authority.starts_with(':') {
            return Err(format!("`{url}` names no host"));
        }
        Ok(Target { authority, prefix: prefix.to_owned(), key: key.map(str::to_owned) })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}{}", self.authority, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_as_people_give_them() {
        let cases = [
            ("http://127.0.0.1:8000", "127.0.0.1:8000", ""),
            ("http://127.0.0.1:8000/", "127.0.0.1:8000", ""),
            ("http://localhost:8000/v1/", "localhost:8000", ""),
            ("http://gateway/pinion/v1", "gateway:80", "/pinion"),
            ("http://[::1]:9000", "[::1]:9000", ""),
        ];
        for (url, authority, prefix) in cases {
            let target = Target::parse(url, None).expect(url);
            assert_eq!((target.authority.as_str(), target.prefix.as_str()), (authority, prefix), "{url}");
        }
        for url in ["https://example.org", "127.0.0.1:8000", "http://"] {
            assert!(Target::parse(url, None).is_err(), "{url}");
        }
    }
}
