//! A role's main: attach, then live.

use crate::Session;
use pinion_config::Exit;
use pinion_protocol::Role;
use std::process::ExitCode;

/// The whole main of a role's binary. `live` builds what the role needs, says that it is ready, loops and stops.
pub fn process(role: Role, live: fn(Session) -> ExitCode) -> ExitCode {
    attached(role, Session::attach(role), live)
}

/// Goes on from an attempt to attach, whoever made it.
pub fn attached(
    role: Role,
    session: Result<Session, crate::StartError>,
    live: fn(Session) -> ExitCode,
) -> ExitCode {
    match session {
        Ok(session) => live(session),
        Err(error) => {
            eprintln!("pinion-{}: {error}", role.name());
            Exit::System.into()
        }
    }
}
