//! The first set of descriptors, and what a session is built from; later sets use the same openers.

use crate::control::RoleEnd;
use crate::edge::{Inbox, Outbox};
use crate::launcher_link::LauncherLink;
use crate::links::Links;
use crate::pauses::Pauses;
use crate::pin;
use crate::recorder::Recorder;
use crate::session::{Assignment, Session};
use crate::sleeper::Sleeper;
use crate::start_error::StartError;
use crate::telemetry::{self, LogPage};
use pinion_config::{Config, Topology};
use pinion_os::clock::Clock;
use pinion_os::nvtx::Nvtx;
use pinion_os::{clock, fdpass, process};
use pinion_protocol::control::{Attach, FromRole};
use pinion_protocol::names::Stage;
use pinion_protocol::status::Gauge;
use pinion_protocol::{Peer, Role, layout_hash};
use pinion_shm::doorbell::{self, Doorbell};
use pinion_shm::page::Page;
use pinion_shm::region;
use pinion_shm::region::{AttachError, Region, RegionKind};
use pinion_shm::ring::{Reader, Writer};
use pinion_shm::slots::SlotTable;
use pinion_shm::spans::SpanWriter;
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

pub(crate) type AttachSet = Vec<(Attach, Vec<OwnedFd>)>;

/// How long a role waits for its descriptors before it gives up.
const ATTACH_TIMEOUT_NS: u64 = 10_000_000_000;

/// Receives datagrams until [`Attach::Done`]. `Err(None)` means that the descriptor is no launcher's socket.
pub(crate) fn receive_set(socket: BorrowedFd<'_>) -> Result<AttachSet, Option<StartError>> {
    let mut set = Vec::new();
    let mut deadline_ns = clock::now_ns() + ATTACH_TIMEOUT_NS;
    loop {
        match fdpass::recv(socket) {
            Ok(Some(received)) => {
                let message: Attach =
                    bincode::deserialize(&received.bytes).map_err(|e| StartError::attach("message", e))?;
                if message == Attach::Done {
                    return Ok(set);
                }
                if message == Attach::Spare {
                    wait_for_work(socket)?;
                    deadline_ns = clock::now_ns() + ATTACH_TIMEOUT_NS;
                }
                set.push((message, received.fds));
            }
            Ok(None) => {
                let left_ns = deadline_ns.saturating_sub(clock::now_ns());
                if left_ns == 0 {
                    return Err(Some(StartError::attach("descriptors", "nothing came in time")));
                }
                doorbell::wait(&[socket], Duration::from_nanos(left_ns))
                    .map_err(|e| StartError::attach("descriptors", e))?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(Some(StartError::Orphan));
            }
            // Standard input is no socket: the program was started by hand.
            Err(error) if error.raw_os_error() == Some(nix::libc::ENOTSOCK) => return Err(None),
            Err(error) => {
                let reason = format!("{error}{}", process::limit_behind(&error));
                return Err(Some(StartError::attach("descriptors", reason)));
            }
        }
    }
}

/// A spare sleeps until the launcher has work for it, or is gone.
fn wait_for_work(socket: BorrowedFd<'_>) -> Result<(), StartError> {
    while doorbell::wait(&[socket], doorbell::WAIT_MAX)
        .map_err(|e| StartError::attach("descriptors", e))?
        .timed_out()
    {}
    Ok(())
}

fn take_fd(fds: &mut Vec<OwnedFd>, what: &'static str) -> Result<OwnedFd, StartError> {
    if fds.is_empty() {
        Err(StartError::attach(what, "its descriptor is missing"))
    } else {
        Ok(fds.remove(0))
    }
}

fn open_ring(epoch: u32, fds: &mut Vec<OwnedFd>) -> Result<Region, StartError> {
    let fd = take_fd(fds, "ring")?;
    Region::attach(fd, RegionKind::Ring, layout_hash(), Some(epoch)).map_err(|error| match error {
        AttachError::Os { .. } => StartError::attach("ring", error),
        _ => corrupt(error),
    })
}

fn corrupt(error: impl std::fmt::Display) -> StartError {
    StartError::Corrupt { what: error.to_string() }
}

pub(crate) fn open_inbox(
    from: Peer,
    epoch: u32,
    fds: &mut Vec<OwnedFd>,
    status: &Page,
) -> Result<Inbox, StartError> {
    let reader = Reader::new(open_ring(epoch, fds)?, epoch).map_err(corrupt)?;
    Ok(Inbox::new(from, epoch, reader, status.clone()))
}

