//! `pinion-engine`: started by the launcher; by hand only to replay a recording.

use pinion_protocol::Role;

fn main() -> std::process::ExitCode {
    match pinion_config::replay_command() {
        Some(command) => pinion_engine::replay(command),
        None => pinion_worker::process(Role::Engine, pinion_engine::live),
    }
}
