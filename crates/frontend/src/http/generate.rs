//! Generation, the routes that need every other role.
//!
//! A streaming answer begins when its first bytes are there, so that whatever fails before them still gets its
//! own status, and the head leaves together with the first chunk.

use crate::admission::unknown;
use crate::admission::{Admitted, Api, Shown, admit};
use crate::answers::calls::Calls;
use crate::answers::errors::Refusal;
use crate::answers::extras::Extras;
use crate::answers::openai::{Head, Shape};
use crate::answers::prompt_part::PromptPart;
use crate::answers::sse;
use crate::answers::thoughts::Thoughts;
use crate::answers::whole::Whole;
use crate::http::access_log::ChoicesPerPrompt;
use crate::http::app::App;
use crate::http::body::{AnswerBody, End, Stream};
use crate::http::intake::{Received, read, read_body, written};
use crate::http::routes::{Arrival, whole};
use crate::observe::otlp::TracedSequence;
use crate::observe::timeline::Timeline;
use crate::requests::claim::claim;
use crate::requests::ledger::Origin;
use crate::requests::outgoing::Job;
use crate::requests::request::{AnswerPlan, Form, Outcome, WaitingScores};
use crate::requests::siblings::Siblings;
use crate::requests::ticket::Ticket;
use crate::route::Route;
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use pinion_os::clock;
use pinion_protocol::detokenizer_inbox::TextForm;
use pinion_protocol::spans::{SpanName, request_word};
use pinion_protocol::tokenizer_inbox::{Prompt, Truncation};
use pinion_protocol::{Fault, FaultCode, Sampling};
use pinion_random::nth;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;

