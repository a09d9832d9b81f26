//! HTTP: connections, heads and bodies, access rules, one handler for each route. Start at [`routes`].

mod access_log;
pub(crate) mod admin;
pub mod app;
mod auth;
pub mod body;
pub mod budget;
pub mod connections;
mod cors;
mod framing;
pub mod generate;
pub mod guard;
mod info;
pub mod intake;
mod invocations;
pub mod pages;
mod pooling;
mod props;
mod render;
mod root_path;
pub mod routes;
pub mod server;
mod stored;
mod timed_stream;
mod tokens;
mod translated;
mod window;
