//! A bound for the roles that run what a model's folder says: templates, normalizers, decoders. One step of a template
//! can ask for any amount of memory, and no library here counts it; the process's own limit does.

use pinion_config::Config;
use pinion_os::heap;
use pinion_protocol::status::{EXIT_MEMORY_LIMIT, Gauge};
use pinion_protocol::{Peer, Role};
use pinion_shm::page::Page;
use std::sync::OnceLock;

/// Of this process, for the moment in which nothing can be allocated any more.
static PAGE: OnceLock<Page> = OnceLock::new();

/// Limits this process, if `me` is such a role, for good.
pub(crate) fn enter(me: Peer, config: &Config, status: &Page) {
    if !matches!(me.role, Role::Tokenizer | Role::Detokenizer) {
        return;
    }
    PAGE.get_or_init(|| status.clone());
    if let Err(error) = heap::limit(config.text_memory_bytes_max, exhausted) {
        tracing::warn!(%me, %error, "cannot limit this role's memory: a chat template or normalizer may take all of the machine's");
    }
}

/// Tells the others by the page and the exit code why this process ends: an allocation cannot fail in another way.
fn exhausted() {
    if let Some(page) = PAGE.get() {
        page.add(Gauge::MemoryLimitHits as usize, 1);
    }
    heap::exit_now(EXIT_MEMORY_LIMIT);
}
