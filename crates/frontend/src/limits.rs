//! Fixed limits of the HTTP side. What an operator may change is in the config; what every role must agree
//! on is in `pinion_protocol::limits`.

pub use pinion_api::limits::{CONTENT_PARTS_MAX, QUOTED_BYTES_MAX, TOOL_CALLS_MAX, TOOLS_MAX};
use std::time::Duration;

/// Open connections, at most; the next one takes the place of the one that is idle longest.
pub const CONNECTIONS_MAX: usize = 16_384;
/// Descriptors that connections leave free, an eighth of the process's limit within these bounds: for the links to
/// roles that come back, and for refusals.
pub const DESCRIPTOR_RESERVE_MIN: u64 = 8;
/// See [`DESCRIPTOR_RESERVE_MIN`].
pub const DESCRIPTOR_RESERVE_MAX: u64 = 64;
/// A connection that is refused has this long to send its request, and as long to take the answer.
pub const LAST_ANSWER_TIME_MAX: Duration = Duration::from_millis(100);
/// Connections that end this way at a time without holding up the next one.
pub const LAST_ANSWERS_MAX: usize = 4;
/// Bytes of a request's head.
pub const HEADER_BYTES_MAX: usize = 16 << 10;
/// Header fields of one request.
pub const HEADERS_MAX: usize = 64;
/// When this many connections fewer are open than there were, the memory that they leave goes back to the system ...
pub const TRIM_CONNECTIONS: usize = 1024;
/// ... after this time, in which others may end too.
pub const TRIM_DELAY: Duration = Duration::from_secs(1);
/// Length of a client's `X-Request-Id` that is echoed.
pub const REQUEST_ID_BYTES_MAX: usize = 128;
/// Length of a browser's list of header fields that is echoed in the answer to a preflight.
pub const PREFLIGHT_FIELDS_BYTES_MAX: usize = 1024;
/// Seconds for which a browser may remember the answer to a preflight.
pub const PREFLIGHT_MAX_AGE_S: u32 = 600;
/// Bytes of a request's tools, as JSON.
pub const TOOLS_BYTES_MAX: usize = 256 << 10;
/// Calls of an answer that is forced to have some: a model that adds calls without end would fill its context.
pub const FORCED_CALLS_MAX: usize = 16;
/// Documents of one chat.
pub const DOCUMENTS_MAX: usize = 1024;
/// Bytes of the name of a chat template.
pub const TEMPLATE_NAME_BYTES_MAX: usize = 64;
/// Names that a request gives its chat template.
pub const TEMPLATE_KWARGS_MAX: usize = 64;
/// Bytes of those and their values, as JSON.
pub const TEMPLATE_KWARGS_BYTES_MAX: usize = 64 << 10;
/// Bytes of the name of a field that is ignored, as the answer shows it.
pub const IGNORED_NAME_BYTES_MAX: usize = 64;
/// Bytes of all of them together, about.
pub const IGNORED_NAMES_BYTES_MAX: usize = 1024;
/// Texts of one field of a request to a model that pools, as OpenAI has it for `input`.
pub const INPUTS_MAX: usize = 2048;
/// Texts of one request that are under way at a time, for each sequence that a step may have: while some are computed,
/// the next ones are encoded.
pub const TEXTS_PER_ROW: usize = 2;
/// Bytes of the vectors of all requests of one process, and of the answers that are written of them.
pub const VECTORS_BYTES_MAX: usize = 256 << 20;
/// Items of a kept response's input that are shown at a time, where a client does not say it.
pub const INPUT_ITEMS_DEFAULT: usize = 20;
/// The most that it can ask for, as OpenAI has it.
pub const INPUT_ITEMS_MAX: usize = 100;
/// Pause of the accept loop when the system is out of descriptors.
pub const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// Time between two warnings about a failing accept.
pub const ACCEPT_WARNING_PERIOD: Duration = Duration::from_secs(10);
/// Unacknowledged data kills a connection after this time: the peer is gone without a FIN.
pub const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);
/// After an early refusal the rest of the body is thrown away for this long, so that the answer is not lost
/// in a connection reset ...
pub const DISCARD_TIME_MAX: Duration = Duration::from_secs(2);
/// ... or until this many bytes.
pub const DISCARD_BYTES_MAX: usize = 256 << 20;
/// Deaths and returns of roles that `/stats` still shows.
pub const INCIDENTS_MAX: usize = 32;
/// What a refused client is told to wait, in seconds.
pub const RETRY_AFTER_S: u32 = 1;
/// A role whose heartbeat is older than this is stuck. Long prefill steps on small machines stay below it.
pub const HEARTBEAT_AGE_MAX: Duration = Duration::from_secs(10);
/// The same of the launcher, whose loop turns twenty times a second.
pub const LAUNCHER_AGE_MAX: Duration = Duration::from_secs(3);
/// Where two turns of the loop are further apart, this process has stood still, and the time between them counts for
/// no wait. The launcher times heartbeats anew then.
pub const OWN_PAUSE: Duration = Duration::from_secs(1);
/// Time between two looks at what only time can tell (an engine that finished without its text, a drain
/// deadline).
pub const TICK: Duration = Duration::from_millis(100);
/// How long to sleep while records wait for room in a ring.
pub const BACKLOG_WAIT: Duration = Duration::from_millis(1);
/// An operator's order is carried out in this time, or the client is told that it was not.
pub const ORDER_TIMEOUT: Duration = Duration::from_secs(5);
/// Orders of one frontend under way at a time.
pub const ORDERS_MAX: usize = 8;
/// Time between two lines about the load.
pub const LOAD_LOG_PERIOD: Duration = Duration::from_secs(10);
/// Time between two samples of what rates of load are made from ...
pub const LOAD_SAMPLE_PERIOD: Duration = Duration::from_secs(1);
/// ... and how far they go back.
pub const LOAD_WINDOW: Duration = Duration::from_secs(10);
/// A request whose engine has finished gets its last text within this time, or it is lost.
pub const LAST_TEXT_GRACE: Duration = Duration::from_secs(5);
/// From the death of a role to the start of its successor: the longest back-off, and time for the launcher.
pub const RESTART_PAUSE_MAX: Duration = Duration::from_secs(10);
/// A request that resumed after a death and got no token in this time delays suspects no longer.
pub const PROBATION_MAX: Duration = Duration::from_secs(10);
/// Part of the drain deadline kept for writing the error events of what did not finish.
pub const DRAIN_RESERVE: Duration = Duration::from_millis(250);
/// Part of it kept for the end of the process after the last spans.
pub const LAST_SPANS_RESERVE: Duration = Duration::from_millis(100);
/// Time in which the last spans can be sent. The launcher waits for longer.
pub const LAST_SPANS_TIME_MAX: Duration = Duration::from_secs(1);
/// Ended requests whose spans wait for the thread that sends them.
pub const TRACE_QUEUE_REQUESTS_MAX: usize = 1024;
/// Texts of one request whose stages become spans.
pub const TRACE_SEQUENCES_MAX: usize = 16;
/// A batch of spans is sent when it has this many, or a request's more ...
pub const TRACE_BATCH_SPANS: usize = 512;
/// ... or when its first one has waited this long.
pub const TRACE_BATCH_TIME: Duration = Duration::from_secs(1);
/// A collector has taken a batch in this time, or the attempt counts as failed.
pub const TRACE_POST_TIME_MAX: Duration = Duration::from_secs(10);
/// Attempts at a batch that may be sent again ...
pub const TRACE_ATTEMPTS_MAX: u32 = 3;
/// ... the pause before the second of them, which doubles before each further one ...
pub const TRACE_BACKOFF: Duration = Duration::from_secs(1);
/// ... and the longest that a collector can ask for.
pub const TRACE_RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// Time between two looks, in such a pause, whether the process ends.
pub const TRACE_END_LOOK: Duration = Duration::from_millis(100);
/// Bytes of a collector's answer.
pub const TRACE_ANSWER_BYTES_MAX: usize = 64 << 10;
/// Time between two lines about spans that were dropped.
pub const TRACE_WARNING_PERIOD: Duration = Duration::from_secs(60);
/// Bytes of a request's `tracestate` that its spans pass on, as W3C asks for at least.
pub const TRACE_STATE_BYTES_MAX: usize = 512;
/// Members of it, as W3C has it.
pub const TRACE_STATE_MEMBERS_MAX: usize = 32;
/// Records taken from one inbox before the loop looks at the others.
pub const RECORDS_PER_TURN_MAX: usize = 256;
/// First size of a stream's output buffer; it holds some twenty chunks.
pub const STREAM_BUFFER_BYTES: usize = 4 << 10;
/// What a piece of text counts at least towards the bound on what a client leaves unread: its frame is some ten times
/// as large. One turn of the loop brings a stream some [`RECORDS_PER_TURN_MAX`] pieces at most, and the lowest bound
/// holds as many.
pub const UNREAD_BYTES_MIN: usize = 16;
/// Bytes of scores that may wait for their answer, over all of its choices. Its JSON is some four times as large.
pub const SCORES_BYTES_MAX: usize = 32 << 20;
/// Bytes of scores in one chunk, about: it takes less than a millisecond to write.
pub const SCORES_PER_CHUNK_BYTES_MAX: usize = 32 << 10;
/// Bytes of large whole answers of one process that their clients have not taken yet.
pub const WHOLE_ANSWERS_BYTES_MAX: usize = 512 << 20;
/// First capacity of a request's list of ids; a longer list grows by doubling.
pub const IDS_CAPACITY_MAX: usize = 1024;
/// Bodies above this are read on a thread beside the one that serves the streams ...
pub const INLINE_BODY_BYTES_MAX: usize = 32 << 10;
/// ... and take this many bytes of the process together, at most, until they are requests ...
pub const BODIES_BYTES_MAX: usize = 128 << 20;
/// ... on this many threads.
pub const BODY_THREADS_MAX: usize = 1;
/// Threads that write answers of more bytes than that.
pub const ANSWER_THREADS_MAX: usize = 1;
