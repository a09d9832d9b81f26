//! One that asks for batches again. It gets a portion at a time: what waits for it stays small, however much it wants
//! and however slowly it reads.

use crate::connection::{Connection, Gone};
use crate::publisher::Publisher;
use crate::zmtp::Incoming;
use std::collections::VecDeque;
use std::rc::Rc;

/// Requests of one connection that may wait. More are what no client sends that reads its answers.
const REQUESTS_MAX: usize = 16;

/// See the module's documentation.
pub(crate) struct Asker {
    pub(crate) connection: Connection,
    /// The first number that is wanted, by request. The front one is being answered.
    wanted: VecDeque<u64>,
    /// What it wants is the whole cache, for which there is no room now.
    waits_for_room: bool,
}

impl Asker {
    pub(crate) fn new(connection: Connection) -> Asker {
        Asker { connection, wanted: VecDeque::new(), waits_for_room: false }
    }

    /// Whether it has not got all that it has asked for.
    pub(crate) fn waits(&self) -> bool {
        !self.wanted.is_empty() || self.connection.queued_bytes() > 0
    }

    /// Whether it goes on as soon as its socket takes more. Meanwhile it is not read; one that waits for room is, so
    /// that its end is seen.
    pub(crate) fn writes(&self) -> bool {
        self.waits() && !self.waits_for_room
    }

    pub(crate) fn serve(&mut self, publisher: &mut Publisher, now_ns: u64, unix_s: f64) -> Result<(), Gone> {
        self.connection.write(now_ns)?;
        if self.writes() {
            self.connection.pass_over(now_ns);
        } else {
            for incoming in self.connection.read(now_ns)? {
                if let Incoming::Message(frames) = incoming {
                    self.take_request(&frames)?;
                }
            }
        }
        if self.connection.queued_bytes() == 0
            && let Some(next) = self.wanted.front_mut()
        {
            let (messages, rest) = publisher.replay(*next, unix_s);
            self.waits_for_room = messages.is_empty();
            match rest {
                Some(rest) => *next = rest,
                None => _ = self.wanted.pop_front(),
            }
            for message in messages {
                match publisher.snapshots.current() {
                    Some(whole) if Rc::ptr_eq(whole, &message) => self.connection.push_whole(message, now_ns),
                    _ => self.connection.push(message),
                }
            }
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
