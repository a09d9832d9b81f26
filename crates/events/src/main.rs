//! `pinion-events`: started by the launcher, never by hand.

use pinion_protocol::Role;

fn main() -> std::process::ExitCode {
    pinion_worker::process(Role::Events, pinion_events::live)
}
