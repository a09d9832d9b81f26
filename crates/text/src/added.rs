//! Tokens that tokenizer_config.json names and tokenizer.json does not add to the vocabulary, or adds with other flags.
//! Mirrors `TokenizersBackend.__init__` of transformers' tokenization_utils_tokenizers.py.

use crate::call_marks::is_mark;
use crate::tokenizer_config::{EXTRA_TOKENS, ROLES, content};
use serde_json::{Map, Value};
use std::collections::HashSet;
use tokenizers::{AddedToken, Tokenizer};

/// A token that the files name.
struct Named {
    token: AddedToken,
    /// The id, where the files say it.
    id: Option<u32>,
    /// Whether its flags count more than those of tokenizer.json.
    has_flags: bool,
}

impl Named {
    /// A token without flags of its own, unless `value` is an object that has some.
    fn special(value: &Value) -> Option<Named> {
        let token = with_flags(AddedToken::from(content(value)?, true), value).special(true);
        Some(Named { token, id: None, has_flags: false })
    }
}

fn with_flags(token: AddedToken, value: &Value) -> AddedToken {
    let flag = |name: &str, default: bool| value.get(name).and_then(Value::as_bool).unwrap_or(default);
    AddedToken {
        single_word: flag("single_word", false),
        lstrip: flag("lstrip", false),
        rstrip: flag("rstrip", false),
        normalized: flag("normalized", token.normalized),
        ..token
    }
}

/// Adds the tokens that the keys of tokenizer_config.json and added_tokens.json, which is for older folders, name. No
/// token that is there changes its id. Gives what is not followed, in words that follow the file's name.
pub(crate) fn add(
    tokenizer: &mut Tokenizer,
    config: &Value,
    added_file: Option<&Value>,
) -> tokenizers::Result<Vec<String>> {
    let none = Map::new();
    let config = config.as_object().unwrap_or(&none);
    let mut tokens = numbered(config, added_file);
    tokens.sort_by_key(|named| named.id);
    tokens.extend(unnumbered(config).filter_map(Named::special));
    let mut plan = Plan::new(tokenizer);
    let mut seen = HashSet::new();
    for named in tokens {
        if !named.token.content.is_empty() && seen.insert(named.token.content.clone()) {
            plan.take(tokenizer, named);
        }
    }
    if !plan.tokens.is_empty() {
        tokenizer.add_tokens(plan.tokens)?;
    }
    Ok(plan.ignored.into_iter().collect())
}

/// The tokens of `added_tokens_decoder`, or else of added_tokens.json: those have no flags.
fn numbered(config: &Map<String, Value>, added_file: Option<&Value>) -> Vec<Named> {
    if let Some(Value::Object(decoder)) = config.get("added_tokens_decoder") {
        let named = |(id, value): (&String, &Value)| {
            let is_special = value.get("special").and_then(Value::as_bool).unwrap_or(false);
            let token = with_flags(AddedToken::from(content(value)?, is_special), value);
            Some(Named { token, id: Some(id.parse().ok()?), has_flags: true })
        };
        return decoder.iter().filter_map(named).collect();
    }
    let special: HashSet<&str> = unnumbered(config).filter_map(content).collect();
    let named = |(content, id): (&String, &Value)| {
        let token = AddedToken::from(content, special.contains(content.as_str()));
        Some(Named { token, id: Some(id.as_u64()?.try_into().ok()?), has_flags: false })
    };
    let listed = added_file.and_then(Value::as_object);
    listed.map(|listed| listed.iter().filter_map(named).collect()).unwrap_or_default()
}

/// The tokens with a role, those of the model's own roles, then the others, which are a list or have names.
fn unnumbered(config: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let is_other = |key: &str| key.ends_with("_token") && !ROLES.contains(&key);
    let others = config.iter().filter(move |(key, _)| is_other(key)).map(|(_, value)| value);
    let roles = ROLES.into_iter().filter_map(|role| config.get(role)).chain(others);
    let extra = EXTRA_TOKENS.into_iter().filter_map(|key| config.get(key)).flat_map(|tokens| match tokens {
        Value::Array(list) => list.iter().collect::<Vec<_>>(),
        Value::Object(map) => map.values().collect(),
        _ => Vec::new(),
    });
    roles.chain(extra)
}

