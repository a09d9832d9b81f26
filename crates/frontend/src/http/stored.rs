//! Responses that are kept: `GET` and `DELETE /v1/responses/{id}`, their input items, and cancelling. Start at
//! [`serve`].

use crate::answers::errors::Refusal;
use crate::http::app::App;
use crate::http::body::AnswerBody;
use crate::http::intake::written;
use crate::http::routes::{Arrival, json};
use crate::limits::{INPUT_ITEMS_DEFAULT, INPUT_ITEMS_MAX, REQUEST_ID_BYTES_MAX};
use crate::route::{Route, kept_response};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use pinion_api::responses::input_items;
use pinion_os::clock;
use pinion_protocol::{Fault, FaultCode};
use serde_json::{Value, json as value};

/// The response that is asked for, and with which of the service's keys.
struct Named<'a> {
    id: &'a str,
    key: Option<usize>,
}

/// Answers what is asked of a response that is kept.
pub(crate) async fn serve(
    app: &App,
    arrival: &Arrival,
    request: &Request<Incoming>,
) -> Result<Response<AnswerBody>, Refusal> {
    let (id, _) = kept_response(request.uri().path()).unwrap_or_default();
    let (named, query) = (Named { id, key: arrival.key }, request.uri().query().unwrap_or_default());
    match arrival.route {
        Route::InputItems => items(app, &named, query).await,
        Route::CancelResponse => cancel(app, &named),
        _ if *request.method() == Method::DELETE => delete(app, &named),
        _ => get(app, &named, query),
    }
}

impl Named<'_> {
    fn unknown(&self) -> Refusal {
        Refusal::NoResponse(self.id.chars().take(REQUEST_ID_BYTES_MAX).collect())
    }
}

/// The conversation that a response ended, for one that goes on from it with `more` bytes. Together they are at most
/// what a body may have: rings are made for prompts of that size.
pub(crate) fn conversation(app: &App, id: &str, key: Option<usize>, more: usize) -> Result<String, Refusal> {
    const NAME: &str = "previous_response_id";
    let mut store = app.responses.borrow_mut();
    let kept = store.get(id, key, clock::unix_s()).map(|kept| kept.conversation());
    let kept = kept.ok_or_else(|| Refusal::NoPrevious(id.chars().take(REQUEST_ID_BYTES_MAX).collect()))?;
    let (bytes, most) = (kept.len() + more, app.settings.body_bytes_max);
    if bytes > most {
        let message = format!("the conversation has {bytes} bytes and may have {most}; send fewer items");
        let fault = Fault::new(FaultCode::ContextLengthExceeded, message);
        return Err(Fault { param: Some(NAME.to_owned()), ..fault }.into());
    }
    Ok(kept)
}

/// `GET /v1/responses/{id}`.
fn get(app: &App, named: &Named<'_>, query: &str) -> Result<Response<AnswerBody>, Refusal> {
    if query.split('&').any(|pair| pair == "stream=true") {
        return Err(
            Fault::field("stream", "a response that is kept is not streamed again; read it whole").into()
        );
    }
    let mut store = app.responses.borrow_mut();
    let kept = store.get(named.id, named.key, clock::unix_s()).ok_or_else(|| named.unknown())?;
    Ok(json(StatusCode::OK, kept.response.clone()))
}

/// `DELETE /v1/responses/{id}`.
fn delete(app: &App, named: &Named<'_>) -> Result<Response<AnswerBody>, Refusal> {
    if !app.responses.borrow_mut().delete(named.id, named.key, clock::unix_s()) {
        return Err(named.unknown());
    }
    let body = value!({"id": named.id, "object": "response", "deleted": true});
    Ok(json(StatusCode::OK, body.to_string()))
}

/// `POST /v1/responses/{id}/cancel`. A kept response is complete; one under way ends with its connection.
fn cancel(app: &App, named: &Named<'_>) -> Result<Response<AnswerBody>, Refusal> {
    get(app, named, "")?;
    let message = "only responses that are made in the background can be cancelled, and there are none here: \
                   a response under way is cancelled by closing its connection";
    Err(Fault::field("id", message).into())
}

/// `GET /v1/responses/{id}/input_items`, with `limit`, `order` and `after` in the query. A conversation may be as large
/// as a body.
async fn items(app: &App, named: &Named<'_>, query: &str) -> Result<Response<AnswerBody>, Refusal> {
    let page = Page::parse(query)?;
    let kept =
        app.responses.borrow_mut().get(named.id, named.key, clock::unix_s()).map(|kept| kept.input.clone());
    let input = kept.ok_or_else(|| named.unknown())?;
    let body = written(app, input.len(), move |_| page.of(input_items(&input))).await?;
    Ok(json(StatusCode::OK, body))
}

/// Which items are shown.
struct Page {
    limit: usize,
    is_descending: bool,
    after: Option<String>,
}

impl Page {
    /// The list as JSON.
    fn of(&self, mut items: Vec<Value>) -> Result<String, Fault> {
        if self.is_descending {
            items.reverse();
        }
        let id = |item: &Value| item["id"].as_str().unwrap_or_default().to_owned();
        let begin = match &self.after {
            None => 0,
            Some(after) => {
                let at = items.iter().position(|item| id(item) == *after);
                at.ok_or_else(|| Fault::field("after", "after must be the id of one of the items"))? + 1
            }
        };
        let left = items.len() - begin;
        let data: Vec<Value> = items.drain(begin..begin + left.min(self.limit)).collect();
        let body = value!({
            "object": "list",
            "first_id": data.first().map(id),
            "last_id": data.last().map(id),
            "has_more": left > self.limit,
            "data": data,
        });
        Ok(body.to_string())
    }

    fn parse(query: &str) -> Result<Page, Fault> {
        let mut page = Page { limit: INPUT_ITEMS_DEFAULT, is_descending: true, after: None };
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match (name, value) {
                ("limit", value) => {
                    let limit = value.parse().ok().filter(|limit| (1..=INPUT_ITEMS_MAX).contains(limit));
                    page.limit = limit.ok_or_else(|| {
                        Fault::field("limit", format!("limit must be an integer from 1 to {INPUT_ITEMS_MAX}"))
                    })?;
                }
                ("order", "asc") => page.is_descending = false,
                ("order", "desc") => page.is_descending = true,
                ("order", _) => return Err(Fault::field("order", "order must be asc or desc")),
                ("after", value) => page.after = Some(value.to_owned()),
                _ => {}
            }
        }
        Ok(page)
    }
}
