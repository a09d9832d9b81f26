//! The typed control channel between the launcher and one role, over `ipc-channel`; payloads are bincode.
//!
//! `ipc-channel` is right here (typed ends that can be moved, end of file on death) and wrong for tokens: its
//! receive allocates. So control messages are few, the launcher keeps count of
//! what a role has not yet taken, and a role looks only when the count on its status page has changed.
//!
//! Launcher and role each get their ends as descriptors of plain socket pairs, which the launcher makes; the role's
//! come over its descriptor socket. So nothing listens, nothing has a name, and no process waits for a connection.

use crate::adopt::{Ends, adopt};
use crate::channel::EdgeEnd;
use ipc_channel::TryRecvError;
use ipc_channel::ipc::{IpcBytesReceiver, IpcBytesSender, IpcReceiver, IpcSender};
use pinion_os::fdpass;
use pinion_protocol::control::{FromRole, ToRole};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Makes the ends of one role: the launcher's, and the descriptors of the role's in the order in which it takes them.
/// `with_edges`: data edges are channels too, whose ends the launcher will send.
pub fn pair(with_edges: bool) -> io::Result<(LauncherEnd, Vec<OwnedFd>)> {
    // A full socket is an error and never a wait: these pairs do not block.
    let (to_role, from_launcher) = fdpass::pair()?;
    let (from_role, to_launcher) = fdpass::pair()?;
    let (edges_in, edges_out) = with_edges.then(fdpass::pair).transpose()?.unzip();
    let Ends { sender, receiver, edges } = adopt(to_role, from_role, edges_in)?;
    let mut theirs = vec![from_launcher, to_launcher];
    theirs.extend(edges_out);
    Ok((LauncherEnd { to_role: sender, from_role: receiver, edges }, theirs))
}

/// The launcher's end.
pub struct LauncherEnd {
    to_role: IpcBytesSender,
    from_role: IpcBytesReceiver,
    edges: Option<IpcSender<EdgeEnd>>,
}

impl LauncherEnd {
    /// Sends one message. Errors: the role is gone, or has hundreds unread; the caller keeps count.
    pub fn send(&self, message: &ToRole) -> io::Result<()> {
        self.to_role.send(&encode(message))
    }

    /// Hands over the end of a data edge; nothing to do for a role whose edges are rings.
    pub fn send_edge(&self, end: EdgeEnd) -> io::Result<()> {
        self.edges.as_ref().map_or(Ok(()), |edges| edges.send(end)).map_err(io::Error::other)
    }

    /// The next message, if one waits.
    pub fn next(&self) -> Option<FromRole> {
        next(&self.from_role).ok().flatten()
    }
}

/// The role's end.
pub(crate) struct RoleEnd {
    to_launcher: IpcBytesSender,
    from_launcher: IpcBytesReceiver,
    edges: Option<IpcReceiver<EdgeEnd>>,
}

impl RoleEnd {
    /// Takes the descriptors that [`pair`] made for the role.
    pub(crate) fn take(fds: Vec<OwnedFd>) -> io::Result<RoleEnd> {
        let mut fds = fds.into_iter();
        let (Some(from_launcher), Some(to_launcher)) = (fds.next(), fds.next()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its descriptors are missing"));
        };
        let Ends { sender, receiver, edges } = adopt(to_launcher, from_launcher, fds.next())?;
        Ok(RoleEnd { to_launcher: sender, from_launcher: receiver, edges })
    }

    /// The next end of a data edge; `None` if edges are rings.
    pub(crate) fn edge(&self, timeout: Duration) -> io::Result<Option<EdgeEnd>> {
        let Some(edges) = &self.edges else { return Ok(None) };
        edges.try_recv_timeout(timeout).map(Some).map_err(io::Error::other)
    }

    /// Sends one message; a launcher that is gone is not an error here, the kernel ends us too.
    pub(crate) fn send(&self, message: &FromRole) {
        if let Err(error) = self.to_launcher.send(&encode(message)) {
            tracing::warn!(%error, "launcher does not hear");
        }
    }

    /// The next message, if one waits. Errors: the launcher is gone, or sent what is not a message.
    pub(crate) fn next(&self) -> io::Result<Option<ToRole>> {
        next(&self.from_launcher)
    }
}

fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    bincode::serialize(message).expect("control messages hold only sized, finite data")
}

fn next<T: DeserializeOwned>(receiver: &IpcBytesReceiver) -> io::Result<Option<T>> {
    match receiver.try_recv() {
        Ok(bytes) => {
            let message = bincode::deserialize(&bytes);
            message.map(Some).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
        }
        Err(TryRecvError::Empty) => Ok(None),
        Err(TryRecvError::IpcError(error)) => Err(io::Error::other(error)),
    }
}
