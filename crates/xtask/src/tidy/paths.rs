//! No path of the machine that something was built on.

use super::source::line_of;
use super::{Fault, Tree};

/// Spelled in two halves, or this file would be its own fault.
const MACHINE_PATHS: &[&str] = &[concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];

pub(super) fn machine_paths(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in &tree.files {
        for path in MACHINE_PATHS {
            // `network/home/x` is a relative path and `host.org/home/` an address: neither begins at the root.
            let from_root = |at: usize| {
                let before = file.text[..at].chars().next_back();
                !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | '>' | ')'))
            };
            for (at, _) in file.text.match_indices(path).filter(|(at, _)| from_root(*at)) {
                let message = format!("{path} is a place on one machine");
                faults.push(Fault::new(&file.path, line_of(&file.text, at), "machine-path", message));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_paths_of_a_machine() {
        for path in MACHINE_PATHS {
            for file in ["a.rs", "docs/A.md", "deploy/launch.sh"] {
                let text = format!("\ncd {path}x\n");
                assert_eq!(machine_paths(&Tree::of(&[(file, &text)]))[0].line, 2, "{path}");
            }
            let relative = format!("see net{path}x and https://host.org{path}x");
            assert!(machine_paths(&Tree::of(&[("a.md", &relative)])).is_empty(), "{path}");
        }
    }
}
