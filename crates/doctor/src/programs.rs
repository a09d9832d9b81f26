//! The programs of the service, which stand beside this one.

use crate::check::Check;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

pub(crate) const ENGINE: &str = "pinion-engine";
pub(crate) const PULL: &str = "pinion-pull";
/// Needed only where `--kv-events` is set.
const EVENTS: &str = "pinion-events";

/// Those that serve, and the one that downloads what is served.
const NEEDED: [&str; 6] =
    ["pinion", "pinion-frontend", "pinion-tokenizer", ENGINE, "pinion-detokenizer", PULL];

/// Whether all of them are in `folder`.
pub(crate) fn present(folder: &Path, kv_events: bool) -> Check {
    let id = "programs";
    let is_program = |name: &&str| {
        let meta = std::fs::metadata(folder.join(name));
        meta.is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let missing: Vec<&str> =
        NEEDED.into_iter().chain(kv_events.then_some(EVENTS)).filter(|name| !is_program(name)).collect();
    if missing.is_empty() {
        return Check::ok(id, format!("all are in {}", folder.display()));
    }
    let found = format!("{} lacks {}", folder.display(), missing.join(", "));
    Check::failure(
        id,
        found,
        "Install the whole package, or build all of them with deploy/launch.sh --setup-only.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;

    #[test]
    fn a_program_that_is_missing_or_cannot_be_run_is_named() {
        let folder = std::env::temp_dir().join(format!("pinion-doctor-programs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for name in NEEDED {
            std::fs::write(folder.join(name), "").unwrap();
            let mode = if name == ENGINE { 0o644 } else { 0o755 };
            std::fs::set_permissions(folder.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let check = present(&folder, false);
        assert!(check.status == Status::Failure && check.found.ends_with("lacks pinion-engine"), "{check:?}");
        std::fs::set_permissions(folder.join(ENGINE), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(present(&folder, false).status, Status::Ok);
        let check = present(&folder, true);
        assert!(check.status == Status::Failure && check.found.ends_with("lacks pinion-events"), "{check:?}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
