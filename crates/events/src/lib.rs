//! The events role: changes of the engine's prefix cache in, KV events over ZeroMQ out.
//!
//! [`publisher::Publisher`] keeps a copy of the cache and makes the messages, [`names`] names blocks, [`zmtp`] is the
//! protocol on a connection as bytes, `connection` a connection, and [`serve`] the loop around them. The format and its
//! source stand in docs/design/0018-kv-events.md. No request depends on this role: it dies and comes back, and its
//! subscribers are told everything anew. Start at [`serve`].

mod asker;
pub mod batch;
mod connection;
pub mod names;
mod notices;
pub mod publisher;
mod readers;
pub mod serve;
mod snapshots;
mod subscriber;
mod tree;
pub mod zmtp;

pub use serve::live;
