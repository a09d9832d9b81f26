//! One check and its outcome.

/// How it came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing has to be done.
    Note,
    /// The service runs, worse than it could.
    Warning,
    /// The service does not run, or not as it was asked to.
    Failure,
}

impl Status {
    /// The word that is printed, and that JSON has.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Note => "note",
            Status::Warning => "warning",
            Status::Failure => "failure",
        }
    }
}

/// What was looked at, what was found, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    /// Stays the same from version to version: scripts read it.
    pub(crate) id: &'static str,
    pub(crate) status: Status,
    pub(crate) found: String,
    /// One sentence; absent where nothing is to be done.
    pub(crate) remedy: Option<String>,
}

impl Check {
    pub(crate) fn ok(id: &'static str, found: impl Into<String>) -> Check {
        Check { id, status: Status::Ok, found: found.into(), remedy: None }
    }

    pub(crate) fn note(id: &'static str, found: impl Into<String>, remedy: &str) -> Check {
        Check::with(id, Status::Note, found, remedy)
    }

    pub(crate) fn warning(id: &'static str, found: impl Into<String>, remedy: &str) -> Check {
        Check::with(id, Status::Warning, found, remedy)
    }

    pub(crate) fn failure(id: &'static str, found: impl Into<String>, remedy: &str) -> Check {
        Check::with(id, Status::Failure, found, remedy)
    }

    pub(crate) fn with(id: &'static str, status: Status, found: impl Into<String>, remedy: &str) -> Check {
        let remedy = (!remedy.is_empty()).then(|| remedy.to_owned());
        Check { id, status, found: found.into(), remedy }
    }
}

/// Whether something keeps the service from running as it was asked to.
pub(crate) fn any_failure(checks: &[Check]) -> bool {
    checks.iter().any(|check| check.status == Status::Failure)
}
