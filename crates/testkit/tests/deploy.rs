//! The scripts that set up, build and pack, without a network: what they decide from what they find.

use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What a program of the repository's root prints.
fn printed(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).current_dir(root()).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
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