pub(crate) fn open_outbox(
    to: Peer,
    epoch: u32,
    fds: &mut Vec<OwnedFd>,
    clock: Clock,
) -> Result<Outbox, StartError> {
    let ring = open_ring(epoch, fds)?;
    let doorbell = Doorbell::from_fd(take_fd(fds, "doorbell")?);
    let writer = Writer::new(ring, epoch, doorbell).map_err(corrupt)?;
    Ok(Outbox::new(to, epoch, writer, clock))
}

/// What recovery reads: which role has a request, and whether it is at work on it.
const RECOVERY_STAGES: [Stage; 4] =
    [Stage::TokenizeBegin, Stage::TokenizeEnd, Stage::EngineReceived, Stage::FirstScheduled];

/// Without the timeline, only the stamps that recovery reads are written outside of frontends.
pub(crate) fn open_slots(
    epoch: u32,
    fds: &mut Vec<OwnedFd>,
    role: Role,
    config: &Config,
) -> Result<SlotTable, StartError> {
    let fd = take_fd(fds, "slot table")?;
    let table =
        SlotTable::attach(fd, layout_hash(), Some(epoch)).map_err(|e| StartError::attach("slot table", e))?;
    let all = config.observe.timeline || role == Role::Frontend;
    Ok(table.stamping(|stage| all || RECOVERY_STAGES.iter().any(|read| *read as usize == stage)))
}

fn open_spans(fds: &mut Vec<OwnedFd>) -> Result<Region, StartError> {
    let fd = take_fd(fds, "ring of spans")?;
    Region::attach(fd, RegionKind::Spans, layout_hash(), None)
        .map_err(|e| StartError::attach("ring of spans", e))
}

/// Collects the first set of descriptors.
pub(crate) struct Builder {
    clock: Clock,
    hello: Option<(Peer, u32)>,
    control: Option<RoleEnd>,
    config: Option<Config>,
    doorbell: Option<Doorbell>,
    status: Option<Page>,
    links: Option<Links>,
    /// This role's own, by track.
    spans: Vec<Region>,
    /// It has waited under another name.
    was_spare: bool,
}

impl Builder {
    /// Of a session that reads this clock.
    pub(crate) fn new(clock: Clock) -> Builder {
        Builder {
            clock,
            hello: None,
            control: None,
            config: None,
            doorbell: None,
            status: None,
            links: None,
            spans: Vec::new(),
            was_spare: false,
        }
    }

    pub(crate) fn take(&mut self, message: Attach, mut fds: Vec<OwnedFd>) -> Result<(), StartError> {
        match message {
            Attach::Hello { me, epoch, layout_hash: theirs, launcher_pid, wrapped } => {
                let ours = layout_hash();
                if theirs != ours {
                    return Err(StartError::Layout { theirs, ours });
                }
                let parent_pid = nix::unistd::getppid().as_raw() as u32;
                if !wrapped && ![parent_pid, std::process::id()].contains(&launcher_pid) {
                    return Err(StartError::Orphan);
                }
                let bytes = region::read_blob(take_fd(&mut fds, "config")?)
                    .map_err(|e| StartError::attach("config", e))?;
                let config: Config =
                    bincode::deserialize(&bytes).map_err(|e| StartError::attach("config", e))?;
                region::set_prefault(config.jitter_control);
                self.config = Some(config);
                self.hello = Some((me, epoch));
                let control = RoleEnd::take(std::mem::take(&mut fds));
                self.control = Some(control.map_err(|e| StartError::attach("control channel", e))?);
                self.links = Some(Links::empty());
            }
            Attach::Doorbell => self.doorbell = Some(Doorbell::from_fd(take_fd(&mut fds, "doorbell")?)),
            Attach::Status { of } => {
                let page = Page::attach(take_fd(&mut fds, "status page")?, layout_hash(), None)
                    .map_err(|e| StartError::attach("status page", e))?;
                if self.hello.as_ref().is_some_and(|(me, ..)| *me == of) {
                    self.status = Some(page);
                } else {
                    self.links()?.pages.push((of, page));
                }
            }
            Attach::Slots { frontend: _, epoch } => {
                let missing = || StartError::attach("slot table", "before hello");
                let role = self.hello.as_ref().ok_or_else(missing)?.0.role;
                let config = self.config.as_ref().ok_or_else(missing)?;
                let table = open_slots(epoch, &mut fds, role, config)?;
                self.links()?.add_slots(table);
            }
            Attach::Spans { of, track } => {
                let region = open_spans(&mut fds)?;
                if self.hello.as_ref().is_some_and(|(me, ..)| *me == of) {
                    self.spans.push(region.clone());
                }
                self.links()?.spans.push((of, track, region));
            }
            Attach::Inbox { from, epoch } => {
                let status =
                    self.status.clone().ok_or_else(|| StartError::attach("inbox", "before status"))?;
                let inbox = open_inbox(from, epoch, &mut fds, &status)?;
                self.links()?.inboxes.push(inbox);
            }
            Attach::Outbox { to, epoch } => {
                let outbox = open_outbox(to, epoch, &mut fds, self.clock)?;
                self.links()?.outboxes.push(outbox);
            }
            Attach::Listener => {
                let fd = take_fd(&mut fds, "listener")?;
                self.links()?.listener = Some(TcpListener::from(fd));
            }
            Attach::ReplayListener => {
                let fd = take_fd(&mut fds, "listener of replays")?;
                self.links()?.replay_listener = Some(TcpListener::from(fd));
            }
            Attach::Spare => self.was_spare = true,
            Attach::Done => {}
        }
        Ok(())
    }

