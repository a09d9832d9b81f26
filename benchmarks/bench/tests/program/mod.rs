//! pinion-bench as a program.

use std::process::{Command, Output};

pub(crate) fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pinion-bench"))
        .args(arguments)
        .output()
        .expect("pinion-bench can be run")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn check_success(output: &Output) {
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
}
