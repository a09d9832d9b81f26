//! The vocabulary of the option table: what an option is, apart from which options there are.

/// Section of the help and of the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Model,
    Http,
    Engine,
    Processes,
    Observe,
    Lifecycle,
}

impl Group {
    pub(crate) const ALL: [Group; 6] =
        [Group::Model, Group::Http, Group::Engine, Group::Processes, Group::Observe, Group::Lifecycle];

    /// The word for `--help=<group>`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Group::Model => "model",
            Group::Http => "http",
            Group::Engine => "engine",
            Group::Processes => "processes",
            Group::Observe => "observe",
            Group::Lifecycle => "lifecycle",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Group::Model => "Model",
            Group::Http => "HTTP and streams",
            Group::Engine => "Batching, memory and kernels",
            Group::Processes => "Processes and CPUs",
            Group::Observe => "Timeline, profiles, traces and KV events",
            Group::Lifecycle => "Start, stop and logs",
        }
    }
}

/// One accepted word and its synonyms.
#[derive(Debug)]
pub(crate) struct Word {
    pub(crate) name: &'static str,
    pub(crate) synonyms: &'static [&'static str],
}

pub(crate) const fn choice(name: &'static str, synonyms: &'static [&'static str]) -> Word {
    Word { name, synonyms }
}

/// What a value may be.
#[derive(Debug)]
pub(crate) enum Kind {
    Text,
    Folder,
    File,
    Address,
    Switch,
    Number {
        min: u64,
        max: u64,
    },
    Bytes {
        min: u64,
        max: u64,
    },
    Duration {
        min_ms: u64,
        max_ms: u64,
    },
    /// `off`, `auto`, or a time in milliseconds.
    StepTime {
        min_us: u64,
        max_us: u64,
    },
    Share,
    Cpus,
    /// API keys: a list that is never shown.
    Secrets,
    /// Web origins: a list.
    Origins,
    /// Names of this service: a list.
    Hosts,
    Choice {
        accepted: &'static [Word],
        refused: &'static [(&'static [&'static str], &'static str)],
    },
}

impl Kind {
    /// The placeholder in the help; empty for a switch.
    pub(crate) fn placeholder(&self) -> String {
        match self {
            Kind::Text => "TEXT".into(),
            Kind::Folder => "DIR".into(),
            Kind::File => "FILE".into(),
            Kind::Address => "ADDRESS".into(),
            Kind::Switch => String::new(),
            Kind::Number { .. } => "N".into(),
            Kind::Bytes { .. } => "BYTES".into(),
            Kind::Duration { .. } => "TIME".into(),
            Kind::StepTime { .. } => "off|auto|N".into(),
            Kind::Share => "SHARE".into(),
            Kind::Cpus => "CPUS".into(),
            Kind::Secrets => "KEY".into(),
            Kind::Origins => "ORIGIN".into(),
            Kind::Hosts => "HOST".into(),
            Kind::Choice { accepted, .. } => accepted.iter().map(|w| w.name).collect::<Vec<_>>().join("|"),
        }
    }
}

/// The value when none is given.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Preset {
    /// A value must be given.
    Required,
    /// Nothing.
    Absent,
    /// This text, read like a flag's value.
    Is(&'static str),
    /// A value that follows from others, by the rule in the text.
    WorkedOut(&'static str),
}

/// One option.
#[derive(Debug)]
pub(crate) struct Opt {
    /// The flag without its dashes; also the key in the file.
    pub(crate) name: &'static str,
    pub(crate) group: Group,
    pub(crate) kind: Kind,
    pub(crate) preset: Preset,
    /// Whole sentences; the first stands in the short help.
    pub(crate) help: &'static str,
}

impl Opt {
    /// The flag with its dashes.
    pub(crate) fn flag(&self) -> String {
        format!("--{}", self.name)
    }

    /// The environment variable.
    pub(crate) fn variable(&self) -> String {
        format!("PINION_{}", self.name.to_uppercase().replace('-', "_"))
    }

    /// `--port N`, `--[no-]pin`.
    pub(crate) fn usage(&self) -> String {
        match self.kind {
            Kind::Switch => format!("--[no-]{}", self.name),
            _ => format!("--{} {}", self.name, self.kind.placeholder()),
        }
    }

    pub(crate) fn preset_text(&self) -> &'static str {
        match self.preset {
            Preset::Required => "required",
            Preset::Absent => "none",
            Preset::Is("true") if matches!(self.kind, Kind::Switch) => "on",
            Preset::Is("false") if matches!(self.kind, Kind::Switch) => "off",
            Preset::Is(text) | Preset::WorkedOut(text) => text,
        }
    }
}
