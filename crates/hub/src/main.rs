//! `pinion-pull`: pulls one model of the Hugging Face hub into the cache and prints its folder.
//!
//! A short-lived process of its own: TLS and outbound connections exist here and nowhere else. It is started with the
//! words of `pinion pull` or `pinion serve`, the launcher waits for it. Whenever it ends, be it by SIGKILL, every file
//! under its final name is whole; what was begun lies in the cache as `blobs/ETAG.incomplete`, and the next pull goes
//! on from there. Start at [`pull::pull`]; the layout of the cache is in `layout`, one file's way in `fetch`.

mod client;
mod failure;
mod fetch;
mod layout;
mod progress;
mod pull;
mod select;

use nix::sys::signal::{SigSet, Signal};
use pinion_config::{Exit, LogForm};
use std::io::Write;
use std::process::ExitCode;
use std::time::SystemTime;

fn main() -> ExitCode {
    let command = match pinion_config::pull_command() {
        Ok(command) => command,
        Err(faults) => {
            eprintln!("{}", faults.told(LogForm::of_process(), SystemTime::now()));
            return faults.exit().into();
        }
    };
    if let Err(error) = stop_on_signals() {
        fail(&format!("cannot take signals: {error}"));
        return Exit::System.into();
    }
    match pull::pull(&command) {
        Ok(folder) => {
            // A reader that has closed its end knows the folder already.
            let _ = writeln!(std::io::stdout(), "{}", folder.display());
            Exit::Ok.into()
        }
        Err(failure) => {
            fail(&failure.to_string());
            failure.exit().into()
        }
    }
}

/// Says why the pull ends.
fn fail(reason: &str) {
    progress::say(&LogForm::of_process().error_line(reason, SystemTime::now()));
}

/// A signal ends the process at once, after a line that says what is kept.
fn stop_on_signals() -> std::io::Result<()> {
    let mut set = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| set.add(signal));
    set.thread_block()?;
    let wait = move || {
        if set.wait().is_ok() {
            progress::say(
                "pinion: the pull was stopped; what has come so far is kept, and the next pull goes on from it",
            );
            std::process::exit(i32::from(Exit::Pull.code()));
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
    Ok(())
}
