//! Where and from what a result came: versions, commit, hardware. A field that cannot be found out is empty.

use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Stands in every result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Origin {
    pub tool: String,
    /// Commit of the folder in which the tool ran, with `+changes` if that had any.
    pub commit: String,
    pub time_utc: String,
    pub command: Vec<String>,
    pub hardware: Hardware,
}

/// The machine that client and, where it was started here, server ran on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Hardware {
    pub cpu: String,
    pub logical_cpus: usize,
    pub memory_gib: f64,
    pub kernel: String,
    /// 1-minute load average at the start: above a few tenths, something else ran too.
    pub load_before: f64,
}

impl Origin {
    pub(crate) fn here(command: &[String]) -> Origin {
        // The tool's path on this machine means nothing elsewhere.
        let mut command = command.to_vec();
        if let Some(program) = command.first_mut() {
            let name = Path::new(program.as_str()).file_name().unwrap_or_default();
            *program = name.to_string_lossy().into_owned();
        }
        Origin {
            tool: concat!("pinion-bench ", env!("CARGO_PKG_VERSION")).to_owned(),
            commit: commit(),
            time_utc: utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())),
            command,
            hardware: Hardware::here(),
        }
    }
}

impl Hardware {
    fn here() -> Hardware {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map_or(String::new(), |(_, value)| value.trim().to_owned())
        };
        let memory_kib = field(&read("/proc/meminfo"), "MemTotal");
        let memory_kib: f64 = memory_kib.split(' ').next().unwrap_or_default().parse().unwrap_or(0.0);
        let load = read("/proc/loadavg");
        Hardware {
            cpu: field(&read("/proc/cpuinfo"), "model name"),
            logical_cpus: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: (memory_kib / 104_857.6).round() / 10.0,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_before: load.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0),
        }
    }
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return String::new() };
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
    if changed { format!("{commit}+changes") } else { commit }
}

/// `2026-11-20T13:45:07Z`.
fn utc(seconds: u64) -> String {
    let micros = pinion_config::iso_8601(Duration::from_secs(seconds));
    format!("{}Z", micros.split('.').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_the_tool_and_not_its_place() {
        let words = ["/some/where/pinion-bench", "online", "--out", "/a/b"].map(str::to_owned);
        assert_eq!(Origin::here(&words).command, ["pinion-bench", "online", "--out", "/a/b"]);
    }

    #[test]
    fn times_are_written_as_everyone_writes_them() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_700_158_623, "2023-11-16T18:17:03Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
        ];
        for (seconds, text) in cases {
            assert_eq!(utc(seconds), text);
        }
    }
}
