//! `/openapi.json` and `/docs`: the API as machines and people read it.
//!
//! Request bodies come from the table in [`fields`], paths from [`Route::ALL`]; the shapes of answers are written in
//! `base.json`. Nothing here decides what passes: that is [`crate::admission`], against which the table is tested.

mod examples;
mod operations;
mod page;
mod words;

use crate::admission::{Api, Limits, fields};
use crate::answers::errors::Dialect;
use crate::limits::INPUT_ITEMS_MAX;
use crate::route::Route;
use crate::ui;
use operations::{Operation, operation};
use serde_json::{Map, Value, json};

const BASE: &str = include_str!("base.json");
/// Schemas of the APIs that are translations of a chat, and of those for models that pool.
const MORE: [&str; 3] =
    [include_str!("messages.json"), include_str!("responses.json"), include_str!("pooled.json")];

/// The group of routes that a reader looks for it in.
fn tag(route: Route) -> &'static str {
    match route {
        route if route.generates() => "Generate text",
        route if route.is_admin() => "Operate",
        route if route.is_page() => "Pages and documents",
        Route::OpenApi => "Pages and documents",
        Route::DebugSlow => "Watch",
        route if route.is_public() => "Watch",
        _ => "Models and tokens",
    }
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

fn path_item(route: Route) -> Value {
    let Operation { summary, takes, gives, also, errors } = operation(route);
    let mut content = Map::new();
    if let Some(schema) = gives {
        content.insert("application/json".to_owned(), json!({"schema": reference(schema)}));
    }
    for kind in also {
        let is_event = *kind == "text/event-stream";
        let schema = if is_event { reference("ServerSentEvent") } else { json!({"type": "string"}) };
        content.insert((*kind).to_owned(), json!({"schema": schema}));
    }
    let mut responses = Map::new();
    // Some routes only refuse.
    if gives.is_some() || !also.is_empty() {
        responses.insert("200".to_owned(), json!({"description": "The answer.", "content": content}));
    }
    for status in errors {
        let state =
            *status == 503 && matches!(route, Route::Health | Route::Ready | Route::Ping | Route::V2Ready);
        let response = if state {
            json!({"description": "Not now.", "content": {"application/json": {"schema": reference("State")}}})
        } else {
            let shape = match Dialect::of(route.name()) {
                Dialect::OpenAi | Dialect::Responses => "Error",
                Dialect::Anthropic => "MessageError",
            };
            json!({"$ref": format!("#/components/responses/{shape}")})
        };
        responses.insert(status.to_string(), response);
    }
    let security = if route.is_public() { json!([]) } else { json!([{"key": []}, {"api_key": []}, {}]) };
    let mut operation =
        json!({"summary": summary, "tags": [tag(route)], "security": security, "responses": responses});
    if let Some(schema) = takes {
        // Without a body a trace is what the rings still hold.
        let required = route != Route::DebugTrace;
        let examples: Map<String, Value> = examples::of(route)
            .iter()
            .filter_map(|example| Some((example.title.to_owned(), serde_json::from_str(example.body).ok()?)))
            .map(|(title, body): (String, Value)| (title, json!({"value": body})))
            .collect();
        let content = json!({"schema": reference(schema), "examples": examples});
        operation["requestBody"] = json!({"required": required, "content": {"application/json": content}});
    }
    let parameters = parameters(route);
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    let mut item = Map::new();
    if route == Route::StoredResponse {
        let mut delete = operation.clone();
        delete["summary"] = "Forget it.".into();
        let deleted = json!({"schema": reference("ResponseDeleted")});
        delete["responses"]["200"]["content"] = json!({"application/json": deleted});
        item.insert("delete".to_owned(), delete);
    }
    item.insert(route.method_name().to_lowercase(), operation);
    Value::Object(item)
}

