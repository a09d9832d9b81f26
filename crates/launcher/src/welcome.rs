//! What the operator reads when the service is ready: its address, and what to do next.

use pinion_config::Config;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What a service has that its next steps depend on.
#[derive(Clone, Copy)]
struct Has {
    pages: bool,
    key: bool,
    /// The model gives vectors and no text.
    pooling: bool,
}

/// The lines. The first one has its form from OPERATIONS.md; scripts read it.
pub(crate) fn lines(config: &Config, address: SocketAddr) -> String {
    let has = Has { pages: config.ui, key: !config.api_keys.is_empty(), pooling: config.pooling.is_some() };
    said(address, &config.served_model_name, has)
}

fn said(address: SocketAddr, model: &str, has: Has) -> String {
    let near = SocketAddr::new(reachable(address.ip()), address.port());
    let key = if has.key { " -H \"authorization: Bearer $PINION_API_KEY\"" } else { "" };
    let mut out = format!("pinion is ready: http://{address} serves {model}");
    if has.pages {
        if !has.pooling {
            out.push_str(&format!("\n  chat in a browser:  http://{near}/"));
        }
        out.push_str(&format!("\n  read and try the API:  http://{near}/docs"));
    }
    let (route, body) = if has.pooling {
        ("embeddings", r#"{"input": "Once upon a time"}"#)
    } else {
        ("completions", r#"{"prompt": "Once upon a time", "max_tokens": 48, "stream": true}"#)
    };
    out.push_str(&format!(
        "\n  ask from a shell:  curl -sN http://{near}/v1/{route}{key} -H 'content-type: application/json' -d '{body}'"
    ));
    out
}

/// An address that a client on this machine can use: one that stands for all is none.
fn reachable(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(any) if any.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(any) if any.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Has = Has { pages: true, key: false, pooling: false };

    #[test]
    fn the_next_steps_follow_the_line_that_scripts_read() {
        let text = said("127.0.0.1:8000".parse().unwrap(), "demo-model", ALL);
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("pinion is ready: http://127.0.0.1:8000 serves demo-model"));
        let rest: Vec<&str> = lines.collect();
        assert!(rest[0].ends_with(" http://127.0.0.1:8000/") && rest[1].ends_with("/docs"), "{rest:?}");
        assert!(rest[2].contains("curl -sN http://127.0.0.1:8000/v1/completions -H") && rest.len() == 3);
    }

    #[test]
    fn they_name_an_address_that_can_be_opened_the_key_and_no_page_that_is_not_served() {
        for (address, near) in [("0.0.0.0:80", "http://127.0.0.1:80/"), ("[::]:9000", "http://[::1]:9000/")] {
            let text = said(address.parse().unwrap(), "m", Has { key: true, ..ALL });
            assert!(text.starts_with(&format!("pinion is ready: http://{address} serves m\n")), "{text}");
            assert!(text.contains(near) && text.contains("Bearer $PINION_API_KEY"), "{text}");
        }
        let text = said("127.0.0.1:1".parse().unwrap(), "m", Has { pages: false, ..ALL });
        assert!(!text.contains("browser") && !text.contains("/docs") && !text.contains("Bearer"), "{text}");
    }

    #[test]
    fn a_model_that_pools_is_asked_for_vectors_and_not_for_a_chat() {
        let text = said("127.0.0.1:1".parse().unwrap(), "m", Has { pooling: true, ..ALL });
        let rest: Vec<&str> = text.lines().skip(1).collect();
        assert!(rest.len() == 2 && rest[0].ends_with("/docs"), "{text}");
        assert!(
            rest[1].contains("/v1/embeddings -H") && rest[1].ends_with(r#"'{"input": "Once upon a time"}'"#)
        );
    }
}
