//! Routes and options of other servers through the real processes: what is rendered is what is generated from, an
//! operator's chat template is used everywhere, and the access log has one line for each request.

use pinion_testkit::{Api, Folder, PATIENCE, Server, fake_model, run_to_end, wait_until};
use serde_json::{Value, json};

const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]";

fn chat() -> Value {
    json!([{"role": "user", "content": "Hé?"}])
}

/// The prompt of a chat as text, and as the ids that it is answered from.
fn check_rendered(server: &Server, expected: &str) {
    let oracle = server.oracle();
    let applied = server.post("/apply-template", &json!({"messages": chat()}));
    assert_eq!((applied.status(), applied.json()), (200, json!({ "prompt": expected })));
    let ids = oracle.encode(expected);
    let body = json!({"messages": chat(), "max_tokens": 9, "seed": 4, "return_token_ids": true});
    let rendered = server.post("/v1/chat/completions/render", &body).json();
    assert_eq!(rendered["token_ids"], json!(ids), "{rendered}");
    // The same as a prompt of ids, with the parameters that were rendered.
    let params = &rendered["sampling_params"];
    let again = json!({"prompt": rendered["token_ids"], "max_tokens": params["max_tokens"], "seed": params["seed"],
        "temperature": params["temperature"]});
    let (whole, again) =
        (server.post(Api::Chat.path(), &body).json(), server.post("/v1/completions", &again).json());
    assert_eq!(whole["prompt_token_ids"], json!(ids));
    assert_eq!(whole["choices"][0]["message"]["content"], again["choices"][0]["text"], "{whole} {again}");
}

#[test]
fn what_is_rendered_is_what_is_answered() {
    let folder = fake_model(512);
    folder.write("chat_template.jinja", TEMPLATE);
    let server = Server::start(folder.path(), &["--backend", "fake"]);
    check_rendered(&server, "[user]Hé?[assistant]");
    assert_eq!(server.get("/props").json()["chat_template"], TEMPLATE);
    for (route, body) in
        [("/invocations", json!({"messages": chat()})), ("/v1/rerank", json!({"query": "x"}))]
    {
        let expected = if route == "/invocations" { 200 } else { 400 };
        assert_eq!(server.post(route, &body).status(), expected, "{route}");
    }
    server.wait_idle();
    let page = server.get("/metrics").text();
    for name in ["vllm:iteration_tokens_total_count", "vllm:request_max_num_generation_tokens_count"] {
        let line = page.lines().find(|line| line.starts_with(name)).expect("the family is there");
        assert!(!line.ends_with(" 0"), "{line}");
    }
    server.stop();
}

#[test]
fn an_operator_s_template_replaces_the_model_s() {
    let folder = fake_model(512);
    folder.write("chat_template.jinja", TEMPLATE);
    let own = Folder::new();
    own.write("own.jinja", "{% for m in messages %}<{{ m.content }}>{% endfor %}");
    let file = own.path().join("own.jinja");
    let file = file.to_str().expect("temporary folders have UTF-8 names");
    for given in [file, "{% for m in messages %}<{{ m.content }}>{% endfor %}"] {
        let server = Server::start(folder.path(), &["--backend", "fake", "--chat-template", given]);
        check_rendered(&server, "<Hé?>");
        server.stop();
    }
    let path = folder.text().to_owned();
    let arguments = ["serve", &path, "--backend", "fake", "--port", "0", "--chat-template", "{% if %}"];
    let ended = run_to_end(&arguments, &[], PATIENCE);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("--chat-template: not a usable chat template: "), "{}", ended.stderr);
}

/// What a folder says that cannot be served costs the requests that need it, not the start.
#[test]
fn a_folder_without_a_default_template_and_with_an_odd_top_p_is_served() {
    let folder = fake_model(512);
    let named = json!({"name": "rag", "template": TEMPLATE});
    folder.write("tokenizer_config.json", json!({"chat_template": [named]}).to_string());
    folder.write("generation_config.json", r#"{"do_sample": false, "top_p": 0, "top_k": 20.0}"#);
    let server = Server::start(folder.path(), &["--backend", "fake"]);
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 2})).status(), 200);
    let mut chat = json!({"messages": chat(), "max_tokens": 2});
    let refused = server.post(Api::Chat.path(), &chat);
    let error = refused.json()["error"].take();
    assert_eq!((refused.status(), &error["param"]), (400, &json!("chat_template")), "{error}");
    assert!(error["message"].as_str().is_some_and(|message| message.contains("which are rag;")), "{error}");
    chat["chat_template"] = "rag".into();
    assert_eq!(server.post(Api::Chat.path(), &chat).status(), 200);
    let drawn = server.get("/v1/models").json()["data"][0]["default_sampling_params"].take();
    assert_eq!((&drawn["top_k"], drawn.get("top_p")), (&json!(20), None), "{drawn}");
    for words in ["generation_config.json: top_p is 0 and is ignored", "no default chat template"] {
        let told = wait_until(words, PATIENCE, || {
            let log = server.stderr_text();
            let told: Vec<String> =
                log.lines().filter(|line| line.contains(words)).map(str::to_owned).collect();
            (!told.is_empty()).then_some(told)
        });
        assert!(matches!(&told[..], [line] if line.contains("WARN")), "{told:?}");
    }
    server.stop();
}

