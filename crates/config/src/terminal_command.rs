//! The words after `pinion chat` and `pinion top`: clients of a running server, or of one that is started for them. Few
//! options, so they are not in the option table.

use crate::fault::{Collector, Faults, Origin};
use crate::sources::Environment;

/// Where a service listens unless it is told otherwise.
const NEARBY: &str = "http://127.0.0.1:8000";

/// For `pinion help chat`.
pub(crate) const CHAT_HELP: &str = "\
Chats with a model: of a running server, or of a server that is started for the time of the chat.

Usage:
  pinion chat [http://HOST:PORT] [flags]             a server that speaks OpenAI's API [http://127.0.0.1:8000]
  pinion chat MODEL [flags] [-- SERVE FLAGS]         starts `pinion serve` on a free port and stops it in the end;
                                                     MODEL is a folder, a GGUF file or ORG/NAME of the hub

  --api-key KEY    the server's key; better PINION_API_KEY, which other users of the machine cannot see
  --model NAME     the model to ask for [the first that the server names]
  --system TEXT    the system prompt
  --once           all of standard input is one prompt
  --timings        time to first token and tokens per second after each answer; on by itself on a terminal

On a terminal: Ctrl-C stops an answer, Ctrl-D ends; a line that ends with \\ goes on; /help lists the commands. Without
a terminal each line of standard input is a prompt, and only the answers are written to standard output.
";

/// For `pinion help top`.
pub(crate) const TOP_HELP: &str = "\
Shows what a running service does, once a second: processes, requests, KV cache, token rates, percentiles of the time to
the first token and of the gaps between tokens, the slowest requests. q ends.

Usage:
  pinion top [http://HOST:PORT] [flags]     [http://127.0.0.1:8000]

  --api-key KEY    the server's key; better PINION_API_KEY
  --once           print once and end; without a terminal that is so by itself, as key=value
";

/// A server that speaks HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    /// `HOST:PORT`.
    pub authority: String,
    /// What stands before `/v1`, without a slash at its end.
    pub base: String,
}

impl ServerUrl {
    /// Reads `http://HOST[:PORT][/BASE][/v1]`. Errors: what is wrong with the text.
    pub fn parse(text: &str) -> Result<ServerUrl, String> {
        if text.starts_with("https://") {
            return Err(format!(
                "{text}: TLS is not spoken here; name an http:// address, as of a proxy on this machine"
            ));
        }
        let wrong = || format!("{text}: expected http://HOST:PORT");
        let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let is_plain =
            |part: &str| part.bytes().all(|byte| byte.is_ascii_graphic()) && !part.contains(['?', '#', '@']);
        if authority.is_empty() || !is_plain(rest) {
            return Err(wrong());
        }
        // The last colon of [::1] belongs to the address.
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        let path = path.trim_end_matches('/');
        let path =
            path.strip_suffix("v1").filter(|rest| rest.is_empty() || rest.ends_with('/')).unwrap_or(path);
        let path = path.trim_end_matches('/');
        let base = if path.is_empty() { String::new() } else { format!("/{path}") };
        Ok(ServerUrl { authority, base })
    }
}

impl std::fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}{}", self.authority, self.base)
    }
}

/// What to chat with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatTarget {
    /// A running server.
    Server(ServerUrl),
    /// A model to serve meanwhile, with more flags for `pinion serve`.
    Model {
        /// As it was typed: a folder or `ORG/NAME`.
        model: String,
        /// What stood behind `--`.
        flags: Vec<String>,
    },
}

/// What `pinion chat` is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatCommand {
    /// The other side.
    pub target: ChatTarget,
    /// Its key.
    pub key: Option<String>,
    /// The name of the model to ask for.
    pub model: Option<String>,
    /// The system prompt.
    pub system: Option<String>,
    /// Whether all of standard input is one prompt.
    pub once: bool,
    /// Whether times are told after each answer, where standard output is no terminal.
    pub timings: bool,
    /// Whether colours are unwanted on a terminal (`NO_COLOR`).
    pub no_colour: bool,
}

