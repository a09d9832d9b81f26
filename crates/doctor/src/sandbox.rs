//! Landlock and seccomp, entered for real: after this the process can still print and end.

use crate::check::Check;
use pinion_os::calls::{self, Calls};
use pinion_os::files::{self, Enforced, Files};
use std::io::ErrorKind;

/// Confines this process as a role is, for good.
pub(crate) fn enter() -> Vec<Check> {
    let files = Files { read: vec!["/".into()], ..Files::default() };
    vec![landlock(files::restrict(&files)), seccomp(calls::restrict(Calls::default()))]
}

fn landlock(outcome: Result<Enforced, String>) -> Check {
    let id = "sandbox.landlock";
    match outcome {
        Ok(Enforced::Fully) => Check::ok(id, "Landlock fences files, sockets and signals of each role"),
        Ok(Enforced::InPart) => Check::note(
            id,
            "Landlock is older than Linux 6.12: not every file, socket and signal is fenced",
            "A kernel from 6.12 on fences them all.",
        ),
        Ok(Enforced::Not) => Check::warning(
            id,
            "no Landlock: a role that was taken over could open files",
            "Use a kernel with Landlock (CONFIG_SECURITY_LANDLOCK, `landlock` in lsm=), or allow it in the container.",
        ),
        Err(reason) => Check::warning(
            id,
            format!("Landlock refuses: {reason}"),
            "Allow the landlock calls in the container's seccomp profile.",
        ),
    }
}

fn seccomp(outcome: std::io::Result<()>) -> Check {
    let id = "sandbox.seccomp";
    match outcome {
        Ok(()) => Check::ok(id, "seccomp filters the system calls of each role"),
        Err(error) if error.kind() == ErrorKind::Unsupported => Check::warning(
            id,
            "no seccomp filters: a role that was taken over could make any system call",
            "Use a kernel with CONFIG_SECCOMP_FILTER.",
        ),
        Err(error) => Check::warning(
            id,
            format!("the kernel refuses seccomp filters: {error}"),
            "Allow seccomp and prctl in the container's seccomp profile.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;

    #[test]
    fn every_outcome_that_is_not_whole_has_a_remedy() {
        for (outcome, status) in [
            (Ok(Enforced::Fully), Status::Ok),
            (Ok(Enforced::InPart), Status::Note),
            (Ok(Enforced::Not), Status::Warning),
            (Err("no".to_owned()), Status::Warning),
        ] {
            let check = landlock(outcome);
            assert_eq!((check.status, check.remedy.is_some()), (status, status != Status::Ok), "{check:?}");
        }
        assert_eq!(seccomp(Ok(())).status, Status::Ok);
        assert!(
            seccomp(Err(ErrorKind::Unsupported.into())).remedy.unwrap().contains("CONFIG_SECCOMP_FILTER")
        );
        assert!(seccomp(Err(ErrorKind::PermissionDenied.into())).found.contains("permission denied"));
    }
}
