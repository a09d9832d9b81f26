//! The control groups whose limits hold for this process: its own and all above it. systemd's `CPUQuota=` and
//! `MemoryMax=` stand in the service's group or in a slice above it; only in a container is the own group the root.

use std::path::{Component, Path, PathBuf};

/// Folders of the groups that this process is in for `controller`, its own first, of a tree under `root` that holds
/// `sys` and `proc`. Folders that do not exist are among them: without a cgroup namespace a container is told the
/// host's path and sees its own group as the root.
pub fn control_groups(root: &Path, controller: &str) -> Vec<PathBuf> {
    let base = root.join("sys/fs/cgroup");
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let path_of = |is_it: &dyn Fn(&str) -> bool| {
        text.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            is_it(controllers).then_some(path)
        })
    };
    // A controller is in one hierarchy: of version 1 if a line names it, of version 2 otherwise.
    if let Some(path) = path_of(&|names| names.split(',').any(|name| name == controller)) {
        return upwards(&base.join(controller), path);
    }
    match path_of(&str::is_empty) {
        Some(path) => upwards(&base, path),
        None => vec![base.clone(), base.join(controller)],
    }
}

/// `base` and the folders between it and `base/path`, the deepest first.
fn upwards(base: &Path, path: &str) -> Vec<PathBuf> {
    let mut group = PathBuf::from(path.trim_start_matches('/'));
    if group.components().any(|part| part == Component::ParentDir) {
        // Above the root of our namespace, where nothing is seen.
        return vec![base.to_owned()];
    }
    let mut folders = Vec::new();
    loop {
        folders.push(base.join(&group));
        if !group.pop() {
            return folders;
        }
    }
}
