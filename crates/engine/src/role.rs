//! The engine among the other processes: what the launcher says, when to sleep, when to leave.

use crate::cache_events::Looks;
use crate::engine::{Broken, Engine, Turn};
use crate::op_profile::OpProfile;
use crate::options::build;
use crate::ports::Ports;
use crate::tape::{Group, Tape, Taped};
use pinion_config::Exit;
use pinion_model::DeviceMemory;
use pinion_protocol::Role;
use pinion_protocol::control::Admin;
use pinion_protocol::status::Gauge;
use pinion_worker::{ControlEvent, Pace, Session};
use std::process::ExitCode;
use std::time::Duration;

/// Longest sleep when there is nothing to do; a record or the launcher ends it earlier.
const IDLE_WAIT: Duration = Duration::from_millis(100);
/// Sleep while only a backlog or a grammar in the making is left: neither a reader that has read nor a thread that has
/// compiled rings.
const BACKLOG_WAIT: Duration = Duration::from_millis(2);

/// The role's life: builds the engine, then runs it.
pub fn live(mut session: Session) -> ExitCode {
    let tape = match open_tape(&session) {
        Ok(tape) => tape,
        Err(reason) => return session.fail(&reason, i32::from(Exit::System.code())),
    };
    let recorder = session.take_model_recorder().unwrap_or_default();
    let (mut engine, summary) = match build(session.config(), recorder) {
        Ok(built) => built,
        Err((reason, exit)) => return session.fail(&reason, i32::from(exit.code())),
    };
    if session.config().kv_events.is_some() {
        engine = engine.with_cache_events();
    }
    if let Some(memory) = engine.device_memory() {
        tell_memory(&session, memory);
    }
    session.ready(&summary);
    let profile = OpProfile::of(session.config(), session.me());
    Server { tape, profile, ..Server::new(session, engine) }.run()
}

/// For /metrics and for the log: what the device's memory is taken for, once everything is there.
fn tell_memory(session: &Session, memory: DeviceMemory) {
    let DeviceMemory { weights, cache, activations, staging, free } = memory;
    for (gauge, bytes) in [
        (Gauge::DeviceWeightBytes, weights),
        (Gauge::DeviceCacheBytes, cache),
        (Gauge::DeviceActivationBytes, activations),
        (Gauge::DeviceStagingBytes, staging),
        (Gauge::DeviceFreeBytes, free),
    ] {
        session.status.set(gauge as usize, bytes);
    }
    tracing::info!(weights, cache, activations, staging, free, "device memory in bytes");
}

/// The role with its links.
pub struct Server {
    session: Session,
    engine: Engine,
    tape: Option<Tape>,
    profile: Option<OpProfile>,
    drain_deadline_ns: Option<u64>,
    event_looks: Looks,
}

