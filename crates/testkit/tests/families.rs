//! Decoders of several families through the real processes: the ids of transformers' goldens, and chats and completions
//! of folders as they are published, streamed, cached, ended by each of their ends, and over the death of an engine.

use crate::tiny;
use pinion_model::{DtypeChoice, KvSize, Model, ModelOptions, OwnedBatch, load};
use pinion_testkit::{
    Answer, Api, Events, Folder, Oracle, PATIENCE, Server, Signal, continued, kill, launcher_binary,
    run_binary_to_end, wait_until,
};
use pinion_text::TextCodec;
use serde_json::{Value, json};
use std::cell::RefCell;

const CONTEXT: &str = "512";
const TOKENS: usize = 48;
/// Of a stream that is long enough to be interrupted.
const LONG: usize = 240;
/// Deaths of an engine until one interrupts a stream.
const DEATHS_MAX: usize = 20;
/// Spread of random weights at which greedy texts vary.
const DEVIATION: &str = "0.2";
const PROMPTS: [&str; 3] = [
    "Once upon a time",
    "1 + 1 = ",
    "A longer prompt, of which more than one block of the cache is made, so that a second request finds it again.",
];

fn ids(value: &Value) -> Vec<u32> {
    let items = value.as_array().unwrap_or_else(|| panic!("no list of ids: {value}"));
    items.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()).expect("a token id")).collect()
}

/// Each family's golden served whole: 16 prompts at once, streamed or not, by either backend.
#[test]
fn families_give_the_ids_of_transformers() {
    let native = ["llama-llama3", "qwen3", "gemma3", "smollm3"].map(|name| (name, "native"));
    let torch = ["qwen3", "gemma2"].map(|name| (name, "torch"));
    for (name, backend) in native.into_iter().chain(torch) {
        let golden = tiny::golden(name);
        let folder = tiny::folder(name, &golden);
        folder.write("tokenizer.json", pinion_text::byte_tokenizer_json().as_bytes());
        let served = golden.served.to_string();
        let flags = ["--dtype", "fp32", "--max-model-len", &served, "--backend", backend];
        let server = Server::start(&folder.0, &flags);
        let prompts: Vec<&[u32]> = golden.cases.iter().map(|case| case.prompt.as_slice()).collect();
        let tokens = golden.cases[0].greedy.len();
        let mut body = json!({"prompt": prompts, "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
            "return_token_ids": true});
        let whole = server.post("/v1/completions", &body).json();
        for (index, case) in golden.cases.iter().enumerate() {
            let choice = &whole["choices"][index];
            assert_eq!(ids(&choice["prompt_token_ids"]), case.prompt, "{name} {backend} {index}");
            assert_eq!(ids(&choice["token_ids"]), case.greedy, "{name} {backend} {index}");
        }
        body["stream"] = true.into();
        let streamed = streamed_ids(&server, Api::Completions, &body, prompts.len());
        for (index, case) in golden.cases.iter().enumerate() {
            assert_eq!(
                streamed[index],
                (case.prompt.clone(), case.greedy.clone()),
                "{name} {backend} {index}"
            );
        }
        server.stop();
    }
}

/// The prompt's and the answer's ids of each choice of a stream.
fn streamed_ids(server: &Server, api: Api, body: &Value, choices: usize) -> Vec<(Vec<u32>, Vec<u32>)> {
    let mut connection = server.connect();
    connection.request("POST", api.path(), &[], body.to_string().as_bytes()).expect("it is sent");
    let head = connection.head().expect("an answer");
    assert_eq!(head.status, 200);
    let mut events = Events::new(connection, head);
    let mut found = vec![(Vec::new(), Vec::new()); choices];
    while let Some(event) = events.next_event().expect("events") {
        let Ok(chunk) = serde_json::from_str::<Value>(&event.data) else {
            assert_eq!(event.data, "[DONE]");
            continue;
        };
        for choice in chunk["choices"].as_array().into_iter().flatten() {
            let at = choice["index"].as_u64().expect("an index") as usize;
            // A chat has those of its one prompt beside its choices.
            for prompt_ids in [&choice["prompt_token_ids"], &chunk["prompt_token_ids"]] {
                if !prompt_ids.is_null() {
                    assert!(found[at].0.is_empty(), "the prompt's ids come once");
                    found[at].0 = ids(prompt_ids);
                }
            }
            found[at].1.extend(ids(&choice["token_ids"]));
        }
    }
    found
}

