//! `pinion completions`: what a shell offers behind `pinion`, from the tables of commands and options.

use crate::commands::{COMMANDS, Own, Sub};
use crate::options::OPTIONS;
use crate::table::{Kind, Opt};
use std::fmt::Write;

/// The shells, by the words of the command.
pub(crate) const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// The script for this shell, if it is known.
pub(crate) fn script(shell: &str) -> Option<String> {
    match shell {
        "bash" => Some(bash()),
        "zsh" => Some(zsh()),
        "fish" => Some(fish()),
        _ => None,
    }
}

/// What may follow a flag.
enum Values {
    /// The flag stands alone.
    Nothing,
    Words(Vec<&'static str>),
    Folders,
    Files,
    Anything,
}

/// A flag as shells are told of it.
struct Flag {
    /// With its dashes.
    name: String,
    values: Values,
    about: String,
}

/// Every option of the table; a switch in both of its forms.
fn table_flags() -> Vec<Flag> {
    OPTIONS.iter().flat_map(flags_of).collect()
}

fn flags_of(option: &Opt) -> Vec<Flag> {
    let values = match &option.kind {
        Kind::Switch => Values::Nothing,
        Kind::Choice { accepted, .. } => Values::Words(accepted.iter().map(|word| word.name).collect()),
        Kind::StepTime { .. } => Values::Words(vec!["off", "auto"]),
        Kind::Folder => Values::Folders,
        Kind::File => Values::Files,
        _ => Values::Anything,
    };
    let about = first_sentence(option.help);
    let mut flags = vec![Flag { name: option.flag(), values, about: about.clone() }];
    if matches!(option.kind, Kind::Switch) {
        let about = format!("Off: {about}");
        flags.push(Flag { name: format!("--no-{}", option.name), values: Values::Nothing, about });
    }
    flags
}

fn own_flags(command: &Sub) -> Vec<Flag> {
    let flag = |own: &Own| {
        let values = if own.placeholder.is_empty() { Values::Nothing } else { Values::Anything };
        Flag { name: own.name.to_owned(), values, about: own.about.to_owned() }
    };
    command.own.iter().map(flag).collect()
}

/// The first words of commands: `config` for `config show`.
fn first_words() -> Vec<&'static str> {
    COMMANDS.iter().filter_map(|command| command.name.split(' ').next()).collect()
}

/// Commands that take the flags of the option table.
fn with_options() -> Vec<&'static str> {
    let taking = COMMANDS.iter().filter(|command| command.takes_options);
    taking.filter_map(|command| command.name.split(' ').next()).collect()
}

fn first_sentence(text: &str) -> String {
    let end = text.find(". ").map_or(text.len(), |at| at + 1);
    let sentence: Vec<&str> = text[..end].split_whitespace().collect();
    sentence.join(" ").trim_end_matches('.').to_owned()
}

fn bash() -> String {
    let mut out = String::from("# bash completion of pinion\n_pinion() {\n");
    out += "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} flags=\"\"\n";
    out += "    # bash takes --flag=value apart at the sign.\n";
    out += "    if [ \"$cur\" = = ]; then cur=\"\"; elif [ \"$prev\" = = ]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi\n";
    out += "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n";
    let _ = writeln!(
        out,
        "        COMPREPLY=($(compgen -W \"{} --help --version\" -- \"$cur\")); return",
        first_words().join(" ")
    );
    out += "    fi\n    case $prev in\n";
    let mut all = table_flags();
    all.extend(COMMANDS.iter().flat_map(own_flags));
    for flag in &all {
        let reply = match &flag.values {
            Values::Nothing => continue,
            Values::Words(words) => format!("COMPREPLY=($(compgen -W \"{}\" -- \"$cur\"))", words.join(" ")),
            Values::Folders => "COMPREPLY=($(compgen -d -- \"$cur\"))".to_owned(),
            Values::Files => "COMPREPLY=($(compgen -f -- \"$cur\"))".to_owned(),
            Values::Anything => "COMPREPLY=()".to_owned(),
        };
        let _ = writeln!(out, "    {}) {reply}; return ;;", flag.name);
    }
    out += "    esac\n    case ${COMP_WORDS[1]} in\n";
    let _ = writeln!(
        out,
        "    completions) COMPREPLY=($(compgen -W \"{}\" -- \"$cur\")); return ;;",
        SHELLS.join(" ")
    );
    for command in COMMANDS.iter().filter(|command| command.takes_options || !command.own.is_empty()) {
        let word = command.name.split(' ').next().unwrap_or_default();
        let show = if command.name == "config show" { "show " } else { "" };
        let mut flags = own_flags(command);
        if command.takes_options {
            flags.extend(table_flags());
        }
        let names: Vec<&str> = flags.iter().map(|flag| flag.name.as_str()).collect();
        let _ = writeln!(out, "    {word}) flags=\"{show}--help {}\" ;;", names.join(" "));
    }
    out += "    esac\n    case $cur in\n    -*) COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\")) ;;\n";
    out += "    *) COMPREPLY=($(compgen -d -- \"$cur\")) ;;\n    esac\n}\n";
    out + "complete -o filenames -F _pinion pinion\n"
}

