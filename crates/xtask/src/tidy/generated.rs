//! Generated documents are equal to what the code would generate now.

use super::{Fault, Tree};
use crate::docs;

pub(super) fn configuration(tree: &Tree) -> Vec<Fault> {
    stale(tree, docs::CONFIGURATION, &docs::configuration())
}

/// The first line in which the file differs from the expected text.
fn stale(tree: &Tree, path: &str, expected: &str) -> Vec<Fault> {
    let Some(file) = tree.file(path) else {
        return vec![Fault::new(path, 1, "generated-docs", "missing; run cargo xtask docs")];
    };
    if file.text == expected {
        return Vec::new();
    }
    let same = file.text.lines().zip(expected.lines()).take_while(|(found, wanted)| found == wanted).count();
    vec![Fault::new(path, same + 1, "generated-docs", "stale; run cargo xtask docs")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_stale_and_equal() {
        let line = |text: &str| {
            stale(&Tree::of(&[("d.md", text)]), "d.md", "a\nb\n").first().map(|fault| fault.line)
        };
        assert_eq!(line("a\nb\n"), None);
        assert_eq!(line("a\nc\n"), Some(2));
        assert_eq!(line("a\nb\nc\n"), Some(3));
        assert_eq!(stale(&Tree::of(&[]), "d.md", "").len(), 1);
    }
}
