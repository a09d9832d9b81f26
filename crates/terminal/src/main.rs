//! `pinion-terminal`: `pinion chat` and `pinion top`, clients in a terminal.
//!
//! `pinion` becomes this program. It knows HTTP and a terminal, and nothing of how a service works inside: what it
//! talks to may as well be another server with OpenAI's API. It speaks no TLS. Start at [`chat::run`] or [`top::run`].

mod answer;
mod ask;
mod chat;
mod conversation;
mod figures;
mod input;
mod interrupt;
mod orders;
mod panel;
mod screen;
mod service;
mod top;

use pinion_config::{Exit, LogForm, TerminalCommand};
use std::process::ExitCode;
use std::time::SystemTime;

fn main() -> ExitCode {
    let command = match pinion_config::terminal_command() {
        Ok(command) => command,
        Err(faults) => {
            eprintln!("{}", faults.told(LogForm::Text, SystemTime::now()));
            return faults.exit().into();
        }
    };
    let outcome = match command {
        TerminalCommand::Chat(command) => chat::run(&command),
        TerminalCommand::Top(command) => top::run(&command),
    };
    match outcome {
        Ok(()) => Exit::Ok.into(),
        Err(end) => {
            if !end.reason.is_empty() {
                screen::error(&end.reason);
            }
            end.code.into()
        }
    }
}

/// Why this program ends before its work is done.
#[derive(Debug)]
struct End {
    code: Exit,
    /// Empty if it was told already.
    reason: String,
}

impl End {
    fn system(reason: impl Into<String>) -> End {
        End { code: Exit::System, reason: reason.into() }
    }
}
