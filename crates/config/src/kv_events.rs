//! Where changes of the prefix cache are published.

use crate::fault::Collector;
use crate::sources::Settings;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Longest topic in bytes.
const TOPIC_BYTES_MAX: usize = 512;
/// The options that mean nothing without `kv-events`.
const PARTS: [&str; 3] = ["kv-events-replay", "kv-events-topic", "cpus-events"];

/// KV events over ZeroMQ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvEvents {
    /// Where subscribers connect.
    pub publish: SocketAddr,
    /// Where missed batches are asked for.
    pub replay: Option<SocketAddr>,
    /// First frame of each message; empty unless it is given, as in vLLM.
    pub topic: String,
}

impl KvEvents {
    /// What the options say, or `None` without `kv-events`; notes their faults.
    pub(crate) fn resolve(settings: &Settings, faults: &mut Collector) -> Option<KvEvents> {
        let Some(publish) = settings.text("kv-events") else {
            for option in PARTS.into_iter().filter(|option| settings.is_set(option)) {
                faults.add(
                    &settings.origin(option),
                    "needs --kv-events, the endpoint that events are published at",
                );
            }
            return None;
        };
        let mut endpoint = |option: &str, text: &str| {
            let address = address_of(text);
            if let Err(reason) = &address {
                faults.add(&settings.origin(option), reason.as_str());
            }
            address.ok()
        };
        let publish = endpoint("kv-events", publish);
        let replay = settings.text("kv-events-replay").map(|text| endpoint("kv-events-replay", text));
        let topic = settings.text("kv-events-topic").unwrap_or_default().to_owned();
        if topic.len() > TOPIC_BYTES_MAX {
            let reason = format!("is longer than {TOPIC_BYTES_MAX} bytes");
            faults.add(&settings.origin("kv-events-topic"), reason);
        }
        if settings.switch("prefix-cache") == Some(false) {
            let reason = "publishes what the prefix cache holds, and --no-prefix-cache switches that off; leave one of the two out";
            faults.add(&settings.origin("kv-events"), reason);
        }
        if let (Some(publish), Some(Some(replay))) = (publish, replay)
            && (publish.port() == replay.port() && publish.port() != 0)
        {
            let reason = format!("has the port of --kv-events, {}; choose another", publish.port());
            faults.add(&settings.origin("kv-events-replay"), reason);
        }
        Some(KvEvents { publish: publish?, replay: replay.flatten(), topic })
    }
}

/// `tcp://ADDRESS:PORT`; `*` is every address of the machine.
fn address_of(text: &str) -> Result<SocketAddr, String> {
    let wrong = || format!("`{text}` is no endpoint like tcp://127.0.0.1:5557 or tcp://*:5557");
    let (host, port) =
        text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')).ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    let host = match host {
        "*" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        host => {
            let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
            bare.parse().map_err(|_| wrong())?
        }
    };
    Ok(SocketAddr::new(host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_tcp_with_an_address_and_a_port() {
        for (text, address) in [
            ("tcp://127.0.0.1:5557", Some("127.0.0.1:5557")),
            ("tcp://localhost:1", Some("127.0.0.1:1")),
            ("tcp://*:5557", Some("0.0.0.0:5557")),
            ("tcp://[::1]:0", Some("[::1]:0")),
            ("tcp://[::]:80", Some("[::]:80")),
            ("tcp://10.0.0.1", None),
            ("tcp://host.example:1", None),
            ("tcp://*:65536", None),
            ("ipc:///run/kv", None),
            ("5557", None),
            ("", None),
        ] {
            let expected = address.map(|address| address.parse().unwrap());
            assert_eq!(address_of(text).ok(), expected, "{text}");
        }
    }
}
