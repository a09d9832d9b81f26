//! Which files of a repository are pulled: what serving a model takes, and nothing that could be run.

use crate::failure::NoWeights;

pub(crate) const INDEX: &str = "model.safetensors.index.json";
pub(crate) const SINGLE: &str = "model.safetensors";

/// Files beside the weights, by their whole name.
const COMPANIONS: &[&str] = &[
    "config.json",
    "generation_config.json",
    "quantize_config.json",
    "quant_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.json",
    "chat_template.jinja",
    "modules.json",
    "sentence_bert_config.json",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
];

/// Whether a file that is no weight is pulled. The index is: it says which weights there are.
pub(crate) fn is_companion(name: &str) -> bool {
    let is_tokenizer = name.starts_with("tokenizer")
        && [".json", ".model"].iter().any(|ending| name.ends_with(ending))
        && !name.contains('/');
    let template = name.strip_prefix("additional_chat_templates/");
    let is_template = template.is_some_and(|name| name.ends_with(".jinja") && !name.contains('/'));
    // What a module of sentence-transformers does.
    let is_module = name.strip_suffix("_Pooling/config.json").is_some_and(|at| !at.contains('/'));
    is_safe(name) && (COMPANIONS.contains(&name) || name == INDEX || is_tokenizer || is_template || is_module)
}

/// Whether a name of the hub is a path below a folder, and nothing else.
pub(crate) fn is_safe(name: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty() && part != "." && part != ".." && part.chars().all(|c| !c.is_control() && c != '\\')
    };
    name.len() <= 512 && name.split('/').all(is_part)
}

/// The weight files: those of the index, if there is one. Errors: what is there instead, or what the index names
/// and the repository does not have.
pub(crate) fn weights(names: &[String], index: Option<&[String]>) -> Result<Vec<String>, Missing> {
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    match index {
        Some(files) => match files.iter().find(|file| !has(file) || file.contains('/')) {
            Some(file) => Err(Missing::OfIndex(file.clone())),
            None => Ok(files.to_vec()),
        },
        None if has(SINGLE) => Ok(vec![SINGLE.to_owned()]),
        None => Err(Missing::All(instead(names))),
    }
}

/// Why there are no weights to pull.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    All(NoWeights),
    OfIndex(String),
}

fn instead(names: &[String]) -> NoWeights {
    let ends = |endings: &[&str]| names.iter().any(|name| endings.iter().any(|end| name.ends_with(end)));
    if ends(&[".safetensors"]) {
        NoWeights::OtherNames
    } else if ends(&[".bin", ".pt", ".pth", ".ckpt"]) {
        NoWeights::Pickled
    } else if ends(&[".gguf"]) {
        NoWeights::Gguf
    } else {
        NoWeights::Nothing
    }
}

/// The files that the text of an index names, each once. Errors: it is no index.
pub(crate) fn files_of_index(text: &[u8]) -> Result<Vec<String>, String> {
    let value: serde_json::Value =
        serde_json::from_slice(text).map_err(|error| format!("is not valid JSON: {error}"))?;
    let map = value.get("weight_map").and_then(|map| map.as_object()).ok_or("has no weight_map")?;
    let files: Option<Vec<String>> = map.values().map(|file| file.as_str().map(str::to_owned)).collect();
    let mut files = files.ok_or("names a file that is no text")?;
    files.sort();
    files.dedup();
    match files.iter().find(|file| !is_safe(file) || !file.ends_with(".safetensors")) {
        Some(file) => Err(format!("names {file:?}, which is no safetensors file")),
        None if files.is_empty() => Err("names no file".to_owned()),
        None => Ok(files),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn companions_are_data_only() {
        for name in [
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "quantize_config.json",
            "quant_config.json",
            "modules.json",
            "1_Pooling/config.json",
            "tokenizer.model",
            "additional_chat_templates/x.jinja",
        ] {
            assert!(is_companion(name), "{name}");
        }
        for name in [
            "pytorch_model.bin",
            "modeling.py",
            "tokenization_x.py",
            "tokenizer.py",
            "../config.json",
            "a/config.json",
            "tokenizer/../../x.json",
            "tokenizer/x.json",
            "additional_chat_templates/../x.jinja",
            "README.md",
            "",
        ] {
            assert!(!is_companion(name), "{name}");
        }
    }

    #[test]
    fn weights_are_those_of_the_index_or_the_one_file() {
        let two = names(&["a.safetensors", "b.safetensors"]);
        let all = [two.clone(), names(&["consolidated.safetensors", INDEX])].concat();
        assert_eq!(weights(&all, Some(&two)), Ok(two.clone()));
        assert_eq!(weights(&two[..1], Some(&two)), Err(Missing::OfIndex("b.safetensors".to_owned())));
        assert_eq!(weights(&names(&[SINGLE, "x.bin"]), None), Ok(names(&[SINGLE])));
        for (there, instead) in [
            (&["pytorch_model.bin"][..], NoWeights::Pickled),
            (&["m-Q4_K_M.gguf", "config.json"], NoWeights::Gguf),
            (&["adapter_model.safetensors", "x.bin"], NoWeights::OtherNames),
            (&["config.json"], NoWeights::Nothing),
        ] {
            assert_eq!(weights(&names(there), None), Err(Missing::All(instead)), "{there:?}");
        }
    }

    #[test]
    fn an_index_names_safetensors_in_its_own_folder() {
        let index = |map: &str| files_of_index(format!("{{\"weight_map\": {map}}}").as_bytes());
        assert_eq!(
            index(r#"{"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}"#).map(|f| f.len()),
            Ok(2)
        );
        for wrong in [r#"{"x": "../b.safetensors"}"#, r#"{"x": "b.bin"}"#, r#"{"x": 1}"#, "{}", "[]"] {
            assert!(index(wrong).is_err(), "{wrong}");
        }
    }
}
