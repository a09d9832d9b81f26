//! How a descriptor becomes an end of an `ipc-channel`. The crate makes ends of its own only, or by a socket with a
//! name in the temporary folder; but it makes one of each descriptor that comes attached to a message. So a message
//! with ends is sent through the crate, taken off the wire, and put back on it with other descriptors attached: what is
//! received then holds the ends that were wanted. Nothing of this depends on how the crate writes its messages.

use ipc_channel::IpcError;
use ipc_channel::ipc::{
    self, IpcBytesReceiver, IpcBytesSender, IpcReceiver, IpcSender, OpaqueIpcSender, bytes_channel,
};
use pinion_os::{clock, fdpass};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// One process's ends of a control channel.
pub(crate) struct Ends<E> {
    pub(crate) sender: IpcBytesSender,
    pub(crate) receiver: IpcBytesReceiver,
    /// For the ends of data edges, if those are channels.
    pub(crate) edges: Option<E>,
}

/// The message. Its descriptors travel in the order of its fields.
#[derive(Serialize, Deserialize)]
struct Letter<E> {
    mark: String,
    /// The end that the letter is sent by.
    way: OpaqueIpcSender,
    sender: IpcBytesSender,
    receiver: IpcBytesReceiver,
    edges: Option<E>,
}

/// An end for data edges of which a letter can hold any.
pub(crate) trait EdgesEnd: Serialize + DeserializeOwned + Sized {
    fn any() -> io::Result<Self>;
}

impl<T: Serialize + DeserializeOwned> EdgesEnd for IpcSender<T> {
    fn any() -> io::Result<Self> {
        ipc::channel().map(|(sender, _)| sender)
    }
}

impl<T: Serialize + DeserializeOwned> EdgesEnd for IpcReceiver<T> {
    fn any() -> io::Result<Self> {
        ipc::channel().map(|(_, receiver)| receiver)
    }
}

/// Makes ends of these sockets: to send to, to receive from and, if there is one, for the ends of data edges.
pub(crate) fn adopt<E: EdgesEnd>(
    sender: OwnedFd,
    receiver: OwnedFd,
    edges: Option<OwnedFd>,
) -> io::Result<Ends<E>> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mark = format!("pinion-ends-{}-{count}-{}", std::process::id(), clock::now_ns());
    let (way, letters) = ipc::channel::<Letter<E>>()?;
    fdpass::retry_while_too_many(|| {
        let placeholder = Letter {
            mark: mark.clone(),
            way: way.clone().to_opaque(),
            sender: bytes_channel()?.0,
            receiver: bytes_channel()?.1,
            edges: edges.as_ref().map(|_| E::any()).transpose()?,
        };
        way.send(placeholder).map_err(|error| match error {
            IpcError::Io(error) => error,
            error => io::Error::other(error),
        })
    })?;
    let on_the_wire = fdpass::receiver_of(mark.as_bytes())?;
    let taken = fdpass::recv(on_the_wire.as_fd())?.ok_or_else(changed)?;
    let ours: Vec<OwnedFd> = [sender, receiver].into_iter().chain(edges).collect();
    let Some(way_fd) = taken.fds.first().filter(|_| taken.fds.len() == 1 + ours.len()) else {
        return Err(changed());
    };
    let attached: Vec<_> = std::iter::once(way_fd.as_fd()).chain(ours.iter().map(AsFd::as_fd)).collect();
    fdpass::send(way_fd.as_fd(), &taken.bytes, &attached)?;
    let letter = letters.try_recv().map_err(io::Error::other)?;
    if letter.mark != mark {
        return Err(changed());
    }
    Ok(Ends { sender: letter.sender, receiver: letter.receiver, edges: letter.edges })
}

fn changed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "ipc-channel does not send what it was given")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::EdgeEnd;
    use std::time::Duration;

    type Launchers = Ends<IpcSender<EdgeEnd>>;
    type Roles = Ends<IpcReceiver<EdgeEnd>>;

    #[test]
    fn two_plain_sockets_become_the_ends_of_one_channel() {
        for with_edges in [false, true] {
            let (to_role, from_launcher) = fdpass::pair().unwrap();
            let (from_role, to_launcher) = fdpass::pair().unwrap();
            let (edges_in, edges_out) = with_edges.then(|| fdpass::pair().unwrap()).unzip();
            let launcher: Launchers = adopt(to_role, from_role, edges_in).unwrap();
            let role: Roles = adopt(to_launcher, from_launcher, edges_out).unwrap();
            launcher.sender.send(b"down").unwrap();
            role.sender.send(b"up").unwrap();
            assert_eq!(role.receiver.try_recv().unwrap(), b"down");
            assert_eq!(launcher.receiver.try_recv().unwrap(), b"up");
            assert!(role.receiver.try_recv().is_err(), "nothing else waits");
            assert_eq!((launcher.edges.is_some(), role.edges.is_some()), (with_edges, with_edges));
            if let (Some(edges_in), Some(edges_out)) = (launcher.edges, role.edges) {
                edges_in.send(EdgeEnd::Unchanged).unwrap();
                let end = edges_out.try_recv_timeout(Duration::from_secs(60)).unwrap();
                assert!(matches!(end, EdgeEnd::Unchanged));
            }
            drop(launcher.sender);
            let Err(ipc_channel::TryRecvError::IpcError(_)) = role.receiver.try_recv() else {
                panic!("the other end is gone")
            };
        }
    }

    /// Threads that take their ends at once, as under `--in-process`, each get their own.
    #[test]
    fn ends_are_not_mixed_up_between_threads() {
        std::thread::scope(|scope| {
            for number in 0..4_u8 {
                scope.spawn(move || {
                    for _ in 0..20 {
                        let (here, there) = fdpass::pair().unwrap();
                        let (back, forth) = fdpass::pair().unwrap();
                        let ours: Launchers = adopt(here, back, None).unwrap();
                        let theirs: Launchers = adopt(forth, there, None).unwrap();
                        ours.sender.send(&[number]).unwrap();
                        assert_eq!(theirs.receiver.try_recv().unwrap(), [number]);
                    }
                });
            }
        });
    }

    /// A launcher must not wait for a role that does not read.
    #[test]
    fn a_full_channel_is_an_error_and_no_wait() {
        let (here, _there) = fdpass::pair().unwrap();
        let (back, _forth) = fdpass::pair().unwrap();
        let ours: Launchers = adopt(here, back, None).unwrap();
        let sent = (0..100_000).take_while(|_| ours.sender.send(&[0; 64]).is_ok()).count();
        assert!((64..100_000).contains(&sent), "{sent} messages");
    }
}
