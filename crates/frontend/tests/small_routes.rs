//! Routes of other servers: those for models that pool, llama-server's, vLLM's render, SageMaker's; and fields that
//! nothing knows, by API.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::harness::{Harness, Options, run};
use pinion_config::SamplingDefaults;
use pinion_protocol::frontend_inbox::{DELTA_LAST, Decoded, Encoded, FinishReason, kind};
use pinion_protocol::tokenizer_inbox::{Prompt, TokenizerRecord, Truncation};
use pinion_text::chat::Described;
use serde_json::{Value, json};

const CHAT: &str = r#"{"messages":[{"role":"user","content":"hi"}]}"#;

/// Plays the tokenizer for one prompt: gives it and answers with these ids.
async fn encode(h: &Harness, ids: &[u32]) -> Prompt {
    let TokenizerRecord::Encode(job) = h.job().await else { panic!("not an encode") };
    let mut record = Vec::new();
    Encoded { id: job.id, ids: ids.to_vec() }.encode(&mut record);
    h.take(kind::ENCODED, &record);
    job.prompt
}

#[test]
fn a_model_that_does_not_pool_says_so_once_and_for_all() {
    run(Options::default(), |h| async move {
        let (start, routes) = ("--pooling", "/v1/embeddings, /v1/score");
        for (path, gives, code, hint) in [
            ("/v1/embeddings", "no embeddings", "no_embeddings", start),
            ("/v1/rerank", "no scores", "no_pooling", start),
            ("/rerank", "no scores", "no_pooling", start),
            ("/v2/rerank", "no scores", "no_pooling", start),
            ("/v1/score", "no scores", "no_pooling", start),
            ("/score", "no scores", "no_pooling", start),
            ("/pooling", "no raw vectors", "no_pooling", routes),
            ("/classify", "no classes", "no_pooling", routes),
        ] {
            let reply = h.post(path, &format!("{{\"input\": \"{}\"}}", "x".repeat(50_000))).await;
            let error = reply.json()["error"].take();
            assert_eq!((reply.status, &error["code"]), (400, &json!(code)), "{path}");
            assert!(reply.head.contains("x-should-retry: false"), "{path}: {}", reply.head);
            let message = error["message"].as_str().unwrap();
            for words in ["\"tiny\"", gives, hint] {
                assert!(message.contains(words), "{path}: {message}");
            }
            assert_eq!((&error["type"], &error["param"]), (&json!("invalid_request_error"), &json!("model")));
            assert_eq!(h.get(path).await.status, 405, "{path}");
        }
    });
}

#[test]
fn props_are_llama_server_s() {
    let template = Described {
        template: Some("{{ messages }}".into()),
        with_tools: Some("{{ tools }}".into()),
        bos_token: Some("<s>".into()),
        ..Described::default()
    };
    let defaults = SamplingDefaults { temperature: Some(0.6), top_k: Some(20), ..SamplingDefaults::NONE };
    run(Options { template, defaults, ..Options::default() }, |h| async move {
        let reply = h.get("/props").await;
        let props = reply.json();
        assert_eq!(reply.status, 200);
        let settings = &props["default_generation_settings"];
        assert_eq!((&settings["n_ctx"], &props["total_slots"]), (&json!(4096), &json!(8)));
        let params = &settings["params"];
        assert_eq!(
            (&params["temperature"], &params["top_k"], &params["top_p"], &params["n_predict"]),
            (&json!(0.6), &json!(20), &json!(1.0), &json!(-1))
        );
        assert_eq!((&props["model_alias"], &props["model_path"]), (&json!("tiny"), &json!("tiny")));
        assert_eq!(
            (
                &props["chat_template"],
                &props["chat_template_tool_use"],
                &props["bos_token"],
                &props["eos_token"]
            ),
            (&json!("{{ messages }}"), &json!("{{ tools }}"), &json!("<s>"), &json!(""))
        );
        assert_eq!(h.post("/props", "{}").await.status, 405);
        // What it shows may be asked for.
        for name in ["n_predict", "max_tokens"] {
            let mut body: Value = serde_json::from_str(CHAT).unwrap();
            body[name] = params[name].clone();
            let client = h.post_raw("/v1/chat/completions", &body.to_string()).await;
            assert_eq!(h.submit().await.sampling.max_tokens, None, "{name}");
            drop(client);
        }
    });
    run(Options::default(), |h| async move {
        let props = h.get("/props").await.json();
        assert_eq!((&props["chat_template"], props.get("chat_template_tool_use")), (&json!(""), None));
    });
}

