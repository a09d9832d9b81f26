//! What each route takes and gives.

use crate::route::Route;

/// What a route takes and gives, for the document.
pub(super) struct Operation {
    pub(super) summary: &'static str,
    /// Schema of the body, if it has one.
    pub(super) takes: Option<&'static str>,
    /// Schema of the JSON answer; `None` is another type of content.
    pub(super) gives: Option<&'static str>,
    /// Other content types of the answer.
    pub(super) also: &'static [&'static str],
    /// Statuses of errors.
    pub(super) errors: &'static [u16],
}

const GENERATION_ERRORS: &[u16] = &[400, 401, 404, 405, 408, 413, 429, 500, 503];
const LOOK_ERRORS: &[u16] = &[401, 405];

fn looks(summary: &'static str, gives: Option<&'static str>) -> Operation {
    Operation { summary, takes: None, gives, also: &[], errors: LOOK_ERRORS }
}

fn works(
    summary: &'static str,
    takes: &'static str,
    gives: &'static str,
    also: &'static [&'static str],
) -> Operation {
    Operation { summary, takes: Some(takes), gives: Some(gives), also, errors: GENERATION_ERRORS }
}

/// What is said of a route.
pub(super) fn operation(route: Route) -> Operation {
    text(route).or_else(|| tokens(route)).unwrap_or_else(|| service(route))
}

/// Routes that generate text, and what becomes of it.
fn text(route: Route) -> Option<Operation> {
    let events: &'static [&'static str] = &["text/event-stream"];
    Some(match route {
        Route::Completions => works("Continue a prompt.", "CompletionRequest", "CompletionAnswer", events),
        Route::Chat => works("Answer messages.", "ChatRequest", "ChatAnswer", events),
        Route::Generate => {
            works("Continue a prompt, in short.", "GenerateRequest", "GenerateAnswer", &["text/plain"])
        }
        Route::Messages => {
            works("Answer messages, as Anthropic's API has it.", "MessageRequest", "MessageAnswer", events)
        }
        Route::Responses => {
            works("Answer items, as OpenAI's later API has it.", "ResponseRequest", "ResponseAnswer", events)
        }
        Route::Invocations => works(
            "Continue a prompt or answer messages, as SageMaker asks.",
            "InvocationRequest",
            "InvocationAnswer",
            events,
        ),
        Route::StoredResponse => Operation {
            errors: &[400, 401, 404, 405],
            ..looks("A response that is kept.", Some("ResponseAnswer"))
        },
        Route::InputItems => {
            Operation { errors: &[400, 401, 404, 405], ..looks("What led to it.", Some("ResponseItemList")) }
        }
        Route::CancelResponse => Operation {
            errors: &[400, 401, 404, 405],
            ..looks("Refused: a response under way is cancelled by closing its connection.", None)
        },
        _ => return None,
    })
}

/// Routes between text and tokens, and those that the served model is not made for.
fn tokens(route: Route) -> Option<Operation> {
    let refused =
        || Operation { errors: &[400, 401, 405], ..looks("Refused: there is no route for it.", None) };
    Some(match route {
        Route::Tokenize => works("Text to token ids.", "TokenizeRequest", "TokenizeAnswer", &[]),
        Route::Detokenize => works("Token ids to text.", "DetokenizeRequest", "DetokenizeAnswer", &[]),
        Route::ApplyTemplate => {
            works("A chat to the text of its prompt.", "ApplyTemplateRequest", "ApplyTemplateAnswer", &[])
        }
        Route::RenderCompletions => works(
            "The token ids of prompts and how they would be continued.",
            "CompletionRequest",
            "RenderedPrompts",
            &[],
        ),
        Route::RenderChat => works(
            "The token ids of a chat's prompt and how it would be answered.",
            "ChatRequest",
            "RenderedPrompt",
            &[],
        ),
        Route::CountTokens => {
            works("Count the tokens of messages.", "MessageCountRequest", "MessageCountAnswer", &[])
        }
        Route::Embeddings => {
            works("The vectors of texts, for models that pool.", "EmbeddingRequest", "EmbeddingAnswer", &[])
        }
        Route::Score => works(
            "How near texts are to each other, for models that pool.",
            "ScoreRequest",
            "ScoreAnswer",
            &[],
        ),
        Route::Rerank => works(
            "Documents in the order in which they fit a query, for models that pool.",
            "RerankRequest",
            "RerankAnswer",
            &[],
        ),
        Route::Pooling | Route::Classify => refused(),
        _ => return None,
    })
}

/// Routes that say something of the service or act on it.
fn service(route: Route) -> Operation {
    let page = |summary, also| Operation { also, errors: &[404, 405], ..looks(summary, None) };
    match route {
        Route::Models => looks("The served model.", Some("ModelList")),
        Route::Model => Operation { errors: &[401, 404, 405], ..looks("One model.", Some("Model")) },
        Route::Health => Operation { errors: &[405, 503], ..looks("Do all roles move?", Some("Health")) },
        Route::Ready => Operation { errors: &[405, 503], ..looks("Are requests taken?", Some("State")) },
        Route::Live => looks("Does this process answer?", Some("State")),
        Route::Metrics => Operation { also: &["text/plain"], ..looks("Prometheus text.", None) },
        Route::MetricsLoad => {
            Operation { also: &["text/plain"], ..looks("The load, as Prometheus text.", None) }
        }
        Route::Loads => looks("The load of each engine, as SGLang says it.", Some("Loads")),
        Route::Ping => Operation { errors: &[405, 503], ..looks("As /health.", Some("Health")) },
        Route::V2Live => looks("As /live.", Some("State")),
        Route::V2Ready => Operation { errors: &[405, 503], ..looks("As /ready.", Some("State")) },
        Route::Version => looks("Name and version.", Some("Version")),
        Route::OpenApi => looks("This document.", Some("Document")),
        Route::Docs => page("This document for people.", &["text/html"]),
        Route::Page => page("The page for people: chat, completion, and the service live.", &["text/html"]),
        Route::PageFile => page("What the pages load.", &["text/css", "text/javascript", "image/svg+xml"]),
        Route::Stats => looks("The service's state in short: what the live page shows.", Some("Stats")),
        Route::DebugSlow => looks("The slowest requests of the last hour.", Some("Document")),
        Route::ResetPrefixCache => Operation {
            also: &["text/plain"],
            errors: &[401, 405, 503],
            ..looks("Forget what the prefix cache holds.", None)
        },
        Route::DebugTrace => works("What every process does, as a trace.", "TraceRequest", "Document", &[]),
        Route::StartProfile | Route::StopProfile => Operation {
            also: &["text/plain"],
            errors: &[400, 401, 405, 503],
            ..looks("Let the profilers around the roles record, or stop them.", None)
        },
        Route::Props => looks("The model and its defaults, as llama-server says them.", Some("Props")),
        // Not published, or above.
        _ => looks("", None),
    }
}
