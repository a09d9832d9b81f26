//! `POST /invocations`, as SageMaker asks: a body with messages is a chat, any other a completion.

use crate::answers::errors::Refusal;
use crate::http::app::App;
use crate::http::body::AnswerBody;
use crate::http::generate;
use crate::http::intake::{read_body, weighed};
use crate::http::routes::Arrival;
use crate::route::Route;
use hyper::body::Incoming;
use hyper::{Request, Response};
use serde::de::IgnoredAny;
use std::collections::HashMap;
use std::rc::Rc;

/// Answers as the route does that the body is for.
pub(crate) async fn serve(
    app: &Rc<App>,
    arrival: Arrival,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Refusal> {
    let body = read_body(app, request.into_body()).await?;
    let (route, body) = weighed(app, body.len(), move |_| Ok((route_of(&body), body))).await?;
    arrival.trace.iter().for_each(|trace| trace.is_for(route));
    generate::answer(app.clone(), Arrival { route, ..arrival }, body).await
}

/// The route of a body. What is no JSON object is refused there.
fn route_of(body: &[u8]) -> Route {
    // `null` is absent, and of a key that stands twice the last counts, as everywhere.
    let members: HashMap<String, Option<IgnoredAny>> = serde_json::from_slice(body).unwrap_or_default();
    if matches!(members.get("messages"), Some(Some(_))) { Route::Chat } else { Route::Completions }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_make_a_chat_and_all_else_is_a_completion() {
        for (body, route) in [
            (r#"{"messages": [], "prompt": "x"}"#, Route::Chat),
            (r#"{"prompt": "x", "messages": null}"#, Route::Completions),
            (r#"{"messages": [1], "messages": null}"#, Route::Completions),
            (r#"{"prompt": {"messages": [1]}}"#, Route::Completions),
            ("[1]", Route::Completions),
            ("{", Route::Completions),
        ] {
            assert_eq!(route_of(body.as_bytes()), route, "{body}");
        }
    }
}