#[test]
fn a_template_is_applied_by_the_tokenizer() {
    run(Options::default(), |h| async move {
        // The body of a chat passes as it is; what does not make the prompt is left alone.
        let body = r#"{"messages":[{"role":"user","content":"hé"}],"tools":[{"type":"function","function":{"name":"f"}}],
            "chat_template_kwargs":{"enable_thinking":false},"temperature":0.1,"stream":true}"#;
        let (reply, chat) = tokio::join!(h.post("/apply-template", body), async {
            let TokenizerRecord::Render(render) = h.job().await else { panic!("not a render") };
            let mut record = Vec::new();
            Decoded { id: render.id, text: "<user>hé".into() }.encode(&mut record);
            h.take(kind::DECODED, &record);
            serde_json::from_str::<Value>(&render.chat).unwrap()
        });
        assert_eq!((reply.status, reply.json()), (200, json!({"prompt": "<user>hé"})));
        assert_eq!(chat["messages"][0]["content"], "hé");
        assert_eq!(chat["tools"][0]["function"]["name"], "f");
        assert_eq!(chat["chat_template_kwargs"]["enable_thinking"], false);
        for (body, param) in [("{}", "messages"), (r#"{"messages":[],"model":"tiny"}"#, "messages")] {
            let refused = h.post("/apply-template", body).await;
            assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)));
        }
        assert_eq!(h.slots_used(), 0);
    });
}

#[test]
fn a_rendered_chat_has_its_ids_and_how_it_would_be_answered() {
    run(Options::default(), |h| async move {
        let body = r#"{"messages":[{"role":"user","content":"hi"}],"temperature":0.7,"seed":-5,"stop":"x","n":2,
            "logit_bias":{"7":1.5},"priority":3,"stream":true,"stream_options":{"include_usage":true},"frob":1}"#;
        let (reply, prompt) =
            tokio::join!(h.post("/v1/chat/completions/render", body), encode(&h, &[4, 5, 6]));
        assert!(matches!(prompt, Prompt::Chat(_)));
        let rendered = reply.json();
        assert_eq!((reply.status, &rendered["token_ids"]), (200, &json!([4, 5, 6])), "{reply:?}");
        assert!(rendered["request_id"].as_str().unwrap().starts_with("chatcmpl-"));
        assert!(reply.head.contains("x-pinion-ignored-fields: frob"), "{}", reply.head);
        let params = &rendered["sampling_params"];
        // As many as the context holds behind the prompt.
        assert_eq!((&params["max_tokens"], &params["n"]), (&json!(4093), &json!(2)));
        assert_eq!(
            (&params["temperature"], &params["seed"], &params["stop"]),
            (&json!(0.7), &json!(-5), &json!(["x"]))
        );
        assert_eq!((&params["logit_bias"], &params["top_k"]), (&json!({"7": 1.5}), &json!(0)));
        assert_eq!((&rendered["priority"], &rendered["stream"]), (&json!(3), &json!(true)));
        assert_eq!(rendered["stream_options"]["include_usage"], true);

        let body = r#"{"messages":[{"role":"user","content":"hi"}],"guided_choice":["a","b"]}"#;
        let (reply, _) = tokio::join!(h.post("/v1/chat/completions/render", body), encode(&h, &[4]));
        let params = reply.json()["sampling_params"].take();
        assert_eq!(params["structured_outputs"], json!({"choice": ["a", "b"]}));
        assert_eq!((&params["seed"], &params["logit_bias"]), (&Value::Null, &Value::Null));
        assert_eq!(h.slots_used(), 0);
    });
}

