//! `/docs`: the document of `/openapi.json` for people. Every route with its fields and their types in words, commands
//! to copy and a form to try it. It can be read without scripts; `ui/docs.js` adds copying and trying.

use super::words::{members, resolved, words};
use super::{examples, named_routes, tag};
use crate::route::Route;
use serde_json::Value;
use std::fmt::Write;

/// The groups of routes, in the order of the page.
const TAGS: [&str; 5] = ["Generate text", "Models and tokens", "Watch", "Operate", "Pages and documents"];

/// Begins every address in a command; the script writes the page's own in its place.
const ORIGIN: &str = "http://127.0.0.1:8000";

const HEAD: &str = concat!(include_str!("../../ui/head.html"), include_str!("../../ui/docs_head.html"));

/// What each status of an error means.
const ERRORS: [(&str, &str); 13] = [
    (
        "400",
        "A field has the wrong type, is out of range or not supported, prompt and answer do not fit, or the head is \
         malformed.",
    ),
    ("401", "No key or another one, where the service asks for one."),
    ("403", "The request names another host, or a web page of another origin sends it."),
    ("404", "Another model, another path, or a response that is not kept."),
    ("405", "Another method; Allow says which."),
    ("408", "The request came too slowly."),
    ("413", "The body is too large."),
    ("414, 431", "The target or the head is too long."),
    ("415", "The body is compressed."),
    ("417", "An Expect other than 100-continue."),
    ("429", "All request slots are taken; Retry-After says when to come back."),
    ("500", "The model gave a number that is not finite, or a defect of ours."),
    ("503", "The service drains, or a role that the request needs does not come back."),
];

/// Renders the page. `keyed`: the service asks for a key.
pub(super) fn render(document: &Value, keyed: bool) -> String {
    let mut out = String::with_capacity(96 << 10);
    out.push_str(HEAD);
    contents(&mut out);
    let model = &document["components"]["schemas"]["ModelName"]["enum"][0];
    let model = escaped(model.as_str().unwrap_or_default());
    let key = if keyed {
        "This service asks for a key. Send it as <code>Authorization: Bearer KEY</code>; the commands below take it \
         from <code>$PINION_API_KEY</code>."
    } else {
        "This service asks for no key."
    };
    let _ = write!(
        out,
        "<main id=\"content\" tabindex=\"-1\"><h1>API</h1><p class=\"lead\">One address, JSON in and out, OpenAI’s \
         shapes. The model here is <code>{model}</code>. {key}</p><p>A field that is <code>null</code> counts as absent; \
         unknown ones are named in <code>X-Pinion-Ignored-Fields</code>. \
         The same document for machines is <a href=\"openapi.json\">/openapi.json</a>. Any OpenAI client works with \
         the base URL <code data-origin>{ORIGIN}/v1</code>.</p>"
    );
    if keyed {
        out.push_str(
            "<p><button type=\"button\" class=\"quiet\" id=\"key-button\">Enter the key</button></p>",
        );
    }
    for group in TAGS {
        let _ = write!(out, "<h2 id=\"{}\">{group}</h2>", slug(group));
        for route in named_routes().filter(|route| tag(*route) == group) {
            operation(&mut out, route, document, keyed);
        }
    }
    errors(&mut out);
    out.push_str("</main></div></body></html>\n");
    out
}

fn contents(out: &mut String) {
    out.push_str("<div class=\"columns\"><nav class=\"contents\" aria-label=\"Routes\">");
    for group in TAGS {
        let _ = write!(out, "<a class=\"group\" href=\"#{}\">{group}</a><ul>", slug(group));
        for route in named_routes().filter(|route| tag(*route) == group) {
            let (id, name) = (anchor(route), route.name());
            let _ = write!(out, "<li><a href=\"#{id}\">{name}</a></li>");
        }
        out.push_str("</ul>");
    }
    out.push_str("<a class=\"group\" href=\"#errors\">Errors</a></nav>");
}

