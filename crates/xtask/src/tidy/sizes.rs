//! A function fits on a screen, a file in 500 lines, a main in 130; nothing heavy is committed.

use super::source::{body_of, leading_word, line_of, word_offsets};
use super::{Fault, Tree};

const FILE_LINES_MAX: usize = 500;
const MAIN_LINES_MAX: usize = 130;
const FUNCTION_LINES_MAX: usize = 70;
const FILE_BYTES_MAX: u64 = 8_000_000;

pub(super) fn file_lines(tree: &Tree) -> Vec<Fault> {
    let fault = |file: &super::File| {
        let limit = if file.name() == "main.rs" { MAIN_LINES_MAX } else { FILE_LINES_MAX };
        let lines = file.text.lines().count();
        (lines > limit)
            .then(|| Fault::new(&file.path, limit + 1, "file-lines", format!("{lines} lines, limit {limit}")))
    };
    tree.rust_files().filter_map(fault).collect()
}

/// Counts from the line of `fn` to the line of the closing brace.
pub(super) fn function_lines(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in tree.rust_files() {
        for at in word_offsets(&file.code, "fn") {
            let name = leading_word(&file.code[at + 2..]);
            // `fn(u32)` is a type.
            if name.is_empty() {
                continue;
            }
            let Some(body) = body_of(&file.code, at) else { continue };
            let first = line_of(&file.code, at);
            let lines = line_of(&file.code, body.end) - first + 1;
            if lines > FUNCTION_LINES_MAX {
                let message = format!("{name} has {lines} lines, limit {FUNCTION_LINES_MAX}");
                faults.push(Fault::new(&file.path, first, "function-lines", message));
            }
        }
    }
    faults
}

pub(super) fn file_bytes(tree: &Tree) -> Vec<Fault> {
    let heavy = tree.files.iter().filter(|file| file.byte_count > FILE_BYTES_MAX);
    let message = |file: &super::File| format!("{} bytes, limit {FILE_BYTES_MAX}", file.byte_count);
    heavy.map(|file| Fault::new(&file.path, 1, "file-bytes", message(file))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::File;
    use super::*;

    #[test]
    fn long_files_and_mains() {
        let cases = [("crates/a/src/lib.rs", 500), ("crates/a/src/main.rs", 130)];
        for (path, limit) in cases {
            assert!(file_lines(&Tree::of(&[(path, &"\n".repeat(limit))])).is_empty());
            let faults = file_lines(&Tree::of(&[(path, &"\n".repeat(limit + 1))]));
            assert_eq!(faults[0].line, limit + 1, "{path}");
        }
        assert!(file_lines(&Tree::of(&[("docs/A.md", &"\n".repeat(900))])).is_empty());
    }

    #[test]
    fn long_functions() {
        let function = |lines: usize| format!("\nfn f() {{{}}}\n", "\n".repeat(lines - 1));
        assert!(function_lines(&Tree::of(&[("a.rs", &function(70))])).is_empty());
        let faults = function_lines(&Tree::of(&[("a.rs", &function(71))]));
        assert_eq!((faults[0].line, faults[0].message.as_str()), (2, "f has 71 lines, limit 70"));
        // Neither a declaration, nor a function type, nor a brace in a string opens a body.
        let calm = format!("fn f();\ntype F = fn(u8);\nconst S: &str = \"fn g() {{\";\n{}", "\n".repeat(80));
        assert!(function_lines(&Tree::of(&[("a.rs", &calm)])).is_empty());
    }

    #[test]
    fn heavy_files() {
        let file = |byte_count| File { byte_count, ..File::new("m.bin", "") };
        assert!(file_bytes(&Tree { files: vec![file(8_000_000)] }).is_empty());
        assert_eq!(file_bytes(&Tree { files: vec![file(8_000_001)] }).len(), 1);
    }
}