/// `POST /v1/completions`, `/v1/chat/completions` and `/generate`.
pub(crate) async fn serve(
    app: &Rc<App>,
    arrival: Arrival,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Refusal> {
    let body = read_body(app, request.into_body()).await?;
    answer(app.clone(), arrival, body).await
}

/// Answers a body that has arrived whole.
///
/// # Errors
/// What the client is told instead.
pub async fn answer(app: Rc<App>, arrival: Arrival, body: Received) -> Result<Response<AnswerBody>, Refusal> {
    let api = match arrival.route {
        Route::Completions => Api::Completions,
        Route::Chat => Api::Chat,
        _ => Api::Generate,
    };
    let admission = Admission::new(&body);
    let seed = app.numbers.fresh_seed();
    let admitted = read(&app, body, move |body, limits| admit(api, body, limits, seed)).await;
    let admitted = admitted.inspect_err(|_| admission.record(&app, None))?;
    let shown = admitted.shown;
    let ignored = ignored(&app, &admitted.ignored);
    let echoes = if shown.echo { echoes(&app, &arrival, &admitted.prompts).await? } else { Vec::new() };
    let prompt_ids = if shown.token_ids { Some(prompt_ids(&app, &arrival, &admitted).await?) } else { None };
    let begun = begin_all(&app, &arrival, api, admitted, &echoes, prompt_ids);
    admission.record(&app, begun.as_ref().ok().and_then(|begun| begun.tickets.first()));
    let Begun { tickets, head, stream, choices_per_prompt } = begun?;
    let mut response = if stream {
        let silence = head.is_some().then_some(sse::KEEP_ALIVE);
        let end = head.filter(|_| tickets.len() > 1).map(|head| {
            let writer = sse::Writer::new(head, app.settings.fast_sse);
            End { writer, choices_per_prompt }
        });
        stream_answer(&app, tickets, silence, end).await?
    } else {
        whole_answer(&app, tickets, head, choices_per_prompt, shown).await?
    };
    response.headers_mut().extend(ignored);
    response.extensions_mut().insert(ChoicesPerPrompt(choices_per_prompt));
    Ok(response)
}

/// Counts the unknown fields. Gives the header field that names them, if there are any.
pub(crate) fn ignored(app: &App, ignored: &[String]) -> Option<(HeaderName, HeaderValue)> {
    app.metrics.ignored_fields.add(ignored.len() as u64);
    let names = HeaderValue::try_from(unknown::header(ignored)).ok();
    let names = names.filter(|names| !names.is_empty())?;
    Some((HeaderName::from_static("x-pinion-ignored-fields"), names))
}

/// When a body began to be read as a request, for the timeline.
pub(crate) struct Admission {
    begin_ns: u64,
    body_bytes: u64,
}

impl Admission {
    pub(crate) fn new(body: &[u8]) -> Admission {
        Admission { begin_ns: clock::now_ns(), body_bytes: body.len() as u64 }
    }

    /// It is a request now, or was refused.
    pub(crate) fn record(&self, app: &App, ticket: Option<&Ticket>) {
        let request = ticket.map_or(0, |ticket| request_word(ticket.request.borrow().facts.id));
        let (name, end_ns) = (SpanName::FrontendAdmit, clock::now_ns());
        app.recorder.record(name, self.begin_ns, end_ns, [request, self.body_bytes]);
    }
}

/// Requests that are on their way, and how their answer leaves.
struct Begun {
    tickets: Vec<Ticket>,
    head: Option<Head>,
    stream: bool,
    choices_per_prompt: usize,
}

fn begin_all(
    app: &App,
    arrival: &Arrival,
    api: Api,
    admitted: Admitted,
    echoes: &[String],
    prompt_ids: Option<Vec<Vec<u32>>>,
) -> Result<Begun, Fault> {
    let (stream, choices_per_prompt) = (admitted.stream, admitted.choices_per_prompt as usize);
    let (shown, asked) = (admitted.shown, admitted.sampling.prompt_logprobs.is_some());
    let style = shown.style;
    let (head, has_counts) = (head(app, api, admitted.include_usage), admitted.usage_in_chunks);
    let fast = app.settings.fast_sse;
    // best_of needs the scores also where the request does not want to see them.
    let asked_by = if shown.best.is_some() && shown.logprobs.is_none() { "best_of" } else { "logprobs" };
    let waiting = WaitingScores::asked_by(asked_by);
    let tickets = begin(app, arrival, admitted, |index, count| {
        let form = match head.as_ref().filter(|_| stream) {
            Some(head) if count > 1 => Form::Events(sse::Writer::part(head.clone(), fast, index)),
            Some(head) => Form::Events(sse::Writer::new(head.clone(), fast)),
            None if stream => Form::PlainStream,
            None => Form::Whole,
        };
        let prompt = index as usize / choices_per_prompt;
        let prompt_part = (asked || shown.echo).then(|| {
            let text = echoes.get(prompt).cloned().unwrap_or_default();
            PromptPart::new(text, asked, shown.logprobs.unwrap_or(0) as usize)
        });
        let extras = (prompt_ids.is_some() || has_counts).then(|| {
            let ids = prompt_ids.as_ref().and_then(|ids| ids.get(prompt)).cloned();
            Extras::new(ids, has_counts)
        });
        // The scores of all choices wait for a whole answer; each choice of a stream says its own.
        let waiting = if stream { WaitingScores::default() } else { waiting.clone() };
        AnswerPlan { prompt: prompt_part, extras, style, waiting, ..form.into() }
    })?;
    Ok(Begun { tickets, head, stream, choices_per_prompt })
}

/// The ids of prompts: texts and chats are encoded once more for it.
pub(crate) async fn prompt_ids(
    app: &App,
    arrival: &Arrival,
    of: &Admitted,
) -> Result<Vec<Vec<u32>>, Refusal> {
    let kept = of.truncation.kept(app.limits.max_model_len, of.sampling.max_tokens);
    let count = u32::try_from(kept).unwrap_or(u32::MAX);
    let truncation = match of.truncation {
        Truncation::Never => Truncation::Never,
        used if used.keeps_first() => Truncation::First(count),
        _ => Truncation::Last(count),
    };
    let mut all = Vec::with_capacity(of.prompts.len());
    for prompt in &of.prompts {
        all.push(match prompt {
            Prompt::Ids(ids) if of.truncation.keeps_first() => ids[..kept.min(ids.len())].to_vec(),
            Prompt::Ids(ids) => ids[ids.len().saturating_sub(kept)..].to_vec(),
            Prompt::Text(_) | Prompt::Bare(_) | Prompt::Chat(_) => {
                let origin = Origin { route: Route::Tokenize, ..origin(arrival) };
                let ticket =
                    Ticket::begin(&app.ledger, origin, Job::Encode(prompt.clone(), truncation), Form::Whole)?;
                let Outcome::Ids(ids) = outcome(&ticket).await? else { return Err(unexpected()) };
                ids
            }
        });
    }
    Ok(all)
}

/// The texts of prompts. Those of token ids are decoded first: then nothing of the answer waits for them.
async fn echoes(app: &App, arrival: &Arrival, prompts: &[Prompt]) -> Result<Vec<String>, Refusal> {
    let mut texts = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        texts.push(match prompt {
            Prompt::Text(text) | Prompt::Bare(text) => text.clone(),
            Prompt::Chat(_) => String::new(),
            Prompt::Ids(ids) => {
                let origin = Origin { route: Route::Detokenize, ..origin(arrival) };
                let ticket = Ticket::begin(&app.ledger, origin, Job::Decode(ids.clone()), Form::Whole)?;
                let Outcome::Decoded(text) = outcome(&ticket).await? else { return Err(unexpected()) };
                text
            }
        });
    }
    Ok(texts)
}

