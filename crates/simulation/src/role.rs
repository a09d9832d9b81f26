//! A role of the simulated service: attached over the launcher's socket, built as its process builds it, and turned one
//! turn of its loop at a time.

use crate::clock;
use crate::host::Started;
use crate::oracle::codec;
use crate::plan::{EOS, PERIOD, VOCABULARY};
use pinion_config::{Config, Topology};
use pinion_detokenizer::Detokenizer;
use pinion_engine::{Engine, sizes};
use pinion_frontend::http::app::App;
use pinion_frontend::observe::metrics::Metrics;
use pinion_frontend::reactor::{Reactor, SessionOutlet, Turn};
use pinion_frontend::requests::ledger::{Ledger, Patience, Setup};
use pinion_launcher::RoleEnd;
use pinion_model::{FakeModel, FakeOptions, FakeShape, Inline, Model, Pipeline, STEP_DEADLINE, Threaded};
use pinion_protocol::status::Gauge;
use pinion_protocol::{Peer, Role};
use pinion_shm::page::Page;
use pinion_shm::slots::SlotTable;
use pinion_text::ChatRenderer;
use pinion_tokenizer::Tokenizer;
use pinion_worker::{Pace, Recorder, Session};
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turned {
    /// There may be more to do at once.
    Worked,
    /// There was nothing to do.
    Idle,
    /// It leaves its loop.
    Left {
        /// The exit code of its process is success.
        cleanly: bool,
    },
}

/// A role that serves.
pub(crate) enum Loop {
    Frontend { reactor: Box<Reactor>, app: Rc<App>, session: Rc<RefCell<Session>> },
    Tokenizer(Box<pinion_tokenizer::Server>),
    Engine(Box<pinion_engine::Server>),
    Detokenizer(Box<pinion_detokenizer::Server>),
}

/// How far a role is.
pub(crate) enum Stage {
    /// Started by the launcher with this end of the descriptor socket.
    Started(OwnedFd),
    /// It has its links.
    Attached(Box<Session>),
    /// In its loop.
    Serving(Loop),
    /// Its process is gone; the launcher does not know yet.
    Gone,
}

/// One life of a role.
pub(crate) struct Life {
    pub(crate) peer: Peer,
    /// 1 is the first.
    pub(crate) epoch: u32,
    pub(crate) stage: Stage,
    /// It does not turn before this time.
    pub(crate) stalled_until_ns: u64,
    /// The launcher sees its end from this time on.
    pub(crate) seen_gone_ns: u64,
    end: Option<RoleEnd>,
    exit: ExitCode,
    /// From its attachment on.
    status: Option<Page>,
    /// Count of the launcher's messages when its last turn ended.
    sequence: u64,
}

impl Life {
    /// The role that the launcher has just started.
    pub(crate) fn new(started: Started, epoch: u32) -> Life {
        let Started { peer, socket, end } = started;
        let exit = ExitCode::FAILURE;
        Life {
            peer,
            epoch,
            stage: Stage::Started(socket),
            stalled_until_ns: 0,
            seen_gone_ns: 0,
            end: Some(end),
            exit,
            status: None,
            sequence: 0,
        }
    }

    /// A turn that began when the one before had ended: messages that the launcher has sent since are not seen, and the
    /// records that came since are. Gives also whether there were any such messages.
    pub(crate) fn turn_early(&mut self, topology: &Topology) -> Result<(Turned, bool), String> {
        let page = self.status.clone().filter(|_| matches!(self.stage, Stage::Serving(_)));
        let Some(page) = page else { return self.turn(topology).map(|turned| (turned, false)) };
        let (sent, known) = (page.get(Gauge::ControlSequence as usize), self.sequence);
        page.set(Gauge::ControlSequence as usize, known);
        let turned = self.turn(topology);
        page.set(Gauge::ControlSequence as usize, sent);
        self.sequence = sent;
        turned.map(|turned| (turned, sent != known))
    }

    /// A role that starts goes one step on; one that serves takes one turn.
    pub(crate) fn turn(&mut self, topology: &Topology) -> Result<Turned, String> {
        let stage = std::mem::replace(&mut self.stage, Stage::Gone);
        let (stage, turned) = match stage {
            Stage::Started(socket) => {
                let attached = Session::attach_over(self.peer.role, socket, clock::now_ns);
                let session = attached.map_err(|error| format!("{} cannot attach: {error}", self.peer))?;
                self.status = Some(session.status.clone());
                (Stage::Attached(Box::new(session)), Turned::Worked)
            }
            Stage::Attached(session) => (Stage::Serving(Loop::build(*session, topology)?), Turned::Worked),
            Stage::Serving(mut serving) => {
                let turned = serving.turn()?;
                (Stage::Serving(serving), turned)
            }
            Stage::Gone => (Stage::Gone, Turned::Idle),
        };
        self.stage = stage;
        self.sequence = self.status.as_ref().map_or(0, |page| page.get(Gauge::ControlSequence as usize));
        if let Turned::Left { cleanly } = turned {
            self.exit = if cleanly { ExitCode::SUCCESS } else { ExitCode::FAILURE };
            self.drop_state();
        }
        Ok(turned)
    }

    /// The process ends: all that it had is gone, and nothing more is said.
    pub(crate) fn drop_state(&mut self) {
        if let Stage::Serving(Loop::Frontend { app, session, .. }) = &self.stage {
            // Its connections end with it, and no cancellation is written by a process that is dead.
            app.ledger.replace(nowhere(session));
        }
        self.stage = Stage::Gone;
    }

