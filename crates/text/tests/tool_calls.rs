//! Tool calls in text: every format, every way to cut the text, and text that only looks like calls.

#![allow(clippy::unwrap_used)] // a failed unwrap here is a failed test

use pinion_protocol::limits::FUNCTION_NAME_BYTES_MAX;
use pinion_text::tools::{CALLS_MAX, CallFormat, CallParser, HELD_BYTES_MAX, Part, Shape};
use proptest::prelude::*;

/// What came out: the text, and each call's name and arguments.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
struct Found {
    text: String,
    calls: Vec<(String, String)>,
}

impl Found {
    fn take(&mut self, part: Part<'_>) {
        match part {
            Part::Text(text) => self.text.push_str(text),
            Part::Call { name } => self.calls.push((name.to_owned(), String::new())),
            Part::Arguments(text) => self.calls.last_mut().unwrap().1.push_str(text),
        }
    }
}

fn parser(shape: &Shape) -> CallParser {
    let json_parameters = vec![vec!["n".to_owned(), "o".to_owned()], Vec::new()];
    CallParser::new(shape.clone(), vec!["f".to_owned(), "get_weather".to_owned()], usize::MAX)
        .typed(json_parameters)
}

/// Parses text that comes in pieces of these sizes, in characters; the last size goes on to the end.
fn cut(shape: &Shape, text: &str, sizes: &[usize]) -> Found {
    let (mut parser, mut found) = (parser(shape), Found::default());
    let mut characters = text.chars().peekable();
    for size in sizes.iter().copied().chain(std::iter::repeat(usize::MAX)) {
        let piece: String = characters.by_ref().take(size).collect();
        parser.push(&piece, &mut |part| found.take(part));
        if characters.peek().is_none() {
            break;
        }
    }
    parser.finish(&mut |part| found.take(part));
    assert_eq!(parser.calls(), found.calls.len());
    found
}

fn whole(shape: &Shape, text: &str) -> Found {
    cut(shape, text, &[])
}

const HERMES: Shape = Shape::Free(CallFormat::Hermes);
const LLAMA: Shape = Shape::Free(CallFormat::Llama3Json);
const MISTRAL: Shape = Shape::Free(CallFormat::Mistral);

fn hermes() -> Shape {
    HERMES
}

fn llama() -> Shape {
    LLAMA
}

fn mistral() -> Shape {
    MISTRAL
}

fn qwen() -> Shape {
    Shape::Free(CallFormat::Qwen3Coder)
}

fn python() -> Shape {
    Shape::Free(CallFormat::Pythonic)
}

fn list() -> Shape {
    Shape::List
}

fn named() -> Shape {
    Shape::Arguments("f".to_owned())
}

