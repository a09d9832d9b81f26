//! `pinion-tokenizer`: started by the launcher, never by hand.

use pinion_config::Exit;
use pinion_protocol::Role;
use pinion_text::{ChatRenderer, TextCodec};
use pinion_tokenizer::{Tokenizer, serve};
use pinion_worker::Session;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut session = match Session::attach(Role::Tokenizer) {
        Ok(session) => session,
        Err(error) => {
            eprintln!("pinion-tokenizer: {error}");
            return ExitCode::from(Exit::System.code());
        }
    };
    let codec = match TextCodec::load(&session.config.model_dir) {
        Ok(codec) => codec,
        Err(error) => return session.fail(&error.to_string(), Exit::Model.code().into()),
    };
    let chat = match ChatRenderer::load(&session.config.model_dir) {
        Ok(chat) => chat,
        Err(error) => return session.fail(&error.to_string(), Exit::Model.code().into()),
    };
    let (tokens, rows) = (codec.vocab_size(), session.config.model.vocab_size);
    if tokens > rows {
        tracing::warn!(
            tokens,
            rows,
            "the tokenizer has tokens that the model has not; prompts with them are refused"
        );
    }
    let form = if chat.has_template() { "the model's chat template" } else { "plain chat lines" };
    let summary = format!("{tokens} tokens, context {}, {form}", session.config.max_model_len);
    let tokenizer = Tokenizer::new(codec, chat, serve::limits(&session));
    session.ready(&summary);
    serve::serve(session, &tokenizer)
}
