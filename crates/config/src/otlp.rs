//! Where the spans of requests go: to a collector that speaks OTLP over HTTP, named by `otlp-traces-endpoint` or by
//! OpenTelemetry's own variables.

use crate::fault::{Collector, Origin};
use crate::sources::{Environment, Settings};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

const OPTION: &str = "otlp-traces-endpoint";
/// Where a collector takes traces, unless the address says otherwise.
const TRACES_PATH: &str = "/v1/traces";
/// Of an address that names none.
const HTTP_PORT: u16 = 80;
/// What an address looks like, for people.
const FORM: &str = "http://HOST:PORT";
/// What an address has nowhere, or not here.
const NO_PART_OF_A_URL: [char; 6] = ['#', '"', '\\', '<', '>', '`'];
/// Unless a variable says otherwise.
const SERVICE_NAME: &str = "pinion";
/// Most attributes of the resource, and the most bytes of the variable that has them.
const ATTRIBUTES_MAX: usize = 64;
const ATTRIBUTES_BYTES_MAX: usize = 8 << 10;

const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_PROTOCOL: &str = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
const SERVICE: &str = "OTEL_SERVICE_NAME";
const RESOURCE: &str = "OTEL_RESOURCE_ATTRIBUTES";
const DISABLED: &str = "OTEL_SDK_DISABLED";
const EXPORTER: &str = "OTEL_TRACES_EXPORTER";

/// OpenTelemetry's variables that count here, as far as they are set.
#[derive(Clone, Debug, Default)]
pub(crate) struct OtelVariables(Vec<(&'static str, String)>);

impl OtelVariables {
    pub(crate) fn of(environment: &Environment) -> OtelVariables {
        let names =
            [TRACES_ENDPOINT, ENDPOINT, TRACES_PROTOCOL, PROTOCOL, SERVICE, RESOURCE, DISABLED, EXPORTER];
        let set = |name: &'static str| {
            let text = environment.text(name)?.trim();
            (!text.is_empty()).then(|| (name, text.to_owned()))
        };
        OtelVariables(names.into_iter().filter_map(set).collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, text)| text.as_str())
    }

    /// Whether they say that no program is to send traces by OTLP.
    fn forbid(&self) -> bool {
        let is_disabled = self.get(DISABLED).is_some_and(|word| word.eq_ignore_ascii_case("true"));
        let is_other = |exporters: &str| !exporters.split(',').any(|exporter| exporter.trim() == "otlp");
        is_disabled || self.get(EXPORTER).is_some_and(is_other)
    }
}

/// A collector, and what it is told of this service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtlpTraces {
    /// `HOST:PORT`, or `HOST` if the address has no port.
    pub authority: String,
    /// The host alone, to be looked up.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Where traces are posted to.
    pub path: String,
    /// What the host is; empty until the launcher has looked a name up, and if there is no such name.
    pub addresses: Vec<SocketAddr>,
    /// Attributes of the resource: keys and values. `service.name` is the first.
    pub resource: Vec<(String, String)>,
}

impl OtlpTraces {
    /// What the option and the variables say, or `None` without a collector; notes their faults.
    pub(crate) fn resolve(settings: &Settings, faults: &mut Collector) -> Option<OtlpTraces> {
        let variables = settings.otel();
        let (url, origin) = named(settings, faults)?;
        let address = Address::parse(&url).inspect_err(|reason| faults.add(&origin, reason.as_str()));
        let resource = resource(variables, faults);
        let Address { authority, host, port, path } = address.ok()?;
        let addresses = host.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, port)).into_iter().collect();
        Some(OtlpTraces { authority, host, port, path, addresses, resource })
    }

    /// Where traces are posted to, in full.
    pub fn url(&self) -> String {
        format!("http://{}{}", self.authority, self.path)
    }
}