fn operation(out: &mut String, route: Route, document: &Value, keyed: bool) {
    let (method, name, id) = (route.method_name(), route.name(), anchor(route));
    let item = &document["paths"][name][method.to_lowercase()];
    let kind = method.to_lowercase();
    let _ = write!(
        out,
        "<section class=\"operation\" id=\"{id}\" data-method=\"{method}\" data-path=\"{name}\"><h3><a class=\"anchor\" \
         href=\"#{id}\"><span class=\"method {kind}\">{method}</span> <code>{name}</code></a></h3><p>{}</p>",
        escaped(item["summary"].as_str().unwrap_or_default())
    );
    let needs_key = keyed && !route.is_public();
    let bodies = examples::of(route);
    if bodies.is_empty() {
        command(out, route, None, needs_key);
    }
    for (index, example) in bodies.iter().enumerate() {
        let open = if index == 0 { " open" } else { "" };
        let _ = write!(out, "<details class=\"example\"{open}><summary>{}</summary>", escaped(example.title));
        command(out, route, Some(example.body), needs_key);
        out.push_str("</details>");
    }
    match first_with_its_body(route, document) {
        Some(first) => {
            let _ =
                write!(out, "<p>Fields: those of <a href=\"#{}\">{}</a>.</p>", anchor(first), first.name());
        }
        None => fields(out, item, document),
    }
    answer(out, item, document);
    out.push_str("</section>");
}

/// The route ahead of this one that takes the same body, if there is one.
fn first_with_its_body(route: Route, document: &Value) -> Option<Route> {
    let body = |route: Route| {
        let item = &document["paths"][route.name()][route.method_name().to_lowercase()];
        &item["requestBody"]["content"]["application/json"]["schema"]
    };
    let own = body(route);
    named_routes().take_while(|other| *other != route).find(|other| !own.is_null() && body(*other) == own)
}

/// One command for a shell; the form takes the body out of it.
fn command(out: &mut String, route: Route, body: Option<&str>, needs_key: bool) {
    let streams = body.is_some_and(|body| body.contains("\"stream\": true"));
    let flags = if streams { "-sN" } else { "-s" };
    let mut line = format!("curl {flags} {ORIGIN}{}", route.name());
    if needs_key {
        line.push_str(" \\\n  -H \"authorization: Bearer $PINION_API_KEY\"");
    }
    match body {
        Some(body) => {
            let _ = write!(line, " \\\n  -H 'content-type: application/json' \\\n  -d '{body}'");
        }
        None if route.method_name() == "POST" => line.push_str(" -X POST"),
        None => {}
    }
    let _ =
        write!(out, "<div class=\"command\"><pre><code data-origin>{}</code></pre></div>", escaped(&line));
}

fn fields(out: &mut String, item: &Value, document: &Value) {
    let schema = resolved(&item["requestBody"]["content"]["application/json"]["schema"], document);
    let shapes: Vec<&Value> = match schema["anyOf"].as_array() {
        Some(parts) => parts.iter().collect(),
        None => vec![schema],
    };
    for shape in shapes {
        let Some(properties) = shape["properties"].as_object() else { continue };
        let required = |name: &str| {
            shape["required"].as_array().is_some_and(|names| names.iter().any(|own| own == name))
        };
        let (refused, taken): (Vec<_>, Vec<_>) =
            properties.iter().partition(|(_, schema)| schema.get("enum").is_some());
        out.push_str("<h4>Fields</h4><dl class=\"fields\">");
        for (name, schema) in taken {
            let mark = if required(name) { " <span class=\"required\">required</span>" } else { "" };
            row(out, name, mark, schema, document);
        }
        out.push_str("</dl>");
        if !refused.is_empty() {
            out.push_str(
                "<details><summary>Fields that pass with these values only</summary><dl class=\"fields\">",
            );
            for (name, schema) in refused {
                row(out, name, "", schema, document);
            }
            out.push_str("</dl></details>");
        }
    }
}

fn row(out: &mut String, name: &str, mark: &str, schema: &Value, document: &Value) {
    let (kind, meaning) = (escaped(&words(schema, document)), schema["description"].as_str());
    let meaning = escaped(meaning.unwrap_or_default());
    let _ = write!(out, "<div><dt><code>{name}</code>{mark}</dt><dd><i>{kind}</i> {meaning}</dd></div>");
}

