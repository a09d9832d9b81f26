//! A struct owns its fields: its `impl` blocks use them in at most two files, so that an invariant over them can be
//! read in one place. Files are split by state: the next one gets a struct of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::source::{body_of, leading_word, line_of, test_bodies, word_offsets};
use super::{Fault, File, Tree};

const FILES_MAX: usize = 2;

/// Where a struct is defined: path and line.
type Place<'a> = (&'a str, usize);

/// Counts the files by `self.field`, `Self { .. }` and `let Self { .. }` in `impl` blocks, tests apart. Fields that are
/// reached through another struct or by a function outside of the blocks are not seen.
pub(super) fn open_fields(tree: &Tree) -> Vec<Fault> {
    let mut structs: BTreeMap<(&str, &str), Vec<Place>> = BTreeMap::new();
    let mut blocks: Vec<(&str, &str, Place)> = Vec::new();
    for file in tree.rust_files().filter(|file| file.path.contains("/src/")) {
        let Some(crate_folder) = file.crate_folder() else { continue };
        let tests = test_bodies(&file.code);
        for at in items(file, "struct", &tests) {
            let name = leading_word(&file.code[at + "struct".len()..]);
            let places = structs.entry((crate_folder, name)).or_default();
            places.push((&file.path, line_of(&file.code, at)));
        }
        for at in items(file, "impl", &tests).filter(|&at| begins_item(&file.code, at)) {
            let Some(body) = body_of(&file.code, at) else { continue };
            let name = subject(&file.code[at + "impl".len()..body.start]);
            if uses_fields(&file.code[body]) {
                blocks.push((crate_folder, name, (&file.path, line_of(&file.code, at))));
            }
        }
    }
    let mut faults = Vec::new();
    let mut users: BTreeMap<(Place, &str), BTreeSet<&str>> = BTreeMap::new();
    for (crate_folder, name, (path, line)) in blocks {
        let Some(places) = structs.get(&(crate_folder, name)) else { continue };
        match nearest(places, path) {
            Some(place) => {
                users.entry((place, name)).or_default().insert(path);
            }
            None => {
                let message =
                    format!("several structs are called {name}, and none is nearest: name one apart");
                faults.push(Fault::new(path, line, "open-fields", message));
            }
        }
    }
    let open = users.into_iter().filter(|(_, files)| files.len() > FILES_MAX);
    faults.extend(open.map(|(((path, line), name), files)| {
        let names: Vec<&str> = files.iter().filter_map(|path| path.rsplit('/').next()).collect();
        let message = format!(
            "{name}'s fields are used in {} files, limit {FILES_MAX}: {}",
            files.len(),
            names.join(", ")
        );
        Fault::new(path, line, "open-fields", message)
    }));
    faults
}

/// Where the word stands outside of tests.
fn items<'a>(file: &'a File, word: &'a str, tests: &'a [Range<usize>]) -> impl Iterator<Item = usize> + 'a {
    word_offsets(&file.code, word).filter(|at| !tests.iter().any(|test| test.contains(at)))
}

/// Which of the structs of one name an `impl` block in the file `path` is for: the one in that file, else the one whose
/// module shares the longest way from the crate's root. Nothing if two share the same.
fn nearest<'a>(places: &[Place<'a>], path: &str) -> Option<Place<'a>> {
    let shared = |place: &Place| {
        let same = module(place.0).zip(module(path)).take_while(|(one, other)| one == other).count();
        if place.0 == path { usize::MAX } else { same }
    };
    let longest = places.iter().map(shared).max()?;
    let mut found = places.iter().filter(|place| shared(place) == longest);
    let first = found.next()?;
    found.all(|other| other.0 == first.0).then_some(*first)
}

/// The names from the root of the crate to the module in the file `path`.
fn module(path: &str) -> impl Iterator<Item = &str> {
    let parts = path.split('/').map(|part| part.trim_end_matches(".rs"));
    parts.filter(|part| !["mod", "lib", "main"].contains(part))
}

/// Whether the word at `at` begins a block, and not a type as in `-> impl Iterator`.
fn begins_item(code: &str, at: usize) -> bool {
    let before = code[..at].trim_end();
    before.is_empty() || before.ends_with(['}', ';', '{', ']']) || before.ends_with("unsafe")
}

/// The struct that an `impl` with this header is for.
fn subject(header: &str) -> &str {
    let where_at = word_offsets(header, "where").next().unwrap_or(header.len());
    let header = &header[..where_at];
    let generics = if header.starts_with('<') { closing(header) } else { 0 };
    let header = &header[generics..];
    let header = header.rsplit(" for ").next().unwrap_or(header).trim_start_matches(['&', ' ']);
    let path = header.split('<').next().unwrap_or(header).trim();
    path.rsplit("::").next().unwrap_or(path)
}

/// Behind the bracket that closes the first one.
fn closing(text: &str) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            // Not the arrow of a closure's type.
            b'>' if at > 0 && text.as_bytes()[at - 1] != b'-' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    text.len()
}