/// What `pinion top` is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopCommand {
    /// The service.
    pub url: ServerUrl,
    /// Its key.
    pub key: Option<String>,
    /// Whether it ends after one look.
    pub once: bool,
    /// Whether colours are unwanted on a terminal (`NO_COLOR`).
    pub no_colour: bool,
}

/// What this process was started for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TerminalCommand {
    /// `pinion chat`.
    Chat(ChatCommand),
    /// `pinion top`.
    Top(TopCommand),
}

/// What this process, started with the words of `pinion chat` or `pinion top`, is to do. Errors: all words that mean
/// nothing.
pub fn terminal_command() -> Result<TerminalCommand, Faults> {
    let words =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>();
    let mut faults = Collector::default();
    let environment = Environment::new(std::env::vars_os());
    let rest = words.get(1..).unwrap_or(&[]);
    let command = match words.first().map(String::as_str) {
        Some("top") => TerminalCommand::Top(top(rest, &environment, &mut faults)),
        _ => TerminalCommand::Chat(chat(rest, &environment, &mut faults)),
    };
    faults.into_result()?;
    Ok(command)
}

/// The first of the keys that the environment has for a service.
fn own_key(environment: &Environment) -> Option<String> {
    let keys = environment.text("PINION_API_KEY")?;
    keys.split(',').next().map(|key| key.trim().to_owned())
}

fn chat(words: &[String], environment: &Environment, faults: &mut Collector) -> ChatCommand {
    let mut command = ChatCommand {
        target: nearby(),
        key: own_key(environment),
        model: None,
        system: None,
        once: false,
        timings: false,
        no_colour: environment.text("NO_COLOR").is_some(),
    };
    let (words, flags) = match words.iter().position(|word| word == "--") {
        Some(at) => (&words[..at], words[at + 1..].to_vec()),
        None => (words, Vec::new()),
    };
    let mut operand = None;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (flag, inline) = match word.split_once('=') {
            Some((flag, value)) if flag.starts_with("--") => (flag, Some(value.to_owned())),
            _ => (word.as_str(), None),
        };
        let place = match flag {
            "--once" => {
                command.once = true;
                continue;
            }
            "--timings" => {
                command.timings = true;
                continue;
            }
            "--api-key" => &mut command.key,
            "--model" => &mut command.model,
            "--system" => &mut command.system,
            _ if flag.starts_with('-') => {
                let reason = "`pinion chat` has --api-key, --model, --system, --once and --timings; flags of `pinion serve` \
                              stand behind --";
                faults.add(&Origin::Flag(flag.to_owned()), reason);
                continue;
            }
            _ if operand.is_none() => {
                operand = Some(word);
                continue;
            }
            _ => {
                faults.add(&Origin::CommandLine, format!("`{word}`: one server or one model at a time"));
                continue;
            }
        };
        match inline.or_else(|| words.next().cloned()) {
            Some(value) => *place = Some(value),
            None => faults.add(&Origin::Flag(flag.to_owned()), "needs a value"),
        }
    }
    if let Some(target) = target(operand, flags, faults) {
        command.target = target;
    }
    command
}

fn top(words: &[String], environment: &Environment, faults: &mut Collector) -> TopCommand {
    let mut command = TopCommand {
        url: nearby_url(),
        key: own_key(environment),
        once: false,
        no_colour: environment.text("NO_COLOR").is_some(),
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match (word.as_str(), word.strip_prefix("--api-key=")) {
            ("--once", _) => command.once = true,
            (_, Some(key)) => command.key = Some(key.to_owned()),
            ("--api-key", None) => match words.next() {
                Some(key) => command.key = Some(key.clone()),
                None => faults.add(&Origin::Flag(word.clone()), "needs a value"),
            },
            (flag, _) if flag.starts_with('-') => {
                faults.add(&Origin::Flag(word.clone()), "`pinion top` has --api-key and --once");
            }
            (text, _) => match ServerUrl::parse(text) {
                Ok(url) => command.url = url,
                Err(reason) => faults.add(&Origin::CommandLine, reason),
            },
        }
    }
    command
}

