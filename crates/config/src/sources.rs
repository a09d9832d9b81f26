//! Collects every option's value from defaults, file, environment and flags, in rising order of precedence.
//! Each source's faults are kept, also those of values that a later source replaces.

use crate::fault::{Collector, Origin};
use crate::foreign::FOREIGN;
use crate::options::{OPTIONS, SCRIPT_VARIABLES, find};
use crate::otlp::OtelVariables;
use crate::secret::ApiKeys;
use crate::table::{Kind, Opt, Preset};
use crate::value::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;

/// Similarity below which two names are strangers.
const ALIKE: f64 = 0.7;
/// Largest config file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// One settled value.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) value: Value,
    pub(crate) origin: Origin,
}

/// All settled values by option name. An option without a fixed default is absent unless it was given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    values: BTreeMap<&'static str, Setting>,
    otel: OtelVariables,
}

impl Settings {
    /// The table's defaults alone.
    pub(crate) fn defaults() -> Settings {
        let mut settings = Settings::default();
        for option in OPTIONS {
            if let Preset::Is(text) = option.preset {
                let value =
                    Value::parse(&option.kind, text).expect("a default in the table reads like any value");
                settings.values.insert(option.name, Setting { value, origin: Origin::Default });
            }
        }
        settings
    }

    /// Reads and keeps one value, or notes its fault and keeps what was there.
    fn put(&mut self, option: &'static Opt, text: &str, origin: Origin, faults: &mut Collector) {
        let earlier = self
            .values
            .get(option.name)
            .filter(|setting| matches!((&setting.origin, &origin), (Origin::Flag(_), Origin::Flag(_))));
        let earlier = earlier.map(|setting| setting.value.clone());
        let value = Value::parse(&option.kind, text).and_then(|value| match earlier {
            Some(earlier) => earlier.followed_by(value),
            None => Ok(value),
        });
        match value {
            Ok(value) => {
                self.values.insert(option.name, Setting { value, origin });
            }
            Err(reason) => faults.add(&origin, reason),
        }
    }

    pub(crate) fn set(&mut self, name: &'static str, value: Value, origin: Origin) {
        self.values.insert(name, Setting { value, origin });
    }

    /// The model of the hub has become a folder; clients go on calling it by its repository.
    pub(crate) fn use_pulled(&mut self, repository: &str, folder: &std::path::Path) {
        let origin = self.origin("model");
        if !self.is_set("served-model-name") {
            self.set("served-model-name", Value::Text(repository.to_owned()), Origin::Default);
        }
        self.set("model", Value::Text(folder.display().to_string()), origin);
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Setting> {
        debug_assert!(find(name).is_some(), "{name} is not in the table");
        self.values.get(name)
    }

    /// Variables that other programs share.
    pub(crate) fn otel(&self) -> &OtelVariables {
        &self.otel
    }

    /// Where it was set; the option's name on the command line if it was not.
    pub(crate) fn origin(&self, name: &str) -> Origin {
        let set = self.get(name).map(|s| s.origin.clone()).filter(|origin| *origin != Origin::Default);
        set.unwrap_or_else(|| Origin::Flag(format!("--{name}")))
    }

    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.get(name).is_some_and(|s| s.origin != Origin::Default)
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        match self.get(name)?.value {
            Value::Number(n) => Some(n),
            _ => None,
        }
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        match &self.get(name)?.value {
            Value::Text(text) => Some(text),
            Value::Word(word) => Some(word),
            _ => None,
        }
    }

    pub(crate) fn address(&self, name: &str) -> Option<IpAddr> {
        match self.get(name)?.value {
            Value::Address(address) => Some(address),
            _ => None,
        }
    }

    pub(crate) fn api_keys(&self, name: &str) -> ApiKeys {
        match self.get(name).map(|setting| &setting.value) {
            Some(Value::Secrets(keys)) => keys.clone(),
            _ => ApiKeys::default(),
        }
    }

