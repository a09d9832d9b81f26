//! The frontend role: HTTP in, text out.
//!
//! One thread, no locks: connections and the [`reactor`] are tasks of one tokio runtime. A body passes
//! [`admission`] (the only gate), takes a slot in the [`ledger`](requests::ledger), and goes to a tokenizer as a
//! record; deltas come back from a detokenizer and end up in the buffer of a [`request`](requests::request), which the
//! response's [`body`](http::body) hands to hyper. The frontend owns the truth of each request, the ids received so far
//! included; it never tokenizes and never blocks. Start reading at [`http::routes`], then [`requests::ledger`].

pub mod admission;
pub mod answers;
pub mod http;
pub mod limits;
pub mod observe;
mod openapi;
pub mod reactor;
pub mod requests;
pub mod route;
pub mod ui;

use admission::Limits;
use admission::tools::CallReading;
use http::app::{App, Numbers, Settings};
use http::budget::Budget;
use http::intake::Intake;
use observe::health::Health;
use observe::metrics::Metrics;
use observe::otlp::Exporter;
use pinion_api::responses::Store;
use pinion_config::{Config, Exit, ReasoningParser, ToolCallParser};
use pinion_os::clock;
use pinion_protocol::{Peer, Role};
use pinion_text::chat::{Described, Given};
use pinion_text::codec::LoadError;
use pinion_text::tools::CallFormat;
use pinion_worker::Session;
use reactor::{Reactor, SessionOutlet};
use requests::ledger::{Ledger, Patience, Setup};
use requests::orders::Orders;
use std::cell::{Cell, OnceCell, RefCell};
use std::process::ExitCode;
use std::rc::Rc;

/// The role's life: builds what connections share, then serves.
pub fn live(session: Session) -> ExitCode {
    let session = Rc::new(RefCell::new(session));
    let served = build(&session).and_then(|app| {
        let summary = summary(&session.borrow(), &app.limits);
        session.borrow_mut().ready(&summary);
        run(&session, app).map_err(|reason| (reason, Exit::System))
    });
    let Some(session) = Rc::into_inner(session).map(RefCell::into_inner) else { return Exit::System.into() };
    match served {
        Ok(Exit::Ok) => session.stop(),
        // Answers were cut: the launcher sees it in the exit code and ends with the same one.
        Ok(cut) => {
            session.stop();
            cut.into()
        }
        Err((reason, exit)) => session.fail(&reason, exit.code().into()),
    }
}

/// Builds what connections share from an attached session. The error is one line for the operator, and the exit code.
pub fn build(session: &Rc<RefCell<Session>>) -> Result<Rc<App>, (String, Exit)> {
    let outlet = Rc::new(RefCell::new(SessionOutlet(session.clone())));
    let session = session.borrow();
    let config = session.config();
    let index = session.me().index;
    let Some(table) = session.links.slot_table(index) else {
        return Err(("the launcher gave no slot table".to_owned(), Exit::System));
    };
    let metrics = Rc::new(Metrics::default());
    let setup = Setup {
        frontend: index,
        table: table.clone(),
        status: session.status.clone(),
        tokenizers: config.tokenizers,
        detokenizers: config.detokenizers,
        max_model_len: config.max_model_len,
        buffer_bytes_max: config.stream_buffer_bytes_max,
        resume: config.lifecycle.resume,
        patience: Patience::of(&config.lifecycle),
        recorder: session.recorder().clone(),
        clock: session.clock(),
    };
    let mut pages = session.links.pages.clone();
    pages.push((Peer::new(Role::Frontend, index), session.status.clone()));
    let seed = config.seed ^ u64::from(index) << 48 ^ u64::from(session.epoch()) << 32;
    let unusable = |error: LoadError| (error.to_string(), Exit::Model);
    let given = config.chat_template.as_ref().map(|given| Given { name: &given.name, text: &given.text });
    let template = Described::read(&config.model_dir, given).map_err(unusable)?;
    let exporter = exporter(config, index, &metrics)?;
    Ok(Rc::new(App {
        ledger: Rc::new(RefCell::new(Ledger::new(setup, outlet.clone(), metrics.clone()))),
        connections: Rc::default(),
        metrics,
        limits: Limits {
            model: config.served_model_name.clone(),
            vocab_size: config.model.vocab_size,
            max_model_len: config.max_model_len,
            calls: call_reading(config.tool_call_parser, &template),
            reasons: reasons(config.reasoning_parser, &template),
            defaults: config.sampling_defaults.clone(),
            strict_fields: config.strict_fields,
            pooling: config.pooling.clone(),
        },
        template,
        settings: Settings::new(config),
        health: Health { pages },
        topology: session.topology().clone(),
        numbers: Numbers::new(seed),
        orders: Orders::new(outlet, limits::ORDER_TIMEOUT),
        recorder: session.recorder().clone(),
        spans: session.links.spans.clone(),
        exporter,
        leaving: Cell::new(false),
        load: RefCell::default(),
        responses: Rc::new(RefCell::new(Store::new(config.responses.bytes_max, config.responses.ttl_s))),
        intake: Intake::new(limits::BODIES_BYTES_MAX),
        vectors: Budget::new(limits::VECTORS_BYTES_MAX),
        whole_answers: Budget::new(limits::WHOLE_ANSWERS_BYTES_MAX),
        started_unix_s: clock::unix_s(),
        docs: OnceCell::new(),
    }))
}

