//! Texts that must follow a grammar, from the HTTP field to the text: whole and streamed, many at once, beside texts
//! that follow none, and beside grammars that are bombs.

use pinion_testkit::{Answer, Api, End, Server, beside_a_stream, check_refusal, fixture_model};
use regex::Regex;
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";

/// What is asked for, and whether a text is what was asked for.
struct Form {
    extra: Value,
    fits: fn(&str) -> bool,
}

fn matches(expression: &str, text: &str) -> bool {
    Regex::new(expression).expect("an expression").is_match(text)
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn is_person(text: &str) -> bool {
    let value = parsed(text);
    let Some(person) = value.as_object() else { return false };
    // The members come in the order of the schema.
    text.find("\"name\"") < text.find("\"age\"")
        && person.keys().all(|key| ["name", "age", "tags"].contains(&key.as_str()))
        && person["name"].as_str().is_some_and(|name| name.chars().count() <= 8)
        && person["age"].as_i64().is_some_and(|age| (0..=120).contains(&age))
        && person.get("tags").is_none_or(|tags| tags.as_array().is_some_and(|tags| tags.len() <= 2))
}

/// The fake model takes white space wherever it may, as far as it may: one schema allows none, the others have the
/// bound.
fn forms() -> Vec<Form> {
    let compact = json!({"whitespace_flexible": false});
    let person = json!({"x-guidance": compact, "type": "object", "properties": {"name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}},
        "required": ["name", "age"], "additionalProperties": false});
    let named =
        json!({"type": "json_schema", "json_schema": {"name": "person", "schema": person, "strict": true}});
    let short = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
        "additionalProperties": false});
    let lark = "start: item (\",\" item){0,3}\nitem: /[a-z]{1,3}/ \"=\" /[0-9]{1,2}/";
    vec![
        Form { extra: json!({"response_format": named}), fits: is_person },
        Form { extra: json!({"guided_json": short}), fits: |text| parsed(text)["ok"].is_boolean() },
        Form {
            extra: json!({"guided_json": short.to_string()}),
            fits: |text| parsed(text)["ok"].is_boolean(),
        },
        Form {
            extra: json!({"guided_regex": "\\d{3}-\\d{4}"}),
            fits: |text| matches(r"^\d{3}-\d{4}$", text),
        },
        Form { extra: json!({"guided_regex": "(ab|é){1,6}"}), fits: |text| matches("^(ab|é){1,6}$", text) },
        Form {
            extra: json!({"guided_choice": ["yes", "no", "日本"]}),
            fits: |text| ["yes", "no", "日本"].contains(&text),
        },
        Form {
            extra: json!({"guided_grammar": lark}),
            fits: |text| matches("^[a-z]{1,3}=[0-9]{1,2}(,[a-z]{1,3}=[0-9]{1,2}){0,3}$", text),
        },
        Form {
            extra: json!({"structured_outputs": {"regex": "x{3,5}"}}),
            fits: |text| matches("^x{3,5}$", text),
        },
        Form {
            extra: json!({"structured_outputs": {"choice": ["left", "right"]}}),
            fits: |text| text == "left" || text == "right",
        },
    ]
}

fn ask(server: &Server, api: Api, form: &Value, seed: u64, stream: bool) -> Answer {
    let mut body = json!({"temperature": 1, "seed": seed, "max_tokens": 200, "stream": stream});
    match api {
        Api::Chat => body["messages"] = json!([{"role": "user", "content": format!("question {seed}")}]),
        Api::Completions | Api::Generate => body["prompt"] = json!(format!("question {seed}")),
    }
    body.as_object_mut().expect("an object").extend(form.as_object().expect("an object").clone());
    let answer = server.ask(api, &body);
    assert_eq!((answer.status, &answer.end), (200, &End::Complete), "{body}");
    answer
}

/// All forms, some seeds, at once, beside streams without a form; then the same alone. A real model's logits differ in
/// their last bits from batch to batch, which a draw at temperature 1 may show: if it is not `exact`, only texts
/// without a form are compared, and they are greedy.
fn check_server(server: &Server, seeds: u64, exact: bool) {
    let forms = forms();
    let plain = json!({"ignore_eos": true, "temperature": 0, "max_tokens": 60});
    let answers: Vec<(usize, u64, Answer)> = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for seed in 0..seeds {
            for index in 0..=forms.len() {
                let extra = forms.get(index).map_or(&plain, |form| &form.extra);
                let api = if seed % 2 == 0 { Api::Completions } else { Api::Chat };
                threads.push(scope.spawn(move || (index, seed, ask(server, api, extra, seed, true))));
            }
        }
        threads.into_iter().map(|thread| thread.join().expect("a stream's thread")).collect()
    });
    for (index, seed, streamed) in answers {
        let api = if seed % 2 == 0 { Api::Completions } else { Api::Chat };
        let form = forms.get(index);
        let extra = form.map_or(&plain, |form| &form.extra);
        let whole = ask(server, api, extra, seed, false);
        assert!(
            whole.text == streamed.text || (!exact && form.is_some()),
            "{extra}, seed {seed}: {:?} alone, {:?} among others",
            whole.text,
            streamed.text
        );
        if let Some(form) = form {
            for answer in [&whole, &streamed] {
                assert!((form.fits)(&answer.text), "{extra}, seed {seed}: {:?}", answer.text);
                assert_eq!(answer.finish_reason.as_deref(), Some("stop"), "{extra}, seed {seed}: {answer:?}");
            }
        }
    }
}