#[test]
fn the_access_log_has_one_line_for_each_request() {
    let flags = ["--access-log", "--log-format", "json", "--api-key", "sk-secret", "--fake-step-us", "1000"];
    let server = Server::fake(&flags);
    let key = ("authorization", "Bearer sk-secret");
    let mut connection = server.connect();
    let mut ask = |method: &str, path: &str, label: &str, body: &str| {
        let fields = [key, ("x-request-id", label)];
        connection.request(method, path, &fields, body.as_bytes()).expect("a request can be written");
        connection.response().expect("every request is answered")
    };
    let body = r#"{"prompt": "secret words", "max_tokens": 7, "n": 2, "ignore_eos": true, "stream": true}"#;
    let streamed = ask("POST", "/v1/completions", "stream", body);
    let body = r#"{"prompt": "secret words", "max_tokens": 5, "ignore_eos": true}"#;
    let whole = ask("POST", "/v1/completions", "whole", body);
    let refused = ask("POST", "/v1/completions", "refused", r#"{"prompt": "secret words", "n": 0}"#);
    let looked = ask("GET", "/live?key=sk-secret", "looked", "");
    let counted = ask("POST", "/tokenize", "counted", r#"{"prompt": "secret words"}"#);
    let mut left = server.connect();
    let body = r#"{"prompt": "x", "max_tokens": 400, "ignore_eos": true, "stream": true}"#;
    left.request("POST", "/v1/completions", &[key, ("x-request-id", "left")], body.as_bytes())
        .expect("a request");
    drop(left);
    let lines = || -> Vec<Value> {
        let log = server.stderr_text();
        let parsed = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        parsed.filter(|line| line["message"] == "access").collect()
    };
    let lines =
        wait_until("six requests are logged", PATIENCE, || Some(lines()).filter(|lines| lines.len() >= 6));
    assert_eq!(lines.len(), 6, "{lines:?}");
    assert!(!server.stderr_text().contains("secret"), "no text and no key is logged");
    let of = |label: &str| lines.iter().find(|line| line["request_id"] == label);
    for (label, reply, path) in [
        ("stream", &streamed, "/v1/completions"),
        ("whole", &whole, "/v1/completions"),
        ("refused", &refused, "/v1/completions"),
        ("looked", &looked, "/live"),
        ("counted", &counted, "/tokenize"),
    ] {
        let line = of(label).unwrap_or_else(|| panic!("no line of {label}: {lines:?}"));
        assert_eq!(
            (&line["path"], line["status"].as_u64()),
            (&json!(path), Some(reply.status().into())),
            "{line}"
        );
        assert_eq!(line["bytes"].as_u64(), Some(reply.body.len() as u64), "{line}");
        assert!(line["total_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{line}");
        let generates = ["stream", "whole"].contains(&label);
        assert_eq!(line["ttft_ms"].as_f64().is_some_and(|ms| ms > 0.0), generates, "{line}");
    }
    let counts = |label: &str| {
        of(label).map(|line| {
            let count = |name: &str| line[name].as_u64();
            (count("prompt_tokens"), count("completion_tokens"), line["finish"].as_str())
        })
    };
    // The prompt of two choices counts once, as in `usage`.
    assert_eq!(counts("stream"), Some((Some(12), Some(14), Some("length"))));
    assert_eq!(counts("whole"), Some((Some(12), Some(5), Some("length"))));
    assert_eq!(counts("refused"), Some((None, None, None)));
    let gone = lines.iter().filter(|line| line["finish"] == "disconnected").count();
    assert_eq!(gone, 1, "{lines:?}");
    server.stop();
}
