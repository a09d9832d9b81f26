//! The routes of models that pool: embeddings, scores, classes. The served model is none, so each ends with a refusal
//! that no client repeats.

use crate::answers::errors::Refusal;
use crate::http::app::App;
use crate::route::Route;

/// What is said on these routes.
pub(crate) fn refusal(app: &App, route: Route) -> Refusal {
    let (gives, code) = match route {
        Route::Embeddings => ("embeddings", "no_embeddings"),
        Route::Rerank | Route::Score => ("scores", "no_pooling"),
        Route::Classify => ("classes", "no_pooling"),
        _ => ("vectors", "no_pooling"),
    };
    Refusal::NotPooling { model: app.limits.model.clone(), gives, code }
}
