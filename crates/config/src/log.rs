//! The form of log lines, and what a terminal that shows them can do.

use crate::sources::Environment;
use serde::{Deserialize, Serialize};

/// Form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogForm {
    /// Short where standard error is a terminal, else `Text`.
    #[default]
    Auto,
    /// Full time, level, message, `key=value`.
    Text,
    /// One JSON object a line.
    Json,
}

/// A terminal, for those who write to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminal {
    /// Colours are wanted: no `NO_COLOR`, and a `TERM` that has them.
    pub coloured: bool,
    /// A line can be drawn again.
    pub redraws: bool,
}

impl Terminal {
    /// The one that this process was started in.
    pub fn of_process() -> Terminal {
        Terminal::of(&Environment::new(std::env::vars_os()))
    }

    fn of(environment: &Environment) -> Terminal {
        let redraws = environment.text("TERM") != Some("dumb");
        Terminal { coloured: redraws && environment.text("NO_COLOR").is_none(), redraws }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dumb_terminal_prints_and_one_without_colours_draws() {
        for (variables, coloured, redraws) in [
            (&[("TERM", "xterm-256color")][..], true, true),
            (&[("NO_COLOR", "")], true, true),
            (&[("NO_COLOR", "1"), ("TERM", "xterm")], false, true),
            (&[("TERM", "dumb")], false, false),
        ] {
            let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
            let terminal = Terminal::of(&Environment::new(variables));
            assert_eq!(terminal, Terminal { coloured, redraws });
        }
    }
}
