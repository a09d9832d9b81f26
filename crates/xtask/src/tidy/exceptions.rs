//! The one place for exceptions. Each has a reason, and one that nothing needs any more is a fault itself.

use super::Fault;

/// Lets the faults of one rule pass in one file.
pub(super) struct Exception {
    pub rule: &'static str,
    pub path: &'static str,
    pub reason: &'static str,
}

pub(super) const EXCEPTIONS: &[Exception] = &[];

/// What is left, and a fault for each exception that no longer excuses anything or that gives no reason.
pub(super) fn apply(found: Vec<Fault>, exceptions: &[Exception]) -> Vec<Fault> {
    let excuses =
        |exception: &Exception, fault: &Fault| exception.rule == fault.rule && exception.path == fault.path;
    let mut left: Vec<Fault> = exceptions
        .iter()
        .filter(|exception| {
            exception.reason.is_empty() || !found.iter().any(|fault| excuses(exception, fault))
        })
        .map(|exception| {
            Fault::new(
                exception.path,
                1,
                "exception",
                format!("{}: needless or without a reason", exception.rule),
            )
        })
        .collect();
    left.extend(
        found.into_iter().filter(|fault| !exceptions.iter().any(|exception| excuses(exception, fault))),
    );
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXCUSED: Exception = Exception { rule: "file-lines", path: "a.rs", reason: "a table" };

    #[test]
    fn an_exception_covers_one_rule_in_one_file() {
        let fault = |path, rule| Fault::new(path, 9, rule, "");
        let found =
            vec![fault("a.rs", "file-lines"), fault("a.rs", "banned-word"), fault("b.rs", "file-lines")];
        let left = apply(found, &[EXCUSED]);
        assert_eq!(left, [fault("a.rs", "banned-word"), fault("b.rs", "file-lines")]);
    }

    #[test]
    fn a_needless_or_silent_exception_is_a_fault() {
        assert_eq!(apply(Vec::new(), &[EXCUSED])[0].rule, "exception");
        let silent = Exception { reason: "", ..EXCUSED };
        assert_eq!(apply(vec![Fault::new("a.rs", 9, "file-lines", "")], &[silent]).len(), 1);
    }
}
