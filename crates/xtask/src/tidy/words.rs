//! Words that say "not finished", and names that say nothing.

use super::source::{leading_word, line_of, word_offsets};
use super::{Fault, Tree};

/// Spelled in two halves, or this file would be its own fault.
const UNFINISHED: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];

/// Macros of unfinished code.
const MACROS: &[&str] = &["todo!", "unimplemented!", "dbg!"];

const CODE_ENDINGS: &[&str] = &[".rs", ".py", ".sh", ".cu", ".cuh", ".cpp", ".h", ".toml", ".yml", ".yaml"];

const VAGUE: &[&str] = &["common", "util", "utils", "core", "helper", "helpers", "manager"];

pub(super) fn banned_words(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in tree.files.iter().filter(|file| CODE_ENDINGS.iter().any(|ending| file.path.ends_with(ending)))
    {
        for word in UNFINISHED {
            for at in word_offsets(&file.text, word) {
                let line = line_of(&file.text, at);
                faults.push(Fault::new(
                    &file.path,
                    line,
                    "banned-word",
                    format!("{word} marks unfinished work"),
                ));
            }
        }
        for name in MACROS {
            for at in word_offsets(&file.code, name.trim_end_matches('!')) {
                if file.code[at..].starts_with(name) {
                    let line = line_of(&file.code, at);
                    faults.push(Fault::new(
                        &file.path,
                        line,
                        "banned-word",
                        format!("{name} marks unfinished work"),
                    ));
                }
            }
        }
    }
    faults
}

/// Crate folders, module files and folders, and inline modules.
pub(super) fn vague_names(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in tree.rust_files() {
        let stem = file.path.trim_end_matches(".rs");
        if let Some(part) = stem.split('/').find(|part| VAGUE.contains(part)) {
            faults.push(Fault::new(
                &file.path,
                1,
                "vague-name",
                format!("{part} says nothing about what is in it"),
            ));
        }
        for at in word_offsets(&file.code, "mod") {
            let name = leading_word(&file.code[at + 3..]);
            if VAGUE.contains(&name) {
                let message = format!("module {name} says nothing about what is in it");
                faults.push(Fault::new(&file.path, line_of(&file.code, at), "vague-name", message));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(faults: &[Fault]) -> Vec<usize> {
        faults.iter().map(|fault| fault.line).collect()
    }

    #[test]
    fn unfinished_words() {
        let word = UNFINISHED[0];
        for path in ["a.rs", "a.py", "kernels/cuda/a.cu"] {
            assert_eq!(
                lines(&banned_words(&Tree::of(&[(path, &format!("\n// {word}: later\n"))]))),
                [2],
                "{path}"
            );
        }
        for text in [format!("{word}S"), "method".to_owned()] {
            assert!(banned_words(&Tree::of(&[("a.rs", &text)])).is_empty(), "{text}");
        }
        assert!(banned_words(&Tree::of(&[("a.md", word)])).is_empty());
    }

    #[test]
    fn unfinished_macros() {
        for name in MACROS {
            let text = format!("fn f() {{\n    {name}()\n}}");
            assert_eq!(lines(&banned_words(&Tree::of(&[("a.rs", &text)]))), [2], "{name}");
        }
        assert!(
            banned_words(&Tree::of(&[("a.rs", "// todo!()\nlet s = \"dbg!(x)\"; let todo = 1;")])).is_empty()
        );
    }

    #[test]
    fn names_that_say_nothing() {
        for path in ["crates/util/src/lib.rs", "crates/a/src/helpers.rs", "crates/a/tests/common/mod.rs"] {
            assert_eq!(vague_names(&Tree::of(&[(path, "")])).len(), 1, "{path}");
        }
        assert_eq!(lines(&vague_names(&Tree::of(&[("a.rs", "\npub mod core {}\n")]))), [2]);
        assert!(
            vague_names(&Tree::of(&[("crates/a/src/core_affinity.rs", "use core::fmt; mod commonly {}")]))
                .is_empty()
        );
    }
}
