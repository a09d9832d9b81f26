//! `pinion`: the command line and the launcher of role processes.

fn main() -> std::process::ExitCode {
    pinion_launcher::command_line::run(None)
}
