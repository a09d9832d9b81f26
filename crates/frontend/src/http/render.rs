//! `/v1/completions/render` and `/v1/chat/completions/render`: what vLLM would send to its engine for a request, its
//! prompt as token ids among it, and nothing is generated. Routers that know the prefix caches of several replicas
//! read the ids.
//!
//! A request passes the same admission as on the route that answers it, so both refuse the same.

use crate::admission::{Admitted, Api, Limits, admit};
use crate::answers::errors::Refusal;
use crate::http::app::App;
use crate::http::body::AnswerBody;
use crate::http::generate::{ignored, prompt_ids};
use crate::http::intake::{read, read_body, written};
use crate::http::routes::{Arrival, json};
use crate::route::Route;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use pinion_protocol::{Fault, Grammar, GrammarKind};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json as value};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What tokens must come to, in vLLM's names. As text: a grammar is large, and stands beside every prompt.
type Rules = BTreeMap<&'static str, Box<RawValue>>;

/// One prompt, with the names of vLLM's `GenerateRequest`.
#[derive(Serialize)]
struct Rendered<'a> {
    request_id: String,
    token_ids: &'a [u32],
    features: Option<()>,
    sampling_params: &'a Params<'a>,
    model: &'a str,
    stream: bool,
    stream_options: Option<Value>,
    cache_salt: Option<()>,
    priority: i32,
    kv_transfer_params: Option<()>,
}

/// vLLM's `SamplingParams`, as far as requests can say them here.
#[derive(Serialize)]
struct Params<'a> {
    n: u32,
    temperature: f32,
    top_p: f32,
    /// 0 keeps every token.
    top_k: u32,
    min_p: f32,
    repetition_penalty: f32,
    frequency_penalty: f32,
    presence_penalty: f32,
    seed: Option<i64>,
    max_tokens: u32,
    min_tokens: u32,
    stop: &'a [String],
    stop_token_ids: &'a [u32],
    ignore_eos: bool,
    include_stop_str_in_output: bool,
    skip_special_tokens: bool,
    logprobs: Option<u32>,
    prompt_logprobs: Option<u32>,
    logit_bias: Option<BTreeMap<u32, f32>>,
    #[serde(flatten)]
    rules: Option<&'a Rules>,
}

/// Answers either route.
pub(crate) async fn serve(
    app: &Rc<App>,
    arrival: Arrival,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Refusal> {
    let is_chat = arrival.route == Route::RenderChat;
    let api = if is_chat { Api::Chat } else { Api::Completions };
    let body = read_body(app, request.into_body()).await?;
    let admitted = read(app, body, move |body, limits| admit(api, body, limits, 0)).await?;
    let ignored = ignored(app, &admitted.ignored);
    let prompts = prompt_ids(app, &arrival, &admitted).await?;
    let id = app.numbers.id();
    let bytes = prompts.iter().map(Vec::len).sum::<usize>() * size_of::<u32>();
    let write = move |limits: &Limits| rendered(limits, &admitted, &prompts, is_chat, &id);
    let mut response = json(StatusCode::OK, written(app, bytes, write).await?);
    response.headers_mut().extend(ignored);
    Ok(response)
}

/// The answer: an object for each prompt.
fn rendered(
    limits: &Limits,
    admitted: &Admitted,
    prompts: &[Vec<u32>],
    is_chat: bool,
    id: &str,
) -> Result<String, Fault> {
    let rules = admitted.sampling.grammar.as_ref().map(rules);
    let mut all = Vec::with_capacity(prompts.len());
    for (index, ids) in prompts.iter().enumerate() {
        let params = params(limits, admitted, rules.as_ref(), is_chat, ids.len())?;
        let request_id = if is_chat { format!("chatcmpl-{id}") } else { format!("cmpl-{id}-{index}") };
        let usage = value!({"include_usage": true, "continuous_usage_stats": admitted.usage_in_chunks});
        let one = Rendered {
            request_id,
            token_ids: ids,
            features: None,
            sampling_params: &params,
            model: &limits.model,
            stream: admitted.stream,
            stream_options: admitted.include_usage.then_some(usage),
            cache_salt: None,
            priority: admitted.priority,
            kv_transfer_params: None,
        };
        all.push(serde_json::to_string(&one).expect("numbers and strings always serialise"));
    }
    Ok(if is_chat { all.concat() } else { format!("[{}]", all.join(",")) })
}

/// How tokens would be drawn behind a prompt of this length. Errors: it is empty, or there is no room for them.
fn params<'a>(
    limits: &Limits,
    admitted: &'a Admitted,
    rules: Option<&'a Rules>,
    is_chat: bool,
    prompt_tokens: usize,
) -> Result<Params<'a>, Fault> {
    let (sampling, context) = (&admitted.sampling, limits.max_model_len);
    let least = sampling.max_tokens.unwrap_or(1);
    let field = if is_chat { "messages" } else { "prompt" };
    if prompt_tokens == 0 {
        return Err(Fault::empty_prompt(field));
    }
    let prompt_tokens = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
    let Some(room) = context.checked_sub(prompt_tokens).filter(|room| *room >= least) else {
        return Err(Fault::past_context(field, prompt_tokens, least, context));
    };
    let most = limits.defaults.max_new_tokens.unwrap_or(room).min(room);
    let bias = BTreeMap::from_iter(sampling.logit_bias.iter().copied());
    Ok(Params {
        n: admitted.shown.best.unwrap_or(admitted.choices_per_prompt),
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k.unwrap_or(0),
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        frequency_penalty: sampling.frequency_penalty,
        presence_penalty: sampling.presence_penalty,
        // vLLM's seeds are signed; the bits are the same.
        seed: admitted.has_seed.then_some(sampling.seed as i64),
        max_tokens: sampling.max_tokens.unwrap_or(most),
        min_tokens: sampling.min_tokens,
        stop: &admitted.stop,
        stop_token_ids: &sampling.stop_token_ids,
        ignore_eos: sampling.ignore_eos,
        include_stop_str_in_output: admitted.form.include_stop,
        skip_special_tokens: !admitted.form.special,
        logprobs: admitted.shown.logprobs,
        prompt_logprobs: admitted.shown.prompt_logprobs,
        logit_bias: (!bias.is_empty()).then_some(bias),
        rules,
    })
}

fn rules(grammar: &Grammar) -> Rules {
    let text = || Value::from(&*grammar.text);
    let json = || serde_json::from_str::<Value>(&grammar.text).unwrap_or_default();
    let raw = |value: &Value| to_raw_value(value).expect("JSON serialises");
    let outputs = match grammar.kind {
        GrammarKind::JsonObject => value!({"json_object": true}),
        GrammarKind::JsonSchema => value!({"json": json()}),
        GrammarKind::Regex => value!({"regex": text()}),
        GrammarKind::Choice => value!({"choice": json()}),
        GrammarKind::Lark => value!({"grammar": text()}),
        GrammarKind::Tokens => {
            let mut rules = json();
            let members = [("allowed_token_ids", "allowed"), ("bad_words", "words")];
            let given = members.map(|(name, member)| (name, rules[member].take()));
            let given = given.iter().filter(|(_, list)| !list.is_null());
            return given.map(|(name, list)| (*name, raw(list))).collect();
        }
    };
    BTreeMap::from([("structured_outputs", raw(&outputs))])
}
