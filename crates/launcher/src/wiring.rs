//! Everything the roles share: rings, slot tables, status pages, doorbells, the config and the listening
//! socket. Made here before any role starts, handed out as descriptors, renewed when a role dies.
//!
//! Nothing has a name in the file system and everything is close-on-exec: a role gets exactly the
//! descriptors it is sent.

use crate::corrupt::{CorruptEdge, History};
use ipc_channel::ipc::{IpcBytesReceiver, IpcBytesSender, bytes_channel};
use pinion_config::{ApiKeys, Config, Edge, Ipc, Profiler, Topology};
use pinion_os::{clock, fdpass};
use pinion_protocol::control::Attach;
use pinion_protocol::spans::{SPANS_KEPT, track_count};
use pinion_protocol::status::{EDGE_WORDS, LauncherGauge};
use pinion_protocol::{Peer, Role, layout_hash};
use pinion_shm::doorbell::Doorbell;
use pinion_shm::page::Page;
use pinion_shm::region::{Region, RegionKind, sealed_blob};
use pinion_shm::slots::SlotTable;
use pinion_shm::{ring, spans};
use pinion_worker::EdgeEnd;
use pinion_worker::control::{self, LauncherEnd};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The one launcher.
const LAUNCHER: Peer = Peer { role: Role::Launcher, index: 0 };

struct Ring {
    edge: Edge,
    epoch: u32,
    region: Region,
    /// This life of it was reported as corrupt.
    corrupt: bool,
    history: History,
    /// Carries the records instead of the ring under `--ipc channel`. An edge to an optional role stays a ring: a send
    /// to a channel may wait for its reader.
    channel: Option<Channel>,
}

/// Both ends of a channel; the reader's goes out once.
struct Channel {
    sender: IpcBytesSender,
    receiver: RefCell<Option<IpcBytesReceiver>>,
}

impl Channel {
    fn new() -> io::Result<Channel> {
        let (sender, receiver) = bytes_channel()?;
        Ok(Channel { sender, receiver: RefCell::new(Some(receiver)) })
    }
}

/// All shared objects of one running service.
pub struct Wiring {
    rings: Vec<Ring>,
    slots: Vec<(u32, SlotTable)>,
    slot_count: usize,
    pages: BTreeMap<Peer, Page>,
    doorbells: BTreeMap<Peer, Doorbell>,
    /// Recent spans of each thread of a role, by role and track. A restarted role continues its predecessor's.
    spans: Vec<(Peer, u16, Region)>,
    board: Page,
    config: OwnedFd,
    /// The same for all roles but the frontends: without the keys of clients.
    config_without_keys: OwnedFd,
    listener: OwnedFd,
    /// For the events role: the socket of subscribers, then that of replays, as far as there are any. They listen.
    event_sockets: Vec<OwnedFd>,
    /// A profiler stands between the launcher and each role.
    wrapped: bool,
    /// Data edges are channels, but for those to optional roles.
    with_channels: bool,
    /// Edges that were found corrupt.
    corrupt_edges: u64,
    /// Headers that were found overwritten.
    mended_headers: u64,
}

