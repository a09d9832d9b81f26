//! One value from its text: the same reading for flags, environment and file.

use crate::cpu_set::{parse_cpu_set, show_cpu_set};
use crate::secret::{ApiKeys, NAMES_MAX, parse_hosts, parse_origins};
use crate::table::{Kind, Word};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Longest text value in bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// A value that its option's kind has accepted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Address(IpAddr),
    Switch(bool),
    /// A number, bytes, milliseconds, or the microseconds of a step's time.
    Number(u64),
    Share(f64),
    Cpus(BTreeSet<usize>),
    Secrets(ApiKeys),
    /// Origins, or names of hosts.
    Names(Vec<String>),
    Word(&'static str),
}

impl Value {
    /// Reads `text`. The error is a whole reason without the option's name.
    pub(crate) fn parse(kind: &Kind, text: &str) -> Result<Value, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err("is empty".to_owned());
        }
        match kind {
            Kind::Text | Kind::Folder | Kind::File => parse_text(text),
            Kind::Address => parse_address(text),
            Kind::Switch => match text {
                "1" | "true" | "on" => Ok(Value::Switch(true)),
                "0" | "false" | "off" => Ok(Value::Switch(false)),
                _ => Err(format!("`{text}` is neither true (1) nor false (0)")),
            },
            Kind::Number { min, max } => bounded(text, NUMBER_UNITS, *min, *max, u64::to_string),
            Kind::Bytes { min, max } => bounded(text, BYTE_UNITS, *min, *max, show_bytes),
            Kind::Duration { min_ms, max_ms } => bounded(text, TIME_UNITS, *min_ms, *max_ms, show_ms),
            Kind::StepTime { min_us, max_us } => parse_step_time(text, *min_us, *max_us),
            Kind::Share => parse_share(text),
            Kind::Cpus => parse_cpu_set(text).map(Value::Cpus),
            Kind::Secrets => ApiKeys::parse(text).map(Value::Secrets),
            Kind::Origins => parse_origins(text).map(Value::Names),
            Kind::Hosts => parse_hosts(text).map(Value::Names),
            Kind::Choice { accepted, refused } => parse_word(text, accepted, refused),
        }
    }

    /// What a flag that is given again makes of an earlier one: lists grow, everything else is replaced.
    pub(crate) fn followed_by(self, later: Value) -> Result<Value, String> {
        Ok(match (self, later) {
            (Value::Secrets(keys), Value::Secrets(more)) => Value::Secrets(keys.and(more)?),
            (Value::Names(mut names), Value::Names(more)) => {
                names.extend(more);
                if names.len() > NAMES_MAX {
                    return Err(format!("there are more than {NAMES_MAX} of them"));
                }
                Value::Names(names)
            }
            (_, later) => later,
        })
    }

    /// The value as it could be given again; keys are hidden.
    pub(crate) fn show(&self, kind: &Kind) -> String {
        match self {
            Value::Text(text) => text.clone(),
            Value::Address(address) => address.to_string(),
            Value::Switch(on) => on.to_string(),
            Value::Number(n) => match kind {
                Kind::Bytes { .. } => show_bytes(n),
                Kind::Duration { .. } => show_ms(n),
                Kind::StepTime { .. } => show_us_as_ms(n),
                _ => n.to_string(),
            },
            Value::Share(share) => share.to_string(),
            Value::Cpus(set) => show_cpu_set(set.iter().copied()),
            Value::Secrets(keys) => keys.show(),
            Value::Names(names) => names.join(","),
            Value::Word(word) => (*word).to_owned(),
        }
    }
}

fn parse_text(text: &str) -> Result<Value, String> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(format!("is longer than {TEXT_BYTES_MAX} bytes"));
    }
    if text.chars().any(char::is_control) {
        return Err("contains a control character".to_owned());
    }
    Ok(Value::Text(text.to_owned()))
}

fn parse_address(text: &str) -> Result<Value, String> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let bare = if bare == "localhost" { "127.0.0.1" } else { bare };
    bare.parse()
        .map(Value::Address)
        .map_err(|_| format!("`{text}` is not an IP address (host names are not looked up)"))
}

/// Milliseconds, to the microsecond: steps of small models on a GPU take a few.
const MICROS_UNITS: Units = &[("", 1000), ("ms", 1000)];

fn parse_step_time(text: &str, min_us: u64, max_us: u64) -> Result<Value, String> {
    match text {
        "off" => Ok(Value::Word("off")),
        "auto" => Ok(Value::Word("auto")),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || c == '.') => {
            bounded(text, MICROS_UNITS, min_us, max_us, show_us_as_ms)
        }
        _ => Err(format!("`{text}` is neither off nor auto nor a number of milliseconds")),
    }
}

/// `12500` as `12.5`.
fn show_us_as_ms(us: &u64) -> String {
    let whole = us / 1000;
    match us % 1000 {
        0 => whole.to_string(),
        rest => format!("{whole}.{rest:03}").trim_end_matches('0').to_owned(),
    }
}

