//! The loop's ports with a tape beside them.
//!
//! Frames go into a buffer; full buffers go to a thread that writes them. If that cannot keep up, frames are dropped
//! and the file says so: the loop never waits for a disk.

use super::{Group, MAGIC, VERSION, frame};
use crate::ports::Ports;
use pinion_config::Config;
use pinion_protocol::names::{Counter, Stage};
use pinion_protocol::status::Gauge;
use pinion_protocol::{Peer, RequestId, Role};
use pinion_scheduler::StepPlan;
use pinion_shm::ring::Record;
use pinion_shm::slots::SlotState;
use pinion_worker::{Overflow, Recorder};
use serde_json::json;
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// A buffer goes to the writer from this size on.
const CHUNK_BYTES: usize = 1 << 20;
/// A smaller one goes to it after this time, so that an engine that is killed loses no more of its recording.
const CHUNK_NS_MAX: u64 = 1_000_000_000;
/// Buffers on their way to the writer or back: how far it may fall behind.
const CHUNKS: usize = 8;
/// How long the end of a recording waits for the disk.
const FINISH_WAIT: Duration = Duration::from_secs(5);

/// Where frames go.
pub struct Tape {
    buffer: Vec<u8>,
    /// Where the group at hand begins.
    group_at: usize,
    slot_looks: u32,
    /// A slot of this group was not simply live: even an idle turn may have dropped a request for it.
    slot_seen: bool,
    sends: u32,
    backlog_looks: u32,
    lost_bytes: u64,
    /// What the loop saw last on its clock, and when the writer last got a buffer.
    now_ns: u64,
    handed_over_ns: u64,
    full: Option<SyncSender<Vec<u8>>>,
    spare: Receiver<Vec<u8>>,
    /// The file could not be written; the recording has ended.
    ended: Arc<AtomicBool>,
}

impl Tape {
    /// Creates the file and starts the thread that writes it. Errors: the file cannot be created, or the path names
    /// something other than a plain file (the open of a pipe could block for ever).
    pub fn create(path: &Path, config: &Config, inbox_count: usize) -> io::Result<Tape> {
        if path.metadata().is_ok_and(|found| !found.is_file()) {
            return Err(io::Error::other("it is not a plain file"));
        }
        let mut file = File::create(path)?;
        let header = json!({
            "pinion": env!("CARGO_PKG_VERSION"),
            "inboxes": inbox_count,
            "config": serde_json::to_value(config).map_err(io::Error::other)?,
        })
        .to_string();
        file.write_all(MAGIC)?;
        file.write_all(&VERSION.to_le_bytes())?;
        file.write_all(&[frame::HEADER])?;
        file.write_all(&(header.len() as u32).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        let (full, chunks) = sync_channel::<Vec<u8>>(CHUNKS);
        let (back, spare) = sync_channel(CHUNKS);
        for _ in 0..CHUNKS {
            let _ = back.try_send(Vec::with_capacity(2 * CHUNK_BYTES));
        }
        let ended = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ended);
        std::thread::Builder::new().name("record".into()).spawn(move || {
            write_chunks(&mut file, &chunks, &back, &flag);
        })?;
        Ok(Tape {
            buffer: Vec::with_capacity(2 * CHUNK_BYTES),
            group_at: 0,
            slot_looks: 0,
            slot_seen: false,
            sends: 0,
            backlog_looks: 0,
            lost_bytes: 0,
            now_ns: 0,
            handed_over_ns: 0,
            full: Some(full),
            spare,
            ended,
        })
    }

    fn put(&mut self, kind: u8, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.buffer.push(kind);
        self.buffer.extend_from_slice(&(length as u32).to_le_bytes());
        parts.iter().for_each(|part| self.buffer.extend_from_slice(part));
    }

    /// A group begins.
    pub(crate) fn begin(&mut self, group: Group, index: u16) {
        self.group_at = self.buffer.len();
        (self.slot_looks, self.sends, self.backlog_looks, self.slot_seen) = (0, 0, 0, false);
        self.put(frame::GROUP, &[&[group as u8], &index.to_le_bytes()]);
    }