type Case = (fn() -> Shape, &'static str, &'static str, &'static [(&'static str, &'static str)]);

/// The text of an answer, what of it is text, and its calls.
const CASES: &[Case] = &[
    (hermes, "", "", &[]),
    (hermes, " just\n text ", " just\n text ", &[]),
    (hermes, " \n", " \n", &[]),
    (
        hermes,
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":  1}}\n</tool_call>",
        "",
        &[("f", "{\"a\":  1}")],
    ),
    (
        hermes,
        "\n\nHm.\n<tool_call>{\"arguments\": {\"a\": {}}, \"name\": \"f\"}</tool_call>\n<tool_call>\n{\"id\": 3, \"type\":\"x\\\"}\", \"z\": [{}, \"]\"], \"name\":\"g.h-1\",\"parameters\":{},\"q\":null}\n</tool_call>\n",
        "\n\nHm.\n",
        &[("f", "{\"a\": {}}"), ("g.h-1", "{}")],
    ),
    (
        hermes,
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"}{\\\"]é\\\\\"}}</tool_call> and more",
        " and more",
        &[("f", "{\"s\":\"}{\\\"]é\\\\\"}")],
    ),
    // no closing mark
    (
        hermes,
        "<tool_call>{\"name\":\"f\",\"arguments\":{}}\n<tool_call>{\"name\":\"f\",\"arguments\":{}} ok </tool_",
        " ok </tool_",
        &[("f", "{}"), ("f", "{}")],
    ),
    // cut off: before the call is known, in its arguments, behind them
    (hermes, "a <tool_c", "a <tool_c", &[]),
    (hermes, "a <tool_call>{\"name\": \"f\"", "a <tool_call>{\"name\": \"f\"", &[]),
    (hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b", "", &[("f", "{\"a\": \"b")]),
    (hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"x", "", &[("f", "{}")]),
    (hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool", "", &[("f", "{}")]),
    // not calls
    (hermes, "<tool_call>f(1)</tool_call>", "<tool_call>f(1)</tool_call>", &[]),
    (hermes, "<tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call>{\"name\": \"f\"}</tool_call>", &[]),
    (
        hermes,
        "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}",
        &[],
    ),
    (
        hermes,
        "<tool_call>{\"name\": \"a b\", \"arguments\": {}}",
        "<tool_call>{\"name\": \"a b\", \"arguments\": {}}",
        &[],
    ),
    (hermes, "<tool_call><tool_call>{\"name\":\"f\",\"arguments\":{}}", "<tool_call>", &[("f", "{}")]),
    (hermes, "<<tool_call>{\"name\":\"f\",\"arguments\":{}}", "<", &[("f", "{}")]),
    (
        hermes,
        "<tool_call>{\"name\":\"f\",\"arguments\":{}x<tool_call>{\"name\":\"f\",\"arguments\":{}}",
        "x",
        &[("f", "{}"), ("f", "{}")],
    ),
    (hermes, "{\"name\":\"f\",\"arguments\":{}}", "{\"name\":\"f\",\"arguments\":{}}", &[]),
    (
        qwen,
        "Hm.\n<tool_call>\n<function=f>\n<parameter=a>\nif x < 1:\n\n  \"é\"\n</parameter>\n<parameter=n>\n 3 \n</parameter>\n</function>\n</tool_call>\n<tool_call><function=g.h></function></tool_call> end",
        "Hm.\n end",
        &[("f", r#"{"a": "if x < 1:\n\n  \"é\"", "n": 3}"#), ("g.h", "{}")],
    ),
    (
        qwen,
        "<tool_call><function=f><parameter=n>{\"a\": [1]}</parameter><parameter=o>True</parameter><parameter=x>12</parameter></function></tool_call>",
        "",
        &[("f", r#"{"n": {"a": [1]}, "o": true, "x": "12"}"#)],
    ),
    (
        qwen,
        "<tool_call><function=f><parameter=n>\nnot json\n</parameter><parameter=o>None</parameter><parameter=a></parameter></function>",
        "",
        &[("f", r#"{"n": "not json", "o": null, "a": ""}"#)],
    ),
    (
        qwen,
        "<tool_call><function=f><parameter=a>\n\n</para</parameter <</parameter>\n</function></tool_call>",
        "",
        &[("f", r#"{"a": "\n</para</parameter <"}"#)],
    ),
    (qwen, "<tool_call><function=f><parameter=a>cut of", "", &[("f", r#"{"a": "cut of"#)]),
    (qwen, "<tool_call>\n<function=f", "<tool_call>\n<function=f", &[]),
    (qwen, "<tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call>{\"name\": \"f\"}</tool_call>", &[]),
    (qwen, "<tool_call><function=a b></function>", "<tool_call><function=a b></function>", &[]),
    (
        python,
        "[f(a=1, b=\"x\\n\\\"é\", c='it\\'s', d=[1, -2.5,], e={'k': None, 2: (True, False)}), get_weather()]",
        "",
        &[
            (
                "f",
                r#"{"a": 1, "b": "x\n\"é", "c": "it's", "d": [1, -2.5], "e": {"k": null, "2": [true, false]}}"#,
            ),
            ("get_weather", "{}"),
        ],
    ),
    (python, " \n[f( a = {} , b=[[]], )] and more", " and more", &[("f", r#"{"a": {}, "b": [[]]}"#)]),
    (python, "<|python_start|>[f(a='\\x41\\u00e9\\d')]", "", &[("f", r#"{"a": "Aé\\d"}"#)]),
    (python, "<|python_start|>f", "<|python_start|>f", &[]),
    (python, "[unknown(a=1)]", "[unknown(a=1)]", &[]),
    (python, "[1, 2]", "[1, 2]", &[]),
    (python, "I say [f(a=1)]", "I say [f(a=1)]", &[]),
    (python, "[f(a=1_000, b=1., c=x)]", "", &[("f", r#"{"a": 1000, "b": "1.", "c": "x"}"#)]),
    (python, "[f(a=[1, {'b': \"c", "", &[("f", r#"{"a": [1, {"b": "c"#)]),
    (python, "[f(1)] x", "[f(1)] x", &[]),
    (python, "[f(a=1), f(2)] x", " f(2)] x", &[("f", r#"{"a": 1}"#)]),
    (python, "[f(a=!)] x", "!)] x", &[("f", r#"{"a": "#)]),
    (python, "[f(a=1), g(b=2)] x", " g(b=2)] x", &[("f", r#"{"a": 1}"#)]),
    (llama, "{\"name\": \"f\", \"parameters\": {\"a\": \"b\"}}", "", &[("f", "{\"a\": \"b\"}")]),
    (
        llama,
        "\n<|python_tag|>{\"type\": \"function\", \"name\": \"any\", \"parameters\": {}}; {\"name\": \"f\", \"parameters\": {\"b\": []}}",
        "",
        &[("any", "{}"), ("f", "{\"b\": []}")],
    ),
    (llama, "{\"name\": \"nobody\", \"parameters\": {}}", "{\"name\": \"nobody\", \"parameters\": {}}", &[]),
    (llama, " {\"name\": \"Ann\", \"age\": 3}", " {\"name\": \"Ann\", \"age\": 3}", &[]),
    (llama, "So: {\"name\": \"f\", \"parameters\": {}}", "So: {\"name\": \"f\", \"parameters\": {}}", &[]),
    (
        mistral,
        "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"123456789\"}, {\"name\": \"g\", \"arguments\": {}}]",
        "",
        &[("f", "{\"a\": 1}"), ("g", "{}")],
    ),
    (
        mistral,
        "Yes.[TOOL_CALLS]f{\"a\": [1]}[TOOL_CALLS]g[ARGS]{}[TOOL_CALLS]h[CALL_ID]a1[ARGS]{\"x\": {}}",
        "Yes.",
        &[("f", "{\"a\": [1]}"), ("g", "{}"), ("h", "{\"x\": {}}")],
    ),
    (mistral, "[TOOL_CALLS]f[X]{}", "[TOOL_CALLS]f[X]{}", &[]),
    (mistral, "a [b] [TOOL] [TOOL_CALLS] 3", "a [b] [TOOL] [TOOL_CALLS] 3", &[]),
    (mistral, "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}, what?", ", what?", &[("f", "{}")]),
    (
        list,
        "[{\"name\": \"f\", \"parameters\": {\"a\": 1}},\n {\"name\": \"g\", \"parameters\": {}}]\n",
        "",
        &[("f", "{\"a\": 1}"), ("g", "{}")],
    ),
    (list, "[{\"name\": \"f\", \"parameters\": {\"a\"", "", &[("f", "{\"a\"")]),
    // cut off before a call is known: the beginning of a list was shown as text
    (list, "[", "", &[]),
    (list, "[{\"name\": \"f\", \"par", "", &[]),
    (list, "[{\"name\": \"f\", \"parameters\": {}}, {\"name\": \"g\", \"par", "", &[("f", "{}")]),
    (list, "no", "no", &[]),
    (named, " {\"a\": 1}", "", &[("f", " {\"a\": 1}")]),
    (named, "", "", &[]),
];

#[test]
fn every_format_is_read_whole_and_in_every_two_pieces_and_letter_by_letter() {
    for (shape, text, expected, calls) in CASES {
        let shape = shape();
        let calls =
            calls.iter().map(|(name, arguments)| ((*name).to_owned(), (*arguments).to_owned())).collect();
        let expected = Found { text: (*expected).to_owned(), calls };
        for at in 0..=text.chars().count() {
            assert_eq!(cut(&shape, text, &[at]), expected, "{shape:?} cut at {at}: {text}");
        }
        let letters = vec![1; text.chars().count()];
        assert_eq!(cut(&shape, text, &letters), expected, "{shape:?} letter by letter: {text}");
    }
}

/// Names of 65 to 128 bytes passed admission, and calls of them stayed text.
#[test]
fn a_call_of_the_longest_name_that_a_request_may_have_is_found_in_every_format() {
    type Written = fn(&str) -> String;
    let formats: [(Shape, Written); 7] = [
        (HERMES, |name| format!("<tool_call>{{\"name\": \"{name}\", \"arguments\": {{}}}}</tool_call>")),
        (LLAMA, |name| format!("{{\"name\": \"{name}\", \"parameters\": {{}}}}")),
        (MISTRAL, |name| format!("[TOOL_CALLS][{{\"name\": \"{name}\", \"arguments\": {{}}}}]")),
        (MISTRAL, |name| format!("[TOOL_CALLS]{name}{{}}")),
        (qwen(), |name| format!("<tool_call><function={name}></function></tool_call>")),
        (python(), |name| format!("[{name}()]")),
        (Shape::List, |name| format!("[{{\"name\": \"{name}\", \"parameters\": {{}}}}]")),
    ];
    for (shape, written) in formats {
        for (bytes, is_found) in [(FUNCTION_NAME_BYTES_MAX, true), (FUNCTION_NAME_BYTES_MAX + 1, false)] {
            let name = "n".repeat(bytes);
            let (text, mut found) = (written(&name), Found::default());
            let mut parser = CallParser::new(shape.clone(), vec![name.clone()], usize::MAX);
            parser.push(&text, &mut |part| found.take(part));
            parser.finish(&mut |part| found.take(part));
            let expected = match is_found {
                true => Found { text: String::new(), calls: vec![(name, "{}".to_owned())] },
                false => Found { text, calls: Vec::new() },
            };
            assert_eq!(found, expected, "{shape:?}, a name of {bytes} bytes");
        }
    }
}

#[test]
fn arguments_leave_as_they_come_and_marks_never_do() {
    let (mut parser, mut parts) = (parser(&HERMES), Vec::new());
    for piece in
        ["Wait", " <tool", "_call>{\"name\": \"f", "\", \"arguments\": {\"a\"", ": 1", "}}</tool_", "call>"]
    {
        parser.push(piece, &mut |part| parts.push(format!("{part:?}")));
    }
    parser.finish(&mut |part| parts.push(format!("{part:?}")));
    let expected = [
        "Text(\"Wait\")",
        "Text(\" \")",
        "Call { name: \"f\" }",
        "Arguments(\"{\\\"a\\\"\")",
        "Arguments(\": 1\")",
        "Arguments(\"}\")",
    ];
    assert_eq!(parts, expected);
}

#[test]
fn what_is_held_back_and_what_is_found_is_bounded() {
    let endless = format!("<tool_call>{{\"x\": \"{}", "y".repeat(3 * HELD_BYTES_MAX));
    let (mut parser, mut said) = (parser(&HERMES), 0);
    for (index, c) in endless.chars().enumerate() {
        parser.push(c.encode_utf8(&mut [0; 4]), &mut |part| match part {
            Part::Text(text) => said += text.len(),
            other => panic!("{other:?}"),
        });
        assert!(index + 1 - said <= HELD_BYTES_MAX + 1, "{} held", index + 1 - said);
    }
    assert_eq!(whole(&HERMES, &endless).text, endless);
    // Marks inside marks, as far as they fit.
    let nested = "<tool_call>{\"x\": \"".repeat(2000);
    assert_eq!(whole(&HERMES, &nested).text, nested);
    let call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    let found = whole(&HERMES, &call.repeat(CALLS_MAX + 2));
    assert_eq!((found.calls.len(), found.text), (CALLS_MAX, call.repeat(2)));
}

#[test]
fn calls_past_the_wanted_number_are_dropped() {
    let call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    let mut found = Found::default();
    let mut parser = CallParser::new(HERMES, Vec::new(), 1);
    parser.push(&format!("a{call}{call}b"), &mut |part| found.take(part));
    parser.finish(&mut |part| found.take(part));
    assert_eq!(found, Found { text: "ab".to_owned(), calls: vec![("f".to_owned(), "{}".to_owned())] });
    assert_eq!(parser.calls(), 1);
}

#[test]
fn templates_tell_their_format() {
    let cases = [
        ("{{ '<tool_call>\\n{\"name\": \"' }}", Some(CallFormat::Hermes)),
        ("<tool_call>\\n<function=f>", None),
        ("<tool_call>\\n<function=f>\\n<parameter=a>", Some(CallFormat::Qwen3Coder)),
        ("[func_name1(params_name1=params_value1)]", Some(CallFormat::Pythonic)),
        ("<tool_call>{{ name }}\\n<arg_key>", None),
        ("{{ \"[TOOL_CALLS] [\" }}", Some(CallFormat::Mistral)),
        ("<|start_header_id|> ... {\"name\": \"parameters\": ", Some(CallFormat::Llama3Json)),
        ("<|start_header_id|>{{ message.content }}", None),
        ("<|im_start|>", None),
    ];
    for (source, expected) in cases {
        assert_eq!(CallFormat::of_template(source), expected, "{source}");
    }
}

/// Pieces that calls, and what is nearly a call, are made of.
const PIECES: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<",
    "[",
    "]",
    "{",
    "}",
    ",",
    ";",
    ":",
    "\"",
    "\\",
    " ",
    "\n",
    "\"name\"",
    "\"f\"",
    "\"arguments\": {",
    "\"parameters\":",
    "f",
    "get_weather",
    "x y",
    "é",
    "1",
    "{\"name\": \"f\", \"arguments\": {}}",
    "{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"c\"}]}}",
    "<tool",
    "<function=f>",
    "<parameter=a>",
    "</parameter>",
    "</function>",
    "[f(a=",
    ")",
    "(",
    "'",
];

fn shapes() -> impl Strategy<Value = Shape> {
    prop_oneof![
        Just(HERMES),
        Just(LLAMA),
        Just(MISTRAL),
        Just(qwen()),
        Just(python()),
        Just(Shape::List),
        Just(Shape::Arguments("f".to_owned())),
    ]
}

fn jumble() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        8 => (0..PIECES.len()).prop_map(|index| PIECES[index].to_owned()),
        1 => ".{0,6}",
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

/// A call as a format writes it, with arguments of any depth and any strings.
fn object() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<i64>().prop_map(serde_json::Value::from),
        ".{0,8}".prop_map(serde_json::Value::from),
        Just(serde_json::Value::from("</tool_call>[TOOL_CALLS]{\"]}")),
    ];
    let any = leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            prop::collection::hash_map(".{0,6}", inner, 0..4).prop_map(|m| m.into_iter().collect()),
        ]
    });
    prop::collection::hash_map("[a-z\"\\\\]{0,6}", any, 0..4).prop_map(|m| m.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

    /// However the text is cut, the same comes out; text without a call comes out as it is, but for the beginning of
    /// one in a forced list; and nothing is made up.
    #[test]
    fn any_cut_of_any_text_gives_the_same_and_loses_nothing(
        shape in shapes(), text in jumble(), sizes in prop::collection::vec(0usize..9, 0..60),
    ) {
        let found = whole(&shape, &text);
        prop_assert_eq!(&cut(&shape, &text, &sizes), &found, "{:?} {:?}", shape, text);
        if found.calls.is_empty() {
            // In a forced list there is nothing but calls: the beginning of one is no text.
            let left_out = text.strip_prefix(found.text.as_str());
            let is_beginning = |rest: &str| shape == Shape::List && rest.trim_start().starts_with('[');
            prop_assert!(left_out.is_some_and(|rest| rest.is_empty() || is_beginning(rest)), "{:?} of {:?}", found.text, text);
        }
        let mut source = text.chars();
        for c in found.text.chars() {
            prop_assert!(source.any(|other| other == c), "{:?} is not in {:?} in order", found.text, text);
        }
        // Two formats are spelled anew.
        let is_json = shape != qwen() && shape != python();
        for (_, arguments) in found.calls.iter().filter(|_| is_json) {
            prop_assert!(text.contains(arguments.as_str()), "{:?} is not in {:?}", arguments, text);
        }
    }

    /// Calls that are written as they should be are found, byte for byte, between any text.
    #[test]
    fn well_written_calls_are_found(
        before in "[a-zé .,!]{0,12}", calls in prop::collection::vec(object(), 1..4), pretty in any::<bool>(),
        sizes in prop::collection::vec(1usize..9, 0..60),
    ) {
        let written: Vec<String> = calls.iter().map(|call| match pretty {
            true => serde_json::to_string_pretty(call).unwrap(),
            false => call.to_string(),
        }).collect();
        let object = |key: &str, text: &String| format!("{{\"name\": \"get_weather\", \"{key}\": {text}}}");
        let each = |key, frame: fn(String) -> String, join| {
            written.iter().map(|text| frame(object(key, text))).collect::<Vec<_>>().join(join)
        };
        let texts = [
            (HERMES, before.as_str(), each("arguments", |call| format!("<tool_call>\n{call}\n</tool_call>"), "\n")),
            (MISTRAL, before.as_str(), format!("[TOOL_CALLS] [{}]", each("arguments", |call| call, ", "))),
            (MISTRAL, before.as_str(), written.iter().map(|text| format!("[TOOL_CALLS]get_weather[ARGS]{text}")).collect()),
            (LLAMA, "", each("parameters", |call| call, "; ")),
            (Shape::List, "", format!("[{}]", each("parameters", |call| call, ","))),
        ];
        let expected: Vec<_> = written.iter().map(|text| ("get_weather".to_owned(), text.clone())).collect();
        for (shape, before, calls) in texts {
            let found = cut(&shape, &format!("{before}{calls}"), &sizes);
            prop_assert_eq!(&found.calls, &expected, "{:?} {:?}", shape, calls);
            // White space before a call is its frame.
            prop_assert_eq!(found.text.as_str(), if before.trim().is_empty() { "" } else { before });
        }
    }
}
