//! Starts the real processes and looks at them from outside, as a client and an operator would.
//!
//! The kit: [`Server`] runs `target/<profile>/pinion serve` and owns what it leaves behind, [`Connection`] and
//! [`Events`] speak HTTP/1.1 and server-sent events (`pinion_client`'s, and badly where a test wants that),
//! [`Oracle`] knows the text that the fake model must give, [`Metrics`] reads `/metrics`. The tests in `tests/`
//! have one theme per file. Nothing here knows how the service works inside, and nothing of the service
//! depends on this crate.
//!
//! Every wait has a deadline, [`PATIENCE`] unless a test says otherwise. Deadlines are only there so that a
//! hang is a failure: nothing asserts how fast anything is.

mod answer;
mod bystander;
mod collector;
mod events;
mod folder;
mod http;
mod hub;
mod kv_events;
mod log;
mod memory;
mod metrics;
mod oracle;
mod port;
mod process;
mod server;
mod stub_gpu;
mod wait;

pub use answer::{Answer, Api, End, Usage};
pub use bystander::{beside_a_stream, check_refusal};
pub use collector::{Collector, Mood, TakenSpan};
pub use events::{Event, Events};
pub use folder::{Folder, demo_model, fake_model, fixture_model};
pub use http::{Connection, Response};
pub use hub::{COMMIT, Hub, Seen, Trouble};
pub use kv_events::{KvBatch, KvEvent, KvSubscriber, kv_replay};
pub use memory::{RegionKind, RingWord, SharedRegion};
pub use metrics::Metrics;
pub use oracle::{Oracle, continued};
pub use pinion_client::{Framing, Head};
pub use pinion_random::Random;
pub use port::free_port;
pub use process::{Process, cpus_allowed, descriptor_count, is_alive, kill};
pub use server::{Ended, Server, launcher_binary, run_binary_to_end, run_to_end, run_under_to_end};
pub use stub_gpu::{StubDriver, StubObject};
pub use wait::{PATIENCE, wait_until};

pub use nix::sys::signal::Signal;
