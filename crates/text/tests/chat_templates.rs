//! Chat templates against what jinja2 renders for them, and against templates that mean harm.
//!
//! `tests/make_chat_fixtures.py` writes the expected texts; `tests/published_chat_templates.sh` does the same
//! for templates that models are published with, and runs [`published_templates_render_as_in_jinja2`].

#![allow(clippy::unwrap_used)] // a failed unwrap here is a failed test

use pinion_protocol::Fault;
use pinion_protocol::Reasoning;
use pinion_text::ChatRenderer;
use pinion_text::chat::{RENDERED_BYTES_MAX, TEMPLATE_STEPS_MAX};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat_templates")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The text of `"name": {...}` for each member of an object, so that keys keep their order.
fn members(json: &str) -> BTreeMap<String, Box<serde_json::value::RawValue>> {
    serde_json::from_str(json).unwrap()
}

/// Renders every case of `folder/expected.json` and reports each that differs. Gives the number of cases.
fn check(folder: &Path) -> usize {
    let expected: Value = serde_json::from_str(&read(&folder.join("expected.json"))).unwrap();
    let conversations = members(&read(&here().join("conversations.json")));
    let model = tempfile(&format!("{}", std::process::id()));
    std::fs::write(model.join("tokenizer_config.json"), expected["tokens"].to_string()).unwrap();
    let mut renderers: BTreeMap<String, ChatRenderer> = BTreeMap::new();
    let mut differences = Vec::new();
    let cases = expected["cases"].as_array().unwrap();
    for case in cases {
        let name = case["template"].as_str().unwrap();
        let renderer = renderers.entry(name.to_owned()).or_insert_with(|| {
            std::fs::copy(folder.join(name), model.join("chat_template.jinja")).unwrap();
            ChatRenderer::load(&model).unwrap_or_else(|e| panic!("{name}: {e}"))
        });
        let conversation = members(conversations[case["conversation"].as_str().unwrap()].get());
        let part = |name: &str| conversation.get(name).map_or("null", |part| part.get());
        let as_in_python = part("messages").to_owned();
        // Where jinja2 shows nothing of a call in this form, or fails on it, ours finds another form that it shows.
        let shows = |name: &str| case["text"].as_str().is_none_or(|text| text.contains(name));
        let as_in_the_api = in_the_api_s_spelling(&as_in_python)
            .filter(|(_, name)| !case["fails"].is_string() && shows(name))
            .map(|(messages, _)| messages);
        for messages in [Some(as_in_python), as_in_the_api].into_iter().flatten() {
            let chat = format!(
                r#"{{"messages": {messages}, "tools": {}, "documents": {}, "chat_template_kwargs": {}, "add_generation_prompt": {}}}"#,
                part("tools"),
                part("documents"),
                part("chat_template_kwargs"),
                case["add_generation_prompt"]
            );
            let rendered =
                renderer.render(&chat, expected["unix_seconds"].as_i64().unwrap()).map(|chat| chat.text);
            differences.extend(difference(case, rendered));
        }
    }
    std::fs::remove_dir_all(model).unwrap();
    let shown = &differences[..differences.len().min(5)];
    assert!(shown.is_empty(), "{} differ, such as:\n{}", differences.len(), shown.join("\n"));
    cases.len()
}

/// The messages with the arguments of tool calls as text, and null for no content beside them, and the first function
/// that is called; `None` without calls.
fn in_the_api_s_spelling(messages: &str) -> Option<(String, String)> {
    let mut messages: Value = serde_json::from_str(messages).unwrap();
    let mut called = None;
    for message in messages.as_array_mut().unwrap() {
        let Some(calls) = message.get_mut("tool_calls") else { continue };
        called = called.or_else(|| Some(calls[0]["function"]["name"].as_str().unwrap().to_owned()));
        for call in calls.as_array_mut().unwrap() {
            let arguments = &mut call["function"]["arguments"];
            *arguments = Value::from(arguments.to_string());
        }
        if message["content"] == "" {
            message["content"] = Value::Null;
        }
    }
    called.map(|name| (messages.to_string(), name))
}

