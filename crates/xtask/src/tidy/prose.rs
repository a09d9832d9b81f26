//! How comments and documents read: their width, and constructions that a reader has to parse twice.

use super::source::word_offsets;
use super::{Fault, File, Tree};

/// Columns of a comment line and of a line of Markdown text.
const COLUMNS_MAX: usize = 120;

/// Each has a plainer form: a noun for a person that is a process, a number for an amount, a verb for a duty.
const CONSTRUCTIONS: &[&str] =
    &["anybody", "everybody", "nobody", "somebody", "whoever", "are owed", "is owed", "so many"];

/// Raw figures and generated tables are kept as they are.
const KEPT: &[&str] = &["benchmarks/results/", "docs/CONFIGURATION.md"];

pub(super) fn width(tree: &Tree) -> Vec<Fault> {
    let wide = |prose: &Prose| prose.text.chars().count() > COLUMNS_MAX && can_break(prose.text);
    let message = || format!("wider than {COLUMNS_MAX} columns");
    lines(tree).filter(wide).map(|prose| prose.fault("prose-width", message())).collect()
}

pub(super) fn constructions(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for prose in lines(tree) {
        let text = without_code_spans(prose.text).to_lowercase();
        for words in CONSTRUCTIONS.iter().filter(|words| word_offsets(&text, words).next().is_some()) {
            faults.push(prose.fault("construction", format!("\"{words}\": say which process, or how many")));
        }
    }
    faults
}

/// A line of a comment or of Markdown text.
struct Prose<'a> {
    path: &'a str,
    line: usize,
    text: &'a str,
}

impl Prose<'_> {
    fn fault(&self, rule: &'static str, message: String) -> Fault {
        Fault::new(self.path, self.line, rule, message)
    }
}

fn lines(tree: &Tree) -> impl Iterator<Item = Prose<'_>> {
    let files = tree.files.iter().filter(|file| !KEPT.iter().any(|kept| file.path.starts_with(kept)));
    files.flat_map(|file| if file.is_rust() { comment_lines(file) } else { markdown_lines(file) })
}

/// Comments of Rust, without tables and blocks of code.
fn comment_lines(file: &File) -> Vec<Prose<'_>> {
    let all = file.text.lines().enumerate();
    let comments = all.filter(|(_, text)| text.trim_start().starts_with("//"));
    prose(file, comments, |text| text.trim_start().trim_start_matches(['/', '!']).trim_start())
}

/// Text without tables, headings and blocks of code.
fn markdown_lines(file: &File) -> Vec<Prose<'_>> {
    if !file.path.ends_with(".md") {
        return Vec::new();
    }
    prose(file, file.text.lines().enumerate(), str::trim_start)
}

/// The lines whose `body` is no table row, no heading and in no block of code.
fn prose<'a>(
    file: &'a File,
    lines: impl Iterator<Item = (usize, &'a str)>,
    body: fn(&str) -> &str,
) -> Vec<Prose<'a>> {
    let (mut found, mut in_code) = (Vec::new(), false);
    for (index, text) in lines {
        let start = body(text);
        let is_fence = start.starts_with("```");
        in_code ^= is_fence;
        if !in_code && !is_fence && !start.starts_with(['|', '#']) {
            found.push(Prose { path: &file.path, line: index + 1, text });
        }
    }
    found
}

/// Whether there is a space to break at: a long address has none, also where it defines a link.
fn can_break(text: &str) -> bool {
    let words = text.trim_start().trim_start_matches(['/', '!', '-', '*', '>']).trim_start();
    let address =
        words.split_once("]: ").filter(|(label, _)| label.starts_with('[')).map(|(_, address)| address);
    address.unwrap_or(words).contains(' ')
}

/// `text` with what stands in backquotes left out: names, and quotations of what is banned.
fn without_code_spans(text: &str) -> String {
    text.split('`').step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rule: fn(&Tree) -> Vec<Fault>, path: &str, text: &str) -> Vec<usize> {
        rule(&Tree::of(&[(path, text)])).iter().map(|fault| fault.line).collect()
    }

    #[test]
    fn wide_prose() {
        let long = "word ".repeat(25);
        for (path, text, lines) in [
            ("a.rs", format!("fn f() {{}}\n    /// {long}\n"), vec![2]),
            ("a.rs", format!("let s = \"{long}\";\n"), vec![]),
            ("a.rs", format!("// https://{}\n", "a".repeat(150)), vec![]),
            ("a.rs", format!("//! | {long} |\n//! ```sh\n//! {long}\n//! ```\n//! {long}\n"), vec![5]),
            ("a.md", format!("short\n\n{long}\n"), vec![3]),
            ("a.md", format!("| {long} |\n## {long}\n```\n{long}\n```\n{long}"), vec![6]),
            ("a.md", format!("[a]: https://{}\n\n[a]: {long}\n", "a".repeat(150)), vec![3]),
            ("a.py", format!("# {long}\n"), vec![]),
            ("benchmarks/results/a/README.md", long.clone(), vec![]),
        ] {
            assert_eq!(found(width, path, &text), lines, "{path}: {text}");
        }
    }

    #[test]
    fn constructions_that_are_read_twice() {
        for (path, text, lines) in [
            ("a.rs", "// Whoever comes.\nlet nobody = 1; // nobody\n", vec![1]),
            ("a.rs", "/// Takes so many\n/// bytes.\n", vec![1]),
            ("a.md", "It is owed nothing.\n`nobody` is banned.\n", vec![1]),
        ] {
            assert_eq!(found(constructions, path, text), lines, "{path}: {text}");
        }
    }
}
