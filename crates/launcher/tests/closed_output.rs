//! `pinion --help | head`: a reader that leaves early is no fault of ours and no panic.

use std::process::{Command, Stdio};

#[test]
fn a_reader_may_close_before_the_end() {
    for arguments in [&["--help=all"][..], &["version"], &["config", "show"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut pinion = Command::new(env!("CARGO_BIN_EXE_pinion"));
        let ended = pinion.args(arguments).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert!(ended.status.success(), "{arguments:?}: {}", ended.status);
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "", "{arguments:?}");
    }
}
