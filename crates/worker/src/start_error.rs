//! Why a role could not attach.

use pinion_config::Exit;
use pinion_protocol::Role;

/// A role's start failed before it could speak to the launcher. Printed on standard error.
#[derive(Debug)]
pub enum StartError {
    /// Standard input is not the launcher's descriptor socket.
    ByHand(Role),
    /// The launcher is gone, or is not the parent.
    Orphan,
    /// The launcher's build differs from ours.
    Layout {
        /// The launcher's hash.
        theirs: u64,
        /// Our hash.
        ours: u64,
    },
    /// The words of a ring are not those of a new one.
    Corrupt {
        /// Which check failed.
        what: String,
    },
    /// A descriptor or message did not arrive in time or did not check.
    Attach {
        /// What was being attached.
        what: &'static str,
        /// The reason.
        reason: String,
    },
}

impl StartError {
    /// What the process ends with. The launcher ends with the same while it starts.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            StartError::Layout { .. } => Exit::Start,
            StartError::ByHand(_)
            | StartError::Orphan
            | StartError::Attach { .. }
            | StartError::Corrupt { .. } => Exit::System,
        }
    }

    pub(crate) fn attach(what: &'static str, reason: impl std::fmt::Display) -> StartError {
        StartError::Attach { what, reason: reason.to_string() }
    }
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StartError::ByHand(_) => {
                f.write_str("this is a part of `pinion serve`, which starts it; see pinion --help")
            }
            StartError::Orphan => f.write_str("the launcher that started this process is gone"),
            StartError::Layout { theirs, ours } => {
                write!(
                    f,
                    "launcher and role come from different builds (layout {theirs:016x}, here {ours:016x})"
                )
            }
            StartError::Corrupt { what } => write!(f, "cannot attach ring: {what}"),
            StartError::Attach { what, reason } => write!(f, "cannot attach {what}: {reason}"),
        }
    }
}

impl std::error::Error for StartError {}
