//! Which crate may depend on which. The table below is the whole law; dev-dependencies are free.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::{Fault, File, Tree};

const TORCH_CRATES: &[&str] = &["ops", "model"];
const TORCH_PACKAGES: &[&str] = &["tch", "torch-sys"];

/// What the role processes may know; none of them knows another.
const ROLE_KNOWS: &[&str] = &[
    "worker",
    "config",
    "protocol",
    "os",
    "shm",
    "text",
    "grammar",
    "scheduler",
    "model",
    "api",
    "random",
    "progress",
];

/// A crate and the siblings that it may name in `[dependencies]` and `[build-dependencies]`.
const DIRECTION: &[(&str, Siblings)] = &[
    ("random", Siblings::Only(&[])),
    ("protocol", Siblings::Only(&[])),
    ("progress", Siblings::Only(&[])),
    ("os", Siblings::Only(&[])),
    // For clients of a service: no role may have it.
    ("client", Siblings::Only(&[])),
    ("shm", Siblings::Only(&["os"])),
    ("cuda", Siblings::Only(&[])),
    ("kernels", Siblings::Only(&[])),
    ("team", Siblings::Only(&[])),
    // Over libtorch's tensors the CUDA object's kernels need both.
    ("ops", Siblings::Only(&["cuda", "kernels", "team"])),
    ("architecture", Siblings::Only(&[])),
    ("gguf", Siblings::Only(&[])),
    ("config", Siblings::Only(&["architecture", "gguf", "protocol"])),
    ("text", Siblings::Only(&["gguf", "protocol"])),
    ("grammar", Siblings::Only(&["protocol", "text"])),
    ("scheduler", Siblings::Only(&["protocol"])),
    ("worker", Siblings::Only(&["config", "protocol", "os", "shm"])),
    ("model", Siblings::Only(&["architecture", "gguf", "ops", "cuda", "random"])),
    ("api", Siblings::Only(&["protocol"])),
    ("frontend", Siblings::Only(ROLE_KNOWS)),
    ("tokenizer", Siblings::Only(ROLE_KNOWS)),
    ("detokenizer", Siblings::Only(ROLE_KNOWS)),
    ("events", Siblings::Only(ROLE_KNOWS)),
    ("engine", Siblings::Only(ROLE_KNOWS)),
    ("launcher", Siblings::Only(&["worker", "config", "protocol", "os", "shm", "client"])),
    // TLS and outbound connections: nothing depends on it.
    ("hub", Siblings::Only(&["config", "progress"])),
    // Short-lived programs of the command line: what they check or ask is another process.
    ("doctor", Siblings::Only(&["config", "os"])),
    ("terminal", Siblings::Only(&["client", "config", "os"])),
    // The roles as threads of one process: the only crate that knows several of them.
    ("in-process", Siblings::Any),
    // Tools stand outside: they may look at anything, and nothing of the server may depend on them.
    ("testkit", Siblings::Any),
    ("simulation", Siblings::Any),
    ("bench", Siblings::Any),
    ("xtask", Siblings::Any),
];

enum Siblings {
    Any,
    Only(&'static [&'static str]),
}

/// One entry of a dependency table.
struct Dependency {
    /// As written on the left, to find its line.
    key: String,
    /// The package meant, which differs from the key when it was renamed.
    package: String,
    development: bool,
}

/// `pinion-shm` is called `shm` in the tables here.
fn short(package: &str) -> &str {
    package.strip_prefix("pinion-").unwrap_or(package)
}

/// All packages with their manifests. The workspace's own manifest has no package and drops out.
fn packages(tree: &Tree) -> Vec<(&File, String, Table)> {
    let manifests = tree.files.iter().filter(|file| file.name() == "Cargo.toml");
    let parsed = manifests.filter_map(|file| Some((file, file.text.parse::<Table>().ok()?)));
    parsed
        .filter_map(|(file, table)| {
            let name = table.get("package")?.get("name")?.as_str()?.to_owned();
            Some((file, name, table))
        })
        .collect()
}

/// Direct, build and dev-dependencies, those under `[target...]` included.
fn dependencies(manifest: &Table) -> Vec<Dependency> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let scopes = targets.into_iter().flat_map(Table::values).filter_map(Value::as_table).chain([manifest]);
    let mut found = Vec::new();
    for scope in scopes {
        for kind in ["dependencies", "build-dependencies", "dev-dependencies"] {
            for (key, value) in scope.get(kind).and_then(Value::as_table).into_iter().flatten() {
                let package = value.get("package").and_then(Value::as_str).unwrap_or(key).to_owned();
                found.push(Dependency { key: key.clone(), package, development: kind == "dev-dependencies" });
            }
        }
    }
    found
}

