//! What the operator reads when the service is ready: its address, and what to do next.

use pinion_config::Config;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The lines. The first one has its form from OPERATIONS.md; scripts read it.
pub(crate) fn lines(config: &Config, address: SocketAddr) -> String {
    said(address, &config.served_model_name, config.ui, !config.api_keys.is_empty())
}

fn said(address: SocketAddr, model: &str, pages: bool, keyed: bool) -> String {
    let near = SocketAddr::new(reachable(address.ip()), address.port());
    let key = if keyed { " -H \"authorization: Bearer $PINION_KEY\"" } else { "" };
    let mut out = format!("pinion is ready: http://{address} serves {model}");
    if pages {
        out.push_str(&format!("\n  chat in a browser:  http://{near}/"));
        out.push_str(&format!("\n  read and try the API:  http://{near}/docs"));
    }
    out.push_str(&format!(
        "\n  ask from a shell:  curl -sN http://{near}/v1/completions{key} -H 'content-type: application/json' \
         -d '{{\"prompt\": \"Once upon a time\", \"max_tokens\": 48, \"stream\": true}}'"
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

    #[test]
    fn the_next_steps_follow_the_line_that_scripts_read() {
        let text = said("127.0.0.1:8000".parse().unwrap(), "demo-model", true, false);
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("pinion is ready: http://127.0.0.1:8000 serves demo-model"));
        let rest: Vec<&str> = lines.collect();
        assert!(rest[0].ends_with(" http://127.0.0.1:8000/") && rest[1].ends_with("/docs"), "{rest:?}");
        assert!(rest[2].contains("curl -sN http://127.0.0.1:8000/v1/completions -H") && rest.len() == 3);
    }

    #[test]
    fn they_name_an_address_that_can_be_opened_the_key_and_no_page_that_is_not_served() {
        for (address, near) in [("0.0.0.0:80", "http://127.0.0.1:80/"), ("[::]:9000", "http://[::1]:9000/")] {
            let text = said(address.parse().unwrap(), "m", true, true);
            assert!(text.starts_with(&format!("pinion is ready: http://{address} serves m\n")), "{text}");
            assert!(text.contains(near) && text.contains("Bearer $PINION_KEY"), "{text}");
        }
        let text = said("127.0.0.1:1".parse().unwrap(), "m", false, false);
        assert!(!text.contains("browser") && !text.contains("/docs") && !text.contains("Bearer"), "{text}");
    }
}