fn difference(case: &Value, rendered: Result<String, Fault>) -> Option<String> {
    let same = match &rendered {
        // minijinja takes none for an empty list, so that a template of jinja2 that forgot it works.
        _ if case["fails"] == "iterates None" => true,
        Ok(text) => case["text"].as_str() == Some(text),
        // What jinja2 fails on without words of the template's, we have to fail on too.
        Err(fault) => case["raises"].as_str() == Some(&fault.message) || case["fails"].is_string(),
    };
    (!same).then(|| format!("expected {case}\n     got {rendered:?}"))
}

fn tempfile(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("pinion-chat-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
#[ignore = "needs the templates that published_chat_templates.sh gets"]
fn published_templates_render_as_in_jinja2() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/published_chat_templates");
    let count = check(&folder);
    assert!(count > 1000, "only {count} cases");
}

#[test]
fn prompt_formats_render_as_in_jinja2() {
    let count = check(&here());
    assert!(count >= 180, "only {count} cases");
    // Equality with a failure says nothing about the text.
    assert!(!read(&here().join("expected.json")).contains("\"fails\""));
}

/// What the renderer makes of these messages, given as a JSON array.
fn rendered(renderer: &ChatRenderer, messages: &str) -> Result<String, Fault> {
    renderer.render(&format!(r#"{{"messages": {messages}}}"#), 1_722_513_600).map(|chat| chat.text)
}

/// A model folder with these files and the renderer that it gives.
fn load(name: &str, files: &[(&str, &str)]) -> Result<ChatRenderer, String> {
    let folder = tempfile(&format!("{name}-{}", std::process::id()));
    for (file, text) in files {
        std::fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
        std::fs::write(folder.join(file), text).unwrap();
    }
    let loaded = ChatRenderer::load(&folder).map_err(|error| error.to_string());
    std::fs::remove_dir_all(&folder).unwrap();
    loaded
}

#[test]
fn the_folder_decides_which_template_is_used() {
    const JINJA: (&str, &str) = ("chat_template.jinja", "from jinja{{ eos_token }}");
    const STRING: (&str, &str) = (
        "tokenizer_config.json",
        r#"{"chat_template": "from config{{ bos_token }}", "bos_token": {"content": "<s>"}, "eos_token": "</s>"}"#,
    );
    const NAMED: (&str, &str) = (
        "tokenizer_config.json",
        r#"{"chat_template": [{"name": "rag", "template": "no"}, {"name": "default", "template": "default"}]}"#,
    );
    const JSON: (&str, &str) = ("chat_template.json", r#"{"chat_template": "from json"}"#);
    const NONE: (&str, &str) = ("tokenizer_config.json", r#"{"chat_template": null, "bos_token": null}"#);
    const EMPTY: (&str, &str) = ("tokenizer_config.json", r#"{"chat_template": []}"#);
    let plain = "User: hi\nAssistant:";
    let cases: [(&[(&str, &str)], &str); 10] = [
        (&[], plain),
        (&[NONE], plain),
        (&[EMPTY], plain),
        (&[EMPTY, JSON], "from json"),
        (&[STRING], "from config<s>"),
        (&[NAMED], "default"),
        (&[JSON], "from json"),
        (&[NONE, JSON], "from json"),
        (&[STRING, JSON], "from config<s>"),
        (&[STRING, JINJA, JSON], "from jinja</s>"),
    ];
    for (index, (files, expected)) in cases.into_iter().enumerate() {
        let renderer = load(&format!("decides-{index}"), files).unwrap();
        assert_eq!(renderer.has_template(), expected != plain);
        let text = rendered(&renderer, r#"[{"role": "user", "content": "hi"}]"#);
        assert_eq!(text.as_deref(), Ok(expected), "{files:?}");
    }
}

#[test]
fn older_folders_have_their_special_tokens_in_a_file_of_their_own() {
    const MAP: (&str, &str) = (
        "special_tokens_map.json",
        r#"{"bos_token": {"content": "<map>", "lstrip": false}, "additional_special_tokens": ["<x>"], "chat_template": "no"}"#,
    );
    const TEMPLATE: &str = r#""chat_template": "{{ bos_token }}{{ eos_token }}""#;
    let jinja = ("chat_template.jinja", "{{ bos_token }}{{ eos_token }}");
    let config =
        |more: &str| format!("{{{TEMPLATE}, \"bos_token\": \"<s>\", \"eos_token\": \"</s>\"{more}}}");
    let (older, newer) = (config(""), config(", \"added_tokens_decoder\": {}"));
    let cases: [(&[(&str, &str)], &str); 4] = [
        (&[("tokenizer_config.json", &older), MAP], "<map></s>"),
        (&[("tokenizer_config.json", &newer), MAP], "<s></s>"),
        (&[jinja, MAP], "<map>"),
        (&[("tokenizer_config.json", &older)], "<s></s>"),
    ];
    for (index, (files, expected)) in cases.into_iter().enumerate() {
        let renderer = load(&format!("map-{index}"), files).unwrap();
        let text = rendered(&renderer, r#"[{"role": "user", "content": "hi"}]"#);
        assert_eq!(text.as_deref(), Ok(expected), "{files:?}");
    }
}

#[test]
fn a_bad_template_is_named_with_its_reason() {
    let deep = format!("{}1{}", "(".repeat(10_000), ")".repeat(10_000));
    let cases: [(&str, &str, &str); 9] = [
        ("special_tokens_map.json", "{", "not JSON"),
        ("chat_template.jinja", "a\n{% if %}", "not a usable chat template: syntax error: "),
        ("chat_template.jinja", "a\n{% if x %}", "(in chat_template:2)"),
        ("chat_template.jinja", "{{ x | no_such_filter( }}", "not a usable chat template"),
        ("chat_template.jinja", &format!("{{{{ {deep} }}}}"), "not a usable chat template"),
        ("tokenizer_config.json", "{\"chat_template\": 3}", "neither a string nor a list"),
        (
            "tokenizer_config.json",
            r#"{"chat_template": [{"name": "default", "template": "x"}, {"name": "rag"}]}"#,
            "an entry without a name or a template",
        ),
        ("tokenizer_config.json", "{\"chat_template\": ", "not JSON"),
        ("chat_template.json", "[", "not JSON"),
    ];
    for (index, (file, text, expected)) in cases.into_iter().enumerate() {
        let message = load(&format!("bad-{index}"), &[(file, text)]).err().expect(expected);
        assert!(message.contains(&format!("/{file}: ")) && message.contains(expected), "{message}");
    }
}

#[test]
fn content_takes_the_form_that_the_template_knows() {
    let string =
        "{% for m in messages %}[{{ m.content }}]{% if m.content is string %}s{% endif %}{% endfor %}";
    let parts = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}";
    let either = "{% for m in messages %}{% if m.content is string %}[{{ m.content }}]s{% else %}parts{% endif %}\
                  {% endfor %}";
    let json = r#"[
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"}
    ]"#;
    let cases = [(string, "[a\nb]s[c]s"), (parts, "[a][b][c]"), (either, "[a\nb]s[c]s")];
    for (index, (template, expected)) in cases.into_iter().enumerate() {
        let renderer = load(&format!("parts-{index}"), &[("chat_template.jinja", template)]).unwrap();
        assert_eq!(rendered(&renderer, json).as_deref(), Ok(expected), "{template}");
    }
}

#[test]
fn calls_and_developers_take_the_form_that_the_template_knows() {
    let json = r#"[
        {"role": "developer", "content": "d"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\":  2}"}}]},
        {"role": "tool", "tool_call_id": "1", "name": "f", "content": "r"}
    ]"#;
    let call = "{% for c in m.tool_calls or [] %}{{ c.function.name }}";
    let object = format!(
        "{{% for m in messages %}}[{{{{ m.role }}}}:{{{{ m.content }}}}]{call}{{{{ c.function.arguments | tojson \
         }}}}{{% endfor %}}{{% endfor %}}"
    );
    let text = object.replace("c.function.arguments | tojson", "'' + c.function.arguments");
    let null = "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}".to_owned()
        + call
        + "{{ c.function.arguments | tojson }}{% endfor %}{% elif m.role != 'developer' %}\
           <{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}";
    let cases = [
        (object, r#"[developer:d][assistant:]f{"z": 1, "a": 2}[tool:r]"#),
        (text, r#"[developer:d][assistant:]f{"z": 1, "a":  2}[tool:r]"#),
        (null, r#"<system>df{"z": 1, "a": 2}<tool>r"#),
    ];
    for (index, (template, expected)) in cases.into_iter().enumerate() {
        let renderer = load(&format!("calls-{index}"), &[("chat_template.jinja", &template)]).unwrap();
        assert_eq!(rendered(&renderer, json).as_deref(), Ok(expected), "{template}");
    }
}

#[test]
fn the_last_message_can_be_continued() {
    let ends = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}";
    let trims = ends.replace("m.content", "m.content | trim");
    let hides = "{% for m in messages %}<{{ m.role }}>{{ m.content | upper }}</s>{% endfor %}";
    let cases = [
        (ends, "Once upon", Some("<user>hi</s><assistant>Once upon")),
        (ends, " Once ", Some("<user>hi</s><assistant> Once ")),
        (&trims, " Once ", Some("<user>hi</s><assistant>Once")),
        (ends, "hi", Some("<user>hi</s><assistant>hi")),
        (hides, "Once", None),
    ];
    for (index, (template, content, expected)) in cases.into_iter().enumerate() {
        let renderer = load(&format!("continued-{index}"), &[("chat_template.jinja", template)]).unwrap();
        let chat = format!(
            r#"{{"messages": [{{"role": "user", "content": "hi"}}, {{"role": "assistant", "content": "{content}"}}],
                "continue_final_message": true, "add_generation_prompt": false}}"#
        );
        let text = renderer.render(&chat, 0).map(|chat| chat.text);
        assert_eq!(text.as_deref().ok(), expected, "{template}");
        let fault = text.err().map(|fault| fault.param.unwrap());
        assert_eq!(fault.as_deref(), expected.is_none().then_some("continue_final_message"));
        let plain = ChatRenderer::plain().render(&chat, 0).map(|chat| chat.text);
        assert_eq!(plain, Ok(format!("User: hi\nAssistant: {}", content)));
    }
}

#[test]
fn a_request_s_names_do_not_replace_ours() {
    let template =
        "{{ messages[0].content }}{{ add_generation_prompt }}{{ tools is none }}{{ mine }}{{ bos_token }}";
    let config = ("tokenizer_config.json", r#"{"bos_token": "<s>"}"#);
    let renderer = load("names", &[("chat_template.jinja", template), config]).unwrap();
    let chat = r#"{"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {
        "messages": [], "add_generation_prompt": 3, "tools": [1], "mine": "m", "bos_token": "<t>"}}"#;
    assert_eq!(renderer.render(chat, 0).map(|chat| chat.text).as_deref(), Ok("hiTrueTruem<t>"));
}

#[test]
fn a_harmful_template_costs_one_request() {
    let steps = format!("the chat template takes more than {TEMPLATE_STEPS_MAX} steps on them");
    let bytes = format!("the chat template writes more than {RENDERED_BYTES_MAX} bytes for them");
    let cases = [
        ("{{ raise_exception('No: ' ~ messages[0].role) }}", "No: user"),
        ("{% macro m() %}{{ raise_exception('inner') }}{% endmacro %}{{ m() }}", "inner"),
        (
            "{% set x = messages %}{{ raise_exception(x | tojson) }}",
            "[{\"role\": \"user\", \"content\": \"hi\"}]",
        ),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", steps.as_str()),
        ("{% for a in range(99999) %}{{ messages }}{{ 'x' * 1000 }}{% endfor %}", bytes.as_str()),
        ("{{ 'a' * 2 ** 40 }}", "repeated string is too large"),
        ("{{ ('a' * 99999999) }}", bytes.as_str()),
        ("{{ range(2 ** 40) | list }}", "range has too many elements"),
        ("{{ [0] * 2 ** 40 }}", "repeated sequence is too large"),
        ("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", "recursion limit exceeded"),
        ("{% for a in [messages] recursive %}{{ loop([a]) }}{% endfor %}", "recursion limit exceeded"),
        ("{% include 'chat_template' %}", "recursion limit exceeded"),
        ("{% include '/etc/hostname' %}", "template not found"),
        ("{% import '../tokenizer.json' as t %}", "template not found"),
        ("{{ messages.__class__.__mro__ }}", "undefined value"),
        ("{{ ''.__class__() }}", "unknown method"),
        ("{{ no.such.name }}", "undefined value"),
        ("{{ 1 / 0 }}", "invalid operation"),
        ("{{ [[[1]]] | tojson(indent=10000000000) }}", "a width is too large"),
        ("{{ 'a' | indent(10000000000) }}", "a width is too large"),
        ("{{ 'a' | indent(width=10000000000, first=true) }}", "a width is too large"),
        ("{{ '{:>99999999999}'.format('a') }}", "a width is too large"),
        ("{{ '%099999999999d' | format(1) }}", "a width is too large"),
        (
            "{% set n = namespace(x=[]) %}{% for a in range(500) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x | tojson }}",
            "nested deeper than 200",
        ),
    ];
    for (index, (template, expected)) in cases.into_iter().enumerate() {
        let renderer = load(&format!("harm-{index}"), &[("chat_template.jinja", template)]).unwrap();
        let start = std::time::Instant::now();
        let fault = rendered(&renderer, r#"[{"role": "user", "content": "hi"}]"#).expect_err(template);
        let took = start.elapsed();
        assert_eq!(fault.param.as_deref(), Some("messages"), "{template}");
        assert!(fault.message.contains(expected), "{template}: {fault}");
        // At most 0.1 s each on an idle machine; what has no bound takes hours.
        assert!(took.as_secs() < 60, "{template}: {took:?}");
        println!("{took:?} {template}");
    }
}

#[test]
fn a_chat_with_tools_has_the_template_for_tools() {
    let file = |name: &str, text: &str| (format!("additional_chat_templates/{name}.jinja"), text.to_owned());
    let list = r#"{"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"},
        {"name": "rag", "template": "R{{ documents | length }}"}]}"#;
    let folders: [(&str, Vec<(String, String)>); 2] = [
        ("list", vec![("tokenizer_config.json".to_owned(), list.to_owned())]),
        (
            "files",
            vec![
                ("chat_template.jinja".to_owned(), "D".to_owned()),
                file("tool_use", "T"),
                file("rag", "R{{ documents | length }}"),
                ("additional_chat_templates/notes.txt".to_owned(), "{% broken".to_owned()),
            ],
        ),
    ];
    for (name, files) in folders {
        let files: Vec<(&str, &str)> =
            files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let renderer = load(name, &files).unwrap();
        let user = r#""messages": [{"role": "user", "content": "hi"}]"#;
        let tools = r#""tools": [{"type": "function", "function": {"name": "f"}}]"#;
        for (members, expected) in [
            (String::new(), Ok("D")),
            (format!(", {tools}"), Ok("T")),
            (r#", "tools": []"#.to_owned(), Ok("D")),
            (format!(r#", {tools}, "chat_template": "default""#), Ok("D")),
            (r#", "chat_template": "rag", "documents": [{}, {}]"#.to_owned(), Ok("R2")),
            (r#", "chat_template": "{{ 1 }}""#.to_owned(), Err("default, rag, tool_use")),
        ] {
            let rendered = renderer.render(&format!("{{{user}{members}}}"), 0);
            match expected {
                Ok(text) => assert_eq!(rendered.unwrap().text, text, "{name} {members}"),
                Err(words) => {
                    let fault = rendered.unwrap_err();
                    assert_eq!(fault.param.as_deref(), Some("chat_template"));
                    assert!(fault.message.contains(words), "{fault}");
                }
            }
        }
    }
    let broken = ("additional_chat_templates/tool_use.jinja", "{% if %}");
    let error = load("wrong", &[("chat_template.jinja", "D"), broken]).err().unwrap().to_string();
    assert!(
        error.contains("additional_chat_templates/tool_use.jinja: not a usable chat template"),
        "{error}"
    );
}

/// As transformers and vLLM, which refuse only the chat that names none.
#[test]
fn templates_without_a_default_are_for_chats_that_name_one() {
    let list =
        r#"{"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "rag", "template": "R"}]}"#;
    let in_config = ("tokenizer_config.json", list);
    let in_files =
        [("additional_chat_templates/tool_use.jinja", "T"), ("additional_chat_templates/rag.jinja", "R")];
    for (name, files) in [("no-default-list", &[in_config][..]), ("no-default-files", &in_files)] {
        let renderer = load(name, files).unwrap();
        assert!(renderer.has_template());
        assert_eq!(renderer.names_without_default(), Some(vec!["rag", "tool_use"]));
        let user = r#""messages": [{"role": "user", "content": "hi"}]"#;
        let tools = r#""tools": [{"type": "function", "function": {"name": "f"}}]"#;
        let none = "the model has no default chat template: name one of its templates in chat_template, which are rag, tool_use;";
        for (members, expected) in [
            (String::new(), Err(none)),
            (format!(", {tools}"), Ok("T")),
            (r#", "chat_template": "rag""#.to_owned(), Ok("R")),
            (r#", "chat_template": "default""#.to_owned(), Err("templates, which are rag, tool_use;")),
        ] {
            let rendered = renderer.render(&format!("{{{user}{members}}}"), 0);
            match expected {
                Ok(text) => assert_eq!(rendered.unwrap().text, text, "{name} {members}"),
                Err(words) => {
                    let fault = rendered.unwrap_err();
                    assert_eq!(fault.param.as_deref(), Some("chat_template"));
                    assert!(fault.message.contains(words), "{fault}");
                }
            }
        }
    }
    let one = r#"{"chat_template": [{"name": "rag", "template": "R"}]}"#;
    let renderer = load("no-default-one", &[("tokenizer_config.json", one)]).unwrap();
    let fault = rendered(&renderer, r#"[{"role": "user", "content": "hi"}]"#).unwrap_err();
    assert!(fault.message.contains("which are rag;"), "{fault}");
    let of_default = load("with-default", &[("chat_template.jinja", "D")]).unwrap();
    assert_eq!(of_default.names_without_default(), None);
}

/// What a prompt leaves for the answer: reasoning that may come, that has begun, or that is over before it began.
#[test]
fn the_end_of_a_prompt_says_how_the_answer_begins() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}        {% if add_generation_prompt %}<a>{% if enable_thinking is not defined %}        {% elif enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}";
    let renderer = load("thinks", &[("chat_template.jinja", template)]).unwrap();
    let user = r#"{"role": "user", "content": "<think>"}"#;
    let went_on = |content: &str| {
        format!(
            r#"{{"messages": [{user}, {{"role": "assistant", "content": "{content}"}}],
            "continue_final_message": true, "add_generation_prompt": false}}"#
        )
    };
    let thinking = |on: bool| {
        format!(r#"{{"messages": [{user}], "chat_template_kwargs": {{"enable_thinking": {on}}}}}"#)
    };
    for (chat, expected) in [
        (format!(r#"{{"messages": [{user}]}}"#), Reasoning::Possible),
        (thinking(true), Reasoning::Begun),
        (thinking(false), Reasoning::None),
        (went_on("So"), Reasoning::None),
        (went_on(""), Reasoning::Possible),
        (went_on("<think>So"), Reasoning::Begun),
        (went_on("<think>So</think>a"), Reasoning::None),
    ] {
        assert_eq!(renderer.render(&chat, 0).unwrap().reasoning, expected, "{chat}");
    }
}
