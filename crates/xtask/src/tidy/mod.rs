//! A test of the tree itself. Each rule is a function from the [`Tree`] to its faults; `run` prints what is left
//! after the written [`exceptions`]. To add a rule: a function in the file of its subject, a line in [`RULES`],
//! and a test on a made-up tree in which it fails.

mod exceptions;
mod fences;
mod fields;
mod folders;
mod generated;
mod links;
mod manifests;
mod paths;
mod prose;
mod reach;
mod sizes;
mod source;
mod words;

use std::fmt;
use std::path::Path;
use std::process::Command;

use source::masked;

/// One finding, printed as `path:line: rule: message`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fault {
    path: String,
    line: usize,
    rule: &'static str,
    message: String,
}

impl Fault {
    fn new(path: &str, line: usize, rule: &'static str, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule, message: message.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.message)
    }
}

/// One file of the tree. Paths are relative to the root, with forward slashes.
struct File {
    path: String,
    byte_count: u64,
    /// Empty for what is not UTF-8.
    text: String,
    /// For Rust: the text with comments and literals blanked, every offset kept. Otherwise empty.
    code: String,
}

impl File {
    fn new(path: &str, text: &str) -> Self {
        let code = if path.ends_with(".rs") { masked(text) } else { String::new() };
        Self { path: path.to_owned(), byte_count: text.len() as u64, text: text.to_owned(), code }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// `shm` for crates/shm/src/lib.rs, `bench` for benchmarks/bench/src/main.rs; nothing elsewhere.
    fn crate_folder(&self) -> Option<&str> {
        let inside = self.path.strip_prefix("crates/").or_else(|| self.path.strip_prefix("benchmarks/"))?;
        inside.split('/').next()
    }
}

/// What the rules look at.
struct Tree {
    files: Vec<File>,
}

impl Tree {
    /// A made-up tree, for the tests of the rules.
    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Self {
        Self { files: files.iter().map(|(path, text)| File::new(path, text)).collect() }
    }

    /// Every file that git tracks or would track, so that a fault shows before the commit.
    fn load(root: &Path) -> Result<Self, String> {
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .map_err(|error| format!("tidy: cannot run git: {error}"))?;
        if !listed.status.success() {
            return Err(format!("tidy: git ls-files: {}", String::from_utf8_lossy(&listed.stderr).trim()));
        }
        let listed = String::from_utf8_lossy(&listed.stdout);
        let mut paths: Vec<&str> = listed.split('\0').filter(|path| !path.is_empty()).collect();
        paths.sort_unstable();
        paths.dedup();
        // A tracked file may be deleted in the work tree: what cannot be read is not there.
        let read = |path: &str| std::fs::read(root.join(path)).ok().map(|bytes| loaded(path, bytes));
        Ok(Self { files: paths.into_iter().filter_map(read).collect() })
    }

    fn rust_files(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.is_rust())
    }

    fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }
}

fn loaded(path: &str, bytes: Vec<u8>) -> File {
    let byte_count = bytes.len() as u64;
    let text = String::from_utf8(bytes).unwrap_or_default();
    File { byte_count, ..File::new(path, &text) }
}

type Rule = fn(&Tree) -> Vec<Fault>;

const RULES: &[Rule] = &[
    sizes::file_lines,
    sizes::function_lines,
    sizes::file_bytes,
    words::banned_words,
    words::vague_names,
    fences::unsafe_code,
    fences::async_code,
    fences::environment,
    manifests::torch,
    manifests::direction,
    folders::direction,
    paths::machine_paths,
    fields::open_fields,
    reach::dead_files,
    generated::configuration,
    links::broken_links,
    prose::width,
    prose::constructions,
];

/// Checks the tree at `root`; the error holds every fault, one per line.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let tree = Tree::load(root)?;
    let found: Vec<Fault> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    let mut faults = exceptions::apply(found, exceptions::EXCEPTIONS);
    faults.sort();
    if faults.is_empty() {
        println!("tidy: {} files, no fault", tree.files.len());
        return Ok(());
    }
    let lines: Vec<String> = faults.iter().map(Fault::to_string).collect();
    Err(format!("{}\ntidy: {} faults in {} files", lines.join("\n"), faults.len(), tree.files.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_reads_as_editors_expect() {
        let fault = Fault::new("crates/a/src/lib.rs", 7, "banned-word", "no");
        assert_eq!(fault.to_string(), "crates/a/src/lib.rs:7: banned-word: no");
    }

    #[test]
    fn what_is_not_utf8_keeps_its_size() {
        let file = loaded("weights.bin", vec![0xff; 9]);
        assert_eq!((file.byte_count, file.text.as_str()), (9, ""));
    }
}
