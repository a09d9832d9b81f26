//! Good and bad model folders.

use crate::tree::{GPT2, Tree, run_on, serve};
use pinion_config::{Exit, Machine, ModelFacts};

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
        eos: Some(50256),
        layers: 12,
        kv_heads: 12,
        head_dim: 64,
        hidden: 768,
    };
    let config = serve(&machine(), &model, &[], &[]);
    assert_eq!((config.max_model_len, config.model), (1024, expected));
    let name = model.path().file_name().unwrap().to_str().unwrap();
    assert_eq!(config.served_model_name, name);
}

#[test]
fn end_of_sequence() {
    // (config's, generation config's, tokenizer config's, eos)
    for (config, generation, tokenizer, eos) in [
        ("null", None, None, None),
        ("7", Some("8"), Some("{}"), Some(7)),
        ("[9, 10]", None, Some(r#"{"chat_template": "{{ x }}"}"#), Some(9)),
        ("null", Some("[11]"), Some(r#"{"chat_template": null}"#), Some(11)),
        ("99999", None, None, None), // outside the vocabulary
    ] {
        let model = Tree::gpt2();
        model.file("config.json", &GPT2.replace("50256", config));
        if let Some(ids) = generation {
            model.file("generation_config.json", &format!("{{\"eos_token_id\": {ids}}}"));
        }
        if let Some(text) = tokenizer {
            model.file("tokenizer_config.json", text);
        }
        let facts = serve(&machine(), &model, &[], &[]).model;
        assert_eq!(facts.eos, eos, "{config} {generation:?}");
    }
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
    assert_eq!(facts.kv_bytes_per_token(pinion_config::Dtype::Fp32), 2 * 3 * 2 * 16 * 4);
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
        (
            Box::new(|t| {
                t.remove("model.safetensors");
                t.file("pytorch_model.bin", "x");
            }),
            vec!["model.safetensors: is missing; pytorch_model.bin is not read, convert it to safetensors"],
        ),
    ]);
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
                "config.json: n_ctx is -1; expected a whole number from 1 to 1048576",
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
            "no such folder; a Hugging Face folder is expected, or ORG/NAME for a model of the hub",
        ),
        (file.as_str(), "is a file; a Hugging Face folder is expected"),
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
