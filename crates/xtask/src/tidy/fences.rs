//! What only some crates may do: unsafe in os, shm, team, ops and cuda, async in the frontend and in the benchmark
//! client, flags and environment in config.

use super::source::{line_of, test_bodies, word_offsets};
use super::{Fault, File, Tree};

const UNSAFE_CRATES: &[&str] = &["os", "shm", "team", "ops", "cuda"];
const ASYNC_CRATES: &[&str] = &["frontend", "bench"];
/// xtask, testkit and bench are tools with command lines of their own.
const ENVIRONMENT_CRATES: &[&str] = &["config", "xtask", "testkit", "bench"];
/// The one module that has a command line: it hands that and the whole environment to config, unread.
const COMMAND_LINE: &str = "crates/launcher/src/command_line.rs";

pub(super) fn unsafe_code(tree: &Tree) -> Vec<Fault> {
    keyword(tree, "unsafe", UNSAFE_CRATES, "unsafe-fence")
}

pub(super) fn async_code(tree: &Tree) -> Vec<Fault> {
    keyword(tree, "async", ASYNC_CRATES, "async-fence")
}

fn keyword(tree: &Tree, word: &'static str, crates: &[&str], rule: &'static str) -> Vec<Fault> {
    let outside = |file: &&File| !file.crate_folder().is_some_and(|name| crates.contains(&name));
    let mut faults = Vec::new();
    for file in tree.rust_files().filter(outside) {
        for at in word_offsets(&file.code, word) {
            let message = format!("{word} belongs to {} only", crates.join(", "));
            faults.push(Fault::new(&file.path, line_of(&file.code, at), rule, message));
        }
    }
    faults
}

/// Reads of the environment and of the command line. Tests, benches, examples and build scripts are free.
pub(super) fn environment(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in tree.rust_files().filter(|file| !reads_freely(file)) {
        let tests = test_bodies(&file.code);
        for (at, what) in environment_reads(&file.code) {
            let in_test = tests.iter().any(|body| body.contains(&at));
            let handed_on = matches!(what, "args" | "vars") && file.path == COMMAND_LINE;
            if !in_test && !handed_on {
                let message = format!("env::{what}: only config reads flags and environment");
                faults.push(Fault::new(&file.path, line_of(&file.code, at), "environment-fence", message));
            }
        }
    }
    faults
}

fn reads_freely(file: &File) -> bool {
    let free_crate = file.crate_folder().is_some_and(|name| ENVIRONMENT_CRATES.contains(&name));
    let free_folder = file.path.split('/').any(|part| matches!(part, "tests" | "benches" | "examples"));
    free_crate
        || free_folder
        || matches!(file.name(), "build.rs" | "tests.rs")
        || file.name().ends_with("_tests.rs")
}

/// `env::var`, `env::args` and their kin, and the same names in `use std::env::{...}`.
fn environment_reads(code: &str) -> Vec<(usize, &'static str)> {
    let mut reads = Vec::new();
    for at in word_offsets(code, "env") {
        let Some(rest) = code[at..].strip_prefix("env::") else { continue };
        let names = match rest.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap_or_default().split(',').map(str::trim).collect(),
            None => vec![super::source::leading_word(rest)],
        };
        for name in names {
            match name {
                "var" | "var_os" => reads.push((at, "var")),
                "vars" | "vars_os" => reads.push((at, "vars")),
                "args" | "args_os" => reads.push((at, "args")),
                _ => {}
            }
        }
    }
    reads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_and_async_stay_in_their_crates() {
        let text = "\nunsafe { f() }\nasync fn g() {}\n";
        let tree = Tree::of(&[("crates/engine/src/lib.rs", text)]);
        assert_eq!(unsafe_code(&tree)[0].line, 2);
        assert_eq!(async_code(&tree)[0].line, 3);
        assert!(
            unsafe_code(&Tree::of(&[("crates/shm/src/lib.rs", text), ("crates/ops/src/a.rs", text)]))
                .is_empty()
        );
        assert!(async_code(&Tree::of(&[("crates/frontend/src/lib.rs", text)])).is_empty());
        let client = Tree::of(&[("benchmarks/bench/src/http.rs", text)]);
        assert_eq!((async_code(&client).len(), unsafe_code(&client).len()), (0, 1));
        let calm = "#![forbid(unsafe_code)]\n// unsafe async\nlet s = \"unsafe\";";
        assert!(unsafe_code(&Tree::of(&[("crates/engine/src/lib.rs", calm)])).is_empty());
    }

    #[test]
    fn only_config_reads_the_environment() {
        let reads = [
            "fn f() { std::env::var(\"A\"); }",
            "use std::env; fn f() { env::args().next(); }",
            "use std::env::{current_dir, var_os};",
            "use std::env::args_os;",
        ];
        for text in reads {
            let faults = |path| environment(&Tree::of(&[(path, text)]));
            assert_eq!(faults("crates/engine/src/lib.rs").len(), 1, "{text}");
            for free in ["crates/config/src/a.rs", "crates/shm/build.rs", "crates/engine/tests/a.rs"] {
                assert!(faults(free).is_empty(), "{free}: {text}");
            }
        }
        let calm = "fn f() { env!(\"A\"); std::env::temp_dir(); }\n#[cfg(test)]\nmod tests { fn g() { std::env::var(\"A\"); } }";
        assert!(environment(&Tree::of(&[("crates/engine/src/lib.rs", calm)])).is_empty());
    }

    #[test]
    fn the_launcher_may_hand_on_everything_and_read_nothing() {
        let faults = |text| environment(&Tree::of(&[(COMMAND_LINE, text)]));
        assert!(faults("fn main() { f(std::env::args_os(), std::env::vars_os()) }").is_empty());
        assert_eq!(faults("fn main() { std::env::var(\"A\"); }").len(), 1);
    }
}
