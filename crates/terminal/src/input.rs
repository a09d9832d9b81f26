//! Prompts: from a terminal with editing and history, else from standard input line by line, or whole.

use crate::orders;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Editor, Helper};
use std::io::{IsTerminal, Read};

const PROMPT: &str = "> ";
/// Prompts that the up key finds again.
const HISTORY_MAX: usize = 1000;
/// Bytes of standard input that are one prompt.
const INPUT_BYTES_MAX: u64 = 16 << 20;

/// Where prompts come from.
pub(crate) enum Input {
    Terminal(Box<Editor<Orders, MemHistory>>),
    Lines(std::io::Lines<std::io::StdinLock<'static>>),
    Whole,
    Over,
}

impl Input {
    pub(crate) fn new(once: bool) -> Result<Input, String> {
        let stdin = std::io::stdin();
        if once {
            return Ok(Input::Whole);
        }
        if !stdin.is_terminal() || !std::io::stdout().is_terminal() {
            return Ok(Input::Lines(stdin.lines()));
        }
        let cannot = |error: ReadlineError| format!("the terminal cannot be used: {error}");
        let config =
            Config::builder().max_history_size(HISTORY_MAX).map_err(cannot)?.auto_add_history(true).build();
        let history = MemHistory::with_config(&config);
        let mut editor = Editor::with_history(config, history).map_err(cannot)?;
        editor.set_helper(Some(Orders));
        Ok(Input::Terminal(Box::new(editor)))
    }

    /// The next prompt; `None` at the end. Errors: it cannot be read.
    pub(crate) fn next(&mut self) -> Result<Option<String>, String> {
        let cannot = |error: &dyn std::fmt::Display| format!("standard input cannot be read: {error}");
        match self {
            Input::Over => Ok(None),
            Input::Lines(lines) => lines.next().transpose().map_err(|error| cannot(&error)),
            Input::Whole => {
                *self = Input::Over;
                let mut text = String::new();
                let read = std::io::stdin().take(INPUT_BYTES_MAX).read_to_string(&mut text);
                read.map(|_| Some(text)).map_err(|error| cannot(&error))
            }
            Input::Terminal(editor) => loop {
                match editor.readline(PROMPT) {
                    Ok(line) => return Ok(Some(line.replace("\\\n", "\n"))),
                    // Ctrl-C in an empty or begun line: a fresh one.
                    Err(ReadlineError::Interrupted) => {}
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(error) => return Err(cannot(&error)),
                }
            },
        }
    }
}

/// Completes orders, and asks for more after a backslash.
pub(crate) struct Orders;

impl Helper for Orders {}
impl Highlighter for Orders {}
impl Hinter for Orders {
    type Hint = String;
}

impl Completer for Orders {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..at];
        let fitting = orders::NAMES.iter().filter(|name| !typed.is_empty() && name.starts_with(typed));
        Ok((0, fitting.map(|name| format!("{name} ")).collect()))
    }
}

impl Validator for Orders {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let goes_on = context.input().ends_with('\\');
        Ok(if goes_on { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}
