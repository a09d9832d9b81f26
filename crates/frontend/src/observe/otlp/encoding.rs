//! Requests as an `ExportTraceServiceRequest` of OTLP in its JSON form: keys in lowerCamelCase, ids in hexadecimal
//! digits, enums as numbers, 64-bit integers as strings.
//! <https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>
//!
//! The names of attributes are those of OpenTelemetry's conventions for generative AI, and vLLM's where these have none
//! or vLLM's tools look for its own. What has no name in either begins with `pinion.`.

use super::spans::{RequestSpans, Sequence, StageSpan, failed};
use pinion_protocol::names::{Part, Stage};
use serde::{Serialize, Serializer};
use std::borrow::Cow;

const KIND_INTERNAL: u8 = 1;
const KIND_SERVER: u8 = 2;
const STATUS_ERROR: u8 = 2;
/// W3C's flag `sampled`.
const FLAG_SAMPLED: u32 = 0x001;
/// Whether the parent is in another process is known ...
const FLAG_HAS_IS_REMOTE: u32 = 0x100;
/// ... and it is.
const FLAG_IS_REMOTE: u32 = 0x200;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Export<'a> {
    resource_spans: [ResourceSpans<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans<'a> {
    resource: Resource<'a>,
    scope_spans: [ScopeSpans<'a>; 1],
}

#[derive(Serialize)]
struct Resource<'a> {
    attributes: Vec<Attribute<'a>>,
}

#[derive(Serialize)]
struct ScopeSpans<'a> {
    scope: Scope,
    spans: Vec<Span<'a>>,
}

#[derive(Serialize)]
struct Scope {
    name: &'static str,
    version: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Span<'a> {
    trace_id: Hex32,
    span_id: Hex16,
    #[serde(skip_serializing_if = "str::is_empty")]
    trace_state: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_span_id: Option<Hex16>,
    flags: u32,
    name: Cow<'a, str>,
    kind: u8,
    start_time_unix_nano: Decimal,
    end_time_unix_nano: Decimal,
    attributes: Vec<Attribute<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

#[derive(Serialize)]
struct Status {
    code: u8,
}

#[derive(Serialize)]
struct Attribute<'a> {
    key: &'a str,
    value: Value<'a>,
}

#[derive(Serialize)]
enum Value<'a> {
    #[serde(rename = "stringValue")]
    Text(Cow<'a, str>),
    #[serde(rename = "intValue")]
    Int(Decimal),
    #[serde(rename = "doubleValue")]
    Double(f64),
    #[serde(rename = "arrayValue")]
    Array { values: Vec<Value<'a>> },
}

struct Decimal(u64);

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

struct Hex16(u64);

impl Serialize for Hex16 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:016x}", self.0))
    }
}

struct Hex32(u128);

impl Serialize for Hex32 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:032x}", self.0))
    }
}

/// Attributes in the order in which they are added.
#[derive(Default)]
struct Attributes<'a>(Vec<Attribute<'a>>);

impl<'a> Attributes<'a> {
    fn text(&mut self, key: &'a str, value: impl Into<Cow<'a, str>>) {
        self.0.push(Attribute { key, value: Value::Text(value.into()) });
    }

    fn number(&mut self, key: &'a str, value: impl Into<u64>) {
        self.0.push(Attribute { key, value: Value::Int(Decimal(value.into())) });
    }

    /// As its shortest decimal form has it: 0.7 stays 0.7.
    fn real(&mut self, key: &'a str, value: f32) {
        let value = value.to_string().parse().unwrap_or_else(|_| f64::from(value));
        self.0.push(Attribute { key, value: Value::Double(value) });
    }

    fn seconds(&mut self, key: &'a str, ns: Option<u64>) {
        let value = |ns: u64| Value::Double(ns as f64 / 1e9);
        self.0.extend(ns.map(|ns| Attribute { key, value: value(ns) }));
    }

    fn texts(&mut self, key: &'a str, values: Vec<Cow<'a, str>>) {
        if !values.is_empty() {
            let values = values.into_iter().map(Value::Text).collect();
            self.0.push(Attribute { key, value: Value::Array { values } });
        }
    }
}

/// What all requests of a service have in common.
pub(super) struct Service {
    pub(super) resource: Vec<(String, String)>,
    pub(super) model: String,
    pub(super) frontend: u16,
}