    fn links(&mut self) -> Result<&mut Links, StartError> {
        self.links.as_mut().ok_or_else(|| StartError::attach("links", "before hello"))
    }

    pub(crate) fn finish(self, role: Role, socket: OwnedFd) -> Result<Session, StartError> {
        let missing = |what| move || StartError::attach(what, "missing from the launcher's set");
        let (me, epoch) = self.hello.ok_or_else(missing("hello"))?;
        if me.role != role {
            return Err(StartError::attach("hello", format!("meant for {me}")));
        }
        let config = self.config.ok_or_else(missing("config"))?;
        let status = self.status.ok_or_else(missing("status page"))?;
        telemetry::install(&config.lifecycle.log_filter, config.lifecycle.log_form);
        telemetry::show_on(
            me.to_string(),
            LogPage {
                page: status.clone(),
                dropped_word: Gauge::LogLinesDropped as usize,
                losing_word: Gauge::LogLosing as usize,
            },
        );
        if self.was_spare
            && let Err(error) = process::rename(&format!("pinion-{me}"))
        {
            tracing::warn!(%me, %error, "still shown as a spare");
        }
        let topology = Topology::new(&config);
        let process = topology.process(me).ok_or_else(missing("process in topology"))?;
        let spin_ns = u64::from(process.spin_us) * 1_000;
        if config.pin
            && let Err(reason) = pin::pin_to(&process.cpus)
        {
            tracing::warn!(%me, reason, "not pinned");
        }
        let control = self.control.ok_or_else(missing("control channel"))?;
        // The launcher sends nothing before it is told that we have attached.
        let launcher = LauncherLink::new(socket, control, &status);
        launcher.send(&FromRole::Hello { me, pid: std::process::id() });
        let nvtx = nvtx(&config);
        let mut recorders = self.spans.into_iter().map(|ring| Recorder::new(SpanWriter::new(ring), nvtx));
        let recorder = recorders.next().unwrap_or_else(|| Recorder::new(None, nvtx));
        let model_recorder = recorders.next();
        let doorbell = self.doorbell.ok_or_else(missing("doorbell"))?;
        let pauses = Pauses::new(me, config.observe.pause_warn_ms, config.in_process);
        let sleeper = Sleeper::new(self.clock, doorbell, spin_ns, pauses);
        let links = self.links.ok_or_else(missing("links"))?;
        let assignment = Assignment { me, clock: self.clock, epoch, config, topology };
        Ok(Session::new(assignment, status, links, (recorder, model_recorder), launcher, sleeper))
    }
}

/// The tool that listens, if one is wanted. Without it the service goes on: it is there to serve.
fn nvtx(config: &Config) -> Option<Nvtx> {
    if !config.observe.nvtx {
        return None;
    }
    let opened = Nvtx::open(pinion_config::nvtx_injection().as_deref());
    opened.inspect_err(|reason| tracing::warn!(reason, "no NVTX ranges")).ok()
}
