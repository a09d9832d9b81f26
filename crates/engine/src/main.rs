//! `pinion-engine`: started by the launcher; by hand only to replay a recording or to probe a machine, and by
//! `pinion bench engine` to be measured alone.

use pinion_protocol::Role;

fn main() -> std::process::ExitCode {
    if let Some(command) = pinion_config::probe_command() {
        return pinion_engine::probe(command);
    }
    if pinion_config::is_engine_alone() {
        return pinion_engine::alone();
    }
    match pinion_config::replay_command() {
        Some(command) => pinion_engine::replay(command),
        None => pinion_worker::process(Role::Engine, pinion_engine::live),
    }
}