/// The body of one POST. `span_ids` gives each stage its own.
pub(super) fn export(
    service: &Service,
    requests: &[RequestSpans],
    mut span_ids: impl FnMut() -> u64,
) -> Vec<u8> {
    let mut resource = Attributes::default();
    for (key, value) in &service.resource {
        resource.text(key, value);
    }
    let mut spans = Vec::with_capacity(requests.iter().map(|request| request.span_count()).sum());
    for request in requests {
        spans.push(request_span(service, request));
        for sequence in &request.sequences {
            let stages = sequence.stages(request.received_ns);
            let last = stages.last().copied();
            for stage in stages {
                let broke = failed(sequence.reason) && Some(stage) == last;
                spans.push(stage_span(request, sequence, stage, span_ids(), broke));
            }
        }
    }
    let scope = Scope { name: "pinion", version: env!("CARGO_PKG_VERSION") };
    let export = Export {
        resource_spans: [ResourceSpans {
            resource: Resource { attributes: resource.0 },
            scope_spans: [ScopeSpans { scope, spans }],
        }],
    };
    serde_json::to_vec(&export).expect("these types have a JSON form")
}

fn request_span<'a>(service: &'a Service, request: &'a RequestSpans) -> Span<'a> {
    let remote = if request.parent.is_some() { FLAG_IS_REMOTE } else { 0 };
    let error = request.error();
    Span {
        trace_id: Hex32(request.trace_id),
        span_id: Hex16(request.span_id),
        trace_state: &request.state,
        parent_span_id: request.parent.map(Hex16),
        flags: FLAG_SAMPLED | FLAG_HAS_IS_REMOTE | remote,
        name: format!("{} {}", request.operation, service.model).into(),
        kind: KIND_SERVER,
        start_time_unix_nano: unix(request, request.received_ns),
        end_time_unix_nano: unix(request, request.ended_ns),
        status: error.as_ref().map(|_| Status { code: STATUS_ERROR }),
        attributes: request_attributes(service, request, error),
    }
}

fn unix(request: &RequestSpans, ns: u64) -> Decimal {
    Decimal(ns.saturating_add(request.unix_ahead_ns))
}

fn request_attributes<'a>(
    service: &'a Service,
    request: &'a RequestSpans,
    error: Option<Cow<'a, str>>,
) -> Vec<Attribute<'a>> {
    let (mut list, totals) = (Attributes::default(), &request.totals);
    list.text("gen_ai.operation.name", request.operation);
    list.text("gen_ai.provider.name", "pinion");
    list.text("gen_ai.request.model", &service.model);
    list.text("gen_ai.response.model", &service.model);
    list.text("gen_ai.request.id", &request.label);
    list.text("http.request.method", "POST");
    list.text("http.route", request.route.name());
    if let Some(status) = request.status {
        list.number("http.response.status_code", status);
    }
    if let Some(error) = error {
        list.text("error.type", error);
    }
    list.number("pinion.frontend", service.frontend);
    if let Some(asked) = &request.asked {
        if let Some(max_tokens) = asked.max_tokens {
            list.number("gen_ai.request.max_tokens", max_tokens);
        }
        list.real("gen_ai.request.temperature", asked.temperature);
        list.real("gen_ai.request.top_p", asked.top_p);
        list.number("gen_ai.request.n", asked.choices);
        list.number("gen_ai.request.choice.count", asked.choices);
    }
    if totals.sequences == 0 {
        return list.0;
    }
    list.number("gen_ai.usage.num_sequences", totals.sequences);
    for key in ["gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"] {
        list.number(key, totals.prompt_tokens);
    }
    for key in ["gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"] {
        list.number(key, totals.generated_tokens);
    }
    list.number("gen_ai.usage.cache_read.input_tokens", totals.cached_tokens);
    let mut ends: Vec<(u32, &str)> =
        request.sequences.iter().filter_map(|sequence| Some((sequence.number, sequence.finish?))).collect();
    ends.sort_unstable();
    list.texts("gen_ai.response.finish_reasons", ends.into_iter().map(|(_, end)| end.into()).collect());
    list.seconds("gen_ai.latency.time_to_first_token", totals.first_ns);
    list.seconds("gen_ai.latency.e2e", request.ended_ns.checked_sub(request.received_ns));
    if let Some(slowest) = &request.slowest {
        for (key, from, to) in [
            ("gen_ai.latency.time_in_queue", Stage::EngineReceived, Stage::FirstScheduled),
            ("gen_ai.latency.time_in_model_prefill", Stage::FirstScheduled, Stage::FirstToken),
            ("gen_ai.latency.time_in_model_decode", Stage::FirstToken, Stage::LastToken),
            ("gen_ai.latency.time_in_model_inference", Stage::FirstScheduled, Stage::LastToken),
        ] {
            list.seconds(key, slowest.between(from, to));
        }
    }
    list.number("pinion.preemptions", totals.preemptions);
    list.number("pinion.resumptions", totals.resumptions);
    list.0
}