#[test]
fn texts_of_the_fake_model_follow_their_grammars() {
    let server = Server::fake(&[]);
    check_server(&server, 4, true);
    // Any object may be long; what comes of it within its tokens is the beginning of one.
    let answer = ask(&server, Api::Chat, &json!({"response_format": {"type": "json_object"}}), 1, false);
    assert!(answer.text.trim_start().starts_with('{'), "{:?}", answer.text);
    server.wait_idle();
    server.stop();
}

#[test]
fn texts_of_the_model_follow_their_grammars() {
    let folder = fixture_model();
    let server = Server::start(folder.path(), &["--dtype", "fp32"]);
    check_server(&server, 3, false);
    server.wait_idle();
    server.stop();
}

#[test]
fn every_choice_follows_the_grammar_and_logprobs_and_stop_strings_go_with_it() {
    let server = Server::fake(&[]);
    let body =
        json!({"prompt": "pick", "n": 5, "guided_choice": ["yes", "no"], "max_tokens": 9, "logprobs": 2});
    let answer = server.post(COMPLETIONS, &body).json();
    let choices = answer["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 5);
    for choice in choices {
        let text = choice["text"].as_str().expect("a text");
        assert!(text == "yes" || text == "no", "{choice}");
        assert_eq!(choice["logprobs"]["tokens"].as_array().map(Vec::len), Some(text.len()), "{choice}");
    }
    let cut = json!({"guided_regex": "aaa-b+", "stop": ["-"], "min_tokens": 2});
    let answer = ask(&server, Api::Completions, &cut, 1, false);
    assert_eq!((answer.text.as_str(), answer.finish_reason.as_deref()), ("aaa", Some("stop")));
    let long = ask(&server, Api::Completions, &json!({"guided_regex": "c{50}", "max_tokens": 7}), 1, false);
    assert_eq!((long.text.as_str(), long.finish_reason.as_deref()), ("ccccccc", Some("length")));
    server.wait_idle();
    server.stop();
}

#[test]
fn what_is_no_grammar_or_a_bomb_is_refused_and_open_streams_notice_nothing() {
    beside_a_stream(|server, still_answers| {
        let chain = |n: usize| (0..n).map(|i| format!("r{i}: r{}\n", i + 1)).collect::<String>();
        let many: serde_json::Map<String, Value> = (0..2000).map(|i| (format!("p{i}"), json!({}))).collect();
        let cases = [
            ("guided_regex", json!("(")),
            ("guided_regex", json!("a?".repeat(5000))),
            ("guided_regex", json!("(".repeat(20_000) + "a" + &")".repeat(20_000))),
            ("guided_regex", json!("x".repeat(70_000))),
            ("guided_json", json!({"type": "nothing"})),
            ("guided_json", json!({"type": "integer", "multipleOf": 999_983})),
            ("guided_json", json!({"type": "object", "properties": many})),
            ("guided_json", json!({"$ref": "#"})),
            ("guided_grammar", json!("begin: \"a\"")),
            ("guided_grammar", json!(format!("start: r0\n{}r900: missing\n", chain(900)))),
            ("guided_grammar", json!(format!("start: r0\n{}", chain(5000)))),
            ("guided_grammar", json!("[".repeat(20_000))),
            ("guided_choice", json!(vec!["x"; 2000])),
            ("structured_outputs", json!({"grammar": "start: start"})),
        ];
        for (field, value) in cases {
            let name = format!("{field} = {}", &value.to_string()[..value.to_string().len().min(60)]);
            let body = json!({"prompt": "hi", "max_tokens": 2, field: value});
            check_refusal(&name, &server.post(COMPLETIONS, &body), 400, Some(field));
            still_answers(&name);
        }
        // The same bomb for every choice of a request is one bomb.
        let body = json!({"prompt": "hi", "n": 64, "guided_regex": "[ab]?".repeat(3000)});
        check_refusal("64 bombs", &server.post(COMPLETIONS, &body), 400, Some("guided_regex"));
        // Small to write and large to follow: some text comes, or one error, and no other request is affected.
        for expression in [".*a.{200}b.*", "(.*a.{1000})", r"(\p{L}|\p{N}){1,500}\p{Greek}{1,500}"] {
            let body = json!({"prompt": "hi", "max_tokens": 60, "guided_regex": expression, "stream": true});
            let answer = server.ask(Api::Completions, &body);
            assert_eq!(answer.status, 200, "{expression}");
            assert!(
                matches!(&answer.end, End::Complete) || answer.end == End::Error("grammar_failed".to_owned()),
                "{expression}: {:?}",
                answer.end
            );
            still_answers(expression);
        }
    });
}