/// A folder of this family, as the model maker writes it.
fn made(family: &str) -> Folder {
    let folder = Folder::new();
    let arguments =
        ["make-model", family, "--size", "tiny", "--deviation", DEVIATION, "--out", folder.text()];
    let ended = run_binary_to_end(&launcher_binary().with_file_name("xtask"), &arguments, &[], PATIENCE);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    folder
}

/// The model without any of the processes.
struct Reference(Box<dyn Model>);

impl Reference {
    fn load(folder: &Folder) -> Reference {
        let options = ModelOptions {
            dtype: DtypeChoice::F32,
            kv: KvSize::Blocks(64),
            max_model_len: Some(512),
            ..ModelOptions::default()
        };
        Reference(load(folder.path(), &options).unwrap_or_else(|error| panic!("{error}")))
    }

    /// The likeliest token, one step after another.
    fn greedy(&mut self, prompt: &[u32], count: usize) -> Vec<u32> {
        let blocks: Vec<u32> = (0..32).collect();
        let (mut found, mut logits) = (Vec::new(), Vec::new());
        let (mut next, mut start) = (prompt.to_vec(), 0);
        while found.len() < count {
            let mut batch = OwnedBatch::default();
            batch.push(0, start, &next, &blocks);
            self.0.logits(&batch.as_step(), &mut logits).expect("a step");
            start += next.len() as u32;
            let best = (0..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1)).map(|(id, _)| id);
            next = vec![best.expect("a vocabulary")];
            found.extend(&next);
        }
        found
    }
}

/// What a folder's checks share.
struct Family {
    name: &'static str,
    folder: Folder,
    server: Server,
    codec: TextCodec,
    /// What a prompt gives.
    reference: RefCell<Reference>,
    /// For each of [`PROMPTS`] its ids and the answer's.
    long: Vec<(Vec<u32>, Vec<u32>)>,
}

impl Family {
    fn start(name: &'static str) -> Family {
        let folder = made(name);
        let restarts = ["--restart-backoff", "20ms", "--restart-limit", "1000"];
        let flags = [&["--dtype", "fp32", "--max-model-len", CONTEXT][..], &restarts].concat();
        let server = Server::start(folder.path(), &flags);
        let codec = TextCodec::load(folder.path()).expect("the tokenizer loads");
        let mut reference = Reference::load(&folder);
        let long = PROMPTS.map(|text| {
            let prompt = codec.encode_framed(text, 1 << 20).expect("the prompt encodes");
            let answer = reference.greedy(&prompt, LONG);
            (prompt, answer)
        });
        Family { name, folder, server, codec, reference: RefCell::new(reference), long: long.into() }
    }

    /// A completion, whole and streamed, and a second time with its prompt in the cache.
    fn check_completions(&self) {
        for (text, (prompt, answer)) in PROMPTS.iter().zip(&self.long) {
            let expected = &answer[..TOKENS];
            let mut body = json!({"prompt": text, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": true,
                "return_token_ids": true});
            for round in 0..2 {
                let answer = self.server.post("/v1/completions", &body).json();
                let choice = &answer["choices"][0];
                assert_eq!(ids(&choice["prompt_token_ids"]), *prompt, "{} {text:?}", self.name);
                assert_eq!(ids(&choice["token_ids"]), expected, "{} {text:?} {round}", self.name);
                assert_eq!(choice["text"], continued(&self.codec, expected), "{} {text:?}", self.name);
                let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
                assert!(
                    round == 0 || prompt.len() < 20 || cached >= Some(16),
                    "{} {text:?}: {cached:?}",
                    self.name
                );
            }
            body["stream"] = true.into();
            let streamed = streamed_ids(&self.server, Api::Completions, &body, 1);
            assert_eq!(streamed, [(prompt.clone(), expected.to_vec())], "{} {text:?}", self.name);
        }
    }