/// The line on which a dependency is named, or 1.
fn line_of_key(file: &File, key: &str) -> usize {
    let names_key = |line: &str| {
        let line = line.trim_start().trim_start_matches('"');
        line.strip_prefix(key).is_some_and(|rest| rest.starts_with([' ', '.', '=', '"']))
            || line.trim_end().ends_with(&format!("dependencies.{key}]"))
    };
    file.text.lines().position(names_key).map_or(1, |index| index + 1)
}

/// libtorch stays behind ops and model.
pub(super) fn torch(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (file, name, manifest) in packages(tree) {
        if TORCH_CRATES.contains(&short(&name)) {
            continue;
        }
        let found = dependencies(&manifest);
        for dependency in
            found.iter().filter(|dependency| TORCH_PACKAGES.contains(&dependency.package.as_str()))
        {
            let message = format!("{} belongs to {} only", dependency.package, TORCH_CRATES.join(", "));
            faults.push(Fault::new(&file.path, line_of_key(file, &dependency.key), "torch-fence", message));
        }
    }
    faults
}

/// Every sibling dependency is in the table, and every crate has a row.
pub(super) fn direction(tree: &Tree) -> Vec<Fault> {
    let packages = packages(tree);
    let siblings: BTreeSet<&str> = packages.iter().map(|(_, name, _)| name.as_str()).collect();
    let mut faults = Vec::new();
    for (file, name, manifest) in &packages {
        let Some((_, allowed)) = DIRECTION.iter().find(|(known, _)| *known == short(name)) else {
            let message = format!("{name} has no row in the table of dependency directions");
            faults.push(Fault::new(&file.path, 1, "dependency-direction", message));
            continue;
        };
        let Siblings::Only(allowed) = allowed else { continue };
        for dependency in dependencies(manifest) {
            let target = dependency.package.as_str();
            if dependency.development || !siblings.contains(target) || allowed.contains(&short(target)) {
                continue;
            }
            let line = line_of_key(file, &dependency.key);
            let message = format!("{name} must not depend on {target}");
            faults.push(Fault::new(&file.path, line, "dependency-direction", message));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate in its own folder, with the given tables.
    fn tree(crates: &[(&str, &str)]) -> Tree {
        let file = |(name, tables): &(&str, &str)| {
            let text = format!("[package]\nname = \"pinion-{name}\"\n{tables}");
            File::new(&format!("crates/{name}/Cargo.toml"), &text)
        };
        Tree { files: crates.iter().map(file).collect() }
    }

    #[test]
    fn only_ops_and_model_see_torch() {
        let tables = "[dependencies]\ntch.workspace = true\n";
        assert!(torch(&tree(&[("ops", tables), ("model", tables)])).is_empty());
        assert_eq!(torch(&tree(&[("engine", tables)]))[0].line, 4);
        for other in ["[dev-dependencies]\ntch = \"1\"", "[target.x.dependencies]\nt = { package = \"tch\" }"]
        {
            assert_eq!(torch(&tree(&[("engine", other)])).len(), 1, "{other}");
        }
    }

    #[test]
    fn dependencies_point_down() {
        let faults = |name: &str, on: &str, kind: &str| {
            let tables = format!("[{kind}]\nserde = \"1\"\npinion-{on} = {{ workspace = true }}\n");
            direction(&tree(&[(name, &tables), (on, "")]))
        };
        for (name, on) in
            [("worker", "shm"), ("engine", "scheduler"), ("model", "cuda"), ("launcher", "client")]
        {
            assert_eq!(faults(name, on, "dependencies"), [], "{name} -> {on}");
        }
        let wrong = [
            ("shm", "protocol"),
            ("os", "shm"),
            ("cuda", "ops"),
            ("protocol", "shm"),
            ("scheduler", "config"),
            ("engine", "frontend"),
            ("launcher", "engine"),
            ("engine", "client"),
        ];
        for (name, on) in wrong {
            let found = faults(name, on, "dependencies");
            assert_eq!((found.len(), found[0].line), (1, 5), "{name} -> {on}");
            assert_eq!(faults(name, on, "build-dependencies").len(), 1, "{name} -> {on}");
            assert_eq!(faults(name, on, "dev-dependencies"), [], "{name} -> {on}");
        }
        assert_eq!(faults("engine", "testkit", "dependencies").len(), 1);
    }

    #[test]
    fn a_new_crate_needs_a_row() {
        assert_eq!(direction(&tree(&[("gadget", "")])).len(), 1);
    }
}
