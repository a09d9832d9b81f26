//! The engine process: attach, build, ready, loop, stop.

use pinion_config::Exit;
use pinion_engine::{build, run};
use pinion_protocol::Role;
use pinion_worker::Session;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut session = match Session::attach(Role::Engine) {
        Ok(session) => session,
        Err(error) => {
            eprintln!("{error}");
            return Exit::Start.into();
        }
    };
    let (engine, summary) = match build(&session.config) {
        Ok(built) => built,
        Err((reason, exit)) => return session.fail(&reason, i32::from(exit.code())),
    };
    session.ready(&summary);
    run(session, engine)
}
