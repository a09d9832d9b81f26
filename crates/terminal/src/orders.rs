//! The lines that begin with a slash. Pure.

/// What a line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Order<'a> {
    /// A prompt; also what stands behind two slashes.
    Prompt(&'a str),
    System(Option<&'a str>),
    Save(&'a str),
    Set(&'a str, Option<&'a str>),
    Settings,
    Reset,
    Timings,
    Help,
    End,
    /// Nothing was typed.
    Nothing,
    Wrong(String),
}

/// The orders, for completion.
pub(crate) const NAMES: [&str; 7] = ["/help", "/system", "/save", "/set", "/reset", "/timings", "/exit"];

pub(crate) const HELP: &str = "\
/help              this list
/system TEXT       the system prompt from now on; without TEXT there is none
/set NAME VALUE    a field of every request, as in /set temperature 0.7; without VALUE it is taken away,
                   without NAME all are shown
/save FILE         writes the chat: JSON if FILE ends in .json, else Markdown
/reset             forgets what was said
/timings           time to first token and tokens per second after each answer: on or off
/exit              ends, as Ctrl-D does
Ctrl-C stops an answer. A line that ends with \\ goes on. A prompt that begins with a slash has two.";

/// Reads one line, or several that belong together.
pub(crate) fn read(line: &str) -> Order<'_> {
    let line = line.trim();
    let Some(order) = line.strip_prefix('/').filter(|rest| !rest.starts_with('/')) else {
        let prompt = line.strip_prefix('/').unwrap_or(line);
        return if prompt.is_empty() { Order::Nothing } else { Order::Prompt(prompt) };
    };
    let (name, rest) = order.split_once(char::is_whitespace).unwrap_or((order, ""));
    let rest = rest.trim();
    let operand = (!rest.is_empty()).then_some(rest);
    match (name, operand) {
        ("system", text) => Order::System(text),
        ("save", Some(file)) => Order::Save(file),
        ("save", None) => Order::Wrong("/save needs a file: /save chat.md".to_owned()),
        ("set", None) => Order::Settings,
        ("set", Some(pair)) => match pair.split_once(char::is_whitespace) {
            Some((name, value)) => Order::Set(name, Some(value.trim())),
            None => Order::Set(pair, None),
        },
        ("reset", None) => Order::Reset,
        ("timings", None) => Order::Timings,
        ("help", None) => Order::Help,
        ("exit" | "quit", None) => Order::End,
        _ => {
            Order::Wrong(format!("/{name}: no such order; /help lists them, // begins a prompt with a slash"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_prompts_or_orders() {
        for (line, order) in [
            ("hello\nyou ", Order::Prompt("hello\nyou")),
            ("//etc", Order::Prompt("/etc")),
            ("  ", Order::Nothing),
            ("/system be  kind", Order::System(Some("be  kind"))),
            ("/system", Order::System(None)),
            ("/save a b.md", Order::Save("a b.md")),
            ("/set temperature 0.7", Order::Set("temperature", Some("0.7"))),
            ("/set temperature", Order::Set("temperature", None)),
            ("/set", Order::Settings),
            ("/quit", Order::End),
            ("/timings", Order::Timings),
        ] {
            assert_eq!(read(line), order, "{line}");
        }
        for line in ["/nothing", "/", "/reset now", "/save"] {
            assert!(matches!(read(line), Order::Wrong(_)), "{line}");
        }
        for name in NAMES {
            assert!(HELP.contains(name) && !matches!(read(&format!("{name} x")), Order::Prompt(_)), "{name}");
        }
    }
}
