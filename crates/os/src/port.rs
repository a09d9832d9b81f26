//! Ports for servers that are told theirs before they start.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ports that Linux hands out by itself (32768 on): between the look at a port and its use no other program
/// gets it for a connection or a listener of its own.
const PORTS: std::ops::Range<u32> = 12_000..32_000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A port of loopback without a listener, or none if all are taken. Each call of a process gives another one.
#[must_use]
pub fn free_port() -> Option<u16> {
    let own = std::process::id().wrapping_mul(97);
    (0..PORTS.len()).find_map(|_| {
        let number = own.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS.len() as u32;
        let port = u16::try_from(PORTS.start + number).ok()?;
        TcpListener::bind(("127.0.0.1", port)).is_ok().then_some(port)
    })
}