impl Server {
    /// An engine that serves over the links of `session`, without a recording or a profile.
    pub fn new(session: Session, engine: Engine) -> Server {
        Server {
            session,
            engine,
            tape: None,
            profile: None,
            drain_deadline_ns: None,
            event_looks: Looks::new(),
        }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Runs until the launcher says stop, a drain is over, or the model is broken.
    fn run(mut self) -> ExitCode {
        let served = self.serve();
        let Server { session, mut engine, tape, profile, .. } = self;
        if let Some(profile) = profile {
            profile.finish(&mut engine);
        }
        if let Some(tape) = tape {
            tape.finish();
        }
        match served {
            Ok(()) => session.stop(),
            Err(Broken { reason }) => session.fail(&reason, i32::from(Exit::Start.code())),
        }
    }

    fn serve(&mut self) -> Result<(), Broken> {
        loop {
            let pace = self.turn()?;
            if !self.session.rest(pace) {
                return Ok(());
            }
        }
    }

    /// One turn of the loop: control messages, then one of the engine's.
    ///
    /// # Errors
    /// See [`Engine::turn`].
    pub fn turn(&mut self) -> Result<Pace, Broken> {
        let Server { session, engine, tape, profile, drain_deadline_ns, event_looks } = self;
        while let Some(event) = session.control() {
            match event {
                ControlEvent::Stop => return Ok(Pace::Stop),
                ControlEvent::Drain { deadline_ns } => {
                    session.draining();
                    *drain_deadline_ns = Some(deadline_ns);
                }
                ControlEvent::Admin { number, admin } => {
                    ordered(number, admin, engine, session, tape, profile)
                }
                other => apply(other, engine, session, tape),
            }
        }
        let turn = match tape {
            None => engine.turn(session)?,
            Some(tape) => taped_turn(session, engine, tape)?,
        };
        if tape.as_ref().is_some_and(Tape::has_ended) {
            session.status.set(Gauge::RecordingEnded as usize, 1);
            *tape = None;
        }
        session.beat();
        if let Some((number, outcome)) = profile.as_mut().and_then(|profile| profile.look(engine)) {
            session.admin_done(number, outcome);
        }
        let backlog = engine.owes()
            || profile.as_ref().is_some_and(OpProfile::waits)
            || engine.compiles()
            || session.links.has_backlog();
        if let Some(deadline_ns) = *drain_deadline_ns {
            let done = turn == Turn::Idle && engine.is_empty() && !backlog;
            if done || session.now_ns() > deadline_ns {
                return Ok(Pace::Stop);
            }
        }
        Ok(match turn {
            Turn::Worked => Pace::Go,
            Turn::Idle if backlog => Pace::Wait(BACKLOG_WAIT),
            Turn::Idle => {
                Pace::Wait(engine.cache_events_stall().map_or(IDLE_WAIT, |stalls| event_looks.wait(stalls)))
            }
        })
    }
}

/// The file to record into, if one is wanted. A successor does not overwrite its predecessor's file, and serves without
/// a recording if it cannot create one of its own.
fn open_tape(session: &Session) -> Result<Option<Tape>, String> {
    let Some(path) = &session.config().observe.record else { return Ok(None) };
    let mut path = path.clone().into_os_string();
    if session.epoch() > 1 {
        path.push(format!(".{}", session.epoch()));
    }
    match Tape::create(path.as_ref(), session.config(), session.links.inboxes.len()) {
        Ok(tape) => {
            // Its predecessor's may have ended.
            session.status.set(Gauge::RecordingEnded as usize, 0);
            Ok(Some(tape))
        }
        Err(error) if session.epoch() > 1 => {
            tracing::error!(path = %path.display(), %error, "cannot record; serving without a recording");
            session.status.set(Gauge::RecordingEnded as usize, 1);
            Ok(None)
        }
        Err(error) => Err(format!("cannot record into {}: {error}", path.display())),
    }
}

/// One turn, recorded.
pub fn taped_turn(ports: &mut impl Ports, engine: &mut Engine, tape: &mut Tape) -> Result<Turn, Broken> {
    tape.begin(Group::Turn, 0);
    let turn = engine.turn(&mut Taped::new(ports, tape));
    tape.end(turn != Ok(Turn::Idle));
    turn
}

fn note(tape: &mut Option<Tape>, group: Group, index: u16) {
    if let Some(tape) = tape {
        tape.begin(group, index);
        tape.end(true);
    }
}

/// An operator's order.
fn ordered(
    number: u64,
    admin: Admin,
    engine: &mut Engine,
    session: &mut Session,
    tape: &mut Option<Tape>,
    profile: &mut Option<OpProfile>,
) {
    let outcome = match (admin, profile) {
        (Admin::ClearPrefixCache, _) => {
            note(tape, Group::CacheCleared, 0);
            engine.clear_prefix_cache(session);
            Some(Ok(()))
        }
        (Admin::StartProfile, Some(profile)) => profile.order(engine, number, true),
        (Admin::StopProfile, Some(profile)) => profile.order(engine, number, false),
        (Admin::StartProfile | Admin::StopProfile, None) => {
            Some(Err("the engine was not started with --profile torch".to_owned()))
        }
    };
    if let Some(outcome) = outcome {
        session.admin_done(number, outcome);
    }
}

/// Peers come and go. Requests of a lost frontend have no reader; those of a lost detokenizer come again, and their
/// slots tell which of the two is meant; requests of a lost tokenizer that reached its ring are as good as any.
fn apply(event: ControlEvent, engine: &mut Engine, session: &mut Session, tape: &mut Option<Tape>) {
    match event {
        ControlEvent::SlotsReplaced { frontend } => {
            note(tape, Group::FrontendGone, frontend);
            engine.discard_where(|id| id.frontend == frontend);
        }
        ControlEvent::PeerLost(peer, _) => match peer.role {
            Role::Frontend => {
                note(tape, Group::FrontendGone, peer.index);
                engine.discard_where(|id| id.frontend == peer.index);
            }
            Role::Detokenizer => {
                note(tape, Group::DetokenizerGone, peer.index);
                engine.lose_detokenizer(peer.index);
            }
            Role::Launcher | Role::Tokenizer | Role::Engine | Role::Events => {}
        },
        ControlEvent::OutboxReplaced { to } if to.role == Role::Detokenizer => {
            note(tape, Group::DetokenizerGone, to.index);
            engine.lose_detokenizer(to.index);
        }
        ControlEvent::OutboxReplaced { to } if to.role == Role::Events => engine.repeat_cache_events(),
        ControlEvent::InboxReplaced { mut old, .. } => {
            while let Some(record) = old.next() {
                match tape {
                    None => engine.take_record(record.kind, record.payload, session),
                    Some(tape) => {
                        tape.begin_old_record(record.kind, record.payload);
                        engine.take_record(record.kind, record.payload, &mut Taped::new(session, tape));
                        tape.end(true);
                    }
                }
            }
            session.publish();
        }
        ControlEvent::Admin { .. }
        | ControlEvent::OutboxReplaced { .. }
        | ControlEvent::AdminDone { .. }
        | ControlEvent::PeerReady(_)
        | ControlEvent::Open
        | ControlEvent::Leaving
        | ControlEvent::Drain { .. }
        | ControlEvent::Stop => {}
    }
}
