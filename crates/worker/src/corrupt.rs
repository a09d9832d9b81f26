//! Corrupt edges of a role: reported to the launcher, which replaces them, and in the health page.

use crate::launcher_link::LauncherLink;
use crate::links::Links;
use pinion_protocol::status::Gauge;
use pinion_shm::page::Page;

/// How many edges that requests need were found corrupt and have not been replaced yet, as the status page says.
#[derive(Default)]
pub(crate) struct CorruptEdges {
    count: usize,
}

impl CorruptEdges {
    /// Reports each corrupt edge once. A look at a few words where there is none.
    pub(crate) fn report(&mut self, links: &mut Links, status: &Page, launcher: &LauncherLink) {
        let count = links.corrupt_count();
        if count != self.count {
            self.count = count;
            status.set(Gauge::CorruptEdges as usize, count as u64);
        }
        while let Some(report) = links.next_report() {
            launcher.send(&report);
        }
    }
}