/// The address that traces are posted to, and where it is named.
fn named(settings: &Settings, faults: &mut Collector) -> Option<(String, Origin)> {
    let variables = settings.otel();
    if let Some(text) = settings.text(OPTION) {
        return (text != "none").then(|| (with_path(text), settings.origin(OPTION)));
    }
    if variables.forbid() {
        return None;
    }
    let own = variables.get(TRACES_ENDPOINT).map(|text| (text.to_owned(), TRACES_ENDPOINT));
    let shared = || variables.get(ENDPOINT).map(|text| (with_path(text), ENDPOINT));
    let (url, variable) = own.or_else(shared)?;
    let set = [TRACES_PROTOCOL, PROTOCOL].into_iter().find_map(|name| Some((name, variables.get(name)?)));
    if let Some((name, protocol)) = set.filter(|(_, protocol)| !protocol.starts_with("http/")) {
        let reason = format!(
            "spans are sent as http/json, and `{protocol}` is not spoken: name the collector's port for HTTP with \
             --{OPTION}, or `none`"
        );
        faults.add(&Origin::Environment(name.to_owned()), reason);
    }
    Some((url, Origin::Environment(variable.to_owned())))
}

/// A base address becomes the one for traces.
fn with_path(url: &str) -> String {
    let url = url.trim_end_matches('/');
    if url.ends_with(TRACES_PATH) { url.to_owned() } else { format!("{url}{TRACES_PATH}") }
}

#[derive(Debug, PartialEq, Eq)]
struct Address {
    authority: String,
    host: String,
    port: u16,
    path: String,
}

impl Address {
    /// Reads `http://HOST[:PORT][/PATH]`. Errors: what is wrong with the text, without what may be a password or a key
    /// in it.
    fn parse(url: &str) -> Result<Address, String> {
        if url.contains(['@', '?']) {
            return Err(format!("users, passwords and queries are not sent; expected {FORM}"));
        }
        if url.starts_with("https://") {
            return Err(format!(
                "`{url}`: TLS is not spoken here; name an http:// address, as of a collector on this machine"
            ));
        }
        let wrong = || format!("`{url}` is no address of a collector; expected {FORM}");
        let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) || rest.contains(NO_PART_OF_A_URL) {
            return Err(wrong());
        }
        let (host, port) = match authority.rsplit_once(':') {
            // The last colon of [::1] belongs to the address.
            Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| wrong())?),
            _ => (authority, HTTP_PORT),
        };
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let is_host = match bare {
            Some(bare) => bare.parse::<Ipv6Addr>().is_ok(),
            None => !host.is_empty() && !host.contains([':', '[', ']']),
        };
        if !is_host || port == 0 {
            return Err(wrong());
        }
        let path = if path.is_empty() { "/" } else { path };
        Ok(Address {
            authority: authority.to_owned(),
            host: bare.unwrap_or(host).to_owned(),
            port,
            path: path.to_owned(),
        })
    }
}

/// What a collector is told of this service: its name, and what the variable adds.
fn resource(variables: &OtelVariables, faults: &mut Collector) -> Vec<(String, String)> {
    let text = variables.get(RESOURCE).unwrap_or_default();
    let mut pairs = attributes(text).unwrap_or_else(|reason| {
        faults.add(&Origin::Environment(RESOURCE.to_owned()), reason);
        Vec::new()
    });
    let named = pairs.iter().position(|(key, _)| key == "service.name").map(|at| pairs.remove(at).1);
    pairs.retain(|(key, _)| key != "service.name");
    let name = variables.get(SERVICE).map(str::to_owned).or(named);
    pairs.insert(0, ("service.name".to_owned(), name.unwrap_or_else(|| SERVICE_NAME.to_owned())));
    pairs
}

