//! The typed control channel between the launcher and one role, over `ipc-channel`; payloads are bincode.
//!
//! `ipc-channel` is right here (typed ends that can be moved, end of file on death) and wrong for tokens: its
//! `send` can block and each receive allocates. So control messages are few, the launcher keeps count of
//! what a role has not yet taken, and a role looks only when the count on its status page has changed.

use crate::channel::EdgeEnd;
use ipc_channel::TryRecvError;
use ipc_channel::ipc::{
    self, IpcBytesReceiver, IpcBytesSender, IpcOneShotServer, IpcReceiver, IpcSender, bytes_channel,
};
use pinion_protocol::control::{FromRole, ToRole};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;

/// What a role sends through the one-shot server: the launcher's ends of a pair of channels.
#[derive(Serialize, Deserialize)]
struct Ends {
    to_role: IpcBytesSender,
    from_role: IpcBytesReceiver,
    /// For the ends of data edges, if those are channels.
    edges: Option<IpcSender<EdgeEnd>>,
}

/// The name under which one role may connect once.
pub struct Rendezvous {
    server: IpcOneShotServer<Ends>,
    name: String,
}

impl Rendezvous {
    /// Listens. The socket's name lives in the temporary folder until the role has connected or this value
    /// is dropped.
    pub fn new() -> io::Result<Rendezvous> {
        let (server, name) = IpcOneShotServer::new()?;
        Ok(Rendezvous { server, name })
    }

    /// What the role needs to connect.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the connection. Call it only after the role has said on the descriptor socket that it has
    /// connected: until then it would block.
    pub fn accept(self) -> io::Result<LauncherEnd> {
        let (_, ends) = self.server.accept().map_err(io::Error::other)?;
        Ok(LauncherEnd { to_role: ends.to_role, from_role: ends.from_role, edges: ends.edges })
    }
}

/// The launcher's end.
pub struct LauncherEnd {
    to_role: IpcBytesSender,
    from_role: IpcBytesReceiver,
    edges: Option<IpcSender<EdgeEnd>>,
}

impl LauncherEnd {
    /// Sends one message. May block when the role has hundreds unread; the caller keeps count.
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
    /// `with_edges`: data edges are channels too, whose ends the launcher will send.
    pub(crate) fn connect(name: &str, with_edges: bool) -> io::Result<RoleEnd> {
        let (to_role, from_launcher) = bytes_channel()?;
        let (to_launcher, from_role) = bytes_channel()?;
        let server = IpcSender::connect(name.to_owned())?;
        let (edges_in, edges) = with_edges.then(ipc::channel).transpose()?.unzip();
        server.send(Ends { to_role, from_role, edges: edges_in }).map_err(io::Error::other)?;
        Ok(RoleEnd { to_launcher, from_launcher, edges })
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
