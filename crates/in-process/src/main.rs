//! `pinion-in-process`: what `pinion --in-process` becomes. The launcher and every role in one process, a thread
//! each, over the same rings. It exists to be measured against the processes; nothing else depends on it.

use pinion_os::clock;
use pinion_protocol::{Peer, Role};
use pinion_worker::Session;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

fn main() -> ExitCode {
    pinion_launcher::command_line::run(Some(live))
}

/// A role's whole life on the calling thread.
fn live(peer: Peer, socket: OwnedFd) -> ExitCode {
    let live = match peer.role {
        Role::Frontend => pinion_frontend::live,
        Role::Tokenizer => pinion_tokenizer::live,
        Role::Engine => pinion_engine::live,
        Role::Detokenizer => pinion_detokenizer::live,
        Role::Events => pinion_events::live,
        Role::Launcher => return ExitCode::FAILURE,
    };
    pinion_worker::attached(peer.role, Session::attach_over(peer.role, socket, clock::now_ns), live)
}
