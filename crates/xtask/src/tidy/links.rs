//! Links between documents lead to files and folders that exist. Addresses, and anchors within a page, are not looked
//! at.

use super::source::line_of;
use super::{Fault, Tree};

pub(super) fn broken_links(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        let text = without_code_blocks(&file.text);
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split([')', '#', ' ', '\n']).next().unwrap_or_default();
            if target.is_empty() || target.contains(':') {
                continue;
            }
            let path = resolved(&file.path, target);
            let inside = format!("{path}/");
            if !tree.files.iter().any(|file| file.path == path || file.path.starts_with(&inside)) {
                let message = format!("the link to {target} leads to no file");
                faults.push(Fault::new(&file.path, line_of(&text, at), "broken-link", message));
            }
        }
    }
    faults
}

/// The text with the lines of fenced blocks emptied.
fn without_code_blocks(text: &str) -> String {
    let mut fenced = false;
    let line = |line: &str| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        if fenced || is_fence { String::new() } else { line.to_owned() }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The path from the root that `target` means in the document at `from`.
fn resolved(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let tree = Tree::of(&[("docs/a.md", text), ("docs/design/b.md", ""), ("README.md", "")]);
        broken_links(&tree).iter().map(|fault| fault.line).collect()
    }

    #[test]
    fn links_to_nothing_are_faults() {
        assert_eq!(lines("\n[a](design/c.md) and [b](../LICENSE)\n"), [2, 2]);
        assert_eq!(lines("[a](b.md#part)"), [1]);
    }

    #[test]
    fn links_to_files_folders_anchors_and_addresses_pass() {
        let text = "[a](design/b.md#part) [b](design) [c](../README.md) [d](#here) [e](https://host.org/x)";
        assert_eq!(lines(text), [0; 0]);
        assert_eq!(lines("```\n[a](nothing.md)\n```\n"), [0; 0]);
    }
}