/// A field that is called stands in brackets, so that a name before `(` is a method.
fn uses_fields(body: &str) -> bool {
    let is_field = |at: usize| {
        let Some(rest) = body[at + "self".len()..].trim_start().strip_prefix('.') else { return false };
        let name = leading_word(rest);
        let behind = rest.trim_start()[name.len()..].trim_start();
        !name.is_empty() && !behind.starts_with('(') && !behind.starts_with("::")
    };
    // The braces behind the type of a function's result are its body.
    let is_literal = |at: usize| {
        body[at + "Self".len()..].trim_start().starts_with('{') && !body[..at].trim_end().ends_with("->")
    };
    word_offsets(body, "self").any(is_field) || word_offsets(body, "Self").any(is_literal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        open_fields(&Tree::of(files)).iter().map(Fault::to_string).collect()
    }

    #[test]
    fn fields_are_used_in_two_files_at_most() {
        let home = (
            "crates/a/src/bus.rs",
            "/// x\npub struct Bus<T> { at: T }\nimpl<T: Fn() -> u8> Bus<T> {\n fn f(&self) { self.at; }\n}",
        );
        let second = (
            "crates/a/src/b.rs",
            "impl<T> Drop for Bus<T> where T: X { fn drop(&mut self) { self.at = 1; } }",
        );
        let third = ("crates/a/src/c.rs", "fn x() {}\nimpl crate::Bus<u8> { fn g(&self) { self . at } }");
        assert!(found(&[home, second]).is_empty());
        let faults = found(&[home, second, third]);
        assert_eq!(
            faults,
            [
                "crates/a/src/bus.rs:2: open-fields: Bus's fields are used in 3 files, limit 2: b.rs, bus.rs, c.rs"
            ]
        );
    }

    #[test]
    fn making_and_taking_apart_use_fields() {
        let home = ("crates/a/src/bus.rs", "struct Bus { at: u8 } impl Bus { fn f(&self) { self.at } }");
        let second = ("crates/a/src/b.rs", "impl Bus { fn h(self) { let Self { at } = self; } }");
        for third in [
            "impl From<u8> for Bus\nwhere u8: X,\n{ fn from(at: u8) -> Self { Self { at } } }",
            "impl Bus { fn g(&self) { (self.at)() } }",
        ] {
            assert_eq!(found(&[home, second, ("crates/a/src/c.rs", third)]).len(), 1, "{third}");
        }
    }

    #[test]
    fn methods_tests_and_other_crates_do_not_count() {
        let home = ("crates/a/src/bus.rs", "struct Bus { at: u8 } impl Bus { fn f(&self) { self.at } }");
        let second = ("crates/a/src/b.rs", "impl Bus { fn h(&self) { self.at } }");
        for third in [
            ("crates/a/src/c.rs", "impl Bus { fn g(&self) -> Self { self.f(); self.of::<u8>(); } }"),
            ("crates/a/src/c.rs", "fn g(bus: &Bus) -> impl Bus { bus.at }"),
            ("crates/a/src/c.rs", "#[cfg(test)]\nmod tests { impl Bus { fn g(&self) { self.at } } }"),
            ("crates/b/src/c.rs", "impl Bus { fn g(&self) { self.at } }"),
            ("crates/a/tests/c.rs", "impl Bus { fn g(&self) { self.at } }"),
        ] {
            assert!(found(&[home, second, third]).is_empty(), "{third:?}");
        }
    }

    #[test]
    fn a_block_is_for_the_nearest_struct_of_its_name() {
        const HOME: &str = "struct Bus { at: u8 } impl Bus { fn f(&self) { self.at } }";
        const BLOCK: &str = "impl Bus { fn g(&self) { self.at } }";
        let homes = [("crates/a/src/x/bus.rs", HOME), ("crates/a/src/y/bus.rs", HOME)];
        let found = |more: &[&str]| {
            let more = more.iter().map(|path| (*path, BLOCK));
            found(&homes.into_iter().chain(more).collect::<Vec<_>>())
        };
        assert!(found(&["crates/a/src/x/b.rs", "crates/a/src/y/b.rs"]).is_empty());
        let faults = found(&["crates/a/src/x/b.rs", "crates/a/src/x/bus/c.rs", "crates/a/src/y/b.rs"]);
        let [fault] = &faults[..] else { panic!("{faults:?}") };
        assert!(fault.starts_with("crates/a/src/x/bus.rs:1: open-fields: Bus's fields"), "{fault}");
        let faults = found(&["crates/a/src/c.rs"]);
        let [fault] = &faults[..] else { panic!("{faults:?}") };
        assert!(
            fault.starts_with("crates/a/src/c.rs:1: open-fields: several structs are called Bus"),
            "{fault}"
        );
        // A file's own struct is the nearest, whatever there is elsewhere.
        let own = [homes[0], homes[1], ("crates/a/src/x/c.rs", HOME), ("crates/a/src/x/d.rs", HOME)];
        assert!(super::tests::found(&own).is_empty());
    }
}
