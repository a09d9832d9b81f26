//! Faults of a configuration: all of them, each with where it came from and why.

use crate::exit::Exit;
use crate::log::LogForm;
use std::time::SystemTime;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Not given: the table's default, or a derived value.
    Default,
    /// A key of the config file.
    File {
        /// The file as it was named.
        file: String,
        /// The key.
        key: String,
    },
    /// The config file as a whole.
    WholeFile(String),
    /// An environment variable.
    Environment(String),
    /// A flag, with its dashes.
    Flag(String),
    /// A file of the model folder.
    Model(String),
    /// The command line as a whole.
    CommandLine,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { file, key } => write!(f, "{file}:{key}"),
            Origin::WholeFile(file) => f.write_str(file),
            Origin::Environment(name) => f.write_str(name),
            Origin::Flag(flag) => f.write_str(flag),
            Origin::Model(path) => f.write_str(path),
            Origin::CommandLine => f.write_str("command line"),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFault {
    /// Where.
    pub origin: Origin,
    /// Why, and what to do, in one line.
    pub reason: String,
}

/// All that is wrong, at least one. Shown one per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(pub Vec<ConfigFault>);

impl Faults {
    /// The exit code that fits: [`Exit::Model`] if only the model folder is at fault.
    pub fn exit(&self) -> Exit {
        let model_only = self.0.iter().all(|f| matches!(f.origin, Origin::Model(_)));
        if model_only { Exit::Model } else { Exit::Usage }
    }

    /// What a program says of them before it ends, at `now`: one line for each, in the form of every other error.
    pub fn told(&self, form: LogForm, now: SystemTime) -> String {
        let line = |fault: &ConfigFault| form.error_line(&format!("{}: {}", fault.origin, fault.reason), now);
        self.0.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

impl std::fmt::Display for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, fault) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{}: {}", fault.origin, fault.reason)?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// Faults while they are being collected.
#[derive(Debug, Default)]
pub(crate) struct Collector(pub(crate) Vec<ConfigFault>);

impl Collector {
    pub(crate) fn add(&mut self, origin: &Origin, reason: impl Into<String>) {
        self.0.push(ConfigFault { origin: origin.clone(), reason: reason.into() });
    }

    pub(crate) fn into_result(self) -> Result<(), Faults> {
        if self.0.is_empty() { Ok(()) } else { Err(Faults(self.0)) }
    }
}
