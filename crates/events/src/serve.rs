//! The loop: changes from the engine, connections, what they say, what waits for them.

use crate::connection::Connection;
use crate::publisher::{Facts, Message, Publisher};
use crate::readers::Readers;
use crate::subscriber::Subscriber;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use pinion_config::{Config, Exit};
use pinion_protocol::Role;
use pinion_protocol::status::Gauge;
use pinion_worker::{ControlEvent, Session};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// Records taken in one turn.
const RECORDS_PER_TURN: usize = 64;
/// Longest sleep.
const IDLE_WAIT: Duration = Duration::from_millis(100);

/// The role's life.
pub fn live(mut session: Session) -> ExitCode {
    let Some(facts) = facts(session.config()) else {
        return session.fail("started without --kv-events", Exit::Start.code().into());
    };
    let (listener, replay) = (session.links.listener.take(), session.links.replay_listener.take());
    let readers = match listener.map(|listener| Readers::new(listener, replay)) {
        Some(Ok(readers)) => readers,
        Some(Err(error)) => {
            let reason = format!("cannot use the sockets of KV events: {error}");
            return session.fail(&reason, Exit::System.code().into());
        }
        None => return session.fail("the launcher gave no listening socket", Exit::System.code().into()),
    };
    session.ready(&format!("topic {}", facts.topic));
    // Its predecessor's numbers go on, so that a subscriber sees what it has missed.
    let next = session.status.get(Gauge::KvEventBatches as usize);
    Server { publisher: Publisher::new(facts, next), readers, session, engine_down: false }.run()
}

fn facts(config: &Config) -> Option<Facts> {
    let events = config.kv_events.as_ref()?;
    // A GPU's memory is seen when its engine starts.
    let block_count = if config.cuda.is_some() { u32::MAX } else { config.kv_blocks };
    Some(Facts {
        topic: events.topic.clone(),
        block_size: config.block_size as usize,
        block_count: block_count as usize,
        rank: 0,
    })
}

fn unix_s() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The role with its links.
struct Server {
    session: Session,
    publisher: Publisher,
    readers: Readers,
    /// What its ring still holds is void.
    engine_down: bool,
}

impl Server {
    fn run(mut self) -> ExitCode {
        loop {
            if !self.take_control() {
                return self.session.stop();
            }
            let worked = self.take_records();
            let (now_ns, unix_s) = (self.session.now_ns(), unix_s());
            self.readers.accept(&self.publisher, now_ns);
            self.readers.serve_subscribers(&mut self.publisher, now_ns, unix_s);
            self.readers.serve_askers(&mut self.publisher, now_ns, unix_s);
            self.readers.end_slow(&mut self.publisher, now_ns);
            self.report();
            if !worked {
                self.sleep();
            }
        }
    }

    /// False if the role must leave.
    fn take_control(&mut self) -> bool {
        while let Some(event) = self.session.control() {
            match event {
                ControlEvent::Stop => return false,
                ControlEvent::PeerLost(peer, _) if peer.role == Role::Engine => {
                    self.engine_down = true;
                    let message = self.publisher.lose_engine(unix_s());
                    self.publish(&message);
                }
                ControlEvent::PeerReady(peer) if peer.role == Role::Engine => self.engine_down = false,
                ControlEvent::InboxReplaced { .. } => self.engine_down = false,
                ControlEvent::Drain { .. } => self.session.draining(),
                ControlEvent::PeerLost(..)
                | ControlEvent::PeerReady(_)
                | ControlEvent::OutboxReplaced { .. }
                | ControlEvent::SlotsReplaced { .. }
                | ControlEvent::Admin { .. }
                | ControlEvent::AdminDone { .. }
                | ControlEvent::Open
                | ControlEvent::Leaving => {}
            }
        }
        true
    }

    /// Takes a bounded number of records. False if there was none.
    fn take_records(&mut self) -> bool {
        let (mut taken, mut messages) = (false, Vec::new());
        if !self.engine_down {
            for inbox in &mut self.session.links.inboxes {
                for _ in 0..RECORDS_PER_TURN {
                    let Some(record) = inbox.next() else { break };
                    taken = true;
                    match self.publisher.take(record.kind, record.payload, unix_s()) {
                        Ok(message) => messages.extend(message),
                        Err(malformed) => inbox.condemn(malformed.0),
                    }
                }
            }
        }
        messages.iter().for_each(|message| self.publish(message));
        taken
    }

    fn publish(&mut self, message: &Message) {
        // Before it is sent: a successor must not use its number again.
        self.session.status.set(Gauge::KvEventBatches as usize, self.publisher.next_number());
        self.readers.publish(message, &self.publisher);
    }

    fn report(&self) {
        let status = &self.session.status;
        let counts = self.readers.counts;
        status.set(Gauge::KvEventSubscribers as usize, self.readers.subscribed(&self.publisher) as u64);
        status.set(Gauge::KvEventSnapshots as usize, counts.snapshots);
        status.set(Gauge::KvEventOverflows as usize, counts.overflows);
        status.set(Gauge::KvEventClosed as usize, counts.closed);
    }

    /// Sleeps until the engine or the launcher rings, or a connection can be used.
    fn sleep(&mut self) {
        if !self.session.arm() {
            return;
        }
        self.poll();
        self.session.disarm();
        self.session.drain_doorbell();
    }

    fn poll(&self) {
        let mut polled = vec![PollFd::new(self.session.doorbell_fd(), PollFlags::POLLIN)];
        let readers = &self.readers;
        polled.extend(
            readers
                .listeners(self.session.now_ns())
                .map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN)),
        );
        for Subscriber { connection, .. } in &readers.subscribers {
            polled.push(polled_for(connection, connection.is_heard(), connection.queued_bytes() > 0));
        }
        for asker in &readers.askers {
            polled.push(polled_for(&asker.connection, !asker.writes(), asker.writes()));
        }
        if let Err(error) = ppoll(&mut polled, Some(TimeSpec::from_duration(IDLE_WAIT)), None)
            && error != nix::errno::Errno::EINTR
        {
            tracing::error!(%error, "cannot wait for connections");
            std::thread::sleep(IDLE_WAIT);
        }
    }
}

/// What is not read must not be waited for: it would end each wait at once.
fn polled_for(connection: &Connection, reads: bool, writes: bool) -> PollFd<'_> {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::POLLIN, reads);
    flags.set(PollFlags::POLLOUT, writes);
    PollFd::new(connection.stream().as_fd(), flags)
}
