//! The routes of models that pool: embeddings, scores, rankings. Where the served model generates text, each ends with
//! a refusal that no client repeats.
//!
//! Each text gets its vector in [`crate::http::window`]; what is made of the vectors is in [`pinion_api::vectors`].

use crate::admission::{Limits, Texts, admit_embed, admit_rerank, admit_score, renamed};
use crate::answers::errors::Refusal;
use crate::http::access_log::PooledTokens;
use crate::http::app::App;
use crate::http::body::AnswerBody;
use crate::http::budget::Share;
use crate::http::generate::ignored;
use crate::http::intake::{discard, read, read_body, written};
use crate::http::routes::{Arrival, whole};
use crate::http::window::{Done, Failed, vectors};
use crate::route::Route;
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use pinion_api::vectors::{Comparison, Head, Pairing, embeddings, finish, ranking, scores};
use pinion_config::Pooling;
use pinion_os::clock;
use pinion_protocol::Fault;
use std::rc::Rc;

/// Bytes of one score in an answer, about.
const SCORE_BYTES: usize = 64;

/// Said where a model that pools would answer.
const MODELS_THAT_POOL: &str = "ask a service whose model pools: `pinion serve` with a folder of \
                                sentence-transformers, or with --pooling last";
/// Said where no model would.
const ROUTES_THAT_POOL: &str = "the routes of models that pool are /v1/embeddings, /v1/score and /v1/rerank";

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
        Route::Score => score(app, &arrival, request, pooling.width).await,
        Route::Rerank => rerank(app, &arrival, request, pooling.width).await,
        _ => {
            discard(request.into_body());
            Err(refusal(app, arrival.route))
        }
    }
}

/// What is said on a route that the served model is not for.
fn refusal(app: &App, route: Route) -> Refusal {
    let (gives, code, hint) = match route {
        Route::Embeddings => ("embeddings", "no_embeddings", MODELS_THAT_POOL),
        Route::Rerank | Route::Score => ("scores", "no_pooling", MODELS_THAT_POOL),
        Route::Classify => ("classes", "no_pooling", ROUTES_THAT_POOL),
        _ => ("raw vectors", "no_pooling", ROUTES_THAT_POOL),
    };
    Refusal::NotPooling { model: app.limits.model.clone(), gives, code, hint }
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
    let (count, encoding, dimensions) = (asked.texts.prompts.len(), asked.encoding, asked.dimensions);
    let number_bytes = size_of::<f32>() + encoding.number_bytes();
    let share = app.vectors.take(count * pooling.width as usize * number_bytes, "input")?;
    let (head, ignored) = (head(app, "embd"), ignored(app, &asked.texts.ignored));
    let mut made: Vec<Vec<f32>> = vec![Vec::new(); count];
    let take = |index: usize, mut values: Vec<f32>| {
        finish(&mut values, dimensions, pooling.normalize);
        made[index] = values;
    };
    let done = vectors(app, arrival, asked.texts, pooling.width, take).await;
    let done = done.map_err(|failed| named(failed, |index| place("input", count, index)))?;
    let tokens = done.prompt_tokens;
    let bytes = made.iter().map(Vec::len).sum::<usize>() * encoding.number_bytes();
    let write = move || embeddings(&head, made, encoding, tokens);
    respond(app, done, (bytes, Some(share)), ignored, write).await
}

async fn score(
    app: &Rc<App>,
    arrival: &Arrival,
    request: Request<Incoming>,
    width: u32,
) -> Result<Response<AnswerBody>, Refusal> {
    let body = read_body(app, request.into_body()).await?;
    let asked = read(app, body, admit_score).await?;
    let (head, ignored) = (head(app, "score"), ignored(app, &asked.texts.ignored));
    let (pairing, count) = (asked.pairing, asked.texts.prompts.len());
    let place = move |index: usize| match (pairing, index) {
        (Pairing::FirstWithRest, 0) => "text_1".to_owned(),
        (Pairing::FirstWithRest, _) => place("text_2", count - 1, index - 1),
        (Pairing::Neighbours, _) if index.is_multiple_of(2) => place("text_1", count / 2, index / 2),
        (Pairing::Neighbours, _) => place("text_2", count / 2, index / 2),
    };
    let (cosines, done) = compare(app, arrival, (asked.texts, pairing), width, place).await?;
    let (bytes, tokens) = (cosines.len() * SCORE_BYTES, done.prompt_tokens);
    respond(app, done, (bytes, None), ignored, move || scores(&head, &cosines, tokens)).await
}

