//! How a folder becomes one that can be served: the command for each form of weights and tokenizers that is not read.

use std::path::Path;

/// Weights as PyTorch stores them.
const PICKLED: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];
/// Weights of other programs, and what to do with them.
const OTHERS: [(&str, &str); 4] = [
    (
        "tf_model.h5",
        "convert it with transformers 4: from_pretrained(.., from_tf=True), then save_pretrained",
    ),
    (
        "flax_model.msgpack",
        "convert it with transformers 4: from_pretrained(.., from_flax=True), then save_pretrained",
    ),
    ("consolidated.00.pth", "convert it with transformers' convert_llama_weights_to_hf.py"),
    (
        "consolidated.safetensors",
        "it has Mistral's own names of tensors; take a repository of the model that has model.safetensors or \
         model.safetensors.index.json",
    ),
];
/// Files of tokenizers that are not read.
const TOKENIZERS: [&str; 4] = ["tokenizer.model", "vocab.json", "vocab.txt", "spiece.model"];
/// Mistral's own, which transformers does not convert.
const TEKKEN: &str = "tekken.json";

const CONVERT_WEIGHTS: &str = "import sys; from transformers import AutoModelForCausalLM as M; d = sys.argv[1]; M.from_pretrained(d).save_pretrained(d)";
const CONVERT_TOKENIZER: &str = "import sys; from transformers import AutoTokenizer as T; d = sys.argv[1]; T.from_pretrained(d).save_pretrained(d)";

/// What to do where there are no safetensors, if the folder has other weights.
pub(crate) fn of_weights(dir: &Path) -> Option<String> {
    let has = |file: &str| dir.join(file).exists();
    if let Some(file) = PICKLED.into_iter().find(|file| has(file)) {
        return Some(format!(
            "is missing; {file} is not read; convert it: {}",
            command(CONVERT_WEIGHTS, dir)
        ));
    }
    let (file, how) = OTHERS.into_iter().find(|(file, _)| has(file))?;
    Some(format!("is missing; {file} is not read; {how}"))
}

/// What to do where there is no tokenizer.json, if the folder has another tokenizer.
pub(crate) fn of_tokenizer(dir: &Path) -> Option<String> {
    let Some(file) = TOKENIZERS.into_iter().find(|file| dir.join(file).exists()) else {
        let how = "take tokenizer.json from a repository of the same model that has it";
        return dir.join(TEKKEN).exists().then(|| format!("is missing; {TEKKEN} is not read; {how}"));
    };
    let command = command(CONVERT_TOKENIZER, dir);
    Some(format!("is missing; {file} is not read; convert it: {command}"))
}

/// For a shell in which transformers is installed.
fn command(program: &str, dir: &Path) -> String {
    let dir = dir.display().to_string().replace('\'', r"'\''");
    format!("python3 -c '{program}' '{dir}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_s_name_is_one_word_of_the_command() {
        let command = command("pass", Path::new("/models/it's mine"));
        assert_eq!(command, r"python3 -c 'pass' '/models/it'\''s mine'");
        assert!(![CONVERT_WEIGHTS, CONVERT_TOKENIZER].iter().any(|program| program.contains('\'')));
    }
}
