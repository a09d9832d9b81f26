//! The engine among the other processes: what the launcher says, when to sleep, when to leave.

use crate::engine::{Engine, Turn};
use crate::options::build;
use crate::ports::Ports;
use pinion_config::Exit;
use pinion_protocol::Role;
use pinion_protocol::control::Admin;
use pinion_shm::clock;
use pinion_worker::{ControlEvent, Session};
use std::process::ExitCode;
use std::time::Duration;

/// Longest sleep when there is nothing to do; a record or the launcher ends it earlier.
const IDLE_WAIT: Duration = Duration::from_millis(100);
/// Sleep while only a backlog is left. The reader of a full ring does not ring when it has read.
const BACKLOG_WAIT: Duration = Duration::from_millis(2);

/// The role's life: builds the engine, then runs it.
pub fn live(mut session: Session) -> ExitCode {
    let (engine, summary) = match build(&session.config, session.model_recorder.take().unwrap_or_default()) {
        Ok(built) => built,
        Err((reason, exit)) => return session.fail(&reason, i32::from(exit.code())),
    };
    session.ready(&summary);
    run(session, engine)
}

/// Runs until the launcher says stop, a drain is over, or the model is broken.
pub fn run(mut session: Session, mut engine: Engine) -> ExitCode {
    let mut drain_deadline_ns = None;
    loop {
        while let Some(event) = session.control() {
            match event {
                ControlEvent::Stop => return session.stop(),
                ControlEvent::Drain { deadline_ns } => {
                    session.draining();
                    drain_deadline_ns = Some(deadline_ns);
                }
                other => apply(other, &mut engine, &mut session),
            }
        }
        let turn = match engine.turn(&mut session) {
            Ok(turn) => turn,
            Err(broken) => return session.fail(&broken.reason, i32::from(Exit::Start.code())),
        };
        session.beat();
        let backlog = engine.owes() || session.links.outboxes.iter().any(|outbox| outbox.backlog_bytes() > 0);
        if let Some(deadline_ns) = drain_deadline_ns {
            let done = turn == Turn::Idle && engine.is_empty() && !backlog;
            if done || clock::now_ns() > deadline_ns {
                return session.stop();
            }
        }
        if turn == Turn::Idle {
            session.wait(if backlog { BACKLOG_WAIT } else { IDLE_WAIT });
        }
    }
}

/// Peers come and go. Requests of a lost frontend or detokenizer have nobody to go to; requests of a lost tokenizer
/// that reached its ring are as good as any.
fn apply(event: ControlEvent, engine: &mut Engine, session: &mut Session) {
    match event {
        ControlEvent::SlotsReplaced { frontend } => engine.discard_where(|id| id.frontend == frontend),
        ControlEvent::PeerLost(peer) => match peer.role {
            Role::Frontend => engine.discard_where(|id| id.frontend == peer.index),
            Role::Detokenizer => engine.lose_detokenizer(peer.index),
            Role::Launcher | Role::Tokenizer | Role::Engine => {}
        },
        ControlEvent::OutboxReplaced { to } if to.role == Role::Detokenizer => {
            engine.lose_detokenizer(to.index);
        }
        ControlEvent::InboxReplaced { mut old, .. } => {
            while let Some(record) = old.next() {
                engine.take_record(record.kind, record.payload, session);
            }
            session.publish();
        }
        ControlEvent::Admin { number, admin: Admin::ClearPrefixCache } => {
            engine.clear_prefix_cache(session);
            session.admin_done(number, Ok(()));
        }
        ControlEvent::OutboxReplaced { .. }
        | ControlEvent::AdminDone { .. }
        | ControlEvent::PeerReady(_)
        | ControlEvent::Open
        | ControlEvent::Drain { .. }
        | ControlEvent::Stop => {}
    }
}
