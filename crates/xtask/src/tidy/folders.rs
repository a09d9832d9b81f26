//! Which parts of a crate may name which: no circle between the folders of its `src`.

use super::reach::inline_modules;
use super::source::{leading_word, line_of, word_offsets};
use super::{Fault, File, Tree};

/// Folders and files directly below a crate's `src`, each with those that it may name. A row names only rows above it,
/// so there is no circle. `lib.rs` and `main.rs` may name all.
type Rows = &'static [(&'static str, &'static [&'static str])];

const CRATES: &[(&str, Rows)] = &[(
    "crates/frontend/src/",
    &[
        ("limits", &[]),
        ("ui", &[]),
        ("route", &["ui"]),
        ("observe", &["limits", "route"]),
        ("admission", &["limits"]),
        ("answers", &["limits", "observe", "admission"]),
        ("requests", &["limits", "route", "observe", "answers"]),
        ("openapi", &["limits", "ui", "route", "admission", "answers"]),
        ("http", &["limits", "ui", "route", "observe", "admission", "answers", "requests", "openapi"]),
        ("reactor", &["limits", "observe", "requests", "http"]),
    ],
)];

pub(super) fn direction(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (root, rows) in CRATES {
        for file in tree.rust_files() {
            if let Some(path) = file.path.strip_prefix(root) {
                faults.extend(of_file(file, path, rows));
            }
        }
    }
    faults
}

fn of_file(file: &File, path: &str, rows: Rows) -> Vec<Fault> {
    let fault = |at, message| Fault::new(&file.path, line_of(&file.code, at), "folder-direction", message);
    let own = path.split(['/', '.']).next().unwrap_or_default();
    if matches!(path, "lib.rs" | "main.rs") {
        return Vec::new();
    }
    let Some((_, allowed)) = rows.iter().find(|(name, _)| *name == own) else {
        return vec![fault(0, format!("{own} has no row in the table of folder directions"))];
    };
    let named = named_from_root(&file.code, path).into_iter();
    // An item of lib.rs is a fault, too: lib.rs knows all.
    let foreign = named.filter(|(_, name)| *name != own && !allowed.contains(name));
    foreign.map(|(at, name)| fault(at, format!("{own} must not name {name}"))).collect()
}

/// The first names of all paths from the crate's root, `crate::name` and `super::super::name`, with their offsets.
fn named_from_root<'a>(code: &'a str, path: &str) -> Vec<(usize, &'a str)> {
    let names = path.trim_end_matches(".rs").split('/').filter(|name| *name != "mod");
    let file_depth = names.count();
    let inline = inline_modules(code);
    let mut found = Vec::new();
    for at in word_offsets(code, "crate") {
        let rest = &code[at + "crate".len()..];
        if let Some(rest) = rest.strip_prefix("::") {
            found.extend(first_names(rest).into_iter().map(|name| (at, name)));
        }
    }
    for at in word_offsets(code, "super").filter(|at| !code[..*at].ends_with("super::")) {
        let (mut rest, mut steps) = (&code[at..], 0);
        while let Some(after) = rest.strip_prefix("super::") {
            (rest, steps) = (after, steps + 1);
        }
        let depth = file_depth + inline.iter().filter(|(_, body)| body.contains(&at)).count();
        if steps == depth {
            found.extend(first_names(rest).into_iter().map(|name| (at, name)));
        }
    }
    found
}

/// The name at the start of a path, or those of a list in braces.
fn first_names(path: &str) -> Vec<&str> {
    let Some(list) = path.trim_start().strip_prefix('{') else { return vec![leading_word(path)] };
    let (mut names, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth > 0 => depth -= 1,
            b',' | b'}' if depth == 0 => {
                names.push(leading_word(&list[begin..at]));
                begin = at + 1;
                if byte == b'}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names.into_iter().filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(path: &str, text: &str) -> Vec<String> {
        let path = format!("crates/frontend/src/{path}");
        direction(&Tree::of(&[(&path, text)])).into_iter().map(|fault| fault.message).collect()
    }

    #[test]
    fn rows_name_only_rows_above_them() {
        for (root, rows) in CRATES {
            for (index, (name, allowed)) in rows.iter().enumerate() {
                for other in *allowed {
                    let above = rows[..index].iter().any(|(known, _)| known == other);
                    assert!(above, "{root}: {name} -> {other}");
                }
            }
        }
    }

    #[test]
    fn a_folder_names_what_its_row_allows() {
        for (path, text) in [
            ("http/info.rs", "use crate::observe::load; use crate::{openapi, ui};"),
            ("requests/ledger.rs", "use crate::requests::ticket::Ticket; use super::outgoing::Job;"),
            ("requests/ledger/losses.rs", "use super::super::ticket::Ticket;"),
            ("observe/mod.rs", "// crate::http\nconst A: &str = \"crate::http\"; pub(crate) mod http;"),
            ("lib.rs", "use http::App; use crate::http::App;"),
            ("limits.rs", "mod tests { use super::*; }"),
        ] {
            assert_eq!(faults(path, text), [""; 0], "{path}: {text}");
        }
    }

    #[test]
    fn a_way_back_is_a_fault() {
        for (path, text, other) in [
            ("requests/ledger.rs", "use crate::http::app::App;", "http"),
            ("requests/ledger.rs", "fn f(app: &crate::http::app::App) {}", "http"),
            ("requests/ledger.rs", "use crate::{limits::{A, B}, http::{app::App, body}};", "http"),
            ("observe/timeline.rs", "use super::super::requests::request::Facts;", "requests"),
            ("observe/mod.rs", "use super::http::app;", "http"),
            ("observe/timeline.rs", "mod tests { use super::super::super::http::app; }", "http"),
            ("admission/mod.rs", "use crate::answers::thoughts;", "answers"),
            ("route.rs", "use crate::limits::A;", "limits"),
        ] {
            let own = path.split(['/', '.']).next().unwrap_or_default();
            assert_eq!(faults(path, text), [format!("{own} must not name {other}")], "{path}: {text}");
        }
    }

    #[test]
    fn a_new_folder_needs_a_row() {
        assert_eq!(faults("gadgets/a.rs", "").len(), 1);
        assert_eq!(faults("gadgets.rs", "").len(), 1);
    }
}
