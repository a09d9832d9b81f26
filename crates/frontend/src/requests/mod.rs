//! Accepted requests: their slots, the records that carry them to the other roles and what comes back. Start at
//! [`ledger`].

pub(crate) mod claim;
pub mod ledger;
pub mod orders;
pub mod outgoing;
pub mod request;
pub mod shared_line;
pub mod siblings;
pub mod ticket;