/// What is added, with the ids that the library gives: they begin behind the last one.
struct Plan {
    tokens: Vec<AddedToken>,
    next_id: u32,
    ignored: Option<String>,
}

impl Plan {
    fn new(tokenizer: &Tokenizer) -> Plan {
        let known = tokenizer.get_vocab_size(false) as u32;
        let last = tokenizer.get_added_vocabulary().get_added_tokens_decoder().keys().max();
        let next_id = last.map_or(known, |last| known.max(last.saturating_add(1)));
        Plan { tokens: Vec::new(), next_id, ignored: None }
    }

    fn take(&mut self, tokenizer: &Tokenizer, named: Named) {
        let Named { mut token, id, has_flags } = named;
        token.special &= !is_mark(&token.content);
        let known = tokenizer.token_to_id(&token.content);
        let given = known.unwrap_or(self.next_id);
        let is_free = known.is_some() || tokenizer.id_to_token(given).is_none();
        if !is_free || id.is_some_and(|id| id != given) {
            let content = token.content.escape_debug();
            let said = id.map(|id| format!(" {id}")).unwrap_or_default();
            // One line however many there are.
            self.ignored.get_or_insert_with(|| {
                format!(
                    "the token \"{content}\"{said} is left out: tokenizer.json has it with id {given}, or that is the next \
                     id; others may be left out, too"
                )
            });
            return;
        }
        let is_added = tokenizer.get_added_vocabulary().get_vocab().contains_key(&token.content);
        if is_added && !has_flags {
            return;
        }
        self.next_id += u32::from(known.is_none());
        self.tokens.push(token);
    }
}

#[cfg(test)]
mod tests {
    use crate::{TextCodec, byte_tokenizer_json, byte_tokenizer_json_with};
    use serde_json::{Value, json};