/// Takes a slot for each choice, in the order of their numbers: the first prompt's, then the second's. Either all
/// begin or none; tickets that are dropped here cancel their requests. `plan` gets a choice's number and their count;
/// tool calls and reasoning are added here.
pub(crate) fn begin(
    app: &App,
    arrival: &Arrival,
    admitted: Admitted,
    mut plan: impl FnMut(u32, usize) -> AnswerPlan,
) -> Result<Vec<Ticket>, Fault> {
    let Admitted {
        priority,
        user,
        sampling,
        prompts,
        truncation,
        choices_per_prompt,
        stop,
        form,
        timings,
        calls,
        reasoning,
        ..
    } = admitted;
    let claim = claim(&app.settings.fairness, arrival.key, user.as_deref(), priority);
    let count = prompts.len() * choices_per_prompt as usize;
    if count > 1 {
        app.ledger.borrow().check_room(count)?;
    }
    arrival.trace.iter().for_each(|trace| trace.asks(&sampling, choices_per_prompt));
    let (asked_unix_s, mut tickets) = (clock::unix_s(), Vec::with_capacity(count));
    app.metrics.choices_asked.observe_many(f64::from(choices_per_prompt), prompts.len() as u64);
    if let Some(max_tokens) = sampling.max_tokens {
        app.metrics.tokens_asked.observe_many(f64::from(max_tokens), count as u64);
    }
    for prompt in prompts {
        let siblings = Siblings::new(&app.metrics);
        // The answer to an empty text begins one.
        let continues =
            form.continues && !matches!(&prompt, Prompt::Text(text) | Prompt::Bare(text) if text.is_empty());
        let prompt = Rc::new(prompt);
        for place in 0..choices_per_prompt {
            let sampling =
                Box::new(Sampling { seed: choice_seed(sampling.seed, place), continues, ..sampling.clone() });
            let marks = reasoning.as_ref().is_some_and(|plan| plan.by_token);
            let (stop, form) = (stop.clone(), TextForm { marks, continues, ..form });
            let job = Job::Generate {
                claim,
                sampling,
                prompt: prompt.clone(),
                truncation,
                asked_unix_s,
                stop,
                form,
            };
            let index = u32::try_from(tickets.len()).unwrap_or(u32::MAX);
            let trace = arrival.trace.as_ref().map(|trace| TracedSequence::new(trace, index));
            let origin = Origin { timings, siblings: Some(siblings.clone()), trace, ..origin(arrival) };
            let plan = AnswerPlan {
                calls: calls.as_ref().map(|plan| Calls::new(plan, &app.numbers.id())),
                thoughts: reasoning.clone().map(Thoughts::new),
                ..plan(index, count)
            };
            let begun = Ticket::begin(&app.ledger, origin, job, plan);
            let ticket = begun.inspect_err(|_| tickets.iter().for_each(Ticket::withdraw))?;
            tickets.push(ticket);
        }
    }
    Ok(tickets)
}

/// The first choice of a prompt is what `n = 1` gives; the others' seeds follow from the same seed.
fn choice_seed(seed: u64, place: u32) -> u64 {
    if place == 0 { seed } else { nth(seed, u64::from(place)) }
}

fn head(app: &App, api: Api, include_usage: bool) -> Option<Head> {
    let (shape, prefix) = match api {
        Api::Completions => (Shape::Completions, "cmpl-"),
        Api::Chat => (Shape::Chat, "chatcmpl-"),
        Api::Generate => return None,
    };
    let id = format!("{prefix}{}", app.numbers.id());
    Some(Head { shape, id, created: clock::unix_s(), model: app.limits.model.clone(), include_usage })
}

pub(crate) fn origin(arrival: &Arrival) -> Origin {
    let Arrival { route, received_ns, .. } = *arrival;
    Origin {
        route,
        label: arrival.label.clone(),
        received_ns,
        timings: false,
        siblings: None,
        line: None,
        trace: None,
        continues: false,
    }
}

