//! One that asks for batches again. It gets a portion at a time: what waits for it stays small, however much it wants
//! and however slowly it reads.

use crate::connection::{Connection, Gone};
use crate::publisher::Publisher;
use crate::zmtp::Incoming;
use std::collections::VecDeque;

/// Requests of one connection that may wait. More are what no client sends that reads its answers.
const REQUESTS_MAX: usize = 16;

/// See the module's documentation.
pub(crate) struct Asker {
    pub(crate) connection: Connection,
    /// The first number that is wanted, by request. The front one is being answered.
    wanted: VecDeque<u64>,
}

impl Asker {
    pub(crate) fn new(connection: Connection) -> Asker {
        Asker { connection, wanted: VecDeque::new() }
    }

    /// Whether it has not got all that it has asked for. Meanwhile it is not read.
    pub(crate) fn waits(&self) -> bool {
        !self.wanted.is_empty() || self.connection.queued_bytes() > 0
    }

    pub(crate) fn serve(&mut self, publisher: &mut Publisher, now_ns: u64, unix_s: f64) -> Result<(), Gone> {
        self.connection.write(now_ns)?;
        if !self.waits() {
            for incoming in self.connection.read()? {
                if let Incoming::Message(frames) = incoming {
                    self.take_request(&frames)?;
                }
            }
        }
        if self.connection.queued_bytes() == 0
            && let Some(next) = self.wanted.front_mut()
        {
            let (messages, rest) = publisher.replay(*next, unix_s);
            match rest {
                Some(rest) => *next = rest,
                None => _ = self.wanted.pop_front(),
            }
            messages.into_iter().for_each(|message| self.connection.push(message));
        }
        self.connection.write(now_ns)
    }

    /// An empty frame, as REQ sends it, and the number.
    fn take_request(&mut self, frames: &[Vec<u8>]) -> Result<(), Gone> {
        let start = match frames {
            [empty, start] if empty.is_empty() => <[u8; 8]>::try_from(&start[..]).ok(),
            _ => None,
        };
        let start = start.ok_or(Gone::Refused("a replay is asked for with something else than 8 bytes"))?;
        if self.wanted.len() == REQUESTS_MAX {
            return Err(Gone::Refused("it asks for replays without reading them"));
        }
        self.wanted.push_back(u64::from_be_bytes(start));
        Ok(())
    }
}
