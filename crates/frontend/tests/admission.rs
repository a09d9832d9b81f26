//! Admission by tables: what passes, with which values, and what is refused, naming which field.
#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::asked::{FRESH_SEED, body, check_field, limits, passes, refused};
use pinion_frontend::admission::{Api, admit, admit_detokenize, admit_tokenize};
use pinion_protocol::tokenizer_inbox::{Prompt, Submit, TokenizerRecord, kind};
use pinion_protocol::{Claim, FaultCode, Reasoning, RequestId, Sampling};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

#[test]
fn every_number_is_typed_and_ranged_on_every_route() {
    let wrong_types = ["\"1\"", "true", "[]", "{}", "[1]"];
    for (api, max_tokens) in [
        (Api::Completions, "max_tokens"),
        (Api::Chat, "max_completion_tokens"),
        (Api::Chat, "max_tokens"),
        (Api::Generate, "max_new_tokens"),
        (Api::Generate, "max_tokens"),
    ] {
        for field in ["temperature", "top_p", "top_k", "seed", max_tokens] {
            check_field(api, field, &wrong_types, &["null"]);
        }
        check_field(
            api,
            "temperature",
            &["-0.1", "-1", "100.5", "1e308", "-1e308"],
            &["0", "0.0", "2", "100", "1e-300"],
        );
        check_field(api, "top_p", &["0", "-1", "1.01", "2", "1e300"], &["1", "0.5", "1e-320"]);
        check_field(
            api,
            "top_k",
            &["-2", "1.5", "2147483648", "9223372036854775808", "1e300"],
            &["-1", "0", "1", "40.0", "2147483647"],
        );
        check_field(
            api,
            "seed",
            &["1.5", "18446744073709551616", "-9223372036854775809"],
            &["-1", "0", "18446744073709551615", "-9223372036854775808"],
        );
        check_field(
            api,
            max_tokens,
            &["0", "-2", "1.5", "2147483648", "9007199254740992"],
            &["-1", "1", "2147483647"],
        );
        for field in ["stream", if api == Api::Generate { "do_sample" } else { "ignore_eos" }] {
            check_field(api, field, &["0", "\"true\"", "[]"], &["null", "false"]);
        }
    }
}

