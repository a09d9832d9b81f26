//! The routes of models that pool: embeddings, scores, rankings. Where the served model generates text, each ends with a
//! refusal that no client repeats.
//!
//! A text becomes a request that generates nothing and whose outcome is a vector. Texts that are more than the free
//! slots, or than one answer may have choices, follow in waves.

use crate::admission::{Limits, Texts, admit_embed, admit_rerank, admit_score, of_input};
use crate::answers::errors::Refusal;
use crate::http::app::App;
use crate::http::body::AnswerBody;
use crate::http::generate::{ignored, origin, outcomes, unexpected};
use crate::http::intake::{discard, read, read_body, weighed};
use crate::http::routes::{Arrival, whole};
use crate::requests::claim::claim;
use crate::requests::outgoing::Job;
use crate::requests::request::{Form, Outcome};
use crate::requests::ticket::Ticket;
use crate::route::Route;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use pinion_api::vectors::{Head, cosine, embeddings, finish, ranking, scores};
use pinion_config::Pooling;
use pinion_os::clock;
use pinion_protocol::limits::CHOICES_MAX;
use pinion_protocol::{Fault, Sampling};
use std::rc::Rc;

/// Answers a request of these routes.
pub(crate) async fn serve(
    app: &Rc<App>,
    arrival: Arrival,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Refusal> {
    let Some(pooling) = app.limits.pooling.clone() else {
        discard(request.into_body());
        return Err(refusal(app, arrival.route));
    };
    match arrival.route {
        Route::Embeddings => embed(app, &arrival, request, pooling).await,
        Route::Score => score(app, &arrival, request).await,
        Route::Rerank => rerank(app, &arrival, request).await,
        _ => {
            discard(request.into_body());
            Err(refusal(app, arrival.route))
        }
    }
}

/// What is said on a route that the served model is not for.
fn refusal(app: &App, route: Route) -> Refusal {
    let (gives, code) = match route {
        Route::Embeddings => ("embeddings", "no_embeddings"),
        Route::Rerank | Route::Score => ("scores", "no_pooling"),
        Route::Classify => ("classes", "no_pooling"),
        _ => ("vectors", "no_pooling"),
    };
    let pools = app.limits.pooling.is_some();
    Refusal::NotPooling { model: app.limits.model.clone(), gives, code, pools }
}

async fn embed(
    app: &Rc<App>,
    arrival: &Arrival,
    request: Request<Incoming>,
    pooling: Pooling,
) -> Result<Response<AnswerBody>, Refusal> {
    let body = read_body(app, request.into_body()).await?;
    let admit = {
        let pooling = pooling.clone();
        move |body: &[u8], limits: &Limits| admit_embed(body, limits, &pooling)
    };
    let asked = read(app, body, admit).await?;
    let (head, encoding, dimensions) = (head(app, "embd"), asked.encoding, asked.dimensions);
    let write = move |mut made: Vec<Vec<f32>>, tokens| {
        made.iter_mut().for_each(|values| finish(values, dimensions, pooling.normalize));
        embeddings(&head, &made, encoding, tokens)
    };
    let answered = answer(app, arrival, asked.texts, write).await;
    answered.map_err(|refusal| match refusal {
        Refusal::Fault(fault) => Refusal::Fault(of_input(fault)),
        other => other,
    })
}

async fn score(
    app: &Rc<App>,
    arrival: &Arrival,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Refusal> {
    let body = read_body(app, request.into_body()).await?;
    let asked = read(app, body, admit_score).await?;
    let (head, first_count) = (head(app, "score"), asked.first_count);
    let write = move |made: Vec<Vec<f32>>, tokens| scores(&head, &compared(&made, first_count), tokens);
    answer(app, arrival, asked.texts, write).await
}

async fn rerank(
    app: &Rc<App>,
    arrival: &Arrival,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Refusal> {
    let body = read_body(app, request.into_body()).await?;
    let asked = read(app, body, admit_rerank).await?;
    let (head, documents, top) = (head(app, "rerank"), asked.documents, asked.top);
    let write = move |made: Vec<Vec<f32>>, tokens| {
        ranking(&head, &compared(&made, 1), documents.as_deref(), top, tokens)
    };
    answer(app, arrival, asked.texts, write).await
}

/// The cosines between the first vectors, or the only one, and those that follow them.
fn compared(made: &[Vec<f32>], first_count: usize) -> Vec<f32> {
    let (first, second) = made.split_at(first_count);
    first.iter().cycle().zip(second).map(|(one, other)| cosine(one, other)).collect()
}

fn head(app: &App, prefix: &str) -> Head {
    let id = format!("{prefix}-{}", app.numbers.id());
    Head { id, created_s: clock::unix_s(), model: app.limits.model.clone() }
}

/// Has each text made a vector, and the answer written of all. `write` also gets the number of their tokens.
async fn answer(
    app: &Rc<App>,
    arrival: &Arrival,
    texts: Texts,
    write: impl FnOnce(Vec<Vec<f32>>, u64) -> Vec<u8> + Send + 'static,
) -> Result<Response<AnswerBody>, Refusal> {
    let ignored = ignored(app, &texts.ignored);
    let Texts { prompts, truncation, priority, user, .. } = texts;
    let claim = claim(&app.settings.fairness, arrival.key, user.as_deref(), priority);
    let sampling = Box::new(Sampling { max_tokens: Some(0), ..Sampling::default() });
    let mut made = Vec::with_capacity(prompts.len());
    let (mut prompts, mut tokens, mut wave) = (prompts.into_iter(), 0, Vec::new());
    while prompts.len() > 0 {
        // The slots of the wave before are free.
        wave.clear();
        let free = app.ledger.borrow().slots_total() - app.ledger.borrow().slots_used();
        for prompt in prompts.by_ref().take(free.clamp(1, CHOICES_MAX)) {
            let job = Job::Generate {
                claim,
                sampling: sampling.clone(),
                prompt,
                truncation,
                stop: Vec::new(),
                include_stop: false,
                marks: false,
                special: false,
            };
            let begun = Ticket::begin(&app.ledger, origin(arrival), job, Form::Vector(None));
            let ticket = begun.inspect_err(|_| wave.iter().for_each(Ticket::withdraw))?;
            wave.push(ticket);
        }
        let ends = outcomes(&wave).await.inspect_err(|_| wave.iter().for_each(Ticket::withdraw))?;
        for end in ends {
            let Outcome::Vector(values, prompt_tokens) = end else { return Err(unexpected()) };
            tokens += u64::from(prompt_tokens);
            made.push(values);
        }
    }
    let bytes: usize = made.iter().map(|values| size_of_val(values.as_slice())).sum();
    let body = weighed(app, bytes, move |_| Ok::<_, Fault>(write(made, tokens))).await?;
    let mut response = whole(StatusCode::OK, "application/json", AnswerBody::Whole(body.into(), wave));
    response.headers_mut().extend(ignored);
    Ok(response)
}