fn answer(out: &mut String, item: &Value, document: &Value) {
    let responses = &item["responses"];
    let mut found = Vec::new();
    members(&responses["200"]["content"]["application/json"]["schema"], document, "", &mut found);
    if !found.is_empty() {
        out.push_str("<details><summary>Answer</summary><dl class=\"fields\">");
        for (path, kind) in found {
            let (path, kind) = (escaped(&path), escaped(&kind));
            let _ = write!(out, "<div><dt><code>{path}</code></dt><dd><i>{kind}</i></dd></div>");
        }
        out.push_str("</dl></details>");
    }
    let statuses: Vec<&str> =
        responses.as_object().map_or(Vec::new(), |all| all.keys().map(String::as_str).collect());
    let errors: Vec<&str> = statuses.into_iter().filter(|status| *status != "200").collect();
    if !errors.is_empty() {
        let list = errors.join(", ");
        let _ = write!(out, "<p class=\"note\"><a href=\"#errors\">Errors</a>: {list}</p>");
    }
}

fn errors(out: &mut String) {
    out.push_str(
        "<h2 id=\"errors\">Errors</h2><p>An error is one JSON object. <code>param</code> names the field that was \
         refused, <code>code</code> what a program can act on. After the first chunk of a stream it comes as an event, \
         and the stream ends without <code>[DONE]</code>.</p><div class=\"command\"><pre><code>{\"error\": \
         {\"message\": \"temperature must be a number from 0 to 100, got -1\",\n           \"type\": \
         \"invalid_request_error\", \"param\": \"temperature\", \"code\": null}}</code></pre></div><dl class=\"fields\">",
    );
    for (status, meaning) in ERRORS {
        let _ = write!(out, "<div><dt><code>{status}</code></dt><dd>{meaning}</dd></div>");
    }
    out.push_str("</dl>");
}

fn anchor(route: Route) -> String {
    slug(&format!("{} {}", route.method_name(), route.name()))
}

/// Letters and digits, everything between them as one hyphen.
fn slug(text: &str) -> String {
    let parts = text.split(|character: char| !character.is_ascii_alphanumeric());
    let parts: Vec<String> = parts.filter(|part| !part.is_empty()).map(str::to_lowercase).collect();
    parts.join("-")
}

/// As text between tags; no attribute holds what is not ours.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::{document, fields, tests::limits};
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_page_names_every_route_and_field_and_escapes_what_is_not_ours() {
        let page = render(&document(&limits(), ""), true);
        assert!(page.contains("&lt;tiny&gt;") && !page.contains("<tiny>"));
        for field in fields::FIELDS {
            assert!(page.contains(&format!("<code>{}</code>", field.name)), "{}", field.name);
        }
        let ids: Vec<String> = named_routes().map(anchor).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
        for (route, id) in named_routes().zip(&ids) {
            assert!(TAGS.contains(&tag(route)), "{}", route.name());
            assert!(
                page.contains(&format!("id=\"{id}\"")) && page.contains(&format!("href=\"#{id}\"")),
                "{id}"
            );
        }
    }

    #[test]
    fn the_page_has_a_row_for_each_status_of_an_error_and_no_other() {
        let rows = ERRORS.iter().flat_map(|(statuses, _)| statuses.split(", "));
        let rows: BTreeSet<u16> = rows.map(|status| status.parse().unwrap()).collect();
        assert_eq!(rows, crate::answers::errors::tests::statuses());
    }

    /// The policy of the page forbids them, and a browser would leave them out without a word.
    #[test]
    fn nothing_in_the_page_is_inline() {
        let page = render(&document(&limits(), ""), false);
        assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains(" onclick="));
        for script in page.split("<script").skip(1) {
            assert!(script.contains(" src=\"ui/") && script.contains("></script>"), "{script:.60}");
        }
        assert!(!page.contains("authorization: Bearer"));
    }
}
