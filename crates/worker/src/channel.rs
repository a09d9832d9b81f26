//! The slow transport: a data edge over `ipc-channel`, the control of an ablation (`--ipc channel`).
//!
//! One message holds all records of one publish. It is wrong for tokens, which is what it is here to show: a `send`
//! may block when the reader is slow, every receive allocates, and the writer cannot know whether the reader sleeps, so
//! every publish rings.

use ipc_channel::TryRecvError;
use ipc_channel::ipc::{IpcBytesReceiver, IpcBytesSender};
use pinion_protocol::Peer;
use pinion_shm::doorbell::Doorbell;
use pinion_shm::ring::Record;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;

/// Bytes before each record of a message: length as u32, kind as u16, little-endian.
const HEADER_BYTES: usize = 6;

/// An end of a data edge on its way to the role that uses it.
#[derive(Serialize, Deserialize)]
pub enum EdgeEnd {
    /// To read what `from` sends.
    Read {
        /// The writer.
        from: Peer,
        /// Its end.
        receiver: IpcBytesReceiver,
    },
    /// To send to `to`.
    Write {
        /// The reader.
        to: Peer,
        /// Its end.
        sender: IpcBytesSender,
    },
    /// The role has this end already.
    Unchanged,
}

/// Why nothing more comes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChannelFault {
    /// The writer is gone.
    Abandoned,
    /// What came does not divide into records.
    Torn,
}

/// The last message and how far it has been read.
#[derive(Default)]
struct Taken {
    message: Vec<u8>,
    at: usize,
}

pub(crate) struct ChannelReader {
    receiver: IpcBytesReceiver,
    taken: RefCell<Taken>,
    sequence: u64,
}

impl ChannelReader {
    pub(crate) fn new(receiver: IpcBytesReceiver) -> ChannelReader {
        ChannelReader { receiver, taken: RefCell::default(), sequence: 0 }
    }

    /// Bytes of records at hand; takes the next message if the last one is read.
    pub(crate) fn used_bytes(&self) -> usize {
        self.fill().map_or(0, |()| {
            let taken = self.taken.borrow();
            taken.message.len() - taken.at
        })
    }

    fn fill(&self) -> Result<(), ChannelFault> {
        let mut taken = self.taken.borrow_mut();
        if taken.at < taken.message.len() {
            return Ok(());
        }
        match self.receiver.try_recv() {
            Ok(message) => *taken = Taken { message, at: 0 },
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::IpcError(_)) => return Err(ChannelFault::Abandoned),
        }
        Ok(())
    }

    pub(crate) fn next(&mut self) -> Result<Option<Record<'_>>, ChannelFault> {
        self.fill()?;
        let taken = self.taken.get_mut();
        let rest = &taken.message[taken.at..];
        if rest.is_empty() {
            return Ok(None);
        }
        let record = rest.split_first_chunk::<4>().and_then(|(len, rest)| {
            let (kind, rest) = rest.split_first_chunk::<2>()?;
            Some((u16::from_le_bytes(*kind), rest.get(..u32::from_le_bytes(*len) as usize)?))
        });
        let Some((kind, payload)) = record else { return Err(ChannelFault::Torn) };
        taken.at += HEADER_BYTES + payload.len();
        self.sequence += 1;
        Ok(Some(Record { kind, sequence: self.sequence, payload }))
    }
}

pub(crate) struct ChannelWriter {
    sender: IpcBytesSender,
    doorbell: Doorbell,
    staged: Vec<u8>,
}

impl ChannelWriter {
    pub(crate) fn new(sender: IpcBytesSender, doorbell: Doorbell) -> ChannelWriter {
        ChannelWriter { sender, doorbell, staged: Vec::new() }
    }

    pub(crate) fn push(&mut self, kind: u16, payload: &[u8]) {
        self.staged.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        self.staged.extend_from_slice(&kind.to_le_bytes());
        self.staged.extend_from_slice(payload);
    }

    pub(crate) fn staged_bytes(&self) -> usize {
        self.staged.len()
    }

    /// Sends what is staged. A reader that is gone loses it, as with a ring: its successor gets new ends.
    pub(crate) fn publish(&mut self) {
        if self.staged.is_empty() {
            return;
        }
        if let Err(error) = self.sender.send(&self.staged) {
            tracing::debug!(%error, "the reader of a channel is gone");
        }
        self.staged.clear();
        self.doorbell.ring();
    }

    pub(crate) fn into_doorbell(self) -> Doorbell {
        self.doorbell
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipc_channel::ipc::bytes_channel;

    #[test]
    fn records_of_several_publishes_come_out_in_order() {
        let (sender, receiver) = bytes_channel().unwrap();
        let doorbell = Doorbell::create().unwrap();
        let mut writer = ChannelWriter::new(sender, doorbell);
        let mut reader = ChannelReader::new(receiver);
        assert!(reader.next().unwrap().is_none());
        let sent: Vec<(u16, Vec<u8>)> =
            (0..40u16).map(|i| (i, vec![i as u8; usize::from(i) * 9_000])).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (index, (kind, payload)) in sent.iter().enumerate() {
                    writer.push(*kind, payload);
                    if index % 3 == 2 {
                        writer.publish();
                    }
                }
                writer.publish();
            });
            let mut got = Vec::new();
            while got.len() < sent.len() {
                if let Some(record) = reader.next().unwrap() {
                    got.push((record.kind, record.payload.to_vec()));
                    assert_eq!(record.sequence, got.len() as u64);
                }
            }
            assert!(got == sent, "records differ");
        });
        drop(writer);
        assert_eq!(reader.next(), Err(ChannelFault::Abandoned), "a writer that is gone is told");
    }

    #[test]
    fn a_record_that_is_cut_short_is_an_error() {
        for cut in [1, 5, 7] {
            let (sender, receiver) = bytes_channel().unwrap();
            let mut message = 3u32.to_le_bytes().to_vec();
            message.extend([9, 0, 1, 2, 3]);
            sender.send(&message[..cut]).unwrap();
            assert_eq!(ChannelReader::new(receiver).next(), Err(ChannelFault::Torn), "cut at {cut}");
        }
    }
}
