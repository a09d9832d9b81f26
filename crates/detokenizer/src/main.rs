//! `pinion-detokenizer`: started by the launcher, never by hand.

use pinion_os::heap::Heap;
use pinion_protocol::Role;

/// Its memory is limited: a folder's template or tokenizer may ask for any amount.
#[global_allocator]
static HEAP: Heap = Heap;

fn main() -> std::process::ExitCode {
    pinion_worker::process(Role::Detokenizer, pinion_detokenizer::live)
}