async fn rerank(
    app: &Rc<App>,
    arrival: &Arrival,
    request: Request<Incoming>,
    width: u32,
) -> Result<Response<AnswerBody>, Refusal> {
    let body = read_body(app, request.into_body()).await?;
    let asked = read(app, body, admit_rerank).await?;
    let (head, ignored) = (head(app, "rerank"), ignored(app, &asked.texts.ignored));
    let (documents, top) = (asked.documents, asked.top);
    let place = |index: usize| match index.checked_sub(1) {
        None => "query".to_owned(),
        Some(document) => format!("documents[{document}]"),
    };
    let compared = compare(app, arrival, (asked.texts, Pairing::FirstWithRest), width, place).await?;
    let (cosines, done) = compared;
    let tokens = done.prompt_tokens;
    let shown: usize = documents.iter().flatten().map(String::len).sum();
    let bytes = cosines.len() * SCORE_BYTES + shown;
    let write = move || ranking(&head, &cosines, documents.as_deref(), top, tokens);
    respond(app, done, (bytes, None), ignored, write).await
}

/// Has each text made a vector and compared as `pairing` says. `place` names a text by its index.
async fn compare(
    app: &App,
    arrival: &Arrival,
    (texts, pairing): (Texts, Pairing),
    width: u32,
    place: impl Fn(usize) -> String,
) -> Result<(Vec<f32>, Done), Refusal> {
    let count = texts.prompts.len();
    // Few vectors wait for the other one of their pair, but all may.
    let bytes = count * width as usize * size_of::<f32>();
    let _share = app.vectors.take(bytes, &place(count - 1))?;
    let mut comparison = Comparison::new(pairing, count);
    let take = |index: usize, values: Vec<f32>| comparison.take(index, values);
    let done = vectors(app, arrival, texts, width, take).await;
    let done = done.map_err(|failed| named(failed, place))?;
    Ok((comparison.into_scores(), done))
}

/// The name of a text: of a field with one text, or of one with a list of them.
fn place(field: &str, count: usize, index: usize) -> String {
    if count == 1 { field.to_owned() } else { format!("{field}[{index}]") }
}

/// The fault of a text in the words of its route, which has no prompts.
fn named(failed: Failed, place: impl Fn(usize) -> String) -> Refusal {
    renamed(failed.fault, &place(failed.index)).into()
}

fn head(app: &App, prefix: &str) -> Head {
    let id = format!("{prefix}-{}", app.numbers.id());
    Head { id, created_s: clock::unix_s(), model: app.limits.model.clone() }
}

/// The response with what `write` makes, which is about `bytes` long and keeps `share` until it is sent.
async fn respond(
    app: &App,
    done: Done,
    (bytes, share): (usize, Option<Share>),
    ignored: Option<(HeaderName, HeaderValue)>,
    write: impl FnOnce() -> Vec<u8> + Send + 'static,
) -> Result<Response<AnswerBody>, Refusal> {
    let answer = written(app, bytes, move |_| Ok::<_, Fault>(write())).await?;
    let answer = match share {
        Some(share) => share.hold(answer),
        None => answer.into(),
    };
    let mut response = whole(StatusCode::OK, "application/json", AnswerBody::Whole(answer, done.last));
    response.headers_mut().extend(ignored);
    response.extensions_mut().insert(PooledTokens(done.prompt_tokens));
    Ok(response)
}
