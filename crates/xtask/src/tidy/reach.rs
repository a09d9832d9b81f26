//! Dead files: Rust that no target of its crate reaches through `mod`, `#[path]` or `include!`.

use std::collections::BTreeSet;
use std::ops::Range;

use super::source::{body_of, leading_word, word_offsets};
use super::{Fault, File, Tree};

pub(super) fn dead_files(tree: &Tree) -> Vec<Fault> {
    let mut pending: Vec<Reached> = Vec::new();
    for manifest in tree.files.iter().filter(|file| file.name() == "Cargo.toml") {
        let folder = parent(&manifest.path);
        pending.extend(
            targets(tree, manifest, folder).into_iter().map(|path| Reached { path, owns_folder: true }),
        );
    }
    let mut seen = BTreeSet::new();
    while let Some(reached) = pending.pop() {
        if let Some(file) = tree.file(&reached.path).filter(|file| seen.insert(file.path.as_str())) {
            pending.extend(children(file, reached.owns_folder));
        }
    }
    let dead = tree.rust_files().filter(|file| !seen.contains(file.path.as_str()));
    dead.map(|file| Fault::new(&file.path, 1, "dead-file", "no target reaches this file")).collect()
}

/// A file that something refers to; it need not exist.
struct Reached {
    path: String,
    /// Its modules lie beside it, as for lib.rs and mod.rs, and not in a folder of its own name.
    owns_folder: bool,
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// `folder/part`, with `.` and `..` resolved.
fn join(folder: &str, part: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in part.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Cargo's targets: those found by place, tests only without `autotests = false`, and those named in the manifest.
fn targets(tree: &Tree, manifest: &File, folder: &str) -> Vec<String> {
    let table = manifest.text.parse::<toml::Table>().unwrap_or_default();
    let autotests = table.get("package").and_then(|package| package.get("autotests")?.as_bool());
    let by_place = tree.rust_files().filter(|file| {
        let inside =
            if folder.is_empty() { Some(file.path.as_str()) } else { file.path.strip_prefix(folder) };
        inside
            .map(|path| path.trim_start_matches('/'))
            .is_some_and(|path| is_target(path) && (autotests != Some(false) || !path.starts_with("tests/")))
    });
    let mut found: Vec<String> = by_place.map(|file| file.path.clone()).collect();
    for kind in ["lib", "bin", "test", "bench", "example"] {
        let entries = match table.get(kind) {
            Some(toml::Value::Array(entries)) => entries.iter().collect(),
            Some(entry) => vec![entry],
            None => Vec::new(),
        };
        for entry in entries {
            let named = |key: &str| entry.get(key).and_then(toml::Value::as_str);
            let path = named("path").map(str::to_owned);
            let of_name = || named("name").filter(|_| kind == "test").map(|name| format!("tests/{name}.rs"));
            found.extend(path.or_else(of_name).map(|path| join(folder, &path)));
        }
    }
    found
}

fn is_target(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["build.rs"] | ["src", "lib.rs" | "main.rs"] => true,
        ["src", "bin", rest @ ..] | ["tests" | "examples" | "benches", rest @ ..] => {
            matches!(rest, [_] | [_, "main.rs"])
        }
        _ => false,
    }
}

/// What one file refers to.
fn children(file: &File, owns_folder: bool) -> Vec<Reached> {
    let folder = parent(&file.path);
    let own = join(folder, file.name().trim_end_matches(".rs"));
    let base = if owns_folder || file.name() == "mod.rs" { folder } else { &own };
    let inline = inline_modules(&file.code);
    let mut found = Vec::new();
    for at in word_offsets(&file.code, "mod") {
        let name = leading_word(&file.code[at + 3..]);
        if name.is_empty() {
            continue;
        }
        if let Some(path) = path_attribute(file, at) {
            found.push(Reached { path: join(folder, path), owns_folder: true });
            continue;
        }
        let around = inline.iter().filter(|(_, body)| body.contains(&at));
        let place = around.fold(base.to_owned(), |place, (name, _)| join(&place, name));
        found.push(Reached { path: join(&place, &format!("{name}.rs")), owns_folder: false });
        found.push(Reached { path: join(&place, &format!("{name}/mod.rs")), owns_folder: true });
    }
    for at in word_offsets(&file.code, "include") {
        if let Some(path) =
            first_literal(&file.text[at..]).filter(|_| file.code[at..].starts_with("include!("))
        {
            found.push(Reached { path: join(folder, path), owns_folder: true });
        }
    }
    found
}

/// Names and bodies of `mod name { ... }`, outer ones first.
pub(super) fn inline_modules(code: &str) -> Vec<(&str, Range<usize>)> {
    let marks = word_offsets(code, "mod").map(|at| (leading_word(&code[at + 3..]), at));
    marks.filter_map(|(name, at)| Some((name, body_of(code, at)?))).collect()
}

/// The path in `#[path = "..."]` among the attributes before `mod` at `at`.
fn path_attribute(file: &File, at: usize) -> Option<&str> {
    let item_start = file.code[..at].rfind([';', '{', '}']).map_or(0, |end| end + 1);
    let attribute = item_start + file.code[item_start..at].find("#[path")?;
    first_literal(&file.text[attribute..])
}

fn first_literal(text: &str) -> Option<&str> {
    text.split('"').nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(files: &[(&str, &str)]) -> Vec<String> {
        let manifest = "[package]\nname = \"a\"\n[[bin]]\nname = \"b\"\npath = \"tools/b.rs\"\n";
        let mut all = vec![("crates/a/Cargo.toml", manifest)];
        all.extend(files);
        dead_files(&Tree::of(&all)).into_iter().map(|fault| fault.path).collect()
    }

    #[test]
    fn a_file_without_mod_is_dead() {
        assert_eq!(
            dead(&[("crates/a/src/lib.rs", "// mod lost;\n"), ("crates/a/src/lost.rs", "")]),
            ["crates/a/src/lost.rs"]
        );
        // Reached only from a dead file.
        let chain =
            [("crates/a/src/lib.rs", ""), ("crates/a/src/b.rs", "mod c;"), ("crates/a/src/b/c.rs", "")];
        assert_eq!(dead(&chain), ["crates/a/src/b.rs", "crates/a/src/b/c.rs"]);
        // In no crate at all.
        assert_eq!(dead(&[("kernels/x.rs", "")]), ["kernels/x.rs"]);
    }

    #[test]
    fn a_test_that_no_suite_lists_is_dead() {
        let manifest = "[package]\nname = \"a\"\nautotests = false\n[[test]]\nname = \"a\"\npath = \"tests/suite.rs\"\n\
                        [[test]]\nname = \"alone\"\n";
        let files = Tree::of(&[
            ("crates/a/Cargo.toml", manifest),
            ("crates/a/tests/suite.rs", "mod listed;"),
            ("crates/a/tests/listed.rs", ""),
            ("crates/a/tests/alone.rs", ""),
            ("crates/a/tests/lost.rs", ""),
        ]);
        let dead: Vec<_> = dead_files(&files).into_iter().map(|fault| fault.path).collect();
        assert_eq!(dead, ["crates/a/tests/lost.rs"]);
    }

    #[test]
    fn every_way_to_a_file_is_followed() {
        let living: &[(&str, &str)] = &[
            ("crates/a/src/lib.rs", "pub mod b; mod d { mod e; } #[cfg(x)] #[path = \"odd/f.rs\"] mod f;"),
            ("crates/a/src/b.rs", "mod c;"),
            ("crates/a/src/b/c.rs", "include!(\"../made.rs\");"),
            ("crates/a/src/made.rs", ""),
            ("crates/a/src/d/e/mod.rs", "mod g;"),
            ("crates/a/src/d/e/g.rs", ""),
            ("crates/a/src/odd/f.rs", "mod h;"),
            ("crates/a/src/odd/h.rs", ""),
            ("crates/a/src/main.rs", ""),
            ("crates/a/src/bin/x.rs", ""),
            ("crates/a/tests/t.rs", "mod kit;"),
            ("crates/a/tests/kit/mod.rs", ""),
            ("crates/a/benches/s/main.rs", ""),
            ("crates/a/tools/b.rs", ""),
            ("crates/a/build.rs", ""),
        ];
        assert_eq!(dead(living), Vec::<String>::new());
    }
}