    /// A group that is one record of a ring that was replaced.
    pub(crate) fn begin_old_record(&mut self, kind: u16, payload: &[u8]) {
        self.begin(Group::OldRecord, 0);
        self.put(frame::RECORD, &[&0_u32.to_le_bytes(), &kind.to_le_bytes(), payload]);
    }

    /// The group is over; one in which nothing happened is forgotten.
    pub(crate) fn end(&mut self, worked: bool) {
        if !worked && !self.slot_seen {
            self.buffer.truncate(self.group_at);
        }
        let is_old = self.now_ns.saturating_sub(self.handed_over_ns) >= CHUNK_NS_MAX;
        if self.buffer.len() >= CHUNK_BYTES || (is_old && !self.buffer.is_empty()) {
            self.hand_over();
        }
    }

    fn see_clock(&mut self, ns: u64) {
        self.now_ns = ns;
        self.put(frame::CLOCK, &[&ns.to_le_bytes()]);
    }

    fn hand_over(&mut self) {
        self.handed_over_ns = self.now_ns;
        let Some(full) = &self.full else { return };
        match self.spare.try_recv() {
            Ok(spare) => {
                let chunk = std::mem::replace(&mut self.buffer, spare);
                // As many places as there are buffers; only a writer that has ended refuses.
                let _ = full.try_send(chunk);
                let lost = std::mem::take(&mut self.lost_bytes);
                if lost > 0 {
                    self.put(frame::LOST, &[&lost.to_le_bytes()]);
                }
            }
            Err(_) => {
                self.lost_bytes += self.buffer.len() as u64;
                self.buffer.clear();
            }
        }
    }

    /// Whether the recording has ended because the file could not be written.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Writes what is left and waits until it is written, for a few seconds at most.
    pub fn finish(mut self) {
        self.put(frame::END, &[]);
        self.hand_over();
        if self.lost_bytes > 0 && !self.has_ended() {
            tracing::error!(bytes = self.lost_bytes, "the end of the recording could not be written in time");
        }
        self.full = None;
        // The writer drops its end of this channel when it has written everything.
        let deadline = Instant::now() + FINISH_WAIT;
        loop {
            match self.spare.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    tracing::error!(
                        "the disk does not take the end of the recording; the file is incomplete"
                    );
                    return;
                }
            }
        }
    }
}

fn write_chunks(file: &mut File, chunks: &Receiver<Vec<u8>>, back: &SyncSender<Vec<u8>>, ended: &AtomicBool) {
    while let Ok(mut chunk) = chunks.recv() {
        if let Err(error) = file.write_all(&chunk) {
            tracing::error!(%error, "the recording cannot be written and ends here; requests are not affected");
            ended.store(true, Ordering::Relaxed);
            return;
        }
        chunk.clear();
        let _ = back.try_send(chunk);
    }
}

/// Ports that write down what passes through them.
pub struct Taped<'a, P: Ports> {
    ports: &'a mut P,
    tape: RefCell<&'a mut Tape>,
}

impl<'a, P: Ports> Taped<'a, P> {
    /// `ports`, recorded on `tape`.
    pub fn new(ports: &'a mut P, tape: &'a mut Tape) -> Taped<'a, P> {
        Taped { ports, tape: RefCell::new(tape) }
    }
}

/// A request as it stands in a frame.
pub(super) fn request_bytes(id: RequestId) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..2].copy_from_slice(&id.frontend.to_le_bytes());
    bytes[2..4].copy_from_slice(&id.slot.to_le_bytes());
    bytes[4..].copy_from_slice(&id.generation.to_le_bytes());
    bytes
}

