//! A role's main: attach, then live.

use crate::{Session, telemetry};
use pinion_protocol::Role;
use std::process::ExitCode;

/// The whole main of a role's binary. `live` builds what the role needs, says that it is ready, loops and stops.
pub fn process(role: Role, live: fn(Session) -> ExitCode) -> ExitCode {
    let code = attached(role, Session::attach(role), live);
    telemetry::flush();
    code
}

/// Runs a role from an attempt to attach.
pub fn attached(
    role: Role,
    session: Result<Session, crate::StartError>,
    live: fn(Session) -> ExitCode,
) -> ExitCode {
    match session {
        Ok(session) => live(session),
        Err(error) => {
            telemetry::say(&format!("pinion-{}: {error}", role.name()));
            error.exit().into()
        }
    }
}