    /// The launcher sees the end.
    pub(crate) fn show_end(&mut self) {
        if let Some(end) = self.end.take() {
            end.end(self.exit);
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.stage, Stage::Gone)
    }

    /// Whether its end was shown.
    pub(crate) fn has_shown_end(&self) -> bool {
        self.end.is_none()
    }

    /// Whether clients can connect to it.
    pub(crate) fn accepts(&self) -> bool {
        matches!(&self.stage, Stage::Serving(Loop::Frontend { reactor, .. }) if reactor.accepts())
    }

    /// What the connections of a serving frontend share.
    pub(crate) fn app(&self) -> Option<&Rc<App>> {
        match &self.stage {
            Stage::Serving(Loop::Frontend { app, .. }) => Some(app),
            _ => None,
        }
    }
}

impl Loop {
    fn build(session: Session, topology: &Topology) -> Result<Loop, String> {
        // The rings may be smaller than the config asks for, which is all that a session knows.
        let mut session = session.with_topology(topology.clone());
        let config = session.config().clone();
        let role = session.me().role;
        if role == Role::Frontend {
            let session = Rc::new(RefCell::new(session));
            let app = pinion_frontend::build(&session).map_err(|(reason, _)| reason)?;
            session.borrow_mut().ready("");
            let reactor = Box::new(Reactor::new(session.clone(), app.clone()));
            return Ok(Loop::Frontend { reactor, app, session });
        }
        session.ready("");
        Ok(match role {
            Role::Tokenizer => {
                let limits = pinion_tokenizer::serve::limits(&session);
                let tokenizer = Tokenizer::new(codec(), ChatRenderer::plain(), limits);
                Loop::Tokenizer(Box::new(pinion_tokenizer::Server::new(session, tokenizer)))
            }
            Role::Engine => Loop::Engine(Box::new(pinion_engine::Server::new(session, engine(&config)?))),
            Role::Detokenizer => {
                let tables = (0..config.frontends).map_while(|at| session.links.slot_table(at).cloned());
                let detokenizer = Detokenizer::new(codec(), tables.collect(), record_bytes_max(&session));
                let detokenizer = detokenizer.with_interval(config.stream_interval);
                Loop::Detokenizer(Box::new(pinion_detokenizer::Server::new(session, detokenizer)))
            }
            Role::Frontend | Role::Events | Role::Launcher => {
                return Err(format!("{role:?} is no role that is started here"));
            }
        })
    }

    fn turn(&mut self) -> Result<Turned, String> {
        let pace = match self {
            Loop::Frontend { reactor, .. } => {
                return Ok(match reactor.turn()? {
                    Turn::Worked => Turned::Worked,
                    Turn::Idle => Turned::Idle,
                    Turn::Stopped => Turned::Left { cleanly: true },
                    Turn::Drained { cut } => Turned::Left { cleanly: !cut },
                });
            }
            Loop::Tokenizer(server) => server.turn(),
            Loop::Engine(server) => server.turn().map_err(|broken| broken.reason)?,
            Loop::Detokenizer(server) => server.turn(),
        };
        Ok(match pace {
            Pace::Go => Turned::Worked,
            Pace::Wait(_) | Pace::Pause(_) => Turned::Idle,
            Pace::Stop => Turned::Left { cleanly: true },
        })
    }
}

/// An engine of this config, over the fake model.
fn engine(config: &Config) -> Result<Engine, String> {
    let shape = FakeShape {
        vocab_size: VOCABULARY,
        max_context: config.max_model_len,
        eos: Some(EOS),
        block_size: config.block_size,
        block_count: config.kv_blocks,
    };
    let model = move || -> Box<dyn Model> {
        Box::new(FakeModel::new(shape, FakeOptions::default()).repeating(PERIOD))
    };
    let pipeline: Box<dyn Pipeline> = if config.scheduling.overlap {
        let threaded = Threaded::start(move || Ok(model()), STEP_DEADLINE);
        Box::new(threaded.map_err(|error| error.to_string())?)
    } else {
        Box::new(Inline::new(model()))
    };
    let sizes = sizes(config, pipeline.info());
    Ok(Engine::new(pipeline, sizes))
}

/// Largest delta record that every frontend's ring takes.
fn record_bytes_max(session: &Session) -> usize {
    let edges =
        session.topology().edges.iter().filter(|e| e.from == session.me() && e.to.role == Role::Frontend);
    edges.map(|edge| edge.payload_bytes_max()).min().unwrap_or(0)
}

/// A ledger without requests, whose slots no other role sees.
fn nowhere(session: &Rc<RefCell<Session>>) -> Ledger {
    let setup = Setup {
        frontend: 0,
        table: SlotTable::create(0, 1, 1).expect("memory for one slot"),
        status: Page::create(0, 1, 1).expect("memory for one page"),
        tokenizers: 1,
        detokenizers: 1,
        max_model_len: 1,
        buffer_bytes_max: 1,
        resume: false,
        patience: Patience { role: Duration::ZERO, text: Duration::ZERO },
        recorder: Rc::new(Recorder::default()),
        clock: clock::now_ns,
    };
    let outlet = Rc::new(RefCell::new(SessionOutlet(session.clone())));
    Ledger::new(setup, outlet, Rc::new(Metrics::default()))
}
