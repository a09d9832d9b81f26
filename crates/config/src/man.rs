//! `pinion man`: the manual page, from the tables of commands, options and exit codes.

use crate::commands::{COMMANDS, Sub};
use crate::exit::Exit;
use crate::options::OPTIONS;
use crate::table::{Group, Opt};
use std::fmt::Write;

/// The page.
pub(crate) fn page() -> String {
    let mut out = format!(".TH PINION 1 \"\" \"Pinion {}\" \"User Commands\"\n", env!("CARGO_PKG_VERSION"));
    out += ".SH NAME\npinion \\- serve a large language model from separate, pinned processes\n.SH SYNOPSIS\n.nf\n";
    for command in COMMANDS {
        let _ = writeln!(
            out,
            ".B pinion {}",
            escaped(format!("{} {}", command.name, command.operands).trim_end())
        );
    }
    out += ".fi\n.SH DESCRIPTION\n";
    out += &text(
        "Every flag of the option table is also a key of the file named by --config, and an environment variable: \
         --max-num-seqs is PINION_MAX_NUM_SEQS. Flags win over the environment, the environment over the file.",
    );
    out += ".SH COMMANDS\n";
    for command in COMMANDS {
        out += &entry(&format!("pinion {}", command.name), command.about);
    }
    for command in COMMANDS.iter().filter(|command| !command.own.is_empty()) {
        out += &own_flags(command);
    }
    out += ".SH OPTIONS\n";
    for group in Group::ALL {
        let _ = writeln!(out, ".SS {}", escaped(group.title()));
        OPTIONS.iter().filter(|option| option.group == group).for_each(|option| out += &of_option(option));
    }
    out += ".SH EXIT STATUS\n";
    for exit in Exit::ALL {
        out += &entry(&exit.code().to_string(), exit.meaning());
    }
    out
}

fn own_flags(command: &Sub) -> String {
    let mut out = format!(".SS Flags of pinion {}\n", escaped(command.name));
    for own in command.own {
        out += &entry(format!("{} {}", own.name, own.placeholder).trim_end(), own.about);
    }
    out
}

fn of_option(option: &Opt) -> String {
    let more = format!("{} Default: {}.", option.help, option.preset_text());
    entry(&option.usage(), &more)
}

/// A tagged paragraph.
fn entry(tag: &str, body: &str) -> String {
    format!(".TP\n.B {}\n{}", escaped(tag), text(body))
}

/// A paragraph: no line of it begins with what troff takes for a request.
fn text(body: &str) -> String {
    let words: Vec<&str> = body.split_whitespace().collect();
    let line = escaped(&words.join(" "));
    let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
    format!("{guard}{line}\n")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-").replace('`', "")
}
