//! Vectors over the real processes: with the fake model every number is known, also when the engine dies meanwhile; a
//! tiny GPT-2 gives the same vectors alone, in a batch and in chunks.

use pinion_model::fake_vector;
use pinion_testkit::{
    Folder, PATIENCE, Server, Signal, fake_model, fixture_model, kill, run_to_end, wait_until,
};
use serde_json::{Value, json};

fn unit(values: &[f32]) -> Vec<f64> {
    let length = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    values.iter().map(|value| f64::from(*value) / length).collect()
}

fn floats(values: &Value) -> Vec<f64> {
    values.as_array().expect("a list").iter().map(|value| value.as_f64().expect("a number")).collect()
}

fn check_near(have: &[f64], want: &[f64], what: &str) {
    let far = have.iter().zip(want).any(|(a, b)| (a - b).abs() > 1e-6);
    assert!(have.len() == want.len() && !far, "{what}: {have:?}, not {want:?}");
}

/// The answer has the fake model's vector of each text.
fn check_fake(answer: &Value, texts: &[String]) {
    let data = answer["data"].as_array().expect("a list of embeddings");
    assert_eq!(data.len(), texts.len());
    for (index, text) in texts.iter().enumerate() {
        // The byte tokenizer's ids are the bytes.
        let ids: Vec<u32> = text.bytes().map(u32::from).collect();
        assert_eq!(data[index]["index"], index);
        check_near(&floats(&data[index]["embedding"]), &unit(&fake_vector(&ids)), text);
    }
    let tokens: usize = texts.iter().map(String::len).sum();
    assert_eq!(answer["usage"], json!({"prompt_tokens": tokens, "total_tokens": tokens}));
}

fn texts(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("{index} {}", "lorem ipsum ".repeat(index % 9))).collect()
}

#[test]
fn every_text_gets_its_vector_also_when_the_engine_dies() {
    let server =
        Server::fake(&["--pooling", "last", "--max-num-batched-tokens", "64", "--max-num-seqs", "16"]);
    let texts = texts(300);
    check_fake(&server.post("/v1/embeddings", &json!({"input": texts})).json(), &texts);
    let whole =
        server.post("/v1/embeddings", &json!({"input": texts[5], "encoding_format": "base64"})).json();
    assert!(whole["data"][0]["embedding"].as_str().is_some_and(|text| text.len() == 44), "{whole}");
    let refused =
        server.post("/v1/chat/completions", &json!({"messages": [{"role": "user", "content": "a"}]}));
    assert_eq!((refused.status(), &refused.json()["error"]["code"]), (400, &json!("no_generation")));
    let ranked = json!({"query": texts[3], "documents": [texts[1], texts[3]], "top_n": 1});
    let ranked = server.post("/v1/rerank", &ranked).json();
    assert_eq!(ranked["results"][0]["index"], 1, "{ranked}");
    server.wait_idle();
    server.stop();

    let slow = ["--pooling", "mean", "--fake-step-us", "20000", "--max-num-seqs", "4"];
    let server = Server::fake(&slow);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| server.post("/v1/embeddings", &json!({"input": texts})));
        // A text of one step never shows in the gauge of running requests.
        let has_begun = || (server.metric("pinion_prompt_tokens_total") > 0.0).then_some(());
        wait_until("the first texts", PATIENCE, has_begun);
        kill(server.role("engine-0").expect("it runs").pid, Signal::SIGKILL);
        check_fake(&asked.join().expect("an answer").json(), &texts);
    });
    server.wait_idle();
    server.stop();
}