/// Waits for the first bytes or the outcome; an error before the first bytes were sent is a plain error. A stream
/// of events says `silence` when it has nothing to say for the keep-alive time, also at its beginning; bare text has
/// none.
pub(crate) async fn stream_answer(
    app: &App,
    tickets: Vec<Ticket>,
    silence: Option<&'static [u8]>,
    end: Option<End>,
) -> Result<Response<AnswerBody>, Refusal> {
    let begins = poll_fn(|context| {
        let mut begun = false;
        for ticket in &tickets {
            let mut request = ticket.request.borrow_mut();
            begun |= request.has_output() || request.outcome().is_some();
            request.wake_later(context);
        }
        if begun { Poll::Ready(()) } else { Poll::Pending }
    });
    let keep_alive = app.settings.keep_alive.zip(silence);
    let silence_ends = Instant::now() + keep_alive.map_or(Duration::ZERO, |(period, _)| period);
    match keep_alive {
        // Past it the answer begins with what is said in silence; see the body.
        Some(_) => drop(tokio::time::timeout_at(silence_ends, begins).await),
        None => begins.await,
    }
    if let Some(fault) = tickets.iter().find_map(Ticket::fault) {
        tickets.iter().for_each(Ticket::withdraw);
        return Err(fault.into());
    }
    let content_type =
        if silence.is_some() { "text/event-stream; charset=utf-8" } else { "text/plain; charset=utf-8" };
    let mut stream = match end {
        Some(end) => Stream::of_choices(tickets, end),
        None => Stream::new(tickets),
    };
    if let Some((period, said)) = keep_alive {
        stream = stream.keep_alive(period, silence_ends, said);
    }
    let mut response = whole(StatusCode::OK, content_type, AnswerBody::Stream(stream));
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

/// Waits for the outcome.
pub(crate) async fn outcome(ticket: &Ticket) -> Result<Outcome, Fault> {
    poll_fn(|context| {
        let mut request = ticket.request.borrow_mut();
        match request.outcome() {
            Some(Outcome::Failed(fault)) => Poll::Ready(Err(fault.clone())),
            Some(outcome) => Poll::Ready(Ok(outcome.clone())),
            None => {
                request.wake_later(context);
                Poll::Pending
            }
        }
    })
    .await
}

async fn whole_answer(
    app: &App,
    tickets: Vec<Ticket>,
    head: Option<Head>,
    choices_per_prompt: usize,
    shown: Shown,
) -> Result<Response<AnswerBody>, Refusal> {
    let ends = outcomes(&tickets).await.inspect_err(|_| tickets.iter().for_each(Ticket::withdraw))?;
    let (mut parts, mut bytes) = (Vec::with_capacity(ends.len()), 0);
    for (ticket, end) in tickets.iter().zip(&ends) {
        let Outcome::Text(ending, usage) = *end else { return Err(unexpected()) };
        let (part, more) = ticket.request.borrow_mut().take_part(ending, usage);
        parts.push(part);
        bytes += more;
    }
    let timeline = tickets.iter().filter_map(Ticket::timeline).max_by_key(Timeline::decode_ends_ns);
    let answer = Whole { head, parts, choices_per_prompt, shown, timeline };
    let (body, endings) = written(app, bytes, move |_| answer.write()).await?;
    for (ticket, ending) in tickets.iter().zip(endings) {
        ticket.request.borrow_mut().retell(ending);
    }
    let body = app.whole_answers.hold(body)?;
    let server_timing = timeline.and_then(|timeline| HeaderValue::try_from(timeline.server_timing()).ok());
    let mut response = whole(StatusCode::OK, "application/json", AnswerBody::Whole(body, tickets));
    if let Some(value) = server_timing {
        response.headers_mut().insert(HeaderName::from_static("server-timing"), value);
    }
    Ok(response)
}

/// Waits until every request has its outcome, or one has failed.
async fn outcomes(tickets: &[Ticket]) -> Result<Vec<Outcome>, Fault> {
    poll_fn(|context| {
        if let Some(fault) = tickets.iter().find_map(Ticket::fault) {
            return Poll::Ready(Err(fault));
        }
        let ends: Option<Vec<Outcome>> =
            tickets.iter().map(|ticket| ticket.request.borrow().outcome().cloned()).collect();
        match ends {
            Some(ends) => Poll::Ready(Ok(ends)),
            None => {
                tickets.iter().for_each(|ticket| ticket.request.borrow_mut().wake_later(context));
                Poll::Pending
            }
        }
    })
    .await
}

pub(crate) fn unexpected() -> Refusal {
    Fault::new(FaultCode::Internal, "a role answered with something else than was asked for").into()
}