fn zsh() -> String {
    let mut out =
        String::from("#compdef pinion\n_pinion() {\n    local -a commands options\n    commands=(\n");
    for command in COMMANDS {
        let word = command.name.split(' ').next().unwrap_or_default();
        let _ = writeln!(out, "        {}", quoted(&format!("{word}:{}", command.about.replace(':', "\\:"))));
    }
    out += "    )\n    options=(\n";
    for flag in table_flags() {
        let _ = writeln!(out, "        {}", zsh_spec(&flag));
    }
    out += "    )\n    if (( CURRENT == 2 )); then\n        _describe command commands\n        return\n    fi\n";
    out += "    local command=$words[2]\n    shift words\n    (( CURRENT-- ))\n    case $command in\n";
    let _ = writeln!(out, "    completions) _values shell {} ;;", SHELLS.join(" "));
    for command in COMMANDS.iter().filter(|command| command.takes_options || !command.own.is_empty()) {
        let word = command.name.split(' ').next().unwrap_or_default();
        let own: Vec<String> = own_flags(command).iter().map(zsh_spec).collect();
        let options = if command.takes_options { "$options " } else { "" };
        let _ = writeln!(out, "    {word}) _arguments {options}{} '*:folder:_files -/' ;;", own.join(" "));
    }
    out + "    *) _files ;;\n    esac\n}\n_pinion \"$@\"\n"
}

/// `'--flag=[what it does]:value:(a b)'`.
fn zsh_spec(flag: &Flag) -> String {
    let about = flag.about.replace('\\', "\\\\").replace('[', "\\[").replace(']', "\\]").replace(':', "\\:");
    let name = &flag.name;
    quoted(&match &flag.values {
        Values::Nothing => format!("{name}[{about}]"),
        Values::Words(words) => format!("{name}=[{about}]:value:({})", words.join(" ")),
        Values::Folders => format!("{name}=[{about}]:folder:_files -/"),
        Values::Files => format!("{name}=[{about}]:file:_files"),
        Values::Anything => format!("{name}=[{about}]:value: "),
    })
}

/// In single quotes for a Bourne shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn fish() -> String {
    let mut out = String::from("# fish completion of pinion\ncomplete -c pinion -f\n");
    for command in COMMANDS {
        let word = command.name.split(' ').next().unwrap_or_default();
        let _ = writeln!(
            out,
            "complete -c pinion -n __fish_use_subcommand -a {word} -d {}",
            fish_quoted(command.about)
        );
    }
    let seen = |words: &str| format!("'__fish_seen_subcommand_from {words}'");
    let _ = writeln!(out, "complete -c pinion -n {} -a '{}'", seen("completions"), SHELLS.join(" "));
    let taking = seen(&with_options().join(" "));
    let mut line = |when: &str, flag: &Flag| {
        let values = match &flag.values {
            Values::Nothing => String::new(),
            Values::Words(words) => format!(" -x -a '{}'", words.join(" ")),
            Values::Folders => " -x -a '(__fish_complete_directories)'".to_owned(),
            Values::Files => " -r -F".to_owned(),
            Values::Anything => " -x".to_owned(),
        };
        let name = flag.name.trim_start_matches('-');
        let _ =
            writeln!(out, "complete -c pinion -n {when} -l {name}{values} -d {}", fish_quoted(&flag.about));
    };
    table_flags().iter().for_each(|flag| line(&taking, flag));
    for command in COMMANDS {
        own_flags(command).iter().for_each(|flag| line(&seen(command.name), flag));
    }
    out + "complete -c pinion -n '__fish_seen_subcommand_from serve doctor chat' -a '(__fish_complete_directories)'\n"
}

fn fish_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}
