//! The bombs: small texts that ask for large automata, deep recursion or many alternatives.

use pinion_protocol::GrammarKind;
use serde_json::{Map, Value, json};

/// One of them.
pub(crate) struct Bomb {
    pub(crate) name: String,
    pub(crate) kind: GrammarKind,
    pub(crate) text: String,
    /// Whether it must be refused; otherwise it may be taken if it is cheap.
    pub(crate) refused: bool,
}

fn bomb(name: impl Into<String>, kind: GrammarKind, text: String, refused: bool) -> Bomb {
    Bomb { name: name.into(), kind, text, refused }
}

/// All of them.
pub(crate) fn bombs() -> Vec<Bomb> {
    let mut all = expressions();
    all.extend(schemas());
    all.extend(references());
    all.extend(lark());
    all
}

fn expressions() -> Vec<Bomb> {
    let regex =
        |name: &str, text: String, refused| bomb(format!("regex {name}"), GrammarKind::Regex, text, refused);
    let many = |n: usize| (0..n).map(|i| format!("x{}y{i}", i * 7919)).collect::<Vec<_>>().join("|");
    vec![
        regex("nested counts", "(((a{1,1000}){1,1000}){1,1000})".into(), false),
        regex("one large count", "[ab]{1,100000}".into(), false),
        regex("count behind a star", "(.*a.{1000})".into(), false),
        regex("exponential automaton", "(a|b)*a(a|b){20}".into(), false),
        regex("large exponential automaton", ".*a.{200}b.*".into(), false),
        regex("unicode classes", r"(\p{L}|\p{N}){1,500}\p{Greek}{1,500}".into(), false),
        regex("alternatives", many(4000), false),
        regex("repeated alternatives", format!("({})*", many(4000)), false),
        regex("optionals", "a?".repeat(5000) + &"a".repeat(5000), true),
        regex("half as many optionals", "[ab]?".repeat(2000) + &"b".repeat(2000), true),
        regex("optionals in counts", "a{0,1}".repeat(2000), true),
        regex("deep groups", "(".repeat(20_000) + "a" + &")".repeat(20_000), true),
        regex("a long literal", "abcdefgh".repeat(8000), false),
        regex("many stars", ".*a".repeat(300), false),
        regex("contradictions", r"[\w\W]{1,300}[^\x00-\x{10ffff}]?".repeat(50), false),
    ]
}

fn properties(count: usize) -> Map<String, Value> {
    (0..count).map(|n| (format!("property{n}"), json!({"type": "string"}))).collect()
}

fn patterns(count: usize, pattern: impl Fn(usize) -> String) -> Value {
    let members: Map<_, _> = (0..count).map(|n| (pattern(n), json!({"type": "string"}))).collect();
    json!({"type": "object", "patternProperties": members})
}

fn schemas() -> Vec<Bomb> {
    let schema = |name: &str, schema: Value, refused| {
        bomb(format!("schema {name}"), GrammarKind::JsonSchema, schema.to_string(), refused)
    };
    let all = properties(2000);
    let values: Vec<String> = (0..8000).map(|n| format!("v{}", n * 7919)).collect();
    let long = json!({"type": "integer", "minItems": 100_000, "maxItems": 1_000_000});
    let inner = json!({"type": "array", "items": long, "minItems": 1000, "maxItems": 100_000});
    vec![
        schema("huge enum", json!({"enum": values}), false),
        schema("large multipleOf", json!({"type": "integer", "multipleOf": 999_983}), true),
        schema("large decimal multipleOf", json!({"type": "number", "multipleOf": 99_999.99}), true),
        schema("product of multipleOf", json!({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}), true),
        schema("sum of multipleOf", json!({"anyOf": vec![json!({"multipleOf": 1009}); 9]}), true),
        schema("many properties", json!({"type": "object", "properties": all}), true),
        schema(
            "many required properties",
            json!({"type": "object", "properties": all, "required": all.keys().collect::<Vec<_>>()}),
            true,
        ),
        schema("many patterns", patterns(60, |n| format!("^p{n}.*x[a-z]*$")), true),
        schema("hard patterns", patterns(16, |n| format!("^(a|b)*a(a|b){{11}}c{n}z$")), false),
        schema("a pattern that is a bomb", json!({"type": "string", "pattern": "a?".repeat(3000)}), true),
        schema("nested counts", json!({"type": "array", "items": inner, "minItems": 100_000}), false),
        schema(
            "long string",
            json!({"type": "string", "minLength": 100_000_000, "maxLength": 1_000_000_000}),
            false,
        ),
        schema("many members", json!({"type": "object", "minProperties": 100_000}), false),
        schema("wide range", json!({"type": "number", "minimum": -1e300, "maximum": 1e300}), false),
    ]
}

