//! Room for models of the hub.

use crate::check::Check;
use nix::sys::statvfs::statvfs;
use pinion_config::human_bytes;
use std::path::Path;

/// What a small model takes, in bytes.
const ROOM_LOW: u64 = 5 << 30;

/// Room at the cache, or at the folder above it that exists.
pub(crate) fn cache(cache: Option<&Path>) -> Option<Check> {
    let id = "disk.cache";
    let Some(cache) = cache else {
        let remedy = "Name one with --hub-cache or HF_HOME, if models of the hub are to be downloaded.";
        return Some(Check::note(
            id,
            "no place for models of the hub: neither HF_HOME nor HOME is set",
            remedy,
        ));
    };
    let existing = cache.ancestors().find(|folder| folder.exists())?;
    let Ok(disk) = statvfs(existing) else {
        let found = format!("{}: its disk cannot be asked for room", existing.display());
        return Some(Check::note(id, found, "Look at the permissions of the folder."));
    };
    let room = disk.blocks_available() * disk.fragment_size();
    let found = format!("{} has {} free for models of the hub", cache.display(), human_bytes(room));
    Some(if room >= ROOM_LOW {
        Check::ok(id, found)
    } else {
        Check::warning(
            id,
            found,
            "Make room, or name another place with --hub-cache, before a model is downloaded.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;

    #[test]
    fn the_disk_of_a_folder_that_does_not_exist_yet_is_that_above() {
        let check = cache(Some(&std::env::temp_dir().join("no/such/cache"))).unwrap();
        assert!(check.found.contains("no/such/cache has ") && check.found.contains(" free"), "{check:?}");
        assert_eq!(cache(None).unwrap().status, Status::Note);
        assert_eq!(cache(Some(Path::new("/proc"))).unwrap().status, Status::Warning, "a disk without room");
    }
}
