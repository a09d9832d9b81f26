//! Good and bad model folders.

use crate::tree::{GPT2, Tree, run_on, serve, serve_result};
use pinion_config::{Dtype, Exit, KvDtype, Machine, ModelFacts, SamplingDefaults};
use pinion_protocol::StopIds;

fn machine() -> Machine {
    Machine::uniform(4, 1)
}

#[test]
fn facts_of_gpt2() {
    let model = Tree::gpt2();
    let expected = ModelFacts {
        max_context: 1024,
        default_context: 1024,
        vocab_size: 50257,
        stop_ids: StopIds::one(50256),
        layers: 12,
        kv_heads: 12,
        head_dim: 64,
        hidden: 768,
        window: None,
    };
    let config = serve(&machine(), &model, &[], &[]);
    assert_eq!((config.max_model_len, config.model), (1024, expected));
    let name = model.path().file_name().unwrap().to_str().unwrap();
    assert_eq!(config.served_model_name, name);
}

/// A tokenizer whose vocabulary has an end-of-turn token.
const TOKENIZER: &str =
    r#"{"added_tokens": [{"id": 1, "content": "<s>"}, {"id": 12, "content": "<end>"}], "model": {}}"#;

#[test]
fn every_token_that_any_file_calls_an_end_is_one() {
    // (config's, generation config's, tokenizer config's, all)
    type Case<'a> = (&'a str, Option<&'a str>, Option<&'a str>, &'a [u32]);
    let decoder = r#"{"eos_token": "<turn>", "added_tokens_decoder": {"9": {"content": "<x>"}, "13": {"content": "<turn>"}}}"#;
    let cases: [Case<'_>; 10] = [
        ("1", None, Some(decoder), &[1, 13]),
        ("null", None, None, &[]),
        ("7", Some("8"), Some("{}"), &[7, 8]),
        ("[9, 10]", None, Some(r#"{"chat_template": "{{ x }}"}"#), &[9, 10]),
        ("null", Some("[11]"), Some(r#"{"chat_template": null}"#), &[11]),
        ("99999", None, None, &[]), // outside the vocabulary
        ("[3, 99999, 3]", Some("[4, 3]"), None, &[3, 4]),
        ("-1", Some("[5, -1]"), None, &[5]),
        ("1", Some("[6]"), Some(r#"{"eos_token": "<end>"}"#), &[1, 6, 12]),
        ("1", None, Some(r#"{"eos_token": {"content": "<end>"}}"#), &[1, 12]),
    ];
    for (config, generation, tokenizer, ends) in cases {
        let model = Tree::gpt2();
        model.file("config.json", &GPT2.replace("50256", config));
        model.file("tokenizer.json", TOKENIZER);
        if let Some(ids) = generation {
            model.file("generation_config.json", &format!("{{\"eos_token_id\": {ids}}}"));
        }
        if let Some(text) = tokenizer {
            model.file("tokenizer_config.json", text);
        }
        let facts = serve(&machine(), &model, &[], &[]).model;
        assert_eq!(facts.stop_ids.as_slice(), ends, "{config} {generation:?} {tokenizer:?}");
    }
}

#[test]
fn an_older_folder_names_its_end_in_special_tokens_map() {
    for (config, map, ends) in [
        (None, r#"{"eos_token": "<end>"}"#, &[50256, 12][..]),
        (Some(r#"{"eos_token": "<s>"}"#), r#"{"eos_token": {"content": "<end>"}}"#, &[50256, 12]),
        (Some(r#"{"eos_token": "<s>"}"#), r#"{"pad_token": "<end>"}"#, &[50256, 1]),
        (
            Some(r#"{"eos_token": "<s>", "added_tokens_decoder": {}}"#),
            r#"{"eos_token": "<end>"}"#,
            &[50256, 1],
        ),
        (None, r#"{"eos_token": "<added>"}"#, &[50256, 14]),
    ] {
        let model = Tree::gpt2();
        model.file("tokenizer.json", TOKENIZER);
        model.file("added_tokens.json", r#"{"<added>": 14}"#);
        model.file("special_tokens_map.json", map);
        if let Some(text) = config {
            model.file("tokenizer_config.json", text);
        }
        let facts = serve(&machine(), &model, &[], &[]).model;
        assert_eq!(facts.stop_ids.as_slice(), ends, "{config:?} {map}");
    }
}

#[test]
fn defaults_for_sampling_come_from_generation_config() {
    let model = Tree::gpt2();
    let file = r#"{"do_sample": false, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0,
        "repetition_penalty": 1.05, "max_new_tokens": 2048, "eos_token_id": [1, 2], "transformers_version": "4"}"#;
    model.file("generation_config.json", file);
    let expected = SamplingDefaults {
        temperature: Some(0.6),
        top_p: Some(0.95),
        top_k: Some(20),
        min_p: Some(0.0),
        repetition_penalty: Some(1.05),
        max_new_tokens: Some(2048),
    };
    let config = serve(&machine(), &model, &[], &[]);
    assert_eq!(config.sampling_defaults, expected);
    for word in ["none", "vllm"] {
        let config = serve(&machine(), &model, &["--generation-config", word], &[]);
        assert_eq!(config.sampling_defaults, SamplingDefaults::NONE, "{word}");
        assert_eq!(config.model.stop_ids.as_slice(), [50256, 1, 2], "the ends hold either way");
    }
    let empty = r#"{"temperature": null, "top_k": -1}"#;
    model.file("generation_config.json", empty);
    assert_eq!(serve(&machine(), &model, &[], &[]).sampling_defaults, SamplingDefaults::NONE);
}

#[test]
fn values_that_no_request_may_have_are_ignored_and_told() {
    let model = Tree::gpt2();
    let write = |text: &str| drop(model.file("generation_config.json", text));
    write(
        r#"{"temperature": 1e300, "top_p": 0, "top_k": 1.5, "min_p": -0.1, "repetition_penalty": "big",
            "max_new_tokens": 99999999999}"#,
    );
    let config = serve(&machine(), &model, &[], &[]);
    assert_eq!(config.sampling_defaults, SamplingDefaults::NONE);
    let dir = format!("{}/", model.text());
    let told: Vec<String> = config.warnings.iter().map(|line| line.replace(&dir, "")).collect();
    let expected = [
        "temperature is 1e+300 and is ignored; expected a number from 0 to 100",
        "top_p is 0 and is ignored; expected a number above 0 and at most 1",
        "top_k is 1.5 and is ignored; expected a whole number from -1 to 2147483647",
        "min_p is -0.1 and is ignored; expected a number from 0 to 1",
        "repetition_penalty is \"big\" and is ignored; expected a number from 0.01 to 100",
        "max_new_tokens is 99999999999 and is ignored; expected a whole number from 1 to 2147483647",
    ];
    assert_eq!(told, expected.map(|line| format!("generation_config.json: {line}")));
    let without = serve(&machine(), &model, &["--generation-config", "none"], &[]);
    assert_eq!(without.warnings, [""; 0], "nothing of it was wanted");
    write(
        r#"{"do_sample": false, "temperature": 0, "top_p": 1.0, "top_k": 20.0, "max_new_tokens": 64.0,
            "eos_token_id": [7.0]}"#,
    );
    let config = serve(&machine(), &model, &[], &[]);
    let expected = SamplingDefaults {
        temperature: Some(0.0),
        top_p: Some(1.0),
        top_k: Some(20),
        max_new_tokens: Some(64),
        ..SamplingDefaults::NONE
    };
    assert_eq!((config.sampling_defaults, config.warnings), (expected, Vec::new()));
    assert_eq!(config.model.stop_ids.as_slice(), [50256, 7]);
}

#[test]
fn ends_that_are_not_token_ids_are_refused_by_their_file() {
    let file = |text: &'static str| move |tree: &Tree| drop(tree.file("generation_config.json", text));
    let config =
        |ends: &'static str| move |tree: &Tree| drop(tree.file("config.json", &GPT2.replace("50256", ends)));
    check(vec![
        (
            Box::new(config("\"50256\"")),
            vec!["config.json: eos_token_id has \"50256\"; expected token ids, as one number or a list"],
        ),
        (
            Box::new(config("[1, 1.5]")),
            vec!["config.json: eos_token_id has 1.5; expected token ids, as one number or a list"],
        ),
        (
            Box::new(config("{}")),
            vec!["config.json: eos_token_id has {}; expected token ids, as one number or a list"],
        ),
        (
            Box::new(file(r#"{"eos_token_id": ["x"], "max_new_tokens": 99999999999}"#)),
            vec![
                "generation_config.json: eos_token_id has \"x\"; expected token ids, as one number or a list",
            ],
        ),
        (
            Box::new(|tree| {
                let ids: Vec<u32> = (0..33).collect();
                drop(tree.file("generation_config.json", &format!("{{\"eos_token_id\": {ids:?}}}")));
            }),
            vec!["generation_config.json: eos_token_id has more than 32 different ids"],
        ),
        (
            Box::new(|tree| {
                let ids: Vec<u32> = (0..32).collect();
                drop(tree.file("generation_config.json", &format!("{{\"eos_token_id\": {ids:?}}}")));
            }),
            vec![
                "config.json: together with generation_config.json and the tokenizer: a model may have at most 32 \
                 end-of-sequence ids",
            ],
        ),
        (Box::new(file("[]")), vec!["generation_config.json: is not a JSON object"]),
    ]);
}

#[test]
fn context_under_each_of_its_names() {
    for name in ["n_positions", "n_ctx", "max_position_embeddings"] {
        let model = Tree::gpt2();
        model.file("config.json", &GPT2.replace("n_positions", name));
        assert_eq!(serve(&machine(), &model, &[], &[]).model.max_context, 1024, "{name}");
    }
}

#[test]
fn weights_may_lie_in_several_files() {
    let model = Tree::gpt2();
    model.remove("model.safetensors");
    model.file("model.safetensors.index.json", "{}");
    assert_eq!(serve(&machine(), &model, &[], &[]).model.layers, 12);
}

#[test]
fn the_tokenizer_may_know_a_shorter_context() {
    for (length, expected) in [("512", 512), ("1e30", 1024), ("4096", 1024), ("-1", 1024), ("null", 1024)] {
        let model = Tree::gpt2();
        model.file("tokenizer_config.json", &format!("{{\"model_max_length\": {length}}}"));
        let config = serve(&machine(), &model, &[], &[]);
        assert_eq!((config.max_model_len, config.model.max_context), (expected, 1024), "{length}");
        let asked = serve(&machine(), &model, &["--max-model-len", "700"], &[]);
        assert_eq!(asked.max_model_len, 700);
    }
}

#[test]
fn kv_memory_follows_from_kv_heads() {
    let model = Tree::gpt2();
    let llama = r#"{"model_type":"llama","hidden_size":64,"intermediate_size":96,"num_hidden_layers":3,
        "num_attention_heads":8,"num_key_value_heads":2,"head_dim":16,"vocab_size":500,
        "max_position_embeddings":4096,"eos_token_id":[7,9]}"#;
    model.file("config.json", llama);
    let facts = serve(&machine(), &model, &[], &[]).model;
    assert_eq!((facts.kv_heads, facts.head_dim), (2, 16));
    assert_eq!(facts.kv_bytes_per_token(Dtype::Fp32, KvDtype::Auto), 2 * 3 * 2 * 16 * 4);
    assert_eq!(facts.kv_bytes_per_token(Dtype::Bf16, KvDtype::Auto), 2 * 3 * 2 * 16 * 2);
    assert_eq!(facts.kv_bytes_per_token(Dtype::Fp32, KvDtype::Int8), 2 * 3 * 2 * (16 + 4));
    // The same bytes hold more tokens of fewer bits.
    let blocks = |flags: &[&str]| serve(&machine(), &model, flags, &[]).kv_blocks;
    let bytes = ["--kv-cache-bytes", "64m", "--dtype", "fp32"];
    let (floats, integers) = (blocks(&bytes), blocks(&[&bytes[..], &["--kv-dtype", "int8"]].concat()));
    let of_tokens = |bytes: u32| 64_000_000 / (2 * 3 * 2 * bytes) / 16;
    assert_eq!((floats, integers), (of_tokens(64), of_tokens(20)));
}

type Change = Box<dyn Fn(&Tree)>;

/// Each change to a good folder gives exactly these lines, after the folder's path.
fn check(cases: Vec<(Change, Vec<&str>)>) {
    for (change, expected) in cases {
        let model = Tree::gpt2();
        change(&model);
        let dir = model.text();
        let faults = run_on(&machine(), &["serve", &dir], &[]).expect_err("a bad folder");
        let text = faults.to_string().replace(&format!("{dir}/"), "");
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        assert_eq!(faults.exit(), Exit::Model);
    }
}

#[test]
fn missing_files() {
    check(vec![
        (Box::new(|t| t.remove("config.json")), vec!["config.json: is missing"]),
        (Box::new(|t| t.remove("tokenizer.json")), vec!["tokenizer.json: is missing"]),
        (Box::new(|t| t.remove("model.safetensors")), vec!["model.safetensors: is missing"]),
        (
            Box::new(|t| {
                t.remove("config.json");
                t.remove("tokenizer.json");
                t.remove("model.safetensors");
            }),
            vec!["config.json: is missing", "tokenizer.json: is missing", "model.safetensors: is missing"],
        ),
    ]);
}

#[test]
fn what_has_to_be_converted_comes_with_the_command() {
    for (missing, there, hint) in [
        (
            "model.safetensors",
            "pytorch_model.bin",
            "python3 -c 'import sys; from transformers import AutoModelForCausalLM",
        ),
        ("model.safetensors", "pytorch_model.bin.index.json", "python3 -c '"),
        ("model.safetensors", "tf_model.h5", "from_tf=True"),
        (
            "tokenizer.json",
            "tokenizer.model",
            "python3 -c 'import sys; from transformers import AutoTokenizer",
        ),
        ("tokenizer.json", "vocab.json", "python3 -c '"),
        ("model.safetensors", "consolidated.safetensors", "take a repository of the model"),
        ("tokenizer.json", "tekken.json", "take tokenizer.json from a repository of the same model"),
    ] {
        let model = Tree::gpt2();
        model.remove(missing);
        model.file(there, "x");
        let dir = model.text();
        let faults = run_on(&machine(), &["serve", &dir], &[]).expect_err("a bad folder");
        let text = faults.to_string();
        assert!(text.starts_with(&format!("{dir}/{missing}: is missing; {there} is not read; ")), "{text}");
        assert!(text.contains(hint), "{text}");
        assert!(!hint.starts_with("python3") || text.ends_with(&format!(" '{dir}'")), "{text}");
    }
}

#[test]
fn a_chat_template_is_a_file_or_itself() {
    let model = Tree::gpt2();
    let file = model.file("mine.jinja", "{{ messages }}\n");
    let given =
        |value: &str| serve(&machine(), &model, &["--chat-template", value], &[]).chat_template.unwrap();
    let read = given(&file);
    assert_eq!((read.name.as_str(), read.text.as_str()), (file.as_str(), "{{ messages }}\n"));
    let inline = "{% for m in messages %}{{ m.content }}{% endfor %}".repeat(20);
    let read = given(&inline);
    assert_eq!((read.name.as_str(), read.text.as_str()), ("--chat-template", inline.as_str()));
    assert_eq!(serve(&machine(), &model, &[], &[]).chat_template, None);
    let folder = model.path().to_str().unwrap();
    for (value, reason) in [
        ("/no/such.jinja", "/no/such.jinja: no such file; a template itself has braces"),
        (folder, "cannot be read: "),
    ] {
        let faults = serve_result(&machine(), &model, &["--chat-template", value], &[]).unwrap_err();
        let text = faults.to_string();
        assert!(text.starts_with("--chat-template: ") && text.contains(reason), "{text}");
    }
}

#[test]
fn bad_files() {
    let config = |text: &'static str| move |tree: &Tree| drop(tree.file("config.json", text));
    check(vec![
        (Box::new(|t| drop(t.file("model.safetensors", ""))), vec!["model.safetensors: is empty"]),
        (
            Box::new(|t| drop(t.file("tokenizer.json", "{\"model\": "))),
            vec!["tokenizer.json: is not valid JSON: EOF while parsing a value at line 1 column 10"],
        ),
        (
            Box::new(config("{\"model_type\"")),
            vec!["config.json: is not valid JSON: EOF while parsing an object at line 1 column 13"],
        ),
        (Box::new(config("[]")), vec!["config.json: is not a JSON object"]),
        (Box::new(config("")), vec!["config.json: is empty"]),
        (
            Box::new(config("{}")),
            vec![
                "config.json: has no model_type; supported: gpt2, llama, mistral, qwen2, qwen3, smollm3, phi3, granite, olmo2, gemma2, gemma3_text",
            ],
        ),
        (
            Box::new(config(
                r#"{"model_type":"gpt2","n_ctx":-1,"vocab_size":"big","n_layer":0,"n_head":5,"n_embd":64,"num_experts":4}"#,
            )),
            vec![
                "config.json: has num_experts, which is not supported for this model_type",
                "config.json: n_ctx is -1; expected a whole number from 1 to 4294967295",
                "config.json: vocab_size is \"big\"; expected a whole number from 1 to 1048576",
                "config.json: n_layer is 0; expected a whole number from 1 to 4096",
                "config.json: n_head 5 does not divide n_embd 64",
            ],
        ),
    ]);
}

#[test]
fn no_folder_at_all() {
    let tree = Tree::new();
    let file = tree.file("weights.bin", "x");
    for (dir, reason) in [
        (
            "/no/such/model",
            "no such folder; a Hugging Face folder or a GGUF file is expected, or ORG/NAME for a model of the hub",
        ),
        (file.as_str(), "is a file; a Hugging Face folder or a GGUF file is expected"),
    ] {
        let faults = run_on(&machine(), &["serve", dir, "--port", "x"], &[]).unwrap_err();
        let expected = format!("--port: `x` is not a number\n{dir}: {reason}");
        assert_eq!((faults.to_string(), faults.exit()), (expected, Exit::Usage));
    }
}

#[test]
fn the_fake_backend_needs_neither_weights_nor_a_known_architecture() {
    let model = Tree::gpt2();
    model.remove("model.safetensors");
    model.file("config.json", r#"{"model_type":"llama","max_position_embeddings":64,"vocab_size":100}"#);
    let facts = serve(&machine(), &model, &["--backend", "fake"], &[]).model;
    assert_eq!((facts.max_context, facts.vocab_size, facts.layers, facts.head_dim), (64, 100, 1, 1));
}

/// The engine reads the same files.
#[test]
fn a_file_of_packed_weights_beside_config_json_is_read_and_checked() {
    let llama = r#"{"model_type":"llama","hidden_size":64,"intermediate_size":96,"vocab_size":50,"num_hidden_layers":1,
        "num_attention_heads":2,"max_position_embeddings":64}"#;
    let model = Tree::gpt2();
    model.file("config.json", llama);
    model.file("quantize_config.json", r#"{"bits": 4, "group_size": 128}"#);
    serve(&machine(), &model, &[], &[]);
    for (text, part) in
        [(r#"{"bits": 3}"#, "quantization_config.bits 3 is not supported"), ("{", "not valid JSON")]
    {
        model.file("quantize_config.json", text);
        let faults = serve_result(&machine(), &model, &[], &[]).unwrap_err().to_string();
        assert!(faults.contains(part), "{text}: {faults}");
    }
}
