//! `pinion`: the command line. Parses once, then runs the command; everything of substance is elsewhere.

use pinion_config::{Command, Exit, Machine};
use pinion_launcher::serve;
use pinion_worker::telemetry;

fn main() -> std::process::ExitCode {
    let machine = Machine::detect();
    let command = match pinion_config::parse(std::env::args_os().skip(1), std::env::vars_os(), &machine) {
        Ok(command) => command,
        Err(faults) => {
            eprintln!("{faults}");
            return faults.exit().into();
        }
    };
    match command {
        Command::Version => println!("pinion {}", env!("CARGO_PKG_VERSION")),
        Command::Help(text) | Command::ShowConfig(text) => println!("{text}"),
        Command::Serve(config) => {
            telemetry::install(&config.log_filter, config.log_json);
            let ending = serve::serve(*config);
            let code = ending.code;
            return match serve::report(&ending) {
                Ok(()) => code.into(),
                Err(_) => Exit::System.into(),
            };
        }
    }
    Exit::Ok.into()
}