#[test]
fn the_access_log_counts_all_texts_of_a_request() {
    let flags = ["--pooling", "last", "--max-num-seqs", "4", "--access-log", "--log-format", "json"];
    let server = Server::fake(&flags);
    let answer = server.post("/v1/embeddings", &json!({"input": texts(40)})).json();
    let line = wait_until("the line of the request", PATIENCE, || {
        let log = server.stderr_text();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| line["message"] == "access" && line["path"] == "/v1/embeddings")
    });
    let counts = (&line["prompt_tokens"], &line["completion_tokens"], &line["finish"]);
    assert_eq!(counts, (&answer["usage"]["prompt_tokens"], &json!(0), &json!("answered")), "{line}");
    // Nor is there a line for each text without the access log.
    let long = "x".repeat(5000);
    assert_eq!(server.post("/v1/embeddings", &json!({"input": ["a", long]})).status(), 400);
    server.wait_idle();
    let lines = wait_until("both lines", PATIENCE, || {
        let log = server.stderr_text();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let lines: Vec<Value> = lines.filter(|line| line["message"] == "request").collect();
        (lines.len() >= 2).then_some(lines)
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!((&lines[0]["texts"], &lines[0]["reason"]), (&json!(40), &json!("answered")), "{lines:?}");
    assert_eq!(lines[0]["prompt_tokens"], answer["usage"]["prompt_tokens"]);
    assert!(lines[0]["e2e_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{lines:?}");
    assert_eq!((&lines[1]["reason"], lines[1].get("e2e_ms")), (&json!("rejected"), None), "{lines:?}");
    server.stop();
}

/// A tiny GPT-2 that pools as a folder of sentence-transformers says.
fn pooled_folder(mode: &str) -> Folder {
    let folder = fixture_model();
    let module = |at: u32, path: &str, name: &str| {
        json!({"idx": at, "name": at.to_string(), "path": path,
            "type": format!("sentence_transformers.models.{name}")})
    };
    let modules =
        [module(0, "", "Transformer"), module(1, "1_Pooling", "Pooling"), module(2, "2_N", "Normalize")];
    folder.write("modules.json", Value::from(modules.to_vec()).to_string());
    std::fs::create_dir(folder.path().join("1_Pooling")).expect("a folder can be made");
    folder.write("1_Pooling/config.json", json!({ "pooling_mode": mode }).to_string());
    folder
}

#[test]
fn a_real_model_gives_the_same_vectors_alone_in_a_batch_and_in_chunks() {
    let folder = pooled_folder("mean");
    let texts: Vec<String> = texts(12).into_iter().map(|text| text.chars().take(100).collect()).collect();
    let ask = |server: &Server, input: Value| {
        let answer = server.post("/v1/embeddings", &json!({ "input": input })).json();
        let data = answer["data"].as_array().unwrap_or_else(|| panic!("{answer}")).clone();
        data.iter().map(|one| floats(&one["embedding"])).collect::<Vec<_>>()
    };
    let server = Server::start(folder.path(), &["--dtype", "fp32"]);
    let together = ask(&server, json!(texts));
    for (text, vector) in texts.iter().zip(&together) {
        check_near(&ask(&server, json!(text))[0], vector, text);
        let length = vector.iter().map(|value| value * value).sum::<f64>();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
    server.stop();
    let server = Server::start(folder.path(), &["--dtype", "fp32", "--prefill-chunk-size", "7"]);
    for (vector, text) in ask(&server, json!(texts)).iter().zip(&texts) {
        check_near(vector, &together[texts.iter().position(|other| other == text).expect("it is one")], text);
    }
    server.stop();
}

#[test]
fn a_folder_that_pools_otherwise_is_refused_by_the_key_s_name() {
    let folder = fake_model(64);
    let pooled = pooled_folder("cls");
    for name in ["modules.json", "1_Pooling/config.json"] {
        let to = folder.path().join(name);
        std::fs::create_dir_all(to.parent().expect("a file has a folder")).expect("a folder can be made");
        std::fs::copy(pooled.path().join(name), to).expect("a file can be copied");
    }
    let ended = run_to_end(&["serve", folder.text(), "--backend", "fake", "--port", "0"], &[], PATIENCE);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("1_Pooling/config.json: cls is not supported"), "{}", ended.stderr);
}