    /// A chat through the folder's own template.
    fn check_chats(&self) {
        let messages = json!([{"role": "user", "content": "Say something."}]);
        let prompt = Oracle::of(self.folder.path()).encode_chat(&messages);
        let expected = self.reference.borrow_mut().greedy(&prompt, TOKENS);
        let mut body = json!({"messages": messages, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": true,
            "return_token_ids": true});
        let answer = self.server.post("/v1/chat/completions", &body).json();
        assert_eq!(ids(&answer["prompt_token_ids"]), prompt, "{}", self.name);
        assert_eq!(ids(&answer["choices"][0]["token_ids"]), expected, "{}", self.name);
        body["stream"] = true.into();
        let streamed = streamed_ids(&self.server, Api::Chat, &body, 1);
        assert_eq!(streamed, [(prompt, expected)], "{}", self.name);
    }

    /// Each end that generation_config.json names ends a text, unless the request ignores them.
    fn check_ends(&self) {
        let text = std::fs::read(self.folder.path().join("generation_config.json")).expect("it was made");
        let config: Value = serde_json::from_slice(&text).expect("it is JSON");
        let ends = match &config["eos_token_id"] {
            Value::Array(_) => ids(&config["eos_token_id"]),
            one => ids(&json!([one])),
        };
        for end in ends {
            let bias = json!({ end.to_string(): 100 });
            let mut body = json!({"prompt": "To the end", "max_tokens": 5, "temperature": 0, "logit_bias": bias,
                "return_token_ids": true});
            let ask = |body: &Value| self.server.post("/v1/completions", body).json()["choices"][0].clone();
            let ended = ask(&body);
            assert_eq!(ids(&ended["token_ids"]), [end], "{} {end}", self.name);
            assert_eq!((ended["text"].as_str(), ended["finish_reason"].as_str()), (Some(""), Some("stop")));
            body["ignore_eos"] = true.into();
            assert_eq!(ids(&ask(&body)["token_ids"]), [end; 5], "{} {end}", self.name);
        }
    }

    /// The engine dies under streams; each goes on to the text that it would have had.
    fn check_a_death(&self) {
        let expected: Vec<String> = self.long.iter().map(|(_, ids)| continued(&self.codec, ids)).collect();
        // So small a model may be through before the engine is hit.
        let hit = (0..DEATHS_MAX).any(|_| self.dies_under_streams(&expected));
        assert!(hit, "{}: nothing was interrupted by {DEATHS_MAX} deaths", self.name);
    }

    /// Whether a stream was interrupted.
    fn dies_under_streams(&self, expected: &[String]) -> bool {
        let server = &self.server;
        let victim = wait_until("the engine runs", PATIENCE, || server.role("engine-0"));
        let body = |text: &&str| json!({"prompt": text, "max_tokens": LONG, "temperature": 0, "ignore_eos": true, "stream": true});
        let begun = server.begin(Api::Completions, &PROMPTS.iter().map(body).collect::<Vec<_>>());
        kill(victim.pid, Signal::SIGKILL);
        for (events, expected) in begun.into_iter().zip(expected) {
            let answer = Answer::of_events(Api::Completions, events);
            assert_eq!((answer.status, &answer.text), (200, expected), "{}: {:?}", self.name, answer.end);
        }
        wait_until("the engine is back", PATIENCE, || {
            let back = server.role("engine-0").is_some_and(|role| role.pid != victim.pid);
            (back && server.get("/ready").status() == 200).then_some(())
        });
        server.metric("pinion_resumed_requests_total") > 0.0
    }
}

fn check(name: &'static str) {
    let family = Family::start(name);
    family.check_completions();
    family.check_chats();
    family.check_ends();
    family.check_a_death();
    family.server.stop();
}

#[test]
fn llama_is_served_whole() {
    check("llama");
}

#[test]
fn smollm2_is_served_whole() {
    check("smollm2");
}

#[test]
fn qwen3_is_served_whole() {
    check("qwen3");
}

#[test]
fn gemma3_is_served_whole() {
    check("gemma3");
}
