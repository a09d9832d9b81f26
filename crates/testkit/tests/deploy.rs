//! The scripts that set up, build and pack, without a network: what they decide from what they find.

use pinion_testkit::Folder;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What a program of the repository's root prints.
fn printed(program: &str, arguments: &[&str]) -> String {
    succeeded(Command::new(program).current_dir(root()).args(arguments)).0
}

/// What it prints, and its standard error.
fn succeeded(command: &mut Command) -> (String, String) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{err}");
    (out, err)
}

/// Every program that a package holds comes from a package that `deploy/launch.sh` builds, and nothing else does.
#[test]
fn what_is_staged_is_what_is_built() {
    let listed = |name: &str| {
        let script = format!("source deploy/setup.sh; printf '%s\\n' \"${{{name}[@]}}\"");
        printed("bash", &["-c", &script]).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let metadata = printed(env!("CARGO"), &["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let metadata: serde_json::Value = serde_json::from_str(&metadata).expect("JSON");
    let packages = listed("PACKAGES").into_iter().map(|name| format!("pinion-{name}")).collect::<Vec<_>>();
    let mut built: Vec<&str> = metadata["packages"]
        .as_array()
        .expect("packages")
        .iter()
        .filter(|package| packages.iter().any(|name| package["name"] == name.as_str()))
        .flat_map(|package| package["targets"].as_array().expect("targets"))
        .filter(|target| target["kind"] == json!(["bin"]))
        .filter_map(|target| target["name"].as_str())
        .collect();
    let mut staged = listed("PROGRAMS");
    built.sort_unstable();
    staged.sort_unstable();
    assert_eq!(built, staged);
}

/// Of each: what it is and under which licence it may be passed on.
#[test]
fn the_bill_of_materials_has_every_program_and_library_with_its_licence() {
    let bill = printed("python3", &["-B", "deploy/release/sbom.py"]);
    let bill: serde_json::Value = serde_json::from_str(&bill).expect("JSON");
    let components = bill["components"].as_array().expect("components");
    let names: Vec<&str> = components.iter().filter_map(|one| one["name"].as_str()).collect();
    for name in [
        "pinion-events",
        "pinion-doctor",
        "pinion-terminal",
        "torch",
        "nvidia-cuda-runtime",
        "nvidia-cuda-cupti",
        "libgomp",
    ] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    // Only tests link it.
    assert!(!names.contains(&"proptest"), "{names:?}");
    for one in components {
        let licence = &one["licenses"][0];
        let said = licence["expression"].as_str().or(licence["license"]["name"].as_str());
        assert!(said.is_some_and(|said| !said.is_empty() && said != "NOASSERTION"), "{one}");
    }
}

/// A user's own flags for the linker or the processor add to ours: without the run path the engine finds no libtorch.
#[test]
fn flags_in_a_users_configuration_of_cargo_leave_the_run_path() {
    let (home, package) = (Folder::new(), Folder::new());
    home.write("config.toml", "[target.x86_64-unknown-linux-gnu]\nrustflags = ['-C', 'debuginfo=1']\n");
    package.write("Cargo.toml", "[package]\nname = 'empty'\n[[bin]]\nname = 'empty'\npath = 'main.rs'\n");
    package.write("main.rs", "fn main() {}\n");
    std::fs::create_dir(package.path().join(".cargo")).expect("a folder");
    let ours = std::fs::read(root().join(".cargo/config.toml")).expect("the repository's configuration");
    package.write(".cargo/config.toml", ours);
    let (_, said) = succeeded(
        Command::new(env!("CARGO"))
            .args(["build", "--verbose", "--offline", "--target-dir", "built"])
            .current_dir(package.path())
            .env("CARGO_HOME", home.path())
            .env_remove("RUSTFLAGS"),
    );
    assert!(said.contains("-C debuginfo=1"), "{said}");
    assert!(said.contains("-rpath,$ORIGIN/../../.libtorch/lib"), "{said}");
}

/// What `setup.sh` does, in a shell that has sourced it.
fn set_up(script: &str) -> (String, String) {
    succeeded(
        Command::new("bash").current_dir(root()).args(["-c", &format!("source deploy/setup.sh; {script}")]),
    )
}

#[test]
fn clang_is_left_out_by_name() {
    let folder = Folder::new();
    folder.write("clang++", "#!/bin/sh\necho clang version 18.1.3\n");
    let clang = format!("sh {}/clang++", folder.text());
    let (left, said) =
        set_up(&format!("export CXX='{clang}' HOST_CXX=g++; unset_clang; echo \"${{CXX:-}} $HOST_CXX\""));
    assert_eq!(left, " g++\n");
    assert!(said.contains(&format!("CXX={clang} is set")) && !said.contains("HOST_CXX"), "{said}");
}

#[test]
fn the_target_folder_is_cargos() {
    let home = Folder::new();
    home.write("config.toml", "[build]\ntarget-dir = '/somewhere/else'\n");
    let repository = root().canonicalize().expect("the repository");
    for (name, value, folder) in [
        ("CARGO_TARGET_DIR", "relative", repository.join("relative")),
        ("CARGO_BUILD_TARGET_DIR", "relative", repository.join("relative")),
        ("CARGO_HOME", home.text(), "/somewhere/else".into()),
    ] {
        // From another folder, as a user may call a script.
        let script = format!(
            "unset CARGO_TARGET_DIR CARGO_BUILD_TARGET_DIR; export {name}={value}; cd /; find_target
            echo \"$TARGET $CARGO_TARGET_DIR\""
        );
        let folder = folder.display();
        assert_eq!(set_up(&script).0, format!("{folder} {folder}\n"), "{name}");
    }
}

#[test]
fn a_compiler_that_is_too_old_is_refused_with_the_one_that_is_needed() {
    let folder = Folder::new();
    folder.write("rustc", "[ -e Cargo.toml ] && echo rustc $NUMBER '(0 2026-01-01)'");
    let checked = |number: &str| {
        set_up(&format!(
            "rustc() {{ NUMBER={number} bash {}/rustc; }}; cd /; (check_rust && echo \"$RUST\") 2>&1 || true",
            folder.text()
        ))
        .0
    };
    assert_eq!(checked("1.88.0"), "rustc 1.88.0 (0 2026-01-01)\n");
    let refused = checked("1.75.0");
    assert!(refused.contains("rustc 1.75.0 is too old: 1.88 or newer is needed"), "{refused}");
    assert!(refused.contains("installs 1.95.0"), "{refused}");
}