/// What sends spans, if they are sent.
fn exporter(config: &Config, index: u16, metrics: &Metrics) -> Result<Option<Rc<Exporter>>, (String, Exit)> {
    let Some(otlp) = &config.observe.otlp else { return Ok(None) };
    match Exporter::start(otlp, &config.served_model_name, index, metrics.spans.clone()) {
        Ok(exporter) => Ok(Some(exporter)),
        Err(error) => Err((format!("cannot start the thread that sends spans: {error}"), Exit::System)),
    }
}

/// How tool calls are read: as the operator says, else as the chat template shows. The template is read here and not
/// where the config is resolved, because that crate knows nothing of templates.
fn call_reading(parser: ToolCallParser, template: &Described) -> CallReading {
    match parser {
        ToolCallParser::Auto => template.calls.map_or(CallReading::Unknown, CallReading::Format),
        ToolCallParser::Hermes => CallReading::Format(CallFormat::Hermes),
        ToolCallParser::Llama3Json => CallReading::Format(CallFormat::Llama3Json),
        ToolCallParser::Mistral => CallReading::Format(CallFormat::Mistral),
        ToolCallParser::Qwen3Coder => CallReading::Format(CallFormat::Qwen3Coder),
        ToolCallParser::Pythonic => CallReading::Format(CallFormat::Pythonic),
        ToolCallParser::None => CallReading::AsText,
    }
}

/// Whether reasoning is told from answers: as the operator says, else as the chat template shows.
fn reasons(parser: ReasoningParser, template: &Described) -> bool {
    match parser {
        ReasoningParser::Auto => template.reasons,
        ReasoningParser::Think => true,
        ReasoningParser::None => false,
    }
}

/// One line for the operator.
pub fn summary(session: &Session, limits: &Limits) -> String {
    let config = session.config();
    let calls = match limits.calls {
        CallReading::Format(format) => format!("read as {}", format.name()),
        CallReading::AsText => "left in the text".to_owned(),
        CallReading::Unknown => "not known from the chat template".to_owned(),
    };
    let reasoning = if limits.reasons { "told from answers" } else { "not looked for" };
    format!(
        "model {}, {} request slots, bodies up to {} KiB, tool calls {calls}, reasoning {reasoning}",
        config.served_model_name,
        config.max_inflight,
        config.body_bytes_max >> 10
    )
}

/// Says once, at the first frontend, that strangers can reach a service that asks for no key.
fn warn_if_open(session: &Session) {
    let config = session.config();
    if session.me().index == 0 && config.api_keys.is_empty() && !config.host.is_loopback() {
        tracing::warn!(
            host = %config.host,
            "listening beyond loopback without --api-key: every client that reaches the port can use the service"
        );
    }
}

/// Serves until the launcher says stop. Says whether answers were cut by the drain deadline; the error is one
/// line for the operator.
pub fn run(session: &Rc<RefCell<Session>>, app: Rc<App>) -> Result<Exit, String> {
    warn_if_open(&session.borrow());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(limits::BODY_THREADS_MAX + limits::ANSWER_THREADS_MAX)
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))?;
    let tasks = tokio::task::LocalSet::new();
    let exit = tasks.block_on(&runtime, async { Reactor::new(session.clone(), app.clone()).run().await });
    if let Some(exporter) = &app.exporter {
        // Requests end with their connections, or have not ended.
        drop(tasks);
        app.ledger.borrow_mut().end_traces();
        exporter.finish();
    }
    exit
}
