//! `pinion-engine`: started by the launcher; by hand only to replay a recording or to probe a machine.

use pinion_protocol::Role;

fn main() -> std::process::ExitCode {
    if let Some(command) = pinion_config::probe_command() {
        return pinion_engine::probe(command);
    }
    match pinion_config::replay_command() {
        Some(command) => pinion_engine::replay(command),
        None => pinion_worker::process(Role::Engine, pinion_engine::live),
    }
}