fn target(operand: Option<&String>, flags: Vec<String>, faults: &mut Collector) -> Option<ChatTarget> {
    match operand {
        Some(text) if !text.starts_with("http://") && !text.starts_with("https://") => {
            Some(ChatTarget::Model { model: text.clone(), flags })
        }
        _ if !flags.is_empty() => {
            faults.add(&Origin::CommandLine, "flags behind -- are for a model that `pinion chat DIR` serves");
            None
        }
        Some(text) => match ServerUrl::parse(text) {
            Ok(url) => Some(ChatTarget::Server(url)),
            Err(reason) => {
                faults.add(&Origin::CommandLine, reason);
                None
            }
        },
        None => Some(nearby()),
    }
}

fn nearby_url() -> ServerUrl {
    ServerUrl::parse(NEARBY).expect("the address is whole")
}

fn nearby() -> ChatTarget {
    ChatTarget::Server(nearby_url())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<ChatCommand, String> {
        let mut faults = Collector::default();
        let environment = Environment::new([("PINION_API_KEY".into(), "first, second".into())]);
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let command = chat(&words, &environment, &mut faults);
        faults.into_result().map_err(|faults| faults.to_string())?;
        Ok(command)
    }

    #[test]
    fn addresses_have_a_port_and_perhaps_a_base() {
        for (text, shown) in [
            ("http://host", "http://host:80"),
            ("http://host:9/", "http://host:9"),
            ("http://host:9/v1/", "http://host:9"),
            ("http://host:9/a/v1", "http://host:9/a"),
            ("http://host:9/ab1v1", "http://host:9/ab1v1"),
            ("http://[::1]:9", "http://[::1]:9"),
            ("http://[::1]", "http://[::1]:80"),
        ] {
            assert_eq!(ServerUrl::parse(text).map(|url| url.to_string()).as_deref(), Ok(shown), "{text}");
        }
        for text in ["http://", "host:9", "http://a@b", "http://a b", "ftp://a"] {
            assert!(ServerUrl::parse(text).is_err(), "{text}");
        }
        assert!(ServerUrl::parse("https://host").unwrap_err().contains("http://"));
    }

    #[test]
    fn words_become_a_chat_or_faults() {
        let preset = read(&[]).unwrap();
        assert_eq!((preset.target, preset.key.as_deref()), (nearby(), Some("first")));
        let told =
            read(&["/m", "--api-key=k", "--system", "be kind", "--once", "--", "--dtype", "fp32"]).unwrap();
        let flags = ["--dtype", "fp32"].map(str::to_owned).to_vec();
        assert_eq!(told.target, ChatTarget::Model { model: "/m".to_owned(), flags });
        assert_eq!(
            (told.key.as_deref(), told.system.as_deref(), told.once),
            (Some("k"), Some("be kind"), true)
        );
        for (words, says) in [
            (&["--dtype", "fp32"][..], "behind --"),
            (&["a", "b"], "one server"),
            (&["--model"], "needs a value"),
            (&["http://a", "--", "--dtype"], "behind --"),
            (&["https://a"], "TLS"),
        ] {
            let faults = read(words).unwrap_err();
            assert!(faults.contains(says), "{words:?}: {faults}");
        }
    }

    #[test]
    fn words_become_a_look_or_faults() {
        let read = |words: &[&str]| {
            let mut faults = Collector::default();
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let command = top(&words, &Environment::new([]), &mut faults);
            faults.into_result().map(|()| command).map_err(|faults| faults.to_string())
        };
        let told = read(&["--once", "http://h:9", "--api-key", "k"]).unwrap();
        assert_eq!(
            (told.url.to_string().as_str(), told.key.as_deref(), told.once),
            ("http://h:9", Some("k"), true)
        );
        assert_eq!(read(&[]).unwrap().url.to_string(), NEARBY);
        for (words, says) in
            [(&["--all"][..], "--once"), (&["--api-key"], "needs a value"), (&["h:9"], "expected http")]
        {
            let faults = read(words).unwrap_err();
            assert!(faults.contains(says), "{words:?}: {faults}");
        }
    }
}
