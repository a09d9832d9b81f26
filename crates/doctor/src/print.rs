//! How checks are shown: coloured lines on a terminal, `key=value` elsewhere, or one JSON object.

use crate::check::{Check, Status, any_failure};
use pinion_config::DoctorCommand;
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};

/// Writes all of them to standard output. A reader that is gone has seen enough.
pub(crate) fn print(checks: &[Check], command: &DoctorCommand) {
    let stdout = std::io::stdout();
    let text = match (command.json, stdout.is_terminal()) {
        (true, _) => format!("{}\n", object(checks)),
        (false, true) => lines(checks, !command.no_colour),
        (false, false) => pairs(checks),
    };
    let _ = stdout.lock().write_all(text.as_bytes());
}

fn object(checks: &[Check]) -> Value {
    let one = |check: &Check| json!({"id": check.id, "status": check.status.word(), "found": check.found, "remedy": check.remedy});
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ok": !any_failure(checks),
        "checks": checks.iter().map(one).collect::<Vec<_>>(),
    })
}

/// For people.
fn lines(checks: &[Check], coloured: bool) -> String {
    let width = checks.iter().map(|check| check.id.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let (begin, end) = if coloured { (colour(check.status), "\x1b[0m") } else { ("", "") };
        text += &format!("{begin}{:<7}{end}  {:<width$}  {}\n", check.status.word(), check.id, check.found);
        if let Some(remedy) = &check.remedy {
            text += &format!("{:9}{:width$}  > {remedy}\n", "", "");
        }
    }
    text + &summary(checks) + "\n"
}

fn colour(status: Status) -> &'static str {
    match status {
        Status::Ok => "\x1b[32m",
        Status::Note => "\x1b[36m",
        Status::Warning => "\x1b[33m",
        Status::Failure => "\x1b[1;31m",
    }
}

fn summary(checks: &[Check]) -> String {
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    let (failures, warnings) = (count(Status::Failure), count(Status::Warning));
    let counted =
        |number: usize, word: &str| format!("{number} {word}{}", if number == 1 { "" } else { "s" });
    let verdict = if failures == 0 { "Pinion can serve here" } else { "Pinion cannot serve as asked" };
    format!("{verdict}: {}, {}.", counted(failures, "failure"), counted(warnings, "warning"))
}

/// For logs and scripts.
fn pairs(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        text += &format!("check={} status={} found={:?}", check.id, check.status.word(), check.found);
        if let Some(remedy) = &check.remedy {
            text += &format!(" remedy={remedy:?}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Vec<Check> {
        vec![Check::ok("cpu", "fast"), Check::failure("model.folder", "no \"a\"", "Name a folder.")]
    }

    #[test]
    fn each_form_has_all_of_it() {
        let text = lines(&two(), false);
        let expected = "ok       cpu           fast\nfailure  model.folder  no \"a\"\n                       > Name a folder.\n\
                        Pinion cannot serve as asked: 1 failure, 0 warnings.\n";
        assert_eq!(text, expected);
        assert!(lines(&two(), true).contains("\x1b[1;31mfailure\x1b[0m  model.folder"));
        let expected = "check=cpu status=ok found=\"fast\"\n\
                        check=model.folder status=failure found=\"no \\\"a\\\"\" remedy=\"Name a folder.\"\n";
        assert_eq!(pairs(&two()), expected);
        let object = object(&two());
        assert_eq!(object["ok"], false);
        assert_eq!(
            object["checks"][0],
            json!({"id": "cpu", "status": "ok", "found": "fast", "remedy": null})
        );
    }

    #[test]
    fn only_a_failure_keeps_it_from_serving() {
        let fine = [Check::ok("a", ""), Check::note("b", "", "x"), Check::warning("c", "", "x")];
        assert!(!any_failure(&fine) && any_failure(&two()));
        assert_eq!(summary(&fine), "Pinion can serve here: 0 failures, 1 warning.");
    }
}
