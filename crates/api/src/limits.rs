//! Limits of what a body may hold, beside those that every role knows (`pinion_protocol::limits`).

/// Bytes of a client's value quoted in an error message.
pub const QUOTED_BYTES_MAX: usize = 60;
/// Parts of one message's content.
pub const CONTENT_PARTS_MAX: usize = 4096;
/// Tool calls of one message.
pub const TOOL_CALLS_MAX: usize = 128;
/// Tools of one request, as OpenAI has it.
pub const TOOLS_MAX: usize = 128;
