//! One that hears every batch, and the whole cache before the first of them.

use crate::connection::{Connection, Gone};
use crate::publisher::{Message, Publisher};
use crate::readers::Counts;
use crate::zmtp::Incoming;

/// Bytes of batches that may wait for one subscriber; past it they are dropped, and it is told the whole cache when it
/// reads again.
pub(crate) const QUEUE_BYTES_MAX: usize = 16 << 20;
/// Prefixes that one subscriber may name.
pub(crate) const PREFIXES_MAX: usize = 16;

/// See the module's documentation.
pub(crate) struct Subscriber {
    pub(crate) connection: Connection,
    /// What it wants; a prefix may stand here more than once.
    prefixes: Vec<Vec<u8>>,
    /// It has been told the whole cache, or the first batch will tell it.
    is_current: bool,
}

impl Subscriber {
    pub(crate) fn new(connection: Connection) -> Subscriber {
        Subscriber { connection, prefixes: Vec::new(), is_current: false }
    }

    /// Whether it has subscribed to what is published.
    pub(crate) fn wants(&self, publisher: &Publisher) -> bool {
        self.prefixes.iter().any(|prefix| publisher.is_meant_by(prefix))
    }

    /// Queues a batch. True if that was one too many.
    pub(crate) fn send(&mut self, message: &Message) -> bool {
        if !self.is_current {
            return false;
        }
        if self.connection.batch_bytes() + message.len() > QUEUE_BYTES_MAX {
            self.connection.drop_queue();
            self.is_current = false;
            return true;
        }
        self.connection.push(message.clone());
        false
    }

    /// Reads what it says, tells it the whole cache if it needs that, and writes what waits.
    pub(crate) fn serve(
        &mut self,
        publisher: &mut Publisher,
        (now_ns, unix_s): (u64, f64),
        counts: &mut Counts,
    ) -> Result<(), Gone> {
        for incoming in self.connection.read(now_ns)? {
            self.hear(incoming)?;
        }
        // What is published meanwhile is not for it, so it must be told everything if it subscribes again.
        self.is_current &= self.wants(publisher);
        self.connection.write(now_ns)?;
        if self.connection.queued_bytes() > 0 {
            return Ok(());
        }
        if self.is_current || !self.wants(publisher) || !publisher.has_room() {
            return Ok(());
        }
        self.is_current = true;
        // Without one, the next batch says everything.
        if let Some(snapshot) = publisher.snapshot(unix_s) {
            counts.snapshots += 1;
            self.connection.push_whole(snapshot, now_ns);
        }
        self.connection.write(now_ns)
    }

    fn hear(&mut self, incoming: Incoming) -> Result<(), Gone> {
        match incoming {
            Incoming::Subscribe(prefix) => self.subscribe(prefix)?,
            Incoming::Cancel(prefix) => self.cancel(&prefix),
            Incoming::Message(frames) => match frames.first().map(Vec::as_slice) {
                Some([1, prefix @ ..]) => self.subscribe(prefix.to_vec())?,
                Some([0, prefix @ ..]) => self.cancel(prefix),
                _ => return Err(Gone::Refused("a subscriber sends a message that is no subscription")),
            },
            Incoming::Greeting { .. } | Incoming::Ready | Incoming::Ping(_) => {}
        }
        Ok(())
    }

    fn subscribe(&mut self, prefix: Vec<u8>) -> Result<(), Gone> {
        if self.prefixes.len() == PREFIXES_MAX {
            return Err(Gone::Refused("a subscriber names too many prefixes"));
        }
        self.prefixes.push(prefix);
        Ok(())
    }

    fn cancel(&mut self, prefix: &[u8]) {
        if let Some(at) = self.prefixes.iter().position(|known| known == prefix) {
            self.prefixes.swap_remove(at);
        }
    }
}