#[test]
fn rendered_prompts_are_a_list_and_what_would_be_refused_is_refused() {
    run(Options::default(), |h| async move {
        let body =
            r#"{"prompt":["a",[7,8]],"max_tokens":5,"truncate_prompt_tokens":1,"allowed_token_ids":[3]}"#;
        let (reply, _) = tokio::join!(h.post("/v1/completions/render", body), async {
            let TokenizerRecord::Encode(asked) = h.job().await else { panic!("not an encode") };
            assert_eq!(asked.truncation, Truncation::Last(1), "the tokenizer knows what is framed");
            let mut record = Vec::new();
            Encoded { id: asked.id, ids: vec![2] }.encode(&mut record);
            h.take(kind::ENCODED, &record);
        });
        let all = reply.json();
        assert_eq!((&all[0]["token_ids"], &all[1]["token_ids"]), (&json!([2]), &json!([8])), "{all}");
        assert_eq!(all[1]["sampling_params"]["max_tokens"], 5);
        assert_eq!(all[1]["sampling_params"]["allowed_token_ids"], json!([3]));
        let long = vec![1; 4095];
        for (max_tokens, status) in [(1, 200), (2, 400)] {
            let body = json!({"prompt": long, "max_tokens": max_tokens}).to_string();
            let reply = h.post("/v1/completions/render", &body).await;
            assert_eq!(reply.status, status, "{max_tokens}");
            if status == 400 {
                assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
            }
        }
        for (path, param) in
            [("/v1/completions/render", "prompt"), ("/v1/chat/completions/render", "messages")]
        {
            let refused = h.post(path, "{}").await;
            assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)), "{path}");
        }
        let body = r#"{"prompt":[""]}"#;
        let (refused, _) = tokio::join!(h.post("/v1/completions/render", body), encode(&h, &[]));
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("prompt")));
        let refused = h.post("/v1/completions/render", r#"{"prompt":"a","temperature":-1}"#).await;
        assert_eq!(refused.json()["error"]["param"], "temperature");
        let other = h.post("/v1/completions/render", r#"{"prompt":"a","model":"other"}"#).await;
        assert_eq!((other.status, &other.json()["error"]["code"]), (404, &json!("model_not_found")));
    });
}

#[test]
fn an_invocation_is_a_chat_or_a_completion() {
    run(Options::default(), |h| async move {
        for (body, object) in [
            (CHAT, "chat.completion"),
            (r#"{"prompt":"hi"}"#, "text_completion"),
            (r#"{"prompt":"hi","stream":true}"#, "text_completion"),
        ] {
            let (reply, ()) = tokio::join!(h.post("/invocations", body), async {
                let id = h.submit().await.id;
                h.delta(id, 0, &[1], "a", DELTA_LAST);
                h.finish(id, FinishReason::Stop, 1);
            });
            assert_eq!(reply.status, 200, "{body}");
            let first = if body.contains("stream") { reply.events().remove(0) } else { reply.body.clone() };
            let first: Value = serde_json::from_str(&first).unwrap();
            assert_eq!(first["object"], object, "{body}");
        }
        for (body, param) in
            [("{}", json!("prompt")), (r#"{"messages":5}"#, json!("messages")), ("[]", Value::Null)]
        {
            let refused = h.post("/invocations", body).await;
            assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &param), "{body}");
        }
    });
}

#[test]
fn strict_fields_suggest_the_field_that_was_meant_on_every_api() {
    run(Options { strict_fields: true, ..Options::default() }, |h| async move {
        for (path, body, meant) in [
            ("/v1/completions", r#"{"prompt":"x","max_token":3}"#, "max_tokens"),
            (
                "/v1/chat/completions",
                r#"{"messages":[{"role":"user","content":"x"}],"temprature":0}"#,
                "temperature",
            ),
            (
                "/v1/messages",
                r#"{"max_tokens":3,"messages":[{"role":"user","content":"x"}],"stop_sequence":["x"]}"#,
                "stop_sequences",
            ),
            ("/v1/responses", r#"{"input":"x","max_output_token":3}"#, "max_output_tokens"),
            ("/tokenize", r#"{"prompt":"x","add_special_token":false}"#, "add_special_tokens"),
            ("/detokenize", r#"{"tokens":[1],"modell":"tiny"}"#, "model"),
        ] {
            let reply = h.post(path, body).await;
            let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
            assert_eq!(reply.status, 400, "{path}: {message}");
            assert!(message.ends_with(&format!("; did you mean {meant}?")), "{path}: {message}");
        }
    });
}

#[test]
fn a_tokenizer_s_routes_name_what_they_ignore() {
    run(Options::default(), |h| async move {
        let (reply, _) = tokio::join!(
            h.post("/tokenize", r#"{"prompt":"x","return_token_strs":true}"#),
            encode(&h, &[4, 5])
        );
        assert_eq!((reply.status, &reply.json()["count"]), (200, &json!(2)));
        assert!(reply.head.contains("x-pinion-ignored-fields: return_token_strs"), "{}", reply.head);
        let (reply, ()) = tokio::join!(h.post("/detokenize", r#"{"tokens":[4],"skip":1}"#), async {
            let TokenizerRecord::Decode(job) = h.job().await else { panic!("not a decode") };
            let mut record = Vec::new();
            Decoded { id: job.id, text: "x".into() }.encode(&mut record);
            h.take(kind::DECODED, &record);
        });
        assert_eq!((reply.status, reply.json()), (200, json!({"prompt": "x"})));
        assert!(reply.head.contains("x-pinion-ignored-fields: skip"), "{}", reply.head);
    });
}
