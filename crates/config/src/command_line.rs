//! Splits the command line into a command and flags. It knows words and dashes, not the meaning of a value.

use crate::fault::{Collector, Origin};
use crate::foreign::SHORT;
use crate::options::find;
use crate::sources::{Typed, hint};
use crate::table::Kind;
use crate::{commands, completions, man};
use std::ffi::OsString;

/// What is asked for, before any value is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Serve,
    ShowConfig,
    Pull,
    Doctor {
        json: bool,
    },
    /// Its words are read by the process that does it.
    Terminal,
    /// The words that follow.
    Trace(Vec<String>),
    Version,
    /// Everything behind `bench`, which is not for us to read.
    Bench(Vec<String>),
    /// The topic, if one was named.
    Help(Option<String>),
    /// The text that was asked for.
    Print(String),
    /// No command that there is: what else is wrong depends on the one that was meant.
    Unknown,
}

/// Reads the arguments. Help and version win over everything else, faults included.
pub(crate) fn split(args: impl IntoIterator<Item = OsString>, faults: &mut Collector) -> (Request, Typed) {
    let line = Origin::CommandLine;
    let mut words = Vec::new();
    for arg in args {
        match arg.into_string() {
            Ok(word) => words.push(word),
            Err(raw) => faults.add(&line, format!("`{}` is not valid UTF-8", raw.to_string_lossy())),
        }
    }
    if let Some(request) = asks_for_text(&words) {
        faults.0.clear();
        return (request, Vec::new());
    }
    let (request, rest) = match words.first().map(String::as_str) {
        Some("serve") => (Request::Serve, &words[1..]),
        Some("pull") => (Request::Pull, &words[1..]),
        Some("config") => {
            if words.get(1).is_none_or(|word| word != "show") {
                faults.add(&line, "`config` is followed by `show`");
                return (Request::Unknown, Vec::new());
            }
            (Request::ShowConfig, words.get(2..).unwrap_or(&[]))
        }
        Some("doctor") => {
            let count = words.len();
            words.retain(|word| word != "--json");
            (Request::Doctor { json: words.len() < count }, &words[1..])
        }
        Some("chat" | "top") => return (Request::Terminal, Vec::new()),
        Some("man") if words.len() == 1 => return (Request::Print(man::page()), Vec::new()),
        Some("completions") => {
            if let [_, shell] = words.as_slice()
                && let Some(text) = completions::script(shell)
            {
                return (Request::Print(text), Vec::new());
            }
            let shells = completions::SHELLS.join(", ");
            faults.add(&line, format!("`completions` is followed by one of {shells}"));
            (Request::Unknown, &[][..])
        }
        Some("trace") => return (Request::Trace(words.split_off(1)), Vec::new()),
        Some(flag) if flag.starts_with('-') => {
            faults.add(&line, format!("a command comes first: {}", commands::names()));
            (Request::Serve, &words[..])
        }
        Some(other) => {
            faults.add(&line, format!("`{other}` is no command; there are {}", commands::names()));
            (Request::Unknown, &[][..])
        }
        None => (Request::Help(None), &words[..]),
    };
    let typed = read_flags(rest, faults);
    (request, typed)
}

/// What is done without a value of ours.
fn asks_for_text(words: &[String]) -> Option<Request> {
    match words.first().map(String::as_str) {
        Some("bench") => return Some(Request::Bench(words[1..].to_vec())),
        Some("help") => return Some(Request::Help(words.get(1).cloned())),
        Some("version") => return Some(Request::Version),
        _ => {}
    }
    let own = words.first().filter(|word| commands::help_of(word).is_some());
    words.iter().take_while(|word| *word != "--").find_map(|word| match word.as_str() {
        "-h" | "--help" => Some(Request::Help(own.cloned())),
        "-V" | "--version" => Some(Request::Version),
        other => other.strip_prefix("--help=").map(|topic| Request::Help(Some(topic.to_owned()))),
    })
}

fn read_flags(words: &[String], faults: &mut Collector) -> Typed {
    let mut typed: Typed = Vec::new();
    let mut words = words.iter().peekable();
    let mut folder: Option<&String> = None;
    while let Some(word) = words.next() {
        let Some(body) = word.strip_prefix("--").filter(|body| !body.is_empty()) else {
            if word.starts_with('-') {
                let known = SHORT.iter().find(|(theirs, _)| theirs == word);
                let said = match known {
                    Some((_, ours)) => format!("no such flag; here it is {ours}"),
                    None => "no such flag; every flag begins with two dashes".to_owned(),
                };
                faults.add(&Origin::Flag(word.clone()), said);
                // What follows is its value, not a model.
                words.next_if(|next| !next.starts_with('-'));
            } else if let Some(first) = folder.replace(word) {
                faults.add(&Origin::CommandLine, format!("two models: `{first}` and `{word}`"));
            }
            continue;
        };
        let (name, inline) = match body.split_once('=') {
            Some((name, value)) => (name.replace('_', "-"), Some(value.to_owned())),
            None => (body.replace('_', "-"), None),
        };
        let flag = Origin::Flag(format!("--{name}"));
        let negated = name.strip_prefix("no-").and_then(find).filter(|o| matches!(o.kind, Kind::Switch));
        match (find(&name), negated, inline) {
            (Some(option), _, Some(value)) => typed.push((option, value, format!("--{name}"))),
            (Some(option), _, None) if matches!(option.kind, Kind::Switch) => {
                typed.push((option, "true".to_owned(), format!("--{name}")));
            }
            (Some(option), _, None) => match words.next_if(|next| !next.starts_with("--")) {
                Some(value) => typed.push((option, value.clone(), format!("--{name}"))),
                None => faults.add(&flag, format!("needs a value: {}", option.usage())),
            },
            (None, Some(option), None) => typed.push((option, "false".to_owned(), format!("--{name}"))),
            (None, Some(_), Some(_)) => faults.add(&flag, "takes no value"),
            (None, None, inline) => {
                faults.add(&flag, format!("no such flag{}", hint(&name, |o| o.flag())));
                // what follows an unknown flag is most likely its value, not a model folder
                if inline.is_none() {
                    words.next_if(|next| !next.starts_with('-'));
                }
            }
        }
    }
    if let Some(folder) = folder {
        let model = find("model").expect("the table has a model");
        if let Some((_, other, flag)) = typed.iter().find(|(option, ..)| option.name == model.name) {
            faults.add(&Origin::Flag(flag.clone()), format!("two models: `{folder}` and `{other}`"));
        }
        typed.insert(0, (model, folder.clone(), "the model folder".to_owned()));
    }
    typed
}