fn stage_span<'a>(
    request: &'a RequestSpans,
    sequence: &Sequence,
    stage: StageSpan,
    span_id: u64,
    broke: bool,
) -> Span<'a> {
    let mut list = Attributes::default();
    list.number("pinion.sequence", sequence.number);
    // Not under the names of the request's span: tools that add those up over a trace would count them twice.
    match stage.part {
        Part::Tokenize => list.number("pinion.prompt_tokens", sequence.prompt_tokens),
        Part::Prefill => list.number("pinion.cached_tokens", sequence.cached_tokens),
        Part::Decode => list.number("pinion.generated_tokens", sequence.generated_tokens),
        Part::Admission
        | Part::TokenizerQueue
        | Part::EngineInbox
        | Part::Queue
        | Part::Detokenize
        | Part::Write => {}
    }
    if broke {
        list.text("error.type", sequence.reason.name());
    }
    Span {
        trace_id: Hex32(request.trace_id),
        span_id: Hex16(span_id),
        trace_state: &request.state,
        parent_span_id: Some(Hex16(request.span_id)),
        flags: FLAG_SAMPLED | FLAG_HAS_IS_REMOTE,
        name: stage.part.name().into(),
        kind: KIND_INTERNAL,
        start_time_unix_nano: unix(request, stage.begin_ns),
        end_time_unix_nano: unix(request, stage.end_ns),
        attributes: list.0,
        status: broke.then_some(Status { code: STATUS_ERROR }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::context::Parent;
    use super::*;
    use crate::observe::metrics::EndReason;
    use crate::observe::otlp::spans::Asked;
    use crate::observe::timeline::Stamps;
    use crate::route::Route;

    /// Written by hand after the specification.
    const GOLDEN: &str = include_str!("../../../tests/golden/otlp.json");
    const RECEIVED_NS: u64 = 1_000_000_000;
    const UNIX_AHEAD_NS: u64 = 1_700_000_000_000_000_000;

    /// The stamps at these microseconds after the arrival, in the order of the stages; 0 is none.
    fn stamps(after_us: [u64; 12]) -> Stamps {
        let mut stamps = after_us.map(|us| if us == 0 { 0 } else { RECEIVED_NS + us * 1000 });
        stamps[0] = RECEIVED_NS;
        Stamps::of_list(stamps)
    }

    fn request(route: Route, label: &str, parent: Option<Parent>, sequence: Sequence) -> RequestSpans {
        let id = if parent.is_some() { 0xa1 } else { 0xa2 };
        let mut request = RequestSpans::new(route, label, RECEIVED_NS, parent, (0xb0b0, id));
        request.unix_ahead_ns = UNIX_AHEAD_NS;
        request.add(sequence);
        request
    }

    #[test]
    fn requests_have_the_form_that_the_specification_asks_for() {
        let whole = Sequence {
            number: 0,
            stamps: stamps([0, 1000, 1500, 2000, 2500, 10_000, 50_000, 250_000, 51_000, 251_000, 0, 252_000]),
            until_ns: RECEIVED_NS + 252_000_000,
            first_ns: Some(51_000_000),
            prompt_tokens: 12,
            cached_tokens: 8,
            generated_tokens: 5,
            preemptions: 0,
            resumptions: 0,
            finish: Some("stop"),
            reason: EndReason::Stop,
        };
        let parent = Parent {
            trace_id: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
            span_id: 0x00f0_67aa_0ba9_02b7,
            sampled: true,
            state: "vendor=1,other=2".to_owned(),
        };
        let mut first = request(Route::Chat, "req-1", Some(parent), whole);
        first.asked = Some(Asked { max_tokens: Some(64), temperature: 0.7, top_p: 1.0, choices: 1 });
        first.status = Some(200);
        let left = Sequence {
            stamps: stamps([0, 1000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            until_ns: RECEIVED_NS + 4_000_000,
            first_ns: None,
            prompt_tokens: 0,
            cached_tokens: 0,
            generated_tokens: 0,
            finish: None,
            reason: EndReason::Disconnected,
            ..whole
        };
        let second = request(Route::Completions, "req-2", None, left);
        let service = Service {
            resource: [("service.name", "chat-service"), ("deployment.environment.name", "test \"1\"")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            model: "tiny".to_owned(),
            frontend: 3,
        };
        let mut last = 0;
        let ids = || {
            last += 1;
            last
        };
        let bytes = export(&service, &[first, second], ids);
        let written: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let golden = GOLDEN.replace("VERSION", env!("CARGO_PKG_VERSION"));
        let golden: serde_json::Value = serde_json::from_str(&golden).unwrap();
        assert_eq!(written, golden, "{written:#}");
    }
}
