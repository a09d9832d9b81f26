//! What this process is doing, recorded as it happens: into its ring of spans, and as NVTX ranges if a tool listens.
//!
//! With both off it costs a branch. One thread has one recorder; [`Recorder::record`] takes times that the loop has
//! read anyway, so that a step costs no more clock reads than it must.

use pinion_os::clock;
use pinion_os::nvtx::Nvtx;
use pinion_protocol::spans::SpanName;
use pinion_shm::region::Region;
use pinion_shm::spans::{Span, SpanWriter};
use std::ffi::CString;

/// Records the spans of one thread.
#[derive(Default)]
pub struct Recorder {
    ring: Option<SpanWriter<Region>>,
    nvtx: Option<Nvtx>,
}

impl Recorder {
    /// Into `ring` and to the tool, where there are such.
    pub fn new(ring: Option<SpanWriter<Region>>, nvtx: Option<Nvtx>) -> Recorder {
        Recorder { ring, nvtx }
    }

    /// Whether spans are kept.
    pub fn records(&self) -> bool {
        self.ring.is_some()
    }

    /// Begins a range of this thread, for the tool only.
    pub fn push(&self, name: SpanName) {
        if let Some(nvtx) = &self.nvtx
            && let Some(range) = name.range()
        {
            nvtx.push(range);
        }
    }

    /// Ends the innermost range.
    pub fn pop(&self) {
        if let Some(nvtx) = &self.nvtx {
            nvtx.pop();
        }
    }

    /// Records a span that is recognised only at its end; the tool gets a mark at its end, which
    /// says how long it was. Allocates, so only for what is rare.
    pub fn record_late(&self, name: SpanName, begin_ns: u64, end_ns: u64, arguments: [u64; 2]) {
        self.record(name, begin_ns, end_ns, arguments);
        if let Some(nvtx) = &self.nvtx {
            let ms = end_ns.saturating_sub(begin_ns) as f64 / 1e6;
            let text = CString::new(format!("{}: {ms:.1} ms until here", name.name()));
            nvtx.mark(&text.expect("names hold no zero"));
        }
    }

    /// Keeps a span that has ended.
    pub fn record(&self, name: SpanName, begin_ns: u64, end_ns: u64, arguments: [u64; 2]) {
        if let Some(ring) = &self.ring {
            let duration_ns = end_ns.saturating_sub(begin_ns);
            ring.write(Span { name: name.word(), begin_ns, duration_ns, arguments });
        }
    }

    /// Begins a span: a range for the tool, and the time. 0 if nothing is kept.
    pub fn begin(&self, name: SpanName) -> u64 {
        self.push(name);
        if self.ring.is_some() { clock::now_ns() } else { 0 }
    }

    /// Ends what [`Recorder::begin`] began.
    pub fn end(&self, name: SpanName, begin_ns: u64, arguments: [u64; 2]) {
        if self.ring.is_some() {
            self.record(name, begin_ns, clock::now_ns(), arguments);
        }
        self.pop();
    }
}
