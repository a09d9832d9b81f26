//! `pinion-detokenizer`: started by the launcher, never by hand.

use pinion_config::Exit;
use pinion_detokenizer::{Detokenizer, serve};
use pinion_protocol::Role;
use pinion_text::TextCodec;
use pinion_worker::Session;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut session = match Session::attach(Role::Detokenizer) {
        Ok(session) => session,
        Err(error) => {
            eprintln!("pinion-detokenizer: {error}");
            return ExitCode::from(Exit::System.code());
        }
    };
    let codec = match TextCodec::load(&session.config.model_dir) {
        Ok(codec) => codec,
        Err(error) => return session.fail(&error.to_string(), Exit::Model.code().into()),
    };
    let summary = format!("{} tokens", codec.vocab_size());
    let (eos, tables) = (session.config.model.eos, serve::slot_tables(&session));
    let detokenizer = Detokenizer::new(codec, eos, tables, serve::record_bytes_max(&session));
    session.ready(&summary);
    serve::serve(session, detokenizer)
}