impl Wiring {
    /// Creates everything the topology names. Errors: out of memory or descriptors.
    pub fn new(config: &Config, topology: &Topology, listener: OwnedFd) -> io::Result<Wiring> {
        pinion_shm::region::set_prefault(config.jitter_control);
        let hash = layout_hash();
        let sealed = |config: &Config| {
            let bytes = bincode::serialize(config).map_err(io::Error::other)?;
            sealed_blob("pinion-config", &bytes)
        };
        let slot_count = config.max_inflight as usize;
        let mut wiring = Wiring {
            rings: Vec::new(),
            slots: Vec::new(),
            slot_count,
            pages: BTreeMap::new(),
            doorbells: BTreeMap::new(),
            spans: Vec::new(),
            board: Page::create(hash, 1, EDGE_WORDS + 2 * topology.edges.len())?,
            config: sealed(config)?,
            config_without_keys: sealed(&Config { api_keys: ApiKeys::default(), ..config.clone() })?,
            listener,
            event_sockets: Vec::new(),
            wrapped: config.observe.profiler.is_some_and(Profiler::wraps),
            with_channels: config.ipc == Ipc::Channel,
            corrupt_edges: 0,
            mended_headers: 0,
        };
        for edge in &topology.edges {
            let region = make_ring(edge, 1)?;
            let has_channel = wiring.with_channels && !edge.to.role.is_optional();
            let channel = has_channel.then(Channel::new).transpose()?;
            let (corrupt, history) = (false, History::default());
            wiring.rings.push(Ring { edge: *edge, epoch: 1, region, corrupt, history, channel });
        }
        for _ in 0..config.frontends {
            wiring.slots.push((1, SlotTable::create(hash, 1, slot_count)?));
        }
        for process in &topology.processes {
            wiring.pages.insert(process.peer, Page::create(hash, 1, pinion_protocol::limits::GAUGE_COUNT)?);
            wiring.doorbells.insert(process.peer, Doorbell::create()?);
            if config.observe.timeline {
                wiring.make_spans(process.peer)?;
            }
        }
        Ok(wiring)
    }

    /// The same with the sockets of the events role: that of subscribers, then that of replays.
    pub fn with_event_sockets(self, event_sockets: Vec<OwnedFd>) -> Wiring {
        Wiring { event_sockets, ..self }
    }

    fn make_spans(&mut self, peer: Peer) -> io::Result<()> {
        for track in 0..track_count(peer.role) {
            let (name, words) = (format!("pinion-spans-{peer}"), spans::region_words(SPANS_KEPT));
            let region = Region::create(&name, RegionKind::Spans, layout_hash(), 1, words)?;
            self.spans.push((peer, track, region));
        }
        Ok(())
    }

    /// The status page of a role.
    pub fn page(&self, peer: Peer) -> &Page {
        self.pages.get(&peer).expect("every process of the topology has a page")
    }

    /// Wakes a role.
    pub fn ring_doorbell(&self, peer: Peer) {
        if let Some(doorbell) = self.doorbells.get(&peer) {
            doorbell.ring();
        }
    }

    /// Fresh rings (epoch + 1) for every edge of a dead role, and a fresh slot table if it was a frontend:
    /// nothing that a dead process may have half-written is ever used again.
    pub fn renew(&mut self, peer: Peer) -> io::Result<()> {
        for ring in self.rings.iter_mut().filter(|ring| ring.touches(peer)) {
            ring.epoch += 1;
            ring.region = make_ring(&ring.edge, ring.epoch)?;
            ring.corrupt = false;
            ring.channel = ring.channel.is_some().then(Channel::new).transpose()?;
        }
        if peer.role == Role::Frontend
            && let Some((epoch, table)) = self.slots.get_mut(usize::from(peer.index))
        {
            *epoch += 1;
            *table = SlotTable::create(layout_hash(), *epoch, self.slot_count)?;
        }
        Ok(())
    }

    /// Makes the control channel of a new process: our end and the descriptors of its own.
    pub fn control(&self) -> io::Result<(LauncherEnd, Vec<OwnedFd>)> {
        control::pair(self.with_channels)
    }

    /// The launcher's own page.
    pub fn board(&self) -> &Page {
        &self.board
    }

    /// Writes the headers of what successors attach to again where a write has damaged them: no living role reads
    /// them, and every successor would refuse the region and die. Rings are not among it, which are new for each of
    /// them.
    pub fn mend_headers(&mut self) {
        let mut mended = Vec::new();
        mended.extend(
            self.pages
                .iter()
                .filter(|(_, page)| page.mend())
                .map(|(peer, _)| format!("status page of {peer}")),
        );
        mended.extend(self.board.mend().then(|| "status page of the launcher".to_owned()));
        for (index, (_, table)) in self.slots.iter().enumerate() {
            mended.extend(table.mend().then(|| format!("slot table of frontend-{index}")));
        }
        for (peer, _, region) in &self.spans {
            mended.extend(region.mend().then(|| format!("ring of spans of {peer}")));
        }
        for region in mended {
            self.mended_headers += 1;
            tracing::error!(
                region,
                "the header of a shared region was overwritten; written again, no role restarts"
            );
        }
    }