fn parse_share(text: &str) -> Result<Value, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(Value::Share(share)),
        Ok(_) => Err(format!("`{text}` is not above 0 and at most 1")),
        Err(_) => Err(format!("`{text}` is not a number; expected a share like 0.25")),
    }
}

fn parse_word(text: &str, accepted: &[Word], refused: &[(&[&str], &str)]) -> Result<Value, String> {
    let lower = text.to_lowercase();
    for word in accepted {
        if word.name == lower || word.synonyms.contains(&lower.as_str()) {
            return Ok(Value::Word(word.name));
        }
    }
    if let Some((_, reason)) = refused.iter().find(|(names, _)| names.contains(&lower.as_str())) {
        return Err((*reason).to_owned());
    }
    let names: Vec<&str> = accepted.iter().map(|word| word.name).collect();
    Err(format!("`{text}` is not one of {}", names.join(", ")))
}

/// Unit names and their factors. The first entry is the meaning of no unit; with an empty name and factor 0 a
/// unit must be given.
type Units = &'static [(&'static str, u64)];

/// As in vLLM: small letters are decimal, capitals binary.
const NUMBER_UNITS: Units = &[
    ("", 1),
    ("k", 1000),
    ("m", 1_000_000),
    ("g", 1_000_000_000),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
];
const BYTE_UNITS: Units = &[
    ("", 1),
    ("B", 1),
    ("k", 1000),
    ("kB", 1000),
    ("KB", 1000),
    ("K", 1 << 10),
    ("KiB", 1 << 10),
    ("m", 1_000_000),
    ("MB", 1_000_000),
    ("M", 1 << 20),
    ("MiB", 1 << 20),
    ("g", 1_000_000_000),
    ("GB", 1_000_000_000),
    ("G", 1 << 30),
    ("GiB", 1 << 30),
];
const TIME_UNITS: Units =
    &[("", 0), ("ms", 1), ("s", 1000), ("m", 60_000), ("min", 60_000), ("h", 3_600_000)];

fn bounded(text: &str, units: Units, min: u64, max: u64, show: fn(&u64) -> String) -> Result<Value, String> {
    let n = scaled(text, units)?;
    if (min..=max).contains(&n) {
        return Ok(Value::Number(n));
    }
    let limit = if n < min { format!("below {}", show(&min)) } else { format!("above {}", show(&max)) };
    Err(format!("`{text}` is {limit}"))
}

/// A decimal number with a unit, exactly: no floating point, so no value is silently rounded.
fn scaled(text: &str, units: Units) -> Result<u64, String> {
    let whole = format!("`{text}` is not a whole number");
    if let Some(rest) = text.strip_prefix('-') {
        let reason =
            if rest.starts_with(|c: char| c.is_ascii_digit()) { "is negative" } else { "is not a number" };
        return Err(format!("`{text}` {reason}"));
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    let (digits, unit) = (text[..end].replace('_', ""), text[end..].trim());
    if digits.is_empty() {
        return Err(format!("`{text}` is not a number"));
    }
    let names = || units.iter().map(|(n, _)| *n).filter(|n| !n.is_empty()).collect::<Vec<_>>().join(", ");
    let factor = match units.iter().find(|(name, _)| *name == unit) {
        Some((_, 0)) if digits.chars().all(|c| c == '0') => 1,
        Some((_, 0)) => return Err(format!("`{text}` needs a unit: {}", names())),
        Some((_, factor)) => *factor,
        None => return Err(format!("`{unit}` is not a unit: {}", names())),
    };
    let (integer, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    let fraction = fraction.trim_end_matches('0');
    if integer.is_empty() || fraction.contains('.') {
        return Err(format!("`{text}` is not a number"));
    }
    let too_large = || format!("`{text}` is too large");
    let scale =
        u32::try_from(fraction.len()).ok().and_then(|n| 10_u128.checked_pow(n)).ok_or(whole.clone())?;
    let all = format!("{integer}{fraction}").parse::<u128>().map_err(|_| too_large())?;
    let scaled = all.checked_mul(u128::from(factor)).ok_or_else(too_large)?;
    if scaled % scale != 0 {
        return Err(whole);
    }
    u64::try_from(scaled / scale).map_err(|_| too_large())
}

/// `524288` as `512KiB`: the largest binary unit that divides.
fn show_bytes(bytes: &u64) -> String {
    show_units(*bytes, &[("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)], "B")
}

/// `5.8 GiB`, for reading only.
pub fn human_bytes(bytes: u64) -> String {
    let units = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = units.iter().find(|(_, factor)| bytes >= *factor);
    unit.map_or_else(
        || format!("{bytes} B"),
        |(unit, factor)| format!("{:.1} {unit}", bytes as f64 / *factor as f64),
    )
}

fn show_ms(ms: &u64) -> String {
    show_units(*ms, &[("h", 3_600_000), ("m", 60_000), ("s", 1000)], "ms")
}

fn show_units(n: u64, units: &[(&str, u64)], rest: &str) -> String {
    let exact = units.iter().find(|(_, factor)| n >= *factor && n.is_multiple_of(*factor));
    exact.map_or_else(|| format!("{n}{rest}"), |(unit, factor)| format!("{}{unit}", n / factor))
}