/// Reads `KEY=VALUE,KEY=VALUE`, percent-encoded. Errors: what is wrong with the text.
fn attributes(text: &str) -> Result<Vec<(String, String)>, String> {
    if text.len() > ATTRIBUTES_BYTES_MAX {
        return Err(format!("is longer than {ATTRIBUTES_BYTES_MAX} bytes"));
    }
    let mut pairs = Vec::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let pair = item.split_once('=').and_then(|(key, value)| {
            let key = decoded(key.trim()).filter(|key| !key.is_empty())?;
            Some((key, decoded(value.trim())?))
        });
        pairs.push(pair.ok_or_else(|| format!("`{item}` is no KEY=VALUE, percent-encoded"))?);
    }
    if pairs.len() > ATTRIBUTES_MAX {
        return Err(format!("has {} attributes, more than {ATTRIBUTES_MAX}", pairs.len()));
    }
    Ok(pairs)
}

/// Undoes percent-encoding.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
            u8::try_from(high * 16 + low).ok()?
        } else {
            byte
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_perhaps_a_port_and_a_path() {
        let address = |authority: &str, host: &str, port, path: &str| Address {
            authority: authority.to_owned(),
            host: host.to_owned(),
            port,
            path: path.to_owned(),
        };
        for (url, expected) in [
            ("http://127.0.0.1:4318/v1/traces", address("127.0.0.1:4318", "127.0.0.1", 4318, "/v1/traces")),
            ("http://collector", address("collector", "collector", 80, "/")),
            ("http://[::1]:4318/", address("[::1]:4318", "::1", 4318, "/")),
            ("http://[::1]/x/y", address("[::1]", "::1", 80, "/x/y")),
            ("http://a.b-c_d:65535/x", address("a.b-c_d:65535", "a.b-c_d", 65535, "/x")),
        ] {
            assert_eq!(Address::parse(url), Ok(expected), "{url}");
        }
        for url in [
            "",
            "http://",
            "http:///v1/traces",
            "http://:4318",
            "http://host:0",
            "http://host:65536",
            "http://host:x",
            "http://::1:4318",
            "http://[host]:1",
            "http://user:secret@host:1",
            "http://host:1/v1?x",
            "http://<host>:4318",
            "http://host:1/`x`",
            "http://host:1/a b",
            "http://hö:1",
            "host:4318",
            "grpc://host:4317",
            "https://host:4318",
        ] {
            assert!(Address::parse(url).is_err(), "{url}");
        }
    }

    /// A fault goes to the log.
    #[test]
    fn a_fault_quotes_no_password_and_no_key() {
        for url in [
            "http://user:s3cret@host:4318",
            "https://user:s3cret@host/v1/traces",
            "http://host:4318/v1/traces?api-key=s3cret",
            "user:s3cret@host:4318",
        ] {
            let fault = Address::parse(url).expect_err(url);
            assert!(!fault.contains("s3cret") && fault.contains("expected http://HOST:PORT"), "{fault}");
        }
    }

    #[test]
    fn a_base_address_gets_the_path_of_traces_once() {
        for (url, expected) in [
            ("http://a:1", "http://a:1/v1/traces"),
            ("http://a:1/", "http://a:1/v1/traces"),
            ("http://a:1/v1/traces", "http://a:1/v1/traces"),
            ("http://a:1/otlp/", "http://a:1/otlp/v1/traces"),
        ] {
            assert_eq!(with_path(url), expected);
        }
    }

    #[test]
    fn attributes_are_pairs_with_percent_encoding() {
        let pairs = |text: &str| attributes(text).map_err(|_| ());
        let owned = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(pairs(""), Ok(vec![]));
        assert_eq!(pairs(" a.b = c%2Cd ,e=,"), Ok(vec![owned("a.b", "c,d"), owned("e", "")]));
        for text in ["a", "=b", "a=%", "a=%2", "a=%zz", "a=%ff"] {
            assert_eq!(pairs(text), Err(()), "{text}");
        }
        let many = "k=v,".repeat(ATTRIBUTES_MAX);
        assert!(pairs(&many).is_ok() && pairs(&format!("{many}k=v")).is_err());
        assert!(pairs(&format!("k={}", "v".repeat(ATTRIBUTES_BYTES_MAX))).is_err());
    }
}
