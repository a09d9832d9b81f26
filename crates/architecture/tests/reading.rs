//! Each family's config.json becomes the architecture that transformers builds of it, in both dialects, and what is not
//! supported is refused by its key.

use pinion_architecture::{
    Activation, Architecture, Attention, Context, Layout, NormKind, NormPlaces, Position, QkNorm, Rotary,
    Scaling, facts, ignored, parse, read,
};
use serde_json::{Value, json};

/// A config with these keys over those of a small Llama.
fn config(model_type: &str, keys: Value) -> Value {
    let mut all = json!({
        "model_type": model_type, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 4,
        "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "eos_token_id": [7, 900, 8, 7], "bos_token_id": 1,
    });
    for (key, value) in keys.as_object().expect("an object").clone() {
        all[key] = value;
    }
    all
}

fn architecture(config: &Value) -> Architecture {
    read(config.as_object().expect("an object")).unwrap_or_else(|faults| panic!("{config}: {faults:?}"))
}

fn rotaries(of: &Architecture) -> &[Rotary] {
    match &of.position {
        Position::Rotary(rotaries) => rotaries,
        Position::Learned { .. } => panic!("{} has learned positions", of.family),
    }
}

#[test]
fn llama_in_both_dialects() {
    let old = config(
        "llama",
        json!({"rope_theta": 5e5, "rope_scaling": {
        "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}}),
    );
    let new = config(
        "llama",
        json!({"rope_parameters": {"rope_theta": 5e5,
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}}),
    );
    let model = architecture(&old);
    assert_eq!(model, architecture(&new));
    let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, trained: 16 };
    assert_eq!(rotaries(&model), [Rotary { dim: 8, theta: 5e5, scaling }]);
    assert_eq!((model.attention.kv_heads, model.group(), model.attention.head_dim), (2, 3, 8));
    assert_eq!((model.stop_ids.as_slice(), model.begin_id), (&[7, 8][..], Some(1)));
    assert_eq!(model.context, Context { default: 64, max: 64 });
    assert_eq!((model.norm.kind, model.norm_places), (NormKind::Rms, NormPlaces::Before));
    assert!(!model.head.tied && !model.attention.qkv_bias && model.mlp.gated);
    assert_eq!(model.names.linear(2, model.names.qkv).names[1], "layers.2.self_attn.k_proj");
    let biased =
        architecture(&config("llama", json!({"attention_bias": true, "mlp_bias": true, "head_dim": 10})));
    assert!(biased.attention.qkv_bias && biased.attention.out_bias && biased.mlp.bias);
    assert_eq!((biased.query_width(), biased.kv_width(), biased.hidden), (60, 20, 48));
}

#[test]
fn what_each_family_changes_of_llama() {
    let windows = |model: &Architecture| model.layers.iter().map(|layer| layer.window).collect::<Vec<_>>();
    let mistral = architecture(&config("mistral", json!({"sliding_window": 9})));
    assert_eq!(windows(&mistral), [Some(9); 4]);
    assert_eq!(windows(&architecture(&config("mistral", json!({"sliding_window": null})))), [None; 4]);
    assert_eq!(windows(&architecture(&config("mistral", json!({})))), [Some(4096); 4]);
    // The text of a multimodal model, also where it does not name its family.
    for (keys, expected) in [
        (json!({"model_type": "mistral"}), Some(4096)),
        (json!({}), Some(4096)),
        (json!({"sliding_window": null}), None),
        (json!({"sliding_window": 9}), Some(9)),
    ] {
        let mut text = config("mistral", keys.clone());
        if keys.get("model_type").is_none() {
            text.as_object_mut().expect("an object").remove("model_type");
        }
        let wrapper = json!({"model_type": "mistral3", "text_config": text});
        assert_eq!(windows(&architecture(&wrapper)), [expected; 4], "{wrapper}");
    }
    let qwen2 = architecture(&config("qwen2", json!({"sliding_window": 9, "max_window_layers": 2})));
    assert!(qwen2.attention.qkv_bias && !qwen2.attention.out_bias);
    assert_eq!(windows(&qwen2), [None; 4]);
    let keys = json!({"sliding_window": 9, "max_window_layers": 2, "use_sliding_window": true});
    assert_eq!(windows(&architecture(&config("qwen2", keys))), [None, None, Some(9), Some(9)]);
    let keys = json!({"sliding_window": null, "max_window_layers": 2, "use_sliding_window": true});
    assert_eq!(windows(&architecture(&config("qwen2", keys))), [None; 4]);
    let keys = json!({"max_window_layers": 3, "use_sliding_window": true});
    assert_eq!(windows(&architecture(&config("qwen2", keys))), [None, None, None, Some(4096)]);
    let qwen3 = architecture(&config("qwen3", json!({"head_dim": 16, "tie_word_embeddings": true})));
    assert_eq!((qwen3.attention.qk_norm, qwen3.query_width()), (QkNorm::PerHead, 96));
    assert!(qwen3.head.tied);
    let smollm3 = architecture(&config("smollm3", json!({"no_rope_layer_interval": 2})));
    let rotates: Vec<bool> = smollm3.layers.iter().map(|layer| layer.rotary.is_some()).collect();
    assert_eq!(rotates, [true, false, true, false]);
    assert!(smollm3.head.tied && rotaries(&smollm3)[0].theta == 2e6);
    let smollm3 = architecture(&config("smollm3", json!({"no_rope_layers": [0, 1, 1, 0]})));
    assert_eq!(smollm3.layers.iter().filter(|layer| layer.rotary.is_none()).count(), 2);
    let granite = architecture(&config(
        "granite",
        json!({"embedding_multiplier": 12, "logits_scaling": 8,
        "residual_multiplier": 0.22, "attention_multiplier": 0.0625}),
    ));
    assert_eq!((granite.embedding_multiplier, granite.head.divisor), (Some(12.0), Some(8.0)));
    assert_eq!((granite.residual_multiplier, granite.layers[3].scale), (Some(0.22), 0.0625));
    let olmo2 = architecture(&config("olmo2", json!({})));
    assert_eq!((olmo2.norm.kind, olmo2.norm_places), (NormKind::RmsWide, NormPlaces::After));
    assert_eq!(olmo2.attention.qk_norm, QkNorm::Whole);
}

/// A class may have KV heads and a width of heads of its own for a file that lacks the key; null means each head's own.
#[test]
fn heads_that_the_file_does_not_name_are_those_of_the_class() {
    for (model_type, absent, null) in [
        ("llama", [32, 32, 2], [32, 32, 2]),
        ("mistral", [32, 8, 2], [32, 32, 2]),
        ("smollm3", [32, 4, 2], [32, 32, 2]),
        ("qwen2", [32, 32, 2], [32, 32, 2]),
        ("qwen3", [32, 32, 128], [32, 32, 128]),
        ("gemma2", [32, 4, 256], [32, 32, 256]),
    ] {
        let heads = |keys: Value| {
            let mut keys = config(model_type, keys);
            let map = keys.as_object_mut().expect("an object");
            map.retain(|_, value| *value != json!("absent"));
            let found = architecture(&keys).attention;
            [found.heads, found.kv_heads, found.head_dim]
        };
        let shape = |kv_heads: Value| {
            json!({"hidden_size": 64, "num_attention_heads": 32, "num_key_value_heads": kv_heads,
                "head_dim": null})
        };
        assert_eq!(heads(shape(json!("absent"))), absent, "{model_type}");
        assert_eq!(heads(shape(json!(null))), null, "{model_type}");
    }
}

#[test]
fn phi3_means_longrope_whatever_it_says() {
    for kind in ["su", "yarn", "longrope"] {
        let list = |factor: f64| vec![factor; 3];
        let model = architecture(&config(
            "phi3",
            json!({"partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 16, "sliding_window": 20,
            "rope_scaling": {"type": kind, "short_factor": list(1.0), "long_factor": list(2.0)}}),
        ));
        let [Rotary { dim: 6, scaling: Scaling::Long { trained: 16, attention_factor, .. }, .. }] =
            rotaries(&model)
        else {
            panic!("{model:?}")
        };
        assert!((f64::from(*attention_factor) - (1.0 + 4f64.ln() / 16f64.ln()).sqrt()).abs() < 1e-6);
        assert_eq!(model.context, Context { default: 16, max: 64 });
        assert_eq!(model.names.qkv, ["self_attn.qkv_proj"]);
        let [short, long] = [16, 17].map(|served| rotaries(&model)[0].frequencies(served).inverse[0]);
        assert_eq!((short, long), (1.0, 0.5));
    }
}

#[test]
fn gemma_in_both_dialects_and_wrapped() {
    let gemma2 = architecture(&config("gemma2", json!({"head_dim": 16, "query_pre_attn_scalar": 64})));
    assert_eq!((gemma2.attention.soft_cap, gemma2.head.soft_cap), (Some(50.0), Some(30.0)));
    assert_eq!((gemma2.layers[0].window, gemma2.layers[1].window), (Some(4096), None));
    assert_eq!((gemma2.layers[0].scale, gemma2.embedding_multiplier), (0.125, Some(48f32.sqrt())));
    assert_eq!((gemma2.norm.kind, gemma2.norm_places), (NormKind::RmsOnePlus, NormPlaces::Around));
    assert_eq!(gemma2.mlp.activation, Activation::GeluTanh);
    assert!(gemma2.head.tied && !gemma2.fits_f16);

    let shared = json!({"head_dim": 16, "sliding_window": 9});
    let with = |keys: Value| {
        let mut all = shared.clone();
        all.as_object_mut().expect("an object").extend(keys.as_object().expect("an object").clone());
        all
    };
    let old = with(json!({"sliding_window_pattern": 2, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}}));
    let new = with(json!({"rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]}));
    let model = architecture(&config("gemma3_text", old.clone()));
    assert_eq!(model, architecture(&config("gemma3_text", new)));
    assert_eq!((rotaries(&model)[0].theta, rotaries(&model)[1].theta), (1e6, 1e4));
    assert_eq!(rotaries(&model)[0].scaling, Scaling::Linear { factor: 8.0 });
    assert_eq!((model.layers[0].rotary, model.layers[1].rotary), (Some(1), Some(0)));
    assert_eq!(model.context.max, 64);

    let wrapper =
        json!({"model_type": "gemma3", "text_config": config("gemma3_text", old), "eos_token_id": [1, 106]});
    let wrapped = architecture(&wrapper);
    assert_eq!((wrapped.layers.clone(), wrapped.stop_ids.clone()), (model.layers, vec![1, 106]));
    assert_eq!(wrapped.names.head_prefixes, ["", "language_model."]);
    assert!(wrapped.head.tied);
    let mut untied = wrapper.clone();
    untied["tie_word_embeddings"] = false.into();
    assert!(!architecture(&untied).head.tied);
    let mut nameless = wrapper.clone();
    nameless["text_config"].as_object_mut().expect("an object").remove("model_type");
    assert_eq!(architecture(&nameless), wrapped);
}

#[test]
fn gpt2_is_a_family() {
    let model = architecture(&json!({"model_type": "gpt2", "n_positions": 128, "n_embd": 48, "n_head": 3,
        "n_layer": 2, "vocab_size": 300, "scale_attn_by_inverse_layer_idx": true, "activation_function": "gelu"}));
    assert_eq!(
        (model.position.clone(), model.names.layout),
        (Position::Learned { count: 128 }, Layout::InOut)
    );
    assert_eq!((model.layers[0].scale, model.layers[1].scale), (0.25, 0.125));
    assert_eq!((model.mlp.inner, model.mlp.gated, model.mlp.activation), (192, false, Activation::GeluErf));
    assert!(model.head.tied && model.attention.qkv_bias);
}

/// Of a nested config transformers writes only what differs from its class.
#[test]
fn a_text_config_has_the_defaults_of_its_class() {
    let text = json!({"model_type": "mistral", "hidden_size": 5120, "head_dim": 128, "num_hidden_layers": 2});
    let wrapper = json!({"model_type": "mistral3", "text_config": text});
    let found = architecture(&wrapper);
    let Attention { heads, kv_heads, head_dim, .. } = found.attention;
    assert_eq!((found.hidden, found.mlp.inner, found.layers.len(), found.vocab), (5120, 14_336, 2, 32_000));
    assert_eq!((heads, kv_heads, head_dim, found.context.max), (32, 8, 128, 131_072));
    let of_fake = facts(wrapper.as_object().expect("an object")).expect("the fake backend serves it, too");
    assert_eq!((of_fake.context, of_fake.vocab), (131_072, 32_000));
    let all = architecture(&json!({"model_type": "mistral3", "text_config": {}}));
    assert_eq!((all.hidden, all.layers.len()), (4096, 32));
    let gemma = architecture(&json!({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}));
    assert_eq!((gemma.layers.len(), gemma.hidden), (26, 2304));
    // A whole config has these keys always, and null is no absence.
    let mut whole = text.clone();
    whole["num_attention_heads"] = 32.into();
    let faults = read(whole.as_object().expect("an object")).expect_err("no defaults");
    let missing = ["vocab_size", "max_position_embeddings", "intermediate_size"];
    assert_eq!(faults, missing.map(|key| format!("has no {key}")));
    let null = json!({"model_type": "mistral3", "text_config": {"vocab_size": null}});
    assert_eq!(read(null.as_object().expect("an object")).expect_err("null"), ["has no vocab_size"]);
}

/// Without a gate SiLU is no more supported than what has no name here.
#[test]
fn activations_of_gpt2_are_refused_with_those_that_are_read() {
    for name in ["relu", "silu", "swish", "quick_gelu", "tanh"] {
        let config = json!({"model_type": "gpt2", "n_embd": 48, "n_head": 3, "n_positions": 64, "n_layer": 2,
            "vocab_size": 300, "activation_function": name});
        let faults = read(config.as_object().expect("an object")).expect_err(name);
        let expected = format!(
            "activation_function \"{name}\" is not supported; supported: gelu, gelu_new, gelu_pytorch_tanh, gelu_fast"
        );
        assert_eq!(faults, [expected]);
    }
}

#[test]
fn what_is_not_supported_is_refused_by_its_key() {
    let lists = |count: usize| json!({"rope_type": "longrope", "short_factor": vec![1.0; count], "long_factor": vec![1.0; 4]});
    for (model_type, keys, part) in [
        ("llama", json!({"num_experts": 8}), "num_experts"),
        ("llama", json!({"num_local_experts": 8}), "num_local_experts"),
        ("gemma3_text", json!({"use_bidirectional_attention": true}), "use_bidirectional_attention"),
        ("llama", json!({"rope_scaling": {"rope_type": "mrope", "factor": 2}}), "rope_type \"mrope\""),
        ("llama", json!({"rope_scaling": {"rope_type": "linear"}}), "has no factor"),
        ("llama", json!({"rope_scaling": {"rope_type": "linear", "factor": -1}}), "factor is -1"),
        ("llama", json!({"rope_scaling": "linear"}), "rope_scaling is not an object"),
        ("llama", json!({"rope_scaling": lists(3)}), "short_factor is not a list of 4"),
        (
            "llama",
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": "32"}}),
            "original_max_position_embeddings is \"32\"; expected a number",
        ),
        ("llama", json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor 0.5"),
        ("llama", json!({"rope_parameters": {"full_attention": {}}}), "rope_parameters.full_attention"),
        ("phi3", json!({"rope_scaling": {"type": "linear", "factor": 2}}), "rope_type \"linear\""),
        ("phi3", json!({"partial_rotary_factor": 0.9}), "7 columns of a head"),
        ("mistral", json!({"attention_bias": true}), "attention_bias"),
        (
            "mistral",
            json!({"sliding_window": 4, "layer_types": ["full_attention", "full_attention",
            "sliding_attention", "full_attention"]}),
            "layer_types",
        ),
        ("qwen2", json!({"use_sliding_window": true, "layer_types": ["linear_attention"]}), "layer_types"),
        (
            "llama",
            json!({"hidden_act": "relu"}),
            "hidden_act \"relu\" is not supported; supported: gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, silu, swish",
        ),
        ("llama", json!({"num_key_value_heads": 4}), "num_key_value_heads 4 does not divide"),
        (
            "llama",
            json!({"num_attention_heads": 10, "num_key_value_heads": 5}),
            "does not divide hidden_size 48",
        ),
        ("llama", json!({"head_dim": 1024}), "head_dim of 1024"),
        ("llama", json!({"quantization": {"group_size": 64, "bits": 4}}), "has quantization, which is MLX's"),
        ("llama", json!({"vocab_size": 0}), "vocab_size is 0"),
        ("llama", json!({"max_position_embeddings": null}), "has no max_position_embeddings"),
        ("smollm3", json!({"no_rope_layers": [1]}), "no_rope_layers is [1]; expected 4 numbers"),
        ("mixtral", json!({}), "model_type \"mixtral\" is not supported; supported: gpt2, llama"),
        ("qwen2_vl", json!({"text_config": {"model_type": "qwen2"}}), "model_type \"qwen2_vl\""),
        (
            "mistral3",
            json!({"text_config": {"model_type": "ministral3"}}),
            "text_config.model_type \"ministral3\" is not supported; supported: gpt2",
        ),
    ] {
        let config = config(model_type, keys);
        let faults = read(config.as_object().expect("an object")).expect_err(part);
        assert!(faults.iter().any(|fault| fault.contains(part)), "{part}: {faults:?}");
    }
    let empty = read(&serde_json::Map::new()).expect_err("it is empty");
    assert!(empty[0].starts_with("has no model_type"), "{empty:?}");
    assert!(parse(b"[]").is_err() && parse(b"{").is_err());
}

#[test]
fn facts_of_a_family_that_is_not_run() {
    let config = config("mixtral", json!({"max_position_embeddings": 77, "eos_token_id": 2}));
    let facts = facts(config.as_object().expect("an object")).expect("nothing is missing");
    assert_eq!((facts.context, facts.vocab, facts.stop_ids, facts.begin_id), (77, 300, vec![2], Some(1)));
}

#[test]
fn ends_of_texts_are_token_ids() {
    let with = |ends: Value| config("llama", json!({"vocab_size": 5, "eos_token_id": ends}));
    for (ends, expected) in [
        (json!([3, 3, -1, 4.0, 5, 1u64 << 40]), vec![3, 4]),
        (json!(2.0), vec![2]),
        (json!(-1), vec![]),
        (json!(null), vec![]),
        (json!([]), vec![]),
    ] {
        assert_eq!(architecture(&with(ends)).stop_ids, expected);
    }
    for (ends, shown) in [
        (json!("2"), "\"2\""),
        (json!([2, "x"]), "\"x\""),
        (json!(1.5), "1.5"),
        (json!({"id": 2}), "{\"id\":2}"),
        (json!(true), "true"),
        (json!([[2]]), "[2]"),
        (json!([2, null]), "null"),
        (json!(-2), "-2"),
    ] {
        let config = with(ends);
        let map = config.as_object().expect("an object");
        let told = format!("eos_token_id has {shown}; expected token ids, as one number or a list");
        assert_eq!(read(map).expect_err(shown), [told.as_str()]);
        assert_eq!(facts(map).expect_err(shown), [told.as_str()]);
    }
}

#[test]
fn yarn_dynamic_and_linear_stretch_the_context() {
    let with = |scaling: Value| architecture(&config("llama", json!({"rope_scaling": scaling})));
    assert_eq!(with(json!({"rope_type": "linear", "factor": 2.5})).context.max, 160);
    // More than is served is no fault.
    let long = architecture(&config("llama", json!({"max_position_embeddings": 4_194_304})));
    assert_eq!(long.context, Context { default: 1 << 20, max: 1 << 20 });
    let dynamic = with(json!({"rope_type": "dynamic", "factor": 2.0}));
    assert_eq!(dynamic.context.default, 128);
    let [short, long] = [64, 128].map(|served| rotaries(&dynamic)[0].frequencies(served).inverse[1]);
    assert!(short == 0.1 && long < short, "{short} {long}");
    let scaling = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32});
    let yarn = with(scaling.clone());
    assert_eq!(yarn.context.max, 128);
    let beside = json!({"rope_scaling": scaling, "original_max_position_embeddings": null});
    assert_eq!(architecture(&config("llama", beside)), yarn);
    let Scaling::Yarn { attention_factor, .. } = rotaries(&yarn)[0].scaling else { panic!("{yarn:?}") };
    assert!((attention_factor - (0.1 * 4f32.ln() + 1.0)).abs() < 1e-6);
}

#[test]
fn shards_cover_the_whole_and_replicate_few_kv_heads() {
    let model = architecture(&config("llama", json!({})));
    for (of, kv) in [(1, std::iter::once(0..2).collect()), (2, vec![0..1, 1..2])] {
        let shards: Vec<_> = (0..of).map(|rank| model.shard(rank, of).expect("it divides")).collect();
        assert_eq!(shards.iter().map(|shard| shard.kv_heads.clone()).collect::<Vec<_>>(), kv);
        assert_eq!(shards.iter().map(|shard| shard.heads.len()).sum::<usize>(), 6);
        assert_eq!(shards.iter().map(|shard| shard.vocab.len()).sum::<usize>(), 300);
        assert_eq!(shards.iter().map(|shard| shard.inner.len()).sum::<usize>(), 80);
        assert!(
            shards.iter().all(|shard| shard.architecture.group() == 3 && shard.architecture.hidden == 48)
        );
    }
    let mqa = architecture(&config("llama", json!({"num_attention_heads": 4, "num_key_value_heads": 1})));
    for rank in 0..4 {
        let shard = mqa.shard(rank, 4).expect("it divides");
        assert_eq!((shard.heads, shard.kv_heads), (rank..rank + 1, 0..1));
        assert_eq!((shard.architecture.attention.heads, shard.architecture.attention.kv_heads), (1, 1));
    }
    for (model, rank, of, part) in [
        (&model, 0, 4, "6 attention heads"),
        (&model, 2, 2, "no part 2 of 2"),
        (&model, 0, 0, "no part 0 of 0"),
        (&architecture(&config("llama", json!({"intermediate_size": 81}))), 0, 2, "81 inner columns"),
        (
            &architecture(&config(
                "llama",
                json!({"num_attention_heads": 12, "num_key_value_heads": 4, "intermediate_size": 84}),
            )),
            0,
            6,
            "4 KV heads and 6",
        ),
        (&architecture(&config("olmo2", json!({}))), 0, 2, "a norm over all heads"),
    ] {
        let error = model.shard(rank, of).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn what_a_family_does_not_have_is_told() {
    for (model_type, keys, expected) in [
        ("llama", json!({"attention_bias": true, "mlp_bias": true, "qk_norm": null}), vec![]),
        (
            "llama",
            json!({"final_logit_softcapping": 30.0, "embedding_multiplier": 1.0}),
            vec!["final_logit_softcapping is 30.0;"],
        ),
        (
            "llama",
            json!({"embedding_multiplier": 12, "qk_norm": true}),
            vec!["embedding_multiplier is 12;", "qk_norm is true;"],
        ),
        (
            "granite",
            json!({"embedding_multiplier": 12.0, "logits_scaling": 8.0, "attention_multiplier": 0.1}),
            vec![],
        ),
        (
            "qwen2",
            json!({"sliding_window": 4096, "use_sliding_window": false, "max_window_layers": 2}),
            vec![],
        ),
        ("qwen2", json!({"mlp_bias": true}), vec!["mlp_bias is true;"]),
        (
            "qwen3",
            json!({"layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"]}),
            vec![],
        ),
        ("llama", json!({"architectures": ["LlamaForCausalLM"]}), vec![]),
        ("gemma3_text", json!({"architectures": ["Gemma3ForCausalLM"], "rope_interleaved": false}), vec![]),
        (
            "llama",
            json!({"architectures": ["BitnetForCausalLM"]}),
            vec!["architectures names BitnetForCausalLM;"],
        ),
        (
            "qwen2",
            json!({"dual_chunk_attention_config": {"chunk_size": 32}}),
            vec!["dual_chunk_attention_config is {"],
        ),
        (
            "qwen3",
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attn_factor": 0.88}}),
            vec!["attn_factor is 0.88;"],
        ),
        (
            "llama",
            json!({"architectures": ["LlamaForSequenceClassification"]}),
            vec!["architectures names LlamaForSequenceClassification;"],
        ),
    ] {
        let config = config(model_type, keys);
        let told = ignored(config.as_object().expect("an object"), true);
        assert_eq!(told.len(), expected.len(), "{config}: {told:?}");
        for (told, expected) in told.iter().zip(expected) {
            assert!(told.starts_with(expected), "{told}");
        }
    }
    let refused = config("llama", json!({"num_experts": 4, "qk_norm": true}));
    assert_eq!(ignored(refused.as_object().expect("an object"), true), [""; 0]);
}
