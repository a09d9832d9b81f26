//! Every command of `pinion`, described once: for the help, messages about the command line, completions and the manual
//! page.

use crate::{terminal_command, trace_command};

/// One command.
#[derive(Debug)]
pub(crate) struct Sub {
    /// Its word; two for `config show`.
    pub(crate) name: &'static str,
    /// What follows the word, for a usage line.
    pub(crate) operands: &'static str,
    /// What it does, in one line.
    pub(crate) about: &'static str,
    /// The text of `pinion help NAME`, for a command that is not about the option table.
    pub(crate) help: Option<&'static str>,
    /// Flags of its own.
    pub(crate) own: &'static [Own],
    /// Whether it takes those of the option table.
    pub(crate) takes_options: bool,
}

/// A flag that only one command has.
#[derive(Debug)]
pub(crate) struct Own {
    /// With its dashes.
    pub(crate) name: &'static str,
    /// For its value; empty if it has none.
    pub(crate) placeholder: &'static str,
    /// What it does, in one line.
    pub(crate) about: &'static str,
}

const fn own(name: &'static str, placeholder: &'static str, about: &'static str) -> Own {
    Own { name, placeholder, about }
}

const KEY: Own = own("--api-key", "KEY", "The server's key; better in PINION_API_KEY.");

const CHAT: &[Own] = &[
    KEY,
    own("--model", "NAME", "The model to ask for, else the first that the server names."),
    own("--system", "TEXT", "The system prompt."),
    own("--once", "", "All of standard input is one prompt."),
    own("--timings", "", "Time to first token and tokens per second after each answer."),
];
const TOP: &[Own] = &[KEY, own("--once", "", "Print once and end.")];
const DOCTOR: &[Own] = &[own("--json", "", "Print one JSON object.")];
const TRACE: &[Own] = &[
    own("--out", "FILE", "Where the trace goes."),
    own("--seconds", "N", "Record for this long, at most 60; 0 takes what the rings still hold."),
    own("--url", "URL", "The service."),
];

/// For `pinion help doctor`.
const DOCTOR_HELP: &str = "\
Checks whether this machine can serve, and how well: CPU, memory, limits, kernel, libraries, GPU, port, model, disk.

Usage:
  pinion doctor [DIR|FILE.gguf|ORG/NAME] [flags] [--json]

  DIR, --model DIR     check this model too, as `pinion serve` would read it, and whether it fits the memory
  --port N             check this port [8000]
  --device DEVICE      auto, cpu or cuda; what a GPU lacks is a failure with cuda and a warning with auto [auto]
  --json               one JSON object, with an id for each check that stays the same
  and every other flag of `pinion serve`, which is checked as the service would read it

Each line is ok, note, warning or failure; under what is not ok stands what to do. A downloaded model of the hub is
looked for in the cache; nothing is downloaded. Exit code 0 if nothing fails, 1 if something does.
";

/// For `pinion help completions`.
const COMPLETIONS_HELP: &str = "\
Prints what completes the words of `pinion` in a shell: commands, flags, and the values of flags that have a list.

Usage:
  pinion completions bash >~/.local/share/bash-completion/completions/pinion
  pinion completions zsh >FOLDER/_pinion             FOLDER is one of $fpath
  pinion completions fish >~/.config/fish/completions/pinion.fish

The Debian package installs all three.
";

/// For `pinion help man`.
const MAN_HELP: &str = "\
Prints the manual page pinion(1).

Usage:
  pinion man | man -l -
  pinion man >/usr/local/share/man/man1/pinion.1

The Debian package installs it.
";

/// The commands, in the order of the help.
#[rustfmt::skip]
pub(crate) const COMMANDS: &[Sub] = &[
    Sub { name: "serve", operands: "DIR [flags]", about: "DIR, FILE.gguf, or ORG/NAME[@REV] of the hub",
          help: None, own: &[], takes_options: true },
    Sub { name: "pull", operands: "ORG/NAME[@REV]", about: "download a model; prints its folder",
          help: None, own: &[], takes_options: true },
    Sub { name: "config show", operands: "[flags]", about: "every value and where it comes from",
          help: None, own: &[], takes_options: true },
    Sub { name: "chat", operands: "[URL|DIR|ORG/NAME]", about: "chat with a server, or with a model",
          help: Some(terminal_command::CHAT_HELP), own: CHAT, takes_options: false },
    Sub { name: "top", operands: "[URL]", about: "watch a running service",
          help: Some(terminal_command::TOP_HELP), own: TOP, takes_options: false },
    Sub { name: "doctor", operands: "[DIR] [flags]", about: "check this machine, and a model on it",
          help: Some(DOCTOR_HELP), own: DOCTOR, takes_options: true },
    Sub { name: "trace", operands: "", about: "what a running service does, for Perfetto",
          help: Some(trace_command::HELP), own: TRACE, takes_options: false },
    Sub { name: "bench", operands: "...", about: "measure a server (docs/BENCHMARKING.md)",
          help: None, own: &[], takes_options: false },
    Sub { name: "completions", operands: "SHELL", about: "for bash, zsh or fish; `pinion man` prints the manual",
          help: Some(COMPLETIONS_HELP), own: &[], takes_options: false },
    Sub { name: "man", operands: "", about: "print the manual page",
          help: Some(MAN_HELP), own: &[], takes_options: false },
    Sub { name: "help", operands: "[COMMAND|FLAG]", about: "more about one of them",
          help: None, own: &[], takes_options: false },
    Sub { name: "version", operands: "", about: "print the version",
          help: None, own: &[], takes_options: false },
];

/// Their names, for a message.
pub(crate) fn names() -> String {
    COMMANDS.iter().map(|command| command.name).collect::<Vec<_>>().join(", ")
}

/// The help of the command of this name, if it has one of its own.
pub(crate) fn help_of(name: &str) -> Option<&'static str> {
    COMMANDS.iter().find(|command| command.name == name)?.help
}

/// Left out of the short help.
const KNOWN: [&str; 3] = ["man", "help", "version"];

/// A line of usage for each command that is not [`KNOWN`]: the short help fits on a screen.
pub(crate) fn usage() -> String {
    let line = |command: &Sub| {
        let call = format!("pinion {} {}", command.name, command.operands);
        format!("  {:<32}{}\n", call.trim_end(), command.about)
    };
    COMMANDS.iter().filter(|command| !KNOWN.contains(&command.name)).map(line).collect()
}