#[test]
fn penalties_biases_and_stop_ids_are_typed_and_ranged_on_every_route() {
    let numbers = ["\"1\"", "true", "[]", "{}", "1e308", "-1e308", "1e39"];
    let many_biases: Map<String, Value> = (0..1025).map(|id| (id.to_string(), json!(0))).collect();
    let many_biases = Value::Object(many_biases).to_string();
    let many_ids = json!(vec![1; 129]).to_string();
    for api in [Api::Completions, Api::Chat, Api::Generate] {
        for field in ["min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"] {
            check_field(api, field, &numbers, &["null", "1", "0.5"]);
        }
        check_field(api, "min_p", &["-0.1", "1.1"], &["0", "1", "1e-320"]);
        check_field(api, "repetition_penalty", &["0", "-1", "0.009", "100.1"], &["0.01", "1.0", "100"]);
        for field in ["frequency_penalty", "presence_penalty"] {
            check_field(api, field, &["-2.1", "2.01"], &["-2", "2", "0"]);
        }
        check_field(
            api,
            "logit_bias",
            &[
                "[1]",
                "3",
                "\"x\"",
                r#"{"1":"2"}"#,
                r#"{"1":null}"#,
                r#"{"1":101}"#,
                r#"{"1":-100.5}"#,
                r#"{"100":1}"#,
                r#"{"-1":1}"#,
                r#"{"01":1}"#,
                r#"{"+1":1}"#,
                r#"{" 1":1}"#,
                r#"{"1.0":1}"#,
                r#"{"a":1}"#,
                r#"{"":1}"#,
                r#"{"4294967296":1}"#,
                &many_biases,
            ],
            &["null", "{}", "[]", r#"{"0":-100,"99":100}"#, r#"{"7":0.5}"#],
        );
        check_field(
            api,
            "stop_token_ids",
            &[
                "3",
                "\"x\"",
                "{}",
                "[\"1\"]",
                "[1.5]",
                "[-1]",
                "[100]",
                "[4294967297]",
                "[null]",
                "[[1]]",
                &many_ids,
            ],
            &["null", "[]", "[0, 99]", "[1, 1]"],
        );
        let most = if api == Api::Generate { "64" } else { "16" };
        check_field(api, "min_tokens", &["-1", "65", "1.5", "\"1\"", "2147483648"], &["null", "0", most]);
        check_field(api, "include_stop_str_in_output", &["0", "\"true\"", "[]"], &["null", "false", "true"]);
    }
    // At most what may be generated, named or by default.
    check_field(Api::Completions, "min_tokens", &["17"], &["16"]);
    check_field(Api::Chat, "min_tokens", &[], &["64"]);
    let body = body(Api::Chat, json!({"max_tokens": 5, "min_tokens": 6})).to_string();
    assert_eq!(refused(Api::Chat, &body).1.as_deref(), Some("min_tokens"));
}

#[test]
fn logprobs_have_a_form_for_each_api() {
    let completions = |value: &str| {
        passes(Api::Completions, json!({"logprobs": serde_json::from_str::<Value>(value).unwrap()}))
    };
    for (value, expected) in [("null", None), ("false", None), ("0", Some(0)), ("20", Some(20))] {
        assert_eq!(completions(value).sampling.logprobs, expected, "{value}");
    }
    check_field(Api::Completions, "logprobs", &["21", "-1", "true", "1.5", "\"1\"", "[]", "1000000000"], &[]);
    let above = body(Api::Completions, json!({"logprobs": 21})).to_string();
    let fault = admit(Api::Completions, above.as_bytes(), &limits(), FRESH_SEED).unwrap_err();
    assert_eq!(fault.message, "logprobs must be an integer from 0 to 20, got 21");
    check_field(Api::Chat, "logprobs", &["0", "5", "\"true\"", "[]"], &["null", "false", "true"]);
    check_field(Api::Generate, "logprobs", &["0", "true"], &["null", "false"]);
    check_field(Api::Chat, "top_logprobs", &["21", "-1", "1.5", "true", "1000000000"], &["null", "0"]);
    for (body, expected) in [
        (json!({"logprobs": true}), Some(0)),
        (json!({"logprobs": true, "top_logprobs": 20}), Some(20)),
        (json!({"logprobs": false, "top_logprobs": 0}), None),
    ] {
        assert_eq!(passes(Api::Chat, body).sampling.logprobs, expected);
    }
    let above = body(Api::Chat, json!({"logprobs": true, "top_logprobs": 21})).to_string();
    assert_eq!(refused(Api::Chat, &above).1.as_deref(), Some("top_logprobs"));
}

#[test]
fn values_arrive_where_they_belong() {
    let full = passes(
        Api::Completions,
        json!({"model": "tiny", "temperature": 0.5, "top_p": 0.25, "top_k": 7, "seed": -2, "max_tokens": 9,
            "ignore_eos": true, "stop": ["a", "b"], "stream": true, "stream_options": {"include_usage": true},
            "min_p": 0.125, "repetition_penalty": 1.5, "frequency_penalty": -2, "presence_penalty": 0.75,
            "logit_bias": {"99": -100, "0": 1.5}, "stop_token_ids": [0, 99], "min_tokens": 3,
            "include_stop_str_in_output": true, "logprobs": 2,
            "user": "u", "metadata": {"k": "v"}, "store": true, "unheard_of": [1]}),
    );
    let expected = Sampling {
        temperature: 0.5,
        top_p: 0.25,
        top_k: Some(7),
        min_p: 0.125,
        repetition_penalty: 1.5,
        frequency_penalty: -2.0,
        presence_penalty: 0.75,
        seed: u64::MAX - 1,
        max_tokens: Some(9),
        min_tokens: 3,
        ignore_eos: true,
        logit_bias: vec![(99, -100.0), (0, 1.5)],
        logprobs: Some(2),
        prompt_logprobs: None,
        stop_token_ids: vec![0, 99],
        grammar: None,
        reasoning: Reasoning::None,
        continues: false,
    };
    assert_eq!(full.sampling, expected);
    assert_eq!((full.stop, full.form.include_stop), (vec!["a".to_owned(), "b".to_owned()], true));
    assert_eq!(
        (full.stream, full.include_usage, full.prompts),
        (true, true, vec![Prompt::Text("hi".into())])
    );

    let plain = passes(Api::Completions, json!({}));
    let default = Sampling { seed: FRESH_SEED, ..Sampling::default() };
    assert_eq!((&plain.sampling, plain.form.include_stop), (&default, false));
    assert_eq!(
        (plain.sampling.max_tokens, plain.sampling.seed, plain.sampling.top_k),
        (Some(16), FRESH_SEED, None)
    );
    assert_eq!(passes(Api::Chat, json!({})).sampling.max_tokens, None);
    let both = passes(Api::Chat, json!({"max_completion_tokens": 5, "max_tokens": 6}));
    assert_eq!(both.sampling.max_tokens, Some(5));
    let generate = passes(Api::Generate, json!({"temperature": 0.9, "stop_on_eos": false}));
    assert_eq!((generate.sampling.temperature, generate.sampling.ignore_eos), (0.0, true));
    assert_eq!(generate.sampling.max_tokens, Some(64));
    let as_in_vllm = passes(Api::Generate, json!({"max_tokens": 6}));
    assert_eq!(as_in_vllm.sampling.max_tokens, Some(6));
    let both = passes(Api::Generate, json!({"max_new_tokens": 5, "max_tokens": 6}));
    assert_eq!(both.sampling.max_tokens, Some(5));
    assert_eq!(
        passes(Api::Generate, json!({"temperature": 0.9, "do_sample": true})).sampling.temperature,
        0.9
    );
}

/// llama-server's clients send -1, its default, for "no limit", and `/props` shows it to them.
#[test]
fn minus_one_token_is_as_many_as_there_can_be_on_every_route() {
    let names = ["max_tokens", "n_predict", "max_new_tokens", "max_completion_tokens"];
    for (api, names) in
        [(Api::Completions, &names[..3]), (Api::Chat, &names[..]), (Api::Generate, &names[..3])]
    {
        for name in names {
            let body = json!({*name: -1, "min_tokens": 60});
            assert_eq!(passes(api, body).sampling.max_tokens, None, "{api:?} {name}");
        }
    }
    // It names no number, so another field's number holds.
    for body in [
        json!({"max_completion_tokens": -1, "max_tokens": 6}),
        json!({"max_completion_tokens": 6, "n_predict": -1}),
    ] {
        assert_eq!(passes(Api::Chat, body).sampling.max_tokens, Some(6));
    }
    let fault =
        admit(Api::Chat, br#"{"messages":[{"role":"user","content":"hi"}],"n_predict":0}"#, &limits(), 0);
    assert_eq!(fault.unwrap_err().message, "n_predict must be -1 or at least 1, got 0");
}

#[test]
fn a_seed_of_minus_one_is_none() {
    let with = |name: &str, seed: Value| {
        let admitted = passes(Api::Completions, json!({name: seed}));
        (admitted.sampling.seed, admitted.has_seed)
    };
    for name in ["seed", "random_seed", "sampling_seed"] {
        assert_eq!(with(name, json!(-1)), (FRESH_SEED, false), "{name}");
        assert_eq!(with(name, json!(null)), (FRESH_SEED, false), "{name}");
        assert_eq!(with(name, json!(0)), (0, true), "{name}");
        assert_eq!(with(name, json!(-2)), (u64::MAX - 1, true), "{name}");
        assert_eq!(with(name, json!(u64::MAX)), (u64::MAX, true), "{name}");
    }
}

#[test]
fn what_would_change_the_answer_is_refused_by_name_and_its_neutral_value_passes() {
    let table = [
        ("top_logprobs", "5", "0"),
        ("suffix", "\"x\"", "\"\""),
        ("chat_template", "\"{{ x }}\"", "null"),
        ("response_format", "3", "null"),
    ];
    for (field, refused_value, passing_value) in table {
        for api in [Api::Completions, Api::Chat, Api::Generate] {
            check_field(api, field, &[refused_value], &[passing_value]);
        }
    }
}

#[test]
fn what_is_shown_of_the_prompt_is_what_the_engine_is_asked_for() {
    // echo, logprobs, prompt_logprobs, max_tokens: what the engine is to report, or the field at fault.
    let table = [
        (json!({"echo": true}), Ok(None)),
        (json!({"echo": true, "max_tokens": 0}), Ok(None)),
        (json!({"echo": true, "logprobs": 3}), Ok(Some(3))),
        (json!({"echo": false, "logprobs": 3}), Ok(None)),
        (json!({"echo": true, "logprobs": 0, "stream": true}), Ok(Some(0))),
        (json!({"prompt_logprobs": 0, "max_tokens": 0}), Ok(Some(0))),
        (json!({"prompt_logprobs": 20}), Ok(Some(20))),
        (json!({"prompt_logprobs": 2, "echo": true, "logprobs": 5}), Ok(Some(5))),
        (json!({"prompt_logprobs": 7, "echo": true, "logprobs": 5}), Ok(Some(7))),
        (json!({"max_tokens": 0}), Err("max_tokens")),
        (json!({"max_tokens": 0, "logprobs": 3}), Err("max_tokens")),
        (json!({"max_tokens": 0, "echo": true, "min_tokens": 1}), Err("min_tokens")),
        (json!({"prompt_logprobs": 1, "stream": true}), Err("prompt_logprobs")),
    ];
    for (extra, expected) in table {
        let body = body(Api::Completions, extra.clone()).to_string();
        match expected {
            Ok(asked) => {
                assert_eq!(passes(Api::Completions, extra).sampling.prompt_logprobs, asked, "{body}")
            }
            Err(field) => assert_eq!(refused(Api::Completions, &body).1.as_deref(), Some(field), "{body}"),
        }
    }
    for api in [Api::Completions, Api::Chat] {
        check_field(
            api,
            "prompt_logprobs",
            &["-1", "21", "1000000000", "true", "\"1\"", "1.5"],
            &["0", "20", "null"],
        );
    }
    assert_eq!(passes(Api::Chat, json!({"prompt_logprobs": 4})).sampling.prompt_logprobs, Some(4));
    check_field(Api::Generate, "prompt_logprobs", &["1"], &["null"]);
    check_field(Api::Completions, "echo", &["1", "\"true\""], &["true", "false", "null"]);
    for api in [Api::Chat, Api::Generate] {
        check_field(api, "echo", &["true"], &["false"]);
    }
}

#[test]
fn tools_are_for_chats_and_their_elders_name_them() {
    for api in [Api::Completions, Api::Generate] {
        check_field(api, "tools", &["[{}]"], &["[]"]);
        check_field(
            api,
            "tool_choice",
            &["\"required\"", "{\"type\":\"function\"}"],
            &["\"auto\"", "\"none\""],
        );
    }
    for (field, successor) in [("functions", "tools"), ("function_call", "tool_choice")] {
        let text = body(Api::Chat, json!({field: [{"name": "f"}]})).to_string();
        let fault = admit(Api::Chat, text.as_bytes(), &limits(), FRESH_SEED).unwrap_err();
        assert_eq!(fault.param.as_deref(), Some(field));
        assert!(fault.message.contains(&format!("has become {successor}")), "{fault}");
    }
}

#[test]
fn prompts_in_every_shape() {
    let table = [
        ("\"hi\"", Some(vec![Prompt::Text("hi".into())])),
        ("[\"hi\"]", Some(vec![Prompt::Text("hi".into())])),
        ("[1,2]", Some(vec![Prompt::Ids(vec![1, 2])])),
        ("[[1,99]]", Some(vec![Prompt::Ids(vec![1, 99])])),
        ("[[1],\"a\"]", Some(vec![Prompt::Ids(vec![1]), Prompt::Text("a".into())])),
        ("null", None),
        ("3", None),
        ("{}", None),
        ("[]", None),
        ("[[]]", None),
        ("[[1],2]", None),
        ("[[1],[100]]", None),
        ("[1,\"a\"]", None),
        ("[100]", None),
        ("[-1]", None),
        ("[1.5]", None),
        ("[4294967297]", None),
        ("[true]", None),
    ];
    for (text, expected) in table {
        let body = format!("{{\"prompt\":{text}}}");
        match expected {
            Some(prompt) => {
                let admitted = admit(Api::Completions, body.as_bytes(), &limits(), 0).unwrap();
                assert_eq!(admitted.prompts, prompt, "{text}");
            }
            None => assert_eq!(refused(Api::Completions, &body).1.as_deref(), Some("prompt"), "{text}"),
        }
    }
    let long = format!("{{\"prompt\":{:?}}}", vec![1; 65]);
    assert_eq!(refused(Api::Completions, &long).0, FaultCode::ContextLengthExceeded);
}

#[test]
fn stop_strings_models_and_stream_options() {
    let too_many = Value::from(vec!["x"; 17]).to_string();
    let too_long = Value::from("x".repeat(257)).to_string();
    check_field(
        Api::Chat,
        "stop",
        &["\"\"", "[\"\"]", "3", "[3]", "{}", &too_many, &too_long],
        &["null", "[]", "\"x\"", "[\"\\n\\n\", \"終\"]"],
    );
    assert_eq!(refused(Api::Chat, r#"{"model":"other"}"#).0, FaultCode::ModelNotFound);
    assert_eq!(refused(Api::Chat, r#"{"model":3}"#).1.as_deref(), Some("model"));
    let without_stream = body(Api::Chat, json!({"stream_options": {"include_usage": true}})).to_string();
    assert_eq!(refused(Api::Chat, &without_stream).1.as_deref(), Some("stream_options"));
    let not_bool =
        body(Api::Chat, json!({"stream": true, "stream_options": {"include_usage": 1}})).to_string();
    assert_eq!(refused(Api::Chat, &not_bool).1.as_deref(), Some("stream_options.include_usage"));
}

#[test]
fn tokenize_and_detokenize_take_their_fields() {
    let tokenize = |text: &str| {
        admit_tokenize(text.as_bytes(), &limits()).map(|(prompt, _)| prompt).map_err(|f| f.param)
    };
    assert_eq!(tokenize(r#"{"prompt":"a"}"#), Ok(Prompt::Text("a".into())));
    assert!(matches!(tokenize(r#"{"messages":[{"role":"user","content":"a"}]}"#), Ok(Prompt::Chat(_))));
    for bad in ["{}", r#"{"prompt":[1]}"#, r#"{"prompt":"a","messages":[]}"#, r#"{"messages":[]}"#] {
        assert!(tokenize(bad).unwrap_err().is_some(), "{bad}");
    }
    let detokenize =
        |text: &str| admit_detokenize(text.as_bytes(), &limits()).map(|(ids, _)| ids).map_err(|f| f.param);
    assert_eq!(detokenize(r#"{"tokens":[1,2]}"#), Ok(vec![1, 2]));
    for bad in ["{}", r#"{"tokens":[100]}"#, r#"{"tokens":"a"}"#, r#"{"tokens":[-1]}"#] {
        assert_eq!(detokenize(bad), Err(Some("tokens".to_owned())), "{bad}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<f32>().prop_map(|x| Value::from(f64::from(x))),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(".{0,6}", inner, 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// Whatever stands in the fields, admission answers with a fault or with values that the engine's own
    /// check accepts.
    #[test]
    fn no_value_of_any_field_gets_through_unchecked(
        values in prop::collection::vec(any_json(), 24), api_index in 0usize..3, keep in any::<u32>(),
    ) {
        let api = [Api::Completions, Api::Chat, Api::Generate][api_index];
        let names = ["prompt", "messages", "temperature", "top_p", "top_k", "seed", "max_tokens",
            "max_completion_tokens", "max_new_tokens", "stop", "stream", "stream_options", "min_p",
            "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "stop_token_ids",
            "min_tokens", "include_stop_str_in_output", "logprobs", "top_logprobs", "priority", "user"];
        let mut fields = body(api, json!({}));
        for (i, (name, value)) in names.iter().zip(values).enumerate() {
            if keep >> i & 1 == 1 {
                fields.as_object_mut().unwrap().insert((*name).to_owned(), value);
            }
        }
        if let Ok(admitted) = admit(api, fields.to_string().as_bytes(), &limits(), FRESH_SEED) {
            let submit = Submit {
                id: RequestId::default(),
                claim: Claim { priority: admitted.priority, ..Claim::default() },
                sampling: admitted.sampling,
                prompt: admitted.prompts[0].clone(),
                truncation: admitted.truncation,
                asked_unix_s: 0,
                resume: Vec::new(),
            };
            let mut bytes = Vec::new();
            submit.encode(&mut bytes);
            let decoded = TokenizerRecord::decode(kind::SUBMIT, &bytes);
            prop_assert_eq!(decoded, Ok(TokenizerRecord::Submit(submit)), "{}", fields);
        }
    }

    /// Arbitrary bytes never panic.
    #[test]
    fn arbitrary_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = admit(Api::Chat, &bytes, &limits(), FRESH_SEED);
    }
}

#[test]
fn a_list_of_prompts_is_for_completions_only() {
    let list = r#"{"prompt":["a","b"],"n":2}"#;
    let admitted = admit(Api::Completions, list.as_bytes(), &limits(), 0).unwrap();
    assert_eq!((admitted.prompts.len(), admitted.choices_per_prompt), (2, 2));
    assert_eq!(refused(Api::Generate, r#"{"prompt":["a","b"]}"#).1.as_deref(), Some("prompt"));
    assert_eq!(refused(Api::Generate, r#"{"prompt":"a","n":2}"#).1.as_deref(), Some("n"));
}
