//! The whole service in one thread, under a seed and a virtual clock.
//!
//! [`run`] starts the launcher's own [`Service`](pinion_launcher::serve::Service), attaches each role over the socket
//! that the launcher gives it, and from then on chooses by the seed which loop turns next: the launcher's, a role's, or
//! a client's. The loops, rings, slots, control messages and the launcher's part in a death are those of the product;
//! only sleeping, sockets of clients and the model are left out. The model is the fake one, so what each client must
//! get is known (`oracle`). Between two turns the seed may end a role, stop it for a while, or have a client stop
//! reading or leave. A run whose clients all have their ends is checked for what must be left: no slot, no KV block, no
//! record.
//!
//! Not simulated: what happens within one turn of a loop (loom has the rings), wake-ups (`shm/tests/wake.rs`), HTTP.

mod check;
mod client;
mod clock;
mod coverage;
mod host;
mod observer;
mod oracle;
mod plan;
mod request;
mod role;
mod world;

pub use coverage::Coverage;
pub use plan::Plan;
pub use world::{Failure, Report, run};
