//! Requests that clients make up, with the answers that they must get.

use crate::oracle::{Expected, Oracle, Stops};
use pinion_frontend::route::Route;
use pinion_random::Random;
use serde_json::{Value, json};

/// Beginnings that prompts share, for the prefix cache.
const BEGINNINGS: usize = 4;
/// Tokens of a prompt, at most.
const PROMPT_TOKENS_MAX: u64 = 36;
/// Tokens of an answer, at most. Together they fit the context.
const ANSWER_TOKENS_MAX: u64 = 24;

/// A request and what must come of it.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) route: Route,
    pub(crate) body: Value,
    pub(crate) stream: bool,
    /// The counts are part of the answer.
    pub(crate) counts: bool,
    /// By number of the choice.
    pub(crate) choices: Vec<Expected>,
    pub(crate) prompt_tokens: u64,
}

fn prompt_ids(random: &mut Random) -> Vec<u32> {
    let (beginning, own) = (random.below(BEGINNINGS), random.between(1, 8) as usize);
    let shared = random.between(0, PROMPT_TOKENS_MAX - own as u64) as usize;
    let mut beginnings = Random::new(beginning as u64);
    let shared: Vec<u32> = (0..shared).map(|_| beginnings.between(0, 255) as u32).collect();
    shared.into_iter().chain((0..own).map(|_| random.between(0, 255) as u32)).collect()
}

fn prompt_text(random: &mut Random, length: u64) -> String {
    (0..random.between(1, length)).map(|_| random.pick(b"abc xyz,.") as char).collect()
}

/// Strings and ids that occur in the text, so that they end it, and some that do not.
fn stops(random: &mut Random, oracle: &Oracle, prompt: &[u32]) -> Stops {
    let max_tokens = random.between(1, ANSWER_TOKENS_MAX) as u32;
    let mut stops = Stops { max_tokens, include: random.chance(30), ..Stops::default() };
    let ids = oracle.ids(prompt, max_tokens);
    let text: Vec<char> = oracle.decode(&ids).chars().collect();
    for _ in 0..random.pick(&[0, 0, 1, 2]) {
        let from = random.below(text.len().max(1));
        let to = (from + 1 + random.below(3)).min(text.len());
        let found: String = text[from.min(to)..to].iter().collect();
        let absent = random.chance(30);
        let stop = if absent || found.is_empty() { "never there".to_owned() } else { found };
        stops.strings.push(stop);
    }
    if random.chance(20) {
        stops.ids.push(ids[random.below(ids.len())]);
    }
    stops
}

/// The next request.
pub(crate) fn make(random: &mut Random, oracle: &Oracle, choices_max: usize) -> Asked {
    let route = random.pick(&[Route::Completions, Route::Completions, Route::Chat, Route::Generate]);
    let stream = random.chance(60);
    let mut body = json!({ "stream": stream, "temperature": random.pick(&[0.0, 1.0]) });
    let mut prompts = Vec::new();
    if route == Route::Chat {
        let messages = json!([{ "role": "user", "content": prompt_text(random, 8) }]);
        prompts.push(oracle.encode_chat(&messages));
        body["messages"] = messages;
    } else if random.chance(30) {
        let text = prompt_text(random, PROMPT_TOKENS_MAX);
        prompts.push(oracle.encode(&text));
        body["prompt"] = json!(text);
    } else {
        let several = route == Route::Completions && choices_max > 2 && random.chance(15);
        prompts.extend((0..if several { 2 } else { 1 }).map(|_| prompt_ids(random)));
        body["prompt"] = if several { json!(prompts) } else { json!(prompts[0]) };
    }
    let stops = stops(random, oracle, &prompts[0]);
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let stops = Stops { max_tokens: stops.max_tokens.min(64 - longest as u32), ..stops };
    body["max_tokens"] = json!(stops.max_tokens);
    body["stop"] = json!(stops.strings);
    body["stop_token_ids"] = json!(stops.ids);
    body["include_stop_str_in_output"] = json!(stops.include);
    body["priority"] = json!(random.pick(&[0, 0, 0, -1, 1, 2]));
    body["user"] = json!(random.pick(&["ada", "bob", "eve"]));
    let mut n = 1;
    if route != Route::Generate && choices_max / prompts.len() > 1 && random.chance(25) {
        n = random.between(2, (choices_max / prompts.len()).min(3) as u64) as usize;
        body["n"] = json!(n);
    }
    let counts = !stream || route != Route::Generate && random.chance(70);
    if stream && counts {
        body["stream_options"] = json!({ "include_usage": true });
    }
    let choices = prompts.iter().flat_map(|prompt| vec![oracle.answer(prompt, &stops); n]).collect();
    let prompt_tokens = prompts.iter().map(|prompt| prompt.len() as u64).sum();
    Asked { route, body, stream, counts, choices, prompt_tokens }
}