    /// The end to restart because of a corrupt edge; `None` if that life of it was reported before, or has ended.
    pub fn condemn(&mut self, edge: &CorruptEdge, now_ns: u64) -> Option<Peer> {
        let is_meant = |ring: &&mut Ring| {
            (ring.edge.from, ring.edge.to, ring.epoch) == (edge.from, edge.to, edge.epoch) && !ring.corrupt
        };
        let ring = self.rings.iter_mut().find(is_meant)?;
        ring.corrupt = true;
        self.corrupt_edges += 1;
        Some(ring.history.victim(edge, now_ns))
    }

    /// Sends a new process everything it may have, in the order that it expects.
    /// `control` are its ends of the control channel.
    pub fn attach(
        &self,
        me: Peer,
        epoch: u32,
        control: &[OwnedFd],
        socket: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let hello = Attach::Hello {
            me,
            epoch,
            layout_hash: layout_hash(),
            launcher_pid: std::process::id(),
            wrapped: self.wrapped,
        };
        let config = if me.role == Role::Frontend { &self.config } else { &self.config_without_keys };
        let fds: Vec<_> = std::iter::once(config).chain(control).map(AsFd::as_fd).collect();
        send(socket, &hello, &fds)?;
        send(socket, &Attach::Status { of: me }, &[self.page(me).fd()])?;
        if let Some(doorbell) = self.doorbells.get(&me) {
            send(socket, &Attach::Doorbell, &[doorbell.fd()])?;
        }
        let slots = if has_slots(me) { &self.slots[..] } else { &[] };
        for (index, (epoch, table)) in slots.iter().enumerate() {
            send(socket, &Attach::Slots { frontend: index as u16, epoch: *epoch }, &[table.fd()])?;
        }
        for ring in &self.rings {
            self.send_ring(ring, me, socket)?;
        }
        for (of, track, region) in &self.spans {
            if *of == me || me.role == Role::Frontend {
                send(socket, &Attach::Spans { of: *of, track: *track }, &[region.fd()])?;
            }
        }
        if me.role == Role::Frontend {
            for (peer, page) in self.pages.iter().filter(|(peer, _)| **peer != me) {
                send(socket, &Attach::Status { of: *peer }, &[page.fd()])?;
            }
            send(socket, &Attach::Status { of: LAUNCHER }, &[self.board.fd()])?;
            send(socket, &Attach::Listener, &[self.listener.as_fd()])?;
        }
        if me.role == Role::Events {
            let names = [Attach::Listener, Attach::ReplayListener];
            for (name, event_socket) in names.iter().zip(&self.event_sockets) {
                send(socket, name, &[event_socket.as_fd()])?;
            }
        }
        send(socket, &Attach::Done, &[])
    }

    /// Sends a living role its ends of the edges that `renewed` shares with it.
    pub fn reattach(&self, me: Peer, renewed: Peer, socket: BorrowedFd<'_>) -> io::Result<()> {
        if renewed.role == Role::Frontend
            && has_slots(me)
            && let Some((epoch, table)) = self.slots.get(usize::from(renewed.index))
        {
            send(socket, &Attach::Slots { frontend: renewed.index, epoch: *epoch }, &[table.fd()])?;
        }
        for ring in self.rings.iter().filter(|ring| ring.touches(renewed)) {
            self.send_ring(ring, me, socket)?;
        }
        send(socket, &Attach::Done, &[])
    }

