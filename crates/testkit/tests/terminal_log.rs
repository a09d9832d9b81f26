//! The log on a terminal: short lines in colours, each of which clears the row that it takes; fewer means where the
//! terminal has or wants fewer, and the long lines where they are asked for.

use nix::pty::openpty;
use pinion_testkit::Server;
use regex::Regex;
use std::fs::File;
use std::io::Read;
use std::process::Stdio;

const CLEAR: &str = "\r\u{1b}[K";

/// What the service says on a terminal from its start to its end.
fn said(variables: &str, flags: &[&str]) -> String {
    let pty = openpty(None, None).expect("a pseudo-terminal can be made");
    let mut terminal = File::from(pty.master);
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // The end is an error: the other side is closed.
        let _ = terminal.read_to_end(&mut bytes);
        String::from_utf8(bytes).expect("the log is UTF-8")
    });
    let line = format!(r#"unset NO_COLOR; export {variables}; exec "$0" "$@""#);
    Server::fake_by_shell(&line, Stdio::from(pty.slave), flags).stop();
    reader.join().expect("the reader ends")
}

/// The line that tells of the engine's start.
fn started(text: &str) -> &str {
    let mut lines = text.split("\r\n").filter(|line| line.contains("started") && line.contains("engine-0"));
    lines.next().unwrap_or_else(|| panic!("no start of an engine in {text}"))
}

#[test]
fn lines_on_a_terminal_are_short_and_as_it_can_show_them() {
    let short = r"\d\d:\d\d:\d\dZ  INFO started peer=engine-0 pid=\d+";
    let long = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z  INFO started peer=engine-0 pid=\d+";
    let colours = Regex::new("\u{1b}\\[[0-9;]*m").expect("the pattern is whole");
    for (variables, flags, clears, has_colours, form) in [
        ("TERM=xterm", &[][..], true, true, short),
        ("TERM=xterm NO_COLOR=1", &[], true, false, short),
        ("TERM=dumb", &[], false, false, short),
        ("TERM=xterm", &["--log-format", "text"], false, false, long),
    ] {
        let text = said(variables, flags);
        let case = format!("{variables} {flags:?}: {text}");
        let line = started(&text);
        assert_eq!(colours.is_match(&text), has_colours, "{case}");
        assert_eq!(line.starts_with(CLEAR), clears, "{case}");
        let plain = colours.replace_all(line.trim_start_matches(CLEAR), "").into_owned();
        let form = Regex::new(&format!("^{form}$")).expect("the pattern is whole");
        assert!(form.is_match(&plain), "{plain:?} is not {form}; {case}");
        let rest = colours.replace_all(&text.replace(CLEAR, ""), "").into_owned();
        assert!(!rest.contains('\u{1b}'), "{case}");
        assert!(rest.contains("\r\npinion is ready: http://"), "{case}");
    }
}
