//! What is written: answers to standard output, everything else to standard error, dim on a terminal.

use crate::answer::{Delta, Timing};
use std::io::{IsTerminal, Write};

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// How things are shown here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    /// Standard output is a terminal.
    pub(crate) is_terminal: bool,
    coloured: bool,
}

/// Which part of an answer was written last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Part {
    #[default]
    Nothing,
    Reasoning,
    Text,
}

impl Screen {
    pub(crate) fn new(no_colour: bool) -> Screen {
        let is_terminal = std::io::stdout().is_terminal();
        Screen { is_terminal, coloured: is_terminal && !no_colour }
    }

    /// Writes a piece of an answer. Without a terminal the reasoning is left out.
    pub(crate) fn delta(&self, delta: &Delta, last: &mut Part) {
        let mut out = std::io::stdout().lock();
        // A reader that is gone ends the program with the next prompt.
        let _ = out.write_all(self.shown(delta, last).as_bytes()).and_then(|()| out.flush());
    }

    fn shown(&self, delta: &Delta, last: &mut Part) -> String {
        let mut shown = String::new();
        if self.is_terminal && !delta.reasoning.is_empty() {
            if *last == Part::Nothing && !self.coloured {
                shown += "(reasoning) ";
            }
            shown += &self.dimmed(&harmless(&delta.reasoning));
            *last = Part::Reasoning;
        }
        if !delta.text.is_empty() {
            if *last == Part::Reasoning {
                shown += "\n\n";
            }
            shown += &if self.is_terminal { harmless(&delta.text) } else { delta.text.clone() };
            *last = Part::Text;
        }
        shown
    }

    fn dimmed(&self, text: &str) -> String {
        if self.coloured { format!("{DIM}{text}{PLAIN}") } else { text.to_owned() }
    }

    /// Ends the line of an answer.
    pub(crate) fn end_answer(&self) {
        let _ = writeln!(std::io::stdout());
    }

    /// Says something beside the chat.
    pub(crate) fn note(&self, text: &str) {
        let coloured = self.coloured && std::io::stderr().is_terminal();
        let text = if coloured { format!("{DIM}{text}{PLAIN}") } else { text.to_owned() };
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    pub(crate) fn timing(&self, timing: &Timing, finish: Option<&str>) {
        let words =
            if self.is_terminal { timing_in_words(timing, finish) } else { timing_in_pairs(timing, finish) };
        self.note(&words);
    }
}

/// An error, in the one form that all programs here have.
pub(crate) fn error(text: &str) {
    let _ = writeln!(std::io::stderr(), "pinion: error: {text}");
}

/// A model's text without what moves the cursor or changes the terminal.
fn harmless(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control() || matches!(letter, '\n' | '\t')).collect()
}

fn timing_in_words(timing: &Timing, finish: Option<&str>) -> String {
    let first =
        timing.first_token.map(|time| format!("first token after {:.0} ms", time.as_secs_f64() * 1e3));
    let rate = timing.rate().map(|rate| format!("{rate:.1} tokens/s"));
    let count = format!("{} tokens", timing.tokens);
    let end = finish.filter(|finish| *finish != "stop").map(|finish| format!("ended by {finish}"));
    [first, Some(count), rate, end].into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

fn timing_in_pairs(timing: &Timing, finish: Option<&str>) -> String {
    let first = timing.first_token.map(|time| format!("ttft_ms={:.1}", time.as_secs_f64() * 1e3));
    let rate = timing.rate().map(|rate| format!("tokens_per_s={rate:.1}"));
    let count = format!("tokens={}", timing.tokens);
    let end = finish.map(|finish| format!("finish={finish}"));
    [first, Some(count), rate, end].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn reasoning_is_dim_on_a_terminal_and_absent_elsewhere() {
        let reasoning = Delta { reasoning: "hm".into(), ..Delta::default() };
        let text = Delta { text: "yes\x1b[2J\n".into(), ..Delta::default() };
        let both = |is_terminal, coloured| {
            let (screen, mut last) = (Screen { is_terminal, coloured }, Part::default());
            screen.shown(&reasoning, &mut last) + &screen.shown(&text, &mut last)
        };
        assert_eq!(both(true, true), "\x1b[2mhm\x1b[0m\n\nyes[2J\n");
        assert_eq!(both(true, false), "(reasoning) hm\n\nyes[2J\n");
        assert_eq!(both(false, false), "yes\x1b[2J\n", "what is not shown is not changed");
    }

    #[test]
    fn timings_are_words_or_pairs() {
        let at = |ms| Some(Duration::from_millis(ms));
        let timing = Timing { first_token: at(120), last_token: at(1120), tokens: 21 };
        assert_eq!(
            timing_in_words(&timing, Some("stop")),
            "first token after 120 ms · 21 tokens · 20.0 tokens/s"
        );
        assert!(timing_in_words(&timing, Some("length")).ends_with("ended by length"));
        assert_eq!(
            timing_in_pairs(&timing, Some("stop")),
            "ttft_ms=120.0 tokens=21 tokens_per_s=20.0 finish=stop"
        );
        assert_eq!(timing_in_pairs(&Timing::default(), None), "tokens=0");
    }
}