    /// Under `--ipc channel`: one end for every edge of `me` that was attached, all of them or those that it shares
    /// with `renewed`. Of an edge that stays a ring the role has its end already, and those that it shares with a peer
    /// for which `later` holds are attached again and come then: a reader's end can be sent once.
    pub fn send_edges(
        &self,
        me: Peer,
        renewed: Option<Peer>,
        later: impl Fn(Peer) -> bool,
        to: &LauncherEnd,
    ) -> io::Result<()> {
        if !self.with_channels {
            return Ok(());
        }
        let attached = |ring: &&Ring| ring.touches(me) && renewed.is_none_or(|renewed| ring.touches(renewed));
        for Ring { edge, channel, .. } in self.rings.iter().filter(attached) {
            let other = if edge.to == me { edge.from } else { edge.to };
            to.send_edge(match channel {
                None => EdgeEnd::Unchanged,
                Some(_) if later(other) => EdgeEnd::Unchanged,
                Some(channel) if edge.to == me => {
                    let end = |receiver| EdgeEnd::Read { from: edge.from, receiver };
                    channel.receiver.take().map_or(EdgeEnd::Unchanged, end)
                }
                Some(channel) => EdgeEnd::Write { to: edge.to, sender: channel.sender.clone() },
            })?;
        }
        Ok(())
    }

    fn send_ring(&self, ring: &Ring, me: Peer, socket: BorrowedFd<'_>) -> io::Result<()> {
        let Ring { edge, epoch, region, .. } = ring;
        if edge.to == me {
            send(socket, &Attach::Inbox { from: edge.from, epoch: *epoch }, &[region.fd()])?;
        }
        if edge.from == me {
            let doorbell = self.doorbells.get(&edge.to).expect("every reader has a doorbell");
            send(socket, &Attach::Outbox { to: edge.to, epoch: *epoch }, &[region.fd(), doorbell.fd()])?;
        }
        Ok(())
    }

    /// Writes heartbeat, restarts, spare engines and the depth of every ring to the page that frontends read.
    pub fn update_board(&self, restarts: u64, spare_engines: u64) {
        self.board.set(LauncherGauge::HeartbeatNs as usize, clock::now_ns());
        self.board.set(LauncherGauge::Restarts as usize, restarts);
        self.board.set(LauncherGauge::SpareEngines as usize, spare_engines);
        self.board.set(LauncherGauge::CorruptEdges as usize, self.corrupt_edges);
        self.board.set(LauncherGauge::MendedHeaders as usize, self.mended_headers);
        for (i, ring) in self.rings.iter().enumerate() {
            let (used_bytes, capacity_bytes) = ring::depth(&ring.region);
            self.board.set(EDGE_WORDS + 2 * i, used_bytes as u64);
            self.board.set(EDGE_WORDS + 2 * i + 1, capacity_bytes as u64);
        }
    }

    /// Bytes that wait in the ring between these two.
    #[cfg(test)]
    pub(crate) fn waiting_bytes(&self, from: Peer, to: Peer) -> usize {
        let between = |ring: &&Ring| (ring.edge.from, ring.edge.to) == (from, to);
        self.rings.iter().filter(between).map(|ring| ring::depth(&ring.region).0).sum()
    }

    /// The bound socket.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Ring {
    fn touches(&self, peer: Peer) -> bool {
        self.edge.from == peer || self.edge.to == peer
    }
}

fn make_ring(edge: &Edge, epoch: u32) -> io::Result<Region> {
    let name = format!("pinion-{}-{}", edge.from, edge.to);
    Region::create(&name, RegionKind::Ring, layout_hash(), epoch, ring::region_words(edge.capacity_bytes))
}

fn send(socket: BorrowedFd<'_>, message: &Attach, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = bincode::serialize(message).map_err(io::Error::other)?;
    fdpass::send(socket, &bytes, fds)
}

/// The events role, which strangers may talk to, knows of no request.
fn has_slots(peer: Peer) -> bool {
    peer.role != Role::Events
}
