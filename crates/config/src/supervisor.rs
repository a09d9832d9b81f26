//! The program that supervises the service and wants to hear of its state: systemd, or what speaks its protocol.

use std::ffi::OsString;
use std::time::Duration;

/// Variables of that protocol. They are for the launcher alone.
pub const SUPERVISOR_VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// What the supervisor has said in the environment of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supervisor {
    /// Path of its socket, or its abstract name after an `@`.
    pub socket: OsString,
    /// It restarts the service after this time without a sign of life.
    pub watchdog: Option<Duration>,
}

impl Supervisor {
    /// From the environment of this process; `None` if nothing wants to hear.
    pub fn of_process() -> Option<Supervisor> {
        Supervisor::new(|name| std::env::var_os(name), std::process::id())
    }

    fn new(variable: impl Fn(&str) -> Option<OsString>, own_pid: u32) -> Option<Supervisor> {
        let socket = variable("NOTIFY_SOCKET").filter(|socket| !socket.is_empty())?;
        let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
        // A watchdog of another process is none of ours.
        let ours = variable("WATCHDOG_PID").is_none() || number("WATCHDOG_PID") == Some(own_pid.into());
        let watchdog = number("WATCHDOG_USEC").filter(|us| ours && *us > 0).map(Duration::from_micros);
        Some(Supervisor { socket, watchdog })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_of_another_process_and_an_empty_socket_do_not_count() {
        let of = |values: &'static [(&str, &str)]| {
            let variable = move |name: &str| {
                values.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
            };
            Supervisor::new(variable, 7).map(|found| found.watchdog.map(|time| time.as_millis()))
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("NOTIFY_SOCKET", ""), ("WATCHDOG_USEC", "30000000")]), None);
        assert_eq!(of(&[("NOTIFY_SOCKET", "/run/n")]), Some(None));
        assert_eq!(of(&[("NOTIFY_SOCKET", "@n"), ("WATCHDOG_USEC", "30000000")]), Some(Some(30_000)));
        let mine = &[("NOTIFY_SOCKET", "@n"), ("WATCHDOG_USEC", "5000"), ("WATCHDOG_PID", "7")];
        assert_eq!(of(mine), Some(Some(5)));
        let other = &[("NOTIFY_SOCKET", "@n"), ("WATCHDOG_USEC", "5000"), ("WATCHDOG_PID", "8")];
        assert_eq!(of(other), Some(None));
        assert_eq!(of(&[("NOTIFY_SOCKET", "@n"), ("WATCHDOG_USEC", "soon")]), Some(None));
    }
}
