//! Ports for services that are told theirs before they start.

/// A port of loopback without a listener. Each call of a process gives another one.
///
/// # Panics
/// If all are taken.
pub fn free_port() -> u16 {
    pinion_os::port::free_port().expect("loopback has a free port")
}
