//! The load report of the Open Request Cost Aggregation standard (ORCA) in the head of an answer, for Envoy, GKE and
//! other balancers that weigh replicas by it. A request asks for it with `endpoint-load-metrics-format: TEXT` or
//! `JSON`.

use crate::observe::health::Health;
use crate::observe::load::{Engine, Rates, rounded};
use crate::route::Route;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};

const QUESTION: HeaderName = HeaderName::from_static("endpoint-load-metrics-format");
/// The field that carries the report.
pub(crate) const ANSWER: HeaderName = HeaderName::from_static("endpoint-load-metrics");

/// How the report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Json,
}

/// What a request for the model asks for.
pub(crate) fn asked(route: Route, headers: &HeaderMap) -> Option<Form> {
    let wanted = headers.get(QUESTION).filter(|_| route.asks_model())?.to_str().ok()?.trim();
    match wanted.to_ascii_lowercase().as_str() {
        "text" => Some(Form::Text),
        "json" => Some(Form::Json),
        _ => None,
    }
}

/// The report of this moment. `places` is the number of requests that the engines run at a time.
pub(crate) fn report(health: &Health, rates: &Rates, places: u64, form: Form) -> Option<HeaderValue> {
    HeaderValue::try_from(written(form, Engine::all(health), places, rates)).ok()
}

/// Envoy ignores a report without `TEXT` or `JSON` in front, and one whose utilization or rate is 0. The answer itself
/// is a request, so the utilization is at least its place in the batch.
fn written(form: Form, engine: Engine, places: u64, rates: &Rates) -> String {
    let own_place = 1.0 / places.max(1) as f64;
    let utilization = rounded(engine.utilization(places).max(own_place));
    let (kv, waiting) = (rounded(engine.kv_share()), engine.waiting);
    let (answered, failed) = (rounded(rates.answered), rounded(rates.failed));
    match form {
        Form::Text => format!(
            "TEXT application_utilization={utilization},rps_fractional={answered},eps={failed},\
             named_metrics.kv_cache_usage_perc={kv},named_metrics.num_requests_waiting={waiting}"
        ),
        Form::Json => format!(
            "JSON {{\"application_utilization\":{utilization},\"rps_fractional\":{answered},\"eps\":{failed},\
             \"named_metrics\":{{\"kv_cache_usage_perc\":{kv},\"num_requests_waiting\":{waiting}}}}}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_for_the_model_are_asked_and_only_for_forms_that_are_known() {
        let asked = |route, value| {
            let mut headers = HeaderMap::new();
            headers.insert(QUESTION, HeaderValue::from_static(value));
            super::asked(route, &headers)
        };
        assert_eq!(asked(Route::Chat, "TEXT"), Some(Form::Text));
        assert_eq!(asked(Route::Completions, " json"), Some(Form::Json));
        assert_eq!(asked(Route::Embeddings, "TEXT"), Some(Form::Text));
        assert_eq!((asked(Route::Chat, "BIN"), asked(Route::Health, "TEXT")), (None, None));
        assert_eq!(super::asked(Route::Chat, &HeaderMap::new()), None);
    }
}