    /// Loads a folder of a tokenizer of bytes, 256 `<|endoftext|>`, and these files.
    fn load(name: &str, tokenizer: &str, files: &[(&str, &Value)]) -> TextCodec {
        let folder = std::env::temp_dir().join(format!("pinion-added-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("tokenizer.json"), tokenizer).unwrap();
        for (file, value) in files {
            std::fs::write(folder.join(file), value.to_string()).unwrap();
        }
        let codec = TextCodec::load(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        codec
    }

    fn with_config(name: &str, config: &Value) -> TextCodec {
        load(name, &byte_tokenizer_json(), &[("tokenizer_config.json", config)])
    }

    const A: u32 = b'a' as u32;

    #[test]
    fn tokens_that_only_the_config_names_are_tokens() {
        let config = json!({
            "added_tokens_decoder": {
                "258": {"content": "<plain>", "special": false, "normalized": false},
                "257": {"content": "<turn>", "special": true, "lstrip": false},
                "256": {"content": "<|endoftext|>", "special": true, "normalized": false},
            },
            "image_token": "<image>",
            "eos_token": {"content": "<end>", "lstrip": false},
            "add_eos_token": true,
            "additional_special_tokens": ["<turn>", "<x>"],
        });
        let codec = with_config("named", &config);
        assert_eq!(codec.encode("a<turn><plain><end><image><x>", 99), Ok(vec![A, 257, 258, 259, 260, 261]));
        assert_eq!(codec.decode_all(&[A, 257, 258, 259, 260, 261, A]), "a<plain>a");
        assert_eq!((codec.eos_id(), codec.vocab_size()), (Some(259), 262));
        assert_eq!(codec.encode_framed("a", 99), Ok(vec![A, 259]));
        assert!(codec.ignored().is_empty(), "{:?}", codec.ignored());
        let named = json!({"extra_special_tokens": {"boi": "<boi>", "eoi": {"content": "<eoi>"}}});
        assert_eq!(with_config("dict", &named).encode("<eoi><boi>", 99), Ok(vec![258, 257]));
    }

    #[test]
    fn flags_of_the_config_count_more() {
        let tokenizer = byte_tokenizer_json_with(&["<turn>", "[ARGS]"]);
        let entry = |content: &str| json!({"content": content, "special": true, "rstrip": true});
        let decoder = json!({"added_tokens_decoder": {"257": entry("<turn>"), "258": entry("[ARGS]")}});
        let codec = load("flags", &tokenizer, &[("tokenizer_config.json", &decoder)]);
        assert_eq!(codec.encode("<turn> a", 99), Ok(vec![257, A]));
        // Marks of calls stay visible.
        assert_eq!(codec.decode_all(&[257, 258, A]), "[ARGS]a");
        // A role alone changes nothing of a token that is there.
        let role = load("role", &tokenizer, &[("tokenizer_config.json", &json!({"pad_token": "<turn>"}))]);
        assert_eq!(role.decode_all(&[257, A]), "<turn>a");
    }

    #[test]
    fn a_token_of_the_vocabulary_that_is_an_end_is_special() {
        let codec = with_config("vocabulary", &json!({"eos_token": "a"}));
        assert_eq!((codec.eos_id(), codec.vocab_size()), (Some(A), 257));
        assert_eq!(codec.decode_all(&[A, A + 1]), "b");
    }

    #[test]
    fn ids_that_are_not_those_of_the_config_are_refused_with_a_line() {
        for (name, decoder, said) in [
            ("gap", json!({"999": {"content": "<x>"}, "1000": {"content": "<y>"}}), "\"<x>\" 999"),
            ("other", json!({"3": {"content": "<|endoftext|>", "special": true}}), "\"<|endoftext|>\" 3"),
            ("taken", json!({"97": {"content": "<x>"}}), "\"<x>\" 97"),
        ] {
            let codec = with_config(name, &json!({"added_tokens_decoder": decoder}));
            assert_eq!((codec.vocab_size(), codec.encode("<x>", 9).unwrap().len()), (257, 3), "{name}");
            assert_eq!(codec.encode("<|endoftext|>", 99), Ok(vec![256]));
            assert!(codec.ignored().len() == 1 && codec.ignored()[0].contains(said), "{:?}", codec.ignored());
        }
        for odd in
            [json!([]), json!({"x": {"content": "<x>"}, "257": 3, "258": {}}), json!("<x>"), json!(null)]
        {
            let codec =
                with_config("odd", &json!({"added_tokens_decoder": odd, "eos_token": "", "x_token": [1]}));
            assert_eq!((codec.vocab_size(), codec.ignored().len()), (257, 0));
        }
    }

    #[test]
    fn an_older_folder_has_its_tokens_in_added_tokens_json() {
        let added = json!({"<turn>": 257, "<plain>": 258, "<far>": 500, "<|endoftext|>": 256});
        let map = json!({"eos_token": "<turn>"});
        let files = [("added_tokens.json", &added), ("special_tokens_map.json", &map)];
        let codec = load("older", &byte_tokenizer_json(), &files);
        assert_eq!(codec.encode("<turn><plain>", 99), Ok(vec![257, 258]));
        assert_eq!(codec.decode_all(&[257, 258]), "<plain>");
        assert_eq!((codec.eos_id(), codec.ignored().len()), (Some(257), 1));
        let alone = load("alone", &byte_tokenizer_json(), &files[..1]);
        assert_eq!(alone.encode("<turn><plain>", 99), Ok(vec![257, 258]));
        let config = json!({"added_tokens_decoder": {}});
        let newer = [files[0], files[1], ("tokenizer_config.json", &config)];
        assert_eq!(load("newer", &byte_tokenizer_json(), &newer).vocab_size(), 257);
    }

    #[test]
    fn a_hole_of_the_vocabulary_is_no_place_for_a_token() {
        let mut tokenizer: Value = serde_json::from_str(&byte_tokenizer_json()).unwrap();
        let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        vocabulary.insert("ab".into(), 258.into());
        tokenizer["added_tokens"] = json!([]);
        let config = json!({"sep_token": "<p>", "pad_token": "<q>"});
        let codec = load("hole", &tokenizer.to_string(), &[("tokenizer_config.json", &config)]);
        // 257 tokens are known, so that 257 is free and 258 is not.
        assert_eq!(codec.encode("<p>", 9), Ok(vec![257]));
        assert_eq!((codec.mark_id("ab"), codec.mark_id("<q>"), codec.ignored().len()), (Some(258), None, 1));
    }
}
