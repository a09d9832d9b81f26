//! The loop: records from the frontends in turn, answers to the engine and back.

use crate::answer::{Answer, Limits, Tokenizer, cancelled, request_id};
use pinion_config::Exit;
use pinion_os::clock;
use pinion_protocol::frontend_inbox::{self, Reject};
use pinion_protocol::names::{Counter, Stage};
use pinion_protocol::spans::{SpanName, request_word};
use pinion_protocol::status::{Gauge, Reading};
use pinion_protocol::tokenizer_inbox::TokenizerRecord;
use pinion_protocol::{Fault, FaultCode, Peer, RequestId, Role, engine_inbox};
use pinion_text::chat::Given;
use pinion_text::{ChatRenderer, TextCodec};
use pinion_worker::{ControlEvent, Overflow, Pace, Session};
use std::process::ExitCode;
use std::time::Duration;

/// Bytes that may wait outside the ring to one reader before no more records are taken that it would get something for:
/// all if it is the engine, its own if it is a frontend. The frontends' rings fill instead, and admission sees it.
const BACKLOG_BYTES_MAX: usize = 256 << 10;
/// How long to wait for a full ring before looking again.
const BACKLOG_WAIT: Duration = Duration::from_millis(1);
/// How long to sleep when there is nothing to do; a record ends the sleep at once.
const IDLE_WAIT: Duration = Duration::from_millis(100);
const ENGINE: Peer = Peer::new(Role::Engine, 0);

/// The limits that a session's config and rings set.
pub fn limits(session: &Session) -> Limits {
    let answers =
        session.topology().edges.iter().filter(|e| e.from == session.me() && e.to.role == Role::Frontend);
    Limits {
        max_model_len: session.config().max_model_len,
        vocab_size: session.config().model.vocab_size,
        max_new_tokens: session.config().sampling_defaults.max_new_tokens,
        answer_bytes_max: answers.map(|edge| edge.payload_bytes_max()).min().unwrap_or(0),
    }
}

/// The role's life: loads codec and chat template, then serves.
pub fn live(mut session: Session) -> ExitCode {
    session.reads(Reading::Tokenizer);
    let codec = match TextCodec::load(&session.config().model_dir) {
        Ok(codec) => codec,
        Err(error) => return session.fail(&error.to_string(), Exit::Model.code().into()),
    };
    session.reads(Reading::ChatTemplate);
    let given = session.config().chat_template.as_ref();
    let given = given.map(|given| Given { name: &given.name, text: &given.text });
    let chat = match ChatRenderer::load_given(&session.config().model_dir, given) {
        Ok(chat) => chat,
        Err(error) => return session.fail(&error.to_string(), Exit::Model.code().into()),
    };
    let (tokens, rows) = (codec.vocab_size(), session.config().model.vocab_size);
    if tokens > rows {
        tracing::warn!(
            tokens,
            rows,
            "the tokenizer has tokens that the model has not; prompts with them are refused"
        );
    }
    for reason in codec.ignored() {
        tracing::warn!("tokenizer_config.json: {reason}");
    }
    if let Some(names) = chat.names_without_default() {
        let names = names.join(", ");
        tracing::warn!(
            names,
            "the model has no default chat template: a chat names one in chat_template, or --chat-template gives one"
        );
    }
    let form = if chat.has_template() { "the model's chat template" } else { "plain chat lines" };
    let summary = format!("{tokens} tokens, context {}, {form}", session.config().max_model_len);
    let tokenizer =
        Tokenizer::new(codec, chat, limits(&session)).with_grammars(session.config().model.stop_ids);
    session.reads(Reading::Nothing);
    session.ready(&summary);
    Server::new(session, tokenizer).run()
}

/// The role with its links.
pub struct Server {
    session: Session,
    tokenizer: Tokenizer,
    /// The answer at hand; used again for the next.
    payload: Vec<u8>,
}

impl Server {
    /// A tokenizer that serves over the links of `session`.
    pub fn new(session: Session, tokenizer: Tokenizer) -> Server {
        Server { session, tokenizer, payload: Vec::new() }
    }

    /// Serves until the launcher says stop.
    fn run(mut self) -> ExitCode {
        loop {
            let pace = self.turn();
            if !self.session.rest(pace) {
                return self.session.stop();
            }
        }
    }

    /// One turn of the loop: control messages, then one record from each frontend.
    pub fn turn(&mut self) -> Pace {
        let Server { session, tokenizer, payload } = self;
        while let Some(event) = session.control() {
            match event {
                ControlEvent::Stop => return Pace::Stop,
                // What is in the rings is still answered; the launcher stops this role after the frontends.
                ControlEvent::Drain { .. } => session.draining(),
                // Links are replaced already, and nothing is kept here between two records. What a dead
                // frontend's ring still holds belongs to no client any more.
                ControlEvent::Open
                | ControlEvent::Leaving
                | ControlEvent::PeerLost(..)
                | ControlEvent::PeerReady(_)
                | ControlEvent::Admin { .. }
                | ControlEvent::AdminDone { .. }
                | ControlEvent::InboxReplaced { .. }
                | ControlEvent::OutboxReplaced { .. }
                | ControlEvent::SlotsReplaced { .. } => {}
            }
        }
        session.links.publish();
        if !is_behind(session, ENGINE) && take_turn(session, tokenizer, payload) {
            return Pace::Go;
        }
        if session.links.outboxes.iter().any(|outbox| outbox.backlog_bytes() > BACKLOG_BYTES_MAX) {
            // The records that are left unread would end any other wait at once.
            Pace::Pause(BACKLOG_WAIT)
        } else {
            Pace::Wait(if session.links.has_backlog() { BACKLOG_WAIT } else { IDLE_WAIT })
        }
    }
}