    pub(crate) fn names(&self, name: &str) -> Vec<String> {
        match self.get(name).map(|setting| &setting.value) {
            Some(Value::Names(names)) => names.clone(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn switch(&self, name: &str) -> Option<bool> {
        match self.get(name)?.value {
            Value::Switch(on) => Some(on),
            _ => None,
        }
    }
}

/// The process's variables by name.
#[derive(Debug)]
pub(crate) struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    pub(crate) fn new(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Environment {
        Environment(variables.into_iter().collect())
    }

    /// Its value; an empty one, or one that is not UTF-8, counts as none.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(known, _)| known == name)?;
        value.to_str().filter(|text| !text.is_empty())
    }
}

/// Flags as they were typed: (option, value, the flag's spelling).
pub(crate) type Typed = Vec<(&'static Opt, String, String)>;

/// Merges all sources. `typed` comes from the command line, already split.
pub(crate) fn settle(typed: Typed, environment: &Environment, faults: &mut Collector) -> Settings {
    let variables = read_variables(&environment.0, faults);
    let file =
        typed.iter().rev().find(|(option, ..)| option.name == "config").map(|(_, path, _)| path.clone());
    let file =
        file.or_else(|| variables.iter().find(|(o, ..)| o.name == "config").map(|(_, path, _)| path.clone()));
    let mut settings = Settings { otel: OtelVariables::of(environment), ..Settings::defaults() };
    if let Some(path) = file {
        read_file(&path, &mut settings, faults);
    }
    for (option, text, name) in variables {
        settings.put(option, &text, Origin::Environment(name), faults);
    }
    for (option, text, flag) in typed {
        settings.put(option, &text, Origin::Flag(flag), faults);
    }
    settings
}

fn read_variables(environment: &[(OsString, OsString)], faults: &mut Collector) -> Typed {
    let mut variables = Vec::new();
    for (name, value) in environment {
        let Some(name) = name.to_str().filter(|n| n.starts_with("PINION_")).map(str::to_owned) else {
            continue;
        };
        let value = value.to_str();
        let text = value.unwrap_or("");
        if SCRIPT_VARIABLES.contains(&name.as_str()) || is_service_link(&name, text) {
            continue;
        }
        let origin = Origin::Environment(name.clone());
        match (OPTIONS.iter().find(|option| option.variable() == name), value) {
            (None, _) => {
                let bare = name["PINION_".len()..].to_lowercase().replace('_', "-");
                let hint = hint(&bare, |option| option.variable());
                faults.add(&origin, format!("no such option{hint}"));
            }
            (Some(_), None) => faults.add(&origin, "is not valid UTF-8"),
            (Some(option), Some(text)) => variables.push((option, text.to_owned(), name)),
        }
    }
    variables.sort_by(|a, b| a.2.cmp(&b.2));
    variables
}

/// Kubernetes gives every pod variables for each service of its namespace; for one called `pinion` or `pinion-qwen`
/// they begin with our prefix: PINION_SERVICE_HOST, PINION_PORT=tcp://…, PINION_QWEN_PORT_8000_TCP_ADDR.
fn is_service_link(name: &str, text: &str) -> bool {
    let is_link = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| text.starts_with(scheme));
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.split("_PORT_").skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        || (name.ends_with("_PORT") && is_link)
}

fn read_file(path: &str, settings: &mut Settings, faults: &mut Collector) {
    let whole = Origin::WholeFile(path.to_owned());
    let table = match load_table(path) {
        Ok(table) => table,
        Err(reason) => return faults.add(&whole, reason),
    };
    let mut seen: Vec<&str> = Vec::new();
    for (key, value) in &table {
        let origin = Origin::File { file: path.to_owned(), key: key.clone() };
        let name = key.replace('_', "-");
        let Some(option) = find(&name).filter(|option| option.name != "config") else {
            let hint = match value {
                toml::Value::Table(_) => "; there are no tables, options are top-level keys".to_owned(),
                _ => hint(&name, |option| option.name.to_owned()),
            };
            faults.add(&origin, format!("no such key{hint}"));
            continue;
        };
        if seen.contains(&option.name) {
            faults.add(&origin, "stands twice, once with dashes and once with underscores");
        }
        seen.push(option.name);
        match toml_text(value, &option.kind) {
            Ok(text) => settings.put(option, &text, origin, faults),
            Err(reason) => faults.add(&origin, reason),
        }
    }
}

fn load_table(path: &str) -> Result<toml::Table, String> {
    let length = std::fs::metadata(path).map_err(|e| format!("cannot be read: {e}"))?.len();
    if length > FILE_BYTES_MAX {
        return Err(format!("is larger than {FILE_BYTES_MAX} bytes"));
    }
    let text = std::fs::read_to_string(path).map_err(|e| format!("cannot be read: {e}"))?;
    text.parse::<toml::Table>().map_err(|e| {
        let line =
            e.span().and_then(|span| text.get(..span.start)).map(|before| before.matches('\n').count() + 1);
        let at = line.map_or(String::new(), |line| format!("line {line}: "));
        format!("{at}{}", e.message().trim())
    })
}

/// A TOML value as the text that a flag would have.
fn toml_text(value: &toml::Value, kind: &Kind) -> Result<String, String> {
    match value {
        toml::Value::Boolean(on) if matches!(kind, Kind::Switch) => Ok(on.to_string()),
        other if matches!(kind, Kind::Switch) => {
            Err(format!("is {}; expected true or false", other.type_str()))
        }
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(n) => Ok(n.to_string()),
        toml::Value::Float(x) => Ok(x.to_string()),
        toml::Value::Array(items)
            if matches!(kind, Kind::Cpus | Kind::Secrets | Kind::Origins | Kind::Hosts) =>
        {
            let parts: Result<Vec<String>, String> = items.iter().map(|item| toml_text(item, kind)).collect();
            parts.map(|parts| parts.join(","))
        }
        toml::Value::Boolean(_)
        | toml::Value::Array(_)
        | toml::Value::Table(_)
        | toml::Value::Datetime(_) => {
            Err(format!("is of type {}; expected a {}", value.type_str(), kind.placeholder()))
        }
    }
}

/// ", did you mean X?" or the reason why there is nothing of this name, or nothing at all.
pub(crate) fn hint(unknown: &str, spell: impl Fn(&Opt) -> String) -> String {
    let positive = unknown.strip_prefix("no-").unwrap_or(unknown);
    if let Some((_, ours, reason)) = FOREIGN.iter().find(|(theirs, ..)| [unknown, positive].contains(theirs))
    {
        return match find(ours) {
            Some(option) => format!("; it is called {} here", spell(option)),
            None => format!(": {reason}"),
        };
    }
    let unknown = positive;
    let score = |option: &Opt| strsim::normalized_damerau_levenshtein(unknown, option.name);
    let near =
        OPTIONS.iter().max_by(|a, b| score(a).total_cmp(&score(b))).filter(|option| score(option) >= ALIKE);
    let part = || OPTIONS.iter().find(|option| unknown.len() >= 3 && option.name.contains(unknown));
    let best = near.or_else(part);
    best.map_or(String::new(), |option| format!("; did you mean {}?", spell(option)))
}

/// Reads options that always have a value: their default is a text in the table, and their range there fits
/// the type.
pub(crate) struct Take<'a>(pub(crate) &'a Settings);

impl Take<'_> {
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.0.number(name).expect("an option with a fixed default has a value")
    }

    pub(crate) fn word(&self, name: &str) -> u32 {
        u32::try_from(self.number(name)).expect("the option's range fits 32 bits")
    }

    pub(crate) fn narrow(&self, name: &str) -> u16 {
        u16::try_from(self.number(name)).expect("the option's range fits 16 bits")
    }

    pub(crate) fn is(&self, name: &str, word: &str) -> bool {
        self.0.text(name) == Some(word)
    }
}
