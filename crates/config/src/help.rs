//! `--help` in its forms: short, a group, one flag, all, or a search.

use crate::commands;
use crate::exit::Exit;
use crate::options::OPTIONS;
use crate::sources::hint;
use crate::table::{Group, Opt, Preset};
use std::fmt::Write;

/// Width of the help's text.
const COLUMNS: usize = 100;
/// Where the text of a flag begins.
const INDENT: usize = 36;

const SOURCES: &str = "Every flag is also a key of the file named by --config, and an environment variable: \
    --max-num-seqs is PINION_MAX_NUM_SEQS. Flags win over the environment, the environment over the file.";

/// Flags in the short help.
const FIRST_NEEDED: &[&str] =
    &["model", "host", "port", "served-model-name", "dtype", "max-model-len", "max-num-seqs", "config"];

/// The text for this topic; without one, the short help.
pub(crate) fn text(topic: Option<&str>) -> String {
    let Some(topic) = topic.map(|t| t.trim_start_matches("--").to_lowercase().replace('_', "-")) else {
        return short();
    };
    if let Some(help) = commands::help_of(&topic) {
        return help.to_owned();
    }
    if topic == "all" {
        return Group::ALL.iter().map(|&g| group(g)).collect::<Vec<_>>().join("\n") + "\n" + &exits();
    }
    let is_named = |o: &&Opt| o.name == topic || topic.strip_prefix("no-") == Some(o.name);
    let flag = OPTIONS.iter().find(is_named).map(one);
    let section = Group::ALL.into_iter().find(|g| g.name() == topic).map(group);
    if flag.is_some() || section.is_some() {
        // `model` is both
        return flag.into_iter().chain(section).collect::<Vec<_>>().join("\n");
    }
    let found: Vec<&Opt> = OPTIONS
        .iter()
        .filter(|o| o.name.contains(&topic) || o.help.to_lowercase().contains(&topic))
        .collect();
    if found.is_empty() {
        let groups = Group::ALL.map(Group::name).join(", ");
        return format!("Nothing is called `{topic}`{}\nGroups: {groups}, all.\n", hint(&topic, Opt::flag));
    }
    format!("Options that mention `{topic}`:\n{}", lines(found.into_iter()))
}

fn short() -> String {
    let needed = OPTIONS.iter().filter(|option| FIRST_NEEDED.contains(&option.name));
    let mut groups = String::new();
    for group in Group::ALL {
        let _ = writeln!(groups, "  --help={:<12} {}", group.name(), group.title());
    }
    format!(
        "Serve a large language model from separate, pinned processes.\n\n\
         Usage:\n{}\nFlags needed first:\n{}\nMore:\n{groups}  --help=FLAG         one flag, or a word to \
         search for\n  --help=all          everything\n\n\
         {}",
        commands::usage(),
        lines(needed),
        wrapped(SOURCES, 0)
    )
}

fn group(group: Group) -> String {
    format!("{}:\n{}", group.title(), lines(OPTIONS.iter().filter(|option| option.group == group)))
}

fn exits() -> String {
    let mut text = "Exit codes:\n".to_owned();
    for exit in Exit::ALL {
        let _ = write!(text, "  {}  {}", exit.code(), wrapped(exit.meaning(), 5).trim_start());
    }
    text
}

fn one(option: &Opt) -> String {
    format!(
        "{}\n\n{}\nDefault: {}.\nEnvironment: {}. Key in the config file: {}.\n",
        option.usage(),
        wrapped(option.help, 0),
        option.preset_text(),
        option.variable(),
        option.name
    )
}

fn lines<'a>(options: impl Iterator<Item = &'a Opt>) -> String {
    let mut text = String::new();
    for option in options {
        let default = match option.preset {
            Preset::Required => " (required)".to_owned(),
            Preset::Absent => String::new(),
            Preset::Is(_) | Preset::WorkedOut(_) => format!(" [{}]", option.preset_text()),
        };
        let usage = option.usage();
        let body = wrapped(&format!("{}{default}", option.help), INDENT);
        if usage.len() + 4 > INDENT {
            let _ = write!(text, "  {usage}\n{body}");
        } else {
            let _ = write!(text, "  {usage:<width$}{}", body.trim_start(), width = INDENT - 2);
        }
    }
    text
}

/// Breaks at spaces; every line begins with `indent` spaces and ends with a newline.
fn wrapped(text: &str, indent: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if column == 0 {
            let _ = write!(out, "{:indent$}{word}", "");
            column = indent + width;
        } else if column + 1 + width > COLUMNS {
            let _ = write!(out, "\n{:indent$}{word}", "");
            column = indent + width;
        } else {
            let _ = write!(out, " {word}");
            column += 1 + width;
        }
    }
    out + "\n"
}