impl<P: Ports> Ports for Taped<'_, P> {
    fn now_ns(&self) -> u64 {
        let ns = self.ports.now_ns();
        self.tape.borrow_mut().see_clock(ns);
        ns
    }

    fn inbox_count(&self) -> usize {
        self.ports.inbox_count()
    }

    fn next_record(&mut self, inbox: usize) -> Option<Record<'_>> {
        let record = self.ports.next_record(inbox)?;
        let (number, kind) = ((inbox as u32).to_le_bytes(), record.kind.to_le_bytes());
        self.tape.get_mut().put(frame::RECORD, &[&number, &kind, record.payload]);
        Some(record)
    }

    fn condemn(&mut self, inbox: usize, what: &'static str) {
        self.ports.condemn(inbox, what);
    }

    fn slot(&self, id: RequestId) -> Option<SlotState> {
        let state = self.ports.slot(id);
        let mut tape = self.tape.borrow_mut();
        let look = tape.slot_looks;
        tape.slot_looks += 1;
        let simple = SlotState { generation: id.generation, live: true, cancelled: false, stopped: false };
        if state != Some(simple) {
            let flags = state.map_or(0, |s| {
                1 | u8::from(s.live) << 1 | u8::from(s.cancelled) << 2 | u8::from(s.stopped) << 3
            });
            let generation = state.map_or(0, |state| state.generation).to_le_bytes();
            tape.slot_seen = true;
            tape.put(frame::SLOT, &[&look.to_le_bytes(), &request_bytes(id), &[flags], &generation]);
        }
        state
    }

    fn stamp(&self, id: RequestId, stage: Stage, ns: u64) {
        self.ports.stamp(id, stage, ns);
    }

    fn count(&self, id: RequestId, counter: Counter, value: u64) {
        self.ports.count(id, counter, value);
    }

    fn send(&mut self, to: Peer, kind: u16, payload: &[u8]) -> Result<(), Overflow> {
        let sent = self.ports.send(to, kind, payload);
        let tape = self.tape.get_mut();
        let number = tape.sends;
        tape.sends += 1;
        match sent {
            Ok(()) => {
                let role = [u8::from(to.role == Role::Detokenizer)];
                let (index, kind) = (to.index.to_le_bytes(), kind.to_le_bytes());
                tape.put(frame::SENT, &[&role, &index, &kind, payload]);
            }
            Err(Overflow) => tape.put(frame::REFUSED, &[&number.to_le_bytes()]),
        }
        sent
    }

    fn detokenizer_lag_bytes(&self) -> usize {
        let bytes = self.ports.detokenizer_lag_bytes();
        let mut tape = self.tape.borrow_mut();
        let look = tape.backlog_looks;
        tape.backlog_looks += 1;
        if bytes > 0 {
            tape.put(frame::BACKLOG, &[&look.to_le_bytes(), &(bytes as u64).to_le_bytes()]);
        }
        bytes
    }

    fn publish(&mut self) {
        self.ports.publish();
    }

    // What the events role hears has no influence on the loop, so it is not recorded.
    fn events_fit(&self, bytes: usize) -> bool {
        self.ports.events_fit(bytes)
    }

    fn send_events(&mut self, payload: &[u8]) {
        self.ports.send_events(payload);
    }

    fn excuse(&mut self, ns: u64) {
        self.ports.excuse(ns);
    }

    fn set_gauge(&self, gauge: Gauge, value: u64) {
        self.ports.set_gauge(gauge, value);
    }

    fn add_one(&self, gauge: Gauge) {
        self.ports.add_one(gauge);
    }

    fn recorder(&self) -> &Recorder {
        self.ports.recorder()
    }

    fn planned(&self, plan: &StepPlan) {
        let mut tape = self.tape.borrow_mut();
        let length = 8 + 20 * plan.rows.len();
        tape.buffer.push(frame::PLAN);
        tape.buffer.extend_from_slice(&(length as u32).to_le_bytes());
        tape.buffer.extend_from_slice(&plan.step.to_le_bytes());
        for row in &plan.rows {
            tape.buffer.extend_from_slice(&request_bytes(row.id));
            for word in [row.start, row.len, row.draw.map_or(0, |draw| draw + 1)] {
                tape.buffer.extend_from_slice(&word.to_le_bytes());
            }
        }
    }
}