fn is_behind(session: &mut Session, reader: Peer) -> bool {
    session.links.outbox(reader).is_some_and(|outbox| outbox.backlog_bytes() > BACKLOG_BYTES_MAX)
}

/// One record from each frontend that takes its answers. False if there was none.
fn take_turn(session: &mut Session, tokenizer: &Tokenizer, payload: &mut Vec<u8>) -> bool {
    let mut taken = false;
    for index in 0..session.links.inboxes.len() {
        let from = session.links.inboxes[index].from;
        if is_behind(session, from) {
            continue;
        }
        let inbox = &mut session.links.inboxes[index];
        let Some(record) = inbox.next() else { continue };
        taken = true;
        match TokenizerRecord::decode(record.kind, record.payload) {
            Ok(record) if is_from(&record, from, session) => {
                let (id, recorder) = (request_id(&record), session.recorder().clone());
                let begin_ns = recorder.begin(SpanName::Tokenize);
                take_record(session, tokenizer, record, payload);
                let counter = Counter::PromptTokens as usize;
                let tokens = session.links.slot(id).map_or(0, |slot| slot.counter(id.generation, counter));
                recorder.end(SpanName::Tokenize, begin_ns, [request_word(id), tokens]);
            }
            Ok(_) => session.links.inboxes[index].condemn("request of a submission"),
            Err(error) => session.links.inboxes[index].condemn(&error.to_string()),
        }
    }
    taken
}

fn is_from(record: &TokenizerRecord, from: Peer, session: &Session) -> bool {
    let id = request_id(record);
    id.frontend == from.index && session.links.is_possible(id)
}

fn take_record(session: &mut Session, tokenizer: &Tokenizer, record: TokenizerRecord, payload: &mut Vec<u8>) {
    let id = request_id(&record);
    stamp(session, id, Stage::TokenizeBegin);
    if !session.links.is_current(id) {
        // No answer is expected: the slot is closed or has another request.
        session.status.add(Gauge::StaleRecords as usize, 1);
        return;
    }
    // Cancellation is looked at before the work, and again before the engine hears of the request.
    let mut answer = Answer::Reject(cancelled(id));
    if !is_cancelled(session, id) {
        answer = tokenizer.answer(record, clock::unix_s() as i64);
    }
    if matches!(answer, Answer::Admit(_)) && is_cancelled(session, id) {
        answer = Answer::Reject(cancelled(id));
    }
    if let Answer::Admit(admit) = &answer
        && let Some(slot) = session.links.slot(id)
    {
        let (generation, counter) = (id.generation, Counter::PromptTokens as usize);
        slot.set_counter(generation, counter, u64::from(admit.prompt_tokens));
        let found = tokenizer.found(admit.sampling.reasoning);
        slot.set_counter(generation, Counter::Reasoning as usize, found.to_word());
    }
    send(session, id, &answer, payload);
    session.links.publish();
}

fn send(session: &mut Session, id: RequestId, answer: &Answer, payload: &mut Vec<u8>) {
    let frontend = Peer::new(Role::Frontend, id.frontend);
    let (to, kind) = match answer {
        Answer::Admit(admit) => {
            admit.encode(payload);
            session.status.add(Gauge::Encoded as usize, 1);
            (ENGINE, engine_inbox::kind::ADMIT)
        }
        Answer::Encoded(encoded) => {
            encoded.encode(payload);
            session.status.add(Gauge::Encoded as usize, 1);
            (frontend, frontend_inbox::kind::ENCODED)
        }
        Answer::Decoded(decoded) => {
            decoded.encode(payload);
            (frontend, frontend_inbox::kind::DECODED)
        }
        Answer::Reject(reject) => {
            reject.encode(payload);
            (frontend, frontend_inbox::kind::REJECT)
        }
    };
    stamp(session, id, Stage::TokenizeEnd);
    if push(session, to, kind, payload).is_ok() {
        return;
    }
    // The reader has stopped reading or the record can't fit its ring: the request still gets its end.
    let fault = Fault::new(FaultCode::Unavailable, format!("{to} does not take requests; try again"));
    Reject { id, fault }.encode(payload);
    if push(session, frontend, frontend_inbox::kind::REJECT, payload).is_err() {
        tracing::error!(%id, %to, "could not answer a request: its frontend has stopped reading");
    }
}

fn push(session: &mut Session, to: Peer, kind: u16, payload: &[u8]) -> Result<(), Overflow> {
    session.links.outbox(to).ok_or(Overflow)?.send(kind, payload)
}

fn is_cancelled(session: &Session, id: RequestId) -> bool {
    session.links.slot(id).is_some_and(|slot| slot.state().cancelled)
}

/// Stamps the slot while it is this request's: a slot's next request must not inherit a time.
fn stamp(session: &Session, id: RequestId, stage: Stage) {
    if session.links.is_current(id)
        && let Some(slot) = session.links.slot(id)
    {
        slot.stamp(id.generation, stage as usize, session.now_ns());
    }
}