/// What the path and the query of a route have.
fn parameters(route: Route) -> Vec<Value> {
    let id = || json!({"name": "id", "in": "path", "required": true, "schema": {"type": "string"}});
    let query = |name: &str, schema: Value| json!({"name": name, "in": "query", "schema": schema});
    match route {
        Route::Model | Route::StoredResponse | Route::CancelResponse => vec![id()],
        Route::InputItems => {
            let limit = json!({"type": "integer", "minimum": 1, "maximum": INPUT_ITEMS_MAX});
            let order = json!({"enum": ["asc", "desc"]});
            vec![
                id(),
                query("limit", limit),
                query("order", order),
                query("after", json!({"type": "string"})),
            ]
        }
        Route::PageFile => {
            let names: Vec<&str> =
                ui::FILES.iter().filter_map(|file| file.path.strip_prefix("/ui/")).collect();
            vec![json!({"name": "file", "in": "path", "required": true, "schema": {"enum": names}})]
        }
        _ => Vec::new(),
    }
}

fn request_schema(api: Api) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for field in fields::of(api) {
        let mut schema = field.shape.schema();
        schema["description"] = field.meaning.into();
        properties.insert(field.name.to_owned(), schema);
        if field.required {
            required.push(field.name);
        }
    }
    json!({"type": "object", "properties": properties, "required": required})
}

/// What of a chat's body makes its prompt.
const APPLIED: [&str; 6] =
    ["model", "messages", "documents", "add_generation_prompt", "chat_template_kwargs", "reasoning_effort"];

/// A schema with these members of it only.
fn part_of(schema: &Value, names: &[&str]) -> Value {
    let mut part = schema.clone();
    let members = part["properties"].as_object_mut();
    members.into_iter().for_each(|members| members.retain(|name, _| names.contains(&name.as_str())));
    part
}

fn named_routes() -> impl Iterator<Item = Route> {
    Route::ALL.into_iter().filter(|route| *route != Route::Unknown)
}

/// The document. `root`: the path below which a proxy serves the service, or empty.
pub(crate) fn document(limits: &Limits, root: &str) -> Value {
    let mut document: Value = serde_json::from_str(BASE).expect("base.json is JSON; a test reads it");
    for schemas in MORE {
        let schemas: Map<String, Value> =
            serde_json::from_str(schemas).expect("the schemas are JSON; a test reads them");
        if let Some(all) = document["components"]["schemas"].as_object_mut() {
            all.extend(schemas);
        }
    }
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    if !root.is_empty() {
        document["servers"] = json!([{"url": root}]);
    }
    let schemas = &mut document["components"]["schemas"];
    schemas["CompletionRequest"] = request_schema(Api::Completions);
    schemas["ChatRequest"] = request_schema(Api::Chat);
    schemas["GenerateRequest"] = request_schema(Api::Generate);
    schemas["ApplyTemplateRequest"] = part_of(&schemas["ChatRequest"], &APPLIED);
    schemas["ModelName"] = json!({"enum": [limits.model, null]});
    schemas["TokenId"] =
        json!({"type": "integer", "minimum": 0, "maximum": limits.vocab_size.saturating_sub(1)});
    schemas["Document"] = json!({"type": "object"});
    let paths: Map<String, Value> = named_routes()
        .flat_map(|route| route.paths().iter().map(move |path| (path, route)))
        .map(|(path, route)| ((*path).to_owned(), path_item(route)))
        .collect();
    document["paths"] = Value::Object(paths);
    document
}

/// The page for people. `keyed`: the service asks for a key.
pub(crate) fn html(document: &Value, keyed: bool) -> String {
    page::render(document, keyed)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const CALLS: crate::admission::tools::CallReading = crate::admission::tools::CallReading::AsText;

    pub(super) fn limits() -> Limits {
        Limits {
            model: "<tiny>".to_owned(),
            vocab_size: 100,
            max_model_len: 64,
            calls: CALLS,
            reasons: false,
            defaults: pinion_config::SamplingDefaults::NONE,
            strict_fields: false,
            pooling: None,
        }
    }

    /// Every `$ref` of the document.
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn every_route_is_a_path_and_every_reference_leads_somewhere() {
        let document = document(&limits(), "");
        for route in named_routes() {
            let method = route.method_name().to_lowercase();
            let operation = &document["paths"][route.name()][&method];
            assert!(operation["responses"].is_object(), "{}", route.name());
            assert_ne!(operation["summary"], "", "{}", route.name());
            let open = operation["security"] == json!([]);
            assert_eq!(open, route.is_public(), "{}", route.name());
        }
        let paths: usize = named_routes().map(|route| route.paths().len()).sum();
        assert_eq!(document["paths"].as_object().unwrap().len(), paths);
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 40);
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
        }
    }
}
