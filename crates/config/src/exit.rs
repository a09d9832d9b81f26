//! Exit codes of `pinion`: what a supervisor or a script may rely on.

/// Why the launcher ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Served and stopped cleanly, or printed what was asked for.
    Ok = 0,
    /// The operating system refused something that a working machine grants (memory, descriptors, processes); or a
    /// check of `pinion doctor` failed.
    System = 1,
    /// The command line, the environment or the config file is wrong; every fault is on stderr.
    Usage = 2,
    /// The model folder cannot be served; file and reason are on stderr.
    Model = 3,
    /// The address or port cannot be listened on.
    Port = 4,
    /// A role failed to start, or was not ready before `--start-timeout`.
    Start = 5,
    /// A role died more often than `--restart-limit` allows.
    RestartLimit = 6,
    /// The drain deadline passed, a second signal came, or a role was gone, while requests were open: they were cut.
    DrainCut = 7,
    /// The model could not be pulled from the hub, or the pull was stopped by a signal.
    Pull = 8,
    /// The GPU cannot be used: driver, device, its memory, our object or cuBLASLt is missing or of the wrong kind.
    Device = 9,
}

impl Exit {
    /// Every code.
    pub const ALL: [Exit; 10] = [
        Exit::Ok,
        Exit::System,
        Exit::Usage,
        Exit::Model,
        Exit::Port,
        Exit::Start,
        Exit::RestartLimit,
        Exit::DrainCut,
        Exit::Pull,
        Exit::Device,
    ];

    /// The number that the process ends with.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// One line for the documentation.
    pub fn meaning(self) -> &'static str {
        match self {
            Exit::Ok => "Served and stopped cleanly, or printed what was asked for.",
            Exit::System => {
                "The operating system refused memory, a descriptor or a process; a check of `pinion doctor` failed."
            }
            Exit::Usage => {
                "The command line, the environment or the config file is wrong; every fault is on stderr."
            }
            Exit::Model => "The model folder cannot be served; file and reason are on stderr.",
            Exit::Port => "The address or port cannot be listened on.",
            Exit::Start => "A role failed to start, or was not ready before `--start-timeout`.",
            Exit::RestartLimit => "A role died more often than `--restart-limit` allows.",
            Exit::DrainCut => {
                "The drain deadline passed, a second signal came, or a role was gone, while requests were open: they were cut."
            }
            Exit::Pull => "The model could not be pulled from the hub, or the pull was stopped by a signal.",
            Exit::Device => {
                "The GPU cannot be used: what is missing (driver, device, memory, object, cuBLASLt) is on stderr, with its remedy."
            }
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        std::process::ExitCode::from(exit.code())
    }
}