fn references() -> Vec<Bomb> {
    let schema = |name: String, schema: Value, refused| {
        bomb(format!("schema {name}"), GrammarKind::JsonSchema, schema.to_string(), refused)
    };
    let to = |name: &str| json!({"$ref": format!("#/$defs/{name}")});
    let root = |defs: Value| json!({"$ref": "#/$defs/d0", "$defs": defs});
    let chain = |n: usize, link: &dyn Fn(Value) -> Value| {
        let mut defs: Map<String, Value> =
            (0..n).map(|i| (format!("d{i}"), link(to(&format!("d{}", i + 1))))).collect();
        defs.insert(format!("d{n}"), json!({"type": "object", "properties": {"x": {"type": "string"}}}));
        root(Value::Object(defs))
    };
    let mut all = vec![
        schema("itself".into(), json!({"$ref": "#"}), true),
        schema("each other".into(), root(json!({"d0": to("d1"), "d1": to("d0")})), true),
        schema("any of itself".into(), root(json!({"d0": {"anyOf": [to("d0"), to("d0")]}})), true),
        schema("all of itself".into(), root(json!({"d0": {"allOf": [to("d0"), {"type": "string"}]}})), true),
        schema(
            "endless tree".into(),
            root(json!({"d0": {"type": "object", "properties": {"x": to("d0"), "y": to("d0")}}})),
            false,
        ),
        schema("a long chain".into(), chain(1500, &|next| next), false),
        schema(
            "a deep chain of arrays".into(),
            chain(1000, &|next| json!({"type": "array", "items": next})),
            false,
        ),
    ];
    for n in [12, 40] {
        all.push(schema(
            format!("2^{n} objects"),
            chain(n, &|next| json!({"properties": {"a": next, "b": next}})),
            false,
        ));
        all.push(schema(
            format!("2^{n} intersections"),
            chain(n, &|next| json!({"allOf": [next, next]})),
            false,
        ));
        all.push(schema(format!("2^{n} unions"), chain(n, &|next| json!({"anyOf": [next, next]})), false));
        let pair = json!({"anyOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {"type": "integer"}}}]});
        all.push(schema(format!("product of {n} unions"), json!({"allOf": vec![pair; n]}), true));
    }
    all
}

fn lark() -> Vec<Bomb> {
    let lark =
        |name: &str, text: String, refused| bomb(format!("lark {name}"), GrammarKind::Lark, text, refused);
    let rules = |n: usize, rule: &dyn Fn(usize) -> String| (0..n).map(rule).collect::<String>();
    vec![
        lark("deep groups", format!("start: {}\"a\"{}", "(".repeat(20_000), ")".repeat(20_000)), true),
        lark("nested counts", "start: a{1,1000}\na: b{1,1000}\nb: c{1,1000}\nc: \"x\"".into(), false),
        lark("nested counts of terminals", "start: A\nA: B{1,1000}\nB: C{1,1000}\nC: \"x\"".into(), false),
        lark("ambiguity", "start: start start | \"a\" | start start start".into(), false),
        lark("left recursion", "start: start".into(), true),
        lark("nothing", "start: \"\" start | \"\"".into(), false),
        lark(
            "a chain of rules",
            format!("start: r0\n{}r1000: \"a\"\n", rules(1000, &|i| format!("r{i}: r{}\n", i + 1))),
            false,
        ),
        lark(
            "a long chain of rules",
            format!("start: r0\n{}r5000: \"a\"\n", rules(5000, &|i| format!("r{i}: r{}\n", i + 1))),
            true,
        ),
        lark(
            "doubling terminals",
            format!("start: R0\n{}R30: \"a\"\n", rules(30, &|i| format!("R{i}: R{0} R{0}\n", i + 1))),
            true,
        ),
        lark(
            "doubling optional terminals",
            format!("start: R0\n{}R11: \"a\"?\n", rules(11, &|i| format!("R{i}: R{0} R{0}\n", i + 1))),
            false,
        ),
        lark(
            "doubling rules",
            format!("start: r0\n{}r30: \"a\"\n", rules(30, &|i| format!("r{i}: r{0} r{0}\n", i + 1))),
            false,
        ),
        lark(
            "alternatives",
            format!("start: {}\"a\"", rules(3000, &|i| format!("\"x{}\" | ", i * 7919))),
            true,
        ),
        lark(
            "intersections",
            "start: X\nX: /(.*a.*){20}/ & /(.*b.*){20}/ & /(.*c.*){20}/ & ~/(.*d.*){20}/".into(),
            true,
        ),
        lark("a schema inside", "start: %json {\"type\": \"integer\", \"multipleOf\": 999983}".into(), true),
        lark(
            "an escaped schema inside",
            "start: %json {\"type\": \"integer\", \"multiple\\u004ff\": 999983}".into(),
            true,
        ),
        lark(
            "long substrings",
            format!(
                "start: %regex {{ \"substring_chars\": \"{}\" }}",
                rules(20_000, &|i| char::from(b'a' + (i * i % 26) as u8).to_string())
            ),
            true,
        ),
    ]
}
